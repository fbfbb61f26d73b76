"""The pass of the analysis `numa` over the accesses of a capture: sums by class; `_rows` makes figures and tables of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...arrays import Uint32s
    from ...capture.model.access_pass import TaskPool, TimeGroup
    from ...capture.model.locality import AccessBatch
    from ...capture.reader import Capture
    from .._groups import Dimension

    Floats = npt.NDArray[np.float64]

BY = ("object", "line", "function", "thread", "region")
PROCESS_SHIFT_PAGES = 36


class _Shares:
    """Sums by group and class; and for the error of shares, sums of squares over windows."""

    def __init__(self, classes: int) -> None:
        import numpy as np

        self.weight = np.zeros((0, classes))
        self.bytes = np.zeros((0, classes))
        self.recorded = np.zeros(0)
        self.squares = np.zeros((0, 3))
        """Of each window's remote and compared accesses: remote², remote × compared, compared²."""
        self.windows = np.zeros(0)

    def add(
        self, group: npt.NDArray[np.int64], classes: npt.NDArray[np.uint8], weight: Floats, width: Floats, unit: Uint32s
    ) -> None:
        import numpy as np

        from ._classes import COMPARED, NUMBER, REMOTE

        n = self.weight.shape[1]
        count = max(len(self.weight), int(group.max()) + 1)
        self.weight, self.bytes = _grown(self.weight, count), _grown(self.bytes, count)
        self.squares = _grown(self.squares, count)
        self.recorded, self.windows = _grown(self.recorded, count), _grown(self.windows, count)
        cell = group * n + classes
        self.weight += np.bincount(cell, weights=weight, minlength=count * n).reshape(count, n)
        self.bytes += np.bincount(cell, weights=weight * width, minlength=count * n).reshape(count, n)
        self.recorded += np.bincount(group, minlength=count)
        # One row for each (group, window) of this batch.
        pair, of_pair = np.unique(
            group.astype(np.uint64) << np.uint64(32) | unit.astype(np.uint64), return_inverse=True
        )
        of_pair = of_pair.reshape(-1)
        is_remote = np.isin(classes, [NUMBER[name] for name in REMOTE])
        is_compared = np.isin(classes, [NUMBER[name] for name in COMPARED])
        remote = np.bincount(of_pair, weights=weight * is_remote, minlength=len(pair))
        compared = np.bincount(of_pair, weights=weight * is_compared, minlength=len(pair))
        whose = (pair >> np.uint64(32)).astype(np.int64)
        for at, product in enumerate((remote * remote, remote * compared, compared * compared)):
            self.squares[:, at] += np.bincount(whose, weights=product, minlength=count)
        self.windows += np.bincount(whose, minlength=count)


def _grown(have: Floats, count: int) -> Floats:
    import numpy as np

    if len(have) >= count:
        return have
    return np.concatenate((have, np.zeros((count - len(have), *have.shape[1:]))))


