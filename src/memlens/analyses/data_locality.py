"""Analysis `locality`: footprint, growth and reuse of data, by what code or data a person asks for.

Symbols as in MemGaze (sections IV and V): A are accesses that are not constant, A_const those that are;
F counts unique addresses, all constants together as one.

    kappa   = 1 + A_const / A                                   accesses made : accesses that are not constant
    rho     = executed / (kappa · A)                            accesses executed : accesses recorded
    F       = C + S (+ 1 when there are constants)              C: accessed again, S: accessed once
    F_est   = rho · F                                           between windows; F itself within them
    growth  = F / (kappa · A)                                   Eq. 4
    growth_memgaze = F / A                                      what MemGaze's tool prints: constants left out

Windows are what was drawn, so errors come from how they differ: a ratio of sums over windows has the usual error of a ratio estimate
(native/core/locality/summaries.h), and ``*_low`` to ``*_high`` holds the value that all windows of the program would give in 95 of
100 samples. What windows cannot show has no interval: see the table ``reuse_intervals``.

D has three forms: the distance of a reuse, in blocks between two accesses to a block (exact, within windows); the blocks of a
window; and the blocks expected from one window's start to the next one's (estimated from growth).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from ..errors import MemoryLimitError, UsageError
from ..registry import AnalysisDescriptor, Option
from ._chosen_accesses import NO_CURVE, NOT_CHOSEN, chosen_accesses, with_all_code
from ._confidence import interval
from ._groups import RANGE_BYTES
from ._locality_view import locality_view
from ._observable import reuse_intervals

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import ColumnsView, Floats, Uint8s, Uint32s, Uint64s
    from ..capture.model.access_pass import TaskPool
    from ..capture.model.locality import AccessBatch, LocalityStream, ThreadAccesses
    from ..capture.reader import Capture
    from ..results import Result, Row
    from ._groups import Dimension

MEMORY_LIMIT_BYTES = 4 << 30
FEWEST_WINDOWS = 10
FEW_INFERRED = 0.005
"""Of the accesses: with so few that nobody classed beforehand, constants of the run are those of the others."""
FEWEST_FOR_DISTANCE = 20
"""Distances are skewed: with fewer windows their interval holds less often than it claims, and is not given."""
GREATEST_ERROR = 0.25
"""A row with fewer windows, or a greater relative standard error of its growth, is under-sampled."""
REPORT_BY = ("function", "object")
DISTANCE_BINS = 48


def locality(
    capture: Capture,
    *,
    by: str | Sequence[str | tuple[str, str]] = REPORT_BY,
    line_bytes: int = 64,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    heat_columns: int = 64,
    heat_rows: int = 128,
    site_classes: Mapping[str, Uint8s] | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
    range_bytes: int = RANGE_BYTES,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    accesses: ThreadAccesses | None = None,
) -> Result:
    """Footprint, growth, classes and reuse of the accesses in windows.

    Parameters
    ----------
    by
        One of program, function, line, loop, object, thread, region, node (NUMA), range (of addresses); two of them with a
        comma; or a list of such.
        One table ``by_…`` for each, and always ``by_program``.
    line_bytes
        The block of reuse distances: 64 for cache lines, 4096 for pages; a power of two.
    memory_limit_bytes
        For all engines together.
    site_classes
        Class of each site (0 unknown, 1 constant, 2 strided, 3 irregular) by build-id, where it is known statically.
        Other instructions are classed by the addresses that were seen of them.
    ranges, range_bytes
        For ``range``: pairs of addresses (the second not included), or else all ranges of this size, a power of two.
    progress
        Called with (accesses done, accesses in all).
    accesses
        Others than all of the capture: `memlens.capture.model.drawing`.

    Returns
    -------
    Result
        Tables ``by_…``, ``reuse_distances`` (histogram), ``reuse_intervals`` (what windows can show), ``miss_curve`` and ``heat_map``. Reuse is that of each thread for
        itself, among all its accesses. In windows, ``unobservable`` accesses are their window's first to a block: when the block
        was used before is not known, and they are in no distance.
    """
    from ..capture.model.access_pass import run

    consumer = LocalityConsumer(
        capture, by=by, line_bytes=line_bytes, memory_limit_bytes=memory_limit_bytes, heat_columns=heat_columns, heat_rows=heat_rows,
        site_classes=site_classes, ranges=ranges, range_bytes=range_bytes, accesses=accesses,
    )  # fmt: skip
    return _checked(lambda: run(consumer.accesses, consumer, workers=workers, progress=progress), consumer)


def _checked(work: Callable[[], Result], consumer: LocalityConsumer) -> Result:
    try:
        return work()
    except MemoryError as error:
        raise MemoryLimitError(
            f"{error} ({consumer.memory_limit_bytes:,} for {consumer.count} threads)",
            hint="allow more with memory_limit_bytes= (memlens report --memory), use a larger line_bytes=, or record windows instead of everything",
        ) from None


class LocalityConsumer:
    """Feeds an engine for each thread; the engines are merged at the end."""

    order: Literal["record"] = "record"

    def __init__(
        self,
        capture: Capture,
        *,
        by: str | Sequence[str | tuple[str, str]] = REPORT_BY,
        line_bytes: int = 64,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        heat_columns: int = 64,
        heat_rows: int = 128,
        site_classes: Mapping[str, Uint8s] | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
        range_bytes: int = RANGE_BYTES,
        accesses: ThreadAccesses | None = None,
    ) -> None:
        from ..capture.model.locality import ThreadAccesses
        from ._groups import named_dimension

        if line_bytes < 1 or line_bytes & (line_bytes - 1):
            raise UsageError(f"a line of {line_bytes} bytes is not a power of two", hint="for example line_bytes=64")
        asked = [by] if isinstance(by, str) else list(by)
        names = list(dict.fromkeys(["program", *(part if isinstance(part, str) else ",".join(part) for part in asked)]))
        self.capture, self.line_bytes, self.memory_limit_bytes = capture, line_bytes, memory_limit_bytes
        windowed = with_all_code(capture)
        self.accesses = ThreadAccesses(windowed) if accesses is None else accesses
        self._choice = chosen_accesses(capture, self.accesses)
        self._site_classes = site_classes
        self._dimensions = {
            name: named_dimension(self.accesses, name, ranges=ranges, range_bytes=range_bytes) for name in names
        }
        if self._choice is not None:
            self._dimensions = {name: self._choice.dimension(one) for name, one in self._dimensions.items()}
        self._took: set[int] = set()
        self._options = {
            "block_bytes": line_bytes, "views": len(names), "heat_columns": heat_columns, "heat_rows": heat_rows,
            "begin_ns": _begin_ns(windowed), "end_ns": _end_ns(windowed),
        }  # fmt: skip
        self.whole = self.accesses.is_whole
        self.count = max(1, len(self.accesses.streams))
        self.streams = [self._engine() for _ in self.accesses.streams]

    def _engine(self) -> LocalityStream:
        from ..capture.model.locality import LocalityStream

        return LocalityStream(
            **self._options, has_windows=not self.whole, memory_limit_bytes=self.memory_limit_bytes // self.count
        )

    @property
    def columns(self) -> frozenset[str]:
        return frozenset({"constants"}).union(*(dimension.columns for dimension in self._dimensions.values()))

    def begin(self, pool: TaskPool) -> None:
        from ..capture.model.window_classes import batch_classes

        self._pool = pool
        self._classes = batch_classes(self.accesses, self._site_classes)
        self._parts = [self._classes]

    def add(self, batch: AccessBatch) -> None:
        self._took.add(batch.stream)
        for ready, classes in self._classes.push(batch):
            for work in self._tasks(ready, classes):
                self._pool.submit(self, ready.stream, work)

    def _tasks(self, batch: AccessBatch, classes: Uint8s) -> Iterator[Callable[[], None]]:
        stream = self.streams[batch.stream]
        if batch.constants is not None:
            numbers = [dimension.constant_numbers(batch.constants) for dimension in self._dimensions.values()]
            yield _constant_adder(stream, batch.constants, numbers)
        if len(batch):
            yield _adder(stream, batch, classes, [dimension.numbers(batch) for dimension in self._dimensions.values()])

    def merge(self, other: LocalityConsumer) -> None:
        """Of the same capture, with other threads."""
        for at in other._took:
            if at in self._took:
                raise ValueError("both took accesses of one thread")
            self.streams[at] = other.streams[at]
        self._took |= other._took
        self._parts += other._parts

    def snapshot(self) -> Result:
        return _checked(self._snapshot, self)

    def _class_counts(self) -> tuple[int, int]:
        """Accesses whose class was inferred, and known beforehand."""
        return sum(p.inferred_accesses for p in self._parts), sum(p.static_accesses for p in self._parts)

    def _merged(self) -> LocalityStream | None:
        """One engine of all threads; the first one's, which cannot go on then."""
        for other in self.streams[1:]:
            self.streams[0].merge(other)
        return self.streams[0] if self.streams else None

    def _snapshot(self) -> Result:
        for part in self._parts:
            for ready, classes in part.rest():
                for work in self._tasks(ready, classes):
                    work()
        for stream in self.streams:
            stream.finish()
        inferred, static = self._class_counts()
        return _result(
            with_all_code(self.capture),
            self.accesses,
            self._dimensions,
            self._merged(),
            memory_bytes=sum(int(stream.memory_bytes) for stream in self.streams),
            origin="inferred" if not static else "mixed" if inferred else "static",
            is_static=inferred <= FEW_INFERRED * (inferred + static),
            whole=self.whole,
            line_bytes=self.line_bytes,
            executed=int(self.accesses.unit_executed.sum()),
            recorded=self.accesses.recorded,
            is_chosen=self._choice is not None,
        )


