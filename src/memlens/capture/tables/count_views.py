"""Tables of what was counted: one row for each place and site, block or region. Large; analyses use sums instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.count_tables import MIX
from ..store.count_arena import EVENT_0_READ, EVENTS, EVENTS_TOLD

if TYPE_CHECKING:
    import pyarrow as pa

    from ..model.counting import Counts, Places
    from ..store.source import TableSource


def site_counts(counts: Counts) -> pa.Table:
    """Table `site_counts`."""
    import pyarrow as pa

    rows, places = counts.by_site(), counts.places()
    accesses = counts.accesses(rows)
    static = counts.capture.table("count_sites")
    take = pa.array(rows.what)
    columns: dict[str, Any] = _place_columns(counts, places, rows.place)
    columns |= {
        "module": static.column("module").take(take),
        "site": static.column("site").take(take),
        "block": static.column("block").take(take),
        "function": static.column("name").take(take),
        "inlined_into": static.column("inlined_into").take(take),
        "file": static.column("file").take(take),
        "line": static.column("line").take(take),
        "column": static.column("column").take(take),
        "kind": static.column("kind").take(take),
        "flags": static.column("flags").take(take),
        "callee": static.column("callee").take(take),
        "executions": pa.array(rows.executions),
        **{name: pa.array(values) for name, values in accesses.items()},
    }
    return pa.table(columns)


def block_counts(counts: Counts) -> pa.Table:
    """Table `block_counts`."""
    import numpy as np
    import pyarrow as pa

    rows, places, by_site = counts.by_block(), counts.places(), counts.by_site()
    accesses = counts.accesses(by_site)
    n_blocks = len(counts.blocks["block"])
    keys = rows.place * n_blocks + rows.what
    order = np.argsort(keys, kind="stable")
    wanted = by_site.place * n_blocks + counts.sites["block"][by_site.what]
    at = np.searchsorted(keys[order], wanted)
    # A site may have executions where its block has no group of its own: those have no row.
    at_safe = np.minimum(at, max(len(keys) - 1, 0))
    found = (at < len(keys)) & (keys[order][at_safe] == wanted) if len(keys) else np.zeros(len(wanted), dtype=bool)
    target = order[at_safe[found]] if len(keys) else np.zeros(0, dtype=np.int64)
    static = counts.capture.table("count_blocks")
    function = pa.array(counts.blocks["function"][rows.what])
    columns: dict[str, Any] = _place_columns(counts, places, rows.place)
    take = pa.array(rows.what)
    columns |= {
        "module": static.column("module").take(take),
        "function": counts.functions.column("name").take(function),
        "file": counts.functions.column("file").take(function),
        "line": static.column("line").take(take),
        "block": static.column("block").take(take),
        "depth": static.column("depth").take(take),
        "executions": pa.array(rows.executions),
    }
    for name, values in accesses.items():
        sums = np.zeros(len(rows.what), dtype=np.int64)
        np.add.at(sums, target, values[found].astype(np.int64))
        columns[name] = pa.array(sums > 0) if name == "estimated" else pa.array(sums)
    has_mix = counts.blocks["has_mix"][rows.what]
    for name in MIX:
        columns[name] = pa.array(counts.blocks[name][rows.what].astype(np.int64) * rows.executions, mask=~has_mix)
    return pa.table(columns)


def _place_columns(counts: Counts, places: Places, rows: Any) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    paths = [" / ".join(counts.path_of(int(i), int(n))) or None for i, n in zip(places.image, places.node, strict=True)]
    distinct = list(dict.fromkeys(path for path in paths if path is not None))
    numbers = {path: number for number, path in enumerate(distinct)}
    index = np.array([numbers.get(path or "", -1) for path in paths], dtype=np.int32)
    picked = index[rows] if len(index) else np.zeros(0, dtype=np.int32)
    region = pa.DictionaryArray.from_arrays(pa.array(picked, mask=picked < 0), pa.array(distinct, pa.string()))
    return {
        "process": pa.array(places.process[rows]),
        "image": pa.array(places.image[rows]),
        "thread": pa.array(places.thread[rows]),
        "node": pa.array(places.node[rows]),
        "region": region,
    }


def with_known_events(table: pa.Table, capture: TableSource) -> pa.Table:
    """Records of region times; events that could not be opened, read or scheduled are null, and their share of the time too."""
    import numpy as np
    import pyarrow as pa

    flags = table.column("flags").to_numpy().astype(np.int64)
    share = table.column("event_share_ppm").to_numpy()
    opened = dict.fromkeys(table.column("image").to_pylist(), 0)
    opened |= {row["image"]: row["events_open"] for row in capture.table("count_status").to_pylist()}
    # Recordings before the flags existed: what the first thread could open.
    by_image = np.array([opened[image] for image in table.column("image").to_pylist()], dtype=np.int64)
    told = (flags & EVENTS_TOLD) != 0
    read = np.where(told, flags // EVENT_0_READ & 15, np.where(share > 0, by_image, 0))
    for number in range(EVENTS):
        unknown = (read >> number & 1) == 0
        for kind in ("counted", "untouched"):
            name = f"{kind}_event_{number}"
            at = table.column_names.index(name)
            table = table.set_column(at, name, pa.array(table.column(name).to_numpy(), mask=unknown))
    at = table.column_names.index("event_share_ppm")
    return table.set_column(at, "event_share_ppm", pa.array(share, mask=read == 0))


def region_times(counts: Counts) -> pa.Table:
    """Table `region_times`: records with the path of their region."""
    import pyarrow as pa

    table = counts.capture.table("region_time_records")
    images, nodes = table.column("image").to_pylist(), table.column("node").to_pylist()
    paths = [" / ".join(counts.path_of(image, node)) or None for image, node in zip(images, nodes, strict=True)]
    region = pa.array(paths, pa.string()).dictionary_encode()
    return table.add_column(1, "region", region)
