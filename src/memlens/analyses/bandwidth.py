"""Analysis `bandwidth`: bytes, time and access bandwidth of each region of a program that counts for itself.

Owns the metrics of compile-time counting (docs/bandwidth.md has the formulas): what belongs to a region, how several threads
are put together, how sampled executions become totals, and how our own cost is taken off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..registry import AnalysisDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.counting import Counts
    from ..capture.reader import Capture
    from ..results import Result

QUANTITIES = (
    "loads", "stores", "read_bytes", "written_bytes", "stack_loads", "stack_stores", "stack_read_bytes", "stack_written_bytes",
)  # fmt: skip
MIX = (
    "integer_operations",
    "float_operations",
    "vector_operations",
    "branches",
    "calls",
    "prefetches",
    "float_results",
)
IDLE_SHARE = 0.01
"""The main thread with less than this of the busiest one's bytes only waits for the others: no part of the imbalance."""
MOST_BLOCKS = 1000
OUTSIDE = "(outside regions)"
Path = tuple[str, ...]


@dataclass
class _Time:
    """Executions and times of one region in one thread."""

    entered: int = 0
    counted: int = 0
    untouched: int = 0
    counted_ns: int = 0
    untouched_ns: int = 0
    self_ns: int = 0
    open_ns: int = 0
    least_ns: int = 0
    most_ns: int = 0
    abandoned: int = 0
    recursions: int = 0
    joined: int = 0
    joined_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    events: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    event_share_ppm: int = 0

    def add(self, row: dict[str, Any]) -> None:
        for name in (
            "entered",
            "counted",
            "untouched",
            "counted_ns",
            "untouched_ns",
            "abandoned",
            "recursions",
            "joined",
            "joined_ns",
        ):
            setattr(self, name, getattr(self, name) + row[name])
        self.self_ns += row["counted_self_ns"] + row["untouched_self_ns"]
        self.open_ns += max(0, row["open_ns"])
        self.least_ns = min(filter(None, (self.least_ns, row["least_ns"])), default=0)
        self.most_ns = max(self.most_ns, row["most_ns"])
        self.first_ns = min(filter(None, (self.first_ns, row["first_ns"])), default=0)
        self.last_ns = max(self.last_ns, row["last_ns"], row["time_ns"] if row["open_ns"] > 0 else 0)
        for number in range(4):
            self.events[number] += row[f"counted_event_{number}"] + row[f"untouched_event_{number}"]
        share = row["event_share_ppm"]
        self.event_share_ppm = min(filter(None, (self.event_share_ppm, share)), default=0)


Thread = tuple[int, int]
"""(process, thread)"""