class ReportConsumer(LocalityConsumer):
    """Footprint, growth, classes and reuse of data by code and data, from the accesses in windows. What exceeds the memory limit is left out with a note."""

    def snapshot(self) -> Result:
        try:
            return super().snapshot()
        except MemoryLimitError as error:
            return _left_out(self.capture, error)

    def failed(self, error: BaseException) -> Result:
        """What a report shows when the sweep has failed for this one."""
        try:
            raise error
        except MemoryError:
            limit = f"{error} ({self.memory_limit_bytes:,} for {self.count} threads)"
            hint = "allow more with memory_limit_bytes= (memlens report --memory), use a larger line_bytes=, or record windows instead of everything"
            return _left_out(self.capture, MemoryLimitError(limit, hint=hint))


def _begin_ns(capture: Capture) -> int:
    begins = capture.windows.columns["begin_ns"]
    return int(begins.min()) if len(begins) else 0


def _end_ns(capture: Capture) -> int:
    ends = capture.windows.columns["end_ns"]
    return int(ends.max()) if len(ends) else 0


def _adder(stream: LocalityStream, batch: AccessBatch, classes: Uint8s, groups: list[Uint32s]) -> Callable[[], None]:
    import numpy as np

    def add() -> None:
        stream.add(
            batch.key_address,
            bytes=np.ascontiguousarray(batch.bytes),
            classes=classes,
            windows=np.ascontiguousarray(batch.unit),
            times_ns=np.ascontiguousarray(batch.time_ns),
            weights=np.ascontiguousarray(batch.weight),
            groups=groups,
        )

    return add


