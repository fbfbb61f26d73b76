"""Tables of records as they were recorded: one for each kind of format/records.def, ids replaced by text and numbers by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..store.layouts import Field, Layout, enum_names, layouts
from .descriptor import CODE, PROCESS, REGION, Models, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

DECODED = frozenset({"window"})
"""Kinds whose table is made elsewhere under the name of this one."""
TAILS = {
    "text": "the text",
    "ips": "instruction pointers, innermost first",
    "tail": "the bytes that follow the record",
}


def _meaning(field: Field) -> str:
    """A record field's meaning as its column has it."""
    if field.role == "ENUM":
        return "one of: " + ", ".join(enum_names(field.family).values())
    if field.role == "FLAGS":
        return "sum of flags: " + ", ".join(f"{value} {name}" for value, name in enum_names(field.family).items())
    return field.text


def table_names() -> dict[str, str]:
    """Record kind → name of its table."""
    return {name: layout.table for name, layout in layouts().items()}


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
        return capture.windows.with_code(table) if has_code else table

    has_code = any(field.role == "CODE" for field in layouts()[kind].fields)
    return make


def _descriptor(kind: str, layout: Layout) -> TableDescriptor:
    return TableDescriptor(
        name=layout.table,
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
    yield from (_descriptor(kind, layouts()[kind]) for kind in layouts() if kind not in DECODED)


@cache
def record_tables() -> tuple[TableDescriptor, ...]:
    """Descriptors of all record kinds; layouts come from the native core."""
    return tuple(_all())
