"""A progress sign on standard error for anything that may take over a second; nothing when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spinning(what: str) -> Iterator[None]:
    """Shows `what` with the elapsed time while the block runs, once it has taken half a second."""
    if not sys.stderr.isatty():
        yield
        return
    import threading
    import time

    done = threading.Event()
    begin = time.monotonic()

    def show() -> None:
        if done.wait(0.5):
            return
        marks = "|/-\\"
        turn = 0
        while not done.wait(0.1):
            sys.stderr.write(f"\r{marks[turn % 4]} {what} ({time.monotonic() - begin:.1f} s) ")
            sys.stderr.flush()
            turn += 1
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
