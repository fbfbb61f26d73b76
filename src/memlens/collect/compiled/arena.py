"""The memory that programs built with `memlens cc` count in, and what its contents become.

`Counting` lives as long as a recording: it copies the static tables of modules while they can be read, reads all counters at each
epoch and at the end, and never disturbs the program: a process that was killed in the middle has left everything that it had counted.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ... import _recorder
from ...capture.store import count_arena
from ...capture.store.count_arena import CountArena, Image, ImageEntries
from ...capture.store.count_records import CountRecords, Writer
from ...capture.store.layouts import Packer

if TYPE_CHECKING:
    from ...capture.tables.run import ProcessRow

HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4
MISS = 1 << 16
EVENTS: dict[str, tuple[int, int]] = {
    "cycles": (HARDWARE, 0), "instructions": (HARDWARE, 1), "cache-references": (HARDWARE, 2), "cache-misses": (HARDWARE, 3),
    "branches": (HARDWARE, 4), "branch-misses": (HARDWARE, 5),
    "cpu-clock": (SOFTWARE, 0), "task-clock": (SOFTWARE, 1), "page-faults": (SOFTWARE, 2), "context-switches": (SOFTWARE, 3),
    "cpu-migrations": (SOFTWARE, 4), "minor-faults": (SOFTWARE, 5), "major-faults": (SOFTWARE, 6),
    "L1-dcache-loads": (CACHE, 0), "L1-dcache-load-misses": (CACHE, MISS), "LLC-loads": (CACHE, 2),
    "LLC-load-misses": (CACHE, 2 | MISS), "dTLB-load-misses": (CACHE, 3 | MISS),
}  # fmt: skip
SAMPLE_GROUPS = 32
"""Random groups of sampled executions: what the error of an estimate comes from."""
PMU_EVENTS = ("L1-dcache-load-misses", "LLC-load-misses", "instructions")


@dataclass(frozen=True)
class CountOptions:
    """How compiled-in counters count."""

    every: int = 0
    """Count one execution of a region in so many, at random; 0 and 1: all."""
    first: int = 1
    """Count the first executions of each region in any case."""
    periodic: bool = False
    """Count every N-th execution instead: wrong where executions repeat in a pattern, and without an error."""
    random: bool = False
    """The default; kept for scripts."""
    seed: int | None = None
    """Of the random choice; None: another one each time."""
    budget_ppm: int = 0
    """Count as long as it costs less than this of a region's time."""
    epoch_s: float = 0.0
    """Read all counters at this interval; 0: only at the end."""
    events: tuple[str, ...] | None = None
    """Read at the ends of regions; None: what the machine has."""
    threads: int = count_arena.THREADS_MAX
    counters: int = count_arena.COUNTERS_MAX
    children: bool = False
    """The program itself need not count: programs that it starts may."""

    @property
    def sampling(self) -> int:
        if self.budget_ppm:
            return count_arena.SAMPLE_BUDGET
        if self.every <= 1:
            return count_arena.SAMPLE_ALL
        return count_arena.SAMPLE_EVERY if self.periodic else count_arena.SAMPLE_RANDOM


def event_code(name: str) -> tuple[int, int]:
    """Type and config of a perf event; `rHEX` is a raw one.

    Raises
    ------
    ValueError
        There is none of this name.
    """
    if name in EVENTS:
        return EVENTS[name]
    if name[:1] == "r":
        return RAW, int(name[1:], 16)
    raise ValueError(name)


