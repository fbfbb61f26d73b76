"""Which functions are worth a region of their own, an offload or fast memory: what `memlens suggest` shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..errors import NoDataError
from ..view import Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..results import Result

MIN_SHARE = 0.01
"""Of the bytes, or of the time of all functions whose time is known."""
FAST_MEMORY_SHARE = 0.1
OFFLOAD_INTENSITY = 1.0
"""Floating-point results for each byte: above it, data that is moved once is worked on enough."""


@dataclass(frozen=True)
class Candidate:
    """One function; a row of the table."""

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


def _by_time(row: Candidate) -> tuple[float, ...]:
    return row.time_s is None, -(row.time_s or 0.0), -row.bytes


def _by_bytes(row: Candidate) -> tuple[float, ...]:
    return (-row.bytes,)


def _by_intensity(row: Candidate) -> tuple[float, ...]:
    return row.float_results_per_byte is None, -(row.float_results_per_byte or 0.0), -row.bytes


ORDERS: dict[str, tuple[str, Callable[[Candidate], tuple[float, ...]]]] = {
    "time": ("time", _by_time),
    "bytes": ("bytes", _by_bytes),
    "intensity": ("floating-point results for each byte", _by_intensity),
}
"""What can be ranked by: in words, and the key of a row."""


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
    rows: list[Candidate] = []
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
            Candidate(
                function=name, module=row["module"], file=row.get("file"), line=row.get("line"), time_s=time_s,
                executions=row.get("executions"), bytes=row["bytes"], share=row["share"], stack_share=stack,
                bytes_per_second=row["bytes"] / time_s if time_s else None, float_results_per_byte=intensity,
                good_for=", ".join(uses),
            )
        )  # fmt: skip
    all_time = sum(row.time_s or 0.0 for row in rows)
    rows = [row for row in rows if row.share >= MIN_SHARE or (all_time and (row.time_s or 0.0) >= MIN_SHARE * all_time)]
    words, order = ORDERS[by]
    rows.sort(key=order)
    text, real, number = pa.string(), pa.float64(), pa.int64()
    schema = pa.schema([
        ("function", text), ("module", text), ("file", text), ("line", number), ("time_s", real), ("executions", number),
        ("bytes", number), ("share", real), ("stack_share", real), ("bytes_per_second", real), ("float_results_per_byte", real),
        ("good_for", text),
    ])  # fmt: skip
    time_known = sum(row.time_s is not None for row in rows)
    if by == "time" and not time_known:
        words = "bytes (no function's time is known)"
    figures = {"functions": len(rows), "by": by, "ranked_by": words, "time_known": time_known}
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    return Result("candidates", figures, {"functions": table}, source.quality)


def view(result: Result) -> View:
    return View(
        title="Functions",
        headline="{functions} candidate(s) for regions, ranked by {ranked_by}[, time known of {time_known}]",
        figures=(
            Figure(
                name="functions", label="candidates", kind="count",
                help=f"Functions with {MIN_SHARE:.0%} and more of the bytes, or of the time of all functions whose time is known.",
            ),
            Figure(name="ranked_by", label="ranked by", kind="text"),
            Figure(name="time_known", label="functions with a known time", kind="count", show="nonzero"),
        ),
        tables=(
            Table(name="functions", title="Candidates", columns=(
                key("function", "function", "code"),
                measure("time_s", "time", "s", show="known", help="The sum over its threads, without regions inside it."),
                measure("bytes", "bytes", "moved"), measure("share", "share", "share"),
                measure("stack_share", "stack", "share", help="Of its bytes, those on the stack."),
                measure("bytes_per_second", "GB/s", "bytes_per_s", show="known"),
                measure("float_results_per_byte", "flop/B", "number", show="known"),
                detail("executions", "executions", "count", show="known"),
                measure("good_for", "good for", "text"),
            )),
        ),
        remarks=(
            f"fast memory: at least {FAST_MEMORY_SHARE:.0%} of all bytes, mostly outside the stack; offload: at least "
            f"{OFFLOAD_INTENSITY:g} floating-point result for each byte (needs --memlens-mix)",
        ),
    )  # fmt: skip
