"""What a counted program did, by path of regions and thread: the sums that `bandwidth` is made of.

Owns what belongs to a region, how times of nested and joined work are put together, and how sampled executions become totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict, cast

from ..capture.model.count_tables import MIX
from ..capture.store.settings import settings_of
from ._samples import EXACT, Error, Samples

if TYPE_CHECKING:
    from ..arrays import Floats, Ints
    from ..capture.model.counting import Counts
    from ..capture.reader import Capture

QUANTITIES = (
    "loads", "stores", "read_bytes", "written_bytes", "stack_loads", "stack_stores", "stack_read_bytes", "stack_written_bytes",
)  # fmt: skip
Path = tuple[str, ...]


class RegionTimeRow(TypedDict):
    """A row of table `region_time_records`, with `counted_event_N` and `untouched_event_N` of four events besides."""

    process: int
    image: int
    node: int
    thread: int
    epoch: int
    time_ns: int
    entered: int
    counted: int
    untouched: int
    counted_ns: int
    untouched_ns: int
    counted_self_ns: int
    untouched_self_ns: int
    abandoned: int
    recursions: int
    joined: int
    joined_ns: int
    open_ns: int
    least_ns: int
    most_ns: int
    first_ns: int
    last_ns: int
    event_share_ppm: int | None


@dataclass
class Time:
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
    events: list[int | None] = field(default_factory=lambda: [0, 0, 0, 0])
    """None: not read in all of its executions."""
    event_share_ppm: int | None = None

    def add(self, row: RegionTimeRow) -> None:
        self.entered += row["entered"]
        self.counted += row["counted"]
        self.untouched += row["untouched"]
        self.counted_ns += row["counted_ns"]
        self.untouched_ns += row["untouched_ns"]
        self.abandoned += row["abandoned"]
        self.recursions += row["recursions"]
        self.joined += row["joined"]
        self.joined_ns += row["joined_ns"]
        self.self_ns += row["counted_self_ns"] + row["untouched_self_ns"]
        self.open_ns += max(0, row["open_ns"])
        self.least_ns = min(filter(None, (self.least_ns, row["least_ns"])), default=0)
        self.most_ns = max(self.most_ns, row["most_ns"])
        self.first_ns = min(filter(None, (self.first_ns, row["first_ns"])), default=0)
        self.last_ns = max(self.last_ns, row["last_ns"], row["time_ns"] if row["open_ns"] > 0 else 0)
        if not row["counted"] + row["untouched"]:
            return
        for number in range(4):
            values = cast("dict[str, int | None]", row)
            parts = (self.events[number], values[f"counted_event_{number}"], values[f"untouched_event_{number}"])
            self.events[number] = None if None in parts else sum(part or 0 for part in parts)
        shares = [share for share in (self.event_share_ppm, row["event_share_ppm"]) if share is not None]
        self.event_share_ppm = min(shares, default=None)


@dataclass
class Span:
    """Wall-clock time of one region in one process, and what switches of regions cost."""

    union_ns: int = 0
    unspanned_ns: int = 0
    overhead_ns: int = 0
    switch_ns: int = 0

    def add(self, row: dict[str, int]) -> None:
        for name in ("union_ns", "unspanned_ns", "overhead_ns", "switch_ns"):
            setattr(self, name, getattr(self, name) + row[name])


Thread = tuple[int, int]
"""(process, thread)"""


def wall_range(processes: list[tuple[int, int, int, int]]) -> tuple[int, int]:
    """Wall-clock time of a region (at least, at most) from (at least, at most, first begin, last end) of each process.

    Processes whose spans overlap may run at the same time or in turns; groups of them follow each other.

    >>> wall_range([(10, 10, 0, 12), (8, 8, 2, 12)]), wall_range([(10, 10, 0, 10), (8, 8, 20, 28)])
    ((10, 12), (18, 18))
    """
    least = most = 0
    group: list[tuple[int, int, int, int]] = []

    def close() -> tuple[int, int]:
        low, high = max(entry[0] for entry in group), sum(entry[1] for entry in group)
        elapsed = max(entry[3] for entry in group) - min(entry[2] for entry in group)
        return low, max(low, min(high, elapsed) if len(group) > 1 else high)

    for entry in sorted(processes, key=lambda entry: entry[2]):
        if group and entry[2] > max(other[3] for other in group):
            low, high = close()
            least, most, group = least + low, most + high, []
        group.append(entry)
    if group:
        low, high = close()
        least, most = least + low, most + high
    return least, most


class Regions:
    """Everything by path of regions and thread."""

    def __init__(self, capture: Capture) -> None:
        self.counts: Counts = capture.counts
        # What a counted execution stands for is a matter of the whole run.
        self._whole = Regions(capture.whole) if capture.selection else None
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
        self.times: dict[tuple[Path, Thread], Time] = {}
        for record in _totals(capture.table("region_time_records").to_pylist()):
            path = self.counts.path_of(record["image"], record["node"])
            self.times.setdefault((path, (record["process"], record["thread"])), Time()).add(record)
        self.paths = {path for path, _ in (*self.bytes, *self.times)}
        for path in list(self.paths):  # a region that only holds others
            self.paths |= {path[:depth] for depth in range(1, len(path))}
        self._below: dict[Path, list[Path]] = defaultdict(list)
        for path in sorted(
            self.paths
        ):  # sums of floats, and which reason comes first, must not depend on the order of a set
            for depth in range(len(path) + 1):
                if path:
                    self._below[path[:depth]].append(path)
        self._children: dict[Path, list[Path]] = defaultdict(list)
        for path in sorted(self.paths):
            if path:
                self._children[path[:-1]].append(path)
        self._times: dict[Path, list[Time]] = defaultdict(list)
        self._threads: dict[Path, set[Thread]] = defaultdict(set)
        self._sums: dict[Path, dict[str, int]] = {}
        self._factors: dict[Path, float | None] = {}
        self._spans: dict[tuple[Path, int], Span] = {}
        self.has_spans = False
        for row in capture.table("region_spans").to_pylist():
            span = self._spans.setdefault((self.counts.path_of(row["image"], row["node"]), row["process"]), Span())
            span.add(row)
            self.has_spans = True
        for (path, thread), time in self.times.items():
            self._times[path].append(time)
            self._threads[path].add(thread)
        for (path, thread), row in self.bytes.items():
            self._threads[path].add(thread)
            total = self._sums.setdefault(path, dict.fromkeys(row, 0))
            for name, value in row.items():
                total[name] += value
        self.samples = Samples(capture, self.counts)
        self.sampling = str((settings_of(capture.meta, "block_count") or {}).get("sampling", "all"))
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

    def times_of(self, path: Path) -> list[Time]:
        return self._times.get(path, [])

    def executions(self, path: Path) -> tuple[int, int]:
        """(counted, untouched) executions that ended."""
        mine = self.times_of(path)
        return sum(time.counted for time in mine), sum(time.untouched for time in mine)

    def factor(self, path: Path) -> float | None:
        """What a counted execution stands for; None: none was counted."""
        if self._whole is not None:
            return self._whole.factor(path)
        if path not in self._factors:
            counted, untouched = self.executions(path)
            own = self._sums.get(path, {})
            moved = own.get("read_bytes", 0) + own.get("written_bytes", 0)
            self._factors[path] = self.samples.factor(path, counted + untouched, counted, moved)
        return self._factors[path]

    def error(self, paths: Iterable[Path]) -> Error:
        """Of the bytes of regions taken together."""
        whole = self._whole or self
        sampled = [path for path in paths if whole.executions(path)[1]]
        if not sampled:
            return EXACT
        if self._whole is not None:
            return Error(None, None, "executions were sampled over the whole run: a selected part has no error")
        total = sum(self.sum_of(sampled, None, name, scaled=True) for name in ("read_bytes", "written_bytes"))
        parts = [(path, sum(self.executions(path)), self.executions(path)[0]) for path in sampled]
        return self.samples.error(parts, total, self.sampling)

    @property
    def is_sampled(self) -> bool:
        """Whether some executions were not counted."""
        return any(time.untouched for time in (self._whole or self).times.values())

    def place_factors(self) -> Floats:
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

    def own_cost_ns(self, path: Path) -> int | None:
        """What entering and leaving regions inside a region cost: taken off its times. None: not known."""
        found = [span for (other, _), span in self._spans.items() if other == path]
        return sum(span.overhead_ns for span in found) if found else None

    def entry_cost_ns(self) -> float | None:
        """What entering and leaving a region cost on average, as measured in the program."""
        entered = sum(time.entered for (path, _), time in self.times.items() if path)
        spent = sum(span.switch_ns for (path, _), span in self._spans.items() if path)
        return spent / entered if entered and self.has_spans else None

    def wall_range(self, path: Path, times: dict[Thread, int], *, exclusive: bool) -> tuple[int, int]:
        """(at least, at most): time during which at least one thread was in a region, from the times of its threads."""
        processes = []
        for process in sorted({process for process, _ in times}):
            mine = {thread: ns for thread, ns in times.items() if thread[0] == process and ns}
            if not mine:
                continue
            total = sum(mine.values())
            spans = {thread: self.span(path, thread) for thread in mine}
            first, last = min(begin for begin, _ in spans.values()), max(end for _, end in spans.values())
            low, high = wall_range([(ns, ns, *spans[thread]) for thread, ns in mine.items()])
            span = self._spans.get((path, process))
            if len(mine) == 1 and next(iter(mine))[1] != 0:
                low = high = total
            elif span is not None:
                # Switches inside it are taken off the threads' times; of the union they are the same part.
                union = span.union_ns * total / (total + span.overhead_ns) if total else 0
                most = min(high, round(union + span.unspanned_ns))
                low, high = (low, max(low, most)) if exclusive else (max(low, min(round(union), high)), max(low, most))
            processes.append((low, high, first, last))
        return wall_range(processes)

    def span(self, path: Path, thread: Thread) -> tuple[int, int]:
        times = [self.times[other, thread] for other in self.below(path) if (other, thread) in self.times]
        begins = [time.first_ns for time in times if time.first_ns]
        return min(begins, default=0), max((time.last_ns for time in times), default=0)


def place_factors(capture: Capture) -> Floats:
    """What a counted execution stands for, of each row of `capture.counts.places()`; 0 where none was counted."""
    return Regions(capture).place_factors()


def _totals(rows: list[RegionTimeRow]) -> list[RegionTimeRow]:
    """Those of the whole run; of an image that has none (a recorder that was killed) its epochs."""
    with_totals = {row["image"] for row in rows if row["epoch"] == 0}
    return [row for row in rows if row["epoch"] == 0 or row["image"] not in with_totals]


def sums_of(codes: Ints, values: Ints, count: int) -> Ints:
    import numpy as np

    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, codes, values.astype(np.int64))
    return sums


def scaled_sums(codes: Ints, values: Ints, place: Ints, factors: Floats, count: int) -> Ints:
    """Like `sums_of`, each row times the factor of its place; whole numbers as long as every factor is 1."""
    import numpy as np

    if (factors == 1.0).all():
        return sums_of(codes, values, count)
    sums = np.zeros(count)
    np.add.at(sums, codes, values * factors[place])
    return np.rint(sums).astype(np.int64)
