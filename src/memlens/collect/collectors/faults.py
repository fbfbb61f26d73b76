"""Collector `faults`: page faults from perf's software events, pages the kernel placed from pagemap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...registry import CollectorDescriptor, Option


def probe(facts: Mapping[str, Any]) -> Any:
    from ..facts import Availability, why_no_perf_event

    facts = dict(facts)
    if facts["fault_event_errno"]:
        return Availability(False, "not usable", (why_no_perf_event(facts, facts["fault_event_errno"]),))
    reasons = []
    if facts["ring_errno"]:
        limit = facts["memlock_limit_bytes"]
        reasons.append(
            (
                f"the ring buffers must be small: mlock limit {limit} bytes, perf_event_mlock_kb {facts['perf_event_mlock_kb']}",
                "sudo sysctl kernel.perf_event_mlock_kb=4096",
            )
        )
    if facts["fault_kernel_errno"]:
        reasons.append(
            (
                "faults inside system calls (read() into a fresh buffer) are not seen as events, "
                "only later in the page table",
                "sudo sysctl kernel.perf_event_paranoid=1, or run as root",
            )
        )
    if facts["page_size_errno"]:
        reasons.append(
            ("this kernel does not tell page sizes: huge pages count as one page", "use Linux 5.11 or newer")
        )
    if facts["pagemap_errno"]:
        reasons.append(
            (
                "/proc/PID/pagemap cannot be read: pages placed by the kernel stay unseen",
                "mount /proc without restrictions",
            )
        )
    if facts["numa_nodes"] > 1 and facts["move_pages_errno"]:
        reasons.append(
            (
                "move_pages is refused: NUMA nodes of pages stay unknown",
                "allow move_pages in the container's seccomp profile",
            )
        )
    detail = "every page fault: page, thread, line, class"
    return Availability(True, detail, tuple(reasons))


DESCRIPTOR = CollectorDescriptor(
    name="faults",
    question="Which thread and line touched each page first, and what does the kernel do on each fault?",
    needs=("perf software events (perf_event_paranoid ≤ 2)",),
    gives=("fault", "residency", "placement", "stack", "mapping", "process_event"),
    options=(
        Option(
            "--stacks",
            "call stacks of one fault in N (N adapts): dwarf (unwind tables), fp (frame pointers) or none",
            "dwarf",
        ),
        Option(
            "--budget",
            "what recording may cost of the program's time: above it one event a fault instead of two, then one fault in 31",
            "3%",
        ),
        Option("--exact", "no budget: every fault with both events, whatever it costs", False),
        Option("--single", "half the cost a fault: do not ask what was mapped before it", False),
    ),
    probe=probe,
)
