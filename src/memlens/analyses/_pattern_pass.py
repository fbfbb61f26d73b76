"""The pass of analysis `patterns` over the accesses of a capture: sums by (instruction, object) and by (function, object)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..capture.model.decoded import BATCH_ACCESSES
from ..capture.model.locality import (
    CLASSES,
    REUSE_EARLIER,
    AccessBatch,
    AccessClasses,
    CacheModel,
    Footprint,
    MissCurve,
    ReuseDistances,
    ThreadAccesses,
)  # fmt: skip

if TYPE_CHECKING:
    from ..arrays import Array, Floats, Ints, Uint32s, Uint64s
    from ._chosen_accesses import ChosenAccesses
    from .caches import Level

PART_BATCHES = 4
"""Batches that are looked at in one piece, where some are left out: reuses up to half a million accesses are seen."""
SAMPLES = 256
"""Addresses kept of each group and batch, drawn at random, to see later which offsets of elements are used."""
MOST_CORES = 64
STRIDED, IRREGULAR = CLASSES.index("strided"), CLASSES.index("irregular")


class Samples(NamedTuple):
    """Accesses drawn from a batch."""

    pairs: Uint32s
    addresses: Uint64s
    widths: Uint32s
    times_ns: Uint64s
    process: int


class Sums:
    """Totals by group number that grow with the number of groups."""

    def __init__(self, names: Sequence[str]) -> None:
        import numpy as np

        self._columns = {name: np.zeros(0) for name in names}

    def add(self, name: str, groups: Uint32s, values: Array | None = None) -> None:
        import numpy as np

        more = np.bincount(groups, weights=values)
        have = self._columns[name]
        if len(more) > len(have):
            have = np.concatenate((have, np.zeros(len(more) - len(have))))
        have[: len(more)] += more
        self._columns[name] = have

    def get(self, name: str, count: int) -> Floats:
        import numpy as np

        have = self._columns[name]
        return np.concatenate((have, np.zeros(max(0, count - len(have)))))[:count]


class PatternPass:
    """What one pass collects; `_pattern_rows` makes tables of it."""

    def __init__(
        self, accesses: ThreadAccesses, levels: Sequence[Level], *, line_bytes: int, most_accesses: int, just_above: float
    ) -> None:  # fmt: skip
        import numpy as np

        from ._groups import named_dimension
        from .traffic import CodeNames

        self.accesses, self.levels, self.line_bytes = accesses, tuple(levels), line_bytes
        self.names = CodeNames(accesses.capture)
        self.function_of_code, self.functions = self.names.functions()
        self.objects = named_dimension(accesses, "object")
        self.pair_code: list[int] = []
        self.pair_object: list[int] = []
        self._pair_index: dict[int, int] = {}
        self._function_index: dict[tuple[int, int], int] = {}
        self.pair_function = np.zeros(0, dtype=np.uint32)
        self.level_lines = [level.bytes // line_bytes for level in self.levels]
        first = self.levels[0]
        self.n_sets = max(1, first.bytes // line_bytes // first.ways) if first.ways else 1
        self._near = [(lines, int(lines * just_above)) for lines in self.level_lines]
        self.sums = Sums(["recorded", "weight", "bytes", "stores", "repeats", "pairs_seen", "misses_full",
                          *(f"near_{at}" for at in range(len(self._near)))])  # fmt: skip
        self.visits = Sums(["count", "bytes"])
        self.classes = AccessClasses()
        self.model = CacheModel(
            levels=[(first.bytes, first.ways, False, "lru")],
            line_bytes=line_bytes,
            cores=min(MOST_CORES, max(1, len(accesses.streams))),
        )
        self.footprint = Footprint(has_windows=False)
        self.curve = MissCurve()
        self._reuse = [ReuseDistances(block_bytes=line_bytes) for _ in accesses.streams]
        self._last_unit: dict[int, int] = {}
        self._sets: dict[int, Any] = {}
        self._random = np.random.default_rng(1)
        self.samples: list[Samples] = []
        self._every = max(1, -(-accesses.recorded // most_accesses))
        self._done: dict[int, int] = {}
        self._part: dict[int, int] = {}
        """By stream: accesses so far, and the part that was looked at last."""
        self.taken, self._executed, self.no_reuse = 0, 0.0, 0
        self.is_chosen: list[bool] | None = None
        """By number of a pair; None: all of them."""
        self.of_lines = False
        """Single lines of functions are chosen: what is known by function is not theirs."""

    def choose(self, chosen: ChosenAccesses) -> None:
        """Only pairs of this code and these objects have rows."""
        self.is_chosen = [
            (chosen.codes is None or bool(chosen.codes[code])) and (chosen.groups is None or bool(chosen.groups[thing]))
            for code, thing in zip(self.pair_code, self.pair_object, strict=True)
        ]
        self.of_lines = chosen.is_line

    @property
    def executed(self) -> float:
        """Executed accesses that those looked at stand for."""
        if self.is_chosen is None:
            return self._executed
        return float(self.sums.get("weight", len(self.is_chosen))[self.is_chosen].sum())

    @property
    def looked_at(self) -> int:
        if self.is_chosen is None:
            return self.taken
        return int(self.sums.get("recorded", len(self.is_chosen))[self.is_chosen].sum())

    # ---- the walk ----
    def add(self, batch: AccessBatch) -> None:
        """The next accesses of their thread; some of many are left out."""
        if not len(batch):
            return
        at = self._done.get(batch.stream, 0)
        self._done[batch.stream] = at + len(batch)
        part = at // (PART_BATCHES * BATCH_ACCESSES)
        if part % self._every:
            return
        self._take(batch, is_new=self._every > 1 and self._part.get(batch.stream) != part)
        self._part[batch.stream] = part

    def _number_pairs(self, codes: Uint32s, objects: Uint32s) -> Uint32s:
        import numpy as np

        keys = codes.astype(np.uint64) << np.uint64(32) | objects
        wanted, inverse = np.unique(keys, return_inverse=True)
        numbers = np.empty(len(wanted), dtype=np.uint32)
        fresh = []
        for at, key in enumerate(wanted.tolist()):
            number = self._pair_index.get(key)
            if number is None:
                number = self._pair_index[key] = len(self.pair_code)
                self.pair_code.append(key >> 32)
                self.pair_object.append(key & 0xFFFFFFFF)
                whose = (int(self.function_of_code[key >> 32]), key & 0xFFFFFFFF)
                fresh.append(self._function_index.setdefault(whose, len(self._function_index)))
            numbers[at] = number
        if fresh:
            self.pair_function = np.concatenate((self.pair_function, np.array(fresh, dtype=np.uint32)))
        of_access: Ints = inverse.reshape(-1)
        return numbers[of_access]

    @property
    def function_keys(self) -> list[tuple[int, int]]:
        """(function, object) of each number of the second kind."""
        return list(self._function_index)

    def _distances(self, batch: AccessBatch, is_new: bool) -> Uint32s:
        """Reuse distance of each access in lines, within its window."""
        import numpy as np

        reuse = self._reuse[batch.stream]
        cuts = np.flatnonzero(np.diff(batch.unit)) + 1
        if is_new or self._last_unit.get(batch.stream) != int(batch.unit[0]):
            reuse.begin_window()
        self._last_unit[batch.stream] = int(batch.unit[-1])
        addresses = np.ascontiguousarray(batch.key_address)
        if not len(cuts):
            whole: Uint32s = reuse.add(addresses, intervals=False)[0]
            return whole
        parts = []
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(addresses)], strict=True):
            if begin:
                reuse.begin_window()
            parts.append(reuse.add(addresses[begin:end], intervals=False)[0])
        return np.concatenate(parts)

    def _take(self, batch: AccessBatch, *, is_new: bool) -> None:
        """`is_new`: something was left out before it."""
        import numpy as np

        codes = np.minimum(self.accesses.codes(batch), np.uint32(len(self.function_of_code) - 1))
        pairs = self._number_pairs(codes, self.objects.numbers(batch))
        addresses, widths = np.ascontiguousarray(batch.key_address), np.ascontiguousarray(batch.bytes)
        stores = np.ascontiguousarray(batch.is_store)
        distances = self._distances(batch, is_new)
        sums = self.sums
        sums.add("recorded", pairs)
        sums.add("weight", pairs, batch.weight)
        sums.add("bytes", pairs, widths)
        sums.add("stores", pairs, stores)
        missed = distances >= self.level_lines[0]
        sums.add("misses_full", pairs[missed])
        for at, (lines, above) in enumerate(self._near):
            sums.add(f"near_{at}", pairs[(distances >= lines) & (distances < above)])
        self.curve.add(distances)
        self.no_reuse += int((distances >= REUSE_EARLIER).sum())  # the line's first, or its window's first
        self.classes.add(batch.stream, pairs.astype(np.uint64), addresses, stores, np.ascontiguousarray(batch.unit))
        # The first byte's line stands for an access here and in distances, so that both miss alike but for the sets.
        self.model.add(
            addresses, is_store=stores, cores=np.full(len(batch), batch.stream % MOST_CORES, dtype=np.uint32),
            groups=pairs, sites=batch.pc,
        )  # fmt: skip
        functions = self.pair_function[pairs]
        self.footprint.add(
            addresses, bytes=widths, classes=np.full(len(batch), IRREGULAR, dtype=np.uint8), groups=functions
        )
        self._count_sets(functions, addresses)
        self._repeats(batch, pairs, addresses)
        self._count_visits(functions, addresses, widths, distances)
        self.taken += len(batch)
        self._executed += float(batch.weight.sum())

    def _count_sets(self, functions: Uint32s, addresses: Uint64s) -> None:
        import numpy as np

        sets = (addresses // np.uint64(self.line_bytes) % np.uint64(self.n_sets)).astype(np.int64)
        used = np.bincount(functions.astype(np.int64) * self.n_sets + sets)
        counts = np.concatenate((used, np.zeros(-len(used) % self.n_sets))).reshape(-1, self.n_sets)
        for at in np.flatnonzero(counts.any(axis=1)).tolist():
            self._sets[at] = self._sets.get(at, 0) + counts[at]

    def sets_of(self, number: int) -> float | None:
        """Sets that accesses spread over: 1 / the chance that two of them fall into one."""
        counts = self._sets.get(number)
        return None if counts is None else float(counts.sum() ** 2 / (counts**2).sum())

    def _repeats(self, batch: AccessBatch, pairs: Uint32s, addresses: Uint64s) -> None:
        """Executions at the address of the one before, and some addresses of each group, spread over the batch."""
        import numpy as np

        # Sorting is fast for 16 bits.
        order = np.argsort(pairs.astype(np.uint16) if int(pairs.max()) < 1 << 16 else pairs, kind="stable")
        of, at = pairs[order], addresses[order]
        follows = of[1:] == of[:-1]
        self.sums.add("pairs_seen", of[1:][follows])
        self.sums.add("repeats", of[1:][follows & (at[1:] == at[:-1])])
        begins = np.concatenate(([0], np.flatnonzero(~follows) + 1, [len(of)]))
        counts = np.diff(begins)
        kept = np.flatnonzero(counts * 100 >= len(of))
        if not len(kept):
            return
        drawn = (self._random.random((len(kept), SAMPLES)) * counts[kept, None]).astype(np.int64)
        picks = np.unique((begins[kept, None] + drawn).reshape(-1))
        where = order[picks]
        self.samples.append(
            Samples(pairs[where], batch.address[where], batch.bytes[where], batch.time_ns[where], batch.process)
        )

    def _count_visits(self, functions: Uint32s, addresses: Uint64s, widths: Uint32s, distances: Uint32s) -> None:
        import numpy as np

        unit = np.uint64(max(1, self.line_bytes // 64))
        line = addresses // np.uint64(self.line_bytes)
        first = (addresses % np.uint64(self.line_bytes)) // unit
        count = np.minimum((widths + unit - np.uint64(1)) // unit, np.uint64(64) - first).astype(np.uint64)
        ones = np.where(count >= 64, np.uint64(2**64 - 1), (np.uint64(1) << (count % np.uint64(64))) - np.uint64(1))
        masks = ones << first
        order = np.argsort(line, kind="stable")
        line, far = line[order], distances[order] >= self.level_lines[0]
        new = np.concatenate(([True], line[1:] != line[:-1]))
        begins = np.flatnonzero(new | far)
        used = np.bitwise_or.reduceat(masks[order], begins)
        # A visit that goes on from the batch before is not counted, nor one that may go on in the next.
        counted = far[begins] & (order[begins] < 3 * len(order) // 4)
        whose = functions[order[begins]][counted]
        bits = np.unpackbits(used[counted].view(np.uint8)).reshape(-1, 64).sum(axis=1)
        self.visits.add("count", whose)
        self.visits.add("bytes", whose, bits * float(unit))
