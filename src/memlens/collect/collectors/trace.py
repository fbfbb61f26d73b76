"""Collector `trace`: addresses of accesses in windows, of a program that was built with `memlens cc --memlens=trace`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability

    detail = "programs built with memlens cc --memlens=trace"
    if facts["clang"]:
        return Availability(True, detail)
    return Availability(
        True,
        detail,
        (
            (
                "programs can be recorded, but not built here: LLVM is missing, no clang is installed",
                "sudo apt-get install clang llvm-dev",
            ),
        ),
    )


DESCRIPTOR = CollectorDescriptor(
    name="trace",
    question="In which order does a program access which addresses, from which lines, and how regularly?",
    needs=("a program built with memlens cc --memlens=trace",),
    gives=("window", "traced_module", "trace_status", "count_tables", "count_status", "placement"),
    options=(
        Option("--trace", "window=N, period=N, full, loads, regions=A+B, seed=N, stacks=off, on-full=drop|wait", "1000 in 100000"),
    ),
    probe=probe,
)  # fmt: skip
