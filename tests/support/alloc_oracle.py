"""Reads what the case_alloc workloads logged of their own calls, and compares it with what memlens recorded of them."""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import memlens

HEAP = {"malloc", "calloc", "realloc", "free", "aligned", "new", "delete"}
MAPPINGS = {"mmap", "munmap", "mremap"}
IN_REALLOC, ARRAY = 1, 2
EVERY = ("--sample-bytes", "0", "--collectors", "alloc,timeline,faults")


@dataclass(frozen=True)
class Call:
    """A call that a program logged (workloads/alloc_log.h)."""

    pid: int
    thread: int
    operation: str
    address: int
    bytes: int
    old_address: int
    begin_ns: int
    end_ns: int
    frames: tuple[int, ...]


def read_log(path: Path) -> list[Call]:
    calls = []
    for line in path.read_text().splitlines():
        pid, thread, operation, address, size, old, begin, end, *frames = line.split()
        calls.append(
            Call(
                int(pid), int(thread), operation, int(address, 16), int(size), int(old, 16), int(begin), int(end),
                tuple(int(f, 16) for f in frames[0].split(",") if f) if frames else (),
            )
        )  # fmt: skip
    return calls


def allocations(capture: memlens.Capture, *, operations: set[str] | None = None) -> list[dict[str, Any]]:
    """Recorded operations with the pid of their process, in the order of time."""
    pids = {row["process"]: row["pid"] for row in capture.table("processes").to_pylist()}
    rows = capture.table("allocations").to_pylist()
    for row in rows:
        row["pid"] = pids[row["process"]]
    rows = [row for row in rows if operations is None or row["operation"] in operations]
    return sorted(rows, key=lambda row: row["time_ns"])  # stable: records of one moment keep their order


def stacks(capture: memlens.Capture) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in capture.table("stacks").to_pylist()}


def births(capture: memlens.Capture) -> list[dict[str, Any]]:
    return [row for row in allocations(capture, operations=HEAP) if row["operation"] not in ("free", "delete")]


def releases(capture: memlens.Capture) -> list[dict[str, Any]]:
    return [row for row in allocations(capture, operations=HEAP) if row["operation"] in ("free", "delete")]


def expected_records(call: Call) -> list[tuple[str, int, int, int, int]]:
    """(operation, address, bytes, old_address, flags) of the records that a call must give."""
    name = call.operation
    if name in ("malloc", "calloc", "aligned", "mmap", "munmap"):
        return [(name, call.address, call.bytes, 0, 0)]
    if name in ("realloc", "reallocarray"):
        released = [("free", call.old_address, 0, 0, IN_REALLOC)] if call.old_address else []
        return [*released, ("realloc", call.address, call.bytes, call.old_address, 0)]
    if name == "mremap":
        return [("mremap", call.address, call.bytes, call.old_address, 0)]
    if name == "realloc-free":
        return [("free", call.old_address, 0, 0, 0)]
    if name in ("free", "delete"):
        return [("free", call.address, 0, 0, 0)]
    if name in ("failed", "nothing", "brk"):
        return []
    if name.startswith("new"):
        return [("new", call.address, call.bytes, 0, ARRAY if "[]" in name else 0)]
    raise AssertionError(f"the log has an unknown call {name}")


def compare(
    capture: memlens.Capture, calls: list[Call], *, operations: set[str] = HEAP, with_stacks: bool = True
) -> int:
    """Every thread's records, from its first logged call to its last, are those calls and nothing else.

    Returns the number of stacks compared.
    """
    by_thread: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in calls:
        by_thread[call.pid, call.thread].append(call)
    recorded: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in allocations(capture, operations=operations):
        recorded[row["pid"], row["thread"]].append(row)
    known_stacks = stacks(capture)
    compared = 0
    for key, own_calls in by_thread.items():
        rows = recorded[key]
        times = [row["time_ns"] for row in rows]
        last_end = own_calls[0].begin_ns
        for call in own_calls:
            between = rows[bisect.bisect_left(times, last_end) : bisect.bisect_left(times, call.begin_ns)]
            assert not between, f"records before {call} that no call explains: {between}"
            during = rows[bisect.bisect_left(times, call.begin_ns) : bisect.bisect_right(times, call.end_ns)]
            last_end = call.end_ns + 1
            check_call(call, during)
            if with_stacks:
                compared += check_stack(call, during, known_stacks)
    return compared


def check_call(call: Call, during: list[dict[str, Any]]) -> None:
    if call.operation in ("libc", "balanced"):
        live: dict[int, int] = {}
        for row in during:
            if row["operation"] in ("free", "delete"):
                assert live.pop(row["address"], None) is not None, (call, row)
            elif row["address"]:
                live[row["address"]] = row["bytes"]
        assert during and sorted(live) == ([call.address] if call.operation == "libc" else []), (call, during)
        return
    if call.operation == "throwing-new":
        assert [(r["operation"], r["address"], r["bytes"]) for r in during[:1]] == [("new", 0, call.bytes)], during
        # The rest is the exception object and what the unwinder needs: mallocs of libraries.
        assert {r["operation"] for r in during[1:]} <= {"malloc", "calloc", "free"}, during
        return
    got = [(r["operation"], r["address"], r["bytes"], r["old_address"], r["flags"]) for r in during]
    if call.operation.endswith("-aligned"):
        got = [(o, a, b if o != "new" else call.bytes, old, f) for o, a, b, old, f in got]
    assert got == expected_records(call), call


def check_stack(call: Call, during: list[dict[str, Any]], known: dict[int, dict[str, Any]]) -> int:
    """The recorded stack is backtrace()'s of the same function: the same callers, the call itself close by."""
    if not call.frames or call.operation in ("libc", "balanced", "throwing-new"):
        return 0
    compared = 0
    for row in during:
        if row["operation"] in ("free", "delete", "munmap"):
            continue
        ips = known[row["stack"]]["ips"]
        callers = list(call.frames[1:])
        at = next((i for i in range(len(ips)) if ips[i + 1 :][: len(callers)] == callers), None)
        assert at is not None, f"{call} recorded as {[hex(ip) for ip in ips]}"
        assert abs(ips[at] - call.frames[0]) < 4096, f"{call}: the call is at {ips[at]:#x}"
        compared += 1
    return compared
