"""Page faults and peak memory beside what the kernel counts for the same program natively."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .model import Missing, Row
from .programs import Program
from .running import folder_for, missing_tool, native, record

NATIVE_RUNS = 3
OWN_RSS_BYTES = 5 << 19
"""What our library adds to the program's memory: rings of 128 KiB, tables of objects and stacks, 1 to 2 MiB in all."""
OWN_FAULTS = 60
"""Pages that our library in the program touches: the report counts them apart, a native run has none of them."""

REASONS = {
    "node": "stacks of allocations read the program's unwind tables (76 MiB of code): these file pages become resident, 4 MiB of them",
}


def lines(output: bytes) -> tuple[bytes, ...]:
    """Sorted: several threads print in any order."""
    return tuple(sorted(output.splitlines()))


def judge(memlens: list[str], programs: list[Program], root: Path) -> Iterator[Row | Missing]:
    """Faults, peak RSS, exit status and output of each program."""
    lacking = missing_tool("/usr/bin/time")
    for program in programs:
        why = program.missing() or lacking
        if why:
            yield Missing(program.name, "faults, timeline", why)
            continue
        with folder_for(program, root) as folder:
            runs = [native(program, folder) for _ in range(NATIVE_RUNS)]
            recorded = record(memlens, program, folder)
        statuses = {run.status for run in runs}
        yield Row(
            program.name, "record", "exit status", recorded.status, min(statuses), max(statuses), "native runs", 0.0
        )
        outputs = {lines(run.output) for run in runs}
        if len(outputs) == 1:
            same = float(lines(recorded.output) in outputs)
            yield Row(program.name, "record", "output is the same", same, 1, 1, "native runs", 0.0)
        faults = [run.faults for run in runs]
        yield Row(
            program.name, "faults", "page faults", recorded.figure("faults", "faults"), min(faults), max(faults),
            "getrusage of native runs", 0.05, OWN_FAULTS,
        )  # fmt: skip
        peaks = [run.peak_rss_bytes for run in runs]
        yield Row(
            program.name, "timeline", "peak RSS of the largest process", recorded.figure("capacity", "kernel_peak_rss_bytes"),
            min(peaks), max(peaks), "getrusage of native runs", 0.05, OWN_RSS_BYTES, "bytes", REASONS.get(program.name, ""),
        )  # fmt: skip
