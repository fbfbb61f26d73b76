"""Collector `count`, the recorder's part: an arena for counted processes, and records from what they left in it.

Options are in `CountOptions`. `Counting` lives as long as a recording: it copies the static tables of modules while they
can be read, reads all counters at each epoch and at the end, and never disturbs the program: a process that
was killed in the middle has left everything that it had counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import _sampling
from ..capture.layouts import Packer, enum_value, layouts
from ..errors import UsageError
from . import count_arena, counted_modules
from .count_arena import CountArena, Image, ImageEntries, Place

if TYPE_CHECKING:
    from ..capture.writer import CaptureWriter

PART_BYTES = 8 << 20
"""Of static tables in one record: a chunk has at most 64 MiB."""
MOST_RECORDS = 1 << 20
"""In one chunk."""
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
PMU_EVENTS = ("L1-dcache-load-misses", "LLC-load-misses", "instructions")
HINT = (
    "use every=N, first=K, random, seed=N, budget=1%, epoch=100ms, events=A+B, threads=N, counters=N or children, "
    "joined by commas"
)


@dataclass(frozen=True)
class CountOptions:
    """What `--count` asks for."""

    every: int = 0
    """Count one execution of a region in so many; 0 and 1: all."""
    first: int = 1
    """Count the first executions of each region in any case."""
    random: bool = False
    seed: int = 1
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
        return count_arena.SAMPLE_RANDOM if self.random else count_arena.SAMPLE_EVERY


def event_code(name: str) -> tuple[int, int]:
    """Type and config of a perf event; `rHEX` is a raw one."""
    if name in EVENTS:
        return EVENTS[name]
    if name[:1] == "r" and name[1:]:
        try:
            return RAW, int(name[1:], 16)
        except ValueError:
            pass
    import difflib

    close = difflib.get_close_matches(name, EVENTS, n=1)
    raise UsageError(
        f"--count: there is no event {name!r}",
        hint=f"did you mean {close[0]}?" if close else f"events: {', '.join(EVENTS)}",
    )


def duration_s(text: str) -> float:
    """100ms, 2s, 500us.

    >>> duration_s("100ms"), duration_s("2s")
    (0.1, 2.0)
    """
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    raise ValueError(text)


def parse(text: str) -> CountOptions:
    """`every=N`, `first=K`, `random`, `seed=N`, `budget=1%`, `epoch=100ms`, `events=A+B`, `threads=N`, joined by commas."""
    options = CountOptions()
    words = [word for word in text.split(",") if word]
    names = ("every", "first", "seed", "threads", "counters")
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        at += 1
        try:
            changed: dict[str, Any]
            if name in ("random", "children") and not equals:
                changed = {name: True}
            elif name in names and equals:
                number = int(value.replace("_", ""))
                if number < (0 if name in ("seed", "first") else 1):
                    raise ValueError(value)
                changed = {name: number}
            elif name == "budget" and equals:
                percent = float(value.removesuffix("%"))
                if not 0 < percent < 100:
                    raise ValueError(value)
                changed = {"budget_ppm": round(percent * 10_000)}
            elif name == "epoch" and equals:
                seconds = duration_s(value)
                if seconds < 0.01:
                    raise UsageError(f"--count: an epoch of {value} is too short", hint="give 10ms or more")
                changed = {"epoch_s": seconds}
            elif name == "events":
                # Events may be joined by commas too: words that follow belong here as far as they are names of events.
                listed = [part for part in value.split("+") if part and part != "none"]
                while at < len(words) and words[at] in EVENTS:
                    listed.append(words[at])
                    at += 1
                for event in listed:
                    event_code(event)
                if len(listed) > count_arena.EVENTS:
                    raise UsageError(
                        f"--count: {len(listed)} events are too many", hint=f"at most {count_arena.EVENTS} are read"
                    )
                changed = {"events": tuple(listed)}
            else:
                raise UsageError(f"--count: there is no {word!r}", hint=HINT)
        except ValueError:
            raise UsageError(f"--count: {word} makes no sense", hint=HINT) from None
        options = replace(options, **changed)
    if options.random and options.every <= 1:
        raise UsageError("--count: random needs every=N", hint="memlens record --count=random,every=100 -- PROGRAM")
    return options


@dataclass
class _Known:
    """What was read of a place before."""

    head: dict[str, int] = field(default_factory=dict)
    open_ns: int = 0
    joined_ns: int = 0
    numbers: Any = None
    values: Any = None
    done: bool = False
    """Its thread had ended when it was read: it will not change any more."""


@dataclass
class _KnownImage:
    number: int
    process: int = 0
    nodes: set[int] = field(default_factory=set)
    modules: int = 0
    places: dict[int, _Known] = field(default_factory=dict)


class Counting:
    """The counters of one recording.

    Parameters
    ----------
    string_id
        Text → id of a string record; the record is written before it is used.
    """

    def __init__(self, options: CountOptions, *, has_pmu: bool) -> None:
        self.options = options
        self.events = options.events if options.events is not None else PMU_EVENTS if has_pmu else ()
        self.arena = CountArena(
            sampling=options.sampling,
            sample_first=options.first,
            sample_every=max(options.every, 1),
            seed=options.seed,
            budget_ppm=options.budget_ppm,
            events=tuple(event_code(name) for name in self.events),
            threads_max=options.threads,
            counters_max=options.counters,
        )
        self.add_ps = _sampling.counter_add_ps()
        self._images: dict[Image, _KnownImage] = {}
        self._tables: dict[str, str] = {}
        """module → enum module_status, of those whose tables were looked for"""
        self.sections: dict[str, tuple[bytes, int, bytes, int]] = {}
        """module → functions, their address, tables, their address"""
        self._claimed = 0
        self._epoch = 0
        self._epoch_begin_ns = time.monotonic_ns()
        self.cost_s = 0.0
        self.stray_adds = 0
        if options.epoch_s:
            import numpy  # noqa: F401  (a quarter of a second that the first epoch would wait for)

    @property
    def environment(self) -> list[str]:
        return [f"{count_arena.VARIABLE}={self.arena.value}"]

    @property
    def settings(self) -> dict[str, Any]:
        """What a reader must know."""
        options = self.options
        kinds = {
            count_arena.SAMPLE_ALL: "all", count_arena.SAMPLE_EVERY: "every", count_arena.SAMPLE_RANDOM: "random",
            count_arena.SAMPLE_BUDGET: "budget",
        }  # fmt: skip
        described: dict[str, Any] = {
            "sampling": kinds[options.sampling],
            "events": list(self.events),
            "add_ps": self.add_ps,
        }
        if options.sampling in (count_arena.SAMPLE_EVERY, count_arena.SAMPLE_RANDOM):
            described |= {"every": options.every, "first": options.first}
        if options.random:
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
    def tick(
        self, writer: CaptureWriter, string_id: Callable[[str], int], processes: Callable[[], dict[int, int]]
    ) -> None:
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

    def _keep_tables(
        self, writer: CaptureWriter, string_id: Callable[[str], int], module: count_arena.CountedModule, pid: int
    ) -> None:
        key = module.build_id or module.path
        if key in self._tables:
            return
        path, same = counted_modules.find_module(module.path, pid, module.build_id)
        status = "read" if same else "replaced" if path else "missing"
        sections = None
        if same:
            try:
                sections = counted_modules.read_sections(path)
                status = "read" if sections is not None else "no_tables"
            except (OSError, ValueError):
                status = "no_tables"
        self._tables[key] = status
        if sections is None:
            return
        self.sections[key] = (
            sections.functions, sections.functions_address, sections.tables, sections.tables_address,
        )  # fmt: skip
        if writer.redact:
            return  # they hold paths of sources; the side tables keep last components
        packer = Packer("count_tables")
        whole = sections.functions + sections.tables
        for at in range(0, max(len(whole), 1), PART_BYTES):
            writer.records(
                "count_tables",
                [
                    packer.pack(
                        whole[at : at + PART_BYTES],
                        functions_address=sections.functions_address,
                        functions_bytes=len(sections.functions),
                        tables_address=sections.tables_address,
                        tables_bytes=len(sections.tables),
                        offset=at,
                        module=string_id(key),
                    )
                ],
            )

    def _write_epoch(
        self,
        writer: CaptureWriter,
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

    # ---- the end ----------------------------------------------------------------------------------------------------
    def finish(
        self,
        writer: CaptureWriter,
        string_id: Callable[[str], int],
        process_of: Callable[[ImageEntries], tuple[int, int]],
    ) -> dict[str, int]:
        """Writes what is left of the last epoch, and the totals; returns counts. `process_of`: (process, when it ended)."""
        images = self.arena.images()
        ends = {key: process_of(image) for key, image in images.items()}
        for image in images.values():
            for module in image.modules:
                self._keep_tables(writer, string_id, module, image.pid)
        if self._epoch:
            self._write_epoch(writer, string_id, images, lambda image: ends[image.pid, image.born_ns][0])
        now = time.monotonic_ns()
        totals = {
            "images": len(images),
            "places": 0,
            "modules": len(self._tables),
            "counters": 0,
            "unattributed_threads": 0,
        }
        for key, image in images.items():
            process, ended_ns = ends[key]
            known = self._known(key)
            known.process = known.process or process
            self._write_image(
                writer,
                string_id,
                key,
                image,
                lambda image: ends[image.pid, image.born_ns][0],
                epoch=0,
                now=ended_ns or now,
            )
            self._write_status(writer, known, image, ended_ns, now)
            totals["places"] += len(image.places)
        totals["refused"] = self.arena.refused
        totals["damaged_entries"] = self.arena.damaged_entries
        totals["stray_counters"] = self.stray_adds
        totals["epochs"] = self._epoch
        for name in ("functions_refused", "regions_refused", "threads_merged", "switches_ignored", "regions_too_deep"):
            totals[name] = sum(image.process[name] for image in images.values() if image.process)
        totals["unattributed_threads"] = sum(_unattributed(image) for image in images.values())
        totals["modules_without_tables"] = sum(status != "read" for status in self._tables.values())
        return totals

    def _known(self, key: Image) -> _KnownImage:
        return self._images.setdefault(key, _KnownImage(len(self._images) + 1))

    def _write_image(
        self,
        writer: CaptureWriter,
        string_id: Callable[[str], int],
        key: Image,
        image: ImageEntries,
        process_of: Callable[[ImageEntries], int],
        *,
        epoch: int,
        now: int,
    ) -> None:
        import numpy as np

        known = self._known(key)
        known.process = known.process or process_of(image)
        self._describe(writer, string_id, known, image)
        clock = _Clock(image)
        used = image.process["counters_used"] if image.process else self.arena.counters_max
        # Whatever the process said, its modules' counters are there.
        used = max([used, *(module.first_counter + module.counters for module in image.modules)])
        modules = sorted(image.modules, key=lambda module: module.first_counter)
        firsts = np.array([module.first_counter for module in modules], dtype=np.int64)
        ends = np.array([module.first_counter + module.counters for module in modules], dtype=np.int64)
        ids = np.array([string_id(module.build_id or module.path) for module in modules], dtype=np.uint32)
        times: list[bytes] = []
        waiting: list[Any] = []
        packer = Packer("region_time")
        dtype = layouts()["block_count"].dtype()
        for place in image.places:
            before = known.places.setdefault(place.index, _Known()) if epoch else _Known()
            if epoch and before.done:
                continue
            head = self.arena.head_of(place)
            numbers, values = self.arena.counters_of(place, used)
            open_ns = clock.since(head["open_ticks"], now) if head["open_ticks"] else 0
            joined_open = clock.since(head["joined_open_ticks"], now) if head["joined_open_ticks"] else 0
            joined_ns = clock.ns(head["joined_ticks"]) + joined_open
            if any(head.values()) or len(numbers) or place.flags:
                packed = _region_time(
                    packer, head, before, clock, (open_ns, joined_ns), place, epoch=epoch, image=known.number, now=now
                )
                if packed is not None:
                    times.append(packed)
            changed, deltas = _difference(numbers, values, before)
            if epoch:
                before.head, before.open_ns, before.joined_ns = head, open_ns, joined_ns
                before.numbers, before.values = numbers, values
                before.done = bool(place.flags & count_arena.ENDED) and place.thread != 0
            if not len(changed):
                continue
            owner = np.searchsorted(firsts, changed, side="right") - 1
            inside = owner >= 0
            inside[inside] = changed[inside] < ends[owner[inside]]
            if not epoch:
                self.stray_adds += int((~inside).sum())
            changed, deltas, owner = changed[inside], deltas[inside], owner[inside]
            rows = np.zeros(len(changed), dtype=dtype)
            rows["value"], rows["epoch"], rows["counter"] = deltas, epoch, changed - firsts[owner] if len(owner) else 0
            rows["module"] = ids[owner] if len(owner) else 0
            rows["image"], rows["node"], rows["thread"] = known.number, place.node, place.thread
            waiting.append(rows)
            if sum(map(len, waiting)) >= MOST_RECORDS:
                _append(writer, waiting, known.process, now)
        _append(writer, waiting, known.process, now)
        for at in range(0, len(times), 65536):
            writer.records("region_time", times[at : at + 65536], process=known.process, begin_ns=now, end_ns=now)

    def _describe(
        self, writer: CaptureWriter, string_id: Callable[[str], int], known: _KnownImage, image: ImageEntries
    ) -> None:
        """Nodes and modules of an image that are new since the last look."""
        nodes = Packer("region_node")
        fresh = [
            nodes.pack(image=known.number, node=number, parent=parent, name=string_id(name) if name else 0)
            for number, (parent, name) in sorted(image.nodes.items())
            if number not in known.nodes
        ]
        known.nodes |= set(image.nodes)
        writer.records("region_node", fresh, process=known.process)
        modules = Packer("counted_module")
        packed = []
        for module in image.modules[known.modules :]:
            status = self._tables.get(module.build_id or module.path, "missing")
            packed.append(
                modules.pack(
                    load_bias=module.load_bias,
                    counters=module.counters,
                    functions=module.functions,
                    image=known.number,
                    module=string_id(module.build_id or module.path),
                    path=string_id(module.path),
                    status=enum_value("module_status", status),
                )
            )
        known.modules = len(image.modules)
        writer.records("counted_module", packed, process=known.process)

    def _write_status(
        self, writer: CaptureWriter, known: _KnownImage, image: ImageEntries, ended_ns: int, now: int
    ) -> None:
        process = image.process or dict.fromkeys(count_arena.PROCESS_FIELDS, 0)
        clock = _Clock(image)
        packed = Packer("count_status").pack(
            time_ns=now,
            born_ns=image.born_ns,
            ended_ns=process["last_ns"] or ended_ns,
            ticks_per_second=round(clock.ticks_per_ns * 1e9),
            read_cost_ps=round(process["read_cost_ticks"] / clock.ticks_per_ns * 1e3) if clock.ticks_per_ns else 0,
            switch_cost_ps=round(process["switch_cost_ticks"] / clock.ticks_per_ns * 1e3) if clock.ticks_per_ns else 0,
            counters_used=process["counters_used"],
            functions_refused=process["functions_refused"],
            threads_started=process["threads_started"],
            threads_merged=process["threads_merged"],
            threads_unattributed=_unattributed(image),
            regions_refused=process["regions_refused"],
            switches_ignored=process["switches_ignored"],
            regions_too_deep=process["regions_too_deep"],
            refused=self.arena.refused,
            image=known.number,
            pid=image.pid,
            parent_pid=process["parent_pid"] & 0xFFFFFFFF,
            events_open=process["events_mask"] & 15,
            event_error=process["event_error"] & 0xFFFFFFFF,
            clock=process["clock"] & 0xFFFF,
            flags=enum_value("count_flags", "ended_in_order") if process["last_ns"] else 0,
        )
        writer.records("count_status", [packed], process=known.process, begin_ns=now, end_ns=now)

    def close(self) -> None:
        self.arena.close()


class _Clock:
    """Readings of a process's cycle counter as CLOCK_MONOTONIC."""

    def __init__(self, image: ImageEntries) -> None:
        process = image.process or {}
        ticks, nanoseconds = process.get("start_ticks", 0), process.get("start_ns", 0)
        self.start_ticks, self.start_ns = ticks, nanoseconds
        self.ticks_per_ns = process.get("ticks_per_second", 0) / 1e9
        run_ns = process.get("last_ns", 0) - nanoseconds
        run_ticks = process.get("last_ticks", 0) - ticks
        # Two pairs far apart are better than the frequency that was measured in a moment at the start.
        if process.get("last_ns") and run_ns > 50_000_000 and run_ticks > 0:
            self.ticks_per_ns = run_ticks / run_ns

    def ns(self, ticks: int) -> int:
        return _word(round(ticks / self.ticks_per_ns)) if self.ticks_per_ns else 0

    def moment(self, ticks: int) -> int:
        """CLOCK_MONOTONIC of a reading, 0 of none."""
        if not ticks or not self.ticks_per_ns:
            return 0
        return _word(self.start_ns + round((ticks - self.start_ticks) / self.ticks_per_ns))

    def since(self, ticks: int, now: int) -> int:
        return max(0, now - self.moment(ticks)) if self.ticks_per_ns else 0


