"""Rows of `bandwidth` by region and by thread: times, bandwidth by both definitions, imbalance, and our own cost taken off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

from ..capture.model.count_tables import MIX
from ._region_sums import QUANTITIES, Path, Regions, Thread, Time

if TYPE_CHECKING:
    from ..capture.reader import Capture

IDLE_SHARE = 0.01
"""The main thread with less than this of the busiest one's bytes only waits for the others: no part of the imbalance."""
OUTSIDE = "(outside regions)"
SAME = 1.05
"""Bounds of the wall-clock time that are closer than this are one figure."""


def imbalance(values: list[float]) -> float | None:
    """max / mean − 1 over threads.

    >>> imbalance([3.0, 1.0]), imbalance([2.0, 2.0]), imbalance([5.0])
    (0.5, 0.0, None)
    """
    if len(values) < 2 or not sum(values):
        return None
    return max(values) / (sum(values) / len(values)) - 1


def per_second(n_bytes: float | None, ns: float | None) -> float | None:
    return n_bytes / ns * 1e9 if n_bytes is not None and ns else None


class BandwidthRow(TypedDict, total=False):
    """A row of table ``by_region``, with `event_N` of four events besides. Bytes and bandwidths are null where they are withheld (`_gate.py`):
    who reads them looks at `bytes_withheld` and `withheld` first."""

    region: str
    name: str
    depth: int
    exclusive: bool
    executions: int
    counted: int
    untouched: int
    abandoned: int
    recursions: int
    threads: int
    working_threads: int
    loads: int
    stores: int
    read_bytes: int
    written_bytes: int
    stack_loads: int
    stack_stores: int
    stack_read_bytes: int
    stack_written_bytes: int
    bytes: int
    share: float
    stack_share: float | None
    bytes_error: float | None
    bytes_error_reason: str | None
    bytes_low: float | None
    bytes_high: float | None
    estimated: bool
    counted_share: float | None
    estimated_accesses_share: float | None
    thread_ns: int | None
    wall_ns: int | None
    wall_low_ns: int | None
    wall_high_ns: int | None
    least_ns: int | None
    most_ns: int | None
    own_cost_ns: float | None
    bytes_per_thread_second: float | None
    bytes_per_second: float | None
    bytes_per_second_low: float | None
    bytes_per_second_high: float | None
    corrected_bytes_per_second: float | None
    correction: str | None
    counting_cost_share: float | None
    byte_imbalance: float | None
    time_imbalance: float | None
    float_results: int | None
    float_results_per_byte: float | None
    event_share: float | None
    withheld: str | None
    bytes_withheld: str | None
    level: str | None
    level_evidence: str | None
    peak_kind: str | None
    peak_bytes_per_second: float | None
    peak_share: float | None
    farthest_level: str | None
    farthest_evidence: str | None
    farthest_peak_bytes_per_second: float | None


def event_of(row: BandwidthRow, number: int) -> int | None:
    """The value of an event."""
    return cast("dict[str, int | None]", row)[f"event_{number}"]


def without(row: BandwidthRow, names: Iterable[str]) -> None:
    """Makes columns null."""
    cast("dict[str, object]", row).update(dict.fromkeys(names))


def shares(row: Mapping[str, Any], all_bytes: float) -> dict[str, object]:
    n_bytes = row["read_bytes"] + row["written_bytes"]
    on_stack = row["stack_read_bytes"] + row["stack_written_bytes"]
    return {
        "bytes": n_bytes,
        "share": n_bytes / all_bytes if all_bytes else 0.0,
        "stack_share": on_stack / n_bytes if n_bytes else None,
    }


def intensity(row: Mapping[str, Any], has_mix: bool) -> dict[str, object]:
    if not has_mix:
        return {**dict.fromkeys(MIX), "float_results_per_byte": None}
    n_bytes = row["read_bytes"] + row["written_bytes"]
    return {"float_results_per_byte": row["float_results"] / n_bytes if n_bytes else None}


def rows_by_region(capture: Capture, regions: Regions, add_ns: float) -> list[BandwidthRow]:
    """The whole program first, then regions by bytes, nested ones behind the one around them; each with what is inside it, and without."""
    whole = sorted(regions.paths | {()})
    all_bytes = sum(regions.sum_of(whole, None, name, scaled=True) for name in ("read_bytes", "written_bytes"))
    program = _region_row(regions, "(whole program)", whole, None, all_bytes, add_ns)
    program.update(_program_time(capture, program))
    rows = [program]
    for path in sorted(regions.paths - {()}):
        rows.append(_region_row(regions, " / ".join(path), regions.below(path), path, all_bytes, add_ns))
        rows.append(_region_row(regions, " / ".join(path), [path], path, all_bytes, add_ns, exclusive=True))
    outside = any(key[0] == () for key in regions.bytes)
    if outside and len(regions.paths) > 1:
        row = _region_row(regions, OUTSIDE, [()], None, all_bytes, add_ns, exclusive=True)
        row["byte_imbalance"] = None  # serial work is to be expected there
        rows.append(row)
        other = row.copy()
        other["exclusive"] = False
        rows.append(other)
    by_path = {row["region"]: row["bytes"] for row in rows[1:] if not row["exclusive"]}
    return [rows[0], *sorted(rows[1:], key=lambda row: (_nested(row["region"], by_path), row["exclusive"]))]


