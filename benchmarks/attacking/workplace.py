"""Where attacks work, and where the inputs of failures are kept."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEPT = Path(os.environ.get("MEMLENS_ATTACK_KEPT", "build/attack"))
"""Inputs that made a command fail, each with the command to type."""


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory in memory, if there is one: thousands of small copies."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="memlens-attack-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def kept(area: str, name: str, source: Path, command: tuple[str, ...]) -> str:
    """Keeps the input of a failure; what to type to see it again."""
    target = KEPT / f"{area}-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # A pipe would block a copy: it is made anew.
        target.mkdir()
        for path in sorted(source.iterdir()):
            copy = target / path.name
            if path.is_symlink():
                copy.symlink_to(os.readlink(path))
            elif path.is_fifo():
                os.mkfifo(copy)
            elif path.is_dir():
                shutil.copytree(path, copy, symlinks=True)
            elif path.stat().st_size < 1 << 26:
                try:
                    shutil.copy(path, copy)
                except PermissionError:
                    copy.touch(mode=0)
    where = str(target.resolve())
    return shlex.join(part.replace(str(source), where) for part in command)
