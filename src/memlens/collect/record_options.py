"""What a recording is asked for, and what came of it."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass, field
from pathlib import Path

from . import counting, emulator, tracing

DEFAULT_SAMPLE_BYTES = 512 << 10
DEFAULT_LARGE_BYTES = 64 << 10
DEFAULT_BUDGET_SHARE = 0.03
LEAST_RING_BYTES = 512 << 10


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
class RecordOptions:
    """What to record and where to."""

    output: Path
    collectors: tuple[str, ...] | None = None
    """None: whatever works here."""
    stacks: str = field(default_factory=default_stacks)
    single: bool = False
    budget_share: float = DEFAULT_BUDGET_SHARE
    """What faults, stacks and objects may cost of the program's time; 0: everything is recorded, whatever it costs."""
    rate_hz: float = 10.0
    sample_bytes: int = DEFAULT_SAMPLE_BYTES
    """Mean distance of recorded small objects in allocated bytes; 0: every object."""
    large_bytes: int = DEFAULT_LARGE_BYTES
    """Objects of this size and more are always recorded."""
    emulate: emulator.EmulateOptions | None = None
    """Run the program under an emulator that sees every access."""
    count: counting.CountOptions | None = None
    """How a program with compiled-in counters counts; None: count everything, if it has any."""
    trace: tracing.TraceOptions | None = None
    """How a program that was built for tracing records accesses; None: windows of the default length, if it was."""
    duration_s: float | None = None
    force: bool = False
    redact: bool = False


@dataclass
class Outcome:
    """How a recording ended."""

    path: Path
    wait_status: int | None
    """As waitpid gave it; None for --pid."""
    wall_s: float
    record_bytes: int
    processes: int
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    """Control-C while the capture was finished or summarised."""
