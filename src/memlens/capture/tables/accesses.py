"""Tables of windows and of the accesses in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .descriptor import PROCESS, THREAD, Models, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa


def _stream(capture: Models) -> pa.RecordBatchReader:
    import pyarrow as pa

    from ..model.accesses import access_schema

    return pa.RecordBatchReader.from_batches(access_schema(code=True), capture.windows.accesses(code=True))


def _accesses(capture: Models) -> pa.Table:
    return _stream(capture).read_all()


def _recorded(capture: Models) -> int:
    return int(capture.windows.columns["recorded"].sum())


def _windows(capture: Models) -> pa.Table:
    return capture.windows.table()


TABLES = (
    TableDescriptor(
        name="accesses",
        text="The accesses of all windows, decoded from their streams; windows that are damaged are left out. May be far larger than "
        "memory: `query` and `export` stream it, `capture.accesses()` too. `access_records` has accesses that were recorded one by one.",
        make=_accesses,
        stream=_stream,
        count_rows=_recorded,
        columns={
    "process": PROCESS,
    "thread": THREAD,
    "window": "window; joins `windows.window`",
    "time_ns": "interpolated: a window's accesses are spread evenly from its begin to its end",
    "pc": "address of the instruction, null when the stream names sites of an instrumented module",
    "address": "first byte accessed",
    "bytes": "width, null likewise",
    "operation": "one of: load, store, atomic; null likewise",
    "weight": "executed accesses of the thread that this one stands for: executed by recorded of its window",
    "code": "code location; joins `sites.id`",
},
    ),
    TableDescriptor(
        name="windows",
        text="Windows of consecutive accesses, one row for each record; table `accesses` has what is in them.",
        make=_windows,
        columns={
    "window": "number in this capture, from 0",
    "unit": "records of one unit are parts of one window: their accesses follow each other without a gap",
    "process": PROCESS,
    "thread": THREAD,
    "region": "region at the window's start",
    "begin_ns": "first access",
    "end_ns": "last access",
    "first_executed": "executed accesses of the thread before this window, constants included",
    "executed": "executed accesses from this window's start to the next one's, constants included",
    "recorded": "accesses in the stream",
    "implied_constant": "constant accesses inside the window that the stream leaves out",
    "dropped": "accesses of this window that did not fit",
    "period": "set window + gap, in executed accesses; equal to recorded for a full trace",
    "weight": "executed by recorded of the whole unit",
    "stack": "stack id at the window's start; joins `stacks.id`",
    "cpu": "CPU at the window's start",
    "encoding": "one of: site_delta, pc_delta, site_segments",
    "module": "build-id that site numbers belong to, null = the stream has instruction addresses",
    "stream_bytes": "bytes of the stream",
},
    ),
)  # fmt: skip
