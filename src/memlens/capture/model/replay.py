"""Faults as conclusions: the native replay, joined with names.

The native engine (native/core/replay) walks the capture in time order and classes
each fault; this module feeds it and turns its columns into tables.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ... import _core
from .symbols import OWN_CODE, sites_of_codes

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.source import TableSource

FAULT_CLASSES: tuple[str, ...] = tuple(_core.FAULT_CLASSES)


class Replay:
    """One pass over a capture's faults, mappings, processes and page-table looks."""

    def __init__(self, capture: TableSource) -> None:
        machine = capture.meta.get("machine", {})
        page_bytes = int(machine.get("page_bytes", 4096))
        self.capture = capture
        self.page_bytes = page_bytes
        engine = _core.FaultReplay(
            page_shift=page_bytes.bit_length() - 1, numa_balancing=bool(machine.get("numa_balancing", False))
        )
        for _, payload in capture.payloads("string"):
            engine.add_strings(payload)
        for _, payload in capture.payloads("stack"):
            engine.add_stacks(payload)
        for _, payload in capture.payloads("allocation"):
            engine.note_resized(payload)
        for name, add in (
            ("process_event", engine.add_process_events),
            ("mapping", engine.add_mappings),
            ("fault", engine.add_faults),
            ("sampled_fault", engine.add_sampled_faults),
            ("residency", engine.add_residency),
            ("allocation", engine.add_allocations),
            ("tag_event", engine.add_tags),
            # Code that these name is resolved in the address spaces of the records before.
            ("code_count", engine.add_code_counts),
            ("page_count", engine.add_page_counts),
            ("unseen", engine.add_unseen),
        ):
            for header, payload in capture.payloads(name):
                add(header["process"], payload)
        capture.note_window_uses(engine)
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
        engine.run()
        self.engine = engine

    @property
    def own_faults(self) -> int:
        """Faults on memory of memlens's own library in the program, or made by its code that `memlens cc` linked into
        it: not in the tables."""
        return int(self.engine.own_faults) + round(float(self.fault_columns["weight"][self._by_own_code].sum()))

    @property
    def sampled_stretches(self) -> list[tuple[int, int, float]]:
        """(begin_ns, end_ns, weight) of each time in which not every fault was recorded, to keep the cost within the budget."""
        return list(self.engine.sampled_stretches)

    @cached_property
    def _by_own_code(self) -> Any:
        """For each row of `fault_columns`: whether memlens's linked-in code made it."""
        import pyarrow.compute as pc

        own = pc.fill_null(pc.equal(self.code_sites.column("kind"), OWN_CODE), False).to_numpy(zero_copy_only=False)
        return own.astype(bool)[self.fault_columns["code"]]

    @cached_property
    def fault_columns(self) -> dict[str, Any]:
        return self.engine.faults()

    @cached_property
    def codes(self) -> dict[str, Any]:
        return self.engine.codes()

    @cached_property
    def stacks(self) -> dict[int, list[int]]:
        """Sampled stacks: id → codes, innermost first."""
        return self.engine.stacks()

    @cached_property
    def code_sites(self) -> pa.Table:
        """One row for each code address, in the order of `codes`: module, function, file, line."""
        return sites_of_codes(self.capture, self.codes)

    def fault_table(self) -> pa.Table:
        """Every fault of the program with class, span, code and data area."""
        import numpy as np
        import pyarrow as pa

        columns = {name: values[~self._by_own_code] for name, values in self.fault_columns.items()}
        sites = self.code_sites
        code = pa.array(columns["code"])
        table: dict[str, Any] = {
            "time_ns": columns["time_ns"],
            "process": columns["process"],
            "thread": columns["thread"],
            "cpu": columns["cpu"],
            "address": columns["address"],
            "class": _dictionary(columns["class"], FAULT_CLASSES),
            "span_bytes": np.left_shift(np.uint64(1), columns["span_shift"].astype(np.uint64)),
            "new_bytes": columns["new_pages"].astype(np.uint64) * np.uint64(self.page_bytes),
            "area": _dictionary(columns["area"], _core.AREA_KINDS),
            "in_kernel": columns["in_kernel"].astype(bool),
            "inferred": columns["inferred"].astype(bool),
            "weight": columns["weight"],
            "ip": columns["ip"],
            "stack": columns["stack"],
            "stack_weight": columns["stack_weight"],
            "code": columns["code"],
        }
        result = pa.table(
            {name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in table.items()}
        )
        for name in ("module", "function", "file", "line"):
            result = result.append_column(name, sites.column(name).combine_chunks().take(code))
        return result.append_column("node", self._nodes(columns))

    def _nodes(self, columns: dict[str, Any]) -> pa.Array:
        """The NUMA node of each fault's page: asked by the recorder, or node 0 on a one-node machine."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        count = len(columns["address"])
        nodes = self.capture.meta.get("machine", {}).get("numa_nodes", [])
        if len(nodes) <= 1:
            return pa.array(np.full(count, nodes[0]["node"] if nodes else 0, dtype=np.int32))
        placements = self.capture.table("placements")
        if placements.num_rows == 0 or count == 0:
            return pa.nulls(count, type=pa.int32())
        # A question keeps its fault's time and asks for the base page that faulted.
        faults = pa.table(
            {
                "row": np.arange(count),
                "process": columns["process"],
                "time_ns": columns["time_ns"],
                "address": columns["address"] & ~np.uint64(self.page_bytes - 1),
            }
        )
        answers = placements.select(["process", "evidence_ns", "address", "node"]).rename_columns(
            ["process", "time_ns", "address", "node"]
        )
        keys = ["process", "time_ns", "address"]
        answers = answers.group_by(keys).aggregate([("node", "max")])
        joined = faults.join(answers, keys=keys, join_type="left outer").sort_by("row")
        node = joined.column("node_max").combine_chunks()
        return pc.if_else(pc.greater_equal(node, 0), node, pa.scalar(None, pa.int32())).cast(pa.int32())

    def placed_table(self) -> pa.Table:
        """Runs of pages that became resident without an event; `moved` ones came from elsewhere (mremap), `before` ones
        were resident when the recorder attached to the running process."""
        import numpy as np
        import pyarrow as pa

        columns = self.engine.placed()
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


def _dictionary(codes: Any, names: tuple[str, ...]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(list(names)))
