"""All tables of a capture, by name, in the order in which they are listed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...errors import NoDataError

if TYPE_CHECKING:
    import pyarrow as pa

    from .descriptor import Models, TableDescriptor

FIRST = ("faults", "placed", "accesses", "block_counts", "site_counts", "region_times", "trace_sites")
"""What most queries ask for."""


@cache
def tables() -> dict[str, TableDescriptor]:
    """Descriptors by name: derived tables, side tables, records."""
    from ..store.side_tables import SIDE_TABLES
    from . import accesses, code, counts, faults, records, run

    found = {
        descriptor.name: descriptor
        for descriptor in (
            *faults.TABLES, *accesses.TABLES, *counts.TABLES, *run.TABLES, *code.TABLES, *records.record_tables(),
        )
    }  # fmt: skip
    order = [*FIRST, *SIDE_TABLES, *records.table_names().values()]
    return {name: found[name] for name in order}


def descriptor_of(name: str) -> TableDescriptor:
    """The descriptor of a table.

    Raises
    ------
    NoDataError
        There is no table of this name.
    """
    found = tables().get(name)
    if found is None:
        import difflib

        close = difflib.get_close_matches(name, tables(), n=1)
        raise NoDataError(
            f"a capture has no table {name!r}",
            hint=f"did you mean {close[0]!r}?" if close else f"tables: {', '.join(tables())}",
        )
    return found


def table_schema(name: str) -> pa.Schema:
    """The columns of a side table."""
    schema = tables()[name].schema
    assert schema is not None, name
    return schema()


def derive_table(capture: Models, name: str, **options: object) -> pa.Table:
    """One side table from the capture's records."""
    return tables()[name].make(capture, **options)
