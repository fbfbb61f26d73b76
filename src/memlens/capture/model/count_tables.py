"""Static tables of counted modules: the sections that the compiler plugin wrote, decoded into side tables of a capture.

Owns the columns of `count_functions`, `count_sites`, `count_terms`, `count_blocks`, `count_counters`, `count_traced` and `count_loops`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, cast

from ... import _core
from ..store.layouts import layouts, listed, records_with_tails

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Columns, Integers, Ints, Uint8s, Uint32s
    from ..store.source import RecordSource

NONE = 2**32 - 1
KINDS, COUNTER_KINDS, MIX = listed("site_kind"), listed("counter_kind"), listed("block_mix")
STATIC_TABLES = (
    *("count_functions", "count_sites", "count_terms", "count_blocks", "count_counters"),
    *("count_traced", "count_loops"),
)
"""Those that are decoded; `count_callees` says where functions are that no counted module has."""
TRACE_CLASSES, TRACE_KINDS = listed("trace_class"), listed("trace_kind")
TRACE_STRIDED, TRACE_VARIABLE = TRACE_CLASSES.index("strided"), TRACE_KINDS.index("variable")


def static_schema(name: str) -> pa.Schema:
    import pyarrow as pa

    text, number, wide = pa.dictionary(pa.int32(), pa.string()), pa.uint32(), pa.uint64()
    columns: dict[str, list[tuple[str, pa.DataType]]] = {
        "count_functions": [
            ("module", text), ("function", number), ("name", pa.string()), ("linkage_name", pa.string()), ("file", text),
            ("line", number), ("first_counter", wide), ("counters", number), ("flags", number), ("sound", pa.bool_()),
        ],
        "count_sites": [
            ("module", text), ("site", number), ("function", number), ("name", text), ("inlined_into", pa.list_(pa.string())),
            ("kind", text), ("flags", number), ("bytes", wide), ("block", number), ("group", number),
            ("bytes_counter", number), ("file", text), ("line", number), ("column", number), ("callee", text),
        ],
        "count_terms": [("module", text), ("group", number), ("counter", number), ("scale", pa.int64())],
        "count_blocks": [
            ("module", text), ("block", number), ("function", number), ("group", number), ("depth", number), ("line", number),
            *((name, number) for name in MIX),
        ],
        "count_counters": [("module", text), ("counter", number), ("kind", text)],
        "count_callees": [("callee", pa.string()), ("library", pa.string())],
        "count_traced": [
            ("module", text), ("number", number), ("site", number), ("class", text), ("kind", text), ("stride_bytes", pa.int64()),
            ("is_written", pa.bool_()), ("bytes", wide), ("stand_in", number),
        ],
        "count_loops": [
            ("module", text), ("loop", number), ("function", number), ("parent", number), ("name", text), ("inlined_into", pa.list_(pa.string())),
            ("depth", number), ("own_parent", number), ("file", text), ("line", number), ("column", number), ("sites", pa.list_(number)),
        ],
    }  # fmt: skip
    return pa.schema(columns[name])


def kept_sections(capture: RecordSource) -> dict[str, tuple[bytes, int, bytes, int]]:
    """The sections that the recorder copied: module → (functions, their address, tables, their address)."""
    layout = layouts()["count_tables"]
    parts: dict[int, list[tuple[dict[str, int], bytes]]] = {}
    for _, payload in capture.payloads("count_tables"):
        for record, tail in records_with_tails(layout, payload):
            parts.setdefault(record["module"], []).append((record, tail))
    strings = capture.strings()
    found = {}
    for module, pieces in parts.items():
        pieces.sort(key=lambda piece: piece[0]["offset"])
        head = pieces[0][0]
        whole = b"".join(tail for _, tail in pieces)
        split = head["functions_bytes"]
        if len(whole) != split + head["tables_bytes"]:
            whole = b""  # a part was lost: half a table is none
            split = 0
        found[strings.get(module, str(module))] = (
            whole[:split], head["functions_address"], whole[split:], head["tables_address"],
        )  # fmt: skip
    return found


class DecodedTables(TypedDict):
    """The static tables of a module: columns of each, with numbers of texts in `strings`."""

    strings: list[str]
    problems: list[str]
    damaged_functions: int
    functions: Columns
    scopes: Columns
    blocks: Columns
    sites: Columns
    counter_kind: Uint8s
    first_term: Uint32s
    term_counter: Uint32s
    term_scale: Ints
    loops: Columns
    loop_of_site: Uint32s
    traced: Columns


def decode_modules(sections: Mapping[str, tuple[bytes, int, bytes, int]]) -> dict[str, DecodedTables]:
    return {
        module: cast(
            "DecodedTables",
            _core.decode_count_tables(
                functions, functions_address=functions_address, tables=tables, tables_address=tables_address
            ),
        )
        for module, (functions, functions_address, tables, tables_address) in sections.items()
    }


def problems(decoded: Mapping[str, DecodedTables], paths: Mapping[str, str]) -> list[str]:
    """What is wrong with the tables of each module, a sentence each."""
    notes = []
    for module, tables in decoded.items():
        if tables["problems"]:
            name = os.path.basename(paths.get(module, module))
            notes.append(
                f"The static tables of {name} are damaged for {tables['damaged_functions']} functions, whose counts are left "
                f"out: {tables['problems'][0]}."
            )
    return notes


def static_tables(decoded: Mapping[str, DecodedTables], *, redact: bool = False) -> dict[str, pa.Table]:
    """The side tables, from decoded modules."""
    import numpy as np
    import pyarrow as pa

    parts: dict[str, list[pa.Table]] = {name: [] for name in STATIC_TABLES}
    for module, tables in decoded.items():
        texts: list[str] = tables["strings"]
        names = pa.array([_core.demangle(text) for text in texts], pa.string())
        files = pa.array([os.path.basename(text) for text in texts] if redact else texts, pa.string())
        raw = pa.array(texts, pa.string())

        def add(name: str, columns: Mapping[str, object], rows: int, module: str = module) -> None:
            schema = static_schema(name)
            whose = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([module]))
            arrays = [whose if field.name == "module" else _cast(columns[field.name], field.type) for field in schema]
            parts[name].append(pa.Table.from_arrays(arrays, schema=schema))

        functions, scopes, blocks, sites = tables["functions"], tables["scopes"], tables["blocks"], tables["sites"]
        n_functions = len(functions["name"])
        add(
            "count_functions",
            {
                "function": np.arange(n_functions, dtype=np.uint32),
                "name": names.take(pa.array(functions["name"])),
                "linkage_name": raw.take(pa.array(functions["name"])),
                "file": _known(functions, files),
                "line": functions["line"],
                "first_counter": functions["first_counter"],
                "counters": functions["counters"],
                "flags": functions["flags"],
                "sound": functions["sound"].astype(bool),
            },
            n_functions,
        )
        chains = _chains(scopes, functions, names, files)
        n_scopes = len(scopes["name"])
        scope = sites["scope"].astype(np.int64)
        inlined = scope != NONE
        innermost = functions["name"][sites["function"]].copy()
        innermost[inlined] = scopes["name"][scope[inlined]]
        n_sites = len(scope)
        add(
            "count_sites",
            {
                "site": np.arange(n_sites, dtype=np.uint32),
                "function": sites["function"],
                "name": _texts(innermost, names),
                "inlined_into": chains.take(pa.array(np.where(inlined, scope, n_scopes))),
                "kind": _texts(np.minimum(sites["kind"], len(KINDS)), pa.array([*KINDS, "unknown"])),
                "flags": sites["flags"],
                "bytes": sites["bytes"],
                "block": sites["block"],
                "group": _optional(sites["group"]),
                "bytes_counter": _optional(sites["bytes_counter"]),
                "file": _known(sites, files),
                "line": sites["line"],
                "column": sites["column"],
                "callee": _texts(sites["callee"], raw),
            },
            n_sites,
        )
        firsts = tables["first_term"].astype(np.int64)
        groups = np.repeat(np.arange(len(firsts) - 1, dtype=np.uint32), np.diff(firsts))
        add(
            "count_terms",
            {"group": groups, "counter": tables["term_counter"], "scale": tables["term_scale"]},
            len(groups),
        )
        n_blocks = len(blocks["function"])
        has_mix = blocks["has_mix"].astype(bool)
        add(
            "count_blocks",
            {
                "block": np.arange(n_blocks, dtype=np.uint32),
                "function": blocks["function"],
                "group": _optional(blocks["group"]),
                "depth": blocks["depth"],
                "line": blocks["line"],
                **{name: pa.array(blocks[name], mask=~has_mix) for name in MIX},
            },
            n_blocks,
        )
        kinds = tables["counter_kind"]
        add(
            "count_counters",
            {
                "counter": np.arange(len(kinds), dtype=np.uint32),
                "kind": _texts(np.minimum(kinds, len(COUNTER_KINDS)), pa.array([*COUNTER_KINDS, "unknown"])),
            },
            len(kinds),
        )
        traced = tables["traced"]
        has_step = (traced["class"] == TRACE_STRIDED) & (traced["kind"] != TRACE_VARIABLE)
        add(
            "count_traced",
            {
                "number": _optional(traced["number"]),
                "site": traced["site"],
                "class": _texts(np.minimum(traced["class"], len(TRACE_CLASSES)), pa.array([*TRACE_CLASSES, "unknown"])),
                "kind": _texts(np.minimum(traced["kind"], len(TRACE_KINDS)), pa.array([*TRACE_KINDS, "unknown"])),
                "stride_bytes": pa.array(traced["step_bytes"], mask=~has_step),
                "is_written": traced["is_written"].astype(bool),
                "bytes": traced["bytes"],
                "stand_in": _optional(traced["stand_in"]),
            },
            len(traced["site"]),
        )
        loops = tables["loops"]
        loop_scope = loops["scope"].astype(np.int64)
        is_inlined = loop_scope != NONE
        written_in = functions["name"][loops["function"]].copy()
        written_in[is_inlined] = scopes["name"][loop_scope[is_inlined]]
        own_parent, depth = _nesting(loops)
        add(
            "count_loops",
            {
                "loop": np.arange(len(loop_scope), dtype=np.uint32),
                "function": loops["function"],
                "parent": _optional(loops["parent"]),
                "name": _texts(written_in, names),
                "inlined_into": chains.take(pa.array(np.where(is_inlined, loop_scope, n_scopes))),
                "depth": depth,
                "own_parent": _optional(own_parent),
                "file": _known(loops, files),
                "line": loops["line"],
                "column": loops["column"],
                "sites": _members(tables["loop_of_site"], len(loop_scope)),
            },
            len(loop_scope),
        )
    return {
        name: pa.concat_tables(pieces).unify_dictionaries() if pieces else static_schema(name).empty_table()
        for name, pieces in parts.items()
    }


def _cast(values: Array | pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


def _known(rows: Columns, files: pa.Array) -> pa.Array:
    """The files of rows that have a line: line 0 is code of no line, and no place."""
    import numpy as np

    empty = next((at for at, text in enumerate(files.to_pylist()) if text == ""), None)
    known = rows["line"] != 0
    return _texts(rows["file"] if empty is None else np.where(known, rows["file"], empty), files)


def _texts(numbers: Integers, texts: pa.Array) -> pa.Array:
    """Numbers of texts as a dictionary column, only with the texts that are used; "" is null."""
    import numpy as np
    import pyarrow as pa

    used, inverse = np.unique(numbers, return_inverse=True)
    picked = texts.take(pa.array(used.astype(np.int64)))
    empty = np.array([text == "" for text in picked.to_pylist()], dtype=bool)
    mask = empty[inverse] if len(empty) else np.zeros(0, dtype=bool)
    return pa.DictionaryArray.from_arrays(pa.array(inverse.astype(np.int32), mask=mask), picked)


def _optional(numbers: Uint32s) -> pa.Array:
    import pyarrow as pa

    return pa.array(numbers, mask=numbers == NONE)


def _nesting(loops: Columns) -> tuple[Uint32s, Uint32s]:
    """The loop around each one in the function that it is written in (`NONE` = none), and how many of these there are with
    itself. What another function has around a call of it is not its own."""
    import numpy as np

    parents, scopes, functions = (loops[name].tolist() for name in ("parent", "scope", "function"))
    own: list[int] = []
    depth: list[int] = []
    for parent, scope, function in zip(parents, scopes, functions, strict=True):
        # The loops around one come before it.
        same = parent != NONE and (scopes[parent], functions[parent]) == (scope, function)
        own.append(parent if same else NONE)
        depth.append(depth[parent] + 1 if same else 1)
    return np.array(own, dtype=np.uint32), np.array(depth, dtype=np.uint32)


def _members(loop_of_site: Uint32s, loops: int) -> pa.Array:
    """The sites that each loop is the innermost one of."""
    import numpy as np
    import pyarrow as pa

    (inside,) = np.nonzero(loop_of_site != NONE)
    order = inside[np.argsort(loop_of_site[inside], kind="stable")]
    ends = np.searchsorted(loop_of_site[order], np.arange(loops + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(order.astype(np.uint32)))


def _chains(scopes: Columns, functions: Columns, names: pa.Array, files: pa.Array) -> pa.Array:
    """For each scope the functions that it was inlined into and where, innermost first; an empty list at the end.
    Written as table `sites` has them."""
    import pyarrow as pa

    texts, paths = names.to_pylist(), files.to_pylist()
    parents, calls, of_function = (scopes[name].tolist() for name in ("parent", "call_line", "function"))
    own = list(zip(scopes["name"].tolist(), scopes["file"].tolist(), strict=True))
    outer = list(zip(functions["name"].tolist(), functions["file"].tolist(), strict=True))
    chains: list[list[str]] = []
    for number in range(len(parents)):
        chain: list[str] = []
        at: int | None = number
        while at is not None:
            line, parent = calls[at], parents[at]
            name, file = own[parent] if parent != NONE else outer[of_function[number]]
            path = paths[file] if file < len(paths) else None
            chain.append(f"{texts[name]} ({os.path.basename(path)}:{line})" if path and line else texts[name])
            at = parent if parent != NONE else None
        chains.append(chain)
    return pa.array([*chains, []], pa.list_(pa.string()))
