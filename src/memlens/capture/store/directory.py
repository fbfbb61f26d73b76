"""The directory of a capture that is being written: private, locked, and removed file by file.

A capture may be replaced (`--force`), and what is replaced is deleted. So a directory is opened once, without
following a link; what happens in it afterwards goes by its descriptor, and only files that a capture has, by name
and kind, are ever removed. The lock (flock on the directory) is held until the writer's process, and the one that
finishes the capture, have ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import weakref
from pathlib import Path
from typing import IO

from ...errors import OutputError, os_reason
from .side_tables import OTHER_NAME, OTHER_PREFIX, SIDE_TABLES

META_FILE = "meta.json"
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Arguments and paths may hold secrets: a capture is its owner's, whatever the umask."""
MOST_META_BYTES = 64 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
"""File systems without locks on directories: the recording goes on without one."""


def is_capture_file(name: str) -> bool:
    """Whether a file of this name can be part of a capture.

    >>> [is_capture_file(name) for name in ("meta.json", "records-recorder.mlc", "sites.parquet", "derived-0f.cache", "notes.txt")]
    [True, True, True, True, False]
    """
    tables = "|".join(SIDE_TABLES)
    pattern = rf"derived-[0-9a-f]+\.(cache|partial)|meta\.(json|partial)|records-.+\.mlc|rings-.+\.mlr|counts-.+\.mla|({tables}|{OTHER_PREFIX}{OTHER_NAME.pattern})\.(parquet|partial)"
    return re.fullmatch(pattern, name) is not None


def open_regular(name: str | Path, *, dir_fd: int | None = None) -> int:
    """A descriptor for reading a regular file; OSError for anything else, and never a wait or a followed link."""
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(name))
    return descriptor


