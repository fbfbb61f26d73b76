"""Analysis `placement`: which threads placed pages on which nodes, what they were bound to, and when that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry import AnalysisDescriptor
from ...view import Chart, Figure, Table, View, detail, key, measure
from ._view import on_several_nodes

if TYPE_CHECKING:
    import pyarrow as pa

    from ...capture.model.places import ThreadHomes, ThreadState, Topology
    from ...capture.reader import Capture
    from ...results import Result

    Cell = str | int | float | bool | None

MOST_EVENTS = 5000
POLICIES = {
    0: "default", 1: "preferred", 2: "bind", 3: "interleave", 4: "local", 5: "preferred many", 6: "weighted interleave",
}  # fmt: skip
UNPINNED, NOT_RECORDED, MOVED = "unpinned", "not recorded", "being moved"


def home_name(home: int) -> str:
    """
    >>> home_name(2), home_name(-1)
    ('node 2', 'unpinned')
    """
    return {-1: UNPINNED, -2: NOT_RECORDED, -3: MOVED}.get(home, f"node {home}")


def cpu_list(cpus: tuple[int, ...] | list[int]) -> str:
    """CPU numbers as the kernel lists them.

    >>> cpu_list([0, 1, 2, 5])
    '0-2,5'
    """
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def placement(capture: Capture) -> Result:
    """First touches by thread and node, with what each thread was bound to then; the pinning log; the machine's nodes.

    A thread is bound to a node if all CPUs that it may run on belong to it. Pages count where a fault placed them, a huge page once.
    """
    import numpy as np
    import pyarrow as pa

    from ...capture.model.places import NOT_KNOWN, YES, ThreadHomes, Topology, first_touches
    from ...results import Note, Quality, Result
    from .._fault_sampling import notes as sampling_notes
    from .._selected import selected

    topology = Topology.of(capture)
    whole = capture.whole
    homes = ThreadHomes(whole, topology)
    touches = first_touches(whole, homes)
    part = selected(capture)
    rows = np.ones(len(touches.page), dtype=bool)
    if part is not None:
        sites = whole.replay.code_sites
        places = tuple(sites.column(name).take(pa.array(touches.code)) for name in ("function", "file", "line"))
        rows = part.rows(
            len(touches.page), "first touches", process=touches.process.astype(np.uint32), thread=touches.thread.astype(np.uint32), time_ns=touches.time_ns,
            address=touches.page << np.uint64(12), place=(places[0], places[1], places[2]),
        )  # fmt: skip
    page_bytes = capture.replay.page_bytes
    weight = np.where(rows, touches.weight, 0.0)
    moved = weight * touches.pages * page_bytes
    names = {(row["process"], row["thread"]): row["name"] for row in whole.table("threads").to_pylist()}
    total, unpinned = float(moved.sum()), float(moved[(touches.bound != YES) & (touches.bound != NOT_KNOWN)].sum())
    not_recorded = float(moved[touches.bound == NOT_KNOWN].sum())
    matrix: list[dict[str, Cell]] = []
    keys = touches.process << np.int64(32) | touches.thread
    for value in np.unique(keys[rows]).tolist():
        process, thread = value >> 32, value & 0xFFFFFFFF
        state = homes.at((process, thread), whole.end_ns)
        for node in np.unique(touches.node[rows & (keys == value)]).tolist():
            mine = rows & (keys == value) & (touches.node == node)
            matrix.append(
                {
                    "process": process, "thread": thread, "name": names.get((process, thread)),
                    "home": home_name(state.home if state is not None else -2), "node": node if node >= 0 else None,
                    "pages": float(weight[mine].sum()), "bytes": float(moved[mine].sum()),
                    "unpinned_bytes": float(moved[mine & (touches.bound == 0)].sum()),
                }
            )  # fmt: skip
    nodes = _nodes(whole, topology, touches.node[rows], moved[rows])
    log = _log(whole, homes, names)
    states = [homes.at(key, whole.end_ns) for key in names]
    figures = {
        "nodes": len(topology.nodes),
        "memory_only_nodes": len(topology.without_cpus),
        "placed_bytes": total,
        "unpinned_bytes": unpinned if homes.is_recorded else None,
        "unpinned_share": unpinned / total if total and homes.is_recorded else None,
        "largest_node_share": max((row["share"] for row in nodes if isinstance(row["share"], float)), default=None),
        "bound_threads": sum(1 for state in states if state is not None and state.home >= 0),
        "unpinned_threads": sum(1 for state in states if state is not None and state.home == -1),
        "threads": len(names),
        "affinity_changes": len([row for row in log if row["event"] not in ("at start", "inherited")]),
    }
    notes = list(sampling_notes(capture))
    if not homes.is_recorded:
        notes.append(
            Note(
                "placement.no_affinity",
                "Affinity and memory policies were not recorded: threads are not known to be bound or unpinned.",
            )
        )
    elif not_recorded:
        notes.append(
            Note("placement.unknown_binding", f"Of {not_recorded / total:.1%} of the placed bytes the thread's affinity is not known.", share=not_recorded / total)
        )  # fmt: skip
    return Result(
        "placement",
        figures,
        {
            "matrix": pa.Table.from_pylist(matrix, schema=_matrix_schema()),
            "by_node": pa.Table.from_pylist(nodes, schema=_node_schema()),
            "pinning_log": pa.Table.from_pylist(log[:MOST_EVENTS], schema=_log_schema()),
        },
        capture.quality.joined(Quality(exact=not sampling_notes(capture), notes=tuple(notes))),
    )


def _nodes(capture: Capture, topology: Topology, node: object, moved: object) -> list[dict[str, Cell]]:
    import numpy as np
    import pyarrow.compute as pc

    nodes, amounts = np.asarray(node), np.asarray(moved)
    readings = capture.table("timeline")
    readings = readings.filter(pc.equal(readings.column("metric"), "node_bytes"))
    peaks: dict[int, int] = {}
    for number, value in zip(readings.column("node").to_pylist(), readings.column("value").to_pylist(), strict=True):
        peaks[number] = max(peaks.get(number, 0), value)
    total = float(amounts.sum())
    rows: list[dict[str, Cell]] = []
    for one in topology.nodes:
        placed = float(amounts[nodes == one.number].sum())
        rows.append(
            {
                "node": one.number, "cpus": cpu_list(tuple(one.cpus)) or "none", "memory_bytes": one.bytes,
                "placed_bytes": placed, "share": placed / total if total else None, "peak_bytes": peaks.get(one.number),
                "distances": " ".join(str(distance) for distance in one.distances),
                "nearest": ", ".join(f"node {number}" for number in topology.nearest(one.number)) if not one.cpus else None,
            }
        )  # fmt: skip
    unknown = float(amounts[nodes < 0].sum())
    if unknown:
        rows.append({"node": None, "placed_bytes": unknown, "share": unknown / total if total else None})
    return rows


def _log(capture: Capture, homes: ThreadHomes, names: dict[tuple[int, int], str | None]) -> list[dict[str, Cell]]:
    """Every state of every thread, in the order of time."""
    begin = capture.begin_ns
    rows: list[tuple[int, dict[str, Cell]]] = []
    for (process, thread), states in homes.states.items():
        for number, state in enumerate(states):
            rows.append(
                (
                    state.time_ns,
                    {
                        "time_s": max(state.time_ns - begin, 0) / 1e9, "process": process, "thread": thread,
                        "name": names.get((process, thread)), "event": _event(state, number),
                        "cpus": cpu_list(state.cpus) if state.cpus is not None else None, "home": home_name(state.home),
                        "policy": POLICIES.get(state.policy, str(state.policy)),
                        "policy_nodes": ", ".join(map(str, state.policy_nodes)) or None,
                    },
                )
            )  # fmt: skip
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def _event(state: ThreadState, number: int) -> str:
    names = {"found": "at start" if number == 0 else "changed from outside", "moved": "between two readings"}
    return names.get(state.cause, state.cause)


def _matrix_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()), ("thread", pa.uint32()), ("name", pa.string()), ("home", pa.string()), ("node", pa.int32()),
            ("pages", pa.float64()), ("bytes", pa.float64()), ("unpinned_bytes", pa.float64()),
        ]
    )  # fmt: skip


def _node_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("node", pa.int32()), ("cpus", pa.string()), ("memory_bytes", pa.uint64()), ("placed_bytes", pa.float64()),
            ("share", pa.float64()), ("peak_bytes", pa.uint64()), ("distances", pa.string()), ("nearest", pa.string()),
        ]
    )  # fmt: skip


def _log_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("time_s", pa.float64()), ("process", pa.uint32()), ("thread", pa.uint32()), ("name", pa.string()), ("event", pa.string()),
            ("cpus", pa.string()), ("home", pa.string()), ("policy", pa.string()), ("policy_nodes", pa.string()),
        ]
    )  # fmt: skip


def view(result: Result) -> View:
    figures = result.figures
    one_node = (figures["nodes"] or 1) <= 1
    return View(
        title="NUMA placement",
        order=225,
        silent=one_node,
        headline=(
            "one NUMA node holds everything; nothing can be remote[; {unpinned_threads} of {threads} threads may run on several nodes]"
            if one_node
            else "{placed_bytes} placed on {nodes} nodes, at most {largest_node_share} on one[; {unpinned_share} by threads that may run on several nodes]"
        ),
        figures=(
            Figure(name="nodes", label="nodes", kind="count"),
            Figure(name="memory_only_nodes", label="nodes without CPUs", kind="count", show="nonzero"),
            Figure(name="placed_bytes", label="placed by faults", kind="bytes"),
            Figure(name="largest_node_share", label="on the fullest node", kind="share"),
            Figure(name="unpinned_bytes", label="placed by unpinned threads", kind="bytes", better="lower",
                   help="By threads that may run on several nodes and have no memory policy with one node."),
            Figure(name="unpinned_share", label="placed by unpinned threads, share", kind="share", better="lower"),
            Figure(name="threads", label="threads", kind="count"),
            Figure(name="bound_threads", label="threads with a node", kind="count", help="All CPUs of their affinity belong to one node."),
            Figure(name="unpinned_threads", label="unpinned threads", kind="count", better="lower"),
            Figure(name="affinity_changes", label="changes of affinity or policy", kind="count"),
        ),
        charts=(
            Chart(name="matrix", title="Placed by thread and node", kind="matrix", table="matrix", y_kind="bytes", role="detail",
                  columns=(("row", "thread"), ("row_name", "home"), ("column", "node"), ("value", "bytes")),
                  x_label="node", y_label="thread"),
        ),
        tables=(
            Table(name="by_node", title="By node", columns=(
                key("node", "node", "node", null="not known"), measure("cpus", "CPUs", "text"), measure("memory_bytes", "memory", "bytes", null=""),
                measure("placed_bytes", "placed", "bytes"), measure("share", "share", "share"),
                measure("peak_bytes", "peak", "bytes", show="known"), measure("distances", "distances", "text", null=""),
                measure("nearest", "nearest to", "text", show="known", null=""))),
            Table(name="matrix", title="By thread and node", sort="-bytes", columns=(
                key("process", "process", "process"), key("thread", "thread", "thread", beside=("name",)), key("home", "bound to", "text"),
                key("node", "on node", "node", null="not known"), measure("bytes", "placed", "bytes"), measure("pages", "pages", "count"),
                detail("unpinned_bytes", "while unpinned", "bytes"))),
            Table(name="pinning_log", title="Pinning log", role="detail", columns=(
                key("time_s", "time", "time_s"), key("process", "process", "process"), key("thread", "thread", "thread", beside=("name",)),
                measure("event", "event", "text"), measure("cpus", "CPUs", "text"), measure("home", "bound to", "text"),
                measure("policy", "policy", "text"), detail("policy_nodes", "policy's nodes", "text"))),
        ),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="placement",
    question="Which threads placed pages on which NUMA nodes, and were threads bound to nodes?",
    needs=("fault",),
    run=placement,
    view=view,
    applies=on_several_nodes,
    provide="memlens record (memlens doctor says whether it works here)",
)
