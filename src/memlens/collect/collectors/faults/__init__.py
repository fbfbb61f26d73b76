"""Collector `faults`: page faults from perf's software events, pages the kernel placed from pagemap."""

from __future__ import annotations

import errno
import os
import platform
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import UsageError, os_reason
from ....registry import Asked, CollectorDescriptor, Option
from ...facts import Availability, why_no_perf_event
from ...protocol import Collector, SessionPlan
from .page_tables import PageTables
from .shared_before import shared_memory_before

if TYPE_CHECKING:
    from ...facts import Facts

LEAST_RING_BYTES = 512 << 10
STACK_MODES = {"none": 0, "fp": 1, "dwarf": 2}


def default_stacks() -> str:
    """Unwind tables, where the unwinder knows the machine and locked memory allows rings for copies of stacks.

    Frame pointers lose the caller of memset and malloc, and every caller in code that is built without them.
    """
    if platform.machine() not in ("x86_64", "aarch64"):
        return "fp"
    if os.geteuid() == 0:
        return "dwarf"
    cpus, limit = os.cpu_count() or 1, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return "dwarf"
    try:
        each = int(Path("/proc/sys/kernel/perf_event_mlock_kb").read_text()) << 10
    except (OSError, ValueError):
        each = 0
    return "dwarf" if (each * cpus + limit) // (2 * cpus) >= LEAST_RING_BYTES else "fp"


@dataclass(frozen=True)
class FaultOptions:
    stacks: str = field(default_factory=default_stacks)
    single: bool = False
    """One event a fault: what was mapped before it is not asked."""


def probe(facts: Facts) -> Availability:
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
            ("this kernel does not report page sizes: huge pages count as one page", "use Linux 5.11 or newer")
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


def settings(values: Mapping[str, Any], asked: Asked) -> FaultOptions:
    if asked.redact and values["stacks"] == "dwarf":
        raise UsageError(
            "--redact keeps no copies of stack memory, which --stacks dwarf is made of",
            hint="use --stacks fp or none with --redact",
        )
    return FaultOptions(values["stacks"] or ("fp" if asked.redact else default_stacks()), values["single"])


class Faults(Collector[FaultOptions]):
    """The session records the events; what they do not show is looked for in page tables."""

    processes = "events"

    def plan_session(self, plan: SessionPlan) -> None:
        plan.faults = True
        plan.fault_before = not self.settings.single
        plan.stack_mode = STACK_MODES[self.settings.stacks]

    def refused(self, error: OSError) -> tuple[str, str]:
        if (error.errno or errno.EIO) == errno.EMFILE:
            return "too many open files for this many CPUs and threads", "raise the limit: ulimit -n 65536"
        return f"{error.filename}: {os_reason(error)}", "see memlens doctor"

    def describe(self) -> dict[str, object]:
        return {
            "stacks": self.settings.stacks,
            "single": self.settings.single,
            "budget_share": self.recording.options.budget_share or None,
        }

    def begin_meta(self) -> dict[str, object]:
        return {"shared_memory_before": shared_memory_before()}

    def attach(self, pid: int) -> None:
        self.recording.resolve_nodes()
        self._tables = PageTables(
            self.recording.session,
            self.recording.writer,
            knows_unexplained=self.recording.session_plan.timeline_hz > 0,
        )

    def quality(self) -> dict[str, str]:
        return {"stack": self.settings.stacks}

    def tick(self) -> None:
        self._tables.tick()

    def end(self, counts: Mapping[str, int], status: int | None) -> list[str]:
        looks = self._tables
        self.recording.ledger("slow", {"page_table_looks": looks.looks, "page_table_looks_failed": looks.looks_failed})
        if self.recording.failure is None:
            costs = self.recording.session.fault_costs()
            self.recording.writer.meta["fault_recording_ns"] = None if costs is None else costs[self.settings.single]
        return []


UNWINDERS = {"fp": "frame pointers", "dwarf": "DWARF unwinding"}


def words(options: Mapping[str, Any]) -> list[str]:
    said = []
    if "stacks" in options:
        how = options["stacks"]
        said.append("no call stacks" if how == "none" else f"call stacks by {UNWINDERS.get(str(how), how)}")
    if options.get("single"):
        said.append("one event a fault")
    if options.get("budget_share"):
        said.append(f"a budget of {100 * options['budget_share']:.3g} % of the program's time")
    return said


def quality(options: Mapping[str, object], meta: Mapping[str, Any], is_incomplete: bool, lost: int) -> list[str]:
    session = meta.get("session", {})
    seen = "user and system calls" if session.get("include_kernel") else "user code only"
    whole = "incomplete" if is_incomplete else "sampled" if session.get("sampled_faults") else "all"
    return [
        f"faults {whole} ({seen}), {lost} lost",
        f"stacks {meta.get('quality', {}).get('stack', '?')}, {session.get('stacks', 0):,} sampled",
    ]


DESCRIPTOR = CollectorDescriptor(
    name="faults",
    question="Which thread and line touched each page first, and what does the kernel do on each fault?",
    needs=("perf software events (perf_event_paranoid ≤ 2)",),
    gives=("fault", "residency", "placement", "stack", "mapping", "process_event"),
    options=(
        Option(
            "--stacks",
            "call stacks of sampled faults: from unwind tables (dwarf) or frame pointers (fp); default: dwarf on x86-64 and "
            "AArch64, fp elsewhere, with little lockable memory (ulimit -l) and with --redact, since dwarf keeps copies of stack memory",
            choices=("fp", "dwarf", "none"), shown="dwarf",
        ),
        Option("--single", "half the cost a fault; upgrades and repeated touches cannot be distinguished", False, flag=True),
    ),
    order=30,
    probe=probe,
    settings=settings,
    make=Faults,
    words=words,
    quality=quality,
)  # fmt: skip
