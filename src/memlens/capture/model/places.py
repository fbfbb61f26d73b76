"""NUMA: on which node a thread runs, and on which node each page lies, at any time of the run.

Owns the definitions that metrics of remote accesses rest on:

- A thread's **home** is the node that all CPUs of its affinity mask belong to; with CPUs of several nodes the thread is *unpinned*.
- A thread **places bound** if it has a home, or a memory policy with one node.
- A page's **generation** begins when it is first touched, and ends when it is touched first again (it was unmapped in between).
- A page is **bound** if the thread that touched it first places bound, if a memory policy applies to its range, or if the
  program moved it (move_pages, migrate_pages).
- A page lies on the node that the kernel gave as answer. Between two different answers it is *moving*: an access in
  between is *undecided*, unless a call that moves pages lies there, which is then when it moved.

What was not recorded stays *unknown*; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..store.settings import settings_of
from ..store.source import TableSource
from .pinning import pinned
from .replay import FAULT_CLASSES

if TYPE_CHECKING:
    import numpy.typing as npt

    from .replay import Replay

    Longs = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]
    Nodes = npt.NDArray[np.int16]
    Flags = npt.NDArray[np.int8]

UNPINNED = -1
UNKNOWN = -2
MOVING = -3
"""Of a page: it moved at a time that is not known exactly."""
NO, YES, NOT_KNOWN = 0, 1, 2
"""Whether a page is bound."""
BINDING_POLICIES = frozenset((1, 2, 3, 5, 6))
"""MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_PREFERRED_MANY, MPOL_WEIGHTED_INTERLEAVE; 0 and 4 follow the CPU that touches."""
MPOL_MF_MOVE, MPOL_MF_MOVE_ALL = 2, 4
FIRST = FAULT_CLASSES.index("first")
PAGE_SHIFT = 12
LARGE_PAGE_SHIFT = 21
PROCESS_SHIFT = 48
LARGE_MASK = ~np.uint64((1 << (LARGE_PAGE_SHIFT - PAGE_SHIFT)) - 1)


@dataclass(frozen=True)
class Node:
    number: int
    cpus: frozenset[int]
    bytes: int
    distances: tuple[int, ...]


class Topology:
    """Nodes of the machine that a capture was recorded on.

    >>> machine = Topology([Node(0, frozenset((0, 1)), 1 << 30, (10, 20, 31)), Node(1, frozenset((2, 3)), 1 << 30, (20, 10, 31)),
    ...                     Node(2, frozenset(), 1 << 30, (31, 31, 10))])
    >>> machine.home([2, 3]), machine.home([1, 2]), machine.nearest(2), machine.distance(0, 1)
    (1, -1, (0, 1), 20)
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.number))
        self.numbers = tuple(node.number for node in self.nodes)
        self._by_number = {node.number: node for node in self.nodes}
        self._of_cpu = {cpu: node.number for node in self.nodes for cpu in node.cpus}

    @classmethod
    def of(cls, capture: TableSource) -> Topology:
        rows = capture.meta.get("machine", {}).get("numa_nodes") or []
        return cls(
            [
                Node(int(row["node"]), frozenset(row["cpus"]), int(row["bytes"]), tuple(row.get("distances") or ()))
                for row in rows
            ]
        )

    @property
    def with_cpus(self) -> tuple[int, ...]:
        return tuple(node.number for node in self.nodes if node.cpus)

    @property
    def without_cpus(self) -> tuple[int, ...]:
        """High-bandwidth, MCDRAM or CXL memory."""
        return tuple(node.number for node in self.nodes if not node.cpus)

    @property
    def is_numa(self) -> bool:
        return len(self.nodes) > 1

    def node_of_cpu(self, cpu: int) -> int:
        return self._of_cpu.get(cpu, UNKNOWN)

    def home(self, cpus: Sequence[int]) -> int:
        """The node of a thread that may run on these CPUs."""
        homes = {self._of_cpu[cpu] for cpu in cpus if cpu in self._of_cpu}
        if not homes:
            return UNKNOWN
        return homes.pop() if len(homes) == 1 else UNPINNED

    def distance(self, one: int, other: int) -> int | None:
        """As the firmware states it: 10 is local."""
        if one == other:
            return 10
        node = self._by_number.get(one)
        if node is None or other not in self._by_number:
            return None
        # The kernel lists distances in the order of the nodes that are online.
        at = self.numbers.index(other)
        return node.distances[at] if at < len(node.distances) else None

    def nearest(self, number: int) -> tuple[int, ...]:
        """The nodes with CPUs that are nearest to a node: those of a memory-only node's own socket."""
        found = [(self.distance(number, other), other) for other in self.with_cpus]
        known = [(distance, other) for distance, other in found if distance is not None]
        least = min((distance for distance, _ in known), default=None)
        return tuple(other for distance, other in known if distance == least)


