"""Collector `emulate`: designed (its records are in format/), not in this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    if facts["qemu_user"]:
        return Availability(False, f"comes in a later version; this machine has {facts['qemu_user']}")
    return Availability(
        False,
        "comes in a later version",
        (("it will need qemu-user, which is not installed", "sudo apt-get install qemu-user"),),
    )


DESCRIPTOR = CollectorDescriptor(
    name="emulate",
    question="every access of an unmodified program, exactly, on any ISA",
    gives=("window",),
    available=False,
    probe=probe,
)
