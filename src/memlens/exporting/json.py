"""Exporter `json`: an array of objects, one for each row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..registry import ExporterDescriptor

if TYPE_CHECKING:
    from typing import BinaryIO

    import pyarrow as pa


def write(reader: pa.RecordBatchReader, file: BinaryIO) -> int:
    rows = 0
    file.write(b"[")
    for batch in reader:
        for row in batch.to_pylist():
            text = json.dumps(row, indent=1, default=_plain).replace("\n", "\n ")
            file.write((",\n " if rows else "\n ").encode() + text.encode())
            rows += 1
    file.write(b"\n]\n" if rows else b"]\n")
    return rows


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


DESCRIPTOR = ExporterDescriptor(
    name="json",
    question="Text for programs: an array of objects, one for each row",
    suffix=".json",
    is_text=True,
    order=2,
    reads="pandas.read_json",
    write=write,
)
