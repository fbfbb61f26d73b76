"""First touches at the place that a programmer would name.

The instruction that faulted is known for every fault, its callers only for those with a sampled call stack. Where the
instruction is the program's own, nothing is estimated. Where it is `memset`, an allocator or a wrapper, a fault without a stack has
the caller of the nearest sampled stack in time of the same thread and function, for one call touches many pages in a row; without
any such stack it stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ..arrays import Bools, Columns, Floats, Integers, Ints, Uint32s
    from ..capture.model.call_stacks import CallStacks, Frame
    from ..capture.model.call_stacks import Place as FoundPlace
    from ..capture.reader import Capture
    from ._matching import PlaceLists

Place = tuple[str | None, str | None, str | None, int | None, str | None]
"""(function, module, file, line) and what was behind it."""


@dataclass
class Touches:
    """What was placed at one place."""

    bytes: float = 0
    faults: float = 0
    bytes_variance: float = 0
    faults_variance: float = 0
    estimated: bool = False
    """Callers of some of them come from other faults' stacks."""
    threads: set[tuple[int, int]] = field(default_factory=set)

    def add(self, other: Touches) -> None:
        self.bytes += other.bytes
        self.faults += other.faults
        self.bytes_variance += other.bytes_variance
        self.faults_variance += other.faults_variance
        self.estimated = self.estimated or other.estimated
        self.threads |= other.threads


@dataclass(frozen=True)
class RowPlaces:
    """The place of each placing fault."""

    places: list[Place]
    of_row: Ints
    estimated: Bools
    """Which rows have the caller of another fault's stack."""

    def chosen(self, mask: Bools) -> RowPlaces:
        return RowPlaces(self.places, self.of_row[mask], self.estimated[mask])

    @property
    def lists(self) -> PlaceLists:
        """Function, file and line of each row."""
        of_row = [self.places[number] for number in self.of_row.tolist()]
        return [place[0] for place in of_row], [place[2] for place in of_row], [place[3] for place in of_row]


def row_places(capture: Capture, placing: pa.Table) -> RowPlaces:
    """The place of each of all placing faults (`placing_faults`): of one without a stack others' stacks tell."""
    import numpy as np

    from ..capture.model.call_stacks import call_stacks

    stacks = call_stacks(capture)
    columns = {name: placing.column(name).to_numpy() for name in ("code", "process", "thread", "time_ns", "stack")}
    codes, code_of_row = np.unique(columns["code"], return_inverse=True)
    places: list[Place] = []
    number: dict[Place, int] = {}

    def place_number(place: Place) -> int:
        if place not in number:
            number[place] = len(places)
            places.append(place)
        return number[place]

    # By instruction: its place where it is the program's own, and the library function where it is not.
    of_code, library = np.zeros(len(codes), dtype=np.int64), np.full(len(codes), -1, dtype=np.int64)
    functions: dict[tuple[str | None, str | None], int] = {}
    for at, code in enumerate(codes.tolist()):
        frames = stacks.frames_of_code(code)
        leaf = frames[0]
        if all(stacks.is_skipped(frame) for frame in frames):
            of_code[at] = place_number((leaf["function"], leaf["module"], leaf["file"], leaf["line"], None))
            library[at] = functions.setdefault((leaf["function"], leaf["module"]), len(functions))
        else:
            of_code[at] = place_number(_place(frames, stacks.place(frames)))
    of_row, estimated = of_code[code_of_row], np.zeros(len(code_of_row), dtype=bool)
    hidden = np.flatnonzero(library[code_of_row] >= 0)
    if len(hidden):
        found, direct = _callers(stacks, columns, hidden, library[code_of_row], place_number)
        known = found >= 0
        of_row[hidden[known]] = found[known]
        estimated[hidden[known]] = ~direct[known]
    return RowPlaces(places, of_row, estimated)


