"""What text formats without types can hold of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def harmless(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts with an apostrophe before what a spreadsheet would take for a formula: ``=``, ``+``, ``-``, ``@``, tab, CR."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.replace_substring_regex(column, pattern=r"\A([=+\-@\t\r])", replacement=r"'\1")


def flat(table: pa.Table) -> pa.Table:
    """Dictionary columns as plain text, lists as text, bytes as hex digits."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, harmless(column.cast(field.type.value_type)))
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(index, field.name, harmless(column))
        elif pa.types.is_list(field.type):
            text = pa.array([None if v is None else " ; ".join(map(str, v)) for v in column.to_pylist()], pa.string())
            table = table.set_column(
                index, field.name, harmless(text) if pa.types.is_string(field.type.value_type) else text
            )
        elif pa.types.is_binary(field.type):
            table = table.set_column(
                index, field.name, pa.array([v and v.hex() for v in column.to_pylist()], pa.string())
            )
    return table
