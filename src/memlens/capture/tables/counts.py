"""Tables of what was counted: one row for each place and site, block or region, and the static tables of counted modules.

Large; analyses use sums instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..model.count_tables import MIX
from ..store.count_arena import EVENT_0_READ, EVENTS, EVENTS_TOLD
from .descriptor import IMAGE, MODULE, PROCESS, REGION, Models, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Ints
    from ..model.counting import Counts, Places
    from ..store.source import TableSource


ACCESSES = {
    "loads": "accesses that read; an atomic operation is one load and one store",
    "stores": "accesses that wrote",
    "read_bytes": "bytes read, stack included",
    "written_bytes": "bytes written, stack included",
    "stack_loads": "loads that the compiler followed to the frame of their own function",
    "stack_stores": "stores, likewise",
    "stack_read_bytes": "bytes, likewise",
    "stack_written_bytes": "bytes, likewise",
    "estimated": "loads and stores are bytes / 8 (copies, fills, comparisons); the bytes are exact",
}
MIXES = {
    "integer_operations": "integer operations; null without --memlens-mix",
    "float_operations": "floating-point instructions, likewise",
    "vector_operations": "vector instructions, likewise",
    "branches": "branches, likewise",
    "calls": "calls, likewise",
    "prefetches": "prefetches, likewise",
    "float_results": "floating-point results, each lane one, likewise",
}


def site_counts(counts: Counts) -> pa.Table:
    """Table `site_counts`."""
    import pyarrow as pa

    rows, places = counts.by_site(), counts.places()
    accesses = counts.accesses(rows)
    static = counts.capture.table("count_sites")
    take = pa.array(rows.what)
    columns: dict[str, Array | pa.Array] = _place_columns(counts, places, rows.place)
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
    columns: dict[str, Array | pa.Array] = _place_columns(counts, places, rows.place)
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


def _place_columns(counts: Counts, places: Places, rows: Ints) -> dict[str, Array | pa.Array]:
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


def _site_counts(capture: Models) -> pa.Table:
    return site_counts(capture.counts)


def _block_counts(capture: Models) -> pa.Table:
    return block_counts(capture.counts)


def _trace_sites(capture: Models) -> pa.Table:
    return capture.trace_sites.table


def _static(name: str) -> Callable[[Models], pa.Table]:
    """The maker of a table of counted modules."""

    def make(capture: Models) -> pa.Table:
        from ..model.count_tables import decode_modules, kept_sections, static_schema, static_tables

        if name == "count_callees":  # the libraries were there when the program ran
            return static_schema(name).empty_table()
        return static_tables(decode_modules(kept_sections(capture)))[name]

    return make


def _schema(name: str) -> Callable[[], pa.Schema]:
    def schema() -> pa.Schema:
        from ..model.count_tables import static_schema

        return static_schema(name)

    return schema


TABLES = (
    TableDescriptor(
        name="block_counts",
        text="What compiled-in counters say of each block of code, by thread and region: counters times the tables of their module. "
        "Executions that were not counted (sampling) are not in it.",
        make=_block_counts,
        columns={
    "process": PROCESS, "image": IMAGE, "thread": "kernel thread id, 0 = threads that have ended, added up",
    "node": "region node of the image, 0 = outside any", "region": REGION, "module": MODULE,
    "function": "function that was compiled", "file": "its source file", "line": "line of the block's first instruction",
    "block": "number in its module; joins `count_blocks.block`", "depth": "loops around it", "executions": "how often it ran",
    **ACCESSES, **{name: f"{text}; times executions" for name, text in MIXES.items()},
},
    ),
    TableDescriptor(
        name="site_counts",
        text="The same for each access, copy, call and prefetch in the code.",
        make=_site_counts,
        columns={
    "process": PROCESS, "image": IMAGE, "thread": "kernel thread id, 0 = threads that have ended, added up",
    "node": "region node of the image, 0 = outside any", "region": REGION, "module": MODULE,
    "site": "number in its module; joins `count_sites.site`", "block": "its block; joins `count_blocks.block`",
    "function": "function, an inlined one by its own name", "inlined_into": "the functions it was inlined into, innermost first",
    "file": "source file", "line": "source line", "column": "source column",
    "kind": "load, store, atomic, copy, fill, read, call or prefetch", "flags": "as in `count_sites`",
    "callee": "function that is called, by linkage name", "executions": "how often it ran", **ACCESSES,
},
    ),
    TableDescriptor(
        name="trace_sites",
        text="The same with names and codes: what the compiler knows of each address in a trace. Joins `accesses.code`.",
        make=_trace_sites,
        columns={
    "code": "joins `accesses.code` and `sites.id`", "module": "file", "build_id": "build-id of the module, its path when it has none",
    "number": "as in `count_traced`", "function": "function, an inlined one by its own name",
    "inlined_into": "the functions it was inlined into, innermost first", "file": "source file", "line": "source line", "column": "source column",
    "site": "joins `count_sites.site` of its module", "operation": "load, store or atomic", "bytes": "bytes of one access, 0 = known only at run time",
    "class": "constant, strided or irregular", "kind": "as in `count_traced`", "stride_bytes": "as in `count_traced`",
    "implied": "true: a constant, no row of `accesses`; its executions are in `windows.implied_constant`",
    "stand_in": "code of the recorded site that is executed whenever this constant is; null = none is known, or it is recorded itself",
    "loop": "innermost loop around it, as in `sites`; null = in none, or its module does not describe loops",
    "loop_function": "function that the loop is written in", "loop_depth": "loops around the loop in that function, with itself",
    "loop_parent": "the loop around the loop in that function, null = none",
},
    ),
    TableDescriptor(
        name="count_functions",
        text="Functions with compiled-in counters, from the tables of counted modules.",
        make=_static("count_functions"),
        schema=_schema("count_functions"),
        columns={
    "module": MODULE, "function": "number in its module", "name": "name as people read it", "linkage_name": "name as linkers see it",
    "file": "source file", "line": "source line", "first_counter": "its first counter in the module", "counters": "how many it has",
    "flags": "sum of flags: 1 mix, 2 naive", "sound": "false: its table is damaged, and nothing more is known of it",
},
    ),
    TableDescriptor(
        name="count_sites",
        text="Accesses, copies, calls and prefetches in the code of counted modules.",
        make=_static("count_sites"),
        schema=_schema("count_sites"),
        columns={
    "module": MODULE, "site": "number in its module", "function": "function that was compiled; joins `count_functions.function`",
    "name": "function it is in, an inlined one by its own name", "inlined_into": "the functions that was inlined into, innermost first",
    "kind": "load, store, atomic, copy, fill, read, call or prefetch",
    "flags": "sum of flags: 1 stack read, 2 stack written, 4 vector, 8 masked, 16 volatile, 32 non-temporal, 64 atomic order, "
    "128 floating-point, 256 gather or scatter",
    "bytes": "bytes that one execution moves, 0 = known only at run time", "block": "its block", "group": "it runs as often as this group",
    "bytes_counter": "counter that sums its bytes, null = none", "file": "source file", "line": "source line", "column": "source column",
    "callee": "function that is called, by linkage name; null = not a call, or an indirect one",
},
    ),
    TableDescriptor(
        name="count_terms",
        text="What groups are: a group ran Σ counter × scale times, modulo 2^64. Scales may be negative: a group may be what two "
        "counters leave between them. While a program runs, and of one that was killed, such a sum may be below zero for a "
        "moment; it is read as none.",
        make=_static("count_terms"),
        schema=_schema("count_terms"),
        columns={"module": MODULE, "group": "number in its module", "counter": "number in its module", "scale": "factor"},
    ),
    TableDescriptor(
        name="count_blocks",
        text="Blocks of counted code. Operations are those of one execution.",
        make=_static("count_blocks"),
        schema=_schema("count_blocks"),
        columns={
    "module": MODULE, "block": "number in its module", "function": "joins `count_functions.function`", "group": "it runs as often as this group",
    "depth": "loops around it", "line": "line of its first instruction", **MIXES,
},
    ),
    TableDescriptor(
        name="count_counters",
        text="Counters of counted modules.",
        make=_static("count_counters"),
        schema=_schema("count_counters"),
        columns={
    "module": MODULE, "counter": "number in its module",
    "kind": "block (one add where the code runs), entry (a loop's trip count, before it), exit (when it is left), bytes, kept (in a register inside a loop)",
},
    ),
    TableDescriptor(
        name="count_callees",
        text="Functions that counted code calls and no counted module has.",
        make=_static("count_callees"),
        schema=_schema("count_callees"),
        columns={"callee": "linkage name", "library": "library that defines it, null = none was found"},
    ),
    TableDescriptor(
        name="count_traced",
        text="Addresses that traced code records or implies, from the tables of its modules.",
        make=_static("count_traced"),
        schema=_schema("count_traced"),
        columns={
    "module": MODULE, "number": "number among the recorded ones of its module, from 0; null = a constant, which is implied",
    "site": "joins `count_sites.site`", "class": "constant, strided or irregular",
    "kind": "plain, or of irregular ones: indirect (through a loaded pointer), computed (a loaded or computed index), chase (the loaded "
    "value leads to the next address); of strided ones: variable (the step does not change in the loop, but only the program knows it)",
    "stride_bytes": "step of a strided one in the loop around it, else null (also of kind variable)", "is_written": "of a copy: what it writes",
    "stand_in": "of an implied constant: `number` of the recorded one that is executed whenever it is; null = none is known",
    "bytes": "bytes of one access, 0 = recorded in the stream",
},
    ),
    TableDescriptor(
        name="count_loops",
        text="Loops of traced functions as the source has them: a vector body, its remainder and copies of unrolling are one loop.",
        make=_static("count_loops"),
        schema=_schema("count_loops"),
        columns={
    "module": MODULE, "loop": "number in its module", "function": "function of the code that it is in; joins `count_functions.function`",
    "parent": "loop around it in the code, also of a function that its own was inlined into; null = none",
    "name": "function that it is written in", "inlined_into": "the functions that this was inlined into, innermost first",
    "depth": "loops around it in the function that it is written in, with itself", "own_parent": "the next of these, null = none",
    "file": "source file", "line": "line of its beginning, 0 = not known", "column": "column of its beginning",
    "sites": "sites that it is the innermost loop of: `count_sites.site`",
},
    ),
)  # fmt: skip
