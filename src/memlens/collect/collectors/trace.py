"""Collector `trace`: designed (its records are in format/), not in this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    if facts["clang"]:
        return Availability(False, f"comes in a later version; this machine has {', '.join(facts['clang'])}")
    return Availability(
        False,
        "comes in a later version",
        (("it will need LLVM, and no clang is installed", "sudo apt-get install clang llvm-dev"),),
    )


DESCRIPTOR = CollectorDescriptor(
    name="trace",
    question="sampled sequences of accesses with static load classes",
    gives=("window",),
    available=False,
    probe=probe,
)
