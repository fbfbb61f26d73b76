"""Collector `sample`: designed (its records are in format/), not in this version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import CollectorDescriptor
from ..facts import Availability, why_no_perf_event

if TYPE_CHECKING:
    from ..facts import Facts


def probe(facts: Facts) -> Availability:
    if not facts["has_pmu"]:
        return Availability(
            False,
            "comes in a later version",
            (
                (
                    "no PMU: this is a virtual machine without one, or the kernel has no driver for it",
                    "use bare metal or a guest with a virtual PMU",
                ),
            ),
        )
    if facts["hardware_event_errno"]:
        return Availability(
            False, "comes in a later version", (why_no_perf_event(facts, facts["hardware_event_errno"]),)
        )
    return Availability(False, f"comes in a later version; this machine has {', '.join(facts['pmu_devices'])}")


DESCRIPTOR = CollectorDescriptor(
    name="sample",
    question="PMU samples: address, latency, data source",
    gives=("access",),
    available=False,
    order=70,
    probe=probe,
)