@dataclass(frozen=True)
class ThreadState:
    """What was set for a thread at a time."""

    time_ns: int
    cpus: tuple[int, ...] | None
    """None: not recorded."""
    home: int
    policy: int
    """MPOL_* number of its memory policy; 0 = default."""
    policy_nodes: tuple[int, ...]
    cause: str

    @property
    def places_bound(self) -> bool:
        return self.home >= 0 or (self.policy in BINDING_POLICIES and len(self.policy_nodes) == 1)


class ThreadHomes:
    """Affinity and memory policy of every thread over time: set by itself or another thread, else inherited from its creator."""

    def __init__(self, capture: TableSource, topology: Topology) -> None:
        self.topology = topology
        self.states: dict[tuple[int, int], list[ThreadState]] = {}
        only_node = topology.with_cpus[0] if len(topology.with_cpus) == 1 and not topology.without_cpus else None
        self.is_recorded = only_node is not None or settings_of(capture.meta, "allocation") is not None
        """Whether changes of affinity are known: without the library in the program nobody sees them."""
        if not self.is_recorded:
            return
        events: list[tuple[int, int, int, dict[str, object]]] = []
        for at, row in enumerate(capture.table("process_events").to_pylist()):
            if row["operation"] in ("fork", "thread", "attach", "seen"):
                events.append((row["time_ns"], 0, at, row))
        for at, pin in enumerate(pinned(capture)):
            if pin["thread"] and pin["operation"] in ("sched_setaffinity", "set_mempolicy", "found"):
                events.append((pin["time_ns"], 1, at, {**pin}))
        everything = tuple(sorted(cpu for node in topology.nodes for cpu in node.cpus))
        for time_ns, _, _, row in sorted(events, key=lambda event: event[:3]):
            key = (_number(row["process"]), _number(row["thread"]))
            operation = str(row["operation"])
            if operation in ("fork", "thread", "attach", "seen"):
                whose = (_number(row["parent_process"]) or key[0], _number(row["parent_thread"]))
                before = self.at(whose, time_ns)
                if before is None and only_node is not None:
                    before = ThreadState(time_ns, everything, only_node, 0, (), "one node")
                if key not in self.states and before is not None:
                    self._set(key, ThreadState(time_ns, before.cpus, before.home, before.policy, before.policy_nodes, "inherited"))  # fmt: skip
                continue
            members = row["members"]
            assert isinstance(members, list)
            now = self.at(key, time_ns) or ThreadState(time_ns, None, UNKNOWN, 0, (), "")
            if operation == "set_mempolicy":
                policy = _number(row["policy"])
                self._set(key, ThreadState(time_ns, now.cpus, now.home, policy, tuple(members), operation))
                continue
            state = ThreadState(
                time_ns, tuple(members), topology.home(members), now.policy, now.policy_nodes, operation
            )
            if operation == "found":
                if now.cpus == state.cpus:
                    continue
                self._undecided(key, _number(row["address"]), now)
            self._set(key, state)

    def _undecided(self, key: tuple[int, int], since_ns: int, now: ThreadState) -> None:
        """A reading differs from what is known: the thread was moved after the reading before (0: after it began), nobody knows when."""
        if now.cpus is None:
            return
        states = self.states[key]
        moving = ThreadState(max(since_ns, now.time_ns), now.cpus, MOVING, now.policy, now.policy_nodes, "moved")
        if moving.time_ns == now.time_ns:
            states.pop()
        states.append(moving)

    def _set(self, key: tuple[int, int], state: ThreadState) -> None:
        self.states.setdefault(key, []).append(state)

    def at(self, key: tuple[int, int], time_ns: int) -> ThreadState | None:
        """The state at a time; before the first one that is known, the first."""
        states = self.states.get(key)
        if not states:
            return None
        found = states[0]
        for state in states:
            if state.time_ns > time_ns:
                break
            found = state
        return found

    def homes(self, key: tuple[int, int], times: Words) -> Nodes:
        """The home at each time; `UNKNOWN` for a thread of which nothing was recorded."""
        states = self.states.get(key)
        if not states:
            return np.full(len(times), UNKNOWN, dtype=np.int16)
        homes = np.array([state.home for state in states], dtype=np.int16)
        if len(states) == 1:
            return np.full(len(times), homes[0], dtype=np.int16)
        begins = np.array([state.time_ns for state in states], dtype=np.uint64)
        at = np.searchsorted(begins, times, side="right").astype(np.int64) - 1
        return homes[np.maximum(at, 0)]

    def places_bound(self, process: Longs, thread: Longs, times: Words) -> Flags:
        """Whether what these threads place at these times is bound."""
        found = np.full(len(times), NOT_KNOWN, dtype=np.int8)
        keys = process.astype(np.int64) << np.int64(32) | thread.astype(np.int64)
        for value in np.unique(keys).tolist():
            states = self.states.get((value >> 32, value & 0xFFFFFFFF))
            if not states:
                continue
            mine = np.flatnonzero(keys == value)
            begins = np.array([state.time_ns for state in states], dtype=np.uint64)
            bound = np.array([_known(state) for state in states], dtype=np.int8)
            at = np.searchsorted(begins, times[mine], side="right").astype(np.int64) - 1
            found[mine] = bound[np.maximum(at, 0)]
        return found


