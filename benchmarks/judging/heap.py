"""Allocations beside heaptrack and DHAT; sampled heap figures beside exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .model import Missing, Row
from .programs import Program
from .running import Recorded, RunError, dhat, folder_for, heaptrack, missing_tool, record

EXACT = ("--collectors", "alloc", "--sample-bytes", "0")
CPP_POOL_BYTES = 72_704
"""heaptrack loads the C++ library, whose pool for exceptions is one block more in a C program."""
SMALL_BYTES = 8 << 10
"""What differs by design: heaptrack has the C library free its own buffers at the end, and both load other modules into the program."""


def judge(memlens: list[str], programs: list[Program], root: Path, *, slow: bool) -> Iterator[Row | Missing]:
    """Every allocation of programs with one process; DHAT takes a minute a program, so only with `slow`."""
    lacking = missing_tool("heaptrack", "heaptrack_print")
    for program in programs:
        if not program.one_process or program.language in ("Java", "Go"):  # these hardly use malloc
            continue
        why = program.missing() or lacking
        if why:
            yield Missing(program.name, "allocations", why)
            continue
        with folder_for(program, root) as folder:
            recorded = record(memlens, program, folder, *EXACT)
            try:
                # Threads and garbage collectors: no two runs are the same.
                runs = [heaptrack(program, folder) for _ in range(1 if program.exact else 3)]
            except RunError as error:
                yield Missing(program.name, "allocations beside heaptrack", str(error))
                continue
            yield from _beside_heaptrack(program, recorded, runs)
            if slow and missing_tool("valgrind") is None:
                yield from _beside_dhat(
                    program,
                    folder,
                    recorded.figure("objects", "allocated_bytes"),
                    recorded.figure("objects", "allocations"),
                )


def _beside_heaptrack(program: Program, recorded: Recorded, runs: list[dict[str, float]]) -> Iterator[Row]:
    relative = 0.01 if program.exact else 0.05
    calls = [run["calls"] for run in runs]
    reported = recorded.figure("objects", "allocations")
    yield Row(program.name, "alloc", "allocations", reported, min(calls) - 1, max(calls), "heaptrack", relative / 5, 2)
    for metric, figure, oracle, absent, still in (
        # At the peak heaptrack has the pool and a C program has not; at the end it has freed it, and a C++ program has it still.
        ("peak heap", "peak_heap_bytes", "peak", CPP_POOL_BYTES, 0),
        ("leaked", "leaked_bytes", "leaked", 0, CPP_POOL_BYTES),
    ):
        low, high = (
            min(run[oracle] for run in runs) * 0.995,
            max(run[oracle] for run in runs) * 1.005,
        )  # it prints four digits
        yield Row(
            program.name, "alloc", metric, recorded.figure("objects", figure), max(0, low - absent), high + still, "heaptrack",
            relative, SMALL_BYTES, "bytes",
        )  # fmt: skip


def _beside_dhat(
    program: Program, folder: Path, allocated: float | None, calls: float | None
) -> Iterator[Row | Missing]:
    try:
        expected = dhat(program, folder)
    except RunError as error:
        yield Missing(program.name, "allocations beside DHAT", str(error))
        return
    total, blocks = expected["total_bytes"], expected["total_blocks"]
    yield Row(
        program.name, "alloc", "allocated bytes", allocated, total, total, "DHAT", 0.01, 2 * CPP_POOL_BYTES, "bytes"
    )
    yield Row(program.name, "alloc", "allocated blocks", calls, blocks, blocks, "DHAT", 0.01, 10)
