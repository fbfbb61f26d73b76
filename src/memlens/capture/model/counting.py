"""Compiled-in counting, read back: what counters times static tables (`count_tables.py`) give.

Owns the meaning of counters: a group ran Σ counter × scale times, modulo 2^64 and then read as signed, where the program
has ended (`settled` has what to do while it runs); a site runs as often as its group and moves its bytes each time, or what its own
counter of bytes says. Everything is joined sparsely: the
cost follows what was executed, not threads × sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import CaptureError
from ..store.arena_layouts import constants
from ..store.layouts import enum_names, enum_value, layouts
from .count_tables import COUNTER_KINDS, KINDS, MIX
from .joins import csr, expand, factorized, summed

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Bools, Columns, Ints, Uint32s, Uint64s
    from ..store.source import TableSource

LOAD, STORE, ATOMIC, COPY, FILL, READ, CALL, PREFETCH = enum_names("site_kind")
STACK_READ, STACK_WRITTEN, VECTOR, MASKED, VOLATILE, NONTEMPORAL, ATOMIC_ORDER, FLOAT, GATHER = enum_names("site_flags")
TABLE_MIX, TABLE_NAIVE, TABLE_ENTRY = (enum_value("count_table_flags", name) for name in ("mix", "naive", "entry"))
REFUSED = {flag: why for flag, why in enum_names("count_table_flags").items() if flag & constants()["ML_TABLE_REFUSED"]}
"""Flags of functions that are not counted → why."""
BYTES_AN_ACCESS = 8
"""A copy or fill of n bytes counts as n / 8 accesses, as in the Examem paper: how many there are is the library's choice."""
NO_REGION = "(outside regions)"


@dataclass(frozen=True)
class Places:
    """Who counted: one row for each image, node, thread and epoch."""

    process: Uint32s
    image: Uint32s
    node: Uint32s
    thread: Uint32s
    epoch: Uint32s

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Executed:
    """What ran: one row for each place and site (or block) with executions."""

    place: Ints
    what: Ints
    """Row of `count_sites` or `count_blocks`."""
    executions: Ints
    bytes: Ints


