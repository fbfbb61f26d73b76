"""Records of a capture from the counters that programs left in an arena (`count_arena.py`).

Owns what of an arena becomes which record: nodes and modules once, counters and times of each place. Whoever has the arena
gives it here: the recorder, which keeps it in memory, or a reader of what a program wrote without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from . import count_arena, counted_modules
from .count_arena import CountArena, Image, ImageEntries, Place
from .layouts import Packer, enum_value, layouts

if TYPE_CHECKING:
    from ...arrays import Ints, Records, Uint64s

PART_BYTES = 8 << 20
"""Of static tables in one record: a chunk has at most 64 MiB."""
MOST_RECORDS = 1 << 20
"""In one chunk."""


class Writer(Protocol):
    """Where records go: a capture that is being written, or a list."""

    redact: bool

    def append(
        self, kind: int, payload: bytes, *, record_count: int, process: int = 0, begin_ns: int = 0, end_ns: int = 0
    ) -> None: ...

    def records(self, name: str, records: list[bytes], **header: int) -> None: ...


@dataclass
class _Known:
    """What was read of a place before."""

    head: dict[str, int] = field(default_factory=dict)
    open_ns: int = 0
    joined_ns: int = 0
    counters: tuple[Ints, Uint64s] | None = None
    """Their numbers and values."""
    done: bool = False
    """Its thread had ended when it was read: it will not change any more."""


@dataclass
class _KnownImage:
    number: int
    process: int = 0
    nodes: set[int] = field(default_factory=set)
    modules: int = 0
    places: dict[int, _Known] = field(default_factory=dict)


@dataclass
class _Group:
    """Sampled executions of one group in one thread and node."""

    place: Place
    head: dict[str, int]
    numbers: Ints
    values: Uint64s


class CountRecords:
    """The counters of one arena, and what of them has been written.

    Parameters
    ----------
    first_image
        Number of the first program image.
    """

    def __init__(self, arena: CountArena, *, first_image: int = 1) -> None:
        self.arena = arena
        self._first_image = first_image
        self._images: dict[Image, _KnownImage] = {}
        self.processes: list[dict[str, int]] = []
        """What program images said of themselves, after `finish`."""
        self._tables: dict[str, str] = {}
        """module → enum module_status, of those whose tables were looked for"""
        self.sections: dict[str, tuple[bytes, int, bytes, int]] = {}
        """module → functions, their address, tables, their address"""
        self.traced: dict[str, str] = {}
        """Modules with sites of traces → path"""
        self.stray_adds = 0
        self.matches: dict[str, int] = {}
        """Expression of --memlens-functions → functions of all modules that matched it"""
        self._epoch = 0

    def _keep_tables(
        self, writer: Writer, string_id: Callable[[str], int], module: count_arena.CountedModule, pid: int
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
        for pattern, n_functions in counted_modules.matches_of_patterns(path).items():
            self.matches[pattern] = self.matches.get(pattern, 0) + n_functions
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

    def finish(
        self,
        writer: Writer,
        string_id: Callable[[str], int],
        process_of: Callable[[ImageEntries], tuple[int, int]],
        *,
        now: int | None = None,
    ) -> dict[str, int]:
        """Writes what is left of the last epoch, and the totals; returns counts. `process_of`: (process, when it ended); `now`: by the
        clock of the recording, where that is not this machine's clock now."""
        images = self.arena.images()
        ends = {key: process_of(image) for key, image in images.items()}
        for image in images.values():
            for module in image.modules:
                self._keep_tables(writer, string_id, module, image.pid)
        self._last_epoch(writer, string_id, images, lambda image: ends[image.pid, image.born_ns][0])
        now = time.monotonic_ns() if now is None else now
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
        totals["untraced_modules"] = sum(
            sum(module.sites > 0 for module in image.modules)
            for image in images.values()
            if not (image.process or {}).get("trace_state")
        )
        totals["unattributed_threads"] = sum(_unattributed(image) for image in images.values())
        totals["modules_without_tables"] = sum(status != "read" for status in self._tables.values())
        return totals

    def _last_epoch(
        self,
        writer: Writer,
        string_id: Callable[[str], int],
        images: dict[Image, ImageEntries],
        process_of: Callable[[ImageEntries], int],
    ) -> None:
        """What is left to be written before the totals."""

    def _known(self, key: Image) -> _KnownImage:
        return self._images.setdefault(key, _KnownImage(len(self._images) + self._first_image))

    def _write_image(
        self,
        writer: Writer,
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
        waiting: list[Records] = []
        sampled = self._sampled(image, used)

        def rows_of(kind: str, place: Place, numbers: Ints, values: Uint64s, label: dict[str, int]) -> Records:
            owner = np.searchsorted(firsts, numbers, side="right") - 1
            inside = owner >= 0
            inside[inside] = numbers[inside] < ends[owner[inside]]
            if kind == "block_count" and not epoch:
                self.stray_adds += int((~inside).sum())
            numbers, values, owner = numbers[inside], values[inside], owner[inside]
            rows = np.zeros(len(numbers), dtype=layouts()[kind].dtype())
            rows["value"], rows["counter"] = values, numbers - firsts[owner] if len(owner) else 0
            rows["module"] = ids[owner] if len(owner) else 0
            rows["image"], rows["node"], rows["thread"] = known.number, place.node, place.thread
            for name, value in label.items():
                rows[name] = value
            return rows

        if not epoch:
            self._write_samples(writer, known, clock, sampled, rows_of, now)
            self._write_spans(writer, known, image, clock, now)
        packer = Packer("region_time")
        for place in image.places:
            before = known.places.setdefault(place.index, _Known()) if epoch else _Known()
            if epoch and before.done:
                continue
            head = self.arena.head_of(place)
            numbers, values = self.arena.counters_of(place, used)
            for group in sampled.get(place.index, ()):
                numbers, values = _added(numbers, values, group.numbers, group.values)
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
                before.counters = numbers, values
                before.done = bool(place.flags & count_arena.ENDED) and place.thread != 0
            if not len(changed):
                continue
            waiting.append(rows_of("block_count", place, changed, deltas, {"epoch": epoch}))
            if sum(map(len, waiting)) >= MOST_RECORDS:
                _append(writer, waiting, known.process, now)
        _append(writer, waiting, known.process, now)
        for at in range(0, len(times), 65536):
            writer.records("region_time", times[at : at + 65536], process=known.process, begin_ns=now, end_ns=now)

    def _sampled(self, image: ImageEntries, used: int) -> dict[int, list[_Group]]:
        """Groups of sampled executions that counted anything, by index of the place that they belong to."""
        found: dict[int, list[_Group]] = {}
        places: dict[tuple[int, int], list[int]] = {}
        for place in image.places if image.groups else ():
            places.setdefault((place.thread, place.node), []).append(place.index)
        for place in image.groups:
            head = self.arena.head_of(place)
            # Thread ids come again: the place was made before its groups, and after those of the thread before.
            owners = [index for index in places.get((place.thread, place.node), ()) if index < place.index]
            if head["entered"] and owners:
                found.setdefault(max(owners), []).append(_Group(place, head, *self.arena.counters_of(place, used)))
        return found

    def _write_samples(
        self,
        writer: Writer,
        known: _KnownImage,
        clock: _Clock,
        sampled: dict[int, list[_Group]],
        rows_of: Callable[[str, Place, Ints, Uint64s, dict[str, int]], Records],
        now: int,
    ) -> None:
        packer, packed, counts = Packer("sample_group"), [], []
        for groups in sampled.values():
            for group in groups:
                number = group.place.flags
                packed.append(
                    packer.pack(
                        counted=group.head["counted"],
                        counted_ns=clock.ns(group.head["counted_ticks"]),
                        group=number,
                        image=known.number,
                        node=group.place.node,
                        thread=group.place.thread,
                    )
                )
                counts.append(rows_of("sample_count", group.place, group.numbers, group.values, {"group": number}))
        writer.records("sample_group", packed, process=known.process, begin_ns=now, end_ns=now)
        _append(writer, counts, known.process, now, kind="sample_count")

    def _write_spans(self, writer: Writer, known: _KnownImage, image: ImageEntries, clock: _Clock, now: int) -> None:
        """Wall-clock time of each node, and executions by duration."""
        spans, durations = Packer("region_span"), Packer("region_duration")
        sums: dict[int, list[int]] = {}
        packed = []
        for place in image.places:
            head = self.arena.head_of(place)
            total = sums.setdefault(place.node, [0, 0, 0])
            for at, name in enumerate(("unspanned_ticks", "overhead_ticks", "switch_ticks")):
                total[at] += head[name]
            for number in range(count_arena.DURATIONS):
                counted, untouched = head[f"counted_of_duration_{number}"], head[f"untouched_of_duration_{number}"]
                if counted or untouched:
                    packed.append(
                        durations.pack(
                            least_ns=clock.ns(1 << number),
                            counted=counted,
                            untouched=untouched,
                            untouched_ns=clock.ns(head[f"untouched_ticks_of_duration_{number}"]),
                            image=known.number,
                            node=place.node,
                            thread=place.thread,
                        )
                    )
        writer.records("region_duration", packed, process=known.process, begin_ns=now, end_ns=now)
        records = []
        for node, (inside, since, ticks) in sorted(image.spans.items()):
            open_ns = clock.since(clock.start_ticks + since, now) if inside else 0
            unspanned, overhead, switch = sums.get(node, [0, 0, 0])
            records.append(
                spans.pack(
                    time_ns=now,
                    union_ns=_word(clock.ns(ticks) + open_ns),
                    unspanned_ns=clock.ns(unspanned),
                    overhead_ns=clock.ns(overhead),
                    switch_ns=clock.ns(switch),
                    image=known.number,
                    node=node,
                )
            )
        writer.records("region_span", records, process=known.process, begin_ns=now, end_ns=now)

    def _describe(
        self, writer: Writer, string_id: Callable[[str], int], known: _KnownImage, image: ImageEntries
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
        traced = Packer("traced_module")
        sites = [
            traced.pack(
                first_site=module.first_site,
                sites=module.sites,
                image=known.number,
                module=string_id(module.build_id or module.path),
            )
            for module in image.modules[known.modules :]
            if module.sites
        ]
        self.traced |= {module.build_id or module.path: module.path for module in image.modules if module.sites}
        known.modules = len(image.modules)
        writer.records("counted_module", packed, process=known.process)
        writer.records("traced_module", sites, process=known.process)

    def _write_status(self, writer: Writer, known: _KnownImage, image: ImageEntries, ended_ns: int, now: int) -> None:
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
        self.processes.append(process)
        if process["trace_state"]:
            names = (name for name in count_arena.PROCESS_FIELDS if name.startswith("trace_") and name != "trace_state")
            fields: dict[str, int] = {name.removeprefix("trace_"): process[name] for name in names}
            state = process["trace_state"] & 0xFFFFFFFF
            packed = Packer("trace_status").pack(None, time_ns=now, image=known.number, state=state, **fields)
            writer.records("trace_status", [packed], process=known.process, begin_ns=now, end_ns=now)

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


def _difference(numbers: Ints, values: Uint64s, before: _Known) -> tuple[Ints, Uint64s]:
    """What was added since the last look, modulo 2^64."""
    import numpy as np

    if before.counters is None or not len(before.counters[0]):
        return numbers, values
    known, had = before.counters
    every = np.union1d(numbers, known)
    deltas = np.zeros(len(every), dtype=np.uint64)
    deltas[np.searchsorted(every, numbers)] += values
    deltas[np.searchsorted(every, known)] -= had
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
    enabled, ran, unseen = head["event_enabled_ns"], head["event_running_ns"], head["event_unseen_ns"]
    # Executions during which the kernel never scheduled the events have no values: the others stand for them.
    scale = enabled / (enabled - unseen) if 0 < unseen < enabled else 1.0
    for number in range(count_arena.EVENTS):
        for kind in ("counted", "untouched"):
            value = added(f"{kind}_events_{number}")
            fields[f"{kind}_event_{number}"] = value if scale == 1.0 else _word(round(value * scale))
    open_ns, joined_ns = running
    fields["open_ns"] = min(max(open_ns - before.open_ns, -(2**63)), 2**63 - 1)
    fields["joined_ns"] = _word(joined_ns - before.joined_ns)
    if epoch and not any(fields.values()) and before.head:
        return None
    read = (head["events_read"] & 15) * count_arena.EVENT_0_READ | count_arena.EVENTS_TOLD
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
        flags=(place.flags & 7) | read,
        event_share_ppm=min(round(ran * 1e6 / enabled), 1_000_000) if enabled else 0,
    )


def _added(numbers: Ints, values: Uint64s, others: Ints, more: Uint64s) -> tuple[Ints, Uint64s]:
    """Two sparse arrays of counters, added modulo 2^64."""
    import numpy as np

    every = np.union1d(numbers, others)
    sums = np.zeros(len(every), dtype=np.uint64)
    sums[np.searchsorted(every, numbers)] += values
    sums[np.searchsorted(every, others)] += more
    return every, sums


def _append(writer: Writer, waiting: list[Records], process: int, now: int, *, kind: str = "block_count") -> None:
    import numpy as np

    if waiting:
        rows = np.concatenate(waiting)
        waiting.clear()
        for at in range(0, len(rows), MOST_RECORDS):
            part = rows[at : at + MOST_RECORDS]
            writer.append(
                layouts()[kind].kind, part.tobytes(), record_count=len(part), process=process, begin_ns=now,
                end_ns=now,
            )  # fmt: skip


def pattern_notes(matches: dict[str, int]) -> list[str]:
    """Expressions of --memlens-functions that made no function a region, a sentence each."""
    return [
        f"--memlens-functions={pattern} matched no function of the program: no region was made for it. Expressions are compared with demangled and linkage names; "
        "a function that was inlined everywhere has no code of its own (__attribute__((noinline)), or a region in its source)."
        for pattern, n_functions in sorted(matches.items())
        if n_functions == 0
    ]


def notes(totals: dict[str, int], *, more_counters: str = "--count=counters=N") -> list[str]:
    """What was not counted, a sentence each. `more_counters`: how to have more of them."""
    found = []
    if totals.get("refused"):
        found.append(f"{totals['refused']} places for counters found no room: what they would have counted is missing.")
    if totals.get("functions_refused"):
        found.append(
            f"{totals['functions_refused']} functions found no room among the counters and were not counted "
            f"(more room: {more_counters})."
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
            f"{totals['unattributed_threads']} threads were started in a way that does not show which region they work for: "
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
