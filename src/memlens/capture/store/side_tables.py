"""Side tables read back: their columns have the types that readers rely on, or the table is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CaptureError
from .files import open_regular, refuse_special

if TYPE_CHECKING:
    import pyarrow as pa

COUNT_TABLES = (
    "count_functions",
    "count_sites",
    "count_terms",
    "count_blocks",
    "count_counters",
    "count_callees",
    "count_traced",
    "count_loops",
)
"""What counted modules say about their counters; written only when there are any."""
IMPORT_TABLES = ("import_sites",)
"""What the files of an imported trace say about its instructions; written only when they do."""
SIDE_TABLES = (
    *("processes", "threads", "modules", "sites", "variables", "objects", "regions", "pinning"),
    *COUNT_TABLES,
    *IMPORT_TABLES,
)
OTHER_PREFIX = "other-"
"""Files of tables that collectors of other packages write: NAME is in other-NAME.parquet."""
OTHER_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")
MOST_OTHER_TABLES = 32
MOST_OTHER_BYTES = 64 << 20
"""Of one such table in memory, as Arrow has it."""
REMEDY = "remove it: it is made again from the records"
MOST_EXPANSION = 4096
"""Bytes of a table for each byte of its file: what dictionaries and runs of one value explain. More is a bomb."""
LEAST_LIMIT_BYTES = 1 << 26
MOST_ROWS = 32
"""For each byte of the file: rows have a number of their own, which takes bits."""
LEAST_ROWS = 1 << 16


NEVER_NULL = {"regions": ("process", "thread", "begin_ns", "end_ns", "depth", "executions")}
"""Columns by table. Rows of regions are intervals: an open one ends with its thread."""


def read_side_table(file: Path, schema: pa.Schema) -> pa.Table | None:
    """The table of a file with at least the columns of `schema`, of its types; None when it lacks one: another version's.

    Raises
    ------
    CaptureError
        The file is damaged, or a column has a type that cannot be this table's.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    refuse_special(file)
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            content = parquet.ParquetFile(opened)
            found = content.metadata
            claimed = sum(found.row_group(index).total_byte_size for index in range(found.num_row_groups))
            most = max(size * MOST_EXPANSION, LEAST_LIMIT_BYTES)
            if claimed > most or found.num_rows > max(size * MOST_ROWS, LEAST_ROWS):
                raise CaptureError(
                    f"{file} claims {found.num_rows:,} rows and {claimed:,} bytes in a file of {size:,} bytes",
                    hint=REMEDY,
                )
            if not set(schema.names) <= set(content.schema_arrow.names):
                return None
            table = content.read()
            table.validate(full=True)
    except (OSError, pa.ArrowException, ValueError, MemoryError, OverflowError) as error:
        raise CaptureError(
            f"{file} is damaged: {(str(error).splitlines() or [type(error).__name__])[0]}", hint=REMEDY
        ) from error
    if len(set(table.column_names)) != len(table.column_names):
        raise CaptureError(f"{file} has two columns of one name", hint=REMEDY)
    for name in NEVER_NULL.get(file.stem, ()):
        if table.column(name).null_count:
            raise CaptureError(
                f"{file}: the column {name} has {table.column(name).null_count} rows without a value", hint=REMEDY
            )
    for field in schema:
        kind = table.schema.field(field.name).type
        if kind != field.type and not _is_alike(kind, field.type):
            raise CaptureError(f"{file}: the column {field.name} is {kind}; expected {field.type}", hint=REMEDY)
    return table


def other_table_file(name: str) -> str:
    """The file of a table of another package.

    >>> other_table_file("clock_readings")
    'other-clock_readings.parquet'
    """
    return f"{OTHER_PREFIX}{name}.parquet"


def other_table_name(file: str) -> str | None:
    """The name of the table in such a file, None for other files.

    >>> other_table_name("other-clock_readings.parquet"), other_table_name("sites.parquet"), other_table_name("other-../x.parquet")
    ('clock_readings', None, None)
    """
    name = file.removeprefix(OTHER_PREFIX).removesuffix(".parquet")
    return name if OTHER_NAME.fullmatch(name) and file == other_table_file(name) else None


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other: dictionaries of texts are texts."""
    import pyarrow as pa

    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_dictionary(wanted):
        wanted = wanted.value_type
    return bool(found == wanted or (pa.types.is_large_string(found) and pa.types.is_string(wanted)))