class Counts:
    """All counts of a capture. Use `Capture.counts`.

    With `kind` sample_count they are those of groups of sampled executions: groups stand where epochs are.
    """

    def __init__(self, capture: TableSource, *, kind: str = "block_count") -> None:
        self.capture = capture
        self._kind = kind
        self._by_epoch: dict[bool, tuple[Places, Executed, Columns, Uint64s]] = {}

    # ---- static ---------------------------------------------------------------------------------------------------
    @cached_property
    def functions(self) -> pa.Table:
        return self.capture.table("count_functions")

    @cached_property
    def sites(self) -> Columns:
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
    def blocks(self) -> Columns:
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
    def _numbers(table: pa.Table, names: tuple[str, ...]) -> Columns:
        return {name: table.column(name).to_numpy() for name in names}

    def _row_of(self, module: Ints, table: pa.Table, column: str, kind: str) -> Ints:
        """Numbers in their module as rows of the table of all modules."""
        import numpy as np

        other = self.capture.table("count_functions" if kind == "function" else "count_blocks")
        counts = np.bincount(_index(other.column("module"), self.modules), minlength=len(self.modules))
        base = np.concatenate(([0], np.cumsum(counts)))[:-1]
        numbers: Ints = table.column(column).fill_null(0).to_numpy().astype(np.int64)
        refuse_beyond(numbers, counts[module], f"the column {column} of a table of counted code")
        rows: Ints = base[module] + numbers
        return rows

    @cached_property
    def _inlined(self) -> Bools:
        import pyarrow.compute as pc

        inlined_into = self.capture.table("count_sites").column("inlined_into")
        inlined: Bools = pc.greater(pc.list_value_length(inlined_into), 0).to_numpy()
        return inlined

    def sites_inlined(self) -> Bools:
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
    def _rows(self) -> Columns:
        import numpy as np

        layout = layouts()[self._kind]
        parts, processes = [], []
        for header, payload in self.capture.payloads(self._kind):
            rows = np.frombuffer(payload, dtype=layout.dtype(), count=len(payload) // layout.record_bytes)
            parts.append(rows)
            processes.append(np.full(len(rows), header["process"], dtype=np.uint32))
        rows = np.concatenate(parts) if parts else np.zeros(0, dtype=layout.dtype())
        columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
        if "group" in columns:
            columns["epoch"] = columns.pop("group")
        columns["process"] = np.concatenate(processes) if processes else np.zeros(0, dtype=np.uint32)
        strings = self.capture.strings()
        used, inverse = np.unique(columns["module"], return_inverse=True)
        numbers = {module: number for number, module in enumerate(self.modules)}
        mapped = np.array([numbers.get(strings.get(int(i), ""), -1) for i in used], dtype=np.int64)
        columns["module"] = mapped[inverse.reshape(-1)] if len(used) else np.zeros(0, dtype=np.int64)
        return columns

    def _chosen(self, *, epochs: bool) -> Columns:
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

    def _join(self, *, epochs: bool) -> tuple[Places, Executed, Columns, Uint64s]:
        if epochs not in self._by_epoch:
            self._by_epoch[epochs] = self._joined(epochs=epochs)
        return self._by_epoch[epochs]

    def places(self, *, epochs: bool = False) -> Places:
        return self._join(epochs=epochs)[0]

    def by_group(self, *, epochs: bool = False) -> Executed:
        """Executions of each group in each place; groups are numbered through all modules. `bytes` is not used."""
        return self._join(epochs=epochs)[1]

    def adds(self, *, epochs: bool = False) -> Uint64s:
        """How many counter updates each place made in blocks: what counting cost. Those of loops are one an entry, and not in it."""
        return self._join(epochs=epochs)[3]

    @cached_property
    def _group_base(self) -> Ints:
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
        # Groups are numbered without holes, and each is named by a row.
        refuse_beyond(
            most, len(self.sites["site"]) + len(self.blocks["block"]) + terms.num_rows + 1, "the number of groups"
        )
        return np.concatenate(([0], np.cumsum(most)))

    @property
    def n_groups(self) -> int:
        return int(self._group_base[-1])

    @cached_property
    def site_group(self) -> Ints:
        """The group of each site, numbered through all modules; -1 = none."""
        import numpy as np

        return np.where(self.sites["group"] >= 0, self._group_base[self.sites["module"]] + self.sites["group"], -1)

    @cached_property
    def block_group(self) -> Ints:
        """The group of each block, likewise."""
        import numpy as np

        return np.where(self.blocks["group"] >= 0, self._group_base[self.blocks["module"]] + self.blocks["group"], -1)

    def _joined(self, *, epochs: bool) -> tuple[Places, Executed, Columns, Uint64s]:
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
        series = factorized(places.image, places.node, places.thread)[0]
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
            executions = settled(executions, series[where], group, places.epoch[where])
            base = self._group_base[module]
            runs.append(Executed(where, base + group, executions, np.zeros(len(group), dtype=np.int64)))
        counted = {
            "place": place,
            "module": rows["module"],
            "counter": rows["counter"].astype(np.int64),
            "value": rows["value"],
        }
        return places, _concatenated(runs), counted, adds

    def by_site(self, *, epochs: bool = False, of: Bools | None = None) -> Executed:
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

    def _add_summed_bytes(self, executed: Executed, counted: Columns) -> None:
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
    def summed_sites(self) -> Bools:
        """Sites whose bytes are known only at run time: the others' follow from their executions."""
        return self.sites["bytes_counter"] >= 0

    @cached_property
    def of_one_run(self) -> Columns:
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

    def place_sums(self, *, epochs: bool = False) -> Columns:
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
    def accesses(self, executed: Executed) -> Columns:
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


def with_estimated(accesses: Columns) -> Columns:
    """Accesses with `estimated_accesses`, how many of the loads and stores are estimates, instead of which rows."""
    import numpy as np

    numbers = {name: values for name, values in accesses.items() if name != "estimated"}
    numbers["estimated_accesses"] = np.where(accesses["estimated"], accesses["loads"] + accesses["stores"], 0)
    return numbers


def _group_runs(place: Ints, counter: Ints, value: Uint64s, terms: Columns) -> tuple[Ints, Ints, Ints]:
    """(place, group, executions) of every group that ran: Σ counter × scale modulo 2^64, read as signed."""
    import numpy as np

    if not len(terms["group"]):
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    # Only counters that a term names, numbered anew: a record may name any, up to 2^32.
    named, of_term = np.unique(terms["counter"].astype(np.int64), return_inverse=True)
    offsets, order = csr(of_term.reshape(-1), len(named))
    at = np.minimum(np.searchsorted(named, counter), len(named) - 1)
    known = np.flatnonzero(named[at] == counter)
    row, entry = expand(offsets, at[known])
    row = known[row]
    term = order[entry]
    group = terms["group"][term].astype(np.int64)
    added = value[row] * terms["scale"][term].astype(np.uint64)
    n_groups = int(terms["group"].max()) + 1
    keys, codes = np.unique(place[row] * n_groups + group, return_inverse=True)
    executions = summed(codes.reshape(-1), added, len(keys)).astype(np.int64)
    ran = executions != 0
    return keys[ran] // n_groups, keys[ran] % n_groups, executions[ran]


def settled(executions: Ints, series: Ints, group: Ints, epoch: Uint32s) -> Ints:
    """Executions of each epoch such that none is negative, and that a group's epochs add up to what they did.

    Some groups are a difference of counters, and loops write theirs only now and then: what is read while the program runs,
    or of one that was killed, may have the one and not yet the other. What a later reading takes back did not run.

    >>> settled([5, 4, -3, 2], [0, 0, 0, 0], [7, 7, 7, 7], [1, 2, 3, 4]).tolist()
    [5, 1, 0, 2]
    """
    import numpy as np

    executions, series = np.asarray(executions), np.asarray(series)
    group, epoch = np.asarray(group), np.asarray(epoch)
    if not (executions < 0).any():
        return executions
    key = factorized(series, group)[0]
    rows = np.flatnonzero(np.isin(key, key[executions < 0]))
    rows = rows[np.lexsort((epoch[rows], key[rows]))]
    executions = executions.copy()
    for part in np.split(rows, np.flatnonzero(np.diff(key[rows])) + 1):
        reached = np.minimum.accumulate(np.cumsum(executions[part])[::-1])[::-1]
        executions[part] = np.diff(np.maximum(reached, 0), prepend=0)
    return executions


def _concatenated(parts: list[Executed]) -> Executed:
    import numpy as np

    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Executed(empty, empty, empty, empty)
    return Executed(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("place", "what", "executions", "bytes"))
    )


def refuse_beyond(numbers: Ints, limit: Ints | int, what: str) -> None:
    """Raises CaptureError when a number is not below its limit: a table names rows that another one does not have."""
    import numpy as np

    wrong = np.flatnonzero(numbers >= limit)
    if len(wrong):
        at = wrong[0]
        top = limit if isinstance(limit, int) else limit[at]
        raise CaptureError(
            f"{what} has the value {int(numbers[at])}; expected less than {int(top)}",
            hint="a side table (count_*.parquet) was damaged or changed; remove them all: they are made again from the records",
        )


def _nullable(column: pa.ChunkedArray) -> Ints:
    """Numbers, -1 for null."""
    import numpy as np

    numbers: Ints = column.cast("int64").fill_null(-1).to_numpy().astype(np.int64)
    return numbers


def _index(column: pa.ChunkedArray, names: list[str]) -> Ints:
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
