"""Analysis `zoom_location`: hot regions of memory and how well they are reused (MemGaze, section IV-C2).

The zoom tree, from all memory down: a region is divided into pages; a *hot subregion* is a maximal run of contiguous pages, each with at least
one access, that has at least `threshold` of the region's accesses. Pages shrink from level to level, down to `stop_bytes`. A region is
final when it is no larger than that, when its pages are, or when no part of it is hot.

An array that is swept has accesses everywhere and a hot run nowhere: windows touch some of its pages, and none of these runs is hot. So what lies between two hot
parts of a region is a part too (*spread*, not divided further), if its runs have `threshold` of the region's accesses together. What lies outside all
parts of a region is its `cold_accesses`; table ``left_out`` has what no final region covers, by object.

Accesses are those that are not constant (section V-A). Of each final region, with blocks of `block_bytes`:

    hotness_percent        its share of all accesses
    reuse_distance_*       D of its reuses: other blocks, of any region, between two accesses to a block (as in `locality`)
    region_distance_*      the same counting only blocks of the region: the region's own locality
    unobservable           its accesses that are their window's first to a block: nobody knows when it was used before
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NotRequired, TypedDict

from ..errors import UsageError
from ..registry import AnalysisDescriptor, Option
from .intervals import power_of_two

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Integers, Ints, Uint8s, Uint32s, Uint64s
    from ..capture.model.locality import AccessBatch, ReuseDistances, ThreadAccesses
    from ..capture.reader import Capture
    from ..results import Cell, Key, Result, Row
    from ._groups import Dimension

THRESHOLD = 0.1
STOP_BYTES = 4096
BLOCK_BYTES = 64
PAGES = 16
"""A region is divided into about this many pages."""
NO_REGION = -1


class Node(TypedDict):
    """A region of the tree: a range of blocks."""

    node: int
    parent: int | None
    depth: int
    first: int
    last: int
    begin: int
    end: int
    accesses: int
    blocks: int
    page_bytes: int | None
    cold_accesses: int
    is_final: bool
    is_spread: bool
    next_page_bytes: NotRequired[int | None]


class ZoomTree:
    """The tree over blocks and how often each was accessed; both ascending, without accesses of none.

    >>> import numpy as np
    >>> tree = ZoomTree(np.array([0, 1, 1000]), np.array([60, 10, 30]), block_bytes=64, threshold=0.2, stop_bytes=128)
    >>> [(node["begin"], node["end"], node["accesses"]) for node in tree.nodes if node["is_final"]]
    [(0, 128, 70), (64000, 64064, 30)]
    """

    def __init__(self, blocks: Uint64s, counts: Ints, *, block_bytes: int, threshold: float, stop_bytes: int) -> None:
        import numpy as np

        self._blocks, self._shift = blocks.astype(np.uint64), block_bytes.bit_length() - 1
        self._sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self._threshold, self._stop_bytes = threshold, stop_bytes
        self.nodes: list[Node] = []
        if len(blocks):
            self._grow()

    def _grow(self) -> None:
        waiting = [self._node(0, len(self._blocks), None, 0)]
        while waiting:
            node = waiting.pop(0)
            page_bytes = node.pop("next_page_bytes")
            first, last = node["first"], node["last"]
            span = node["end"] - node["begin"]
            if page_bytes is None:
                page_bytes = max(self._stop_bytes, 1 << max(0, (span // PAGES - 1).bit_length()))
            runs = [] if span <= self._stop_bytes else self._runs(first, last, page_bytes)
            least = self._threshold * node["accesses"]
            hot = [(a, b) for a, b in runs if self._sums[b] - self._sums[a] >= least]
            if not hot:
                continue
            node.update({"is_final": False, "page_bytes": page_bytes})
            # All memory is no region that lies together.
            spread = [] if node["parent"] is None else self._spread(runs, hot, least)
            node["cold_accesses"] = node["accesses"] - sum(int(self._sums[b] - self._sums[a]) for a, b in hot + spread)
            for a, b in spread:
                part = self._node(a, b, node["node"], node["depth"] + 1)
                part["is_spread"] = True
                part.pop("next_page_bytes")
            for a, b in hot:
                child = self._node(a, b, node["node"], node["depth"] + 1)
                # A part that is as large as the whole would be divided into the same pages for ever.
                smaller = page_bytes // PAGES
                size = child["end"] - child["begin"]
                child["next_page_bytes"] = max(
                    self._stop_bytes, min(smaller, 1 << max(0, (size // PAGES - 1).bit_length()))
                )
                if page_bytes <= self._stop_bytes:
                    child.pop("next_page_bytes")
                    continue
                waiting.append(child)

    def _spread(self, runs: list[tuple[int, int]], hot: list[tuple[int, int]], least: float) -> list[tuple[int, int]]:
        """What lies before, between and behind hot runs, where that is hot together."""
        chosen = set(hot)
        parts = [list(group) for is_hot, group in itertools.groupby(runs, key=chosen.__contains__) if not is_hot]
        ranges = [(part[0][0], part[-1][1]) for part in parts]
        return [(a, b) for a, b in ranges if self._sums[b] - self._sums[a] >= least]

    def _node(self, first: int, last: int, parent: int | None, depth: int) -> Node:
        node: Node = {
            "node": len(self.nodes), "parent": parent, "depth": depth, "first": first, "last": last,
            "begin": int(self._blocks[first]) << self._shift, "end": (int(self._blocks[last - 1]) + 1) << self._shift,
            "accesses": int(self._sums[last] - self._sums[first]), "blocks": last - first, "page_bytes": None,
            "cold_accesses": 0, "is_final": True, "is_spread": False, "next_page_bytes": None,
        }  # fmt: skip
        self.nodes.append(node)
        return node

    def _runs(self, first: int, last: int, page_bytes: int) -> list[tuple[int, int]]:
        """Maximal runs of contiguous pages with accesses, as ranges of blocks."""
        import numpy as np

        shift = max(0, page_bytes.bit_length() - 1 - self._shift)
        pages = self._blocks[first:last] >> np.uint64(shift)
        cuts = np.flatnonzero(np.diff(pages) > 1) + 1
        edges = [first, *(cuts + first).tolist(), last]
        return list(itertools.pairwise(edges))


class _Histogram:
    """Accesses of each block, merged now and then: memory follows the number of blocks."""

    def __init__(self) -> None:
        import numpy as np

        self._parts: list[tuple[Uint64s, Ints]] = []
        self._held = 0
        self.blocks, self.counts = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)

    def add(self, blocks: Uint64s) -> None:
        import numpy as np

        found, counts = np.unique(blocks, return_counts=True)
        self._parts.append((found, counts))
        self._held += len(found)
        if self._held > 2 * len(self.blocks) + (1 << 20):
            self.merge()

    def merge(self) -> None:
        import numpy as np

        blocks = np.concatenate([self.blocks, *(part for part, _ in self._parts)])
        counts = np.concatenate([self.counts, *(part for _, part in self._parts)])
        self.blocks, inverse = np.unique(blocks, return_inverse=True)
        self.counts = np.bincount(inverse.reshape(-1), weights=counts, minlength=len(self.blocks)).astype(np.int64)
        self._parts, self._held = [], 0


class _Regions:
    """Second pass: distances, code and objects of the final regions."""

    def __init__(self, accesses: ThreadAccesses, finals: list[Node], block_bytes: int) -> None:
        import numpy as np

        from ._groups import named_dimension

        self._accesses, self._block_bytes = accesses, block_bytes
        self._begins = np.array([node["begin"] for node in finals], dtype=np.uint64)
        self._ends = np.array([node["end"] for node in finals], dtype=np.uint64)
        self.count = len(finals)
        self.code, self.objects = named_dimension(accesses, "line"), named_dimension(accesses, "object")
        self.of_code: dict[tuple[int, int], int] = {}
        self.of_object: dict[tuple[int, int], int] = {}
        self.left_out: dict[tuple[int, int], int] = {}
        """By object: accesses in no final region."""
        self.all = _Distances(self.count)
        self.own = _Distances(self.count)
        self.unobservable = np.zeros(self.count, dtype=np.int64)
        self._engines: dict[tuple[int, int], ReuseDistances] = {}
        self._unit: dict[tuple[int, int], int] = {}

    def find(self, addresses: Uint64s) -> Ints:
        import numpy as np

        if not self.count:
            return np.full(len(addresses), NO_REGION)
        at = np.searchsorted(self._begins, addresses, side="right").astype(np.int64) - 1
        inside = (at >= 0) & (addresses < self._ends[np.maximum(at, 0)])
        return np.where(inside, at, NO_REGION)

    def _measure(self, key: tuple[int, int], addresses: Uint64s, units: Uint32s) -> Uint32s:
        """Distances of consecutive accesses of a stream, each window for itself."""
        import numpy as np

        from ..capture.model.locality import ReuseDistances

        engine = self._engines.setdefault(key, ReuseDistances(block_bytes=self._block_bytes))
        cuts = np.concatenate(([0], np.flatnonzero(np.diff(units)) + 1, [len(units)])).tolist()
        parts = []
        for begin, end in itertools.pairwise(cuts):
            if self._unit.get(key) != int(units[begin]):
                engine.begin_window()
                self._unit[key] = int(units[begin])
            parts.append(engine.add(np.ascontiguousarray(addresses[begin:end]), intervals=False)[0])
        return np.concatenate(parts)

    def add(self, batch: AccessBatch, classes: Uint8s) -> None:
        import numpy as np

        from ..capture.model.locality import CLASSES, REUSE_EARLIER

        keys = batch.key_address
        region = np.where(classes == CLASSES.index("constant"), NO_REGION, self.find(keys))
        distances = self._measure((batch.stream, NO_REGION), keys, batch.unit)
        known = distances < REUSE_EARLIER
        inside = region >= 0
        self.all.add(region[inside & known], distances[inside & known])
        np.add.at(self.unobservable, region[inside & ~known], 1)
        # Of the region alone: its accesses, constants among them too, since they keep blocks in use.
        where = self.find(keys)
        for number in np.unique(where[where >= 0]).tolist():
            mine = where == number
            own = self._measure((batch.stream, number), keys[mine], batch.unit[mine])
            counted = (own < REUSE_EARLIER) & inside[mine]
            self.own.add(np.full(int(counted.sum()), number), own[counted])
        outside = (where < 0) & (classes != CLASSES.index("constant"))
        objects = self.objects.numbers(batch)
        if inside.any():
            _count(self.of_code, region[inside], self.code.numbers(batch)[inside])
            _count(self.of_object, region[inside], objects[inside])
        if outside.any():
            _count(self.left_out, np.zeros(int(outside.sum()), dtype=np.uint64), objects[outside])


def _count(counts: dict[tuple[int, int], int], region: Integers, what: Uint32s) -> None:
    import numpy as np

    pairs, found = np.unique(region.astype(np.uint64) << np.uint64(32) | what.astype(np.uint64), return_counts=True)
    for pair, count in zip(pairs.tolist(), found.tolist(), strict=True):
        key = (pair >> 32, pair & 0xFFFFFFFF)
        counts[key] = counts.get(key, 0) + count


class _Distances:
    def __init__(self, count: int) -> None:
        import numpy as np

        self.reuses, self.total = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.most = np.zeros(count, dtype=np.int64)

    def add(self, region: Ints, distances: Uint32s) -> None:
        import numpy as np

        np.add.at(self.reuses, region, 1)
        np.add.at(self.total, region, distances.astype(np.int64))
        np.maximum.at(self.most, region, distances.astype(np.int64))

    def of(self, region: int) -> tuple[float | None, int | None]:
        reuses = int(self.reuses[region])
        return (int(self.total[region]) / reuses, int(self.most[region])) if reuses else (None, None)


def check_share(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise UsageError(
            f"invalid threshold {threshold}: expected a share of accesses", hint="above 0 and up to 1: 0.1 is 10 %"
        )


def zoom_location(
    capture: Capture,
    *,
    threshold: float = THRESHOLD,
    stop_bytes: int = STOP_BYTES,
    block_bytes: int = BLOCK_BYTES,
    site_classes: Mapping[str, Uint8s] | None = None,
) -> Result:
    """Zooms into hot memory.

    Parameters
    ----------
    threshold
        A part of a region is hot with this share of the region's accesses.
    stop_bytes
        Smallest page, a power of two: regions of this size are not divided.
    block_bytes
        Block of reuse distances, a power of two.

    Returns
    -------
    Result
        Tables ``regions`` (final ones, hottest first), ``tree`` (all), ``code`` and ``objects`` (what touches a region, and what lies there),
        ``left_out`` (accesses in no region, by object).
    """
    from ..capture.model.locality import CLASSES, Classifier, ThreadAccesses

    check_share(threshold)
    block_shift = power_of_two(block_bytes, "block_bytes")
    power_of_two(stop_bytes, "stop_bytes")
    if stop_bytes < block_bytes:
        raise UsageError(
            f"stop_bytes={stop_bytes} is less than a block of {block_bytes} bytes", hint="give a larger stop_bytes="
        )
    import numpy as np

    accesses = ThreadAccesses(capture)
    classes = Classifier(accesses, site_classes)
    histogram = _Histogram()
    for batch in accesses:
        moving = batch.key_address[classes(batch) != CLASSES.index("constant")]
        histogram.add(moving >> np.uint64(block_shift))
    histogram.merge()
    tree = ZoomTree(
        histogram.blocks, histogram.counts, block_bytes=block_bytes, threshold=threshold, stop_bytes=stop_bytes
    )
    finals = sorted((node for node in tree.nodes if node["is_final"]), key=lambda node: int(node["begin"]))
    found = _Regions(accesses, finals, block_bytes)
    for batch in accesses:
        found.add(batch, classes(batch))
    return _result(accesses, tree, finals, found, origin=classes.origin, total=int(histogram.counts.sum()),
                   settings={"threshold": threshold, "stop_bytes": stop_bytes, "block_bytes": block_bytes})  # fmt: skip


def _place(accesses: ThreadAccesses, key: int) -> tuple[int, int]:
    """(process, address) of a key address."""
    from ..capture.model.locality import PROCESS_SHIFT

    processes = list(accesses.process_numbers)
    number = key >> PROCESS_SHIFT
    # Addresses of the first process are as they are, whatever their upper bits.
    if number < len(processes):
        return processes[number], key & ((1 << PROCESS_SHIFT) - 1)
    return processes[0] if processes else 0, key


def _result(
    accesses: ThreadAccesses,
    tree: ZoomTree,
    finals: list[Node],
    found: _Regions,
    *,
    origin: str,
    total: int,
    settings: dict[str, object],
) -> Result:
    from ..results import Quality, Result

    whole = accesses.is_whole
    numbered = sorted(range(len(finals)), key=lambda at: -finals[at]["accesses"])
    number = {at: rank for rank, at in enumerate(numbered)}
    code = _shares(found.of_code, found.code, number, finals)
    objects = _shares(found.of_object, found.objects, number, finals)
    tables = {
        "regions": _region_table(accesses, finals, numbered, found, total, code, objects, whole=whole),
        "tree": _tree_table(accesses, tree, {finals[at]["node"]: rank for at, rank in number.items()}, total),
        "code": _table(code, ("region", "function", "module", "file", "line", "accesses", "share")),
        "objects": _table(objects, ("region", "object", "kind", "accesses", "share")),
        "left_out": _table(_left_out(found, total), ("object", "kind", "accesses", "share")),
    }
    in_regions = sum(node["accesses"] for node in finals)
    figures = {**settings, "accesses": total, "recorded_accesses": accesses.recorded, "regions": len(finals),
               "accesses_in_regions": in_regions, "cold_accesses": total - in_regions, "everything_recorded": whole,
               "class_origin": origin, "damaged_windows": accesses.damaged}  # fmt: skip
    notes = []
    if accesses.damaged:
        notes.append(f"{accesses.damaged} windows are damaged and were left out.")
    if origin != "static":
        notes.append("Which accesses are constant, and left out, is inferred from the addresses of each instruction.")
    if not whole:
        notes.append("Accesses are those that windows recorded; distances are within windows.")
    exact = whole and not accesses.damaged and origin == "static"
    return Result(
        "zoom_location", figures, tables, accesses.capture.quality.joined(Quality(exact=exact, notes=tuple(notes)))
    )


def _shares(
    counts: dict[tuple[int, int], int], dimension: Dimension, number: dict[int, int], finals: list[Node]
) -> list[Row]:
    """By region, its most frequent first."""
    rows: list[tuple[tuple[int, int], Row]] = [
        ((number[at], -count),
         {"region": number[at], **dict(zip(dimension.names, dimension.keys[what], strict=True)), "accesses": count,
          "share": count / finals[at]["accesses"]})
        for (at, what), count in counts.items()
    ]  # fmt: skip
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def _left_out(found: _Regions, total: int) -> list[Row]:
    """By object, groups of one name together; ``share`` of all accesses."""
    sums: dict[Key, int] = {}
    for (_, what), count in found.left_out.items():
        key = found.objects.keys[what]
        sums[key] = sums.get(key, 0) + count
    return [
        {**dict(zip(found.objects.names, key, strict=True)), "accesses": count, "share": count / total}
        for key, count in sorted(sums.items(), key=lambda item: -item[1])
    ]


def _table(rows: list[Row], names: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa

    kinds = {"region": pa.uint32(), "line": pa.uint32(), "accesses": pa.uint64(), "share": pa.float64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    return pa.Table.from_pylist(rows, schema=schema)


REGION_FIELDS: dict[str, str] = {
    "region": "uint32", "process": "uint32", "address": "uint64", "bytes": "uint64", "accesses": "uint64",
    "hotness_percent": "double", "blocks": "uint64", "accesses_per_block": "double", "reuses": "uint64",
    "reuse_distance_mean": "double", "reuse_distance_max": "uint64", "region_distance_mean": "double",
    "region_distance_max": "uint64", "unobservable": "uint64", "function": "string", "file": "string", "line": "uint32",
    "object": "string", "depth": "uint32", "is_spread": "bool",
}  # fmt: skip
TREE_FIELDS: dict[str, str] = {
    "node": "uint32", "parent": "uint32", "depth": "uint32", "process": "uint32", "address": "uint64", "bytes": "uint64",
    "page_bytes": "uint64", "accesses": "uint64", "hotness_percent": "double", "blocks": "uint64", "cold_accesses": "uint64",
    "region": "uint32", "is_spread": "bool",
}  # fmt: skip


def _schema(fields: dict[str, str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in fields.items()])


def _region_table(
    accesses: ThreadAccesses,
    finals: list[Node],
    numbered: list[int],
    found: _Regions,
    total: int,
    code: list[Row],
    objects: list[Row],
    *,
    whole: bool,
) -> pa.Table:
    import pyarrow as pa

    first_code, first_object = _firsts(code), _firsts(objects)
    rows = []
    for rank, at in enumerate(numbered):
        node = finals[at]
        process, address = _place(accesses, node["begin"])
        mean, most = found.all.of(at)
        own_mean, own_most = found.own.of(at)
        top = first_code.get(rank, {})
        rows.append(
            {"region": rank, "process": process, "address": address, "bytes": node["end"] - node["begin"],
             "accesses": node["accesses"], "hotness_percent": 100 * node["accesses"] / total, "blocks": node["blocks"],
             "accesses_per_block": node["accesses"] / node["blocks"], "reuses": int(found.all.reuses[at]),
             "reuse_distance_mean": mean, "reuse_distance_max": most, "region_distance_mean": own_mean,
             "region_distance_max": own_most, "unobservable": 0 if whole else int(found.unobservable[at]),
             "function": top.get("function"), "file": top.get("file"), "line": top.get("line"),
             "object": first_object.get(rank, {}).get("object"), "depth": node["depth"], "is_spread": node["is_spread"]}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_schema(REGION_FIELDS))


def _firsts(rows: list[Row]) -> dict[Cell, Row]:
    firsts: dict[Cell, Row] = {}
    for row in rows:
        firsts.setdefault(row["region"], row)
    return firsts


def _tree_table(accesses: ThreadAccesses, tree: ZoomTree, region: dict[int, int], total: int) -> pa.Table:
    import pyarrow as pa

    rows = []
    for node in tree.nodes:
        process, address = _place(accesses, node["begin"])
        rows.append(
            {**{name: value for name, value in node.items() if name in TREE_FIELDS},
             "process": process, "address": address, "bytes": node["end"] - node["begin"],
             "hotness_percent": 100 * node["accesses"] / total, "region": region.get(node["node"])}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_schema(TREE_FIELDS))


DESCRIPTOR = AnalysisDescriptor(
    name="zoom_location",
    question="Which regions of memory are hot, how far apart are their uses, and which code and object is it?",
    needs=("window",),
    options=(
        Option("threshold", "share of a region's accesses that makes a part of it hot", THRESHOLD),
        Option("stop_bytes", "smallest page, a power of two", STOP_BYTES),
        Option("block_bytes", "block of reuse distances, a power of two", BLOCK_BYTES),
    ),
    in_report=False,
    run=zoom_location,
)
