"""The CPUs that threads may run on, read from outside: what others set for them, and calls that the library in the program does not see.

Read only on machines with several NUMA nodes, as often as the timeline, within a share of one core. Each thread has a record `pinning` of its
first reading, and one for each later reading that differs, with the time of the reading before: the change lies between the two.
"""

from __future__ import annotations

import contextlib
import os
import time

from ....capture.store.layouts import Packer, enum_value
from ....capture.store.writer import CaptureWriter
from ...budget import Budget


class Affinities:
    def __init__(self, writer: CaptureWriter) -> None:
        self._writer = writer
        self._budget = Budget(share=0.005, grace_ns=10_000_000, now_ns=time.monotonic_ns())
        self._pack = Packer("pinning")
        self._found = enum_value("pinning_operation", "found")
        self._seen: dict[tuple[int, int], tuple[frozenset[int], int]] = {}
        """(CPUs, time of the last reading) by process and thread."""

    def look(self, process: int, pid: int) -> None:
        begin = time.monotonic_ns()
        if not self._budget.allows(now_ns=begin):
            return
        cpu_begin = time.thread_time_ns()
        records = []
        with contextlib.suppress(OSError, ValueError):
            for name in os.listdir(f"/proc/{pid}/task"):
                thread = int(name)
                try:
                    cpus = frozenset(os.sched_getaffinity(thread))
                except OSError:
                    continue  # it has ended
                now = time.monotonic_ns()
                before = self._seen.get((process, thread))
                self._seen[process, thread] = cpus, now
                if before is None or before[0] != cpus:
                    mask = sum(1 << cpu for cpu in cpus)
                    tail = mask.to_bytes((max(cpus) // 64 + 1) * 8, "little")
                    since = before[1] if before is not None else 0
                    records.append(
                        self._pack.pack(tail, time_ns=now, address=since, thread=thread, operation=self._found)
                    )
        self._budget.spend(time.thread_time_ns() - cpu_begin)
        self._writer.records("pinning", records, process=process, begin_ns=begin, end_ns=time.monotonic_ns())
