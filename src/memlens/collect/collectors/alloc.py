"""Collector `alloc`: designed (its records are in format/), not in this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    return Availability(False, "comes in a later version; this machine has what it will need")


DESCRIPTOR = CollectorDescriptor(
    name="alloc",
    question="heap objects: who allocated what, when, how long it lives",
    gives=("allocation",),
    available=False,
    probe=probe,
)