class Counting(CountRecords):
    """The counters of one recording.

    Parameters
    ----------
    string_id
        Text → id of a string record; the record is written before it is used.
    """

    def __init__(self, options: CountOptions, *, has_pmu: bool, selection: bytes = b"") -> None:
        if options.sampling != count_arena.SAMPLE_ALL and options.seed is None:
            options = replace(options, seed=secrets.randbits(32))
        self.options = options
        self.events = options.events if options.events is not None else PMU_EVENTS if has_pmu else ()
        arena = CountArena(
            sampling=options.sampling,
            sample_first=options.first,
            sample_every=max(options.every, 1),
            seed=options.seed or 0,
            sample_groups=SAMPLE_GROUPS if options.sampling == count_arena.SAMPLE_RANDOM else 0,
            budget_ppm=options.budget_ppm,
            events=tuple(event_code(name) for name in self.events),
            threads_max=options.threads,
            counters_max=options.counters,
            selection=selection,
        )
        super().__init__(arena)
        self.add_ps = _recorder.counter_add_ps()
        self._claimed = 0
        self._epoch_begin_ns = time.monotonic_ns()
        self.cost_s = 0.0
        if options.epoch_s:
            import numpy  # noqa: F401  (a quarter of a second that the first epoch would wait for)

    @property
    def environment(self) -> list[str]:
        return [f"{count_arena.VARIABLE}={self.arena.value}"]

    @property
    def settings(self) -> dict[str, object]:
        """What a reader must know."""
        options = self.options
        kinds = {
            count_arena.SAMPLE_ALL: "all", count_arena.SAMPLE_EVERY: "every", count_arena.SAMPLE_RANDOM: "random",
            count_arena.SAMPLE_BUDGET: "budget",
        }  # fmt: skip
        described: dict[str, object] = {
            "sampling": kinds[options.sampling],
            "events": list(self.events),
            "add_ps": self.add_ps,
        }
        if options.sampling in (count_arena.SAMPLE_EVERY, count_arena.SAMPLE_RANDOM):
            described |= {"every": options.every, "first": options.first}
        if options.sampling in (count_arena.SAMPLE_RANDOM, count_arena.SAMPLE_BUDGET):
            described["seed"] = options.seed
        if options.budget_ppm:
            described["budget_ppm"] = options.budget_ppm
        if options.epoch_s:
            described["epoch_s"] = options.epoch_s
        return described

    @property
    def until_due_s(self) -> float:
        """Until the end of the epoch."""
        if not self.options.epoch_s:
            return float("inf")
        return max(0.001, self.options.epoch_s - (time.monotonic_ns() - self._epoch_begin_ns) / 1e9)

    # ---- while the program runs ---------------------------------------------------------------------------------
    def tick(self, writer: Writer, string_id: Callable[[str], int], processes: Callable[[], dict[int, int]]) -> None:
        """Copies tables of modules that are new; at the end of an epoch reads all counters."""
        now = time.monotonic_ns()
        due = self.options.epoch_s and now - self._epoch_begin_ns >= self.options.epoch_s * 1e9
        claimed = self.arena.claimed
        if not due and claimed == self._claimed:
            return
        self._claimed = claimed
        images = self.arena.images()
        for image in images.values():
            for module in image.modules:
                self._keep_tables(writer, string_id, module, image.pid)
        if due:
            pids = processes()
            known = {key: image for key, image in images.items() if image.pid in pids or key in self._images}
            self._write_epoch(writer, string_id, known, lambda image: pids.get(image.pid, 0))

    def _write_epoch(
        self,
        writer: Writer,
        string_id: Callable[[str], int],
        images: dict[Image, ImageEntries],
        process_of: Callable[[ImageEntries], int],
    ) -> None:
        begin = time.monotonic()
        now = time.monotonic_ns()
        self._epoch += 1
        for key, image in images.items():
            self._write_image(writer, string_id, key, image, process_of, epoch=self._epoch, now=now)
        cost = time.monotonic() - begin
        self.cost_s += cost
        packed = Packer("count_epoch").pack(
            begin_ns=self._epoch_begin_ns, end_ns=now, epoch=self._epoch, cost_us=round(cost * 1e6)
        )
        writer.records("count_epoch", [packed], begin_ns=self._epoch_begin_ns, end_ns=now)
        self._epoch_begin_ns = now

    def _last_epoch(
        self,
        writer: Writer,
        string_id: Callable[[str], int],
        images: dict[Image, ImageEntries],
        process_of: Callable[[ImageEntries], int],
    ) -> None:
        if self._epoch:
            self._write_epoch(writer, string_id, images, process_of)


def with_process_ends(rows: list[ProcessRow]) -> Callable[[ImageEntries], tuple[int, int] | None]:
    """Finds the process of an image among rows of the table `processes`: by pid, and alive when the image was born."""
    by_pid: dict[int, list[ProcessRow]] = {}
    for row in rows:
        by_pid.setdefault(row["pid"], []).append(row)

    def find(image: ImageEntries) -> tuple[int, int] | None:
        candidates = by_pid.get(image.pid)
        if not candidates:
            return None
        # Events come a moment late: the best is the one that began last before the image did, else the first of all.
        slack = 1_000_000_000
        before = [row for row in candidates if (row["begin_ns"] or 0) <= image.born_ns + slack]
        row = max(before or candidates[:1], key=lambda row: row["begin_ns"] or 0)
        return int(row["process"]), int(row["end_ns"] or 0)

    return find