def _known(state: ThreadState) -> int:
    if state.places_bound:
        return YES
    return NOT_KNOWN if state.home in (UNKNOWN, MOVING) else NO


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class FirstTouches:
    """Pages that faults placed: one row for each fault of class *first*, a huge page is one."""

    process: Longs
    thread: Longs
    time_ns: Words
    page: Words
    pages: Longs
    node: Nodes
    code: Longs
    weight: npt.NDArray[np.float64]
    bound: Flags


class PagePlaces:
    """The node of every page that was asked about, at any time, and whether the page is bound."""

    def __init__(self, capture: TableSource, topology: Topology, homes: ThreadHomes, touches: FirstTouches) -> None:
        self.topology = topology
        self._moves = _moves(capture)
        self._policies = _ranges(capture)
        self._collect(capture, touches)

    def _collect(self, capture: TableSource, touches: FirstTouches) -> None:
        answers = capture.table("placements")
        process, time_ns, address, node, bound = (
            np.asarray(answers.column(name).to_numpy()) for name in ("process", "time_ns", "address", "node", "bound")
        )
        there = node >= 0
        process, time_ns, address, node, bound = (values[there] for values in (process, time_ns, address, node, bound))
        self.answers = len(node)
        small = np.uint64(PROCESS_SHIFT - PAGE_SHIFT)
        of_touch = touches.process.astype(np.uint64) << small | touches.page
        # A huge page is one page: what is known of its parts is known of it.
        self._large = np.unique(of_touch[touches.pages >= 1 << (LARGE_PAGE_SHIFT - PAGE_SHIFT)] & LARGE_MASK)
        of_touch = self._whole(of_touch)
        key = self._whole(process.astype(np.uint64) << small | address >> np.uint64(PAGE_SHIFT))
        keys = np.concatenate((key, of_touch))
        times = np.concatenate((time_ns.astype(np.uint64), touches.time_ns))
        nodes = np.concatenate((node.astype(np.int16), touches.node))
        is_touch = np.concatenate((np.zeros(len(key), dtype=bool), np.ones(len(of_touch), dtype=bool)))
        flags = np.concatenate((np.where(bound != 0, YES, NOT_KNOWN).astype(np.int8), touches.bound))
        nobody = np.full(len(key), -1, dtype=np.int64)
        threads, codes = np.concatenate((nobody, touches.thread)), np.concatenate((nobody, touches.code))
        order = np.lexsort((~is_touch, times, keys))
        keys, times, nodes, is_touch, flags = keys[order], times[order], nodes[order], is_touch[order], flags[order]
        # A generation of a page: from a first touch to the next, and what was asked before any.
        new_page = np.concatenate(([True], keys[1:] != keys[:-1])) if len(keys) else np.zeros(0, dtype=bool)
        begins = new_page | (is_touch & ~new_page)
        generation = np.cumsum(begins) - 1
        count = int(generation[-1]) + 1 if len(keys) else 0
        self.key = keys[begins]
        self.begin_ns = np.where(is_touch[begins], times[begins], np.uint64(0))
        self.toucher = threads[order][begins]
        """The thread whose fault placed each, -1 where none was recorded."""
        self.touch_code = codes[order][begins]
        """The code of that fault."""
        low = np.full(count, np.iinfo(np.int16).max, dtype=np.int16)
        high = np.full(count, UNKNOWN, dtype=np.int16)
        known = nodes >= 0
        np.minimum.at(low, generation[known], nodes[known])
        np.maximum.at(high, generation[known], nodes[known])
        self.node = np.where(high < 0, UNKNOWN, np.where(low == high, high, MOVING)).astype(np.int16)
        yes = np.zeros(count, dtype=bool)
        no = np.zeros(count, dtype=bool)
        yes[generation[flags == YES]] = True
        no[generation[flags == NO]] = True
        self.bound = np.where(yes, YES, np.where(no, NO, NOT_KNOWN)).astype(np.int8)
        self._apply_policies()
        self.has_several = np.zeros(count, dtype=bool)
        if count:
            same = self.key[1:] == self.key[:-1]
            self.has_several[1:] |= same
            self.has_several[:-1] |= same
        last_ns = np.zeros(count, dtype=np.uint64)
        np.maximum.at(last_ns, generation[known], times[known])
        self._moving = {
            int(number): self._segments(times[rows], nodes[rows], int(self.key[number]))
            for number in np.flatnonzero(self.node == MOVING).tolist()
            for rows in (np.flatnonzero((generation == number) & known),)
        }
        self._move_on(last_ns)

    def _apply_policies(self) -> None:
        """Pages in ranges that the program bound or moved."""
        for process, begin, end, _ in [*self._policies, *(move for move in self._moves if move[2])]:
            self.bound[self._rows(process, begin, end)] = YES

    def _rows(self, process: int, begin: int, end: int) -> slice:
        """Generations of the pages in a range of addresses; of all pages where the end is 0."""
        shift = PROCESS_SHIFT - PAGE_SHIFT
        base = process << shift
        first, last = (
            (base | begin >> PAGE_SHIFT, base | -(-end >> PAGE_SHIFT)) if end else (base, (process + 1) << shift)
        )
        low, high = np.searchsorted(self.key, np.array([first, last], dtype=np.uint64)).tolist()
        return slice(low, high)

    def _move_on(self, last_ns: Words) -> None:
        """Pages that a call moves after the last answer about them: where they lie then is not known."""
        for process, begin, end, time_ns in sorted(self._moves, key=lambda move: move[3]):
            rows = self._rows(process, begin, end)
            numbers = np.arange(rows.start, rows.stop)
            gone = numbers[(last_ns[rows] < time_ns) & (self.begin_ns[rows] <= time_ns) & (self.node[rows] != UNKNOWN)]
            for number in gone.tolist():
                begins, nodes = self._moving.get(number) or (
                    np.zeros(1, dtype=np.uint64), np.array([self.node[number]], dtype=np.int16),
                )  # fmt: skip
                if nodes[-1] != MOVING:
                    begins = np.append(begins, np.uint64(time_ns))
                    nodes = np.append(nodes, np.int16(MOVING))
                self._moving[number] = begins, nodes
            self.node[gone] = MOVING

    def _segments(self, times: Words, nodes: Nodes, key: int) -> tuple[Words, Nodes]:
        """(begins, nodes) of the times in which a page that moved lay on one node, or was moving."""
        process = key >> (PROCESS_SHIFT - PAGE_SHIFT)
        address = (key & ((1 << (PROCESS_SHIFT - PAGE_SHIFT)) - 1)) << PAGE_SHIFT
        moved = sorted(at for whose, begin, end, at in self._moves if whose == process and (not end or begin <= address < end))  # fmt: skip
        begins: list[int] = [0]
        found: list[int] = [int(nodes[0])]
        for at in range(1, len(times)):
            if nodes[at] == nodes[at - 1]:
                continue
            between = [one for one in moved if int(times[at - 1]) <= one <= int(times[at])]
            if len(between) == 1:
                begins.append(between[0])
            else:
                begins += [int(times[at - 1]), int(times[at])]
                found.append(MOVING)
            found.append(int(nodes[at]))
        return np.array(begins, dtype=np.uint64), np.array(found, dtype=np.int16)

    def find(self, key: Words, time_ns: Words) -> Longs:
        """The generation of the page of each access, −1 where nothing is known of it. `key`: process and page."""
        if not len(self.key):
            return np.full(len(key), -1, dtype=np.int64)
        key = self._whole(key)
        at = np.searchsorted(self.key, key, side="right").astype(np.int64) - 1
        hit = (at >= 0) & (self.key[np.maximum(at, 0)] == key)
        found = np.where(hit, at, -1)
        # Of several generations the last that had begun; an access before the first belongs to the first.
        several = hit & self.has_several[np.maximum(at, 0)]
        for row in np.flatnonzero(several).tolist():
            number = int(at[row])
            while number > 0 and self.begin_ns[number] > time_ns[row] and self.key[number - 1] == self.key[number]:
                number -= 1
            found[row] = number
        return found

    def _whole(self, key: Words) -> Words:
        """Pages, those that are parts of a huge page as the first of it."""
        if not len(self._large):
            return key
        base = key & LARGE_MASK
        at = np.minimum(np.searchsorted(self._large, base), len(self._large) - 1)
        return np.where(self._large[at] == base, base, key)

    def nodes(self, generation: Longs, time_ns: Words) -> Nodes:
        """The node of each access's page."""
        if not len(self.node):
            return np.full(len(generation), UNKNOWN, dtype=np.int16)
        found = np.where(generation >= 0, self.node[np.maximum(generation, 0)], np.int16(UNKNOWN)).astype(np.int16)
        moving = np.flatnonzero(found == MOVING)
        for number in np.unique(generation[moving]).tolist():
            begins, nodes = self._moving[number]
            mine = moving[generation[moving] == number]
            at = np.searchsorted(begins, time_ns[mine], side="right").astype(np.int64) - 1
            found[mine] = nodes[np.maximum(at, 0)]
        return found


