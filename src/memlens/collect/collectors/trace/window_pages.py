"""On which NUMA nodes the pages are that windows of a trace touch.

Asked out of the program's way: the recorder decodes some of the windows that pass through it, and has the kernel asked for the nodes of their
pages (move_pages, about 0.4 ms a thousand pages) with those of faults. Each answer is a record `placement` that tells when it was
asked and which access made us ask. A page is asked about again only when its answer has become old, and all of it may take a
share of one core; what was passed over is counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .... import _core
from ....capture.store.layouts import layouts
from ...budget import Budget

if TYPE_CHECKING:
    from .... import _recorder

STALE_NS = 1_000_000_000
ABOUT_ACCESSES = 1 << 12
"""Looked at in one batch of windows: a tenth of a second of one process."""
MOST_PAGES = 1 << 18
"""Remembered with the time of their last answer."""


class WindowPages:
    """Chooses the pages to ask about."""

    def __init__(self, session: _recorder.Session, *, page_bytes: int) -> None:
        self.session = session
        self.page_bytes = page_bytes
        self.kind = layouts()["window"].kind
        self.budget = Budget(share=0.02, grace_ns=100_000_000, now_ns=time.monotonic_ns())
        self.batches_passed_over = 0
        self.pages_asked = 0
        self._asked: dict[tuple[int, int], int] = {}

    def take(self, process: int, payload: bytes) -> None:
        """Looks at a batch of windows on its way to the capture."""
        now = time.monotonic_ns()
        if not self.budget.allows(now_ns=now):
            self.batches_passed_over += 1
            return
        if len(self._asked) > MOST_PAGES:
            self._asked.clear()
        begin = time.thread_time_ns()
        pages, evidence_ns = _core.window_pages(payload, page_bytes=self.page_bytes, about_accesses=ABOUT_ACCESSES)
        fresh = [page for page in pages if now - self._asked.get((process, page), -STALE_NS) >= STALE_NS]
        self._asked.update(((process, page), now) for page in fresh)
        self.pages_asked += self.session.ask_nodes(process, fresh, evidence_ns)
        self.budget.spend(time.thread_time_ns() - begin)