def places_of_rows(placing: pa.Table, rows: RowPlaces) -> dict[Place, Touches]:
    """Placing faults by place, where each has one: those of a selection."""
    import numpy as np

    from ._fault_sampling import variances

    places, of_row, estimated = rows.places, rows.of_row, rows.estimated
    columns = {name: placing.column(name).to_numpy() for name in ("process", "thread", "bytes", "one_bytes", "weight")}
    group_of_row, first = _groups([of_row, columns["process"], columns["thread"]])
    groups = np.stack([of_row[first], columns["process"][first], columns["thread"][first]], axis=1).astype(np.int64)
    sums = [np.bincount(group_of_row, weights=w.astype(np.float64), minlength=len(groups)) for w in
            (columns["bytes"], columns["weight"], estimated, variances(columns["weight"], columns["one_bytes"]),
             variances(columns["weight"], 1.0))]  # fmt: skip
    result: dict[Place, Touches] = {}
    for (place, process, thread), size, faults, guessed, bytes_variance, faults_variance in zip(
        groups.tolist(), *(s.tolist() for s in sums), strict=True
    ):
        entry = result.setdefault(places[place], Touches())
        entry.bytes += size
        entry.faults += faults
        entry.bytes_variance += bytes_variance
        entry.faults_variance += faults_variance
        entry.estimated = entry.estimated or guessed > 0
        entry.threads.add((process, thread))
    return result


def touch_places(capture: Capture, placing: pa.Table) -> dict[Place, Touches]:
    """Placing faults by place; `placing` is from `placing_faults`, of `Replay.fault_groups` or of faults.

    Of groups those of hidden instructions are walked over one by one where some of them have a call stack.
    """
    import numpy as np

    from ..capture.model.call_stacks import call_stacks
    from ._fault_sampling import variances

    if "time_ns" in placing.column_names:
        return places_of_rows(placing, row_places(capture, placing))
    stacks = call_stacks(capture)
    codes = _Codes(stacks, np.unique(placing.column("code").to_numpy()))
    columns = {
        name: placing.column(name).to_numpy()
        for name in ("code", "process", "thread", "bytes", "one_bytes", "weight", "rows")
    }
    sums = _Sums()
    seen = np.ones(placing.num_rows, dtype=bool)
    callers = _Callers(capture, codes, placing)
    if callers.known:
        hidden = codes.library[columns["code"]] >= 0
        callers.add_to(sums, columns["process"][hidden], columns["thread"][hidden])
        seen = ~hidden
    mine = {name: values[seen] for name, values in columns.items()}
    sums.add(
        codes.place[mine["code"]], mine["process"], mine["thread"], np.zeros(len(mine["code"]), dtype=bool),
        (mine["bytes"], mine["rows"] * mine["weight"], mine["rows"] * variances(mine["weight"], mine["one_bytes"]),
         mine["rows"] * variances(mine["weight"], 1.0)),
    )  # fmt: skip
    return sums.by_place(codes.places)


class _Codes:
    """The place of each instruction, where it is the program's own, and the library function of those that are not (hidden ones)."""

    def __init__(self, stacks: CallStacks, codes: Uint32s) -> None:
        import numpy as np

        self.stacks = stacks
        self.places: list[Place] = []
        self._number: dict[Place, int] = {}
        size = int(codes.max()) + 1 if len(codes) else 0
        self.place, self.library = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
        functions: dict[tuple[str | None, str | None], int] = {}
        for code in codes.tolist():
            frames = stacks.frames_of_code(code)
            leaf = frames[0]
            if all(stacks.is_skipped(frame) for frame in frames):
                self.place[code] = self.number((leaf["function"], leaf["module"], leaf["file"], leaf["line"], None))
                self.library[code] = functions.setdefault((leaf["function"], leaf["module"]), len(functions))
            else:
                self.place[code] = self.number(_place(frames, stacks.place(frames)))

    def number(self, place: Place) -> int:
        if place not in self._number:
            self._number[place] = len(self.places)
            self.places.append(place)
        return self._number[place]

    def of_stack(self, stack: int) -> int:
        """The number of the place that a stack's fault belongs to; -1 where the stack does not say."""
        frames = self.stacks.frames(stack)
        known = any(not self.stacks.is_skipped(frame) for frame in frames)
        return self.number(_place(frames, self.stacks.place(frames))) if known else -1