Move = tuple[int, int, int, int]
"""(process, first byte, end, time); end 0: any page of the process."""


def _moves(capture: TableSource) -> list[Move]:
    """Calls that move pages, with the range that their pages lie in."""
    found: list[Move] = []
    for row in capture.table("pinning_events").to_pylist():
        operation, flags = row["operation"], _number(row["flags"])
        begin, span = _number(row["address"]), flags >> 32 << PAGE_SHIFT
        if operation == "migrate_pages" or (operation == "move_pages" and not span):
            found.append((_number(row["process"]), 0, 0, _number(row["time_ns"])))
        elif operation == "move_pages":
            found.append((_number(row["process"]), begin, begin + span, _number(row["time_ns"])))
        elif operation == "mbind" and flags & (MPOL_MF_MOVE | MPOL_MF_MOVE_ALL):
            found.append((_number(row["process"]), begin, begin + _number(row["bytes"]), _number(row["time_ns"])))
    return found


def _ranges(capture: TableSource) -> list[Move]:
    """Ranges with a memory policy that binds their pages."""
    return [
        (row["process"], row["address"], row["address"] + row["bytes"], row["time_ns"])
        for row in capture.table("pinning_events").to_pylist()
        if row["operation"] == "mbind" and row["policy"] in BINDING_POLICIES and row["result"] >= 0
    ]


