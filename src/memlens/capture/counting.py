"""Compiled-in counting, read back: static tables of counted modules, and what counters times tables give.

Owns the meaning of counters: a group ran Σ counter × scale times, modulo 2^64 and then read as signed; a site runs as
often as its group and moves its bytes each time, or what its own counter of bytes says. Everything is joined sparsely: the
cost follows what was executed, not threads × sites.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import _core
from .layouts import layouts, records_with_tails

if TYPE_CHECKING:
    import pyarrow as pa

    from .reader import Capture

NONE = 2**32 - 1
KINDS = ("load", "store", "atomic", "copy", "fill", "read", "call", "prefetch")
LOAD, STORE, ATOMIC, COPY, FILL, READ, CALL, PREFETCH = range(8)
COUNTER_KINDS = ("block", "entry", "exit", "bytes", "kept")
STACK_READ, STACK_WRITTEN, VECTOR, MASKED, VOLATILE, NONTEMPORAL, ATOMIC_ORDER, FLOAT, GATHER = (
    1 << n for n in range(9)
)
MIX = (
    "integer_operations",
    "float_operations",
    "vector_operations",
    "branches",
    "calls",
    "prefetches",
    "float_results",
)
TABLE_MIX, TABLE_NAIVE = 1, 2
BYTES_AN_ACCESS = 8
"""A copy or fill of n bytes counts as n / 8 accesses, as in the Examem paper: how many there are is the library's choice."""
STATIC_TABLES = ("count_functions", "count_sites", "count_terms", "count_blocks", "count_counters")
"""Those that are decoded; `count_callees` says where functions are that no counted module has."""
NO_REGION = "(outside regions)"


# ---- static tables -----------------------------------------------------------------------------------------------
def static_schema(name: str) -> pa.Schema:
    import pyarrow as pa

    text, number, wide = pa.dictionary(pa.int32(), pa.string()), pa.uint32(), pa.uint64()
    columns: dict[str, list[tuple[str, Any]]] = {
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
    }  # fmt: skip
    return pa.schema(columns[name])


def kept_sections(capture: Capture) -> dict[str, tuple[bytes, int, bytes, int]]:
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


def decode_modules(sections: Mapping[str, tuple[bytes, int, bytes, int]]) -> dict[str, dict[str, Any]]:
    return {
        module: _core.decode_count_tables(
            functions, functions_address=functions_address, tables=tables, tables_address=tables_address
        )
        for module, (functions, functions_address, tables, tables_address) in sections.items()
    }


def problems(decoded: Mapping[str, dict[str, Any]], paths: Mapping[str, str]) -> list[str]:
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


