"""Analysis `intervals`: the execution interval tree of MemGaze (sections IV-C and V), and its table of levels.

The tree, from the leaves up: accesses of one *function* in the smallest windows; *windows* of 2^k accesses within a sample; *samples*;
*intervals* of 2^j samples; the root is all. Windows are of accesses A that are not constant; constants go with the access before them.
For each node, with the symbols of `locality`:

    growth          F / (kappa · A), Eq. 4; F counts all constants of the node as one
    growth_memgaze  F / A
    D               distances of the reuses of which both accesses lie in the node and in one sample
    multiplier      rho = executed / (kappa · A) for intervals: what is between samples was not recorded; 1 within samples

A row of ``levels`` is the mean over the *full* nodes of a size, so that rows of a level compare like with like; the short ones at
the ends of samples are only in ``nodes``.

``by_window_size`` is the same for single functions: windows are 2^k accesses of the function that follow each other in a sample, whatever
others do in between, and D counts the function's own blocks.

`tree="memgaze"` gives the table that MemGaze's own analyser prints, by its own rules (native/core/locality/memgaze_tree.h), which differ from
the paper's text: F counts no constants; the strided and irregular parts share an address by how often each class touched it; the window counts
constants, and `loads` counts them once more; a level takes nodes by their size, whatever they are, short ones and a node with a
single child included; it is scaled as a whole if the last of its nodes is a sample or more; the multiplier divides by all samples
but one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

from ..capture.model.locality import NODE_KINDS
from ..errors import MemoryLimitError, UsageError
from ..registry import AnalysisDescriptor, Option
from ..view import Figure, Table, View, detail, key, measure
from ._memgaze_levels import memgaze_levels, memgaze_view, ratio
from .data_locality import MEMORY_LIMIT_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ..capture.model.locality import ThreadAccesses
    from ..capture.model.samples import Samples
    from ..capture.reader import Capture
    from ..results import Key, Result
    from ._groups import Dimension

    Counts = npt.NDArray[np.uint64]
    Classes = npt.NDArray[np.uint8]
    Numbers = npt.NDArray[np.uint32]
    Floats = npt.NDArray[np.float64]
    Columns = dict[str, npt.NDArray[np.generic] | pa.Array]

TREES = ("paper", "memgaze")
KINDS = NODE_KINDS
LEAF_ACCESSES = 8
MOST_LEAF_ACCESSES = 64
MOST_NODES = 1 << 17
"""Of table ``nodes``: where the tree has more, its smallest windows are left to ``levels``."""
MOST_FUNCTIONS = 16


class Sums(TypedDict):
    """What nodes and levels of the native tree have in common; a column each."""

    kind: Classes
    shift: Classes
    accesses: Counts
    constants: Counts
    recorded: Counts
    unknown: Counts
    addresses: Counts
    addresses_strided: Counts
    addresses_irregular: Counts
    blocks: Counts
    reuses: Counts
    distance_sum: Counts
    distance_max: Counts
    implied: Floats
    executed: Floats
    footprint: Counts


class LevelSums(Sums):
    nodes: Counts


class NodeSums(Sums):
    first_sample: Numbers
    samples: Numbers
    begin: Counts
    function: Numbers


class Node(TypedDict):
    """A row of table ``nodes``, as far as it is read here."""

    node: int
    parent: int | None
    kind: str
    first_sample: int
    samples: int
    first_access: int | None
    accesses: float
    constants: float
    growth: float | None


def power_of_two(value: int, name: str) -> int:
    """log2, or an error for people.

    >>> power_of_two(64, "block_bytes")
    6
    """
    if value < 1 or value & (value - 1):
        raise UsageError(f"{name}={value} is not a power of two", hint=f"for example {name}=64")
    return value.bit_length() - 1


def intervals(
    capture: Capture,
    *,
    tree: str = "paper",
    block_bytes: int = 64,
    leaf_accesses: int = LEAF_ACCESSES,
    most_nodes: int = MOST_NODES,
    functions: int = MOST_FUNCTIONS,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    site_classes: Mapping[str, Classes] | None = None,
) -> Result:
    """The execution interval tree of all samples, in the order of time.

    Parameters
    ----------
    tree
        ``paper``, or ``memgaze`` for the table that MemGaze's analyser prints.
    block_bytes
        Block of reuse distances, a power of two.
    leaf_accesses
        Smallest window, a power of two up to 64.
    most_nodes
        How many rows ``nodes`` may have; ``smallest_listed_accesses`` is the smallest listed size.
    functions
        How many functions, those with the most accesses, have rows in ``by_window_size``.

    Returns
    -------
    Result
        Tables ``levels`` and, for the paper's tree, ``nodes`` and ``by_window_size``.
    """
    from ..capture.model.locality import ThreadAccesses

    if tree not in TREES:
        raise UsageError(f"invalid value {tree!r} for tree", hint=f"one of {', '.join(TREES)}")
    power_of_two(block_bytes, "block_bytes")
    leaf_shift = power_of_two(leaf_accesses, "leaf_accesses")
    if leaf_accesses > MOST_LEAF_ACCESSES:
        raise UsageError(f"leaf_accesses={leaf_accesses} is too large", hint=f"at most {MOST_LEAF_ACCESSES}")
    accesses = ThreadAccesses(capture)
    if tree == "memgaze":
        return memgaze_levels(accesses, site_classes)
    # Each access is in about two nodes a leaf, and in one of a function.
    keep_shift = leaf_shift
    while accesses.recorded * 4 >> keep_shift > most_nodes:
        keep_shift += 1
    try:
        return _paper(accesses, block_bytes, leaf_shift, keep_shift, memory_limit_bytes, site_classes, functions)
    except MemoryError as error:
        raise MemoryLimitError(
            str(error), hint="allow more with memory_limit_bytes=, or record windows instead of everything"
        ) from None


def _paper(
    accesses: ThreadAccesses,
    block_bytes: int,
    leaf_shift: int,
    keep_shift: int,
    limit: int,
    site_classes: Mapping[str, Classes] | None,
    most_functions: int,
) -> Result:
    import numpy as np

    from ..capture.model.constants import ImpliedConstants
    from ..capture.model.locality import Classifier, IntervalTree
    from ..capture.model.samples import Samples
    from ..results import Quality, Result
    from ._groups import named_dimension

    capture = accesses.capture
    classes, functions = (
        Classifier(accesses, site_classes, by_window=not accesses.is_whole),
        named_dimension(accesses, "function"),
    )
    samples, constants = Samples(accesses), ImpliedConstants(capture)
    built = IntervalTree(
        block_bytes=block_bytes, leaf_shift=leaf_shift, keep_shift=keep_shift, memory_limit_bytes=limit
    )
    curves = _Curves(accesses, functions, most_functions, block_bytes=block_bytes, leaf_shift=leaf_shift, limit=limit)
    whole = accesses.is_whole
    numbers: list[int] = []
    told = 0  # constants of the open sample that went with its accesses

    def end_sample() -> None:
        if numbers:
            implied = max(0, int(samples.implied[numbers[-1]]) - told)
            built.end_sample(executed=float(samples.executed[numbers[-1]]), implied=implied)
            curves.end_sample()

    for number, batch in samples:
        if not numbers or number != numbers[-1]:
            end_sample()
            built.begin_sample()
            numbers.append(number)
            told = 0
        implied = constants(batch)
        told += 0 if implied is None else int(implied.sum())
        kinds, whose = classes(batch), functions.numbers(batch)
        built.add(batch.key_address, kinds, whose, implied)
        curves.add(batch.key_address, kinds, whose, implied)
    end_sample()
    built.finish()
    levels, nodes = cast("LevelSums", built.levels()), cast("NodeSums", built.nodes())
    order = np.array(numbers, dtype=np.int64)
    origin = classes.origin
    figures: dict[str, str | int] = {
        "tree": "paper",
        "samples": len(numbers),
        "everything_recorded": whole,
        "recorded_accesses": accesses.recorded,
        "executed_accesses": int(samples.executed.sum()),
        "block_bytes": block_bytes,
        "leaf_accesses": 1 << leaf_shift,
        "smallest_listed_accesses": 1 << keep_shift,
        "class_origin": origin,
        "damaged_windows": accesses.damaged,
    }
    tables = {
        "levels": _levels(levels, whole=whole),
        "nodes": _nodes(nodes, samples, order, functions.keys, whole=whole),
        "by_window_size": curves.table(),
    }
    figures["functions_without_curve"] = curves.left_out
    figures["nodes"] = tables["nodes"].num_rows
    notes = list(
        _notes(
            figures,
            per_access=constants.known,
            has_implied=bool(samples.implied.sum()),
            all_listed=keep_shift == leaf_shift,
        )
    )
    exact = whole and not accesses.damaged and origin == "static"
    return Result("intervals", figures, tables, capture.quality.joined(Quality(exact=exact, notes=tuple(notes))))


class _Curves:
    """A tree for each of the functions with the most accesses, of its own accesses alone."""

    def __init__(
        self,
        accesses: ThreadAccesses,
        functions: Dimension,
        most: int,
        *,
        block_bytes: int,
        leaf_shift: int,
        limit: int,
    ) -> None:
        import numpy as np

        from ..capture.model.locality import IntervalTree

        counts = np.zeros(len(functions.keys), dtype=np.int64)
        for batch in accesses if most > 0 else ():
            counts += np.bincount(functions.numbers(batch), minlength=len(counts))
        order = np.argsort(-counts, kind="stable")
        self._keys = functions.keys
        self.left_out = int((counts > 0).sum()) - min(most, int((counts > 0).sum()))
        self._trees = {
            number: IntervalTree(
                block_bytes=block_bytes, leaf_shift=leaf_shift, keep_shift=40, memory_limit_bytes=limit
            )
            for number in order[: max(most, 0)].tolist()
            if counts[number]
        }
        self._open: set[int] = set()

    def add(self, addresses: Counts, classes: Classes, functions: Numbers, implied: Numbers | None) -> None:
        import numpy as np

        for number, tree in self._trees.items():
            mine = functions == number
            if not mine.any():
                continue
            if number not in self._open:
                tree.begin_sample()
                self._open.add(number)
            tree.add(np.ascontiguousarray(addresses[mine]), np.ascontiguousarray(classes[mine]), None,
                     None if implied is None else np.ascontiguousarray(implied[mine]))  # fmt: skip

    def end_sample(self) -> None:
        for number in self._open:
            self._trees[number].end_sample(executed=0.0)
        self._open.clear()

    def table(self) -> pa.Table:
        import pyarrow as pa

        rows: list[dict[str, str | float | None]] = []
        for number, tree in self._trees.items():
            for row in _levels(cast("LevelSums", tree.levels()), whole=True).to_pylist():
                if row["kind"] == "window":
                    name, module = self._keys[number]
                    rows.append(
                        {
                            **row,
                            "function": name,
                            "module": module,
                            "window_size": row["node_accesses"],
                            "windows": row["nodes"],
                        }
                    )
        names = ("footprint", "footprint_strided", "footprint_irregular", "growth", "growth_strided", "growth_irregular",
                 "growth_memgaze", "constant_to_load_ratio", "blocks", "reuses", "reuse_distance_mean")  # fmt: skip
        schema = pa.schema([("function", pa.string()), ("module", pa.string()), ("window_size", pa.uint64()), ("windows", pa.uint64()),
                            *((name, pa.float64()) for name in names), ("reuse_distance_max", pa.uint64())])  # fmt: skip
        return pa.Table.from_pylist(rows, schema=schema)


def _notes(figures: Mapping[str, str | int], *, per_access: bool, has_implied: bool, all_listed: bool) -> list[str]:
    notes = []
    if figures["damaged_windows"]:
        notes.append(f"{figures['damaged_windows']} windows are damaged and were left out.")
    if figures["class_origin"] != "static":
        notes.append(
            "Classes of accesses (constant, strided, irregular) are inferred from the addresses that were seen of each instruction."
        )
    if not figures["everything_recorded"]:
        notes.append(
            "Windows and samples are observed; of intervals the accesses between their samples are not, and *_estimated scales by "
            "executed : recorded accesses."
        )
    if has_implied and not per_access:
        notes.append(
            "Constants that a sample leaves out are known for the sample; its windows have their share by accesses."
        )
    if figures["functions_without_curve"]:
        notes.append(f"{figures['functions_without_curve']} functions with fewer accesses have no rows by window size.")
    if not all_listed:
        notes.append(f"Nodes below {figures['smallest_listed_accesses']} accesses are only in the table of levels.")
    return notes


def _shared(found: Sums, nodes: Counts | int, *, whole: bool) -> Columns:
    """Columns that levels (as means) and nodes (as they are, with `nodes` = 1) have in common."""
    import numpy as np
    import pyarrow as pa

    a, c = found["accesses"].astype(np.float64), found["constants"] + found["implied"]
    made, f = a + c, found["footprint"].astype(np.float64)
    irregular, strided = found["addresses_irregular"], found["addresses_strided"]
    between = found["kind"] == KINDS.index("interval")
    scaled = between & (not whole)
    rho = np.where(scaled, np.divide(found["executed"], made, out=np.ones(len(made)), where=made > 0), 1.0)
    return {
        "multiplier": rho,
        "window_accesses": made / nodes,
        "accesses": a / nodes,
        "footprint": f / nodes,
        "footprint_strided": strided / nodes,
        "footprint_irregular": irregular / nodes,
        "constants": c / nodes,
        "unknown": found["unknown"] / nodes,
        "loads": rho * made / nodes,
        "footprint_estimated": rho * f / nodes,
        "footprint_strided_estimated": rho * strided / nodes,
        "footprint_irregular_estimated": rho * irregular / nodes,
        "constant_to_load_ratio": ratio(c, made),
        "irregular_ratio": ratio(irregular, f),
        "growth": ratio(f, made),
        "growth_strided": ratio(strided, made),
        "growth_irregular": ratio(irregular, made),
        "growth_memgaze": ratio(f, a),
        "blocks": found["blocks"] / nodes,
        "reuses": found["reuses"] / nodes,
        "reuse_distance_mean": ratio(found["distance_sum"], found["reuses"]),
        "reuse_distance_max": pa.array(found["distance_max"], mask=found["reuses"] == 0),
    }


def _no_reuse_of_functions(columns: Columns, found: Sums) -> Columns:
    """Blocks and reuse of a function in 8 accesses are not looked at: null, not zero."""
    import pyarrow as pa

    mask = found["kind"] == KINDS.index("function")
    for name in ("blocks", "reuses"):
        columns[name] = pa.array(columns[name], mask=mask)
    return columns


def _size_text(kind: str, size: int) -> str:
    """
    >>> _size_text("window", 64), _size_text("interval", 2), _size_text("sample", 1)
    ('64 accesses', '2 samples', 'sample')
    """
    return {"window": f"{size:,} accesses", "interval": f"{size:,} samples"}.get(kind, kind)


def _levels(found: LevelSums, *, whole: bool) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    count = len(found["kind"])
    shift = found["shift"].astype(np.uint64)
    kind = found["kind"]
    full_accesses = pa.array(np.uint64(1) << shift, mask=kind != KINDS.index("window"))
    full_samples = pa.array(np.uint64(1) << shift, mask=kind < KINDS.index("sample"))
    columns = {
        "level": np.arange(count, dtype=np.uint32),
        "kind": pa.array([KINDS[k] for k in kind.tolist()], type=pa.string()),
        "size": pa.array(
            [_size_text(KINDS[k], 1 << int(by)) for k, by in zip(kind.tolist(), shift.tolist(), strict=True)],
            pa.string(),
        ),
        "node_accesses": full_accesses,
        "node_samples": full_samples,
        "nodes": found["nodes"],
        **_no_reuse_of_functions(_shared(found, np.maximum(found["nodes"], 1), whole=whole), found),
    }
    return pa.table(columns)


def _parents(found: NodeSums) -> list[int | None]:
    """Nodes come children first: a node takes all that wait and lie inside it."""
    function, _window, sample, interval = range(4)
    parents: list[int | None] = [None] * len(found["kind"])
    waiting: list[int] = []
    kind, first, begin = found["kind"].tolist(), found["first_sample"].tolist(), found["begin"].tolist()

    def inside(child: int, node: int) -> bool:
        if kind[node] == interval:
            return bool(first[child] >= first[node])
        if kind[node] == sample:
            return bool(first[child] == first[node]) and kind[child] < sample
        return bool(first[child] == first[node]) and kind[child] < sample and bool(begin[child] >= begin[node])

    for node in range(len(kind)):
        if kind[node] != function:
            while waiting and inside(waiting[-1], node):
                parents[waiting.pop()] = node
        waiting.append(node)
    return parents


def _nodes(
    found: NodeSums,
    samples: Samples,
    order: npt.NDArray[np.int64],
    functions: Sequence[Key],
    *,
    whole: bool,
) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    count = len(found["kind"])
    kind = found["kind"]
    first = found["first_sample"].astype(np.int64)
    last = first + found["samples"] - 1
    inner = kind < KINDS.index("sample")
    is_function = kind == KINDS.index("function")
    names = [
        functions[n] if f else (None, None)
        for n, f in zip(found["function"].tolist(), is_function.tolist(), strict=True)
    ]
    begins, ends = samples.begin_ns[order], samples.end_ns[order]
    # Threads overlap: an interval ends with the last of its samples.
    latest = np.array([ends[a : b + 1].max() for a, b in zip(first.tolist(), last.tolist(), strict=True)], dtype=np.uint64) if count else ends[:0]  # fmt: skip
    columns = {
        "node": np.arange(count, dtype=np.uint32),
        "parent": pa.array(_parents(found), type=pa.uint32()),
        "kind": pa.array([KINDS[k] for k in kind.tolist()], type=pa.string()),
        "first_sample": found["first_sample"],
        "samples": found["samples"],
        "first_access": pa.array(found["begin"], mask=~inner),
        "begin_ns": pa.array(begins[first] if count else begins[:0], mask=inner),
        "end_ns": pa.array(latest, mask=inner),
        "function": pa.array([name[0] for name in names], type=pa.string()),
        "module": pa.array([name[1] for name in names], type=pa.string()),
        **_no_reuse_of_functions(_shared(found, 1, whole=whole), found),
    }
    return pa.table(columns)


# ---- view ------------------------------------------------------------
def view(result: Result) -> View:
    if result.figures["tree"] == "memgaze":
        return memgaze_view()
    reuse = (
        measure("blocks", "blocks", "number"), measure("reuse_distance_mean", "D mean", "number", better="lower"),
        measure("reuse_distance_max", "D max", "count"),
    )  # fmt: skip
    footprint = (
        measure("footprint", "footprint", "number", help="Unique addresses, all constants as one."),
        measure("footprint_strided", "strided", "number"), measure("footprint_irregular", "irregular", "number"),
        measure("constant_to_load_ratio", "constant", "share", help="Of all accesses."),
        measure("growth", "growth", "number", better="lower", help="Unique addresses an access."),
    )  # fmt: skip
    estimated = (
        detail("multiplier", "executed for each recorded", "number"), detail("footprint_estimated", "footprint, estimated", "count"),
        detail("growth_strided", "growth, strided", "number"), detail("growth_irregular", "growth, irregular", "number"),
        detail("growth_memgaze", "growth, constants left out", "number"),
    )  # fmt: skip
    return View(
        title="Windows of all sizes",
        headline="means over the full windows of each size, of {recorded_accesses} accesses in {samples} sample(s)",
        figures=(
            Figure(name="recorded_accesses", label="recorded accesses", kind="precise"),
            Figure(name="executed_accesses", label="executed accesses", kind="precise"),
            Figure(name="samples", label="samples", kind="precise"),
            Figure(name="everything_recorded", label="every access recorded", kind="flag"),
            Figure(name="class_origin", label="origin of classes", kind="text", help="static: from the compiler; inferred: from the addresses seen."),
            Figure(name="damaged_windows", label="damaged windows", kind="precise", show="nonzero", help="Left out."),
            Figure(name="block_bytes", label="block of reuse distances", kind="bytes"),
            Figure(name="leaf_accesses", label="accesses of the smallest window", kind="precise"),
            Figure(name="smallest_listed_accesses", label="accesses of the smallest window in table nodes", kind="precise"),
            Figure(name="nodes", label="rows of table nodes", kind="precise"),
            Figure(name="functions_without_curve", label="functions without rows by window size", kind="precise", show="nonzero"),
        ),
        tables=(
            Table(name="levels", title="Sizes", whole=True, columns=(
                key("size", "size"), measure("nodes", "nodes", "precise"), measure("accesses", "accesses", "number"), *footprint, *reuse, *estimated,
            )),
            Table(name="by_window_size", title="Functions by window size", role="detail", columns=(
                key("function", "function", "function"), key("window_size", "accesses", "precise"), measure("windows", "windows", "count"),
                *footprint, *reuse,
            )),
            Table(name="nodes", title="All windows", role="detail", columns=(
                key("node", "node", "precise"), measure("parent", "in", "precise"), measure("kind", "kind", "text"),
                measure("first_sample", "from sample", "precise"), measure("samples", "samples", "count"),
                measure("first_access", "from access", "precise"), measure("accesses", "accesses", "count"), *footprint, *reuse, *estimated,
            )),
        ),
        remarks=("as observed; growth: unique addresses an access; D: other blocks between two uses of a block, within a sample",),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="intervals",
    question="How do footprint, growth and reuse depend on the size of the window, from a few accesses to the whole run?",
    needs=("window",),
    options=(
        Option("tree", "paper, or memgaze for the table that MemGaze's analyser prints", "paper"),
        Option("block_bytes", "block of reuse distances, a power of two", 64),
        Option("leaf_accesses", "smallest window, a power of two up to 64", LEAF_ACCESSES),
        Option("most_nodes", "rows of table `nodes`; smaller windows are only in `levels`", MOST_NODES),
        Option("functions", "functions with rows in table `by_window_size`", MOST_FUNCTIONS),
    ),
    in_report=False,
    run=intervals,
    view=view,
)
