"""Figures and tables of the analysis `numa`, from what its pass has summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...capture.model.places import UNPINNED
from ._classes import CLASSES, COMPARED, NUMBER, REMOTE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ...results import Cell
    from .._groups import Dimension
    from ._pass import NumaPass, _Shares

    Row = dict[str, Cell]


def _of(weights: npt.NDArray[np.float64], names: tuple[str, ...]) -> float:
    return float(sum(weights[NUMBER[name]] for name in names))


def _remote(sums: _Shares, number: int, whole: bool) -> tuple[float | None, float | None]:
    """The share of remote accesses among those whose distance is known, and its standard error between windows."""
    remote, compared = _of(sums.weight[number], REMOTE), _of(sums.weight[number], COMPARED)
    if not compared:
        return None, None
    share = remote / compared
    windows = float(sums.windows[number])
    if whole:
        return share, 0.0
    if windows < 2:
        return share, None
    rr, rc, cc = (float(value) for value in sums.squares[number])
    # A ratio of two sums over windows.
    residual = max(0.0, rr - 2 * share * rc + share * share * cc)
    return share, float((residual * windows / (windows - 1)) ** 0.5 / compared)


def _worst(pass_: NumaPass) -> dict[str, Cell]:
    """The object that most remote accesses go to, and which thread placed the pages of them, at which line."""
    import numpy as np

    found: dict[str, Cell] = dict.fromkeys(("worst_object", "worst_share", "worst_thread", "worst_place"))
    sums = pass_.sums["object"]
    remote = sum((sums.weight[:, NUMBER[name]] for name in REMOTE), np.zeros(len(sums.weight)))
    if not len(remote) or not remote.sum():
        return found
    worst = int(remote.argmax())
    found["worst_object"] = pass_.dimensions["object"].keys[worst][0]
    found["worst_share"] = float(remote[worst] / remote.sum())
    mine = np.flatnonzero((pass_.object_of_page == worst) & (pass_.pages.toucher >= 0) & (pass_.remote_by_page > 0))
    if not len(mine):
        return found
    weights = pass_.remote_by_page[mine]
    threads, of_thread = np.unique(pass_.pages.toucher[mine], return_inverse=True)
    by_thread = np.bincount(of_thread.reshape(-1), weights=weights)
    if by_thread.max() > 0.5 * by_thread.sum():
        found["worst_thread"] = int(threads[by_thread.argmax()])
    codes, of_code = np.unique(pass_.pages.touch_code[mine], return_inverse=True)
    code = int(codes[np.bincount(of_code.reshape(-1), weights=weights).argmax()])
    site = pass_.capture.whole.replay.code_sites.slice(code, 1).to_pylist()[0]
    if site["function"] and site["file"]:
        found["worst_place"] = f"{site['function']} ({site['file'].rpartition('/')[2]}:{site['line']})"
    elif site["function"] or site["module"]:
        found["worst_place"] = site["function"] or site["module"].rpartition("/")[2]
    return found


def figures_of(pass_: NumaPass) -> dict[str, Cell]:
    sums = pass_.sums["program"]
    have = len(sums.weight) > 0
    weights = sums.weight[0] if have else [0.0] * len(CLASSES)
    moved = sums.bytes[0] if have else [0.0] * len(CLASSES)
    share, error = _remote(sums, 0, pass_.accesses.is_whole) if have else (None, None)
    states = [pass_.homes.at(key, pass_.capture.whole.end_ns) for key in pass_.accesses.streams]
    distances = [(distance, count) for distance, count in _distances(pass_).items() if distance is not None]
    counted = sum(count for _, count in distances)
    unpinned = float(sum(weights[NUMBER[name]] for name in ("unpinned_page", "unpinned_thread", "unpinned_both")))
    figures: dict[str, Cell] = {
        "nodes": len(pass_.topology.nodes),
        "memory_only_nodes": len(pass_.topology.without_cpus),
        "accesses": float(sum(weights)),
        "recorded_accesses": int(sums.recorded[0]) if have else 0,
        "everything_recorded": pass_.accesses.is_whole,
        "bytes": float(sum(moved)),
    }
    figures |= {name: float(weights[number]) for number, name in enumerate(CLASSES)}
    figures |= {
        "remote_share": share,
        "remote_share_error": error,
        "remote_bytes": float(sum(moved[NUMBER[name]] for name in REMOTE)),
        "unpinned_share": unpinned / float(sum(weights)) if sum(weights) else None,
        "mean_distance": sum(distance * count for distance, count in distances) / counted if counted else None,
        "stack_accesses": None if pass_.with_stack else pass_.of_stack,
        "bound_threads": sum(1 for state in states if state is not None and state.home >= 0),
        "unpinned_threads": sum(1 for state in states if state is not None and state.home == -1),
        "threads": len(states),
        "binding_unknown": pass_.not_known_binding,
    }
    return figures | _worst(pass_)


def group_rows(pass_: NumaPass, name: str, dimension: Dimension, most: int) -> pa.Table:
    import pyarrow as pa

    sums, whole = pass_.sums[name], pass_.accesses.is_whole
    keys = dimension.keys
    total = float(sums.weight.sum())
    rows: list[Row] = []
    for number in range(len(sums.weight)):
        weights = sums.weight[number]
        accesses = float(weights.sum())
        if not accesses:
            continue
        share, error = _remote(sums, number, whole)
        row: Row = dict(zip(dimension.names, keys[number], strict=True))
        row |= {
            "accesses": accesses,
            "share": accesses / total if total else None,
            "remote_share": share,
            "remote_share_error": error,
        }
        row |= {one: float(weights[at]) for at, one in enumerate(CLASSES)}
        row |= {
            "bytes": float(sums.bytes[number].sum()),
            "remote_bytes": float(sum(sums.bytes[number][NUMBER[one]] for one in REMOTE)),
            "windows": int(sums.windows[number]),
        }
        if name == "thread":
            state = pass_.homes.at((int(str(row["process"])), int(str(row["thread"]))), pass_.capture.whole.end_ns)
            row["home"] = _home_name(state.home if state is not None else -2)
        rows.append(row)
    rows.sort(key=lambda row: (-float(str(row["remote_bytes"])), -float(str(row["accesses"]))))
    schema = [(one, _type(one)) for one in dimension.names]
    schema += [("home", pa.string())] if name == "thread" else []
    schema += [
        ("accesses", pa.float64()),
        ("share", pa.float64()),
        ("remote_share", pa.float64()),
        ("remote_share_error", pa.float64()),
    ]
    schema += [(one, pa.float64()) for one in CLASSES]
    schema += [("bytes", pa.float64()), ("remote_bytes", pa.float64()), ("windows", pa.uint64())]
    return pa.Table.from_pylist(rows[:most], schema=pa.schema(schema))


def _type(name: str) -> pa.DataType:
    import pyarrow as pa

    return pa.uint32() if name in ("process", "thread", "line") else pa.string()


def _home_name(home: int) -> str:
    return {-1: "unpinned", -2: "not recorded"}.get(home, f"node {home}")


def matrix_rows(pass_: NumaPass) -> pa.Table:
    """Accesses by the thread's home and the page's node, and by thread."""
    import pyarrow as pa

    names = {(row["process"], row["thread"]): row["name"] for row in pass_.capture.table("threads").to_pylist()}
    rows = []
    for (stream, home), cells in sorted(pass_.matrix.items()):
        if home < UNPINNED:
            continue
        process, thread = pass_.accesses.streams[stream]
        for node in range(pass_.n_nodes):
            if cells[0][node]:
                rows.append(
                    {
                        "process": process, "thread": thread, "name": names.get((process, thread)), "home": _home_name(home),
                        "thread_node": home if home >= 0 else None, "page_node": node, "accesses": float(cells[0][node]),
                        "bytes": float(cells[1][node]), "distance": pass_.topology.distance(home, node) if home >= 0 else None,
                    }
                )  # fmt: skip
    schema = pa.schema(
        [
            ("process", pa.uint32()), ("thread", pa.uint32()), ("name", pa.string()), ("home", pa.string()), ("thread_node", pa.int32()),
            ("page_node", pa.int32()), ("accesses", pa.float64()), ("bytes", pa.float64()), ("distance", pa.int32()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def _distances(pass_: NumaPass) -> dict[int | None, float]:
    found: dict[int | None, float] = {}
    for (_, home), cells in pass_.matrix.items():
        for node in range(pass_.n_nodes):
            if cells[0][node] and home >= UNPINNED:
                distance = pass_.topology.distance(home, node) if home >= 0 else None
                found[distance] = found.get(distance, 0.0) + float(cells[0][node])
    return found


def distance_rows(pass_: NumaPass) -> pa.Table:
    """Accesses by the distance of thread and page as the firmware states it; null: the thread is not pinned."""
    import pyarrow as pa

    found = _distances(pass_)
    total = sum(found.values())
    rows = [
        {"distance": distance, "accesses": count, "share": count / total if total else None}
        for distance, count in sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0))
    ]
    schema = pa.schema([("distance", pa.int32()), ("accesses", pa.float64()), ("share", pa.float64())])
    return pa.Table.from_pylist(rows, schema=schema)


def object_thread_rows(pass_: NumaPass, most: int) -> pa.Table:
    """The range of each object that each thread uses, and the thread's share of the object's accesses."""
    import pyarrow as pa

    keys = pass_.dimensions["object"].keys
    names = {(row["process"], row["thread"]): row["name"] for row in pass_.capture.table("threads").to_pylist()}
    totals: dict[int, float] = {}
    for (group, _), (_, _, accesses) in pass_.spans.items():
        totals[group] = totals.get(group, 0.0) + accesses
    rows = []
    ranked = sorted(pass_.spans.items(), key=lambda item: (-totals[item[0][0]], item[0][0], item[1][0]))
    for (group, stream), (low, end, accesses) in ranked[:most]:
        process, thread = pass_.accesses.streams[stream]
        name, kind = keys[group]
        rows.append(
            {
                "object": name, "kind": kind, "process": process, "thread": thread, "name": names.get((process, thread)),
                "begin": int(low), "end": int(end), "accesses": accesses, "share": accesses / totals[group] if totals[group] else None,
            }
        )  # fmt: skip
    schema = pa.schema(
        [
            ("object", pa.string()), ("kind", pa.string()), ("process", pa.uint32()), ("thread", pa.uint32()), ("name", pa.string()),
            ("begin", pa.uint64()), ("end", pa.uint64()), ("accesses", pa.float64()), ("share", pa.float64()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)