def open_existing(path: Path) -> int:
    """Opens and locks a directory that is certainly a capture and is not being written; raises OutputError."""
    if path.is_symlink():
        raise OutputError(
            f"{path} is a symbolic link; memlens replaces captures, not what links point to",
            hint=f"give the directory itself, or another name, with -o: it leads to {os.path.realpath(path)}",
        )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise OutputError(
            f"{path} exists and is not a capture", hint="memlens replaces captures only; give another name"
        ) from error
    except OSError as error:
        raise OutputError(f"cannot replace {path}: {os_reason(error)}", hint="give another name with -o") from error
    try:
        _lock(descriptor, path)
        _check_is_capture(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"{path} is being written by another memlens",
            hint="wait until it has ended, or give another name with -o",
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OutputError(f"cannot lock {path}: {os_reason(error)}", hint="give another name with -o") from error


def _check_is_capture(descriptor: int, path: Path) -> None:
    meta = _read_meta(descriptor)
    if meta is None:
        raise OutputError(
            f"{path} exists and is not a capture", hint="memlens replaces captures only; give another name"
        )
    for name in sorted(os.listdir(descriptor)):
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if not is_capture_file(name) or not stat.S_ISREG(status.st_mode):
            raise OutputError(
                f"{path} was not replaced: it holds {name}, which is not part of a capture",
                hint="move it elsewhere, or give another name with -o",
            )
    pid = _writing_process(descriptor)
    if pid is not None:
        raise OutputError(
            f"{path} is being written by process {pid}",
            hint="wait until it has ended, or give another name with -o",
        )


def _read_meta(descriptor: int) -> dict[str, object] | None:
    """meta.json, if it is one that memlens or its library wrote."""
    try:
        with os.fdopen(open_regular(META_FILE, dir_fd=descriptor), "rb") as file:
            meta = json.loads(file.read(MOST_META_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(meta, dict) or type(meta.get("format_version")) is not int:
        return None
    ours = isinstance(meta.get("memlens_version"), str) or meta.get("state") == "standalone"
    return meta if ours else None


def _writing_process(descriptor: int) -> int | None:
    """A process that writes its records itself, without a recorder: it has its rings in a file of the directory."""
    host = os.uname().nodename
    for name in os.listdir(descriptor):
        found = re.fullmatch(r"rings-(.+)-(\d+)-\d+\.mlr", name)
        if found is None or found[1] != host:
            continue
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{found[2]}/maps").read_text(errors="replace"):
                return int(found[2])
    return None


def remove(descriptor: int, path: Path) -> None:
    """Removes the files of a capture, then its directory; whatever else is in it stays, and so does the directory."""
    for name in os.listdir(descriptor):
        if is_capture_file(name):
            os.unlink(name, dir_fd=descriptor)
    if _is_at(descriptor, path):
        os.rmdir(path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        here, there = os.fstat(descriptor), os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


class Replaced:
    """A capture whose place another takes: kept under another name, locked, until that one is there.

    Raises OutputError for what is not certainly a capture, and for a directory that may not be renamed; nothing is removed then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_existing(path)
        self.aside = path.absolute().parent / f".{path.name}.replaced-{secrets.token_hex(4)}"
        try:
            if path.name in ("", ".."):
                raise OSError(errno.EINVAL, "its name is not its own")
            os.rename(path, self.aside)
            if not _is_at(self._descriptor, self.aside):
                os.rename(self.aside, path)
                raise OSError(errno.EBUSY, "another took its place just now")
        except OSError as error:
            os.close(self._descriptor)
            raise OutputError(f"cannot replace {path}: {os_reason(error)}", hint="give another name with -o") from error

    def discard(self) -> None:
        """Removes it."""
        try:
            remove(self._descriptor, self.aside)
        except OSError as error:
            raise OutputError(
                f"the capture that was to be replaced cannot be removed: {os_reason(error)}",
                hint=f"it is {self.aside} now",
            ) from error
        finally:
            os.close(self._descriptor)

    def put_back(self) -> None:
        """Gives it its name again, if nothing has taken it."""
        with contextlib.suppress(OSError):
            if not os.path.lexists(self.path):
                os.rename(self.aside, self.path)
        os.close(self._descriptor)


class CaptureDirectory:
    """A new directory, locked. `force`: in place of a capture, which `settle` removes and `give_up` puts back."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        self._replaced = Replaced(path) if force and os.path.lexists(path) else None
        try:
            self._make(path)
        except BaseException:
            self._put_back()
            raise

    def settle(self) -> None:
        """The new capture has begun: the old one goes."""
        if self._replaced is not None:
            replaced, self._replaced = self._replaced, None
            replaced.discard()

    def give_up(self) -> None:
        """There will be no new capture: nothing of it stays."""
        self.remove()
        self.close()
        self._put_back()

    def _put_back(self) -> None:
        if self._replaced is not None:
            replaced, self._replaced = self._replaced, None
            replaced.put_back()

    def _make(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError as error:
            raise OutputError(
                f"{path} exists already", hint="give another name with -o, or replace it with --force"
            ) from error
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        os.fchmod(self.descriptor, DIRECTORY_MODE)  # the umask may have taken our own permission
        _lock(self.descriptor, path)

    @property
    def root(self) -> Path:
        """The directory itself, wherever it may have been moved."""
        return Path(f"/proc/self/fd/{self.descriptor}")

    @property
    def is_in_place(self) -> bool:
        """False: it was moved, removed or replaced since."""
        return _is_at(self.descriptor, self.path)

    def close(self) -> None:
        """Gives up the lock; nothing is written any more."""
        self._close()

    def create(self, name: str) -> IO[bytes]:
        """A new or emptied file of the capture."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(name, flags, FILE_MODE, dir_fd=self.descriptor)
        os.fchmod(descriptor, FILE_MODE)
        return os.fdopen(descriptor, "wb")

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove(self) -> None:
        """Takes back what was written."""
        with contextlib.suppress(OSError):
            remove(self.descriptor, self.path)