def _constant_adder(stream: LocalityStream, constants: AccessBatch, groups: list[Uint32s]) -> Callable[[], None]:
    import numpy as np

    def add() -> None:
        stream.add_constants(
            np.ascontiguousarray(constants.unit),
            counts=np.ascontiguousarray(constants.count),
            weights=np.ascontiguousarray(constants.weight),
            groups=[np.ascontiguousarray(numbers) for numbers in groups],
        )

    return add


def _result(
    capture: Capture,
    accesses: ThreadAccesses,
    dimensions: Mapping[str, Dimension],
    merged: LocalityStream | None,
    *,
    memory_bytes: int,
    origin: str,
    is_static: bool,
    whole: bool,
    line_bytes: int,
    executed: int,
    recorded: int,
    is_chosen: bool,
) -> Result:
    """`is_chosen`: only accesses of some code or object have rows."""
    import pyarrow as pa

    from ..results import Note, Quality, Result

    leaves_out = int(accesses.implied_constants.sum()) > 0
    tables: dict[str, pa.Table] = {}
    for view, (name, dimension) in enumerate(dimensions.items()):
        rows = [] if merged is None else _rows(
            dimension, merged.reuse(view), merged.footprint(view), whole=whole, origin=origin, windows=merged.windows,
            leaves_out=leaves_out, is_static=is_static,
        )  # fmt: skip
        title = "by_" + name.replace(",", "_and_")
        tables[title] = pa.Table.from_pylist(rows, schema=_schema(dimension))
    program = tables["by_program"].to_pylist()
    total = program[0] if program else {}
    group = int(is_chosen)  # of the whole program
    tables["reuse_distances"] = _distances(merged, group)
    tables["reuse_intervals"] = reuse_intervals(merged, accesses.unit_recorded, whole=whole, group=group)
    tables["miss_curve"] = _miss_curve(None if is_chosen else merged, line_bytes, capture, whole=whole)
    tables["heat_map"] = _heat(None if is_chosen else merged, capture)
    if is_chosen:
        recorded, executed = total.get("recorded", 0), round(total.get("executed", 0))
    figures = {
        "windows": 0 if merged is None else int(merged.windows),
        "everything_recorded": whole,
        "recorded_accesses": recorded,
        "executed_accesses": executed,
        "window_accesses": None if whole else accesses.window_accesses,
        "line_bytes": line_bytes,
        "class_origin": origin,
        "damaged_windows": accesses.damaged,
        "memory_bytes": memory_bytes,
        **{name: total.get(name) for name in (
            "footprint", "footprint_estimated", "footprint_bytes", "footprint_lines", "growth", "growth_memgaze",
            "strided_percent", "irregular_percent", "constant_percent", "kappa", "rho", "reuse_distance_mean", "window_growth", "observed_growth",
            "window_irregular_percent", "window_constant_percent", "window_reuse_distance_mean",
            "unobservable", "blocks_of_window", "blocks_between_windows_estimated")},
    }  # fmt: skip
    return Result(
        "locality",
        figures,
        tables,
        capture.quality.joined(
            Quality(
                exact=whole and not accesses.damaged and origin == "static",
                notes=(
                    *_notes(figures, tables, whole=whole),
                    *([Note("selection.no_curve", NO_CURVE)] if is_chosen else []),
                ),
            )
        ),
    )


