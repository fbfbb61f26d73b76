"""Temporary directories that a killed memlens does not leave for ever: the next one removes them.

Each is locked (flock) while its process lives. Whoever makes one looks for others of the same purpose whose lock is free. Names are long and
modes strict, so that nothing that somebody else made can be mistaken for one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

AGE_S = 10.0
"""A younger one may belong to a process that has not locked it yet."""


class SweptDirectory:
    """A temporary directory for a purpose, one word; a context."""

    def __init__(self, purpose: str, *, parent: Path | None = None) -> None:
        folder = Path(tempfile.gettempdir()) if parent is None else parent
        prefix = f"memlens-scratch-{purpose}-"
        _sweep(folder, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there either
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes it; once is enough."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(folder: Path, prefix: str) -> None:
    """Removes directories of ended processes of this user."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if re.fullmatch(re.escape(prefix) + "[a-z0-9_]{8}", entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        is_ours = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
        if not is_ours or time.time() - status.st_ctime < AGE_S:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its process lives, or nobody can tell
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
