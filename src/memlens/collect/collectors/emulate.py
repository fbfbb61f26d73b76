"""Collector `emulate`: every access of an unmodified program, under qemu-user with a plugin of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from .. import emulator
    from ..facts import Availability

    if not facts["qemu_user"]:
        return Availability(
            False,
            "not usable",
            ((f"qemu-user for {os.uname().machine} is not installed", "sudo apt-get install qemu-user"),),
        )
    own = emulator.find(os.uname().machine)
    if isinstance(own, tuple):
        return Availability(False, "not usable", (own,))
    others = [name for name in emulator.MACHINES.values() if not isinstance(emulator.find(name), tuple)]
    return Availability(True, f"qemu {own.version}, plugin interface {own.plugin_api}; programs of {', '.join(others)}")


DESCRIPTOR = CollectorDescriptor(
    name="emulate",
    question="How many bytes does each instruction read and write, exactly, and where?",
    needs=("qemu-user 7.0 to 10.2 with plugins",),
    gives=("code_count", "window", "page_count", "unseen", "emulator_status", "mapping", "stack"),
    options=(
        Option(
            "--emulate", "counts; window=N,period=N; full; pages; cpu=NAME; stacks=off", "window=1000,period=100000"
        ),
        Option("--functions", "functions that are regions, as a regular expression", None),
    ),
    probe=probe,
)
