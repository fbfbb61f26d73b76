"""The cache model, all levels with all policies, against lists: every layout of a set, whatever the addresses."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens.capture.model.locality import CacheModel

LINE = 64
ADDRESSES = (0, 0x5500_0000_0000, 0x7F00_0000_0000, 2**63)
"""Far apart: tags have several high halves."""


class SlowCache:
    """Sets are lists of [block, is dirty], the next to leave last."""

    def __init__(self, sets: int, ways: int, policy: str) -> None:
        self.ways, self.policy, self.random = ways, policy, 0x9E3779B97F4A7C15
        self.sets: list[list[list[int]]] = [[] for _ in range(sets)]

    def find(self, block: int) -> tuple[list[list[int]], list[int] | None]:
        entries = self.sets[block % len(self.sets)]
        return entries, next((entry for entry in entries if entry[0] == block), None)

    def access(self, block: int, is_store: bool) -> bool:
        entries, entry = self.find(block)
        if entry is None:
            return False
        entry[1] |= is_store
        if self.policy == "lru":
            entries.remove(entry)
            entries.insert(0, entry)
        return True

    def insert(self, block: int, is_store: bool) -> list[int] | None:
        entries, left = self.sets[block % len(self.sets)], None
        if len(entries) == self.ways:
            left = entries.pop(self.draw() if self.policy == "random" else -1)
        entries.insert(0, [block, is_store])
        return left

    def draw(self) -> int:
        x = self.random
        x ^= x << 13 & 2**64 - 1
        x ^= x >> 7
        x ^= x << 17 & 2**64 - 1
        self.random = x
        return x % self.ways

    def remove(self, block: int) -> list[int] | None:
        entries, entry = self.find(block)
        if entry is not None:
            entries.remove(entry)
        return entry


class SlowModel:
    """The rules of native/core/locality/caches.h, without prefetchers."""

    def __init__(self, levels: list[tuple[int, int, bool, str]], cores: int, inclusive: bool) -> None:
        shared = [SlowCache(s, w, p) if is_shared else None for s, w, is_shared, p in levels]
        self.shared = [cache is not None for cache in shared]
        self.cores = [[shared[k] or SlowCache(s, w, p) for k, (s, w, _, p) in enumerate(levels)] for _ in range(cores)]
        self.inclusive, self.levels = inclusive, len(levels)
        self.misses, self.write_backs, self.invalidations = ([0] * len(levels) for _ in range(3))

    def access(self, core: int, block: int, is_store: bool) -> None:
        caches = self.cores[core]
        if is_store:
            for other, theirs in enumerate(self.cores):
                for k in range(self.levels):
                    if other != core and not self.shared[k] and theirs[k].remove(block):
                        self.invalidations[k] += 1
        hit = 0
        while hit < self.levels and not caches[hit].access(block, is_store and hit == 0):
            self.misses[hit] += 1
            hit += 1
        for k in reversed(range(hit)):
            self.insert(core, k, block, is_store and k == 0)

    def insert(self, core: int, level: int, block: int, is_store: bool) -> None:
        left = self.cores[core][level].insert(block, is_store)
        if left is None:
            return
        gone, is_dirty = left
        if self.inclusive:
            for k in range(level):
                above = {
                    id(caches[k]): caches[k] for caches in (self.cores if self.shared[level] else [self.cores[core]])
                }
                for cache in above.values():
                    entry = cache.remove(gone)
                    if entry is not None:
                        self.invalidations[k] += 1
                        is_dirty |= entry[1]
        if not is_dirty:
            return
        self.write_backs[level] += 1
        for cache in self.cores[core][level + 1 :]:
            _, entry = cache.find(gone)
            if entry is not None:
                entry[1] = True
                break


ways = st.sampled_from([1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 20])
geometry = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 5, 8]), ways, st.sampled_from(["lru", "fifo", "random"])),
    min_size=1,
    max_size=4,
)
accesses = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(ADDRESSES), st.booleans(), st.integers(0, 2)),
    min_size=1,
    max_size=400,
)


@settings(max_examples=1500, deadline=None)
@given(geometry, st.integers(0, 4), st.booleans(), st.integers(1, 3), st.integers(1, 4), accesses)
def test_levels_equal_lists(
    shape: list[tuple[int, int, str]],
    private: int,
    inclusive: bool,
    cores: int,
    regions: int,
    trace: list[tuple[int, int, bool, int]],
) -> None:
    levels = [(sets, ways, k >= private, policy) for k, (sets, ways, policy) in enumerate(shape)]
    slow = SlowModel(levels, cores, inclusive)
    model = CacheModel(
        levels=[(s * w * LINE, w, is_shared, policy) for s, w, is_shared, policy in levels],
        cores=cores,
        inclusive=inclusive,
    )
    # The same trace has one high half of all tags, two, or more.
    blocks = [(ADDRESSES[ADDRESSES.index(base) % regions] // LINE) + line for line, base, _, _ in trace]
    for block, (_, _, is_store, core) in zip(blocks, trace, strict=True):
        slow.access(core % cores, block, is_store)
    model.add(
        np.array(blocks, dtype=np.uint64) * np.uint64(LINE),
        is_store=np.array([store for _, _, store, _ in trace], dtype=np.uint8),
        cores=np.array([core % cores for _, _, _, core in trace], dtype=np.uint32),
    )
    found = model.columns()
    assert [int(found[f"misses_{k + 1}"][0]) for k in range(len(levels))] == slow.misses
    totals = model.totals()
    assert [row["write_backs"] for row in totals] == slow.write_backs
    assert [row["invalidations"] for row in totals] == slow.invalidations
