"""Objects of a selection: which, and their totals by site and by process.

An object is selected by its allocation: its time, process, thread and region, the code that it is allocated by, its name. What lives (peaks,
levels over time) are the objects that would be selected at any time, at the times of the selection. The sums are those of
native/core/objects/site_totals.h, in NumPy over the chosen rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..capture.model.objects import CUT, PIECE
from ._selected import SelectedCapture, selected

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Array, Bools, Columns, Floats, Ints, Uint64s
    from ..capture.reader import Capture
    from ._matching import PlaceLists

FOREVER = 2**63
CURVE_BUCKETS = 1000


def chosen_objects(capture: Capture, *, at_any_time: bool = False) -> Bools:
    """Which objects are selected, as a mask; `at_any_time`: whenever they were allocated."""
    import numpy as np

    part = selected(capture)
    engine = capture.objects
    if part is None:
        return np.ones(len(engine.columns["process"]), dtype=bool)
    key = f"objects_chosen {at_any_time}"
    if key not in part.derived:
        part.derived[key] = _chosen(part, at_any_time)
    chosen: Bools = part.derived[key]
    return chosen


def _chosen(part: SelectedCapture, at_any_time: bool) -> Bools:
    import numpy as np

    columns = {name: np.asarray(part.objects.columns[name]) for name in ("process", "thread", "born_ns")}
    if at_any_time and part.time_ns is not None:
        from dataclasses import replace

        part = part.of(replace(part.selection, time_s=None))
    return part.rows(
        part.objects.count, "objects", process=columns["process"], thread=columns["thread"], time_ns=columns["born_ns"],
        place=_sites(part) if part.selection.code else None,
        object_mask=part.objects_chosen[1:] if part.selection.object else None,
    )  # fmt: skip


def _sites(part: SelectedCapture) -> PlaceLists:
    """(function, file, line) of the allocation of each object."""
    import numpy as np

    from ..capture.model.call_stacks import NO_FRAME, call_stacks

    stacks = call_stacks(part)
    allocated = part.objects.is_kind("heap", "mmap")
    found, inverse = np.unique(np.asarray(part.objects.columns["stack"]), return_inverse=True)
    sites = [stacks.site(stack) for stack in found.tolist()]
    at = inverse.reshape(-1).tolist()
    place = [sites[number] if mine else NO_FRAME for number, mine in zip(at, allocated.tolist(), strict=True)]
    return [one["function"] for one in place], [one["file"] for one in place], [one["line"] for one in place]


class ObjectTotals:
    """Totals by site (rows of `Objects.sites`) and by process, of the selected objects."""

    def __init__(self, part: SelectedCapture) -> None:
        import numpy as np

        engine = part.objects
        self.part, self.engine = part, engine
        self.columns = {name: np.asarray(values) for name, values in engine.columns.items()}
        columns = self.columns
        self.site_rows = engine.sites()
        count = self.site_rows.num_rows
        self.placed = columns["site"] < count
        self.born_here = chosen_objects(part) & self.placed
        self.alive_here = chosen_objects(part, at_any_time=True) & self.placed
        weight = columns["weight_bytes"].astype(np.int64)
        self.is_sampled = weight != 0
        self.bytes = np.where(self.is_sampled, weight, columns["bytes"].astype(np.int64))
        self.count = columns["count_weight"].astype(float)
        chance = np.where(self.is_sampled, np.maximum(columns["bytes"], 1) / np.maximum(weight, 1), 1.0)
        self.chance = np.minimum(chance, 1.0)
        first, last = part.time_ns if part.time_ns is not None else (0, FOREVER)
        died = np.where(columns["died_ns"] != 0, columns["died_ns"], np.uint64(FOREVER))
        # A level at the end of the range goes on: what lives then has no end in it.
        self.begin = np.maximum(columns["born_ns"], np.uint64(first))
        self.end = np.where(died >= last, np.uint64(FOREVER), died)
        self.lives = self.alive_here & (columns["born_ns"] < last) & (died > first)
        mixed = (columns["born_ns"] ^ (columns["base"] << np.uint64(7))) * np.uint64(0x9E3779B97F4A7C15)
        self.half = (mixed >> np.uint64(63)).astype(bool)

    # ---- sums of what was allocated ----
    def _sum(self, group: Ints, mask: Bools, values: Array, count: int) -> Floats:
        import numpy as np

        sums = np.bincount(group[mask], weights=np.asarray(values, dtype=float)[mask], minlength=count)[:count]
        return sums.astype(np.float64, copy=False)

    def _error(self, group: Ints, mask: Bools, weight: Floats, count: int) -> Floats:
        """Standard errors of sums of weights (`Spread` of site_totals.h)."""
        import numpy as np

        rest = np.where(self.chance < 1, 1 - self.chance, 0.0)
        variance = self._sum(group, mask, rest * weight * weight, count)
        total = self._sum(group, mask, rest * weight, count)
        mean = np.divide(variance, total, out=np.zeros(count), where=total > 0)
        return np.where(total > 0, np.sqrt(variance + mean * mean), 0.0)

    def _is_temporary(self) -> Bools:
        """Freed before their thread allocated again, whoever is selected."""
        import numpy as np

        columns = self.columns
        allocations = np.flatnonzero(self.placed & (columns["flags"] & PIECE == 0))
        order = allocations[
            np.lexsort(
                (
                    allocations,
                    columns["born_ns"][allocations],
                    columns["thread"][allocations],
                    columns["process"][allocations],
                )
            )
        ]
        following = np.full(len(columns["born_ns"]), FOREVER, dtype=np.uint64)
        same = (columns["process"][order][1:] == columns["process"][order][:-1]) & (
            columns["thread"][order][1:] == columns["thread"][order][:-1]
        )
        following[order[:-1][same]] = columns["born_ns"][order[1:][same]]
        released = (columns["died_ns"] != 0) & (columns["death_thread"] != 0) & (columns["flags"] & CUT == 0)
        is_temporary: Bools = released & (columns["died_ns"] <= following) & (columns["flags"] & PIECE == 0)
        return is_temporary

    def _allocated(self, group: Ints, count: int, among: Bools) -> Columns:
        import numpy as np

        columns = self.columns
        made = among & (columns["flags"] & PIECE == 0)
        left = among & (columns["died_ns"] == 0)
        return {
            "allocations": self._sum(group, made, self.count, count),
            "allocated_bytes": self._sum(group, made, self.bytes, count).astype(np.uint64),
            "live": self._sum(group, left, self.count, count),
            "live_bytes": self._sum(group, left, self.bytes, count).astype(np.uint64),
            "samples": np.bincount(group[made & (self.chance < 1)], minlength=count)[:count].astype(np.uint64),
            "allocations_error": self._error(group, made, self.count, count),
            "allocated_bytes_error": self._error(group, made, self.bytes.astype(float), count),
            "live_error": self._error(group, left, self.count, count),
            "live_bytes_error": self._error(group, left, self.bytes.astype(float), count),
        }

    # ---- levels ----
    def peaks(self, group: Ints, among: Bools) -> dict[int, tuple[int, int, float]]:
        """(bytes, time_ns, standard error) of the highest level of live bytes in the selected time, by group."""
        import numpy as np

        from ._object_levels import level_peaks

        rows = np.flatnonzero(among & self.lives)
        if not len(rows):
            return {}
        groups, begin, end, weight = group[rows], self.begin[rows], self.end[rows], self.bytes[rows]
        found = {one: (level, at, 0.0) for one, (level, at) in level_peaks(groups, begin, end, weight).items()}
        sampled = self.chance[rows] < 1
        noisy = np.unique(groups[sampled]).tolist()
        if not noisy:
            return found
        half, rest = self.half[rows], 1 - self.chance[rows]
        weights = [np.where(sampled, np.where(half == side, 2 * weight, 0), weight) for side in (False, True)]
        times = [level_peaks(groups, begin, end, each) for each in weights]
        for one in noisy:
            mine = groups == one
            level = variance = total = 0.0
            for side in (0, 1):
                highest, at = times[1 - side][one]
                at = at if highest > 0 else 0  # the other half is empty: it chooses no time
                there = mine & (begin <= at) & (end > at)
                level += float(weights[side][there].sum())
                counted = there & sampled & (half == bool(side))
                variance += float((rest[counted] * weight[counted].astype(float) ** 2).sum())
                total += float((rest[counted] * weight[counted]).sum())
            left = mine & (end == np.uint64(FOREVER))
            least = max(int(weight[left].sum()), int(self.columns["bytes"][rows][mine].max()))
            mean = variance / total if total > 0 else 0.0
            error = (variance + mean * mean) ** 0.5 if total > 0 else 0.0
            found[one] = (max(int(level) // 2, least), found[one][1], error)
        return found

    def sites(self) -> pa.Table:
        """As `Objects.sites`, row by row; sites without a selected object have zeros."""
        import numpy as np
        import pyarrow as pa

        from ..capture.store.layouts import enum_value

        columns, count = self.columns, self.site_rows.num_rows
        site = columns["site"].astype(np.int64)
        made = self.born_here & (columns["flags"] & PIECE == 0)
        ended = self.born_here & (columns["died_ns"] != 0) & (columns["flags"] & CUT == 0)
        life = (columns["died_ns"] - columns["born_ns"]).astype(float) * self.count
        largest = np.zeros(count, dtype=np.uint64)
        np.maximum.at(largest, site[made], columns["bytes"][made])
        new: Columns = {
            **self._allocated(site, count, self.born_here),
            "objects": np.bincount(site[made], minlength=count)[:count].astype(np.uint64),
            "releases": self._sum(site, ended, self.count, count),
            "lifetime_ns": self._sum(site, ended, life, count),
            "temporary": self._sum(site, self.born_here & self._is_temporary(), self.count, count),
            "max_bytes": largest,
            "live_samples": np.bincount(
                site[self.born_here & (columns["died_ns"] == 0) & (self.chance < 1)], minlength=count
            )[:count].astype(np.uint64),
        }
        cleared = self.born_here & (columns["operation"] == enum_value("allocation_operation", "calloc"))
        new["rows"] = np.bincount(site[self.born_here], minlength=count)[:count].astype(np.uint64)
        new["cleared_bytes"] = self._sum(site, cleared, self.bytes.astype(float), count)
        peaks = self.peaks(site, self.placed)
        for at, name in enumerate(("peak_bytes", "peak_ns", "peak_bytes_error")):
            new[name] = np.array([peaks.get(number, (0, 0, 0.0))[at] for number in range(count)])
        at_peak, errors = np.zeros(count), np.zeros(count)
        heap = self.engine.is_kind("heap")
        for process, (_, time_ns, _) in self.peaks(columns["process"].astype(np.int64), heap).items():
            there = self.lives & (columns["process"] == process) & (self.begin <= time_ns) & (self.end > time_ns)
            at_peak += self._sum(site, there, self.bytes, count)
            errors = np.maximum(errors, self._error(site, there, self.bytes.astype(float), count))
        new["bytes_at_process_peak"], new["at_peak_error"] = at_peak.astype(np.uint64), errors
        table = self.site_rows
        for name, values in new.items():
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(values).cast(table.schema.field(at).type))
        return table

    def by_process(self) -> pa.Table:
        """As `Objects.peaks`."""
        import numpy as np
        import pyarrow as pa

        table = self.engine.peaks()
        process = self.columns["process"].astype(np.int64)
        numbers = table.column("process").to_pylist()
        count = max(numbers, default=0) + 1
        heap, mapped = self.engine.is_kind("heap"), self.placed & ~self.engine.is_kind("heap")
        new: Columns = {n: v[numbers] for n, v in self._allocated(process, count, self.born_here & heap).items()}
        for prefix, among in (("heap", heap), ("mmap", mapped)):
            peaks = self.peaks(process, among)
            for at, name in enumerate(("peak_bytes", "peak_ns", "peak_error")):
                if f"{prefix}_{name}" in table.column_names:
                    new[f"{prefix}_{name}"] = np.array([peaks.get(number, (0, 0, 0.0))[at] for number in numbers])
        for name, values in new.items():
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(values).cast(table.schema.field(at).type))
        there = set(np.unique(process[self.born_here | self.lives]).tolist())
        return table.filter(pa.array([number in there for number in numbers], type=pa.bool_()))

    def curve(self, process: int, kind: str) -> tuple[Uint64s, Uint64s]:
        """As `Objects.curve`: of each slice of the selected time the highest and the last level."""
        import numpy as np

        among = self.engine.is_kind("heap") if kind == "heap" else self.placed & ~self.engine.is_kind("heap")
        rows = np.flatnonzero(among & self.lives & (self.columns["process"] == process))
        ends = rows[self.end[rows] != np.uint64(FOREVER)]
        times = np.concatenate((self.begin[rows], self.end[ends]))
        change = np.concatenate((self.bytes[rows], -self.bytes[ends]))
        order = np.argsort(times, kind="stable")
        times, level = times[order], np.cumsum(change[order])
        settled = np.concatenate((times[1:] != times[:-1], [True]))[: len(times)]
        times, level = times[settled], level[settled]
        if len(times) <= 2 * CURVE_BUCKETS:
            return times, level.astype(np.uint64)
        first, last = self.part.time_range_ns
        slices = (times.astype(np.int64) - first) // ((last - first) // CURVE_BUCKETS + 1)
        picked = []
        for run in np.split(np.arange(len(times)), np.flatnonzero(np.diff(slices)) + 1):
            picked += sorted({int(run[np.argmax(level[run])]), int(run[-1])})
        return times[picked], level[picked].astype(np.uint64)


def object_totals(capture: Capture) -> ObjectTotals | None:
    """Totals of the selected objects; None if all are."""
    part = selected(capture)
    if part is None:
        return None
    if "object_totals" not in part.derived:
        part.derived["object_totals"] = ObjectTotals(part)
    totals: ObjectTotals = part.derived["object_totals"]
    return totals
