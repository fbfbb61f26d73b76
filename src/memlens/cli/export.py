"""`memlens export`: a capture's tables as files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import OutputError, os_reason
from .main import new_parser

DEFAULT_TABLES = ("processes", "threads", "modules", "sites", "faults", "placed", "timeline", "mappings", "losses")
EXAMPLES = """\
  memlens export run.memlens --format csv -o out        out/faults.csv, out/timeline.csv, …
  memlens export run.memlens --format parquet -o out --tables faults,timeline
  memlens export run.memlens --format json -o - --tables processes | jq .
"""


def main(arguments: list[str]) -> int:
    parser = new_parser("export", description="Writes a capture's tables as files.", examples=EXAMPLES)
    parser.add_argument("capture", help="capture directory")
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="directory to write to; - for standard output"
    )
    parser.add_argument("--format", choices=("csv", "json", "parquet"), default="csv", help="file format (csv)")
    parser.add_argument("--tables", metavar="A,B", help="only these tables (default: the commonly used ones)")
    options = parser.parse_intermixed_args(arguments)
    from ..capture.reader import open_capture
    from .progress import spinning

    capture = open_capture(options.capture)
    names = options.tables.split(",") if options.tables else list(DEFAULT_TABLES)
    if options.output == "-":
        if len(names) != 1 or options.format == "parquet":
            parser.error("-o - takes one table, as csv or json")
        write_table(capture.table(names[0]), options.format, sys.stdout.buffer)
        return 0
    directory = Path(options.output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            with spinning(f"writing {name}"):
                table = capture.table(name)
                partial = directory / f".{name}.partial"
                with partial.open("wb") as file:
                    write_table(table, options.format, file)
                os.replace(partial, directory / f"{name}.{options.format}")
            sys.stdout.write(f"{directory / name}.{options.format}  {table.num_rows} rows\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to {directory}: {os_reason(error)}", hint="give another directory with -o"
        ) from error
    example = f"duckdb -c \"SELECT * FROM '{directory}/{names[0]}.{options.format}' LIMIT 5\""
    sys.stdout.write(f"next: {example}, or pandas.read_{options.format}(...)\n")
    return 0


def flat(table: Any) -> Any:
    """Dictionary columns as plain text, lists as text: what CSV can hold."""
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, column.cast(field.type.value_type))
        elif pa.types.is_list(field.type):
            text = pa.array([None if v is None else " ; ".join(map(str, v)) for v in column.to_pylist()], pa.string())
            table = table.set_column(index, field.name, text)
        elif pa.types.is_binary(field.type):
            table = table.set_column(
                index, field.name, pa.array([v and v.hex() for v in column.to_pylist()], pa.string())
            )
    return table


def write_table(table: Any, kind: str, file: Any) -> None:
    """One table in one of the three formats."""
    if kind == "csv":
        import pyarrow.csv as csv

        csv.write_csv(flat(table), file)
    elif kind == "parquet":
        import pyarrow.parquet as parquet

        parquet.write_table(table, file, compression="zstd")
    else:
        file.write(json.dumps(table.to_pylist(), indent=1, default=_plain).encode() + b"\n")


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
