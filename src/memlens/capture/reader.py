"""Reads captures: whole, cut, damaged, or still growing.

`Capture` streams record batches as Arrow columns and gives side tables. It
verifies everything it reads; what is missing is in `Capture.quality`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..selection import Selection
from .store.layouts import layouts
from .store.records import RecordStore

if TYPE_CHECKING:
    import pyarrow as pa

    from .. import _core
    from .model.accesses import Windows
    from .model.clocks import ClockMap
    from .model.counting import Counts
    from .model.decoded import DecodedWindows, WindowChunk
    from .model.objects import Objects
    from .model.replay import Replay
    from .model.tracing import TraceSites
    from .store.calibration import Peaks


def open_capture(path: str | Path) -> Capture:
    """Opens a capture directory.

    Raises
    ------
    CaptureError
        Not there, not a capture, or nothing of it can be read.
    CaptureVersionError
        Written by a version whose format this build does not read.
    """
    return Capture(Path(path))


class Capture(RecordStore):
    """A capture. Use `memlens.open`."""

    def __init__(self, path: Path) -> None:
        self._tables: dict[str, pa.Table] = {}
        self._replay: Replay | None = None
        self._objects: Objects | None = None
        self._windows: Windows | None = None
        self._decoded: DecodedWindows | None = None
        self.span_ns: tuple[int, int] | None = None
        """Only windows that begin in this range: `within`."""
        self._trace_sites: TraceSites | None = None
        self._counts: Counts | None = None
        self.skip_frames: re.Pattern[str] | None = None
        """Functions and modules that are never shown as the place of an allocation or a first touch."""
        self.keeps_tables = False
        """Derived tables that take long are kept beside the capture, and taken from there."""
        self.derived: dict[str, Any] = {}
        """What analyses derive from the capture and share; emptied when it grows."""
        super().__init__(path)

    def _forget(self) -> None:
        self._tables.clear()
        self._replay = None
        self._objects = None
        self._windows = None
        self._trace_sites = None
        self._counts = None
        self.derived.clear()

    @property
    def selection(self) -> Selection:
        """The part of the run that tables, windows and counts are of: all of it, unless an analysis was asked for a part."""
        return Selection()

    @property
    def whole(self) -> Capture:
        """The capture that this is a part of."""
        return self

    @property
    def time_range_ns(self) -> tuple[int, int]:
        """Begin and end of the selected time; times in tables still count from `begin_ns`."""
        return self.begin_ns, self.end_ns

    def within(self, begin_ns: int, end_ns: int) -> Capture:
        """This capture with the windows alone that begin from `begin_ns` to before `end_ns`.

        Chunks whose header says that they lie elsewhere are not decompressed. Everything but windows is as it is in the whole capture, and is read
        again where it is needed. Two ranges that follow each other have each window once.
        """
        part = copy.copy(self)
        part._tables, part.derived = {}, {}
        part._forget()
        part._decoded = None
        part.span_ns = (begin_ns, end_ns)
        return part

    def chunks_of(self, name: str) -> Sequence[WindowChunk]:
        """The chunks of a kind whose version is known, in the order in which they were found; of windows those of `within`."""
        chunks = super().chunks_of(name)
        if self.span_ns is None or name != "window":
            return chunks
        from .store.window_span import chunks_within

        return chunks_within(chunks, self.span_ns)

    def clock(self, name: str) -> ClockMap:
        """Converts readings of another clock (``tsc``, ``perf``, ``realtime``, …) to this capture's times."""
        from .model.clocks import clock_map

        return clock_map(self, name)

    # ---- tables ---------------------------------------------------------------------------
    @property
    def replay(self) -> Replay:
        """Faults classed by replaying the capture (cached)."""
        if self._replay is None:
            from .model.replay import Replay

            self._replay = Replay(self)
        return self._replay

    @property
    def objects(self) -> Objects:
        """Objects and what lies where, by replaying allocations, tags and mappings (cached)."""
        if self._objects is None:
            from .model.objects import Objects

            self._objects = Objects(self)
        return self._objects

    @property
    def windows(self) -> Windows:
        """Windows of accesses (cached): table, units, decoded accesses, join with objects."""
        if self._windows is None:
            from .model.accesses import Windows

            self._windows = Windows(self)
        return self._windows

    @property
    def decoded(self) -> DecodedWindows:
        """The windows' accesses, decoded once for everybody; kept when the capture grows."""
        if self._decoded is None:
            from .model.decoded import DecodedWindows

            self._decoded = DecodedWindows(self)
        return self._decoded

    def note_window_uses(self, engine: _core.Replay) -> None:
        """Tells a replay which code and stacks the windows name, and when.

        Where nobody else reads the accesses, they are not kept.
        """
        from .. import _core

        if self._decoded is None:
            for header, payload in self.payloads("window"):
                engine.add_windows(header["process"], payload)
            return
        for chunk in self._decoded:
            _core.add_window_uses(engine, chunk.process, chunk.fixed, [*self._decoded.batches(chunk)])

    @property
    def counts(self) -> Counts:
        """What compiled-in counters say (cached): executions and bytes of sites and blocks, by thread and region."""
        if self._counts is None:
            from .model.counting import Counts

            self._counts = Counts(self)
        return self._counts

    @cached_property
    def peaks(self) -> Peaks | None:
        """The machine's peaks: those known when it was recorded, else those that `memlens calibrate` has measured since
        on the same machine."""
        from .store import calibration

        content = self.meta.get("calibration")
        if content is None:
            name = (self.meta.get("machine") or {}).get("fingerprint")
            content = calibration.load(name).content if name else None
        if content is None:
            return None
        peaks = calibration.Peaks(content)
        try:
            peaks.check()
        except (KeyError, TypeError, ValueError, IndexError, StopIteration):
            return None
        return peaks

    @property
    def trace_sites(self) -> TraceSites:
        """Sites of traced code (cached): what the numbers in streams of sites mean."""
        if self._trace_sites is None:
            from .model.tracing import TraceSites

            self._trace_sites = TraceSites(self)
        return self._trace_sites

    def accesses(
        self,
        *,
        windows: Collection[int] | None = None,
        threads: Collection[int] | None = None,
        code: bool = False,
        batch_accesses: int = 1 << 15,
    ) -> Iterator[pa.RecordBatch]:
        """Streams the accesses of windows, decoded: a trace of any length, never whole in memory.

        Columns: process, thread, window (row of table ``windows``), time_ns, pc, address, bytes, operation, weight.
        ``time_ns`` is interpolated: the window's accesses are spread evenly from its begin to its end. ``weight``
        is how many executed accesses of the thread this one stands for. Damaged windows are left out whole.

        Parameters
        ----------
        windows, threads
            Only these.
        code
            Adds ``code``: the row of table ``sites`` that names the instruction.
        """
        return self.windows.accesses(windows=windows, threads=threads, code=code, batch_accesses=batch_accesses)

    def table_names(self) -> list[str]:
        """Everything `table` and `memlens query` offer."""
        from .tables.catalogue import tables

        return [*tables(), *(name for name in self.side_table_names() if name not in tables())]

    def reader(self, name: str) -> pa.RecordBatchReader:
        """A table as a stream of record batches: for ``accesses``, which may not fit in memory."""
        from .tables.catalogue import tables

        stream = tables()[name].stream if name in tables() else None
        return stream(self) if stream is not None else self.table(name).to_reader()

    def row_count(self, name: str) -> int:
        """The number of rows of a table."""
        from .tables.catalogue import tables

        count = tables()[name].count_rows if name in tables() else None
        return count(self) if count is not None else self.table(name).num_rows

    def table(self, name: str) -> pa.Table:
        """One table as Arrow (``.to_pandas()``, DuckDB and polars read it as it is).

        ``faults`` are classed and named by function and line; ``placed`` are pages
        placed by the kernel without an event; ``accesses`` are the decoded accesses of
        all windows (`accesses` and `reader` stream them); ``site_counts``, ``block_counts``
        and ``region_times`` are what compiled-in counters say; the other names are side tables
        and record kinds as recorded.
        """
        if name not in self._tables:
            self._tables[name] = self._make_table(name)
        return self._tables[name]

    def sql(self, query: str) -> pa.Table:
        """The result of an SQL query on this capture's tables, as `memlens query` runs it (DuckDB's dialect).

        >>> memlens.open("run.memlens").sql("SELECT class, sum(weight) FROM faults GROUP BY class")   # doctest: +SKIP
        """
        from .tables.sql import run_query

        return run_query(self, query)

    def __repr__(self) -> str:
        command = self.meta.get("command")
        said = " ".join(str(word) for word in command) if command else f"process {self.meta.get('pid') or '?'}"
        return f"<Capture {self.path.name}: {said}; {', '.join(self.kinds()) or 'no records'}>"

    def _make_table(self, name: str) -> pa.Table:
        from .tables.catalogue import descriptor_of, tables

        if name not in tables() and name in self.side_table_names():
            return self.side_table(name)
        descriptor = descriptor_of(name)
        if descriptor.schema is None:
            return self._derive(name, descriptor.make)
        table = self._kept(name, descriptor.schema())
        if table is None:
            table = self._derive(name, descriptor.make)
        return table if descriptor.finish is None else descriptor.finish(self, table)

    def _derive(self, name: str, make: Callable[..., pa.Table]) -> pa.Table:
        if not self.keeps_tables or self.span_ns is not None:
            return make(self)
        from .tables.kept import kept_or_made

        options = {"skip_frames": self.skip_frames.pattern if self.skip_frames is not None else None}
        return kept_or_made(self, name, options, lambda: make(self))

    def empty_batch(self, kind: str) -> pa.RecordBatch:
        """The columns of a record kind without a row."""
        return self._to_batch(layouts()[kind], [(0, b"")], None)

    def _kept(self, name: str, schema: pa.Schema) -> pa.Table | None:
        """A side table beside the records; None where there is none of this version."""
        if not self.complete:
            return None
        file = self.path / f"{name}.parquet"
        if not (file.exists() and self.is_as_written(file.name)):
            return None
        from .store.side_tables import read_side_table

        return read_side_table(file, schema)