class _Regions:
    """Everything by path of regions and thread."""

    def __init__(self, capture: Capture) -> None:
        self.counts: Counts = capture.counts
        places = self.counts.places()
        names = (*QUANTITIES, "estimated_accesses")
        sums = self.counts.place_sums()
        adds = self.counts.adds()
        self.bytes: dict[tuple[Path, Thread], dict[str, int]] = {}
        self.path_of_place: list[Path] = []
        for number in range(len(places)):
            path = self.counts.path_of(int(places.image[number]), int(places.node[number]))
            self.path_of_place.append(path)
            key = (path, (int(places.process[number]), int(places.thread[number])))
            row = self.bytes.setdefault(key, dict.fromkeys((*names, *MIX, "adds"), 0))
            for name in names:
                row[name] += int(sums[name][number])
            for name in MIX:
                row[name] += int(sums[name][number])
            row["adds"] += int(adds[number])
        self.times: dict[tuple[Path, Thread], _Time] = {}
        for row in _totals(capture.table("region_time_records").to_pylist()):
            path = self.counts.path_of(row["image"], row["node"])
            self.times.setdefault((path, (row["process"], row["thread"])), _Time()).add(row)
        self.paths = {path for path, _ in (*self.bytes, *self.times)}
        for path in list(self.paths):  # a region that only holds others
            self.paths |= {path[:depth] for depth in range(1, len(path))}
        self._below: dict[Path, list[Path]] = defaultdict(list)
        for path in self.paths:
            for depth in range(len(path) + 1):
                if path:
                    self._below[path[:depth]].append(path)
        self._children: dict[Path, list[Path]] = defaultdict(list)
        for path in self.paths:
            if path:
                self._children[path[:-1]].append(path)
        self._times: dict[Path, list[_Time]] = defaultdict(list)
        self._threads: dict[Path, set[Thread]] = defaultdict(set)
        self._sums: dict[Path, dict[str, int]] = {}
        self._factors: dict[Path, float | None] = {}
        for (path, thread), time in self.times.items():
            self._times[path].append(time)
            self._threads[path].add(thread)
        for (path, thread), row in self.bytes.items():
            self._threads[path].add(thread)
            total = self._sums.setdefault(path, dict.fromkeys(row, 0))
            for name, value in row.items():
                total[name] += value
        self.has_mix = bool(self.counts.blocks["has_mix"].any())

    def below(self, path: Path) -> list[Path]:
        """A region and all inside it."""
        return self._below[path] if path else [()]

    def children(self, path: Path) -> list[Path]:
        return self._children.get(path, [])

    def threads(self, paths: Iterable[Path]) -> list[Thread]:
        return sorted({thread for path in paths for thread in self._threads.get(path, ())})

    def sum_of(self, paths: Iterable[Path], thread: Thread | None, name: str, *, scaled: bool = False) -> float:
        """A quantity; `scaled`: counted executions made to stand for all."""
        total: float = 0
        for path in paths:
            factor = self.factor(path) if scaled else 1.0
            if thread is None:
                own = self._sums.get(path, {}).get(name, 0)
            else:
                own = self.bytes.get((path, thread), {}).get(name, 0)
            total += own if factor == 1.0 else own * (factor or 0.0)
        return total

    def times_of(self, path: Path) -> list[_Time]:
        return self._times.get(path, [])

    def executions(self, path: Path) -> tuple[int, int]:
        """(counted, untouched) executions that ended."""
        mine = self.times_of(path)
        return sum(time.counted for time in mine), sum(time.untouched for time in mine)

    def factor(self, path: Path) -> float | None:
        """What a counted execution stands for; None: none was counted."""
        if path not in self._factors:
            counted, untouched = self.executions(path)
            none = None if untouched else 1.0
            self._factors[path] = (counted + untouched) / counted if counted else none
        return self._factors[path]

    def place_factors(self) -> Any:
        """What a counted execution stands for, of each place of the counts."""
        import numpy as np

        return np.array([self.factor(path) or 0.0 for path in self.path_of_place], dtype=np.float64)

    def self_ns(self, path: Path, thread: Thread) -> int:
        """Time of a thread in a region without those inside it."""
        own = self.times.get((path, thread))
        if own is None:
            return 0
        # Work for another thread is known with what is nested in it; what is nested in own executions is not part of that.
        nested = sum(
            time.counted_ns + time.untouched_ns + time.joined_ns
            for other in self.children(path)
            if (time := self.times.get((other, thread))) is not None
        )
        of_own = own.counted_ns + own.untouched_ns - own.self_ns
        joined = min(max(0, own.joined_ns - max(0, nested - of_own)), own.joined_ns)
        # What an open execution spent in nested regions is not known; one without any has all of it.
        return own.self_ns + joined + (own.open_ns if not self.children(path) else 0)

    def inclusive_ns(self, path: Path, thread: Thread) -> int:
        """Time of a thread in a region and those inside it.

        The times without nested regions add up to it, also where a thread does only the inner part of another's
        region. An execution that is still open has only its whole time.
        """
        own = self.times.get((path, thread))
        if own is not None and own.open_ns:
            return own.counted_ns + own.untouched_ns + own.joined_ns + own.open_ns
        return sum(self.self_ns(other, thread) for other in self.below(path))

    def span(self, path: Path, thread: Thread) -> tuple[int, int]:
        times = [self.times[other, thread] for other in self.below(path) if (other, thread) in self.times]
        begins = [time.first_ns for time in times if time.first_ns]
        return min(begins, default=0), max((time.last_ns for time in times), default=0)


def place_factors(capture: Capture) -> Any:
    """What a counted execution stands for, of each row of `capture.counts.places()`; 0 where none was counted."""
    return _Regions(capture).place_factors()


