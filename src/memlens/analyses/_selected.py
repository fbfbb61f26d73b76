"""A capture seen through a selection: what analyses are given instead of the capture.

Owns which rows belong to a selection. Records are classed over the whole run first (first touches, lifetimes, what an address is), then
rows are chosen, so a figure of a part has the meaning that it has in the whole. What has no time, thread or code to select by raises
`NotSelectable`: the analysis then runs over the whole run, and its result says so.

An event belongs to the thread that made it, to the moment when it happened and to the regions that its thread was in then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from ..capture.reader import Capture
from ..selection import Scope, Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Bools, Ints, Uint32s, Uint64s
    from ..capture.model.accesses import Windows
    from ..capture.model.counting import Counts
    from ..capture.model.objects import Objects
    from ..capture.model.replay import Replay
    from ..capture.model.tracing import TraceSites
    from ..capture.store.records import ChunkLike
    from ..results import Quality
    from ._matching import PlaceLists

FACTS = frozenset((
    "processes", "threads", "modules", "sites", "variables", "strings", "stacks", "trace_sites", "import_sites", "placements", "mappings",
    "count_functions", "count_sites", "count_terms", "count_blocks", "count_counters", "count_callees", "count_traced", "count_loops",
    "counted_modules", "traced_modules", "count_status", "trace_status", "emulator_status", "runtime_status", "region_nodes", "count_epochs",
    "fault_levels", "losses",
))  # fmt: skip
"""Tables that name things or describe the recording: a selection leaves them whole."""
UNTIMED = frozenset(("code_counts", "page_counts", "unseen"))
"""Sums over the run: their times are when they were written."""


class NotSelectable(Exception):
    """The data of an analysis cannot be cut as asked; the text says why."""


@dataclass(frozen=True)
class Makers:
    """How the models of a part are made of it."""

    table: Callable[[SelectedCapture, str], pa.Table]
    windows: Callable[[SelectedCapture], Windows]
    window_chunks: Callable[[SelectedCapture], Sequence[ChunkLike]]
    counts: Callable[[SelectedCapture], Counts]


class SelectedCapture(Capture):
    """A capture of which tables, windows and counts have only what was selected. `replay` and `objects` are those of the whole run: what
    lay where, and what was there before, is looked up in them."""

    def __init__(self, whole: Capture, selection: Selection, makers: Makers) -> None:
        self.__dict__.update(whole.__dict__)
        self._makers = makers
        self._whole = whole
        self._selection = selection
        # The kernel's totals are of the whole run.
        self.meta = whole.meta.copy()
        self.meta.pop("rusage", None)
        self.scope: Scope = "selection"
        """How far what was read obeys, as it is read; for one analysis after `begin_result`."""
        self.scope_reason = ""
        self._bins: dict[str, str] = {}
        self._decoded = None  # of the selected windows only
        self._forget()

    def _forget(self) -> None:
        self._tables: dict[str, pa.Table] = {}
        self._windows: Windows | None = None
        self._counts: Counts | None = None
        self.derived: dict[str, Any] = {}

    def begin_result(self) -> None:
        self.scope, self.scope_reason = "selection", ""

    windows_by_time = "a window of accesses belongs to the time at which it begins"

    def note_bins(self, reason: str) -> None:
        self.scope, self.scope_reason = "time bins", reason

    @property
    def selection(self) -> Selection:
        return self._selection

    @property
    def whole(self) -> Capture:
        return self._whole

    @property
    def is_by_thread(self) -> bool:
        """Whether rows of no known thread and code are left out."""
        return bool(self._selection.threads or self._selection.region or self._selection.code)

    def of_all_code(self) -> SelectedCapture:
        """The same without conditions on code and objects: for engines that must see every access before some are chosen."""
        if not self._selection.by_access:
            return self
        made = self.derived.get("of_all_code")
        if made is None:
            made = self.derived["of_all_code"] = self.of(replace(self._selection, code="", object=""))
        all_code: SelectedCapture = made
        return all_code

    def of(self, selection: Selection) -> SelectedCapture:
        """Another part of the same capture."""
        return SelectedCapture(self._whole, selection, self._makers)

    @property
    def quality(self) -> Quality:
        return self._whole.quality

    # ---- time ------------------------------------------------------------
    @cached_property
    def time_ns(self) -> tuple[int, int] | None:
        found = self._selection.window_ns(self._whole.begin_ns)
        return None if found is None else (max(found[0], 0), max(found[1], 0))

    @property
    def time_range_ns(self) -> tuple[int, int]:
        begin, end = self._whole.time_range_ns
        if self.time_ns is None:
            return begin, end
        first = min(max(self.time_ns[0], begin), end)
        return first, max(min(self.time_ns[1], end), first)

    @cached_property
    def region_spans(self) -> dict[tuple[int, int], tuple[Ints, Ints]]:
        """(begins, ends) of the selected region by (process, thread), joined where they overlap; thread 0: of the whole process."""
        import numpy as np

        table = self._whole.table("regions")
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for name, process, thread, begin, end in zip(
            *(table.column(n).to_pylist() for n in ("name", "process", "thread", "begin_ns", "end_ns")), strict=True
        ):
            if name == self._selection.region:
                found.setdefault((process, thread), []).append((begin, end))
        spans: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        for key, pairs in found.items():
            joined: list[list[int]] = []
            for begin, end in sorted(pairs):
                if joined and begin <= joined[-1][1]:
                    joined[-1][1] = max(joined[-1][1], end)
                else:
                    joined.append([begin, end])
            spans[key] = (
                np.array([b for b, _ in joined], dtype=np.int64),
                np.array([e for _, e in joined], dtype=np.int64),
            )
        return spans

    def in_region(self, process: Uint32s, thread: Uint32s, time_ns: Uint64s) -> Bools:
        import numpy as np

        if not self.region_spans:
            raise NotSelectable(f"when threads were in region {self._selection.region} was not recorded")
        inside = np.zeros(len(time_ns), dtype=bool)
        times = np.asarray(time_ns).astype(np.int64)
        for (one, of_thread), (begins, ends) in self.region_spans.items():
            mine: Bools = process == one
            if of_thread:
                mine &= thread == of_thread
            at = np.searchsorted(begins, times, side="right") - 1
            inside |= mine & (at >= 0) & (times < ends[np.maximum(at, 0)])
        return inside

    # ---- rows ------------------------------------------------------------
    def rows(
        self,
        count: int,
        what: str,
        *,
        process: Uint32s | None = None,
        thread: Uint32s | None = None,
        time_ns: Uint64s | None = None,
        address: Uint64s | None = None,
        region: Sequence[str | None] | None = None,
        place: PlaceLists | None = None,
        object_mask: Bools | None = None,
    ) -> Bools:
        """Which of `count` rows are selected, as a mask; columns that are None are not known of such rows.

        Parameters
        ----------
        what
            The rows in words, for the reason why they cannot be selected.
        place
            (function, file, line) of each row.
        region
            The innermost region of each row, where spans of time do not say it.
        object_mask
            Whether each row is of the selected object; else it is looked up by process, address and time.
        """
        import numpy as np

        chosen = np.ones(count, dtype=bool)
        selection = self._selection
        if self.time_ns is not None:
            if time_ns is None:
                raise NotSelectable(f"{what} have no times")
            chosen &= (time_ns >= self.time_ns[0]) & (time_ns < self.time_ns[1])
        for numbers, column, name in ((selection.processes, process, "process"), (selection.threads, thread, "thread")):
            if numbers and column is None:
                raise NotSelectable(f"{what} are of no known {name}")
            if numbers and column is not None:
                chosen &= np.isin(column, np.array(numbers, dtype=np.int64))
        if selection.region:
            if region is not None:
                chosen &= np.array([name == selection.region for name in region], dtype=bool)
            elif time_ns is None or process is None or thread is None:
                raise NotSelectable(f"{what} are of no known region")
            else:
                chosen &= self.in_region(process, thread, time_ns)
        if selection.code:
            if place is None:
                raise NotSelectable(f"{what} are of no known code")
            from ._matching import CodeMatcher

            chosen &= CodeMatcher(selection.code).mask(*place)
        if selection.object:
            if object_mask is None:
                if address is None or process is None or time_ns is None:
                    raise NotSelectable(f"{what} have no addresses")
                object_mask = self.objects_chosen[self._objects_at(process, address, time_ns)]
            chosen &= object_mask
        return chosen

    @cached_property
    def objects_chosen(self) -> Bools:
        """By object id, whether it is the selected object."""
        from ._matching import objects_selected

        return objects_selected(self._whole, self._selection.object)

    def _objects_at(self, process: Uint32s, address: Uint64s, time_ns: Uint64s) -> Uint32s:
        import numpy as np

        objects = self.objects
        found = objects.find(address, time_ns, process=process)
        if objects.count and objects.is_kind("tag").any():
            tags = objects.find(address, time_ns, process=process, layer="tag")
            found = np.where(tags != 0, tags, found)
        return found

    # ---- tables ------------------------------------------------------------
    def table(self, name: str) -> pa.Table:
        if name in FACTS:
            return self._whole.table(name)
        if name not in self._tables:
            before = self.scope, self.scope_reason
            self.begin_result()
            self._tables[name] = self._makers.table(self, name)
            if self.scope == "time bins":
                self._bins[name] = self.scope_reason
            self.scope, self.scope_reason = before
        if name in self._bins:
            self.note_bins(self._bins[name])
        return self._tables[name]

    def batches(self, name: str, *, columns: list[str] | None = None) -> NoReturn:
        raise NotSelectable(f"records of kind {name} are read as they are")

    def chunks_of(self, name: str) -> Sequence[ChunkLike]:
        return self._makers.window_chunks(self) if name == "window" else super().chunks_of(name)

    # ---- models ------------------------------------------------------------
    @property
    def replay(self) -> Replay:
        return self._whole.replay

    @property
    def objects(self) -> Objects:
        """With a row for each object: any of them may be selected."""
        return self._whole.objects.everything

    @property
    def trace_sites(self) -> TraceSites:
        return self._whole.trace_sites

    @property
    def windows(self) -> Windows:
        if self._selection.by_access:
            raise NotSelectable(
                "it follows accesses from one to the next: those of one function or object have no meaning alone"
            )
        if self._windows is None:
            self._windows = self._makers.windows(self)
        if self.time_ns is not None:
            self.note_bins(self.windows_by_time)
        return self._windows

    @property
    def counts(self) -> Counts:
        if self._counts is None:
            self._counts = self._makers.counts(self)
        if self.time_ns is not None:
            self.note_bins("counters were read at times; what was counted between two of them belongs to the middle")
        return self._counts


def selected(capture: Capture) -> SelectedCapture | None:
    """The capture as a selected one; None if all of it was asked for."""
    return capture if isinstance(capture, SelectedCapture) else None
