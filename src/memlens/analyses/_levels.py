"""Which level of memory a region used, and how its bandwidth stands beside that level's peak (`memlens calibrate`).

Owns what counts as evidence. Access bandwidth is bytes at the core: without evidence of where they came from it is compared with
nothing. Evidence is of the region, not of the program: events read at the region's ends, and `level_evidence` names them. Lines that missed
the last cache are a lower bound of what memory delivered: where they are half of the bytes read, the level is memory. Where lines that missed the first
cache are next to none of the bytes read, it is the first. In between, the events do not say which cache it was.

What the whole program touched bounds the level from one side only: where all of it fits into a cache, no region's data came from further away
(`farthest_level`). Which closer level a region used is not known from that: a kernel of 16 KiB in a program of 2 MiB runs from the first cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from ..capture.store.settings import settings_of
from ..units import human_bytes
from ._region_rows import event_of, without

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..capture.store.calibration import Peaks
    from ..results import Row
    from ._region_rows import BandwidthRow
    from ._region_sums import Time

FROM_MEMORY = 0.5
"""Share of the bytes read that missed the last cache, from which on a region is one of memory."""
NOT_FROM_FIRST = 0.05
"""Share of the bytes read that missed the first cache, up to which a region is one of that cache."""
LEAST_RUNNING = 0.1
"""Share of the time that an event was counted; below it scaling is a guess."""
MOSTLY_READS = 0.5
"""The events are those of loads: they say little about a region that mostly writes."""
FILLED = 0.75
"""Memory fits into a cache if it fills no more of it than this: others use it, too, and sets fill unevenly."""
FAULT_AROUND_BYTES = 64 << 10
"""A fault on a file maps what is around it, by default so much."""
FAULTS_BEFORE_EXEC = 64
"""The kernel counts those of the child before it became the program, too."""
EXECUTABLE = 4
ANONYMOUS = ("anonymous", "heap", "stack")
LLC_MISSES, L1_MISSES = "LLC-load-misses", "L1-dcache-load-misses"
LOSSES = ("ring_lost", "event_lost", "queue_dropped", "throttled")
COLUMNS = ("level", "level_evidence", "peak_kind", "peak_bytes_per_second", "peak_share", "farthest_level",
           "farthest_evidence", "farthest_peak_bytes_per_second")  # fmt: skip


def memory_bound_bytes(capture: Capture) -> int | None:
    """An upper bound of all memory that the program's processes touched; None where faults do not give one.

    Anonymous pages by their faults, and those found in page tables. Files that are mapped for their code count with all that a fault on them
    may map, other files and shared memory with all that was mapped: they may have been populated without a fault. The kernel's own
    count of faults and the readings of resident memory must agree with it.
    """
    import numpy as np

    from ._fault_sampling import is_sampled

    session = capture.meta.get("session") or {}
    recorded = settings_of(capture.meta, "fault") is not None
    if not recorded or not session.get("include_kernel") or capture.meta.get("pid") is not None:
        return None  # faults in system calls unseen, or memory from before the recording
    if any(session.get(name) for name in LOSSES) or not capture.complete or not capture.meta.get("rusage"):
        return None
    if is_sampled(capture):
        return None  # an estimate is no bound
    faults = capture.replay.fault_groups
    new, span, rows = (faults.column(name).to_numpy().astype(np.int64) for name in ("new_bytes", "span_bytes", "rows"))
    anonymous = np.isin(faults.column("area").cast("string").to_numpy(zero_copy_only=False), ANONYMOUS)
    bound = int((rows * np.where(anonymous, new, np.maximum(span, FAULT_AROUND_BYTES))).sum()) + _data_file_bytes(
        capture
    )
    placed = int(capture.table("placed").column("bytes").to_numpy().astype(np.int64).sum())
    bound += placed
    rusage = capture.meta["rusage"]
    counted = rusage.get("minor_faults", 0) + rusage.get("major_faults", 0)
    if counted - capture.replay.fault_count - capture.replay.own_faults > FAULTS_BEFORE_EXEC + placed // 4096:
        return None
    from .capacity import metric_rows

    readings = metric_rows(capture.table("timeline"), "rss_bytes")["value"]
    return None if len(readings) and int(readings.max()) > bound else bound


def _data_file_bytes(capture: Capture) -> int:
    """Bytes of mappings of files that no code was mapped from, and of shared memory; not of our own."""
    executable, mapped = set(), []
    for row in capture.table("mappings").select(["path", "inode", "protection", "shared", "bytes"]).to_pylist():
        if row["inode"] and row["protection"] & EXECUTABLE:
            executable.add((row["path"], row["inode"]))
        elif (row["inode"] or row["shared"]) and not (row["path"] or "").startswith("/memfd:memlens"):
            mapped.append(((row["path"], row["inode"]), row["bytes"]))
    return sum(n_bytes for file, n_bytes in mapped if file not in executable)


class Levels:
    """Evidence and peaks of one capture."""

    def __init__(self, capture: Capture, events: list[str]) -> None:
        capture = capture.whole  # what fits into a cache is a matter of the whole run
        self.peaks: Peaks | None = capture.peaks
        self.events = events
        caches = (capture.meta.get("machine") or {}).get("caches") or []
        self.line_bytes = next((cache["line_bytes"] for cache in caches if cache.get("line_bytes")), 64)
        self.memory_bytes = memory_bound_bytes(capture) if self.peaks is not None else None
        self.standalone = capture.standalone

    def add_to(self, row: BandwidthRow, times: list[Time]) -> None:
        """Fills in the columns of a region's row."""
        without(row, COLUMNS)
        rate = row["corrected_bytes_per_second"] or row["bytes_per_second"]
        if row["bytes_withheld"]:
            return
        if self.peaks is None or row["exclusive"] or not rate or not row["thread_ns"]:
            return
        from ..capture.store.calibration import kind_of

        kind = kind_of(row["read_bytes"], row["written_bytes"])
        row["peak_kind"] = kind
        bound = self._by_memory()
        if bound is not None:
            row["farthest_level"], row["farthest_evidence"] = bound
            row["farthest_peak_bytes_per_second"] = self.peaks.bandwidth(bound[0], kind, threads=self.threads(row))
        found = self._by_events(row, times)
        if found is None:
            return
        level, evidence = found
        peak = self.peaks.bandwidth(level, kind, threads=self.threads(row))
        row.update(
            {"level": level, "level_evidence": evidence, "peak_bytes_per_second": peak, "peak_share": rate / peak}
        )

    def threads(self, row: BandwidthRow) -> int:
        """How many worked at a time, on average; not those that waited for the others."""
        wall = row["wall_ns"] or row["wall_low_ns"]
        together = math.ceil((row["thread_ns"] or 0) / wall - 0.05) if wall else 1
        return max(1, min(row["working_threads"], together))

    def _by_events(self, row: BandwidthRow, times: list[Time]) -> tuple[str, str] | None:
        assert self.peaks is not None
        if not row["event_share"] or row["event_share"] < LEAST_RUNNING or not row["read_bytes"]:
            return None
        if row["read_bytes"] < MOSTLY_READS * row["bytes"]:
            return None
        values = {name: event_of(row, number) for number, name in enumerate(self.events)}
        missed = {
            name: value * self.line_bytes / row["read_bytes"] for name, value in values.items() if value is not None
        }
        from_memory = missed.get(LLC_MISSES)
        if from_memory is not None and from_memory >= FROM_MEMORY:
            return "DRAM", f"{LLC_MISSES}: lines of {from_memory:.0%} of the bytes read"
        beyond_first = missed.get(L1_MISSES)
        # Work that threads did for others has no events of its own: too few misses would be no evidence.
        if beyond_first is not None and beyond_first <= NOT_FROM_FIRST and not any(time.joined for time in times):
            return self.peaks.levels[0], f"{L1_MISSES}: lines of {beyond_first:.1%} of the bytes read"
        return None

    def _by_memory(self) -> tuple[str, str] | None:
        assert self.peaks is not None
        if self.memory_bytes is None:
            return None
        for level, (size, _) in self.peaks.cache_bytes.items():
            if self.memory_bytes <= FILLED * size:
                return level, f"all memory of the program: at most {human_bytes(self.memory_bytes)}"
        return None

    def missing(self, rows: list[BandwidthRow]) -> str | None:
        """One sentence: why regions are compared with no peak, and what would change that; None where one is."""
        regions = [row for row in rows if not row["exclusive"] and row["thread_ns"]]
        if not regions or any(row["level"] for row in regions):
            return None
        if self.peaks is None and self.standalone:
            return "Bandwidth is not compared with a peak: a program that writes its counters itself does not record its machine."
        if self.peaks is None:
            return "The peaks of this machine are not known, so bandwidth is not compared with a peak: memlens calibrate measures them."
        wanted = "+".join((LLC_MISSES, L1_MISSES))
        why = (
            f"the events {', '.join(self.events)} do not show it"
            if self.events
            else "no events of the processor were read"
        )
        return (
            f"No region is compared with one level's peak: nothing shows which level it used ({why}). "
            f"With a PMU: memlens record --count=events={wanted}."
        )