def static_tables(decoded: Mapping[str, dict[str, Any]], *, redact: bool = False) -> dict[str, pa.Table]:
    """The five side tables, from decoded modules."""
    import numpy as np
    import pyarrow as pa

    parts: dict[str, list[pa.Table]] = {name: [] for name in STATIC_TABLES}
    for module, tables in decoded.items():
        texts: list[str] = tables["strings"]
        names = pa.array([_core.demangle(text) for text in texts], pa.string())
        files = pa.array([os.path.basename(text) for text in texts] if redact else texts, pa.string())
        raw = pa.array(texts, pa.string())

        def add(name: str, columns: dict[str, Any], rows: int, module: str = module) -> None:
            schema = static_schema(name)
            whose = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), pa.array([module]))
            arrays = [whose if field.name == "module" else _cast(columns[field.name], field.type) for field in schema]
            parts[name].append(pa.Table.from_arrays(arrays, schema=schema))

        functions, scopes, blocks, sites = (tables[name] for name in ("functions", "scopes", "blocks", "sites"))
        n_functions = len(functions["name"])
        add(
            "count_functions",
            {
                "function": np.arange(n_functions, dtype=np.uint32),
                "name": names.take(pa.array(functions["name"])),
                "linkage_name": raw.take(pa.array(functions["name"])),
                "file": _texts(functions["file"], files),
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
                "file": _texts(sites["file"], files),
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
    return {
        name: pa.concat_tables(pieces).unify_dictionaries() if pieces else static_schema(name).empty_table()
        for name, pieces in parts.items()
    }


def _cast(values: Any, kind: Any) -> Any:
    import pyarrow as pa

    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


def _texts(numbers: Any, texts: pa.Array) -> pa.Array:
    """Numbers of texts as a dictionary column, only with the texts that are used; "" is null."""
    import numpy as np
    import pyarrow as pa

    used, inverse = np.unique(numbers, return_inverse=True)
    picked = texts.take(pa.array(used.astype(np.int64)))
    empty = np.array([text == "" for text in picked.to_pylist()], dtype=bool)
    mask = empty[inverse] if len(empty) else np.zeros(0, dtype=bool)
    return pa.DictionaryArray.from_arrays(pa.array(inverse.astype(np.int32), mask=mask), picked)


def _optional(numbers: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(numbers, mask=numbers == NONE)


def _chains(scopes: dict[str, Any], functions: dict[str, Any], names: pa.Array, files: pa.Array) -> pa.Array:
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


# ---- counts --------------------------------------------------------------------------------------------------------
def expand(offsets: Any, keys: Any) -> tuple[Any, Any]:
    """(row, entry) for every entry of each key of a CSR table.

    >>> import numpy as np
    >>> expand(np.array([0, 2, 2, 3]), np.array([0, 2, 1]))
    (array([0, 0, 1]), array([0, 1, 2]))
    """
    import numpy as np

    first = offsets[keys]
    counts = offsets[keys + 1] - first
    rows = np.repeat(np.arange(len(keys)), counts)
    ends = np.cumsum(counts)
    entries = np.arange(len(rows)) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return rows, entries


def csr(keys: Any, count: int) -> tuple[Any, Any]:
    """(offsets, order): entries of key k are order[offsets[k]:offsets[k + 1]]."""
    import numpy as np

    order = np.argsort(keys, kind="stable")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=count), out=offsets[1:])
    return offsets, order


def factorized(*columns: Any) -> tuple[Any, Any]:
    """(number of each row's combination, first row of each combination)."""
    import numpy as np

    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        codes = codes * max(len(values), 1) + inverse.reshape(-1)
        _, codes = np.unique(codes, return_inverse=True)
        codes = codes.reshape(-1)
    _, first = np.unique(codes, return_index=True)
    return codes, first


def summed(codes: Any, values: Any, count: int) -> Any:
    """Sums of 64-bit integers, modulo 2^64."""
    import numpy as np

    sums = np.zeros(count, dtype=values.dtype)
    np.add.at(sums, codes, values)
    return sums


@dataclass(frozen=True)
class Places:
    """Who counted: one row for each image, node, thread and epoch."""

    process: Any
    image: Any
    node: Any
    thread: Any
    epoch: Any

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Executed:
    """What ran: one row for each place and site (or block) with executions."""

    place: Any
    what: Any
    """Row of `count_sites` or `count_blocks`."""
    executions: Any
    bytes: Any


class Counts:
    """All counts of a capture. Use `Capture.counts`."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._by_epoch: dict[bool, tuple[Places, Executed, dict[str, Any], Any]] = {}

    # ---- static ---------------------------------------------------------------------------------------------------
    @cached_property
    def functions(self) -> pa.Table:
        return self.capture.table("count_functions")

    @cached_property
    def sites(self) -> dict[str, Any]:
        """Columns of `count_sites` that are numbers; `function` is a row of `functions`."""
        table = self.capture.table("count_sites")
        columns = self._numbers(table, ("site", "flags", "bytes", "line", "column"))
        columns["kind"] = _index(table.column("kind"), [*KINDS, "unknown"])
        for name in ("group", "bytes_counter"):
            columns[name] = _nullable(table.column(name))
        columns["module"] = _index(table.column("module"), self.modules)
        columns["function"] = self._row_of(columns["module"], table, "function", "function")
        columns["block"] = self._row_of(columns["module"], table, "block", "block")
        return columns

    @cached_property
    def blocks(self) -> dict[str, Any]:
        table = self.capture.table("count_blocks")
        columns = self._numbers(table, ("block", "depth", "line"))
        columns["group"] = _nullable(table.column("group"))
        columns["module"] = _index(table.column("module"), self.modules)
        columns["function"] = self._row_of(columns["module"], table, "function", "function")
        for name in MIX:
            columns[name] = table.column(name).fill_null(0).to_numpy()
        columns["has_mix"] = table.column(MIX[0]).is_valid().to_numpy()
        return columns

    @cached_property
    def modules(self) -> list[str]:
        """Counted modules: build-id or path."""
        found = dict.fromkeys(self.capture.table("counted_modules").column("module").to_pylist())
        found |= dict.fromkeys(self.functions.column("module").to_pylist())
        return [module for module in found if module]

    @cached_property
    def module_paths(self) -> dict[str, str]:
        rows = self.capture.table("counted_modules")
        return dict(zip(rows.column("module").to_pylist(), rows.column("path").to_pylist(), strict=True))

    @staticmethod
    def _numbers(table: pa.Table, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: table.column(name).to_numpy() for name in names}

    def _row_of(self, module: Any, table: pa.Table, column: str, kind: str) -> Any:
        """Numbers in their module as rows of the table of all modules."""
        import numpy as np

        other = self.capture.table("count_functions" if kind == "function" else "count_blocks")
        counts = np.bincount(_index(other.column("module"), self.modules), minlength=len(self.modules))
        base = np.concatenate(([0], np.cumsum(counts)))[:-1]
        return base[module] + table.column(column).to_numpy().astype(np.int64)

    @cached_property
    def _inlined(self) -> Any:
        import pyarrow.compute as pc

        return pc.greater(pc.list_value_length(self.capture.table("count_sites").column("inlined_into")), 0).to_numpy()

    def sites_inlined(self) -> Any:
        """Whether each site is in a function that was inlined into another."""
        return self._inlined

    # ---- regions -------------------------------------------------------------------------------------------------
    @cached_property
    def nodes(self) -> dict[tuple[int, int], tuple[int, str]]:
        """(image, node) → (parent, name)."""
        return {
            (row["image"], row["node"]): (row["parent"], row["name"] or "(no name)")
            for row in self.capture.table("region_nodes").to_pylist()
        }

    def path_of(self, image: int, node: int) -> tuple[str, ...]:
        """The names of a node and those around it, outermost first; () outside any region."""
        names: list[str] = []
        seen = set()
        while node and node not in seen:
            seen.add(node)
            parent, name = self.nodes.get((image, node), (0, f"(node {node})"))
            names.append(name)
            node = parent
        return tuple(reversed(names))

    # ---- counters --------------------------------------------------------------------------------------------------
    @cached_property
    def _rows(self) -> dict[str, Any]:
        import numpy as np

        layout = layouts()["block_count"]
        parts, processes = [], []
        for header, payload in self.capture.payloads("block_count"):
            rows = np.frombuffer(payload, dtype=layout.dtype(), count=len(payload) // layout.record_bytes)
            parts.append(rows)
            processes.append(np.full(len(rows), header["process"], dtype=np.uint32))
        rows = np.concatenate(parts) if parts else np.zeros(0, dtype=layout.dtype())
        columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
        columns["process"] = np.concatenate(processes) if processes else np.zeros(0, dtype=np.uint32)
        strings = self.capture.strings()
        used, inverse = np.unique(columns["module"], return_inverse=True)
        numbers = {module: number for number, module in enumerate(self.modules)}
        mapped = np.array([numbers.get(strings.get(int(i), ""), -1) for i in used], dtype=np.int64)
        columns["module"] = mapped[inverse.reshape(-1)] if len(used) else np.zeros(0, dtype=np.int64)
        return columns

    def _chosen(self, *, epochs: bool) -> dict[str, Any]:
        """Totals of the run, or what each epoch added. An image without totals (a recorder that was killed) has its epochs."""
        import numpy as np

        rows = self._rows
        in_epoch = rows["epoch"] > 0
        if epochs:
            pick = in_epoch
        else:
            with_totals = np.unique(rows["image"][~in_epoch])
            pick = ~in_epoch | ~np.isin(rows["image"], with_totals)
        chosen = {name: values[pick] for name, values in rows.items()}
        if not epochs:
            chosen["epoch"] = np.zeros(len(chosen["epoch"]), dtype=np.uint32)
        return chosen

    def _join(self, *, epochs: bool) -> tuple[Places, Executed, dict[str, Any], Any]:
        if epochs not in self._by_epoch:
            self._by_epoch[epochs] = self._joined(epochs=epochs)
        return self._by_epoch[epochs]

    def places(self, *, epochs: bool = False) -> Places:
        return self._join(epochs=epochs)[0]

    def by_group(self, *, epochs: bool = False) -> Executed:
        """Executions of each group in each place; groups are numbered through all modules. `bytes` is not used."""
        return self._join(epochs=epochs)[1]

    def adds(self, *, epochs: bool = False) -> Any:
        """How many counter updates each place made in blocks: what counting cost. Those of loops are one an entry, and not in it."""
        return self._join(epochs=epochs)[3]

    @cached_property
    def _group_base(self) -> Any:
        """The first group of each module in a numbering through all modules; the number of groups at the end."""
        import numpy as np

        most = np.zeros(len(self.modules), dtype=np.int64)
        terms = self.capture.table("count_terms")
        for module, group in (
            (self.sites["module"], self.sites["group"]),
            (self.blocks["module"], self.blocks["group"]),
            (_index(terms.column("module"), self.modules), terms.column("group").to_numpy().astype(np.int64)),
        ):
            np.maximum.at(most, module, group + 1)
        return np.concatenate(([0], np.cumsum(most)))

    @property
    def n_groups(self) -> int:
        return int(self._group_base[-1])

    @cached_property
    def site_group(self) -> Any:
        """The group of each site, numbered through all modules; -1 = none."""
        import numpy as np

        return np.where(self.sites["group"] >= 0, self._group_base[self.sites["module"]] + self.sites["group"], -1)

    @cached_property
    def block_group(self) -> Any:
        """The group of each block, likewise."""
        import numpy as np

        return np.where(self.blocks["group"] >= 0, self._group_base[self.blocks["module"]] + self.blocks["group"], -1)

    def _joined(self, *, epochs: bool) -> tuple[Places, Executed, dict[str, Any], Any]:
        import numpy as np

        rows = self._chosen(epochs=epochs)
        place, first = factorized(rows["image"], rows["node"], rows["thread"], rows["epoch"])
        places = Places(*(rows[name][first] for name in ("process", "image", "node", "thread", "epoch")))
        terms = self.capture.table("count_terms")
        term_module = _index(terms.column("module"), self.modules)
        term_columns = {name: terms.column(name).to_numpy() for name in ("group", "counter", "scale")}
        counters = self.capture.table("count_counters")
        counter_module = _index(counters.column("module"), self.modules)
        counter_kind = _index(counters.column("kind"), [*COUNTER_KINDS, "unknown"])
        runs = []
        adds = np.zeros(len(places), dtype=np.uint64)
        for module in range(len(self.modules)):
            pick = rows["module"] == module
            if not pick.any():
                continue
            its_place, counter, value = place[pick], rows["counter"][pick].astype(np.int64), rows["value"][pick]
            kinds = counter_kind[counter_module == module]
            in_block = np.zeros(len(counter), dtype=bool)
            in_block[counter < len(kinds)] = kinds[counter[counter < len(kinds)]] == 0
            np.add.at(adds, its_place[in_block], value[in_block])
            mine = term_module == module
            where, group, executions = _group_runs(
                its_place, counter, value, {name: values[mine] for name, values in term_columns.items()}
            )
            base = self._group_base[module]
            runs.append(Executed(where, base + group, executions, np.zeros(len(group), dtype=np.int64)))
        counted = {
            "place": place,
            "module": rows["module"],
            "counter": rows["counter"].astype(np.int64),
            "value": rows["value"],
        }
        return places, _concatenated(runs), counted, adds

    def by_site(self, *, epochs: bool = False, of: Any = None) -> Executed:
        """Executions and bytes of each site in each place; `of`: only these sites. Large: places times sites that ran."""
        import numpy as np

        runs = self.by_group(epochs=epochs)
        chosen = self.site_group >= 0 if of is None else (self.site_group >= 0) & of
        mine = np.flatnonzero(chosen)
        offsets, order = csr(self.site_group[mine], self.n_groups)
        row, entry = expand(offsets, runs.what)
        site = mine[order[entry]]
        executions = runs.executions[row]
        moved = (executions.astype(np.uint64) * self.sites["bytes"][site]).astype(np.int64)
        found = Executed(runs.place[row], site, executions, moved)
        self._add_summed_bytes(found, self._join(epochs=epochs)[2])
        return found

    def _add_summed_bytes(self, executed: Executed, counted: dict[str, Any]) -> None:
        """Bytes that the program added up itself: found by place, module and counter."""
        import numpy as np

        own = self.sites["bytes_counter"][executed.what]
        rows = np.flatnonzero(own >= 0)
        if not len(rows):
            return
        most = int(max(counted["counter"].max(initial=0), own.max())) + 1
        width = most * len(self.modules)
        keys = counted["place"] * width + counted["module"] * most + counted["counter"]
        known = np.flatnonzero(counted["module"] >= 0)
        keys, values = keys[known], counted["value"][known]
        codes, inverse = np.unique(keys, return_inverse=True)
        sums = summed(inverse.reshape(-1), values, len(codes))
        wanted = executed.place[rows] * width + self.sites["module"][executed.what[rows]] * most + own[rows]
        at = np.minimum(np.searchsorted(codes, wanted), max(len(codes) - 1, 0))
        executed.bytes[rows] = np.where(codes[at] == wanted, sums[at].astype(np.int64), 0) if len(codes) else 0

    def by_block(self, *, epochs: bool = False) -> Executed:
        """Executions of each block in each place; `bytes` is not used."""
        import numpy as np

        runs = self.by_group(epochs=epochs)
        mine = np.flatnonzero(self.block_group >= 0)
        offsets, order = csr(self.block_group[mine], self.n_groups)
        row, entry = expand(offsets, runs.what)
        return Executed(runs.place[row], mine[order[entry]], runs.executions[row], np.zeros(len(row), dtype=np.int64))

    # ---- sums without a row for each place and site ----------------------------------------------------------------
    @cached_property
    def summed_sites(self) -> Any:
        """Sites whose bytes are known only at run time: the others' follow from their executions."""
        return self.sites["bytes_counter"] >= 0

    @cached_property
    def of_one_run(self) -> dict[str, Any]:
        """Accesses that one execution of each group makes, of sites whose bytes are known; and its operations."""
        import numpy as np

        n_sites = len(self.sites["kind"])
        once = Executed(
            np.zeros(n_sites, dtype=np.int64), np.arange(n_sites), np.ones(n_sites, dtype=np.int64),
            self.sites["bytes"].astype(np.int64),
        )  # fmt: skip
        pick = (self.site_group >= 0) & ~self.summed_sites
        found = {
            name: summed(self.site_group[pick], values[pick].astype(np.int64), self.n_groups)
            for name, values in with_estimated(self.accesses(once)).items()
        }
        there = self.block_group >= 0
        for name in MIX:
            found[name] = summed(self.block_group[there], self.blocks[name][there].astype(np.int64), self.n_groups)
        return found

    def place_sums(self, *, epochs: bool = False) -> dict[str, Any]:
        """Accesses and operations of each place: all sites together."""
        import numpy as np

        runs, n_places = self.by_group(epochs=epochs), len(self.places(epochs=epochs))
        bulk = self.by_site(epochs=epochs, of=self.summed_sites)
        accesses = with_estimated(self.accesses(bulk))
        found = {}
        for name, values in self.of_one_run.items():
            sums = summed(runs.place, runs.executions * values[runs.what], n_places)
            if name in accesses:
                sums += summed(bulk.place, accesses[name].astype(np.int64), n_places)
            found[name] = sums
        return found

    # ---- accesses ------------------------------------------------------------------------------------------------
    def accesses(self, executed: Executed) -> dict[str, Any]:
        """Loads, stores, bytes and stack bytes of each row of `by_site`, and which rows' loads and stores are estimates.

        load: read; store: written; atomic: both, one load and one store; copy: read and written; fill: written; read: read.
        """
        import numpy as np

        kind, flags = self.sites["kind"][executed.what], self.sites["flags"][executed.what]
        reads = np.isin(kind, (LOAD, ATOMIC, COPY, READ))
        writes = np.isin(kind, (STORE, ATOMIC, COPY, FILL))
        bulk = np.isin(kind, (COPY, FILL, READ))
        width = self.sites["bytes"][executed.what].astype(np.int64)
        at_run_time = self.sites["bytes_counter"][executed.what] >= 0
        in_words = np.where(
            at_run_time,
            (executed.bytes + BYTES_AN_ACCESS - 1) // BYTES_AN_ACCESS,
            executed.executions * ((width + BYTES_AN_ACCESS - 1) // BYTES_AN_ACCESS),
        )
        accesses = np.where(bulk, in_words, executed.executions)
        zero = np.zeros(len(kind), dtype=np.int64)
        read, written = np.where(reads, executed.bytes, zero), np.where(writes, executed.bytes, zero)
        on_stack_read, on_stack_written = (flags & STACK_READ) != 0, (flags & STACK_WRITTEN) != 0
        loads, stores = np.where(reads, accesses, zero), np.where(writes, accesses, zero)
        return {
            "loads": loads,
            "stores": stores,
            "read_bytes": read,
            "written_bytes": written,
            "stack_loads": np.where(on_stack_read, loads, zero),
            "stack_stores": np.where(on_stack_written, stores, zero),
            "stack_read_bytes": np.where(on_stack_read, read, zero),
            "stack_written_bytes": np.where(on_stack_written, written, zero),
            "estimated": bulk,
        }

    # ---- tables ----------------------------------------------------------------------------------------------------
    def site_table(self) -> pa.Table:
        """Table `site_counts`."""
        import pyarrow as pa

        rows, places = self.by_site(), self.places()
        accesses = self.accesses(rows)
        static = self.capture.table("count_sites")
        take = pa.array(rows.what)
        columns: dict[str, Any] = self._place_columns(places, rows.place)
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

    def block_table(self) -> pa.Table:
        """Table `block_counts`."""
        import numpy as np
        import pyarrow as pa

        rows, places, by_site = self.by_block(), self.places(), self.by_site()
        accesses = self.accesses(by_site)
        n_blocks = len(self.blocks["block"])
        keys = rows.place * n_blocks + rows.what
        order = np.argsort(keys, kind="stable")
        wanted = by_site.place * n_blocks + self.sites["block"][by_site.what]
        at = np.searchsorted(keys[order], wanted)
        # A site may have executions where its block has no group of its own: those have no row.
        at_safe = np.minimum(at, max(len(keys) - 1, 0))
        found = (at < len(keys)) & (keys[order][at_safe] == wanted) if len(keys) else np.zeros(len(wanted), dtype=bool)
        target = order[at_safe[found]] if len(keys) else np.zeros(0, dtype=np.int64)
        static = self.capture.table("count_blocks")
        function = pa.array(self.blocks["function"][rows.what])
        columns: dict[str, Any] = self._place_columns(places, rows.place)
        take = pa.array(rows.what)
        columns |= {
            "module": static.column("module").take(take),
            "function": self.functions.column("name").take(function),
            "file": self.functions.column("file").take(function),
            "line": static.column("line").take(take),
            "block": static.column("block").take(take),
            "depth": static.column("depth").take(take),
            "executions": pa.array(rows.executions),
        }
        for name, values in accesses.items():
            sums = np.zeros(len(rows.what), dtype=np.int64)
            np.add.at(sums, target, values[found].astype(np.int64))
            columns[name] = pa.array(sums > 0) if name == "estimated" else pa.array(sums)
        has_mix = self.blocks["has_mix"][rows.what]
        for name in MIX:
            columns[name] = pa.array(self.blocks[name][rows.what].astype(np.int64) * rows.executions, mask=~has_mix)
        return pa.table(columns)

    def _place_columns(self, places: Places, rows: Any) -> dict[str, Any]:
        import numpy as np
        import pyarrow as pa

        paths = [
            " / ".join(self.path_of(int(i), int(n))) or None for i, n in zip(places.image, places.node, strict=True)
        ]
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

    def time_table(self) -> pa.Table:
        """Table `region_times`: records with the path of their region."""
        import pyarrow as pa

        table = self.capture.table("region_time_records")
        images, nodes = table.column("image").to_pylist(), table.column("node").to_pylist()
        paths = [" / ".join(self.path_of(image, node)) or None for image, node in zip(images, nodes, strict=True)]
        region = pa.array(paths, pa.string()).dictionary_encode()
        return table.add_column(1, "region", region)


def with_estimated(accesses: dict[str, Any]) -> dict[str, Any]:
    """Accesses with `estimated_accesses`, how many of the loads and stores are estimates, instead of which rows."""
    import numpy as np

    numbers = {name: values for name, values in accesses.items() if name != "estimated"}
    numbers["estimated_accesses"] = np.where(accesses["estimated"], accesses["loads"] + accesses["stores"], 0)
    return numbers


def _group_runs(place: Any, counter: Any, value: Any, terms: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(place, group, executions) of every group that ran: Σ counter × scale modulo 2^64, read as signed."""
    import numpy as np

    if not len(terms["group"]):
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    n_counters = int(max(counter.max(initial=0), terms["counter"].max())) + 1
    offsets, order = csr(terms["counter"].astype(np.int64), n_counters)
    row, entry = expand(offsets, counter)
    term = order[entry]
    group = terms["group"][term].astype(np.int64)
    added = value[row] * terms["scale"][term].astype(np.uint64)
    n_groups = int(terms["group"].max()) + 1
    keys, codes = np.unique(place[row] * n_groups + group, return_inverse=True)
    executions = summed(codes.reshape(-1), added, len(keys)).astype(np.int64)
    ran = executions != 0
    return keys[ran] // n_groups, keys[ran] % n_groups, executions[ran]


def _concatenated(parts: list[Executed]) -> Executed:
    import numpy as np

    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Executed(empty, empty, empty, empty)
    return Executed(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("place", "what", "executions", "bytes"))
    )


def _nullable(column: Any) -> Any:
    """Numbers, -1 for null."""
    import numpy as np

    return column.cast("int64").fill_null(-1).to_numpy().astype(np.int64)


def _index(column: Any, names: list[str]) -> Any:
    """The number of each text among names, 0 of none: a dictionary column without its texts."""
    import numpy as np
    import pyarrow as pa

    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0) if chunk.num_chunks else pa.array([], pa.string())
    if not pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_encode()
    numbers = {name: number for number, name in enumerate(names)}
    mapping = np.array([numbers.get(text, 0) for text in chunk.dictionary.to_pylist()], dtype=np.int64)
    indices = chunk.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return mapping[indices] if len(mapping) else np.zeros(len(indices), dtype=np.int64)
