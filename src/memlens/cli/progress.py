"""A progress sign on standard error for anything that may take over a second; nothing when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MARKS = "|/-\\"
FIRST_SIGN_S = 0.5
"""What is faster shows nothing."""
FIRST_ESTIMATE_S = 2.0
"""Earlier a rate says little about the rest."""


def left_text(elapsed_s: float, done: float, total: float) -> str:
    """Part and time left, once it can be told.

    >>> left_text(10, 25, 100), left_text(0.1, 1, 100), left_text(300, 1, 10), left_text(10, 0, 0)
    ('25 %, 30 s left', '1 %', '10 %, 45 min left', '')
    """
    if total <= 0:
        return ""
    part = min(1.0, done / total)
    text = f"{100 * part:.0f} %"
    if elapsed_s < FIRST_ESTIMATE_S or done <= 0:
        return text
    left_s = elapsed_s * (1 - part) / part
    return f"{text}, {left_s:.0f} s left" if left_s < 120 else f"{text}, {left_s / 60:.0f} min left"


class Progress:
    """Shows `what` with elapsed time while the block runs, and how much is left as far as `update` has told.

    Nothing is written when standard error is no terminal. `update` may be called from any thread, as often as one likes.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._state: tuple[str, float, float, float] = ("", 0.0, 0.0, 0.0)
        self._thread: Any = None
        self._done: Any = None
        self._begin = 0.0

    def update(self, done: float, total: float, part: str = "") -> None:
        import time

        now = time.monotonic()
        # Each part has a clock of its own: parts differ in speed.
        begin = self._state[3] if part == self._state[0] and self._state[3] else now if part else self._begin
        self._state = (part, float(done), float(total), begin)

    def __enter__(self) -> Progress:
        import time

        self._begin = time.monotonic()
        if not sys.stderr.isatty():
            return self
        import threading

        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()

    def text(self) -> str:
        import time

        part, done, total, begin = self._state
        now = time.monotonic()
        left = left_text(now - (begin or self._begin), done, total)
        named = f"{part}: {left}" if part and left else part or left
        return f"{self._what} ({', '.join(filter(None, (f'{now - self._begin:.1f} s', named)))})"

    def _show(self) -> None:
        if self._done.wait(FIRST_SIGN_S):
            return
        from ..plain_text import plain, trusted

        terminal = trusted(sys.stderr)
        turn = 0
        while not self._done.wait(0.1):
            terminal.write(f"\r\x1b[K{MARKS[turn % len(MARKS)]} {plain(self.text())} ")
            terminal.flush()
            turn += 1
        terminal.write("\r\x1b[K")
        terminal.flush()


@contextmanager
def spinning(what: str) -> Iterator[None]:
    """Shows `what` with the elapsed time while the block runs, once it has taken half a second."""
    with Progress(what):
        yield
