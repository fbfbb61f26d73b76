"""Tables of page faults and of pages that no fault explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .descriptor import PROCESS, THREAD, Models, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa


def _faults(capture: Models) -> pa.Table:
    return capture.replay.fault_reader().read_all()


def _fault_stream(capture: Models) -> pa.RecordBatchReader:
    return capture.replay.fault_reader()


def _fault_count(capture: Models) -> int:
    return capture.replay.fault_count


def _placed(capture: Models) -> pa.Table:
    return capture.replay.placed_table()


TABLES = (
    TableDescriptor(
        name="faults",
        text="Every page fault, classed and named. Derived when the capture is read; `fault_records` has the evidence.",
        make=_faults,
        stream=_fault_stream,
        count_rows=_fault_count,
        columns={
    "time_ns": "CLOCK_MONOTONIC, after the fault was served",
    "process": PROCESS,
    "thread": THREAD,
    "cpu": "CPU",
    "address": "faulting address, to the byte",
    "class": "first, again, upgrade, copy, file, hint, major, placed: see docs/why-believe-this.md",
    "span_bytes": "bytes that the kernel mapped by this fault (4 KiB, 2 MiB, …)",
    "new_bytes": "of these, bytes that were not accessible to the process in this mapping before",
    "area": "what was touched: anonymous, heap, stack, file, shared_memory, special, unknown",
    "in_kernel": "the fault happened inside a system call",
    "inferred": "the class is a conclusion without knowing what was mapped before",
    "weight": "faults that it stands for: 1 = itself; more while faults were sampled for the budget (`fault_levels`); 0 = recorded for its "
    "stack alone. Sum it instead of counting rows",
    "ip": "user instruction pointer (inside a system call: where it returns to)",
    "stack": "stack id, 0 = not sampled; joins `stacks.id`",
    "stack_weight": "faults that a sampled stack stands for",
    "code": "code location; joins `sites.id`",
    "module": "file of the code; `[jit]` for code made at run time",
    "function": "function, null when it has no name",
    "file": "source file, null without debug information",
    "line": "source line, 0 = unknown",
    "node": "NUMA node of the page, null = not known",
},
    ),
    TableDescriptor(
        name="placed",
        text="Runs of pages that were found resident with no event that explains them.",
        make=_placed,
        columns={
    "process": PROCESS,
    "begin_ns": "the previous reading of the page table, 0 = none: they came after it",
    "end_ns": "the reading that found them: they came before it",
    "address": "first byte",
    "bytes": "length of the run",
    "huge": "in huge pages",
    "moved": "no mapping record explains the address: moved there (mremap), not placed",
    "before": "resident when the recorder attached to the running process: who placed it is not known",
    "sampled": "not every fault of that time was recorded: the program may have touched them, as the weights of `faults` estimate",
    "area": "as in `faults`",
},
    ),
)  # fmt: skip