class _Sums:
    """Bytes and faults by place, process and thread."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int, int], list[float]] = {}

    def add(self, place: Ints, process: Uint32s, thread: Uint32s, estimated: Bools, values: tuple[Floats, ...]) -> None:
        """`values`: bytes, faults and the variances of both, one for each row."""
        import numpy as np

        if len(place) == 0:
            return
        group, first = _groups([place, process, thread])
        keys = zip(place[first].tolist(), process[first].tolist(), thread[first].tolist(), strict=True)
        sums = [np.bincount(group, weights=w.astype(np.float64), minlength=len(first)) for w in (*values, estimated)]
        for key, *numbers in zip(keys, *(column.tolist() for column in sums), strict=True):
            entry = self._of.setdefault(key, [0.0] * len(numbers))
            self._of[key] = [a + b for a, b in zip(entry, numbers, strict=True)]

    def by_place(self, places: list[Place]) -> dict[Place, Touches]:
        result: dict[Place, Touches] = {}
        for (place, process, thread), (size, faults, bytes_variance, faults_variance, guessed) in sorted(
            self._of.items()
        ):
            result.setdefault(places[place], Touches()).add(
                Touches(size, faults, bytes_variance, faults_variance, guessed > 0, {(process, thread)})
            )
        return result


class _Callers:
    """Who called the library function of a hidden fault: its own stack, or the nearest sample in time of the same thread in the same
    function, for one call touches many pages in a row; without one, of the same process."""

    def __init__(self, capture: Capture, codes: _Codes, placing: pa.Table) -> None:
        import numpy as np

        self._capture, self._codes = capture, codes
        stack, code = placing.column("stack").to_numpy(), placing.column("code").to_numpy()
        self._stacks = np.unique(stack[(codes.library[code] >= 0) & (stack > 0)])
        self._of_stack = np.array([codes.of_stack(one) for one in self._stacks.tolist()], dtype=np.int64)
        self.known = bool((self._of_stack >= 0).any())
        self._samples: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        if self.known:
            self._find_samples(placing)

    def _find_samples(self, placing: pa.Table) -> None:
        """Times and places of the faults with a stack that says the place, by (function, process, thread) and (function, process)."""
        import numpy as np

        taken = _wanted(self._codes, self._capture.replay.stacked_faults, placing)
        place = self._place_of(taken["stack"])
        mine = {name: values[place >= 0] for name, values in taken.items()} | {"place": place[place >= 0]}
        library = self._codes.library[mine["code"]]
        for keys in ((library, mine["process"], mine["thread"]), (library, mine["process"])):
            group, first = _groups(list(keys))
            for number, at in enumerate(first.tolist()):
                rows = np.flatnonzero(group == number)  # in time order
                key = tuple(int(column[at]) for column in keys)
                self._samples[key] = (mine["time_ns"][rows].astype(np.int64), mine["place"][rows])

    def _place_of(self, stack: Uint32s) -> Ints:
        """The number of each stack's place, -1 where there is none."""
        import numpy as np

        at = np.minimum(np.searchsorted(self._stacks, stack), len(self._stacks) - 1)
        return np.where(self._stacks[at] == stack, self._of_stack[at], -1)

    def add_to(self, sums: _Sums, processes: Uint32s, threads: Uint32s) -> None:
        """All hidden faults of these threads, in one walk over the capture."""
        import numpy as np

        from ..capture.model.replay import FAULT_CLASSES
        from ._fault_sampling import variances

        owners = np.unique(processes.astype(np.uint64) << np.uint64(32) | threads.astype(np.uint64))
        replay = self._capture.replay
        for batch in replay.fault_batches():
            mine = _hidden(self._codes, batch)
            mine &= np.isin(batch["process"].astype(np.uint64) << np.uint64(32) | batch["thread"], owners)
            columns = {name: values[mine] for name, values in batch.items()}
            own = self._place_of(columns["stack"])
            found = np.where(own >= 0, own, self._nearest(columns))
            place = np.where(found >= 0, found, self._codes.place[columns["code"]])
            again = columns["class"] == FAULT_CLASSES.index("again")
            one = np.where(
                again, np.left_shift(np.uint64(1), columns["span_shift"].astype(np.uint64)),
                columns["new_pages"].astype(np.uint64) * np.uint64(replay.page_bytes),
            ).astype(np.float64)  # fmt: skip
            weight = columns["weight"]
            values = (one * weight, weight, variances(weight, one), variances(weight, 1.0))
            sums.add(place, columns["process"], columns["thread"], (found >= 0) & (own < 0), values)

    def _nearest(self, columns: Columns) -> Ints:
        import numpy as np

        found = np.full(len(columns["code"]), -1, dtype=np.int64)
        if len(found) == 0:
            return found
        library = self._codes.library[columns["code"]]
        group, first = _groups([library, columns["process"], columns["thread"]])
        for number, at in enumerate(first.tolist()):
            key = (int(library[at]), int(columns["process"][at]), int(columns["thread"][at]))
            samples = self._samples.get(key) or self._samples.get(key[:2])
            if samples is None:
                continue
            rows = np.flatnonzero(group == number)
            found[rows] = _nearest_in_time(*samples, columns["time_ns"][rows].astype(np.int64))
        return found


