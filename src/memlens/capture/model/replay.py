"""Faults as conclusions: the native replay, joined with names.

The native engine (native/core/replay) walks the capture in time order and classes
each fault; this module feeds it and turns its columns into tables. Faults are streamed: the first walk sums them
(`fault_groups`), further walks give them one by one in batches (`fault_batches`), so that no capture is too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from ... import _core
from .symbols import OWN_CODE, sites_of_codes

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Array, Bools, Columns, Floats, Ints, Uint8s
    from ..store.source import TableSource

FAULT_CLASSES: tuple[str, ...] = tuple(_core.FAULT_CLASSES)
TIME_BINS = 120
"""Parts of the recording by which faults are summed."""
MOST_HELD_BYTES = 64 << 20
"""Chunks of allocations that change mappings are kept up to this, more are read again."""
MOST_WAITING = 1 << 18
"""Faults that wait for earlier ones of other chunks before they are classed."""


class Replay:
    """Walks over a capture's faults, mappings, processes and page-table looks."""

    def __init__(self, capture: TableSource) -> None:
        machine = capture.meta.get("machine", {})
        page_bytes = int(machine.get("page_bytes", 4096))
        self.capture = capture
        self.page_bytes = page_bytes
        self._nodes = [row["node"] for row in machine.get("numa_nodes", [])]
        engine = _core.Replay(
            page_shift=page_bytes.bit_length() - 1, numa_balancing=bool(machine.get("numa_balancing", False))
        )
        self.engine = engine
        self._walks = 0
        self._add_records()
        engine.group(begin_ns=capture.begin_ns, edges_s=self.bin_edges_s.tolist())
        engine.begin()
        for _ in self._walk():
            pass
        # Later walks begin with an empty engine: what this one found is kept.
        self.sampled_stretches: list[tuple[int, int, float]] = list(engine.sampled_stretches)
        """(begin_ns, end_ns, weight) of each time in which not every fault was recorded, to keep the cost within the budget."""
        self._in_own_memory = int(engine.own_faults)
        self._groups, self._in_time, self._placed = engine.groups(), engine.in_time(), engine.placed()
        self._stacked = engine.stacked()

    def _add_records(self) -> None:
        """Everything but the faults."""
        engine, capture = self.engine, self.capture
        for _, payload in capture.payloads("string"):
            engine.add_strings(payload)
        for _, payload in capture.payloads("stack"):
            engine.add_stacks(payload)
        calls = self._note_allocations()
        for name, add in (
            ("process_event", engine.add_process_events),
            ("mapping", engine.add_mappings),
            ("residency", engine.add_residency),
            ("tag_event", engine.add_tags),
            # Code that these name is resolved in the address spaces of the records before.
            ("code_count", engine.add_code_counts),
            ("page_count", engine.add_page_counts),
            ("unseen", engine.add_unseen),
        ):
            for header, payload in capture.payloads(name):
                add(header["process"], payload)
        capture.note_window_uses(engine)
        for process, payload in calls:
            engine.add_calls(process, payload)
        if len(self._nodes) > 1:
            for header, payload in capture.payloads("placement"):
                engine.add_placements(header["process"], payload)
        for _, payload in capture.payloads("fault_level"):
            engine.add_fault_levels(payload)
        for segment in capture.meta.get("shared_memory_before") or []:
            for offset, length in segment["placed"]:
                engine.add_shared_before(
                    device_major=segment["device"][0],
                    device_minor=segment["device"][1],
                    inode=segment["inode"],
                    offset=offset,
                    bytes=length,
                )

    def _note_allocations(self) -> Iterator[tuple[int, bytes]]:
        """Stacks of allocations, and which objects are resized; gives the chunks with calls that change mappings."""
        found: list[tuple[int, bytes]] = []
        held = 0
        for header, payload in self.capture.payloads("allocation"):
            if self.engine.note_allocations(header["process"], payload) and held <= MOST_HELD_BYTES:
                found.append((header["process"], payload))
                held += len(payload)
        if held <= MOST_HELD_BYTES:
            return iter(found)
        return ((header["process"], payload) for header, payload in self.capture.payloads("allocation"))

    def _walk(self) -> Iterator[None]:
        """Feeds the faults in time order; a step each time that some were classed."""
        engine = self.engine
        add = {"fault": engine.add_faults, "sampled_fault": engine.add_sampled_faults}
        for chunk in self.capture.payloads_in_time("fault", "sampled_fault"):
            add[chunk.name](chunk.header["process"], chunk.payload, chunk.arrival)
            if chunk.next_ns is not None and engine.waiting >= MOST_WAITING:
                engine.advance(chunk.next_ns)
                yield
        engine.finish()
        yield

    # ---- code ------------------------------------------------------------------------------
    @cached_property
    def codes(self) -> Columns:
        return self.engine.codes()

    @cached_property
    def stacks(self) -> dict[int, list[int]]:
        """Sampled stacks: id → codes, innermost first."""
        return self.engine.stacks()

    @cached_property
    def code_sites(self) -> pa.Table:
        """One row for each code address, in the order of `codes`: module, function, file, line."""
        return sites_of_codes(self.capture, self.codes)

    @cached_property
    def _is_own_code(self) -> Bools:
        """For each code: whether it is memlens's, linked into the program by `memlens cc`."""
        import pyarrow.compute as pc

        own = pc.fill_null(pc.equal(self.code_sites.column("kind"), OWN_CODE), False)
        own_code: Bools = own.to_numpy(zero_copy_only=False).astype(bool)
        return own_code

    # ---- sums of faults --------------------------------------------------------------------
    @cached_property
    def bin_edges_s(self) -> Floats:
        """Edges of the parts of the recording, in seconds after its begin."""
        import numpy as np

        duration_s = max((self.capture.end_ns - self.capture.begin_ns) / 1e9, 1e-9)
        return np.linspace(0, duration_s, TIME_BINS + 1)

    @cached_property
    def own_faults(self) -> int:
        """Faults on memory of memlens's own library in the program, or made by its code that `memlens cc` linked into
        it: not in the tables."""
        made = self._groups["weights"][self._is_own_code[self._groups["code"]]]
        return self._in_own_memory + round(float(made.sum()))

    @cached_property
    def fault_groups(self) -> pa.Table:
        """Faults that are alike in all these columns, one row for ``rows`` of them, in the order of the first of each.

        Columns are those of the table ``faults`` but for time, address, CPU and instruction. Each of the faults stands for
        ``weight``: a sum over faults is the sum over rows of ``rows * weight * value``.
        """
        mine = ~self._is_own_code[self._groups["code"]]
        columns = {name: values[mine] for name, values in self._groups.items()}
        return self._named(columns, ("process", "thread"), ("rows",))

    @cached_property
    def fault_count(self) -> int:
        """Rows of the table ``faults``."""
        return int(self.fault_groups.column("rows").to_numpy().sum())

    @cached_property
    def stacked_faults(self) -> Columns:
        """Time, process, thread, code, class and stack of the faults that have a call stack, in time order."""
        mine = ~self._is_own_code[self._stacked["code"]]
        return {name: values[mine] for name, values in self._stacked.items()}

    def faults_in_time(self) -> Columns:
        """For each class the faults (by weight) in each part of the recording."""
        import numpy as np

        parts = self._in_time
        mine = ~self._is_own_code[parts["code"]]
        found = {}
        for number, name in enumerate(FAULT_CLASSES):
            rows = mine & (parts["class"] == number)
            found[name] = np.bincount(parts["bin"][rows], weights=parts["weights"][rows], minlength=TIME_BINS)
        return found

    # ---- faults one by one -----------------------------------------------------------------
    def fault_batches(self, *, own_code: bool = False) -> Iterator[Columns]:
        """Columns of the program's faults, batch by batch in time order: another walk over the capture.

        With ``own_code`` those too that memlens's linked-in code made. A walk that has begun ends any other one.
        """
        self._walks += 1
        this = self._walks
        self.engine.restart()
        for _ in self._walk():
            columns = self.engine.take()
            if len(columns["code"]) == 0:
                continue
            mine = ~self._is_own_code[columns["code"]] | own_code
            yield columns if mine.all() else {name: values[mine] for name, values in columns.items()}
            if self._walks != this:
                raise RuntimeError("another walk over the faults of this capture has begun")

    def fault_reader(self) -> pa.RecordBatchReader:
        """Every fault of the program with class, span, code and data area, streamed."""
        import pyarrow as pa

        empty = {name: values[:0] for name, values in self.engine.take().items()}
        schema = self._fault_table(empty).schema
        batches = (batch for columns in self.fault_batches() for batch in self._fault_table(columns).to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _fault_table(self, columns: Columns) -> pa.Table:
        return self._named(columns, ("time_ns", "process", "thread", "cpu", "address"), ())

    def _named(self, columns: Columns, first: tuple[str, ...], last: tuple[str, ...]) -> pa.Table:
        """Columns of the engine as tables have them, with the names of code."""
        import numpy as np
        import pyarrow as pa

        table: dict[str, Array | pa.Array] = {name: columns[name] for name in first} | {
            "class": _dictionary(columns["class"], FAULT_CLASSES),
            "span_bytes": np.left_shift(np.uint64(1), columns["span_shift"].astype(np.uint64)),
            "new_bytes": columns["new_pages"].astype(np.uint64) * np.uint64(self.page_bytes),
            "area": _dictionary(columns["area"], _core.AREA_KINDS),
            "in_kernel": columns["in_kernel"].astype(bool),
            "inferred": columns["inferred"].astype(bool),
            "weight": columns["weight"],
            **({"ip": columns["ip"]} if "ip" in columns else {}),
            "stack": columns["stack"],
            "stack_weight": columns["stack_weight"],
            "code": columns["code"],
        }
        result = {name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in table.items()}
        for name in ("module", "function", "file", "line"):
            result[name] = self._site_columns[name].take(result["code"])
        result["node"] = self._node_column(columns["node"])
        result |= {name: pa.array(columns[name]) for name in last}
        return pa.table(result)

    @cached_property
    def _site_columns(self) -> dict[str, pa.Array]:
        return {name: self.code_sites.column(name).combine_chunks() for name in ("module", "function", "file", "line")}

    def _node_column(self, nodes: Ints) -> pa.Array:
        """The NUMA node of each fault's page: asked by the recorder, or the only one that the machine has."""
        import numpy as np
        import pyarrow as pa

        if len(self._nodes) <= 1:
            return pa.array(np.full(len(nodes), self._nodes[0] if self._nodes else 0, dtype=np.int32))
        return pa.array(nodes, mask=nodes < 0)

    @property
    def placed(self) -> Columns:
        """Runs of pages that were found resident without an event, as columns of the engine."""
        return self._placed

    def placed_table(self) -> pa.Table:
        """Runs of pages that became resident without an event; `moved` ones came from elsewhere (mremap), `before` ones
        were resident when the recorder attached to the running process."""
        import numpy as np
        import pyarrow as pa

        columns = self.placed
        return pa.table(
            {
                "process": pa.array(columns["process"]),
                "begin_ns": pa.array(columns["begin_ns"]),
                "end_ns": pa.array(columns["end_ns"]),
                "address": pa.array(columns["address"]),
                "bytes": pa.array(columns["pages"] * np.uint64(self.page_bytes)),
                "huge": pa.array(columns["huge"].astype(bool)),
                "moved": pa.array(columns["moved"].astype(bool)),
                "before": pa.array(columns["before"].astype(bool)),
                "sampled": pa.array(columns["sampled"].astype(bool)),
                "area": _dictionary(columns["area"], _core.AREA_KINDS),
            }
        )


def _dictionary(codes: Uint8s, names: tuple[str, ...]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(list(names)))