class RooflinePoint(TypedDict):
    """A row of table ``roofline``."""

    region: str
    level: str | None
    level_evidence: str | None
    threads: int
    float_results_per_byte: float
    float_results_per_second: float
    peak_results_per_second: float
    arithmetic_share: float
    peak_bytes_per_second: float | None
    attainable_results_per_second: float | None
    attainable_share: float | None
    limit: str | None


def roofline(rows: list[BandwidthRow], levels: Levels) -> list[RooflinePoint]:
    """Regions whose arithmetic is known, beside what the machine could do at their intensity; `attainable` only where the level is known.

    attainable = min(peak of arithmetic, results a byte × peak of the level)
    """
    found = []
    for row in rows:
        intensity, rate = row["float_results_per_byte"], row["corrected_bytes_per_second"] or row["bytes_per_second"]
        if row["exclusive"] or not intensity or not rate or not row["thread_ns"] or levels.peaks is None:
            continue
        ceiling = levels.peaks.results_per_second(threads=levels.threads(row))
        if ceiling is None:
            continue
        reached = intensity * rate
        entry: RooflinePoint = {
            "region": row["region"], "level": row["level"], "level_evidence": row["level_evidence"],
            "threads": levels.threads(row), "float_results_per_byte": intensity, "float_results_per_second": reached,
            "peak_results_per_second": ceiling, "arithmetic_share": reached / ceiling,
            "peak_bytes_per_second": None, "attainable_results_per_second": None, "attainable_share": None, "limit": None,
        }  # fmt: skip
        if row["level"] and row["peak_bytes_per_second"]:
            by_memory = intensity * row["peak_bytes_per_second"]
            attainable = min(ceiling, by_memory)
            entry.update({
                "peak_bytes_per_second": row["peak_bytes_per_second"], "attainable_results_per_second": attainable,
                "attainable_share": reached / attainable, "limit": "memory" if by_memory < ceiling else "arithmetic",
            })  # fmt: skip
        elif (
            intensity * levels.peaks.bandwidth(levels.peaks.levels[-1], str(row["peak_kind"]), threads=entry["threads"])
            >= ceiling
        ):
            entry["limit"] = "arithmetic"  # even memory could feed it
        found.append(entry)
    return sorted(
        found, key=lambda row: (row["attainable_share"] is None, row["attainable_share"] or row["arithmetic_share"])
    )


def ceilings(points: list[RooflinePoint], rows: list[BandwidthRow], levels: Levels) -> list[Row]:
    """For each region of the roofline and each level of memory: what is attainable from there, and how much of it was reached."""
    by_region = {row["region"]: row for row in rows if not row["exclusive"]}
    found: list[Row] = []
    for point in points:
        assert levels.peaks is not None
        kind = str(by_region[point["region"]]["peak_kind"])
        for level in levels.peaks.levels:
            rate = levels.peaks.bandwidth(level, kind, threads=point["threads"])
            attainable = min(point["peak_results_per_second"], rate * point["float_results_per_byte"])
            found.append(
                {"region": point["region"], "level": level, "peak_kind": kind, "peak_bytes_per_second": rate,
                 "attainable_results_per_second": attainable, "reached_share": point["float_results_per_second"] / attainable}
            )  # fmt: skip
    return found