def _nearest_in_time(times: Ints, values: Ints, wanted: Ints) -> Ints:
    """The value of the nearest of ascending times; of two equally near the earlier one."""
    import numpy as np

    after = np.searchsorted(times, wanted)
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(times) - 1)
    later = np.abs(times[after] - wanted) < np.abs(times[before] - wanted)
    return values[np.where(later, after, before)]


def _hidden(codes: _Codes, columns: Columns) -> Bools:
    """Which of the engine's faults placed memory and lie in hidden code."""
    import numpy as np

    from ..capture.model.replay import FAULT_CLASSES
    from ._fault_sampling import PLACING

    inside = columns["code"] < len(codes.library)
    mine = inside & (codes.library[np.where(inside, columns["code"], 0)] >= 0)
    return mine & np.isin(columns["class"], [FAULT_CLASSES.index(name) for name in PLACING])


def _wanted(codes: _Codes, columns: Columns, placing: pa.Table) -> Columns:
    """The hidden ones of the faults of the processes and threads of `placing`."""
    import numpy as np

    process, thread = (placing.column(name).to_numpy().astype(np.uint64) for name in ("process", "thread"))
    owner = columns["process"].astype(np.uint64) << np.uint64(32) | columns["thread"]
    mine = _hidden(codes, columns) & np.isin(owner, np.unique(process << np.uint64(32) | thread))
    return {name: values[mine] for name, values in columns.items()}