def _known(value: float) -> float | None:
    return None if value != value else float(value)


def _rows(
    dimension: Dimension,
    reuse: ColumnsView,
    footprint: ColumnsView,
    *,
    whole: bool,
    origin: str,
    windows: int,
    leaves_out: bool,
    is_static: bool,
) -> list[Row]:
    """`leaves_out`: the trace leaves constants out. `is_static`: classes are known beforehand, of all accesses that matter."""
    reuse = {name: values.tolist() for name, values in reuse.items()}
    footprint = {name: values.tolist() for name, values in footprint.items()}
    executed = reuse.pop("executed")
    total = sum(one for key, one in zip(dimension.keys, executed, strict=False) if NOT_CHOSEN not in key)
    none: dict[str, float] = dict.fromkeys(reuse, 0)
    knows_constants = dimension.knows_constants or not leaves_out
    rows: list[tuple[float, Row]] = []
    for at, key in enumerate(dimension.keys):
        if NOT_CHOSEN in key:
            continue
        if at >= len(footprint["accesses"]) or not footprint["accesses"][at] + footprint["constants"][at]:
            continue
        r: dict[str, float] = {n: v[at] for n, v in reuse.items()} if at < len(reuse["accesses"]) else none
        row: Row = dict(zip(dimension.names, key, strict=True))
        f = {n: v[at] for n, v in footprint.items()}
        measured = _footprint_row(f, executed[at], whole, knows_constants, dimension.has_constants, is_static)
        measured.update(_reuse_row(r, windows, executed[at] * r["accesses"] / (f["accesses"] + f["constants"]), whole))
        row.update(measured)
        row["recorded"] = r["accesses"]
        row["share"] = executed[at] / total if total else 0.0
        row["class_origin"] = origin
        error, growth = measured["window_growth_error"], measured["window_growth"]
        row["under_sampled"] = not whole and (
            f["window_growth_windows"] < FEWEST_WINDOWS
            or (
                knows_constants
                and (error is None or growth is None or (growth > 0 and error / growth > GREATEST_ERROR))
            )
        )
        rows.append((executed[at], row))
    return [row for _, row in sorted(rows, key=lambda one: -one[0])]


