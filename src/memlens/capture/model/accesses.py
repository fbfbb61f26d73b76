"""Windows of accesses: their table, their accesses decoded in batches, and their join with objects and code.

A window's stream is decoded by native/core/trace, batch by batch: a trace of any length fits in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ... import _core
from ..store.columns import named
from ..store.layouts import enum_names, enum_value, layouts
from .constants import ConstantsOfWindows, ConstantSource
from .decoded import DecodedChunk, DecodedWindows
from .objects import Objects, ObjectSource
from .tracing import FIRST_SITE

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Bools, Columns, Floats, Ints, Uint32s, Uint64s

BATCH_ACCESSES = 1 << 15
"""Accesses in a batch: about 1 MiB, which stays in caches and is not given back to the kernel in between."""
NO_CODE = 2**32 - 1
NO_UNIT = 2**32 - 1
OPERATIONS = tuple(enum_names("access_operation").values())[: enum_value("access_operation", "atomic")]
"""Of accesses in windows: all up to atomic."""


def access_schema(*, code: bool = False) -> pa.Schema:
    """Columns of decoded accesses; with ``code`` also the site of each."""
    import pyarrow as pa

    fields = [
        ("process", pa.uint32()),
        ("thread", pa.uint32()),
        ("window", pa.uint32()),
        ("time_ns", pa.uint64()),
        ("pc", pa.uint64()),
        ("address", pa.uint64()),
        ("bytes", pa.uint32()),
        ("operation", pa.dictionary(pa.int8(), pa.string())),
        ("weight", pa.float64()),
    ]
    return pa.schema([*fields, ("code", pa.uint32())] if code else fields)


@dataclass(frozen=True)
class Units:
    """Windows as what was sampled: a window that was written as several records is one unit."""

    of_window: Uint32s
    """Unit of each window record."""
    executed: Uint64s
    covered: Uint64s
    """Accesses inside: recorded, and those that streams leave out."""
    parts: Uint32s

    @property
    def weight(self) -> Floats:
        """Executed accesses that one of the unit stands for; 0 where there is none."""
        import numpy as np

        return np.where(self.covered > 0, self.executed / np.maximum(self.covered, 1), 0.0)


class WindowSource(ObjectSource, ConstantSource, Protocol):
    """What windows are joined with."""

    @property
    def objects(self) -> Objects: ...
    @property
    def decoded(self) -> DecodedWindows: ...
    @property
    def span_ns(self) -> tuple[int, int] | None: ...


class Windows:
    """All window records of a capture, in the order of the record files."""

    def __init__(self, capture: WindowSource) -> None:
        self.capture = capture

    @cached_property
    def constants(self) -> ConstantsOfWindows:
        return ConstantsOfWindows(self)

    @cached_property
    def columns(self) -> Columns:
        """NumPy columns of the fixed parts, with ``process``; window number is the row. Constants that are recorded to stand for others
        count as left out."""
        scalars = self.constants.scalars
        if not scalars.any():
            return self.raw
        raw = self.raw
        moved = {
            "recorded": raw["recorded"] - scalars.astype(raw["recorded"].dtype),
            "implied_constant": raw["implied_constant"] + scalars.astype(raw["implied_constant"].dtype),
        }
        return {**raw, **moved}

    @cached_property
    def covered(self) -> Ints:
        """Accesses in each record, those that it leaves out included."""
        import numpy as np

        return self.raw["recorded"].astype(np.int64) + self.raw["implied_constant"].astype(np.int64)

    @cached_property
    def raw(self) -> Columns:
        """The columns as they were written."""
        import numpy as np

        dtype = layouts()["window"].dtype()
        parts, processes = [np.zeros(0, dtype=dtype)], [np.zeros(0, dtype=np.uint32)]
        for process, fixed in self.capture.decoded.records():
            rows = np.frombuffer(fixed, dtype=dtype)
            parts.append(rows)
            processes.append(np.full(len(rows), process, dtype=np.uint32))
        rows = np.concatenate(parts)
        columns = {name: np.ascontiguousarray(rows[name]) for name in dtype.names or ()}
        return {"process": np.concatenate(processes), **columns}

    @property
    def count(self) -> int:
        return len(self.raw["process"])

    def _accesses_of_threads(self) -> dict[tuple[int, int], int]:
        """Exact numbers of accesses by (process, thread), where they were counted."""
        import numpy as np

        dtype = layouts()["code_count"].dtype()
        totals: dict[tuple[int, int], int] = {}
        for header, payload in self.capture.payloads("code_count"):
            rows = np.frombuffer(payload, dtype=dtype)
            for thread in np.unique(rows["thread"]).tolist():
                mine = rows[rows["thread"] == thread]
                key = (header["process"], thread)
                totals[key] = totals.get(key, 0) + int(mine["loads"].sum()) + int(mine["stores"].sum())
        return totals

    @cached_property
    def units(self) -> Units:
        """Consecutive records of one thread whose accesses follow each other without a gap are one unit.

        A record may have nothing but constants. Records without any access are in no unit (`NO_UNIT`): they tell of lost windows, or of the
        end of a thread.
        """
        import numpy as np

        columns = self.columns
        of_window = np.full(self.count, NO_UNIT, dtype=np.uint32)
        everything = np.lexsort((columns["first_executed"], columns["begin_ns"], columns["thread"], columns["process"]))
        order = everything[self.covered[everything] > 0]
        count = len(order)
        if count == 0:
            none = np.zeros(0, dtype=np.uint64)
            return Units(of_window, none, none, none.astype(np.uint32))
        ends = columns["first_executed"] + columns["recorded"] + columns["implied_constant"]
        before, after = order[:-1], order[1:]
        follows = (
            (columns["process"][before] == columns["process"][after])
            & (columns["thread"][before] == columns["thread"][after])
            & (ends[before] == columns["first_executed"][after])
            & (columns["dropped"][before] == 0)
        )
        unit = np.concatenate(([0], np.cumsum(~follows))).astype(np.uint32)
        of_window[order] = unit
        units = int(unit[-1]) + 1
        inside = columns["recorded"].astype(np.uint64) + columns["implied_constant"]
        reach = np.maximum(columns["executed"], inside)
        executed = np.zeros(units, dtype=np.uint64)
        covered = np.zeros(units, dtype=np.uint64)
        # A part's `executed` reaches to the next part, so a unit's is the sum.
        np.add.at(executed, unit, reach[order])
        np.add.at(covered, unit, inside[order])
        # What a thread executed before its first window belongs to that one. Thread ids come again, and numbers then begin anew.
        same = (columns["process"][before] == columns["process"][after]) & (
            columns["thread"][before] == columns["thread"][after]
        )
        again = same & (columns["first_executed"][after] < columns["first_executed"][before])
        # In a part of a capture the windows before are of another part.
        begins = np.concatenate(([True], ~same | again)) if self.capture.span_ns is None else np.append(False, again)
        np.add.at(executed, unit[begins], columns["first_executed"][order[begins]])
        # The last one of a thread was written with the place of a next one that never came: it ends with the thread.
        totals = self._accesses_of_threads()
        last = order[np.concatenate((np.flatnonzero(np.diff(unit)), [count - 1]))]  # one record of each unit, its last
        for at, number in zip(last.tolist(), range(units), strict=True):
            total = totals.get((int(columns["process"][at]), int(columns["thread"][at])))
            if total is None:
                continue
            reaches = int(columns["first_executed"][at]) + int(reach[at])
            if reaches > total:
                executed[number] = max(int(executed[number]) - (reaches - total), int(covered[number]))
        self._cut_at_ends(everything, of_window, reach, executed, covered)
        return Units(of_window, executed, covered, np.bincount(unit, minlength=units).astype(np.uint32))

    def _cut_at_ends(
        self, everything: Ints, of_window: Uint32s, reach: Uint64s, executed: Uint64s, covered: Uint64s
    ) -> None:
        """The same for threads of traced programs, which write their total when they end. Thread ids come again."""
        import numpy as np

        columns = self.columns
        position = np.empty(self.count, dtype=np.int64)
        position[everything] = np.arange(self.count)
        # For each place in the order the last one before it that has accesses.
        has = self.covered[everything] > 0
        before = np.maximum.accumulate(np.where(has, np.arange(self.count), -1))
        for end in np.flatnonzero(self.is_end).tolist():
            at = int(before[position[end]])
            window = int(everything[at]) if at >= 0 else -1
            if window < 0 or any(columns[name][window] != columns[name][end] for name in ("process", "thread")):
                continue
            reaches = int(columns["first_executed"][window]) + int(reach[window])
            total, number = int(columns["first_executed"][end]), int(of_window[window])
            if reaches > total:
                executed[number] = max(int(executed[number]) - (reaches - total), int(covered[number]))

    @property
    def is_end(self) -> Bools:
        """Which records are no windows, but tell how many accesses a thread made that has ended: their `first_executed`."""
        columns = self.columns
        is_end: Bools = (self.covered == 0) & (columns["executed"] == 0) & (columns["dropped"] == 0)
        return is_end

    @property
    def thread_totals(self) -> int:
        """Accesses of threads that told their total."""
        return int(self.columns["first_executed"][self.is_end].sum())

    @cached_property
    def weights(self) -> Floats:
        """Executed accesses that one access of each window record stands for."""
        import numpy as np

        units = self.units
        weight = np.concatenate((units.weight, [0.0]))
        return weight[np.minimum(units.of_window, len(weight) - 1)]

    def table(self) -> pa.Table:
        """The table ``windows``."""
        import numpy as np
        import pyarrow as pa

        columns = self.columns
        strings = self.capture.strings()
        made: dict[str, Array | pa.Array] = {
            "window": np.arange(self.count, dtype=np.uint32),
            "unit": pa.array(self.units.of_window, mask=self.units.of_window == NO_UNIT),
            "process": columns["process"],
            "thread": columns["thread"],
            "region": named(columns["region"], strings),
            "weight": self.weights,
            "stack": columns["stack"],
            "cpu": columns["cpu"],
            "encoding": named(columns["encoding"], enum_names("stream_encoding")),
            "module": named(columns["module"], strings),
            "stream_bytes": columns["tail_bytes"],
        }
        for name in ("begin_ns", "end_ns", "first_executed", "executed", "recorded", "implied_constant", "dropped",
                     "period"):  # fmt: skip
            made[name] = columns[name]
        order = ["window", "unit", "process", "thread", "region", "begin_ns", "end_ns", "first_executed", "executed",
                 "recorded", "implied_constant", "dropped", "period", "weight", "stack", "cpu", "encoding", "module",
                 "stream_bytes"]  # fmt: skip
        table = pa.table({n: made[n] if isinstance(made[n], pa.Array) else pa.array(made[n]) for n in order})
        return table.filter(pa.array(~self.is_end)) if self.is_end.any() else table

    def accesses(
        self,
        *,
        windows: Collection[int] | None = None,
        threads: Collection[int] | None = None,
        code: bool = False,
        batch_accesses: int = BATCH_ACCESSES,
    ) -> Iterator[pa.RecordBatch]:
        """The accesses of all windows (or of some), decoded; see `Capture.accesses`."""
        import numpy as np
        import pyarrow as pa

        schema = access_schema(code=code)
        weights, columns = self.weights, self.columns
        names = pa.array(OPERATIONS, type=pa.string())
        pc_delta = enum_value("stream_encoding", "pc_delta")
        has_sites = bool((columns["encoding"] != pc_delta).any())
        wanted = None
        if windows is not None or threads is not None:
            wanted = np.ones(self.count, dtype=bool)
            if windows is not None:
                wanted &= np.isin(np.arange(self.count), np.fromiter(windows, dtype=np.int64))
            if threads is not None:
                wanted &= np.isin(columns["thread"], np.fromiter(threads, dtype=np.int64))
        first = 0
        self.damaged = 0
        for header, payload in self.capture.payloads("window"):
            count = len(_core.window_headers(payload)[1])
            if wanted is not None and not wanted[first : first + count].any():
                first += count
                continue
            reader = _core.AccessReader(payload, batch_accesses=batch_accesses)
            while (found := reader.next()) is not None:
                window = found["row"] + np.uint32(first)
                if wanted is not None:
                    mine = wanted[window]
                    if not mine.any():
                        continue
                    found = {name: values[mine] for name, values in found.items()}
                    window = window[mine]
                by_site = columns["encoding"][window] != pc_delta if has_sites else None
                site_codes = None
                if by_site is not None and by_site.any():
                    if (scalar := self.is_scalar(found, window, by_site)).any():
                        found = {name: values[~scalar] for name, values in found.items()}
                        window, by_site = window[~scalar], by_site[~scalar]
                    site_codes = self.take_sites(found, window, by_site)
                operations = pa.array(found["operation"].astype(np.int8) - np.int8(1), mask=found["operation"] == 0)
                arrays = [
                    pa.array(np.full(len(window), header["process"], dtype=np.uint32)),
                    pa.array(columns["thread"][window]),
                    pa.array(window),
                    pa.array(found["time_ns"]),
                    pa.array(found["code"], mask=by_site),
                    pa.array(found["address"]),
                    pa.array(found["bytes"], mask=by_site & (found["bytes"] == 0) if by_site is not None else None),
                    pa.DictionaryArray.from_arrays(operations, names),
                    pa.array(weights[window]),
                ]
                if code:
                    codes = self.codes(arrays[0].to_numpy(), found["code"], columns["begin_ns"][window])
                    if site_codes is not None and by_site is not None:
                        codes = np.where(by_site, site_codes, codes)
                    arrays.append(pa.array(codes, mask=codes == NO_CODE))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            self.damaged += reader.damaged
            first += count

    @cached_property
    def _site_ranges(self) -> Uint32s:
        """The range of sites (`TraceSites.ranges`) of each window record."""
        return self.capture.trace_sites.range_of_windows(self.raw["process"], self.raw["module"])

    def entries(self, found: Columns, window: Uint32s, by_site: Bools) -> tuple[Bools, Ints]:
        """(which accesses name a known site, its row in `TraceSites.ranges`)."""
        import numpy as np

        ranges = self.capture.trace_sites.ranges
        number = self._site_ranges[window].astype(np.int64)
        known = by_site & (number < len(ranges.first))
        first = np.zeros(len(window), dtype=np.int64)
        size = np.zeros(len(window), dtype=np.int64)
        first[known] = ranges.first[number[known]]
        size[known] = ranges.end[number[known]] - ranges.first[number[known]]
        entry = found["code"].astype(np.int64) - FIRST_SITE
        known &= (entry >= 0) & (entry < size)
        return known, (first + entry)[known]

    def is_scalar(self, found: Columns, window: Uint32s, by_site: Bools) -> Bools:
        """Which decoded accesses are constants that are recorded to stand for others."""
        import numpy as np

        marked = np.zeros(len(window), dtype=bool)
        sites = self.capture.trace_sites.constants
        if sites.is_scalar.any():
            known, at = self.entries(found, window, by_site)
            marked[known] = sites.is_scalar[at]
        return marked

    def take_sites(self, found: Columns, window: Uint32s, by_site: Bools) -> Uint32s:
        """Codes of accesses that name sites; fills in their bytes and operations."""
        import numpy as np

        ranges = self.capture.trace_sites.ranges
        known, at = self.entries(found, window, by_site)
        codes = np.full(len(window), NO_CODE, dtype=np.uint32)
        codes[known] = ranges.code[at]
        told = found["bytes"][known]
        found["bytes"][known] = np.where(told == 0, ranges.bytes[at], told)
        found["operation"][known] = ranges.operation[at]
        return codes

    def codes(self, processes: Uint32s, pcs: Uint64s, times_ns: Uint64s) -> Uint32s:
        """The code (row of ``sites``) of instruction pointers, `NO_CODE` where it is not known."""
        import numpy as np

        codes = self.capture.replay.engine.codes_at(
            np.ascontiguousarray(processes, dtype=np.uint32),
            np.ascontiguousarray(pcs, dtype=np.uint64),
            np.ascontiguousarray(times_ns, dtype=np.uint64),
        )
        return np.asarray(codes)

    def with_code(self, table: pa.Table) -> pa.Table:
        """A table with process, pc and time_ns, and `code` for each row, null where it is not known."""
        import pyarrow as pa

        codes = self.codes(*(table.column(name).to_numpy() for name in ("process", "pc", "time_ns")))
        return table.append_column("code", pa.array(codes, mask=codes == NO_CODE))

    def join(self, group_of_object: Uint32s, function_of_code: Uint32s) -> AccessTotals:
        """A join of accesses with objects and code (native/core/trace/access_join.h), to which chunks are added.

        Parameters
        ----------
        group_of_object
            The caller's group of each object id; entry 0 is for addresses in no object.
        function_of_code
            The caller's number for the function of each code, and one more for code that is not known.
        """
        return AccessTotals(self, group_of_object, function_of_code)


class AccessTotals:
    """All accesses joined with objects and code, summed by group and function."""

    def __init__(self, windows: Windows, group_of_object: Uint32s, function_of_code: Uint32s) -> None:
        import numpy as np

        self._units = windows.units
        capture = windows.capture
        self.engine = _core.AccessJoin(
            objects=capture.objects.everything.engine,
            replay=capture.replay.engine,
            group_of_object=np.ascontiguousarray(group_of_object, dtype=np.uint32),
            function_of_code=np.ascontiguousarray(function_of_code, dtype=np.uint32),
            unit_executed=self._units.executed.astype(np.uint64),
            unit_parts=self._units.parts.astype(np.uint32),
        )
        self._images = np.zeros(0, dtype=np.uint32)
        if (windows.columns["module"] != 0).any():
            ranges = capture.trace_sites.ranges
            self._images = windows._site_ranges
            self.engine.set_sites(
                code=ranges.code,
                bytes=ranges.bytes,
                # 0: a constant that stands for others is no access of any object.
                operation=np.where(capture.trace_sites.constants.is_scalar, 0, ranges.operation).astype(np.uint8),
                first=ranges.first,
                end=ranges.end,
                number=np.full(len(ranges.first), FIRST_SITE, dtype=np.uint64),
            )

    def add(self, chunk: DecodedChunk, batches: list[Uint64s]) -> None:
        """The next chunk of windows, with its packed batches."""
        import numpy as np

        part = slice(chunk.first, chunk.first + chunk.count)
        self.engine.add_decoded(
            chunk.process, chunk.fixed, chunk.damaged, batches, np.ascontiguousarray(self._units.of_window[part]),
            np.ascontiguousarray(self._images[part]),
        )  # fmt: skip

    def finish(self) -> _core.AccessJoin:
        """The engine, with everything added."""
        self.engine.finish()
        return self.engine