def _callers(
    stacks: CallStacks, columns: Columns, hidden: Ints, library: Ints, place_number: Callable[[Place], int]
) -> tuple[Ints, Bools]:
    """For each hidden fault the number of its place, -1 when no stack says; and whether it had a stack of its own."""
    import numpy as np

    of_stack: dict[int, int] = {}
    for stack in np.unique(columns["stack"][hidden]).tolist():
        frames = stacks.frames(stack) if stack else []
        known = any(not stacks.is_skipped(frame) for frame in frames)
        of_stack[stack] = place_number(_place(frames, stacks.place(frames))) if known else -1
    own = np.array([of_stack[stack] for stack in columns["stack"][hidden].tolist()], dtype=np.int64)
    found = own.copy()
    # The nearest sample in time of the same thread in the same function: one call touches many pages in a row.
    for keys in (("process", "thread"), ("process",)):
        group, _ = _groups([library[hidden], *(columns[key][hidden] for key in keys)])
        order = np.lexsort((columns["time_ns"][hidden], group))
        group, times, mine = group[order], columns["time_ns"][hidden][order].astype(np.int64), found[order]
        sampled = np.flatnonzero(own[order] >= 0)
        if len(sampled) == 0:
            break
        after = np.searchsorted(sampled, np.arange(len(order)))
        best, distance = np.full(len(order), -1, dtype=np.int64), np.full(len(order), np.iinfo(np.int64).max)
        for side in (after - 1, after):
            index = sampled[np.clip(side, 0, len(sampled) - 1)]
            valid = (side >= 0) & (side < len(sampled)) & (group[index] == group)
            away = np.abs(times[index] - times)
            nearer = valid & (away < distance)
            best[nearer], distance[nearer] = own[order][index[nearer]], away[nearer]
        mine = np.where(mine >= 0, mine, best)
        found[order] = mine
    return found, own >= 0


def _groups(keys: list[Integers]) -> tuple[Ints, Ints]:
    """A number for each combination of values, and a row of each: one column after the other, which sorts integers only."""
    import numpy as np

    group = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        values, of_row = np.unique(key, return_inverse=True)
        _, group = np.unique(group * len(values) + of_row.reshape(-1), return_inverse=True)
        group = group.reshape(-1)
    _, first = np.unique(group, return_index=True)
    return group, first


def _place(frames: list[Frame], found: FoundPlace) -> Place:
    from ..capture.model.call_stacks import STANDARD_NAMES, plain_name

    behind = found["via"]
    leaf = frames[0]["function"] or ""
    if behind is None and found["function"] != leaf and not STANDARD_NAMES.match(leaf):
        behind = plain_name(leaf) or None
    return found["function"], found["module"], found["file"], found["line"], behind


def rows_by(places: dict[Place, Touches], keys: Sequence[str]) -> pa.Table:
    """Bytes, faults and threads by the first of (function, module, file, line), most bytes first; sums are kept."""
    import pyarrow as pa

    merged: dict[tuple[str | int | None, ...], tuple[Touches, dict[str, float]]] = {}
    for place, touched in places.items():
        entry, behind = merged.setdefault(place[: len(keys)], (Touches(), {}))
        entry.add(touched)
        if place[4]:
            behind[place[4]] = behind.get(place[4], 0) + touched.bytes
    order = sorted(merged.items(), key=lambda item: -item[1][0].bytes)
    types = {"function": pa.string(), "module": pa.string(), "file": pa.string(), "line": pa.uint32()}
    columns: dict[str, object] = {
        key: pa.array([place[at] for place, _ in order], type=types[key]) for at, key in enumerate(keys)
    }
    columns["bytes"] = pa.array([round(entry.bytes) for _, (entry, _) in order], type=pa.uint64())
    columns["bytes_error"] = pa.array([entry.bytes_variance**0.5 for _, (entry, _) in order], type=pa.float64())
    columns["faults"] = pa.array([round(entry.faults) for _, (entry, _) in order], type=pa.int64())
    columns["faults_error"] = pa.array([entry.faults_variance**0.5 for _, (entry, _) in order], type=pa.float64())
    columns["threads"] = pa.array([len(entry.threads) for _, (entry, _) in order], type=pa.int64())
    columns["estimated"] = pa.array([entry.estimated for _, (entry, _) in order], type=pa.bool_())
    columns["via"] = pa.array(
        [max(behind, key=lambda name: behind[name]) if behind else None for _, (_, behind) in order], type=pa.string()
    )
    return pa.table(columns)
