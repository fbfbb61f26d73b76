"""How much of a core a reading may take."""

from __future__ import annotations


class Budget:
    """Lets work run while it stays under a share of one core; the first runs are free.

    >>> budget = Budget(share=0.5, grace_ns=0, now_ns=0)
    >>> budget.spend(100)
    >>> budget.allows(now_ns=150)
    False
    >>> budget.allows(now_ns=250)
    True
    """

    def __init__(self, *, share: float, grace_ns: int, now_ns: int) -> None:
        self.share = share
        self.grace_ns = grace_ns
        self.begin_ns = now_ns
        self.spent_ns = 0

    def allows(self, *, now_ns: int) -> bool:
        return self.spent_ns <= self.grace_ns + self.share * (now_ns - self.begin_ns)

    def spend(self, spent_ns: int) -> None:
        self.spent_ns += spent_ns
