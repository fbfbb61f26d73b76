"""On which NUMA nodes the pages are that windows of a trace touch.

Asked out of the program's way: the recorder decodes some of the windows that pass through it, and has the kernel asked for the nodes of their
pages (move_pages, about 0.4 ms a thousand pages) with those of faults. Each answer is a record `placement` that tells when it was
asked and which access made us ask. A page is asked about again only when its answer has become old, and all of it may take a
share of one core; what was passed over is counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .. import _core
from ..capture.layouts import layouts
from .slow_sampler import Budget

if TYPE_CHECKING:
    from .. import _sampling

STALE_NS = 1_000_000_000
MOST_PAGES = 1 << 18
"""Remembered with the time of their last answer."""


class WindowPages:
    """Chooses the pages to ask about."""

    def __init__(self, session: _sampling.Session, *, page_bytes: int) -> None:
        self.session = session
        self.page_bytes = page_bytes
        self.kind = layouts()["window"].kind
        self.budget = Budget(share=0.01, grace_ns=20_000_000, now_ns=time.monotonic_ns())
        self.batches_passed_over = 0
        self.pages_asked = 0
        self._asked: dict[tuple[int, int], int] = {}
        import numpy  # noqa: F401  (before the program starts: the first windows would wait for it)

    def take(self, kind: int, process: int, payload: bytes) -> None:
        """Looks at a batch of records on its way to the capture."""
        if kind != self.kind:
            return
        now = time.monotonic_ns()
        if not self.budget.allows(now_ns=now):
            self.batches_passed_over += 1
            return
        begin = time.thread_time_ns()
        for evidence_ns, pages in self._pages(process, payload, now):
            self.pages_asked += self.session.ask_nodes(process, pages, evidence_ns)
        self.budget.spend(time.thread_time_ns() - begin)

    def _pages(self, process: int, payload: bytes, now: int) -> list[tuple[int, Any]]:
        """Time of an access, and pages that were not asked about of late."""
        import numpy as np

        if len(self._asked) > MOST_PAGES:
            self._asked.clear()
        found = []
        reader = _core.AccessReader(payload)
        while (part := reader.next()) is not None:
            pages = np.unique(part["address"] & np.uint64(2**64 - self.page_bytes))
            fresh = [page for page in pages.tolist() if now - self._asked.get((process, page), -STALE_NS) >= STALE_NS]
            self._asked.update(((process, page), now) for page in fresh)
            if fresh:
                found.append((int(part["time_ns"][-1]), np.array(fresh, dtype=np.uint64)))
        return found