def _totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the whole run; of an image that has none (a recorder that was killed) its epochs."""
    with_totals = {row["image"] for row in rows if row["epoch"] == 0}
    return [row for row in rows if row["epoch"] == 0 or row["image"] not in with_totals]


def _sums(codes: Any, values: Any, count: int) -> Any:
    import numpy as np

    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, codes, values.astype(np.int64))
    return sums


def _scaled_sums(codes: Any, values: Any, place: Any, factors: Any, count: int) -> Any:
    """Like `_sums`, each row times the factor of its place; whole numbers as long as every factor is 1."""
    import numpy as np

    if (factors == 1.0).all():
        return _sums(codes, values, count)
    sums = np.zeros(count)
    np.add.at(sums, codes, values * factors[place])
    return np.rint(sums).astype(np.int64)


def wall_ns(threads: list[tuple[int, int, int]]) -> int:
    """Wall-clock time of a region from (time, first begin, last end) of each thread.

    Threads whose spans overlap are taken to run at the same time: the longest counts. Groups follow each other.

    >>> wall_ns([(10, 0, 10), (8, 0, 10)]), wall_ns([(10, 0, 10), (8, 20, 28)])
    (10, 18)
    """
    total = longest = end = 0
    for time, first, last in sorted(threads, key=lambda entry: entry[1]):
        if first > end:
            total += longest
            longest = 0
        longest = max(longest, time)
        end = max(end, last)
    return total + longest


def imbalance(values: list[float]) -> float | None:
    """max / mean − 1 over threads.

    >>> imbalance([3.0, 1.0]), imbalance([2.0, 2.0]), imbalance([5.0])
    (0.5, 0.0, None)
    """
    if len(values) < 2 or not sum(values):
        return None
    return max(values) / (sum(values) / len(values)) - 1


def _per_second(n_bytes: float | None, ns: float | None) -> float | None:
    return n_bytes / ns * 1e9 if n_bytes is not None and ns else None


def _standard_error(cells: list[tuple[int, int]], total: int) -> float | None:
    """Of a total estimated from counted executions: a ratio estimate over cells of (executions counted, bytes).

    Cells are threads and epochs: executions of one cell are alike, so the error comes from how cells differ.
    """
    cells = [cell for cell in cells if cell[0] > 0]
    counted = sum(n for n, _ in cells)
    if len(cells) < 2 or not counted or total <= counted:
        return None
    ratio = sum(b for _, b in cells) / counted
    spread = sum((b - ratio * n) ** 2 for n, b in cells) * len(cells) / (len(cells) - 1)
    return float(total / counted * (1 - counted / total) ** 0.5 * spread**0.5)


# ---- the analysis ------------------------------------------------------------------------------------------------------
def bandwidth(capture: Capture) -> Result:
    """Bytes, executions, time and access bandwidth by region, thread, function, inlined function, line and block.

    *Access bandwidth* is what the cores asked for: bytes that instructions moved by time, wherever they came from. It is given by
    two definitions: ``bytes_per_thread_second``, all bytes by the sum of the threads' times in the region (the Examem
    paper's), and ``bytes_per_second``, all bytes by wall-clock time. Rows of ``by_region`` have a region with all that is
    inside it (``exclusive`` false) or without (true). A region is a path: ``a / b`` is b inside a.
    ``corrected_bytes_per_second`` takes our own cost off: bytes of a counted execution by the time of an untouched one where
    there are any (``correction`` is untouched), else the counters' adds times the calibrated cost of one (calibrated).
    With sampling, bytes are what counted executions moved times executions by counted ones, with a standard error where
    threads or epochs differ enough to tell. ``stack_*`` is what the compiler could follow to the function's own frame.
    """
    import pyarrow as pa

    from ..results import Quality, Result

    regions = _Regions(capture)
    settings = (capture.meta.get("collectors") or {}).get("count") or {}
    add_ns = float(settings.get("add_ps") or 0) / 1000
    cells = _sampled_cells(capture, regions)
    by_region = _by_region(capture, regions, add_ns, cells)
    by_thread, by_region_and_thread = _by_thread(capture, regions)
    code = _by_code(capture, regions)
    unseen = _unseen(capture, regions)
    over_time = _over_time(capture, regions)
    statuses = capture.table("count_status").to_pylist()
    everything = by_region[0] if by_region else {}
    sampled = any(time.untouched for time in regions.times.values())
    text, number, real, wide = pa.string(), pa.uint32(), pa.float64(), pa.int64()
    figures: dict[str, Any] = {
        **{name: everything.get(name, 0) for name in ("loads", "stores", "read_bytes", "written_bytes")},
        "accessed_bytes": everything.get("bytes", 0),
        "stack_share": everything.get("stack_share"),
        "regions": sum(row["region"] != OUTSIDE for row in by_region[1:] if not row["exclusive"]),
        "threads": len({(row["process"], row["thread"]) for row in by_thread}),
        "counted_share": everything.get("counted_share"),
        "estimated_accesses_share": everything.get("estimated_accesses_share"),
        "unseen_calls": sum(row["calls"] for row in unseen),
        "sampling": settings.get("sampling", "all"),
        "has_mix": regions.has_mix,
        "events": list(settings.get("events") or ()),
        "clock": next((row["clock"] for row in statuses), None),
        "read_cost_ns": max((row["read_cost_ps"] for row in statuses), default=0) / 1000,
        "switch_cost_ns": max((row["switch_cost_ps"] for row in statuses), default=0) / 1000,
        "add_cost_ns": add_ns,
    }
    counts_schema = [*((name, wide) for name in QUANTITIES), ("bytes", wide), ("share", real), ("stack_share", real)]
    mix_schema = [*((name, wide) for name in MIX), ("float_results_per_byte", real)]
    result_tables = {
        "by_region": _table(by_region, [
            ("region", text), ("name", text), ("depth", number), ("exclusive", pa.bool_()), ("executions", wide), ("counted", wide),
            ("untouched", wide), ("abandoned", wide), ("recursions", wide), ("threads", number), *counts_schema,
            ("bytes_error", real), ("estimated", pa.bool_()), ("counted_share", real), ("estimated_accesses_share", real),
            ("thread_ns", wide), ("wall_ns", wide), ("least_ns", wide), ("most_ns", wide), ("bytes_per_thread_second", real),
            ("bytes_per_second", real), ("corrected_bytes_per_second", real), ("correction", text), ("counting_cost_share", real),
            ("byte_imbalance", real), ("time_imbalance", real), *mix_schema,
            *((f"event_{n}", wide) for n in range(4)), ("event_share", real),
        ]),
        "by_thread": _table(by_thread, [("process", number), ("thread", number), ("name", text), *counts_schema,
                                        ("thread_ns", wide), ("bytes_per_thread_second", real)]),
        "by_region_and_thread": _table(by_region_and_thread, [
            ("region", text), ("process", number), ("thread", number), ("name", text), ("executions", wide), ("counted", wide),
            ("untouched", wide), *counts_schema, ("thread_ns", wide), ("bytes_per_thread_second", real)]),
        "by_function": _table(code["by_function"], [("function", text), ("module", text), ("file", text), ("line", number),
                                                    ("executions", wide), *counts_schema, ("vector_share", real), *mix_schema]),
        "by_scope": _table(code["by_scope"], [("function", text), ("inlined", pa.bool_()), ("module", text), *counts_schema]),
        "by_line": _table(code["by_line"], [("file", text), ("line", number), ("function", text), ("module", text),
                                            ("executions", wide), *counts_schema]),
        "by_block": _table(code["by_block"], [("function", text), ("module", text), ("block", number), ("line", number),
                                              ("depth", number), ("executions", wide), *counts_schema,
                                              ("float_bytes", wide), ("scalar_float_bytes", wide), *mix_schema]),
        "unseen": _table(unseen, [("callee", text), ("library", text), ("calls", wide), ("share", real), ("caller", text)]),
        "over_time": _table(over_time, [("epoch", number), ("begin_s", real), ("end_s", real), ("region", text),
                                        ("read_bytes", wide), ("written_bytes", wide), ("thread_ns", wide),
                                        ("bytes_per_second", real)]),
    }  # fmt: skip
    notes = _notes(capture, regions, sampled=sampled, figures=figures)
    return Result(
        "bandwidth",
        figures,
        result_tables,
        capture.quality.joined(Quality(exact=not sampled and not _losses(statuses), notes=tuple(notes))),
    )


def _table(rows: list[dict[str, Any]], columns: list[tuple[str, Any]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=pa.schema(columns))


def _shares(row: dict[str, Any], all_bytes: float) -> dict[str, Any]:
    n_bytes = row["read_bytes"] + row["written_bytes"]
    on_stack = row["stack_read_bytes"] + row["stack_written_bytes"]
    return {
        "bytes": n_bytes,
        "share": n_bytes / all_bytes if all_bytes else 0.0,
        "stack_share": on_stack / n_bytes if n_bytes else None,
    }


def _intensity(row: dict[str, Any], has_mix: bool) -> dict[str, Any]:
    if not has_mix:
        return {**dict.fromkeys(MIX), "float_results_per_byte": None}
    n_bytes = row["read_bytes"] + row["written_bytes"]
    return {"float_results_per_byte": row["float_results"] / n_bytes if n_bytes else None}


def _by_region(
    capture: Capture, regions: _Regions, add_ns: float, cells: dict[Path, list[tuple[int, int]]]
) -> list[dict[str, Any]]:
    """The whole program first, then regions by bytes; each with what is inside it, and without."""
    whole = [*regions.paths, ()] if () not in regions.paths else list(regions.paths)
    all_bytes = sum(regions.sum_of(whole, None, name, scaled=True) for name in ("read_bytes", "written_bytes"))
    program = _region_row(regions, "(whole program)", whole, None, all_bytes, add_ns, cells)
    program |= _program_time(capture, regions, program)
    rows = [program]
    for path in sorted(regions.paths - {()}):
        rows.append(_region_row(regions, " / ".join(path), regions.below(path), path, all_bytes, add_ns, cells))
        rows.append(_region_row(regions, " / ".join(path), [path], path, all_bytes, add_ns, cells, exclusive=True))
    outside = any(key[0] == () for key in regions.bytes)
    if outside and len(regions.paths) > 1:
        row = _region_row(regions, OUTSIDE, [()], None, all_bytes, add_ns, cells, exclusive=True)
        row["byte_imbalance"] = None  # serial work is to be expected there
        rows.append(row)
        rows.append({**row, "exclusive": False})
    return [rows[0], *sorted(rows[1:], key=lambda row: (-row["bytes"], row["region"], row["exclusive"]))]


def _region_row(
    regions: _Regions,
    name: str,
    paths: list[Path],
    path: Path | None,
    all_bytes: float,
    add_ns: float,
    cells: dict[Path, list[tuple[int, int]]],
    *,
    exclusive: bool = False,
) -> dict[str, Any]:
    counted, untouched = regions.executions(path) if path is not None else (0, 0)
    own = regions.times_of(path) if path is not None else []
    scaled = {quantity: round(regions.sum_of(paths, None, quantity, scaled=True)) for quantity in (*QUANTITIES, *MIX)}
    plain = sum(regions.sum_of(paths, None, quantity) for quantity in ("read_bytes", "written_bytes"))
    row: dict[str, Any] = {
        "region": name, "name": path[-1] if path else name, "depth": len(path) - 1 if path else 0, "exclusive": exclusive,
        "executions": counted + untouched, "counted": counted, "untouched": untouched,
        "abandoned": sum(time.abandoned for time in own), "recursions": sum(time.recursions for time in own), **scaled,
    }  # fmt: skip
    row |= _shares(row, all_bytes)
    row |= _intensity(row, regions.has_mix)
    unknown = any(regions.factor(other) is None for other in paths)
    row["estimated"] = any(regions.factor(other) != 1.0 for other in paths)
    row["counted_share"] = plain / row["bytes"] if row["bytes"] and not unknown else None
    accesses = regions.sum_of(paths, None, "loads") + regions.sum_of(paths, None, "stores")
    estimated = regions.sum_of(paths, None, "estimated_accesses")
    row["estimated_accesses_share"] = estimated / accesses if accesses else None
    errors = [_standard_error(cells.get(other, []), sum(regions.executions(other))) for other in paths]
    if row["estimated"]:
        known = [error for error, other in zip(errors, paths, strict=True) if regions.factor(other) != 1.0]
        row["bytes_error"] = None if any(error is None for error in known) else sum(e**2 for e in known if e) ** 0.5
    else:
        row["bytes_error"] = 0.0
    _add_times(row, regions, paths, path, add_ns, exclusive=exclusive)
    events = [sum(time.events[number] for time in own) for number in range(4)]
    shares = [time.event_share_ppm for time in own if time.event_share_ppm]
    row |= {f"event_{number}": events[number] if shares else None for number in range(4)}
    row["event_share"] = min(shares) / 1e6 if shares else None
    return row


def _add_times(
    row: dict[str, Any], regions: _Regions, paths: list[Path], path: Path | None, add_ns: float, *, exclusive: bool
) -> None:
    threads = regions.threads(paths)
    row["threads"] = len(threads)
    row |= dict.fromkeys(
        ("thread_ns", "wall_ns", "bytes_per_thread_second", "bytes_per_second", "corrected_bytes_per_second", "correction",
         "counting_cost_share", "byte_imbalance", "time_imbalance", "least_ns", "most_ns")
    )  # fmt: skip
    moved = {
        thread: sum(regions.sum_of(paths, thread, name, scaled=True) for name in ("read_bytes", "written_bytes"))
        for thread in threads
    }
    working = _working(moved)
    row["byte_imbalance"] = imbalance([moved[thread] for thread in working])
    if path is None:
        return
    times = {
        thread: regions.self_ns(path, thread) if exclusive else regions.inclusive_ns(path, thread) for thread in threads
    }
    own = regions.times_of(path)
    row["least_ns"] = min((time.least_ns for time in own if time.least_ns), default=None)
    row["most_ns"] = max((time.most_ns for time in own if time.most_ns), default=None)
    row["time_imbalance"] = imbalance([float(times[thread]) for thread in working])
    row["thread_ns"] = sum(times.values()) or None
    row["wall_ns"] = (
        wall_ns([(times[thread], *regions.span(path, thread)) for thread in threads if times[thread]]) or None
    )
    row["bytes_per_thread_second"] = _per_second(row["bytes"], row["thread_ns"])
    row["bytes_per_second"] = _per_second(row["bytes"], row["wall_ns"])
    counted, untouched = row["counted"], row["untouched"]
    if not row["bytes_per_second"]:
        return
    cost_ns = regions.sum_of(paths, None, "adds") * add_ns
    if counted and untouched and not exclusive:
        counted_ns = sum(time.counted_ns for time in own)
        untouched_ns = sum(time.untouched_ns for time in own)
        if untouched_ns:
            # The same executions without counting: all of them would have taken executions × an untouched one's time.
            untouched_total = untouched_ns / untouched * (counted + untouched)
            row["corrected_bytes_per_second"] = row["bytes_per_second"] * row["thread_ns"] / untouched_total
            row["counting_cost_share"] = (counted_ns / counted) / (untouched_ns / untouched) - 1
            row["correction"] = "untouched"
    elif add_ns and not row["estimated"]:
        cost_ns = min(cost_ns, 0.9 * row["thread_ns"])
        row["corrected_bytes_per_second"] = row["bytes_per_second"] * row["thread_ns"] / (row["thread_ns"] - cost_ns)
        row["counting_cost_share"] = cost_ns / (row["thread_ns"] - cost_ns)
        row["correction"] = "calibrated"


def _working(moved: dict[Thread, float]) -> list[Thread]:
    """Threads that share the work: not those added up after their end, and not a main thread that only waits."""
    single = {thread: value for thread, value in moved.items() if thread[1] != 0}
    busiest = max(single.values(), default=0.0)
    mains = {process: min(t for p, t in single if p == process) for process, _ in single}
    return [
        thread
        for thread, value in single.items()
        if not (thread[1] == mains[thread[0]] and value < IDLE_SHARE * busiest and len(single) > 2)
    ]


def _program_time(capture: Capture, regions: _Regions, row: dict[str, Any]) -> dict[str, Any]:
    """Of the whole program only wall-clock time is known: from the first image's birth to the last one's end."""
    statuses = capture.table("count_status").to_pylist()
    begin = min((status["born_ns"] for status in statuses), default=0)
    end = max((status["ended_ns"] or capture.end_ns for status in statuses), default=0)
    duration = end - begin if end > begin else None
    return {"wall_ns": duration, "bytes_per_second": _per_second(row["bytes"], duration), "executions": len(statuses)}


def _sampled_cells(capture: Capture, regions: _Regions) -> dict[Path, list[tuple[int, int]]]:
    """(executions counted, bytes) by thread and epoch of each region that was sampled."""
    sampled = {path for (path, _), time in regions.times.items() if time.untouched}
    if not sampled:
        return {}
    counts = capture.counts
    epochs = bool(capture.kinds().get("count_epoch"))
    places = counts.places(epochs=epochs)
    sums = counts.place_sums(epochs=epochs)
    moved = sums["read_bytes"] + sums["written_bytes"]
    found: dict[tuple[Path, int, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for number in range(len(places)):
        path = counts.path_of(int(places.image[number]), int(places.node[number]))
        key = (path, int(places.process[number]), int(places.thread[number]), int(places.epoch[number]))
        found[key][1] += int(moved[number])
    for row in capture.table("region_time_records").to_pylist():
        if (row["epoch"] > 0) == epochs:
            path = counts.path_of(row["image"], row["node"])
            found[path, row["process"], row["thread"], row["epoch"]][0] += row["counted"]
    cells: dict[Path, list[tuple[int, int]]] = defaultdict(list)
    for (path, *_), (counted, n_bytes) in found.items():
        if path in sampled:
            cells[path].append((counted, n_bytes))
    return cells


def _by_thread(capture: Capture, regions: _Regions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names = {(row["process"], row["thread"]): row["name"] for row in capture.table("threads").to_pylist()}
    everywhere = [*regions.paths, ()] if () not in regions.paths else list(regions.paths)
    all_bytes = sum(regions.sum_of(everywhere, None, name, scaled=True) for name in ("read_bytes", "written_bytes"))
    outermost = [path for path in regions.paths if len(path) == 1]
    totals, crossed = [], []
    for thread in regions.threads(everywhere):
        head = {"process": thread[0], "thread": thread[1], "name": names.get(thread)}
        row = {**head, **{n: round(regions.sum_of(everywhere, thread, n, scaled=True)) for n in QUANTITIES}}
        row |= _shares(row, all_bytes)
        row["thread_ns"] = sum(regions.inclusive_ns(path, thread) for path in outermost) or None
        in_regions = sum(
            regions.sum_of([path for path in everywhere if path], thread, name, scaled=True)
            for name in ("read_bytes", "written_bytes")
        )
        row["bytes_per_thread_second"] = _per_second(in_regions, row["thread_ns"])
        totals.append(row)
    for path in sorted(regions.paths - {()}):
        for thread in regions.threads(regions.below(path)):
            time = regions.times.get((path, thread), _Time())
            row = {"region": " / ".join(path), "process": thread[0], "thread": thread[1], "name": names.get(thread)}
            row |= {"executions": time.counted + time.untouched, "counted": time.counted, "untouched": time.untouched}
            row |= {n: round(regions.sum_of(regions.below(path), thread, n, scaled=True)) for n in QUANTITIES}
            row |= _shares(row, all_bytes)
            row["thread_ns"] = regions.inclusive_ns(path, thread) or None
            row["bytes_per_thread_second"] = _per_second(row["bytes"], row["thread_ns"])
            crossed.append(row)
    return sorted(totals, key=lambda row: -row["bytes"]), sorted(
        crossed, key=lambda row: (row["region"], -row["bytes"])
    )


# ---- code ----------------------------------------------------------------------------------------------------------------
def _by_code(capture: Capture, regions: _Regions) -> dict[str, list[dict[str, Any]]]:
    """Sums over threads and regions by where the code is; counted executions stand for all, as in the regions."""
    import numpy as np

    from ..capture.counting import FLOAT, VECTOR, Executed, factorized

    counts = capture.counts
    static = capture.table("count_sites")
    n_sites = static.num_rows
    factors = regions.place_factors()
    runs = _site_runs(counts, factors)
    # Of sites with known bytes the sums follow from the executions; those whose bytes were added up are few.
    once = Executed(
        np.zeros(n_sites, dtype=np.int64), np.arange(n_sites), runs, runs * counts.sites["bytes"].astype(np.int64)
    )
    by_site = {
        name: np.where(counts.summed_sites, 0, values.astype(np.int64))
        for name, values in counts.accesses(once).items()
        if name in QUANTITIES
    }
    bulk = counts.by_site(of=counts.summed_sites)
    for name, values in counts.accesses(bulk).items():
        if name in QUANTITIES:
            by_site[name] = by_site[name] + _scaled_sums(bulk.what, values, bulk.place, factors, n_sites)
    moved = by_site["read_bytes"] + by_site["written_bytes"]
    all_bytes = float(moved.sum())
    used = np.flatnonzero(runs)
    flags = counts.sites["flags"]
    names = static.column("name").to_pylist()
    files = static.column("file").to_pylist()
    modules = [counts.module_paths.get(module, module) for module in counts.modules]
    function_names = counts.functions.column("name").to_pylist()
    function_lines = counts.functions.select(["file", "line"]).to_pylist()
    function, module = counts.sites["function"], counts.sites["module"]

    def rows_by(codes: Any, first: Any, describe: Any) -> list[dict[str, Any]]:
        found = []
        sums = {name: _sums(codes, by_site[name][used], len(first)) for name in QUANTITIES}
        vector = _sums(codes, np.where(flags[used] & VECTOR, moved[used], 0), len(first))
        for number, index in enumerate(first.tolist()):
            at = int(used[index])
            row = {**describe(at), **{name: int(sums[name][number]) for name in QUANTITIES}}
            row |= _shares(row, all_bytes)
            row["vector_share"] = float(vector[number]) / row["bytes"] if row["bytes"] else None
            found.append(row)
        return sorted(found, key=lambda row: -row["bytes"])

    found: dict[str, list[dict[str, Any]]] = {}
    blocks = _block_sums(capture, factors)
    entries = blocks["entries"]
    codes, first = factorized(function[used])
    found["by_function"] = rows_by(
        codes, first,
        lambda at: {
            "function": function_names[function[at]], "module": modules[module[at]], **function_lines[function[at]],
            "executions": entries.get(int(function[at])), **blocks["mix_of_function"](int(function[at])),
        },
    )  # fmt: skip
    for row in found["by_function"]:
        row |= _intensity(row, row["float_results"] is not None)
    name_codes = static.column("name").combine_chunks()
    name_index = _indices(name_codes)
    codes, first = factorized(name_index[used], module[used], (counts.sites_inlined())[used])
    found["by_scope"] = rows_by(
        codes, first,
        lambda at: {"function": names[at], "module": modules[module[at]], "inlined": bool(counts.sites_inlined()[at])},
    )  # fmt: skip
    codes, first = factorized(
        _indices(static.column("file").combine_chunks())[used],
        counts.sites["line"][used],
        name_index[used],
        module[used],
    )
    found["by_line"] = rows_by(
        codes, first,
        lambda at: {"file": files[at], "line": int(counts.sites["line"][at]), "function": names[at], "module": modules[module[at]]},
    )  # fmt: skip
    most = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(most, codes, runs[used])
    key_of = {
        (files[int(used[i])], int(counts.sites["line"][used[i]]), names[int(used[i])]): int(most[n])
        for n, i in enumerate(first.tolist())
    }
    for row in found["by_line"]:
        row["executions"] = key_of[row["file"], row["line"], row["function"]]
    block = counts.sites["block"]
    codes, first = factorized(block[used])
    is_float = (flags & FLOAT) != 0
    found["by_block"] = rows_by(
        codes, first,
        lambda at: {
            "function": function_names[function[at]], "module": modules[module[at]], "block": int(counts.blocks["block"][block[at]]),
            "line": int(counts.blocks["line"][block[at]]) or int(counts.sites["line"][at]),
            "depth": int(counts.blocks["depth"][block[at]]), "executions": int(blocks["executions"][block[at]]) or int(runs[at]),
            "_block": int(block[at]),
        },
    )[:MOST_BLOCKS]  # fmt: skip
    scalar = _sums(block, np.where(is_float & ((flags & VECTOR) == 0), moved, 0), len(counts.blocks["block"]))
    floats = _sums(block, np.where(is_float, moved, 0), len(counts.blocks["block"]))
    for row in found["by_block"]:
        number = row.pop("_block")
        row |= {"float_bytes": int(floats[number]), "scalar_float_bytes": int(scalar[number])}
        row |= blocks["mix_of_block"](number)
        row |= _intensity(row, row["float_results"] is not None)
    return found


def _site_runs(counts: Counts, factors: Any) -> Any:
    """Executions of each site in all places; counted executions stand for all."""
    import numpy as np

    groups = counts.by_group()
    totals = _scaled_sums(groups.what, groups.executions, groups.place, factors, counts.n_groups)
    runs = np.zeros(len(counts.site_group), dtype=np.int64)
    there = counts.site_group >= 0
    runs[there] = totals[counts.site_group[there]]
    return runs


def _indices(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], pa.string()).dictionary_encode()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype("int64")


def _block_sums(capture: Capture, factors: Any) -> dict[str, Any]:
    """Executions of blocks and functions, and their operations."""
    import numpy as np

    counts = capture.counts
    groups = counts.by_group()
    totals = _scaled_sums(groups.what, groups.executions, groups.place, factors, counts.n_groups)
    n_blocks = len(counts.blocks["block"])
    executions = np.zeros(n_blocks, dtype=np.int64)
    there = counts.block_group >= 0
    executions[there] = totals[counts.block_group[there]]
    function = counts.blocks["function"]
    # A function runs as often as its first block; only tables with the mix list every block.
    entries: dict[int, int] = {}
    seen: set[int] = set()
    for at, number in enumerate(function.tolist()):
        if number not in seen:
            seen.add(number)
            if counts.blocks["has_mix"][at]:
                entries[number] = int(executions[at])
    has_mix = counts.blocks["has_mix"]
    mixes = {name: counts.blocks[name].astype(np.int64) * executions for name in MIX}
    n_functions = counts.functions.num_rows
    by_function = {name: _sums(function, values, n_functions) for name, values in mixes.items()}
    function_has = np.zeros(n_functions, dtype=bool)
    function_has[function[has_mix]] = True

    def mix_of_function(number: int) -> dict[str, int | None]:
        return {name: int(by_function[name][number]) if function_has[number] else None for name in MIX}

    def mix_of_block(number: int) -> dict[str, int | None]:
        return {name: int(mixes[name][number]) if has_mix[number] else None for name in MIX}

    return {
        "executions": executions,
        "entries": entries,
        "mix_of_function": mix_of_function,
        "mix_of_block": mix_of_block,
    }


def _unseen(capture: Capture, regions: _Regions) -> list[dict[str, Any]]:
    """Calls of functions that no counted module defines."""
    from ..capture.counting import CALL

    counts = capture.counts
    runs = _site_runs(counts, regions.place_factors())
    runs[counts.sites["kind"] != CALL] = 0
    defined = {
        name
        for name, sound in zip(
            counts.functions.column("linkage_name").to_pylist(),
            counts.functions.column("sound").to_pylist(),
            strict=True,
        )
        if sound
    }
    table = capture.table("count_sites")
    callees = table.column("callee").to_pylist()
    callers = table.column("name").to_pylist()
    sums: dict[str, int] = defaultdict(int)
    most: dict[str, tuple[int, str]] = {}
    total = 0
    for at in runs.nonzero()[0].tolist():
        total += int(runs[at])
        callee = callees[at]
        if not callee or callee in defined:
            continue
        sums[callee] += int(runs[at])
        most[callee] = max(most.get(callee, (0, "")), (int(runs[at]), callers[at] or ""))
    libraries = dict(
        zip(*(capture.table("count_callees").column(name).to_pylist() for name in ("callee", "library")), strict=True)
    )
    rows = [
        {"callee": callee, "library": libraries.get(callee), "calls": calls_made, "share": calls_made / total if total else 0.0,
         "caller": most[callee][1]}
        for callee, calls_made in sums.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["calls"], row["callee"]))


def _over_time(capture: Capture, regions: _Regions) -> list[dict[str, Any]]:
    """What each epoch added, by region."""
    if not capture.kinds().get("count_epoch"):
        return []
    counts = capture.counts
    places, sums = counts.places(epochs=True), counts.place_sums(epochs=True)
    rows: dict[tuple[int, Path], dict[str, Any]] = {}
    spans = {row["epoch"]: (row["begin_ns"], row["end_ns"]) for row in capture.table("count_epochs").to_pylist()}

    def row_of(epoch: int, path: Path) -> dict[str, Any]:
        begin, end = spans.get(epoch, (0, 0))
        empty = {
            "epoch": epoch, "begin_s": (begin - capture.begin_ns) / 1e9, "end_s": (end - capture.begin_ns) / 1e9,
            "region": " / ".join(path) or OUTSIDE, "read_bytes": 0, "written_bytes": 0, "thread_ns": 0,
        }  # fmt: skip
        return rows.setdefault((epoch, path), empty)

    for number in range(len(places)):
        path = counts.path_of(int(places.image[number]), int(places.node[number]))
        row = row_of(int(places.epoch[number]), path)
        factor = regions.factor(path)
        for name in ("read_bytes", "written_bytes"):
            value = int(sums[name][number])
            row[name] += value if factor == 1.0 else round(value * (factor or 0.0))
    for record in capture.table("region_time_records").to_pylist():
        if record["epoch"]:
            path = counts.path_of(record["image"], record["node"])
            row_of(record["epoch"], path)["thread_ns"] += (
                record["counted_ns"] + record["untouched_ns"] + record["open_ns"] + record["joined_ns"]
            )
    for row in rows.values():
        # Counters of loops are added before or after them: an epoch may end in between, and one be below nothing.
        row["bytes_per_second"] = _per_second(
            max(0, row["read_bytes"] + row["written_bytes"]), (row["end_s"] - row["begin_s"]) * 1e9
        )
    return [rows[key] for key in sorted(rows)]


# ---- quality ---------------------------------------------------------------------------------------------------------------
def _losses(statuses: list[dict[str, Any]]) -> bool:
    return any(row["functions_refused"] or row["regions_refused"] or row["refused"] for row in statuses)


def _notes(capture: Capture, regions: _Regions, *, sampled: bool, figures: dict[str, Any]) -> list[str]:
    notes = []
    if sampled:
        counted = sum(time.counted for time in regions.times.values())
        untouched = sum(time.untouched for time in regions.times.values())
        notes.append(
            f"Regions were sampled: {counted:,} of {counted + untouched:,} executions were counted, and bytes are estimates for all."
        )
        without = sorted({" / ".join(path) for path, _ in regions.times if regions.factor(path) is None})
        if without:
            notes.append(f"No execution of {', '.join(without[:5])} was counted: its bytes are not known and left out.")
    damaged = counts_damaged(capture)
    if damaged:
        notes.append(f"{damaged} functions have damaged static tables: what they did is left out.")
    missing = {
        row["path"]: row["status"] for row in capture.table("counted_modules").to_pylist() if row["status"] != "read"
    }
    for path, status in missing.items():
        why = {
            "missing": "its file is gone",
            "replaced": "its file was replaced",
            "no_tables": "its file has no tables",
        }
        notes.append(f"What {path} counted is left out: {why.get(status, status)}.")
    negative = int((capture.counts.by_group().executions < 0).sum())
    if negative:
        notes.append(
            f"{negative} counts are below zero: a thread was cut off between two counters that are read together; "
            "sums that hold them are off by as much."
        )
    share = figures["estimated_accesses_share"]
    if share and share > 0.01:
        notes.append(
            f"{share:.0%} of the loads and stores are copies, fills and comparisons, taken as one for 8 bytes; their bytes are exact."
        )
    statuses = capture.table("count_status").to_pylist()
    wanted = len(figures["events"])
    failed = [row for row in statuses if row["events_open"].bit_count() < wanted]
    if wanted and failed:
        import os

        notes.append(
            f"{wanted - failed[0]['events_open'].bit_count()} of {wanted} events could not be opened: {os.strerror(failed[0]['event_error']).lower()}."
        )
    merged = sum(row["threads_merged"] for row in statuses)
    if merged:
        notes.append(
            f"{merged} threads were added up when they ended: they are one row (thread 0), and in no imbalance."
        )
    return notes


def counts_damaged(capture: Capture) -> int:
    sound = capture.table("count_functions").column("sound").to_pylist()
    return sum(not value for value in sound)


DESCRIPTOR = AnalysisDescriptor(
    name="bandwidth",
    question="How many bytes does each region, function and line move, how fast, and how evenly over threads?",
    needs=("block_count",),
    run=bandwidth,
)