class NumaPass:
    """Accesses of each thread in their order, global variables included."""

    order: Literal["time"] = "time"
    columns = frozenset({"scalars", "codes", "objects"})

    def __init__(self, capture: Capture, *, stack: bool = False) -> None:
        import numpy as np

        from ...capture.model.locality import ThreadAccesses
        from ...capture.model.places import PagePlaces, ThreadHomes, Topology, first_touches
        from .._chosen_accesses import chosen_accesses, with_all_code
        from .._groups import named_dimension
        from ._classes import CLASSES

        self.capture, self.with_stack = capture, stack
        self.accesses = ThreadAccesses(with_all_code(capture))
        self._choice = chosen_accesses(capture, self.accesses)
        whole = capture.whole
        self.topology = Topology.of(whole)
        self.homes = ThreadHomes(whole, self.topology)
        self.touches = first_touches(whole, self.homes)
        self.pages = PagePlaces(whole, self.topology, self.homes, self.touches)
        self._dimensions: dict[str, Dimension] = {name: named_dimension(self.accesses, name) for name in BY}
        self.sums = {name: _Shares(len(CLASSES)) for name in (*BY, "program")}
        self._is_stack = np.array([key[1] == "stack" for key in self._dimensions["object"].keys], dtype=bool)
        self.of_stack = self.of_stack_bytes = 0.0
        self.not_known_binding = 0.0
        self.n_nodes = max(self.topology.numbers, default=0) + 1
        self.matrix: dict[tuple[int, int], Floats] = {}
        """By stream and the thread's home: accesses by page node, bytes by page node."""
        self.spans: dict[tuple[int, int], list[float]] = {}
        """By object and stream: lowest address, end, accesses."""
        self.object_of_page = np.full(len(self.pages.key), -1, dtype=np.int64)
        """The object that was accessed last in each generation of a page."""
        self.remote_by_page = np.zeros(len(self.pages.key))
        self._seen = np.zeros(len(self.pages.key), dtype=bool)
        self.whole = self.accesses.is_whole

    def begin(self, pool: TaskPool) -> None:
        pass

    def add(self, group: TimeGroup) -> None:
        for batch in group.batches:
            if len(batch):
                self._sum(batch, *self._classes(batch))

    def _classes(
        self, batch: AccessBatch
    ) -> tuple[
        npt.NDArray[np.uint8],
        npt.NDArray[np.int64],
        npt.NDArray[np.int16],
        npt.NDArray[np.int16],
        npt.NDArray[np.bool_],
    ]:
        import numpy as np

        from ...capture.model.places import NOT_KNOWN, PAGE_SHIFT
        from ._classes import binding_not_known, classify

        key = np.uint64(batch.process << PROCESS_SHIFT_PAGES) | batch.address.astype(np.uint64) >> np.uint64(PAGE_SHIFT)
        times = batch.time_ns.astype(np.uint64)
        generation = self.pages.find(key, times)
        home = self._homes(batch)
        if self.topology.is_numa:
            node = self.pages.nodes(generation, times)
        else:
            node = np.full(len(batch), self.topology.numbers[0] if self.topology.numbers else 0, dtype=np.int16)
        known = len(self.pages.bound) > 0
        bound = np.where(generation >= 0, self.pages.bound[np.maximum(generation, 0)], NOT_KNOWN).astype(np.int8) if known else np.full(len(batch), NOT_KNOWN, dtype=np.int8)  # fmt: skip
        classes = classify(self.topology, home, node, bound)
        if self.whole and known:
            self._mark_first_touches(batch.thread, generation, classes)
        return classes, generation, node, home, binding_not_known(classes, bound)

    def _homes(self, batch: AccessBatch) -> npt.NDArray[np.int16]:
        """The node that the thread is bound to at each access. Times of accesses are interpolated between the two time stamps of their
        record: where the thread was moved between these, it is not known on which side an access lies."""
        import numpy as np

        from ...capture.model.places import MOVING

        whose = (batch.process, batch.thread)
        if len(self.homes.states.get(whose, ())) < 2:
            return self.homes.homes(whose, batch.time_ns.astype(np.uint64))
        raw = self.accesses.capture.windows.raw
        before = self.homes.homes(whose, raw["begin_ns"][batch.window].astype(np.uint64))
        after = self.homes.homes(whose, raw["end_ns"][batch.window].astype(np.uint64))
        return np.where(before == after, before, np.int16(MOVING)).astype(np.int16)

    def _mark_first_touches(
        self, thread: int, generation: npt.NDArray[np.int64], classes: npt.NDArray[np.uint8]
    ) -> None:
        """The first access of the thread whose fault placed the page is the first touch. Others of the page are not, though times of
        accesses, which are interpolated, may say otherwise; nor is any where a system call or code that is not traced placed it."""
        import numpy as np

        from ...capture.model.places import NO, YES
        from ._classes import NUMBER

        at = np.maximum(generation, 0)
        fresh = np.flatnonzero((generation >= 0) & (self.pages.toucher[at] == thread) & ~self._seen[at])
        numbers, first = np.unique(generation[fresh], return_index=True)
        self._seen[numbers] = True
        bound, rows = self.pages.bound[numbers], fresh[first]
        classes[rows[bound == YES]] = NUMBER["first_touch"]
        classes[rows[bound == NO]] = NUMBER["unpinned_first_touch"]

    def _sum(
        self,
        batch: AccessBatch,
        classes: npt.NDArray[np.uint8],
        generation: npt.NDArray[np.int64],
        node: npt.NDArray[np.int16],
        home: npt.NDArray[np.int16],
        unknown: npt.NDArray[np.bool_],
    ) -> None:
        import numpy as np

        from ._classes import NUMBER, REMOTE

        weight = np.asarray(batch.weight, dtype=np.float64)
        width = np.asarray(batch.bytes, dtype=np.float64)
        numbers = {name: np.asarray(self._dimensions[name].numbers(batch)).astype(np.int64) for name in BY}
        taken = np.ones(len(batch), dtype=bool)
        if self._choice is not None:
            taken &= np.asarray(self._choice.mask(batch))
        if not self.with_stack:
            stack = taken & self._is_stack[numbers["object"]]
            self.of_stack += float(weight[stack].sum())
            self.of_stack_bytes += float((weight * width)[stack].sum())
            taken &= ~stack
        rows = np.flatnonzero(taken)
        if not len(rows):
            return
        classes, weight, width = classes[rows], weight[rows], width[rows]
        generation, node, home = generation[rows], node[rows], home[rows]
        self.not_known_binding += float(weight[unknown[rows]].sum())
        unit = batch.unit[rows]
        for name in BY:
            self.sums[name].add(numbers[name][rows], classes, weight, width, unit)
        self.sums["program"].add(np.zeros(len(rows), dtype=np.int64), classes, weight, width, unit)
        there = node >= 0
        for whose in np.unique(home[there]).tolist():
            mine = there & (home == whose)
            cells = self.matrix.setdefault((batch.stream, whose), np.zeros((2, self.n_nodes)))
            cells[0] += np.bincount(node[mine], weights=weight[mine], minlength=self.n_nodes)
            cells[1] += np.bincount(node[mine], weights=(weight * width)[mine], minlength=self.n_nodes)
        paged = generation >= 0
        self.object_of_page[generation[paged]] = numbers["object"][rows][paged]
        remote = paged & np.isin(classes, [NUMBER[name] for name in REMOTE])
        np.add.at(self.remote_by_page, generation[remote], weight[remote])
        self._spans(batch, numbers["object"][rows], rows, weight, width)

    def _spans(
        self,
        batch: AccessBatch,
        group: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        weight: Floats,
        width: Floats,
    ) -> None:
        import numpy as np

        address = batch.address[rows].astype(np.uint64)
        order = np.argsort(group, kind="stable")
        begins = np.concatenate(([0], np.flatnonzero(np.diff(group[order])) + 1))
        low = np.minimum.reduceat(address[order], begins)
        high = np.maximum.reduceat(address[order] + width[order].astype(np.uint64), begins)
        total = np.add.reduceat(weight[order], begins)
        for number, first, end, sum_ in zip(group[order][begins].tolist(), low.tolist(), high.tolist(), total.tolist(), strict=True):  # fmt: skip
            have = self.spans.get((number, batch.stream))
            if have is None:
                self.spans[(number, batch.stream)] = [first, end, sum_]
            else:
                have[0], have[1], have[2] = min(have[0], first), max(have[1], end), have[2] + sum_

    @property
    def dimensions(self) -> dict[str, Dimension]:
        return self._dimensions