TOUCH_COLUMNS = ("process", "thread", "time_ns", "address", "span_shift", "new_pages", "node", "code", "weight")


class TouchSource(TableSource, Protocol):
    @property
    def replay(self) -> Replay: ...


def first_touches(capture: TouchSource, homes: ThreadHomes) -> FirstTouches:
    """Faults that placed pages, with what their threads were bound to."""
    parts: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in TOUCH_COLUMNS}
    replay = capture.replay
    for columns in replay.fault_batches() if replay.fault_count else ():
        mine = np.flatnonzero((columns["class"] == FIRST) & (columns["new_pages"] > 0))
        for name in TOUCH_COLUMNS:
            parts[name].append(columns[name][mine])
    found = {name: np.concatenate(values) if values else np.zeros(0, dtype=np.int64) for name, values in parts.items()}
    process, thread = found["process"].astype(np.int64), found["thread"].astype(np.int64)
    times = found["time_ns"].astype(np.uint64)
    pages = found["new_pages"].astype(np.int64)
    span = found["span_shift"].astype(np.uint64)
    address = (
        found["address"].astype(np.uint64)
        >> np.maximum(span, np.uint64(PAGE_SHIFT))
        << np.maximum(span, np.uint64(PAGE_SHIFT))
    )
    node = found["node"].astype(np.int16)
    only = homes.topology.numbers[0] if len(homes.topology.numbers) == 1 else None
    if only is not None:
        node = np.full(len(node), only, dtype=np.int16)
    return FirstTouches(
        process, thread, times, address >> np.uint64(PAGE_SHIFT), pages, np.where(node < 0, np.int16(UNKNOWN), node),
        found["code"].astype(np.int64), found["weight"].astype(np.float64), homes.places_bound(process, thread, times),
    )  # fmt: skip
