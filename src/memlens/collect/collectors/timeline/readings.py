"""Readings that are too costly for every tick: smaps_rollup, numa_maps, CPU time of threads, the cgroup.

smaps_rollup and numa_maps walk the page tables under the target's mmap lock, tens
of milliseconds for a big process. Each is read so seldom that all of them together
use at most a share of one core; the true intervals are in the records.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .... import _recorder
from ....capture.store.layouts import Packer, enum_value
from ....capture.store.writer import CaptureWriter
from ...budget import Budget
from .affinity import Affinities

MIN_INTERVAL_NS = 100_000_000


class _Watched:
    """What is remembered of one process between readings."""

    def __init__(self, pid: int, now_ns: int) -> None:
        self.pid = pid
        self.rollup_due_ns = now_ns
        self.numa_due_ns = now_ns
        self.threads_due_ns = now_ns
        self.last_threads_ns = 0
        self.last_rollup_ns = 0
        self.last_numa_ns = 0


class Readings:
    """Owns the adaptive readings of one recording."""

    def __init__(self, session: _recorder.Session, writer: CaptureWriter, *, nodes: int) -> None:
        now = time.monotonic_ns()
        self.session = session
        self.writer = writer
        self.nodes = nodes
        # A few readings at the start are worth more than the budget: short programs end soon.
        # Each reading has its own budget: a slow one must not starve the others.
        self.rollup_budget = Budget(share=0.005, grace_ns=5_000_000, now_ns=now)
        self.threads_budget = Budget(share=0.01, grace_ns=20_000_000, now_ns=now)
        self.numa_budget = Budget(share=0.01, grace_ns=5_000_000, now_ns=now)
        self.watched: dict[int, _Watched] = {}
        self.rollups = 0
        self._affinities = Affinities(writer) if nodes > 1 else None
        self._timeline = Packer("timeline")
        self._cgroup_files: list[tuple[int, Path]] = []
        self._cgroup_due_ns = 0
        self._last_cgroup_ns = 0

    def watch_cgroup(self, current: Path, limits: list[Path]) -> None:
        self._cgroup_files.append((enum_value("metric", "cgroup_bytes"), current))
        self._cgroup_files.extend((enum_value("metric", "cgroup_limit_bytes"), limit) for limit in limits)

    def tick(self) -> None:
        now = time.monotonic_ns()
        live = self.session.processes()
        if len(live) != len(self.watched):
            numbers = {entry[0] for entry in live}
            self.watched = {number: watched for number, watched in self.watched.items() if number in numbers}
        for process, pid, *_ in live:
            watched = self.watched.setdefault(process, _Watched(pid, now))
            self._rollup(process, watched)
            self._threads(process, watched)
            if self.nodes > 1:
                self._numa_maps(process, watched)
            if self._affinities is not None:
                self._affinities.look(process, pid)
        self._cgroup(now)

    def _record(
        self, metric: int, value: int, now: int, last: int, cost: int, node: int = -1, thread: int = 0
    ) -> bytes:
        interval_us = min((now - last) // 1000, 0xFFFFFFFF) if last else 0
        return self._timeline.pack(
            time_ns=now, value=value, metric=metric, node=node, interval_us=interval_us,
            cost_us=min(cost // 1000, 0xFFFFFFFF), thread=thread,
        )  # fmt: skip

    def _rollup(self, process: int, watched: _Watched) -> None:
        begin = time.monotonic_ns()
        if begin < watched.rollup_due_ns or not self.rollup_budget.allows(now_ns=begin):
            return
        cpu_begin = time.thread_time_ns()
        names = {
            "Pss": "pss_bytes",
            "AnonHugePages": "anon_huge_bytes",
            "Anonymous": "anon_bytes",
            "Swap": "swap_bytes",
        }
        values: dict[str, int] = {}
        try:
            with open(f"/proc/{watched.pid}/smaps_rollup") as file:
                for line in file:
                    key, _, rest = line.partition(":")
                    if key in names:
                        values[names[key]] = int(rest.split()[0]) << 10
        except (OSError, ValueError, IndexError):
            watched.rollup_due_ns = begin + MIN_INTERVAL_NS
            return
        # The kernel's own high-water mark knows peaks between two readings; hugetlb pages are not in RSS.
        names = {"VmHWM": "peak_rss_bytes", "HugetlbPages": "hugetlb_bytes"}
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{watched.pid}/status") as file:
            for line in file:
                key, _, rest = line.partition(":")
                if key in names and (int(rest.split()[0]) or key == "VmHWM"):
                    values[names[key]] = int(rest.split()[0]) << 10
        now = time.monotonic_ns()
        cost = time.thread_time_ns() - cpu_begin  # of our own: waiting for a CPU costs nobody
        self.rollup_budget.spend(cost)
        watched.rollup_due_ns = now + max(MIN_INTERVAL_NS, 200 * cost)
        self.rollups += 1
        self.writer.records(
            "timeline",
            [
                self._record(enum_value("metric", name), value, now, watched.last_rollup_ns, cost)
                for name, value in values.items()
            ],
            process=process,
            begin_ns=now,
            end_ns=now,
        )
        watched.last_rollup_ns = now

    def _threads(self, process: int, watched: _Watched) -> None:
        """CPU time of each thread of a process that has several: which of them really run."""
        begin = time.monotonic_ns()
        if begin < watched.threads_due_ns or not self.threads_budget.allows(now_ns=begin):
            return
        cpu_begin = time.thread_time_ns()
        times: dict[int, int] = {}
        with contextlib.suppress(OSError, ValueError, IndexError):
            for name in os.listdir(f"/proc/{watched.pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{watched.pid}/task/{name}/schedstat") as file:
                    times[int(name)] = int(file.read().split()[0])
        now = time.monotonic_ns()
        cost = time.thread_time_ns() - cpu_begin  # of our own: waiting for a CPU costs nobody
        self.threads_budget.spend(cost)
        # As often as one in a hundred of a CPU allows: threads may be gone in a moment.
        watched.threads_due_ns = now + 100 * cost
        if len(times) < 2:
            return
        metric = enum_value("metric", "thread_cpu_ns")
        self.writer.records(
            "timeline",
            [self._record(metric, v, now, watched.last_threads_ns, cost, thread=tid) for tid, v in times.items()],
            process=process,
            begin_ns=now,
            end_ns=now,
        )
        watched.last_threads_ns = now

    def _numa_maps(self, process: int, watched: _Watched) -> None:
        begin = time.monotonic_ns()
        if begin < watched.numa_due_ns or not self.numa_budget.allows(now_ns=begin):
            return
        cpu_begin = time.thread_time_ns()
        per_node: dict[int, int] = {}
        try:
            with open(f"/proc/{watched.pid}/numa_maps") as file:
                for line in file:
                    words = line.split()
                    page_bytes = next((int(w[18:]) << 10 for w in words if w.startswith("kernelpagesize_kB=")), 4096)
                    for word in words[2:]:
                        name, _, count = word.partition("=")
                        if name[:1] == "N" and name[1:].isdigit():
                            per_node[int(name[1:])] = per_node.get(int(name[1:]), 0) + int(count) * page_bytes
        except (OSError, ValueError):
            watched.numa_due_ns = begin + MIN_INTERVAL_NS
            return
        now = time.monotonic_ns()
        cost = time.thread_time_ns() - cpu_begin  # of our own: waiting for a CPU costs nobody
        self.numa_budget.spend(cost)
        watched.numa_due_ns = now + max(MIN_INTERVAL_NS, 100 * cost)
        metric = enum_value("metric", "node_bytes")
        self.writer.records(
            "timeline",
            [self._record(metric, v, now, watched.last_numa_ns, cost, node) for node, v in sorted(per_node.items())],
            process=process,
            begin_ns=now,
            end_ns=now,
        )
        watched.last_numa_ns = now

    def _cgroup(self, now: int) -> None:
        if now < self._cgroup_due_ns or not self._cgroup_files:
            return
        lowest: dict[int, int] = {}
        for metric, path in self._cgroup_files:
            try:
                text = path.read_text().strip()
            except OSError:
                continue
            if text != "max":
                lowest[metric] = min(lowest.get(metric, 1 << 62), int(text))
        self._cgroup_due_ns = now + MIN_INTERVAL_NS
        records = [
            self._record(metric, value, now, self._last_cgroup_ns, 0)
            for metric, value in lowest.items()
            if value < 1 << 60
        ]
        self.writer.records("timeline", records, begin_ns=now, end_ns=now)
        self._last_cgroup_ns = now
