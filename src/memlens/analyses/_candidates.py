"""Which functions are worth a region of their own, an offload or fast memory: what `memlens suggest` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from ..errors import NoDataError

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..results import Result

ORDERS = ("time", "bytes", "intensity")
MIN_SHARE = 0.01
"""Of the bytes, or of the time of all functions whose time is known."""
FAST_MEMORY_SHARE = 0.1
OFFLOAD_INTENSITY = 1.0
"""Floating-point results for each byte: above it, data that is moved once is worked on enough."""


class _Candidate(TypedDict):
    """A function, and what it may be good for."""

    function: str
    module: str | None
    file: str | None
    line: int | None
    time_s: float | None
    executions: int | None
    bytes: int
    share: float
    stack_share: float | None
    bytes_per_second: float | None
    float_results_per_byte: float | None
    good_for: str


def candidates(capture: Capture, *, by: str = "time") -> Result:
    """Functions by time (where it is known), bytes or floating-point results for each byte.

    Bytes are those of the function's own code: counted by compiled-in counters, or under the emulator. The time of a function
    is known when it was a region (``memlens cc --memlens-functions``, or a region of its name): the sum over its threads,
    without regions inside it. With ``by="time"`` functions whose time is not known come after those, by bytes. ``good_for``: ``region``
    always; ``fast memory`` for a tenth and more of all bytes, mostly outside the stack; ``offload`` for much arithmetic on
    each byte (known with ``--memlens-mix``).
    """
    import pyarrow as pa

    from ..results import Result
    from .bandwidth import bandwidth
    from .traffic import traffic

    kinds = capture.kinds()
    seconds: dict[str, float] = {}
    if kinds.get("block_count"):
        source = bandwidth(capture)
        for row in source.tables["by_region"].to_pylist()[1:]:
            if row["exclusive"] and row["thread_ns"]:
                seconds[row["name"]] = seconds.get(row["name"], 0.0) + row["thread_ns"] / 1e9
    elif kinds.get("code_count"):
        source = traffic(capture)
    else:
        raise NoDataError(
            f"{capture.path} has no counts of accesses to rank functions by",
            hint="record a program built with memlens cc, or use memlens record --emulate",
        )
    rows: list[_Candidate] = []
    for row in source.tables["by_function"].to_pylist():
        name = row["function"]
        if not name:
            continue
        time_s = seconds.get(name, seconds.get(name.partition("(")[0]))
        stack = row.get("stack_share")
        if stack is None and row.get("stack_load_bytes") is not None and row["bytes"]:
            stack = (row["stack_load_bytes"] + row["stack_store_bytes"]) / row["bytes"]
        intensity = row.get("float_results_per_byte")
        uses = ["region"]
        if row["share"] >= FAST_MEMORY_SHARE and (stack or 0.0) < 0.5:
            uses.append("fast memory")
        if intensity is not None and intensity >= OFFLOAD_INTENSITY:
            uses.append("offload")
        rows.append(
            {
                "function": name, "module": row["module"], "file": row.get("file"), "line": row.get("line"), "time_s": time_s,
                "executions": row.get("executions"), "bytes": row["bytes"], "share": row["share"], "stack_share": stack,
                "bytes_per_second": row["bytes"] / time_s if time_s else None, "float_results_per_byte": intensity,
                "good_for": ", ".join(uses),
            }
        )  # fmt: skip
    all_time = sum(row["time_s"] or 0.0 for row in rows)
    rows = [
        row
        for row in rows
        if row["share"] >= MIN_SHARE or (all_time and (row["time_s"] or 0.0) >= MIN_SHARE * all_time)
    ]
    keys: dict[str, Callable[[_Candidate], tuple[float, ...]]] = {
        "time": lambda row: (row["time_s"] is None, -(row["time_s"] or 0.0), -row["bytes"]),
        "bytes": lambda row: (-row["bytes"],),
        "intensity": lambda row: (
            row["float_results_per_byte"] is None,
            -(row["float_results_per_byte"] or 0.0),
            -row["bytes"],
        ),
    }
    rows.sort(key=keys[by])
    text, real, number = pa.string(), pa.float64(), pa.int64()
    schema = pa.schema([
        ("function", text), ("module", text), ("file", text), ("line", number), ("time_s", real), ("executions", number),
        ("bytes", number), ("share", real), ("stack_share", real), ("bytes_per_second", real), ("float_results_per_byte", real),
        ("good_for", text),
    ])  # fmt: skip
    figures = {"functions": len(rows), "by": by, "time_known": sum(row["time_s"] is not None for row in rows)}
    return Result("candidates", figures, {"functions": pa.Table.from_pylist(rows, schema=schema)}, source.quality)
