"""Looks at page tables, for pages that the kernel places without a fault's event.

A look walks the page table under the target's mmap lock, so looks have a budget of a share of one core, and are made only where the
kernel has counted faults that raised no event.
"""

from __future__ import annotations

import time

from .... import _recorder
from ....capture.store.layouts import Packer
from ....capture.store.writer import CaptureWriter
from ...budget import Budget

MIN_INTERVAL_NS = 100_000_000


class _Watched:
    """What is remembered of one process between looks."""

    def __init__(self, pid: int, now_ns: int) -> None:
        self.pid = pid
        self.execs = 0
        self.mappings_changed = 0
        self.unexplained = 0
        self.look_due_ns = now_ns
        self.pages: _recorder.PageTable | None = None


class PageTables:
    """Owns the looks of one recording."""

    def __init__(self, session: _recorder.Session, writer: CaptureWriter, *, knows_unexplained: bool) -> None:
        """`knows_unexplained`: the session reads the kernel's counts of faults, which say where a look can find anything."""
        now = time.monotonic_ns()
        self.session = session
        self.writer = writer
        self.knows_unexplained = knows_unexplained
        # A few looks at the start are worth more than the budget: short programs end soon.
        self.look_budget = Budget(share=0.01, grace_ns=10_000_000, now_ns=now)
        self.watched: dict[int, _Watched] = {}
        self.looks = 0
        self.looks_failed = 0

    def tick(self) -> None:
        now = time.monotonic_ns()
        live = self.session.processes()
        if len(live) != len(self.watched):
            numbers = {entry[0] for entry in live}
            self.watched = {number: watched for number, watched in self.watched.items() if number in numbers}
        for process, pid, mappings_changed, execs, unexplained in live:
            watched = self.watched.get(process)
            if watched is None:
                watched = self.watched[process] = _Watched(pid, now)
            if execs != watched.execs:
                watched.execs = execs
                watched.pages = None
            # The kernel counts faults that raise no event. Only where that count moved, a look can find anything.
            worth_a_look = not self.knows_unexplained or unexplained > watched.unexplained or watched.pages is None
            if mappings_changed != watched.mappings_changed:  # perhaps MAP_POPULATE: look soon
                watched.mappings_changed = mappings_changed
                watched.look_due_ns = min(watched.look_due_ns, now)
            if worth_a_look and self._look(process, watched):
                watched.unexplained = unexplained

    def _look(self, process: int, watched: _Watched) -> bool:
        """Looks at the page table if it is due and affordable; returns whether it did."""
        begin = time.monotonic_ns()
        if begin < watched.look_due_ns or not self.look_budget.allows(now_ns=begin):
            return False
        cpu_begin = time.thread_time_ns()
        if watched.pages is None:
            watched.pages = _recorder.PageTable(watched.pid)
        try:
            records = watched.pages.look()
        except OSError:
            self.looks_failed += 1
            watched.look_due_ns = begin + MIN_INTERVAL_NS
            return False
        now = time.monotonic_ns()
        cost = time.thread_time_ns() - cpu_begin
        self.look_budget.spend(cost)
        watched.look_due_ns = now + max(MIN_INTERVAL_NS, 50 * cost)
        self.looks += 1
        if records:
            layout_bytes = Packer("residency").layout.record_bytes
            self.writer.append(
                Packer("residency").layout.kind,
                records,
                record_count=len(records) // layout_bytes,
                process=process,
                begin_ns=begin,
                end_ns=now,
            )
        return True
