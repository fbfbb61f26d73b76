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
    parser.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="derive all tables anew, and keep none beside the capture",
    )
    options = parser.parse_intermixed_args(arguments)
    from ..capture.reader import open_capture
    from .progress import spinning

    capture = open_capture(options.capture)
    capture.keeps_tables = options.cache
    names = options.tables.split(",") if options.tables else list(DEFAULT_TABLES)
    if options.output == "-":
        if len(names) != 1 or options.format == "parquet":
            parser.error("-o - takes one table, as csv or json")
        write_batches(
            capture.reader(names[0]), options.format, _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
        )
        return 0
    directory = Path(options.output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            with spinning(f"writing {name}"):
                partial = directory / f".{name}.partial"
                with partial.open("wb") as file:
                    rows = write_batches(capture.reader(name), options.format, file)
                os.replace(partial, directory / f"{name}.{options.format}")
            sys.stdout.write(f"{directory / name}.{options.format}  {rows} rows\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to {directory}: {os_reason(error)}", hint="give another directory with -o"
        ) from error
    example = f"duckdb -c \"SELECT * FROM '{directory}/{names[0]}.{options.format}' LIMIT 5\""
    sys.stdout.write(f"next: {example}, or pandas.read_{options.format}(...)\n")
    return 0


class _Terminal:
    """Standard output that is a terminal, as a file of bytes: names in them must not steer it."""

    closed = False

    def write(self, content: Any) -> int:
        sys.stdout.write(bytes(content).decode("utf-8", "replace"))
        return len(content)

    def flush(self) -> None:
        sys.stdout.flush()

    def writable(self) -> bool:
        return True


def harmless(column: Any) -> Any:
    """Texts with an apostrophe before what a spreadsheet would take for a formula: ``=``, ``+``, ``-``, ``@``, tab, CR."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.replace_substring_regex(column, pattern=r"\A([=+\-@\t\r])", replacement=r"'\1")


def flat(table: Any) -> Any:
    """Dictionary columns as plain text, lists as text: what CSV can hold."""
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


def write_batches(reader: Any, kind: str, file: Any) -> int:
    """One table in one of the three formats, batch by batch; returns its rows."""
    import pyarrow as pa

    rows = 0
    if kind == "csv":
        import pyarrow.csv as csv

        schema = flat(reader.schema.empty_table()).schema
        with csv.CSVWriter(file, schema) as writer:
            for batch in reader:
                writer.write_table(flat(pa.Table.from_batches([batch])))
                rows += batch.num_rows
    elif kind == "parquet":
        import pyarrow.parquet as parquet

        with parquet.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    else:
        file.write(b"[")
        for batch in reader:
            for row in batch.to_pylist():
                text = json.dumps(row, indent=1, default=_plain).replace("\n", "\n ")
                file.write((",\n " if rows else "\n ").encode() + text.encode())
                rows += 1
        file.write(b"\n]\n" if rows else b"]\n")
    return rows


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