def _footprint_row(
    f: dict[str, float], executed: float, whole: bool, knows_constants: bool, has_constants: bool, is_static: bool
) -> dict[str, float | None]:
    """What depends on the length of windows has ``window_`` before its name, and is null without it unless everything was recorded."""
    a, constants = f["accesses"], f["constants"]
    # Inferred from windows, a class is that of the instruction in the window.
    knows_class = knows_constants and (whole or is_static)
    # kappa · A. Data has no constants: their addresses are not recorded. Of code whose constants are not known there is no growth.
    made = a + constants if knows_constants or not has_constants else None
    rho = 1.0 if whole else executed / (a + constants)
    f_total = f["footprint"]
    moving = f["addresses_strided"] + f["addresses_irregular"]
    return {
        "executed": executed,
        "accesses": a,
        "constants": constants if knows_class else None,
        "constant_percent": 100 * constants / (a + constants) if knows_class else None,
        **_percents("constant_percent", f, "window_constant", whole, constants / (a + constants) if knows_class else None),
        **_percents("window_constant_percent", f, "window_constant", whole, constants / (a + constants) if knows_constants else None),
        "window_constant_percent": 100 * constants / (a + constants) if knows_constants else None,
        "kappa": made / a if a and made and knows_class else None,
        "rho": rho,
        "footprint": f_total,
        "footprint_strided": f["addresses_strided"],
        "footprint_irregular": f["addresses_irregular"],
        "footprint_estimated": rho * f_total,
        "footprint_strided_estimated": rho * f["addresses_strided"],
        "footprint_irregular_estimated": rho * f["addresses_irregular"],
        # Streams of sites have no widths.
        "footprint_bytes": f["bytes"] if f["bytes"] or not f["addresses"] else None,
        "footprint_lines": f["lines"],
        "captures": f["again"],
        "survivals": f["addresses"] - f["again"],
        "growth": f_total / made if made and whole else None,
        "growth_strided": f["addresses_strided"] / made if made and whole else None,
        "growth_irregular": f["addresses_irregular"] / made if made and whole else None,
        "growth_memgaze": f_total / a if a and whole else None,
        "observed_growth": f_total / made if made else None,
        "observed_growth_memgaze": f_total / a if a else None,
        "strided_percent": 100 * f["addresses_strided"] / moving if moving and whole else None,
        "irregular_percent": 100 * f["addresses_irregular"] / moving if moving and whole else None,
        **_irregular_of_windows(f, whole, f["addresses_irregular"] / moving if moving else None),
        "windows": 1 if whole else f["window_growth_windows"],
        **_ratio("window_growth", f, whole, f_total, made),
        **_ratio("window_growth_strided", f, whole, f["addresses_strided"], made),
        **_ratio("window_growth_irregular", f, whole, f["addresses_irregular"], made),
        "window_footprint": float(f_total) if whole
        else f["window_footprint_sum"] / f["window_growth_windows"] if f["window_growth_windows"] else None,
    }  # fmt: skip


def _ratio(name: str, f: dict[str, float], whole: bool, part: float, of: float | None) -> dict[str, float | None]:
    """A ratio over windows, its standard error and its interval; of a whole trace the ratio itself. Without `of` it is not known."""
    if of is None:
        return {f"{name}{end}": None for end in ("", "_error", "_low", "_high")}
    if whole:
        value = part / of if of else None
        return {name: value, f"{name}_error": 0.0, f"{name}_low": value, f"{name}_high": value}
    value, error = _known(f[name]), _known(f[f"{name}_error"])
    low, high = _share_interval(value, f, name)
    return {name: value, f"{name}_error": error, f"{name}_low": low, f"{name}_high": high}


def _share_interval(value: float | None, f: dict[str, float], ratio: str) -> tuple[float | None, float | None]:
    """The interval of a share: what the spread of the windows says, and what bursts that were not drawn leave possible (``_rare_*``)."""
    error, windows = _known(f[f"{ratio}_error"]), f[f"{ratio}_windows"]
    low, high = interval(value, error, windows)
    if low is None or high is None:
        return low, high
    return min(low, f[f"{ratio}_rare_low"]), min(1.0, max(high, f[f"{ratio}_rare_high"]))


