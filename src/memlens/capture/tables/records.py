"""Tables of records as they were recorded: one for each kind of format/records.def, ids replaced by text and numbers by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..store.layouts import Field, Layout, enum_names, layouts
from .descriptor import CODE, PROCESS, REGION, Models, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

WITH_CODE = frozenset({"code_count", "page_count", "unseen"})
"""Record kinds with an instruction pointer: their tables have `code` too, the row of ``sites`` that names it."""
DECODED = frozenset({"window"})
"""Kinds whose table is made elsewhere under the name of this one."""
TAILS = {
    "text": "the text",
    "ips": "instruction pointers, innermost first",
    "tail": "the bytes that follow the record",
}
TABLE_NAMES = {
    "string": "strings",
    "stack": "stacks",
    "stack_dump": "stack_dumps",
    "process_event": "process_events",
    "mapping": "mappings",
    "jit_code": "jit_code",
    "clock_pair": "clock_pairs",
    "loss": "losses",
    "fault": "fault_records",
    "sampled_fault": "sampled_fault_records",
    "fault_level": "fault_levels",
    "residency": "residency",
    "placement": "placements",
    "timeline": "timeline",
    "allocation": "allocations",
    "region_event": "region_events",
    "tag_event": "tag_events",
    "pinning": "pinning_events",
    "thread_memory": "thread_memory",
    "tls_module": "tls_modules",
    "runtime_status": "runtime_status",
    "block_count": "block_count_records",
    "window": "windows",
    "access": "access_records",
    "code_count": "code_counts",
    "page_count": "page_counts",
    "unseen": "unseen",
    "emulator_status": "emulator_status",
    "region_node": "region_nodes",
    "region_time": "region_time_records",
    "counted_module": "counted_modules",
    "count_tables": "count_table_parts",
    "count_status": "count_status",
    "count_epoch": "count_epochs",
    "region_span": "region_spans",
    "sample_group": "sample_groups",
    "sample_count": "sample_count_records",
    "region_duration": "region_durations",
    "traced_module": "traced_modules",
    "trace_status": "trace_status",
}
"""Record kind → name of its table."""


def _meaning(field: Field) -> str:
    """A record field's meaning as its column has it."""
    if field.enumeration:
        return "one of: " + ", ".join(enum_names(field.enumeration).values())
    if field.text.startswith("enum ml_"):
        family = field.text.split()[1].removeprefix("ml_").rstrip(",")
        return "sum of flags: " + ", ".join(f"{value} {name}" for value, name in enum_names(family).items())
    if field.is_string_id:
        return field.text.removeprefix("string").removeprefix(":").strip() or "text"
    return str(field.text)


def record_columns(kind: str) -> dict[str, str]:
    """The meaning of each field of a record kind."""
    return {field.name: _meaning(field) for field in layouts()[kind].fields}


def _records(kind: str) -> Callable[[Models], pa.Table]:
    """The maker of the table of a record kind."""

    def make(capture: Models) -> pa.Table:
        import pyarrow as pa

        batches = list(capture.batches(kind))
        if not batches:
            return pa.Table.from_batches([capture.empty_batch(kind)])
        table = pa.concat_tables(
            [pa.Table.from_batches([batch]) for batch in batches], promote_options="permissive"
        ).unify_dictionaries()
        if kind == "region_time":
            from .counts import with_known_events

            return with_known_events(table, capture)
        return capture.windows.with_code(table) if kind in WITH_CODE else table

    return make


def _descriptor(kind: str, layout: Layout) -> TableDescriptor:
    return TableDescriptor(
        name=TABLE_NAMES[kind],
        text=f"Record kind `{layout.name}`: {layout.text}.",
        make=_records(kind),
        columns={"process": PROCESS, "code": CODE, **record_columns(kind), **TAILS},
        record=kind,
    )


def _region_times(capture: Models) -> pa.Table:
    from .counts import region_times

    return region_times(capture.counts)


def _all() -> Iterator[TableDescriptor]:
    yield TableDescriptor(
        name="region_times",
        text="Executions and times of regions: `region_time_records` with the path of their region.",
        make=_region_times,
        columns={"process": PROCESS, "region": REGION, **record_columns("region_time")},
    )
    yield from (_descriptor(kind, layouts()[kind]) for kind in TABLE_NAMES if kind not in DECODED)


@cache
def record_tables() -> tuple[TableDescriptor, ...]:
    """Descriptors of all record kinds; layouts come from the native core."""
    return tuple(_all())
