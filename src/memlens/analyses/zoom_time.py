"""Analysis `zoom_time`: the hot, badly reused path down the execution interval tree (MemGaze, section IV-C1).

From the root down: of a node's children those are hot that have at least `threshold` of its accesses (the hottest one always is); the path
goes on in the hot one with the greatest footprint growth, of equals in the earlier one. It ends in a window
of `stop_accesses`, or in a function of a leaf window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from ..errors import UsageError
from ..registry import AnalysisDescriptor, Option
from .intervals import LEAF_ACCESSES, MOST_NODES, intervals, power_of_two
from .zoom_location import check_share

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Bools, Uint8s
    from ..capture.model.locality import AccessBatch
    from ..capture.reader import Capture
    from ..results import Result, Row

THRESHOLD = 0.25


class Node(TypedDict):
    """A row of table ``nodes`` of `intervals`, as far as paths need it."""

    node: int
    parent: int | None
    kind: str
    first_sample: int
    samples: int
    first_access: int | None
    accesses: int
    constants: float
    growth: float | None


def hot_path(nodes: Sequence[Node], *, threshold: float, stop_accesses: int = 1) -> list[int]:
    """Rows of the path from the root: `nodes` have node, parent, accesses and growth.

    >>> tree = [{"node": 0, "parent": 2, "accesses": 60, "growth": 0.1}, {"node": 1, "parent": 2, "accesses": 40, "growth": 0.9},
    ...         {"node": 2, "parent": None, "accesses": 100, "growth": 0.4}]
    >>> hot_path(tree, threshold=0.25), hot_path(tree, threshold=0.5)
    ([2, 1], [2, 0])
    """
    children: dict[int | None, list[int]] = {}
    for row, node in enumerate(nodes):
        children.setdefault(node["parent"], []).append(row)
    path: list[int] = []
    below = children.get(None, [])[-1:]
    while below:
        whole = nodes[path[-1]]["accesses"] if path else 0
        most = max(nodes[row]["accesses"] for row in below)
        hot = [row for row in below if nodes[row]["accesses"] >= min(most, threshold * whole)]
        path.append(max(hot, key=lambda row: (nodes[row]["growth"] or 0.0, -row)))
        if nodes[path[-1]]["accesses"] <= stop_accesses:
            break
        below = children.get(nodes[path[-1]]["node"], [])
    return path


def zoom_time(
    capture: Capture,
    *,
    threshold: float = THRESHOLD,
    stop_accesses: int = LEAF_ACCESSES,
    block_bytes: int = 64,
    most_nodes: int = MOST_NODES,
    site_classes: Mapping[str, Uint8s] | None = None,
) -> Result:
    """Zooms into time.

    Parameters
    ----------
    threshold
        A part of an interval is hot with this share of its accesses.
    stop_accesses
        The path ends in a window that is no larger; a power of two from 8 up.
    block_bytes
        Block of reuse distances, a power of two.

    Returns
    -------
    Result
        Tables ``path`` (root first) and ``code``: functions, lines and objects of the last node of each kind of the path.
    """
    from ..results import Result

    check_share(threshold)
    power_of_two(stop_accesses, "stop_accesses")
    if stop_accesses < LEAF_ACCESSES:
        raise UsageError(
            f"a window of {stop_accesses} accesses is too small", hint=f"stop_accesses= is at least {LEAF_ACCESSES}"
        )
    found = intervals(capture, block_bytes=block_bytes, most_nodes=most_nodes, functions=0, site_classes=site_classes)
    nodes: list[Node] = [row for row in found.tables["nodes"].to_pylist() if row["kind"] != "function"]
    path = [nodes[row] for row in hot_path(nodes, threshold=threshold, stop_accesses=stop_accesses)]
    total = path[0]["accesses"] if path else 0
    look = _Look(capture, path, block_bytes=block_bytes, site_classes=site_classes)
    smallest = found.figures["smallest_listed_accesses"]
    if path and smallest > LEAF_ACCESSES and path[-1]["accesses"] > stop_accesses:
        path += look.further(path[-1], threshold=threshold, stop_accesses=stop_accesses, whole=found.figures["everything_recorded"])  # fmt: skip
    rows = [
        {**row, "depth": depth, "share": row["accesses"] / total if total else 0.0} for depth, row in enumerate(path)
    ]
    figures = {
        **{name: found.figures[name] for name in ("samples", "everything_recorded", "recorded_accesses", "block_bytes",
                                                  "class_origin", "damaged_windows")},
        "threshold": threshold, "stop_accesses": stop_accesses, "nodes": found.figures["nodes"],
    }  # fmt: skip
    tables = {"path": _path_table(rows, found.tables["nodes"].schema), "code": look.code(path)}
    return Result("zoom_time", figures, tables, found.quality)


def _path_table(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    left = [field for field in schema if field.name not in ("node", "parent", "function", "module")]
    return pa.Table.from_pylist(rows, schema=pa.schema([("depth", pa.uint32()), ("share", pa.float64()), *left]))


class _Look:
    """The accesses of nodes on the path, read again."""

    def __init__(
        self, capture: Capture, path: list[Node], *, block_bytes: int, site_classes: Mapping[str, Uint8s] | None
    ) -> None:
        from ..capture.model.constants import ImpliedConstants
        from ..capture.model.locality import Classifier, ThreadAccesses
        from ..capture.model.samples import Samples
        from ._groups import named_dimension

        self._accesses = ThreadAccesses(capture)
        self._samples = Samples(self._accesses)
        self._constants = ImpliedConstants(capture)
        self._classes = Classifier(self._accesses, site_classes, by_window=not self._accesses.is_whole)
        self._code = named_dimension(self._accesses, "line")
        self._objects = named_dimension(self._accesses, "object")
        self._block_bytes = block_bytes

    def _parts(self, node: Node) -> Iterator[tuple[AccessBatch, Uint8s, Bools]]:
        """(batch, classes, which accesses are the node's) of each part of the capture that it has a share in."""
        import numpy as np

        first, last = node["first_sample"], node["first_sample"] + node["samples"]
        begin = node["first_access"] or 0
        end = begin + node["accesses"] if node["first_access"] is not None else None
        before, at = -1, 0
        for number, batch in self._samples:
            if number != before:
                before, at = number, 0
            if not first <= number < last:
                continue
            classes = self._classes(batch)
            moving = classes != 1
            # A constant is where the access before it is.
            place = at + np.cumsum(moving) - 1
            at += int(moving.sum())
            place = np.maximum(place, 0)
            mine = np.ones(len(batch), dtype=bool) if end is None else (place >= begin) & (place < end)
            if mine.any():
                yield batch, classes, mine

    def further(self, node: Node, *, threshold: float, stop_accesses: int, whole: bool) -> list[Node]:
        """The path below a node whose windows the tree did not list."""
        import numpy as np

        from ..capture.model.locality import IntervalTree
        from .intervals import KINDS, _nodes

        tree = IntervalTree(block_bytes=self._block_bytes, leaf_shift=3, keep_shift=3)
        tree.begin_sample()
        recorded = constants = 0
        for batch, classes, mine in self._parts(node):
            implied = self._constants(batch)
            implied = None if implied is None else np.ascontiguousarray(implied[mine])
            tree.add(
                np.ascontiguousarray(batch.key_address[mine]), np.ascontiguousarray(classes[mine]), implied=implied
            )
            recorded += int(mine.sum())
            constants += int((classes[mine] == 1).sum()) + (0 if implied is None else int(implied.sum()))
        tree.end_sample(executed=node["accesses"])
        tree.finish()
        number = node["first_sample"]
        found = dict(tree.nodes())
        # The node's share of the constants that only its sample knows of goes on to its windows.
        left = max(0.0, node["constants"] - constants)
        found["implied"] = found["recorded"] * (left / max(recorded, 1))
        found["footprint"] = found["footprint"] + ((found["constants"] == 0) & (found["implied"] > 0))
        table = _nodes(found, self._samples, np.array([number]), [], whole=whole)
        rows: list[Node] = [row for row in table.to_pylist() if row["kind"] != KINDS[0]]
        below = [rows[row] for row in hot_path(rows, threshold=threshold, stop_accesses=stop_accesses)][1:]
        for row in below:
            row.update(
                {"first_sample": number, "first_access": (node["first_access"] or 0) + (row["first_access"] or 0)}
            )
        return below

    def code(self, path: list[Node]) -> pa.Table:
        """Who makes the accesses of the last interval, the sample and the last window of the path."""
        import pyarrow as pa

        schema = pa.schema([("depth", pa.uint32()), ("kind", pa.string()), ("function", pa.string()), ("module", pa.string()),
                            ("file", pa.string()), ("line", pa.uint32()), ("object", pa.string()), ("accesses", pa.uint64()),
                            ("share", pa.float64())])  # fmt: skip
        chosen = {row["kind"]: depth for depth, row in enumerate(path)}
        rows: list[dict[str, object]] = []
        for kind, depth in chosen.items():
            rows += [{"depth": depth, "kind": kind, **row} for row in self._code_of(path[depth])]
        return pa.Table.from_pylist(rows, schema=schema)

    def _code_of(self, node: Node) -> list[Row]:
        import numpy as np

        counts: dict[tuple[int, int], int] = {}
        for batch, classes, mine in self._parts(node):
            mine = mine & (classes != 1)
            pairs = (
                self._code.numbers(batch)[mine].astype(np.uint64) << np.uint64(32) | self._objects.numbers(batch)[mine]
            )
            for pair, count in zip(*(v.tolist() for v in np.unique(pairs, return_counts=True)), strict=True):
                key = (pair >> 32, pair & 0xFFFFFFFF)
                counts[key] = counts.get(key, 0) + count
        total = sum(counts.values())
        return [
            {**dict(zip(self._code.names, self._code.keys[code], strict=True)), "object": self._objects.keys[thing][0],
             "accesses": count, "share": count / total}
            for (code, thing), count in sorted(counts.items(), key=lambda item: -item[1])
        ]  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="zoom_time",
    question="When do accesses touch the most new data, and which code makes them?",
    needs=("window",),
    options=(
        Option("threshold", "share of an interval's accesses that makes a part of it hot", THRESHOLD),
        Option("stop_accesses", "the path ends in a window that is no larger; a power of two from 8 up", LEAF_ACCESSES),
        Option("block_bytes", "block of reuse distances, a power of two", 64),
    ),
    in_report=False,
    run=zoom_time,
)
