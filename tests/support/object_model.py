"""A brute-force model of objects: lists, scanned from end to end. What the object engine must agree with.

Records are tuples (kind, process, fields) with the names of enumerated values; see `Model.replay`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PAGE = 4096
ORDER = {"fork": 0, "exec": 0, "thread_exit": 0, "mapping": 1, "free": 2, "delete": 2, "munmap": 3, "malloc": 4,
         "calloc": 4, "aligned": 4, "new": 4, "realloc": 4, "mmap": 5, "mremap": 5, "brk": 5, "tag": 6, "untag": 6, "own": 6}  # fmt: skip
PRECEDENCE = ("heap", "memlens", "stack", "mmap", "brk", "file")


@dataclass
class Thing:
    id: int
    process: int
    kind: str
    base: int
    bytes: int
    born: int
    died: int | None = None
    previous: int = 0
    stack: int = 0
    thread: int = 0
    weight: int = 0
    name: int = 0
    piece: bool = False
    cut: bool = False
    released: bool = False
    ended_in: dict[int, int] = field(default_factory=dict)
    """Heirs of a fork that ended it for themselves, and when."""

    @property
    def end(self) -> int:
        return self.base + max(self.bytes, 1)

    def alive(self, time: int) -> bool:
        return self.born <= time and (self.died is None or time < self.died)


class Model:
    def __init__(self) -> None:
        self.things: list[Thing] = []
        self.parents: dict[int, tuple[int, int]] = {}
        self.execs: dict[int, list[int]] = {}
        self.moved: dict[tuple[int, int], int] = {}
        self.last_by_thread: dict[tuple[int, int], int] = {}
        self.temporary: set[int] = set()
        self.counts = dict(failed_calls=0, unknown_releases=0, lost_releases=0, unknown_unmaps=0)

    # ---- what a process sees ------------------------------------------------------------
    def visible(self, process: int, time: int, *, now: bool = False) -> list[tuple[Thing, bool]]:
        """(object, inherited) of everything alive for a process at a time; `now`: as the replay stands."""
        own = [t for t in self.things if t.process == process and ((t.died is None) if now else t.alive(time))]
        result = [(t, False) for t in own]
        chain = []
        while process in self.parents:
            parent, forked = self.parents[process]
            execs = [e for e in self.execs.get(process, []) if e <= time]
            if time < forked or execs:
                break
            chain.append((process, time))
            time, process = max(forked - 1, 0), parent
            for thing in self.things:
                if thing.process != process or not thing.alive(time):
                    continue
                if not any(thing.ended_in.get(heir, 1 << 64) <= seen for heir, seen in chain):
                    result.append((thing, True))
        return result

    def find(self, process: int, address: int, time: int, layer: str = "any") -> int:
        here = [(t, inherited) for t, inherited in self.visible(process, time) if t.base <= address < t.end]
        for kind in PRECEDENCE if layer == "any" else (layer,):
            for inherited in (False, True):
                found = [t for t, i in here if t.kind == kind and i == inherited]
                if found:
                    assert layer == "any" or inherited or len(found) == 1
                    return found[0].id
        return 0

    def find_tag(self, process: int, address: int, time: int) -> int:
        tags = [t for t, _ in self.visible(process, time) if t.kind == "tag" and t.base <= address < t.end]
        return min(tags, key=lambda t: (t.bytes, -t.id)).id if tags else 0

    # ---- replay -----------------------------------------------------------------------------
    def make(self, **fields: Any) -> Thing:
        thing = Thing(id=len(self.things) + 1, **fields)
        self.things.append(thing)
        if thing.kind in ("heap", "mmap") and not thing.piece:
            self.last_by_thread[thing.process, thing.thread] = thing.id
        return thing

    def end(self, thing: Thing, process: int, now: int, *, released: bool) -> None:
        if thing.process != process:
            thing.ended_in.setdefault(process, now)
            return
        thing.died = now
        thing.released = released
        if released and not thing.cut and self.last_by_thread.get((process, thing.thread)) == thing.id:
            self.temporary.add(thing.id)

    def over(self, process: int, kind: str, begin: int, end: int, now: int) -> list[Thing]:
        found = [
            (inherited, t.process != process, t)
            for t, inherited in self.visible(process, now, now=True)
            if t.kind == kind and t.base < end and begin < t.end
        ]
        return [t for _, _, t in sorted(found, key=lambda entry: (entry[0], entry[2].base))]

    def cut(self, process: int, kind: str, begin: int, end: int, now: int) -> list[Thing]:
        hit = self.over(process, kind, begin, end, now) if end > begin else []
        for thing in hit:
            whole = thing.base >= begin and thing.end <= end
            thing_end = thing.end
            if not whole and thing.process == process:
                thing.cut = True
            self.end(thing, process, now, released=whole)
            for piece_begin, piece_end in ((thing.base, begin), (end, thing_end)):
                if piece_begin < piece_end:
                    self.make(process=process, kind=kind, base=piece_begin, bytes=piece_end - piece_begin, born=now,
                              previous=thing.id, stack=thing.stack, thread=thing.thread, name=thing.name, piece=True)  # fmt: skip
        return hit

    def replay(self, events: list[tuple[str, int, dict[str, int]]]) -> None:
        ordered = sorted(events, key=lambda e: (e[2]["time_ns"], ORDER[e[0]]))  # stable
        for operation, process, fields in ordered:
            getattr(self, f"on_{operation}", self.on_birth)(operation, process, fields["time_ns"], fields)

    def on_birth(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        if f["address"] == 0:
            self.counts["failed_calls"] += 1
            return
        previous = self.moved.pop((process, f.get("old_address", 0)), 0) if operation == "realloc" else 0
        hit = self.over(process, "heap", f["address"], f["address"] + max(f["bytes"], 1), now)
        for thing in hit:
            self.counts["lost_releases"] += 1
            self.end(thing, process, now, released=False)
        self.make(process=process, kind="heap", base=f["address"], bytes=f["bytes"], born=now, previous=previous,
                  stack=f.get("stack", 0), thread=f.get("thread", 0), weight=f.get("weight_bytes", 0))  # fmt: skip

    def on_free(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        hit = [t for t in self.over(process, "heap", f["address"], f["address"] + 1, now) if t.base == f["address"]]
        if not hit:
            self.counts["unknown_releases"] += 1
            return
        self.end(hit[0], process, now, released=True)
        if f.get("flags", 0) & 1:
            self.moved[process, f["address"]] = hit[0].id

    on_delete = on_free

    def on_munmap(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        end = -(-(f["address"] + f["bytes"]) // PAGE) * PAGE
        if not self.cut(process, "mmap", f["address"], end, now):
            self.counts["unknown_unmaps"] += 1

    def on_mmap(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        if f["address"] == 0:
            self.counts["failed_calls"] += 1
            return
        previous = 0
        if operation == "mremap":
            hit = self.over(process, "mmap", f["old_address"], f["old_address"] + 1, now)
            if hit:
                previous = hit[0].id
                self.cut(process, "mmap", f["old_address"], hit[0].end, now)
            else:
                self.counts["unknown_unmaps"] += 1
        end = -(-(f["address"] + f["bytes"]) // PAGE) * PAGE
        self.cut(process, "mmap", f["address"], max(end, f["address"] + 1), now)
        self.make(process=process, kind="mmap", base=f["address"], bytes=f["bytes"], born=now, previous=previous,
                  stack=f.get("stack", 0), thread=f.get("thread", 0))  # fmt: skip

    on_mremap = on_mmap

    def on_fork(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        ancestor = f["parent"]
        if process in self.parents or ancestor == process:
            return
        while ancestor in self.parents:
            ancestor = self.parents[ancestor][0]
            if ancestor == process:
                return
        self._end_everything(process, now)
        self.execs.pop(process, None)
        self.parents[process] = (f["parent"], now)

    def on_exec(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        self._end_everything(process, now)
        self.execs.setdefault(process, []).append(now)

    def _end_everything(self, process: int, now: int) -> None:
        for thing in self.things:
            if thing.process == process and thing.died is None:
                self.end(thing, process, now, released=False)
        self.moved = {key: value for key, value in self.moved.items() if key[0] != process}

    def on_tag(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        live = [t for t, _ in self.visible(process, now, now=True) if t.kind == "tag"]
        if any((t.base, t.bytes, t.name) == (f["address"], f["bytes"], f["name"]) for t in live):
            return
        self.make(
            process=process, kind="tag", base=f["address"], bytes=f["bytes"], born=now, name=f["name"],
            thread=f.get("thread", 0),
        )  # fmt: skip

    def on_untag(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        live = [
            (not i, t.id, t)
            for t, i in self.visible(process, now, now=True)
            if t.kind == "tag" and t.base == f["address"]
        ]
        if live:
            self.end(max(live, key=lambda entry: entry[:2])[2], process, now, released=True)
            return
        own = [t for t in self.things if t.kind == "memlens" and t.process == process and t.died is None]
        for thing in own:
            if thing.base == f["address"]:
                self.end(thing, process, now, released=True)

    def on_own(self, operation: str, process: int, now: int, f: dict[str, int]) -> None:
        for thing in self.over(process, "memlens", f["address"], f["address"] + max(f["bytes"], 1), now):
            self.end(thing, process, now, released=False)
        self.make(process=process, kind="memlens", base=f["address"], bytes=f["bytes"], born=now, thread=f["thread"])

    # ---- totals --------------------------------------------------------------------------------
    def weighted(self, thing: Thing) -> tuple[float, int]:
        if thing.weight == 0:
            return 1.0, thing.bytes
        return thing.weight / max(thing.bytes, 1), thing.weight

    def peak(self, things: list[Thing]) -> tuple[int, int]:
        """(bytes, first time) of the highest level at the end of an instant."""
        best = (0, 0)
        for time in sorted({t.born for t in things} | {t.died for t in things if t.died is not None}):
            level = sum(self.weighted(t)[1] for t in things if t.alive(time))
            if level > best[0]:
                best = (level, time)
        return best
