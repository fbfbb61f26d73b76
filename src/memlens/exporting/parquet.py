"""Exporter `parquet`: columns with their types, compressed by zstd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import ExporterDescriptor

if TYPE_CHECKING:
    from typing import BinaryIO

    import pyarrow as pa


def write(reader: pa.RecordBatchReader, file: BinaryIO) -> int:
    import pyarrow.parquet

    rows = 0
    with pyarrow.parquet.ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


DESCRIPTOR = ExporterDescriptor(
    name="parquet",
    question="Columns with their types, compressed, for DuckDB, pandas and polars",
    suffix=".parquet",
    order=3,
    reads="pandas.read_parquet",
    write=write,
)