def _word(value: int) -> int:
    """What a record's field can hold: a damaged arena may claim anything."""
    return min(max(value, 0), 2**64 - 1)


def _unattributed(image: ImageEntries) -> int:
    return len({place.thread for place in image.places if place.flags & count_arena.UNATTRIBUTED})


def _difference(numbers: Any, values: Any, before: _Known) -> tuple[Any, Any]:
    """What was added since the last look, modulo 2^64."""
    import numpy as np

    if before.numbers is None or not len(before.numbers):
        return numbers, values
    every = np.union1d(numbers, before.numbers)
    deltas = np.zeros(len(every), dtype=np.uint64)
    deltas[np.searchsorted(every, numbers)] += values
    deltas[np.searchsorted(every, before.numbers)] -= before.values
    changed = np.flatnonzero(deltas)
    return every[changed], deltas[changed]


def _region_time(
    packer: Packer, head: dict[str, int], before: _Known, clock: _Clock, running: tuple[int, int], place: Place, *, epoch: int, image: int, now: int
) -> bytes | None:  # fmt: skip
    def added(name: str) -> int:
        return (head[name] - before.head.get(name, 0)) % 2**64

    fields = {name: added(name) for name in ("entered", "counted", "untouched", "abandoned", "recursions", "joined")}
    for name in ("counted", "untouched", "counted_self", "untouched_self"):
        fields[f"{name}_ns"] = clock.ns(added(f"{name}_ticks"))
    for number in range(count_arena.EVENTS):
        for kind in ("counted", "untouched"):
            fields[f"{kind}_event_{number}"] = added(f"{kind}_event_{number}")
    open_ns, joined_ns = running
    fields["open_ns"] = min(max(open_ns - before.open_ns, -(2**63)), 2**63 - 1)
    fields["joined_ns"] = _word(joined_ns - before.joined_ns)
    if epoch and not any(fields.values()) and before.head:
        return None
    enabled, ran = head["event_enabled_ns"], head["event_running_ns"]
    return packer.pack(
        None,
        time_ns=now,
        **fields,
        least_ns=clock.ns(head["least_ticks"]),
        most_ns=clock.ns(head["most_ticks"]),
        first_ns=clock.moment(head["first_ticks"]),
        last_ns=clock.moment(head["last_ticks"]),
        epoch=epoch,
        image=image,
        node=place.node,
        thread=place.thread,
        flags=place.flags & 0xFFFFFFFF,
        event_share_ppm=min(round(ran * 1e6 / enabled), 1_000_000) if enabled else 0,
    )