def _percents(name: str, f: dict[str, float], ratio: str, whole: bool, value: float | None) -> dict[str, float | None]:
    """The interval of a share of accesses, in percent."""
    low = high = value
    if not whole:
        low, high = _share_interval(value, f, ratio)
    return {
        f"{name}_low": None if low is None else 100 * low,
        f"{name}_high": None if high is None else min(100.0, 100 * high),
    }


def _irregular_of_windows(f: dict[str, float], whole: bool, share: float | None) -> dict[str, float | None]:
    value = share if whole else _known(f["window_irregular"])
    return {
        "window_irregular_percent": None if value is None else 100 * value,
        **_percents("window_irregular_percent", f, "window_irregular", whole, value),
    }


def _reuse_row(r: dict[str, float], windows: int, executed: float, whole: bool) -> dict[str, float | None]:
    reuses = r["distance_count"]
    unobservable = 0 if whole else r["first"] + r["earlier"]
    new = _known(r["new_blocks"])
    mean = r["distance_sum"] / reuses if reuses else None
    error = 0.0 if whole and reuses else _known(r["mean_distance_error"])
    low, high = (mean, mean) if whole else interval(mean, error, r["mean_distance_windows"])
    if not whole and r["mean_distance_windows"] < FEWEST_FOR_DISTANCE:
        low = high = None
    found = {
        "reuse_distance_mean": mean,
        "reuse_distance_error": error,
        "reuse_distance_low": low,
        "reuse_distance_high": high,
        "reuse_distance_min": r["distance_min"] if reuses else None,
        "reuse_distance_max": r["distance_max"] if reuses else None,
        "reuse_interval_mean": r["interval_sum"] / reuses if reuses else None,
        "reuse_interval_min": r["interval_min"] if reuses else None,
        "reuse_interval_max": r["interval_max"] if reuses else None,
    }
    return {
        "reuses": reuses,
        "first_accesses": r["first"],
        "unobservable": unobservable,
        "unobservable_percent": 100 * unobservable / r["accesses"] if r["accesses"] else None,
        # Windows show reuses that are shorter than they are.
        **{name: value if whole else None for name, value in found.items()},
        **{f"window_{name}": value for name, value in found.items()},
        "blocks_of_window": (r["first"] + r["earlier"]) / r["new_blocks_windows"] if r["new_blocks_windows"] else None,
        # From one window's start to the next one's, if blocks go on to be new as they are within windows.
        "blocks_between_windows_estimated": None if whole or new is None or not windows else new * executed / windows,
    }


_REUSE = {"reuse_distance_mean": "double", "reuse_distance_error": "double", "reuse_distance_low": "double",
          "reuse_distance_high": "double", "reuse_distance_min": "uint64", "reuse_distance_max": "uint64",
          "reuse_interval_mean": "double", "reuse_interval_min": "uint64", "reuse_interval_max": "uint64"}  # fmt: skip
FIELDS: dict[str, str] = {
    "executed": "double", "share": "double", "recorded": "uint64", "accesses": "uint64", "constants": "uint64",
    "constant_percent": "double", "constant_percent_low": "double", "constant_percent_high": "double", "kappa": "double", "rho": "double", "footprint": "uint64", "footprint_strided": "uint64",
    "footprint_irregular": "uint64", "footprint_estimated": "double", "footprint_strided_estimated": "double",
    "footprint_irregular_estimated": "double", "footprint_bytes": "uint64", "footprint_lines": "uint64",
    "captures": "uint64", "survivals": "uint64", "growth": "double", "growth_strided": "double",
    "growth_irregular": "double", "growth_memgaze": "double", "observed_growth": "double", "observed_growth_memgaze": "double", "strided_percent": "double", "irregular_percent": "double",
    "windows": "uint64", "window_footprint": "double",
    **{f"{name}{end}": "double" for name in ("window_growth", "window_growth_strided", "window_growth_irregular")
       for end in ("", "_error", "_low", "_high")},
    **{f"{name}{end}": "double" for name in ("window_irregular_percent", "window_constant_percent") for end in ("", "_low", "_high")},
    "reuses": "uint64", "first_accesses": "uint64", "unobservable": "uint64", "unobservable_percent": "double",
    **_REUSE, **{f"window_{name}": kind for name, kind in _REUSE.items()}, "blocks_of_window": "double", "blocks_between_windows_estimated": "double",
    "class_origin": "string", "under_sampled": "bool",
}  # fmt: skip


