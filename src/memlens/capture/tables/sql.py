"""SQL on the tables of a capture (DuckDB's dialect): `memlens query`, `Capture.sql`.

A connection sees the tables that the query names, and nothing of this machine: no files, no network.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from ...errors import QueryError
from .catalogue import tables

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


COUNT_ALL = re.compile(r"\s*SELECT\s+count\(\*?\)\s+(?:AS\s+\w+\s+)?FROM\s+(\w+)\s*;?\s*", re.IGNORECASE)
"""A query that asks for the number of rows alone."""
ROWS_A_BATCH = 1 << 16


class Queried(Protocol):
    """A capture, as far as queries need it."""

    def table(self, name: str) -> pa.Table: ...
    def reader(self, name: str) -> pa.RecordBatchReader: ...
    def side_table_names(self) -> list[str]: ...
    def side_table(self, name: str) -> pa.Table: ...
    def row_count(self, name: str) -> int: ...


def connect(capture: Queried, sql: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that sees the tables which the query names, and nothing of this machine."""
    import duckdb

    connection = duckdb.connect(config={"enable_external_access": "false"})
    asked = COUNT_ALL.fullmatch(sql)
    if asked and asked[1].lower() in tables() and tables()[asked[1].lower()].count_rows is not None:
        connection.register(asked[1].lower(), _rows_alone(capture.row_count(asked[1].lower())))
        return connection
    for name in tables():
        uses = len(re.findall(rf"\b{name}\b", sql, re.IGNORECASE))
        if uses and tables()[name].stream is not None:
            connection.register(name if uses == 1 else f"{name}_once", capture.reader(name))
            if uses > 1:  # a stream can be read once only
                connection.execute(f"CREATE TEMP TABLE {name} AS FROM {name}_once")
        elif uses:
            connection.register(name, capture.table(name))
    for name in capture.side_table_names():
        if name not in tables() and re.search(rf"\b{name}\b", sql, re.IGNORECASE):
            connection.register(name, capture.side_table(name))
    return connection


def _rows_alone(count: int) -> pa.RecordBatchReader:
    """So many rows of nothing."""
    import pyarrow as pa

    batch = pa.record_batch({"row": pa.nulls(ROWS_A_BATCH, pa.bool_())})
    whole, rest = divmod(count, ROWS_A_BATCH)
    batches = (batch if at < whole else batch.slice(0, rest) for at in range(whole + 1))
    return pa.RecordBatchReader.from_batches(batch.schema, batches)


def run_query(capture: Queried, sql: str) -> pa.Table:
    """The result as an Arrow table."""
    import duckdb

    try:
        relation = connect(capture, sql).sql(sql)
        if relation is None:
            raise QueryError("the query gives no rows", hint="write a SELECT")
        # DuckDB 1 and 2 name it differently.
        table: pa.Table = (
            relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table()
        )
    except duckdb.Error as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        hint = next((line.strip() for line in lines[1:] if "Candidate" in line), None)
        unknown = re.search(r"Table with name (\w+) does not exist", lines[0])
        if unknown:
            import difflib

            close = difflib.get_close_matches(unknown[1], tables(), n=1)
            hint = f"did you mean {close[0]}?" if close else None
        raise QueryError(
            f"the query does not run: {lines[0]}",
            hint=hint or "memlens query CAPTURE --tables lists tables and columns",
        ) from error
    return table
