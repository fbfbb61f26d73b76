"""Collector `timeline`: RSS, PSS, faults and CPU time over time, from /proc; the cgroup's memory and limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    return Availability(True, "RSS, PSS, huge pages, faults, CPU time and cgroup limit over time")


DESCRIPTOR = CollectorDescriptor(
    name="timeline",
    question="How much memory does the program hold over time, and how near is that to its limits?",
    needs=("/proc",),
    gives=("timeline",),
    options=(Option("--rate", "readings a second, 1 to 1000", 10),),
    probe=probe,
)