def _schema(dimension: Dimension) -> pa.Schema:
    import pyarrow as pa

    numbers = {"process": pa.uint32(), "thread": pa.uint32(), "line": pa.uint32(), "node": pa.int32(), "loop_depth": pa.uint32(),
               "range_begin": pa.uint64(), "range_bytes": pa.uint64()}  # fmt: skip
    keys = [(name, numbers.get(name, pa.string())) for name in dimension.names]
    return pa.schema([*keys, *((name, pa.type_for_alias(kind)) for name, kind in FIELDS.items())])


def _distances(merged: LocalityStream | None, group: int) -> pa.Table:
    """Reuses of the whole program by distance and by interval, in powers of two."""
    import pyarrow as pa

    schema = pa.schema([("from", pa.uint64()), ("to", pa.uint64()), ("reuses_by_distance", pa.uint64()),
                        ("reuses_by_interval", pa.uint64())])  # fmt: skip
    if merged is None:
        return schema.empty_table()
    reuse = merged.reuse(0)
    if len(reuse["accesses"]) <= group:
        return schema.empty_table()
    distance, interval = reuse["distance_bins"][group].tolist(), reuse["interval_bins"][group].tolist()
    last = max((at for at in range(DISTANCE_BINS) if distance[at] or interval[at]), default=-1)
    rows = [
        {"from": 0 if at == 0 else 1 << (at - 1), "to": 0 if at == 0 else (1 << at) - 1,
         "reuses_by_distance": distance[at], "reuses_by_interval": interval[at]}
        for at in range(last + 1)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def curve_sizes(greatest: int, *, steps: int = 4, extra: Sequence[int] = ()) -> list[int]:
    """Numbers of blocks from 1 to beyond `greatest`, `steps` for each factor of two, and those of `extra` in between."""
    sizes: list[int] = []
    step = 0
    while not sizes or sizes[-1] <= greatest:
        size = round(2 ** (step / steps))
        if not sizes or size > sizes[-1]:
            sizes.append(size)
        step += 1
    return sorted({*sizes, *(size for size in extra if 1 <= size < sizes[-1])})


def _miss_curve(merged: LocalityStream | None, line_bytes: int, capture: Capture, *, whole: bool) -> pa.Table:
    """Misses of a fully associative LRU cache that each thread has for itself, also of the sizes of the machine's caches."""
    import numpy as np
    import pyarrow as pa

    from .caches import machine_levels

    schema = pa.schema([("cache_bytes", pa.uint64()), ("miss_ratio", pa.float64()), ("miss_ratio_low", pa.float64())])
    if merged is None or not merged.accesses:
        return schema.empty_table()
    greatest = int(merged.curve(np.zeros(0, dtype=np.uint64))["greatest"])
    levels = [level.bytes // line_bytes for level in machine_levels(capture)]
    sizes = np.array(curve_sizes(greatest, extra=levels), dtype=np.uint64)
    found = merged.curve(sizes)
    total = found["accesses"]
    # What was last used in another window, or before the first one, may be in the cache or not.
    unknown = 0 if whole else found["first"] + found["earlier"]
    return pa.table(
        {
            "cache_bytes": sizes * np.uint64(line_bytes),
            "miss_ratio": found["misses"] / total,
            "miss_ratio_low": (found["misses"] - np.uint64(unknown)) / total,
        },
        schema=schema,
    )


class _Heat(TypedDict):
    """What `LocalityStream.heat` gives: rows of addresses, columns of time."""

    address: Uint64s
    row_bytes: int
    accesses: Uint64s
    reuses: Uint64s
    distance_sum: Floats


def _heat(merged: LocalityStream | None, capture: Capture) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    from ..capture.model.locality import PROCESS_SHIFT

    schema = pa.schema([("process", pa.uint32()), ("address", pa.uint64()), ("bytes", pa.uint64()), ("begin_ns", pa.uint64()),
                        ("end_ns", pa.uint64()), ("accesses", pa.uint64()), ("reuse_distance_mean", pa.float64())])  # fmt: skip
    heat = None if merged is None else cast("_Heat | None", merged.heat())
    if heat is None or not len(heat["address"]):
        return schema.empty_table()
    processes = np.array(list(dict.fromkeys(capture.windows.columns["process"].tolist())), dtype=np.uint32)
    rows, columns = np.nonzero(heat["accesses"])
    begin, end = _begin_ns(capture), max(_end_ns(capture), _begin_ns(capture) + 1)
    edges = begin + (np.arange(heat["accesses"].shape[1] + 1) * ((end - begin) / heat["accesses"].shape[1]))
    key = heat["address"][rows]
    reuses = heat["reuses"][rows, columns]
    mean = np.divide(heat["distance_sum"][rows, columns], reuses, out=np.zeros(len(rows)), where=reuses > 0)
    return pa.table(
        {
            "process": processes[(key >> np.uint64(PROCESS_SHIFT)).astype(np.int64) % len(processes)],
            "address": key & np.uint64((1 << PROCESS_SHIFT) - 1),
            "bytes": np.full(len(rows), heat["row_bytes"], dtype=np.uint64),
            "begin_ns": edges[columns].astype(np.uint64),
            "end_ns": edges[columns + 1].astype(np.uint64),
            "accesses": heat["accesses"][rows, columns],
            "reuse_distance_mean": pa.array(mean, mask=reuses == 0),
        },
        schema=schema,
    )


def _notes(figures: Mapping[str, object], tables: Mapping[str, pa.Table], *, whole: bool) -> list[str]:
    notes = []
    if figures["damaged_windows"]:
        notes.append(f"{figures['damaged_windows']} windows are damaged and were left out.")
    if figures["class_origin"] != "static":
        notes.append(
            "Classes of accesses (constant, strided, irregular) are inferred from the addresses that were seen of each instruction."
        )
    by_function = tables.get("by_function")
    if (
        by_function is not None
        and by_function.num_rows
        and by_function.column("constants").null_count == by_function.num_rows
    ):
        notes.append(
            "The trace records how many constants it leaves out, but not their code: constants, kappa and growth of functions and lines are not known. "
            "Build the program with this version's memlens cc."
        )
    if not whole:
        notes.append(
            f"Footprints are observed in {figures['windows']:,} windows. Growth, irregular share and reuse distance are those within windows of "
            f"{figures['window_accesses'] or 0:,} accesses (window_*), and depend on that length; those of the whole run are not known. *_estimated scales by executed : recorded accesses, "
            "which overestimates where windows share data."
        )
        under = sum(
            tables[name].column("under_sampled").to_pylist().count(True) for name in tables if name.startswith("by_")
        )
        if under:
            notes.append(
                f"{under} rows are under-sampled: fewer than {FEWEST_WINDOWS} windows, or a standard error above "
                f"{GREATEST_ERROR:.0%} of the growth."
            )
    return notes


def for_report(capture: Capture, **options: Any) -> Result:
    """Footprint, growth, classes and reuse of data by code and data, from the accesses in windows. What exceeds the memory limit is left out with a note."""
    try:
        return locality(capture, **options)
    except MemoryLimitError as error:
        return _left_out(capture, error)


def _left_out(capture: Capture, error: MemoryLimitError) -> Result:
    from ..results import Quality, Result

    note = f"Locality was left out: {error}; {error.hint}."
    figures = {"recorded_accesses": 0, "everything_recorded": False}
    return Result("locality", figures, {}, capture.quality.joined(Quality(exact=False, notes=(note,))))


DESCRIPTOR = AnalysisDescriptor(
    name="locality",
    question="How much data does each function and object use, how fast does it grow, and how soon is it reused?",
    needs=("window",),
    options=(
        Option(
            "by",
            "program, function, line, loop, object, thread, region, node, range, or two of them",
            "function, object",
        ),
        Option("line_bytes", "block of reuse distances, a power of two", 64),
        Option("memory_limit_bytes", "for all engines together", MEMORY_LIMIT_BYTES),
    ),
    run=for_report,
    consumer=ReportConsumer,
    view=locality_view,
    provide="memlens record --emulate, or memlens cc --memlens=trace and memlens record",
)