def _append(writer: CaptureWriter, waiting: list[Any], process: int, now: int) -> None:
    import numpy as np

    if waiting:
        rows = np.concatenate(waiting)
        waiting.clear()
        for at in range(0, len(rows), MOST_RECORDS):
            part = rows[at : at + MOST_RECORDS]
            writer.append(
                layouts()["block_count"].kind, part.tobytes(), record_count=len(part), process=process, begin_ns=now,
                end_ns=now,
            )  # fmt: skip


def notes(totals: dict[str, int]) -> list[str]:
    """What was not counted, a sentence each."""
    found = []
    if totals.get("refused"):
        found.append(
            f"{totals['refused']} places for counters found no room in the recorder's memory: what they would have counted is missing."
        )
    if totals.get("functions_refused"):
        found.append(
            f"{totals['functions_refused']} functions found no room among the counters and were not counted "
            "(more room: --count=counters=N)."
        )
    if totals.get("regions_refused"):
        found.append(
            f"{totals['regions_refused']} paths of regions found no room: their work counts for the region around them."
        )
    if totals.get("regions_too_deep"):
        found.append(
            f"{totals['regions_too_deep']} executions of regions were nested too deep: they count for the region at the limit."
        )
    if totals.get("switches_ignored"):
        found.append(
            f"{totals['switches_ignored']} ends of regions had no begin, or came from a signal handler that interrupted one: ignored."
        )
    if totals.get("unattributed_threads"):
        found.append(
            f"{totals['unattributed_threads']} threads were started in a way that does not tell which region they work for: "
            "their work counts as outside any region."
        )
    if totals.get("modules_without_tables"):
        found.append(
            f"The static tables of {totals['modules_without_tables']} counted modules could not be read (file gone, replaced or "
            "stripped of them): their counts have no meaning and are left out."
        )
    if totals.get("stray_counters"):
        found.append(
            f"{totals['stray_counters']} counters were used by code that ran before its module was registered: "
            "what it did is not known."
        )
    if totals.get("damaged_entries"):
        found.append(f"{totals['damaged_entries']} entries of the counters' directory are damaged and were left out.")
    return found


def with_process_ends(rows: list[dict[str, Any]]) -> Callable[[ImageEntries], tuple[int, int] | None]:
    """Finds the process of an image among rows of the table `processes`: by pid, and alive when the image was born."""
    by_pid: dict[int, list[dict[str, Any]]] = {}
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


def why_not(program: str) -> tuple[str, str] | None:
    """(reason, remedy) when neither the program nor a library that it needs has counters; a script may start one that has."""
    if not counted_modules.is_elf(program) or counted_modules.first_counted(program) is not None:
        return None
    return (
        f"{os.path.basename(program)} has no counters: neither it nor a library that it needs was built with memlens cc",
        'build it with CC="memlens cc" (and CXX="memlens c++"), or use --count=children if it starts programs that were',
    )
