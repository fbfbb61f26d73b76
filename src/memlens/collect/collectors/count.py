"""Collector `count`: IR-exact counts of a program that was built with `memlens cc`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    events = (
        "perf events at the ends of regions" if facts["has_pmu"] else "no hardware events: this machine shows no PMU"
    )
    detail = f"programs built with memlens cc; {events}"
    if facts["clang"]:
        return Availability(True, detail)
    return Availability(
        True,
        detail,
        (
            (
                "programs can be recorded, but not built here: no clang is installed",
                "sudo apt-get install clang llvm-dev",
            ),
        ),
    )


DESCRIPTOR = CollectorDescriptor(
    name="count",
    question="How many bytes does each region read and write (IR-exact), how fast, and in which thread?",
    needs=("a program built with memlens cc",),
    gives=(
        "block_count", "region_node", "region_time", "counted_module", "count_tables", "count_status", "count_epoch",
        "region_span", "sample_group", "sample_count", "region_duration",
    ),
    options=(
        Option("--count", "every=N, first=K, periodic, seed=N, budget=1%, epoch=100ms, events=A+B, threads=N, children", "all"),
    ),
    probe=probe,
)  # fmt: skip
