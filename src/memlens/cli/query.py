"""`memlens query`: SQL on a capture's tables (DuckDB)."""

from __future__ import annotations

import json
import sys
from typing import Any

from .main import new_parser

EXAMPLES = """\
  memlens query run.memlens "SELECT class, sum(weight) FROM faults GROUP BY class"
  memlens query run.memlens "SELECT function, sum(new_bytes * weight) b FROM faults GROUP BY 1 ORDER BY b DESC LIMIT 5"
  memlens query run.memlens "SELECT function, sum(weight) n FROM accesses JOIN sites ON code = id GROUP BY 1"
  memlens query run.memlens --tables              the tables and their columns
  memlens query run.memlens --json "FROM processes"
"""


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "query", description="Queries a capture's tables with SQL (DuckDB's dialect).", examples=EXAMPLES
    )
    parser.add_argument("capture", help="capture directory")
    parser.add_argument("sql", nargs="?", help="the query")
    parser.add_argument("--tables", action="store_true", help="list tables and columns")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="derive all tables anew, and keep none beside the capture",
    )
    options = parser.parse_intermixed_args(arguments)
    if not options.tables and options.sql is None:
        parser.error("no query given")
    from ..capture.reader import open_capture
    from .progress import spinning

    capture = open_capture(options.capture)
    capture.keeps_tables = options.cache
    if options.tables:
        for name in capture.table_names():
            schema, rows = capture.reader(name).schema, capture.row_count(name)
            columns = ", ".join(f"{field.name} {_type_name(field.type)}" for field in schema)
            sys.stdout.write(f"{name} ({rows} rows): {columns}\n")
        sys.stdout.write(f'next: memlens query {options.capture} "SELECT * FROM processes"\n')
        return 0
    with spinning("running the query"):
        table = capture.sql(options.sql)
    if options.json:
        json.dump(table.to_pylist(), sys.stdout, indent=1, default=str)
        sys.stdout.write("\n")
        return 0
    _show(table)
    return 0


def _type_name(kind: Any) -> str:
    text = str(kind)
    return "text" if text.startswith("dictionary") or text == "string" else text


def _show(table: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..plain_text import plain_console, trusted

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for field in table.schema:
        numeric = str(field.type).startswith(("int", "uint", "float", "double", "decimal"))
        shown.add_column(Text(field.name), justify="right" if numeric else "left", overflow="fold")
    limit = 1000
    for row in table.slice(0, limit).to_pylist():
        shown.add_row(*(Text("" if value is None else str(value)) for value in row.values()))
    # A pipe gets the whole width of the content: nothing is cut for a reader that is a program.
    console = plain_console(
        trusted(sys.stdout) if sys.stdout.isatty() else sys.stdout,
        width=None if sys.stdout.isatty() else 1000,
        highlight=False,
        emoji=False,
    )
    console.print(shown)
    more = f", first {limit} shown; --json has all" if table.num_rows > limit else ""
    sys.stderr.write(f"{table.num_rows} rows{more}; next: memlens export writes whole tables to files\n")
