"""Columns of the side table ``objects``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def object_schema() -> pa.Schema:
    """One row for each object, in the order of birth."""
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.uint64()),
            ("process", pa.uint32()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("base", pa.uint64()),
            ("bytes", pa.uint64()),
            ("weight_bytes", pa.uint64()),
            ("count", pa.float64()),
            ("born_ns", pa.uint64()),
            ("died_ns", pa.uint64()),
            ("thread", pa.uint32()),
            ("death_thread", pa.uint32()),
            ("stack", pa.uint32()),
            ("operation", pa.string()),
            ("previous", pa.uint64()),
            ("alignment_bytes", pa.uint64()),
            ("touched_bytes", pa.uint64()),
            ("recycled_bytes", pa.uint64()),
            ("never_touched_bytes", pa.uint64()),
            ("faults", pa.uint32()),
            ("first_touch_ns", pa.uint64()),
            ("first_touch_thread", pa.uint32()),
            ("first_touch_code", pa.uint32()),
            ("touching_threads", pa.uint32()),
            ("top_thread_bytes", pa.uint64()),
        ]
    )