def _nested(region: str, by_path: dict[str, int]) -> list[tuple[int, str]]:
    """The order of regions: by bytes; those inside one behind it, by bytes among themselves.

    >>> sorted(["a", "a / b", "c"], key=lambda name: _nested(name, {"a": 5, "a / b": 4, "c": 9}))
    ['c', 'a', 'a / b']
    """
    parts = region.split(" / ")
    paths = [" / ".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return [(-by_path.get(path, 0), path) for path in paths]


def _region_row(
    regions: Regions,
    name: str,
    paths: list[Path],
    path: Path | None,
    all_bytes: float,
    add_ns: float,
    *,
    exclusive: bool = False,
) -> BandwidthRow:
    counted, untouched = regions.executions(path) if path is not None else (0, 0)
    own = regions.times_of(path) if path is not None else []
    scaled = {quantity: round(regions.sum_of(paths, None, quantity, scaled=True)) for quantity in (*QUANTITIES, *MIX)}
    plain = sum(regions.sum_of(paths, None, quantity) for quantity in ("read_bytes", "written_bytes"))
    row: dict[str, Any] = {
        "region": name, "name": path[-1] if path else name, "depth": len(path) - 1 if path else 0, "exclusive": exclusive,
        "executions": counted + untouched, "counted": counted, "untouched": untouched,
        "abandoned": sum(time.abandoned for time in own), "recursions": sum(time.recursions for time in own), **scaled,
    }  # fmt: skip
    row |= shares(row, all_bytes)
    row |= intensity(row, regions.has_mix)
    unknown = any(regions.factor(other) is None for other in paths)
    row["estimated"] = any(regions.factor(other) != 1.0 for other in paths)
    row["counted_share"] = plain / row["bytes"] if row["bytes"] and not unknown else None
    accesses = regions.sum_of(paths, None, "loads") + regions.sum_of(paths, None, "stores")
    estimated = regions.sum_of(paths, None, "estimated_accesses")
    row["estimated_accesses_share"] = estimated / accesses if accesses else None
    error = regions.error(paths)
    row["bytes_error"], row["bytes_error_reason"] = error.standard, error.reason
    reach = error.reach
    row["bytes_low"] = None if reach is None else max(row["bytes"] - reach, plain)
    row["bytes_high"] = None if reach is None else row["bytes"] + reach
    _add_times(row, regions, paths, path, add_ns, exclusive=exclusive)
    row |= _event_columns([time for time in own if time.counted + time.untouched])
    return cast("BandwidthRow", row)


def _event_columns(times: list[Time]) -> dict[str, object]:
    """Events of a region: a sum needs a value of every thread that ran it."""
    found: dict[str, object] = {}
    for number in range(4):
        values = [time.events[number] for time in times]
        found[f"event_{number}"] = None if not values or None in values else sum(value or 0 for value in values)
    known = any(value is not None for value in found.values())
    shares = [time.event_share_ppm for time in times if time.event_share_ppm is not None]
    found["event_share"] = min(shares) / 1e6 if known and shares else None
    return found


def _add_times(
    row: dict[str, Any], regions: Regions, paths: list[Path], path: Path | None, add_ns: float, *, exclusive: bool
) -> None:
    threads = regions.threads(paths)
    row["threads"] = len(threads)
    row |= dict.fromkeys(
        ("thread_ns", "wall_ns", "wall_low_ns", "wall_high_ns", "bytes_per_thread_second", "bytes_per_second",
         "bytes_per_second_low", "bytes_per_second_high", "own_cost_ns", "corrected_bytes_per_second", "correction",
         "counting_cost_share", "byte_imbalance", "time_imbalance", "least_ns", "most_ns")
    )  # fmt: skip
    moved = {
        thread: sum(regions.sum_of(paths, thread, name, scaled=True) for name in ("read_bytes", "written_bytes"))
        for thread in threads
    }
    working = _working(moved)
    row["working_threads"] = max(1, len(working))
    row["byte_imbalance"] = imbalance([moved[thread] for thread in working])
    if path is None:
        return
    times = {
        thread: regions.self_ns(path, thread) if exclusive else regions.inclusive_ns(path, thread) for thread in threads
    }
    own = regions.times_of(path)
    row["least_ns"] = min((time.least_ns for time in own if time.least_ns), default=None)
    row["most_ns"] = max((time.most_ns for time in own if time.most_ns), default=None)
    row["time_imbalance"] = imbalance([float(times[thread]) for thread in working])
    row["thread_ns"] = sum(times.values()) or None
    row["own_cost_ns"] = None if exclusive else regions.own_cost_ns(path)
    low, high = regions.wall_range(path, times, exclusive=exclusive)
    row["wall_low_ns"], row["wall_high_ns"] = low or None, high or None
    row["wall_ns"] = row["wall_high_ns"] if high <= SAME * low else None
    row["bytes_per_thread_second"] = per_second(row["bytes"], row["thread_ns"])
    row["bytes_per_second"] = per_second(row["bytes"], row["wall_ns"])
    row["bytes_per_second_low"] = per_second(row["bytes"], row["wall_high_ns"])
    row["bytes_per_second_high"] = per_second(row["bytes"], row["wall_low_ns"])
    counted, untouched = row["counted"], row["untouched"]
    if not row["bytes_per_second"]:
        return
    cost_ns = regions.sum_of(paths, None, "adds") * add_ns
    if counted and untouched and not exclusive:
        counted_ns = sum(time.counted_ns for time in own)
        untouched_ns = sum(time.untouched_ns for time in own)
        if untouched_ns:
            # The same executions without counting: all of them would have taken executions × an untouched one's time.
            untouched_total = untouched_ns / untouched * (counted + untouched)
            row["corrected_bytes_per_second"] = row["bytes_per_second"] * row["thread_ns"] / untouched_total
            row["counting_cost_share"] = (counted_ns / counted) / (untouched_ns / untouched) - 1
            row["correction"] = "untouched"
    elif add_ns and not row["estimated"]:
        cost_ns = min(cost_ns, 0.9 * row["thread_ns"])
        row["corrected_bytes_per_second"] = row["bytes_per_second"] * row["thread_ns"] / (row["thread_ns"] - cost_ns)
        row["counting_cost_share"] = cost_ns / (row["thread_ns"] - cost_ns)
        row["correction"] = "calibrated"


def _working(moved: dict[Thread, float]) -> list[Thread]:
    """Threads that share the work: not those added up after their end, and not a main thread that only waits."""
    single = {thread: value for thread, value in moved.items() if thread[1] != 0}
    busiest = max(single.values(), default=0.0)
    mains = {process: min(t for p, t in single if p == process) for process, _ in single}
    return [
        thread
        for thread, value in single.items()
        if not (thread[1] == mains[thread[0]] and value < IDLE_SHARE * busiest and len(single) > 2)
    ]


def _program_time(capture: Capture, row: BandwidthRow) -> BandwidthRow:
    """Of the whole program only wall-clock time is known: from the first image's birth to the last one's end."""
    statuses = capture.table("count_status").to_pylist()
    begin = min((status["born_ns"] for status in statuses), default=0)
    end = max((status["ended_ns"] or capture.end_ns for status in statuses), default=0)
    selection = capture.selection
    if selection.time_s is not None:
        first, last = capture.time_range_ns
        begin, end = max(begin, first), min(end, last)
    duration = end - begin if end > begin and not (selection.region or selection.by_access) else None
    return {
        "wall_ns": duration,
        "wall_low_ns": duration,
        "wall_high_ns": duration,
        "bytes_per_second_low": per_second(row["bytes"], duration),
        "bytes_per_second_high": per_second(row["bytes"], duration),
        "bytes_per_second": per_second(row["bytes"], duration),
        "executions": len(statuses),
    }


def rows_by_thread(capture: Capture, regions: Regions) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names = {(row["process"], row["thread"]): row["name"] for row in capture.table("threads").to_pylist()}
    everywhere = sorted(regions.paths | {()})
    all_bytes = sum(regions.sum_of(everywhere, None, name, scaled=True) for name in ("read_bytes", "written_bytes"))
    outermost = [path for path in everywhere if len(path) == 1]
    totals, crossed = [], []
    for thread in regions.threads(everywhere):
        head = {"process": thread[0], "thread": thread[1], "name": names.get(thread)}
        row = {**head, **{n: round(regions.sum_of(everywhere, thread, n, scaled=True)) for n in QUANTITIES}}
        row |= shares(row, all_bytes)
        row["thread_ns"] = sum(regions.inclusive_ns(path, thread) for path in outermost) or None
        in_regions = sum(
            regions.sum_of([path for path in everywhere if path], thread, name, scaled=True)
            for name in ("read_bytes", "written_bytes")
        )
        row["bytes_per_thread_second"] = per_second(in_regions, row["thread_ns"])
        totals.append(row)
    for path in sorted(regions.paths - {()}):
        for thread in regions.threads(regions.below(path)):
            time = regions.times.get((path, thread), Time())
            row = {"region": " / ".join(path), "process": thread[0], "thread": thread[1], "name": names.get(thread)}
            row |= {"executions": time.counted + time.untouched, "counted": time.counted, "untouched": time.untouched}
            row |= {n: round(regions.sum_of(regions.below(path), thread, n, scaled=True)) for n in QUANTITIES}
            row |= shares(row, all_bytes)
            row["thread_ns"] = regions.inclusive_ns(path, thread) or None
            row["bytes_per_thread_second"] = per_second(row["bytes"], row["thread_ns"])
            crossed.append(row)
    return sorted(totals, key=lambda row: -row["bytes"]), sorted(
        crossed, key=lambda row: (row["region"], -row["bytes"])
    )
