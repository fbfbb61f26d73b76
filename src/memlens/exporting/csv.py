"""Exporter `csv`: a header and a line for each row; texts that a spreadsheet would run as formulas are quoted by an apostrophe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import ExporterDescriptor
from ._flat import flat

if TYPE_CHECKING:
    from typing import BinaryIO

    import pyarrow as pa


def write(reader: pa.RecordBatchReader, file: BinaryIO) -> int:
    import pyarrow as pa
    import pyarrow.csv

    rows = 0
    schema = flat(reader.schema.empty_table()).schema
    with pyarrow.csv.CSVWriter(file, schema) as writer:
        for batch in reader:
            writer.write_table(flat(pa.Table.from_batches([batch])))
            rows += batch.num_rows
    return rows


DESCRIPTOR = ExporterDescriptor(
    name="csv",
    question="Text for spreadsheets and line tools: a header, then a line for each row",
    suffix=".csv",
    is_text=True,
    order=1,
    reads="pandas.read_csv",
    write=write,
)
