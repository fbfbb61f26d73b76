"""Reads captures: whole, cut, damaged, or still growing.

`Capture` streams record batches as Arrow columns and gives side tables. It
verifies everything it reads; what is missing is in `Capture.quality`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NoDataError
from .store.layouts import Layout, layouts
from .store.records import RecordStore
from .store.side_tables import SIDE_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from .model.accesses import Windows
    from .model.clocks import ClockMap
    from .model.counting import Counts
    from .model.objects import Objects
    from .model.replay import Replay
    from .model.tracing import TraceSites
    from .store.calibration import Peaks

DERIVED = ("faults", "placed", "accesses", "block_counts", "site_counts", "region_times", "trace_sites")
WITH_CODE = ("code_counts", "page_counts", "unseen")
"""Record kinds with an instruction pointer: their tables have `code` too, the row of ``sites`` that names it."""
PLURALS = {
    "string": "strings",
    "stack": "stacks",
    "stack_dump": "stack_dumps",
    "process_event": "process_events",
    "mapping": "mappings",
    "jit_code": "jit_code",
    "clock_pair": "clock_pairs",
    "loss": "losses",
    "fault": "fault_records",
    "sampled_fault": "sampled_fault_records",
    "fault_level": "fault_levels",
    "residency": "residency",
    "placement": "placements",
    "timeline": "timeline",
    "allocation": "allocations",
    "region_event": "region_events",
    "tag_event": "tag_events",
    "pinning": "pinning_events",
    "thread_memory": "thread_memory",
    "tls_module": "tls_modules",
    "runtime_status": "runtime_status",
    "block_count": "block_count_records",
    "window": "windows",
    "access": "access_records",
    "code_count": "code_counts",
    "page_count": "page_counts",
    "unseen": "unseen",
    "emulator_status": "emulator_status",
    "region_node": "region_nodes",
    "region_time": "region_time_records",
    "counted_module": "counted_modules",
    "count_tables": "count_table_parts",
    "count_status": "count_status",
    "count_epoch": "count_epochs",
    "region_span": "region_spans",
    "sample_group": "sample_groups",
    "sample_count": "sample_count_records",
    "region_duration": "region_durations",
    "traced_module": "traced_modules",
    "trace_status": "trace_status",
}


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
        self._trace_sites: TraceSites | None = None
        self._counts: Counts | None = None
        self.skip_frames: re.Pattern[str] | None = None
        """Functions and modules that are never shown as the place of an allocation or a first touch."""
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
        return [*DERIVED, *SIDE_TABLES, *PLURALS.values()]

    def reader(self, name: str) -> pa.RecordBatchReader:
        """A table as a stream of record batches: for ``accesses``, which may not fit in memory."""
        import pyarrow as pa

        if name == "accesses":
            from .model.accesses import access_schema

            return pa.RecordBatchReader.from_batches(access_schema(code=True), self.accesses(code=True))
        return self.table(name).to_reader()

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

    def _make_table(self, name: str) -> pa.Table:
        import pyarrow as pa

        if name == "faults":
            return self.replay.fault_table()
        if name == "placed":
            return self.replay.placed_table()
        if name == "accesses":
            return self.reader("accesses").read_all()
        if name == "windows":
            return self.windows.table()
        if name in ("block_counts", "site_counts", "region_times"):
            from .tables import count_views

            views = {
                "block_counts": count_views.block_counts,
                "site_counts": count_views.site_counts,
                "region_times": count_views.region_times,
            }
            return views[name](self.counts)
        if name == "trace_sites":
            return self.trace_sites.table
        if name == "sites":
            return self.trace_sites.behind(self._side_table(name))
        if name in SIDE_TABLES:
            return self._side_table(name)
        kind = next((kind for kind, plural in PLURALS.items() if plural == name), None)
        if kind is None:
            import difflib

            close = difflib.get_close_matches(name, self.table_names(), n=1)
            raise NoDataError(
                f"a capture has no table {name!r}",
                hint=f"did you mean {close[0]!r}?" if close else f"tables: {', '.join(self.table_names())}",
            )
        batches = list(self.batches(kind))
        if not batches:
            table = self._to_batch_schema(layouts()[kind])
        else:
            table = pa.concat_tables(
                [pa.Table.from_batches([b]) for b in batches], promote_options="permissive"
            ).unify_dictionaries()
        if kind == "region_time":
            from .tables.count_views import with_known_events

            return with_known_events(table, self)
        return self.windows.with_code(table) if name in WITH_CODE else table

    def _to_batch_schema(self, layout: Layout) -> pa.Table:
        import pyarrow as pa

        empty = self._to_batch(layout, [(0, b"")], None)
        return pa.Table.from_batches([empty])

    def _side_table(self, name: str) -> pa.Table:
        from .tables.derived import derive_table, table_schema

        if self.complete:
            file = self.path / f"{name}.parquet"
            if file.exists() and self.is_as_written(file.name):
                from .store.side_tables import read_side_table

                table = read_side_table(file, table_schema(name))
                if table is not None:
                    return table  # else it is another version's: make it anew

        return derive_table(self, name)
