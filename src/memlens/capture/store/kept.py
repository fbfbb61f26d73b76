"""What was derived from a capture, kept for the next command: files beside the capture, or in the user's cache directory.

Owns where entries lie, when they may be used, and that nobody else can have written them. An entry is used only if

- it is a regular file of this user that nobody else may read or write, and its MAC (HMAC-SHA256) is right. The key of the MAC is a secret of this user
  (`XDG_STATE_HOME/memlens/secret`), so entries that came with a capture from elsewhere, or were changed, are ignored;
- its name is the hash of what it was made of: memlens's own files, the capture's `meta.json`, and path-independent identity, size and times of every file of the
  capture, the options, and the variables of the environment that matter. Any of them differs: another name;
- the files that it names as read (binaries, debug files, the calibration) are as they were.

Captures that are not complete have no entries. Beside the capture an entry is `derived-HASH.cache`, a file that `--force` knows; a capture that this user does not own,
cannot write to, or has redacted has them in `XDG_CACHE_HOME/memlens`, `MOST_CACHE_BYTES` at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...version import __version__
from .calibration import directory as state_directory

if TYPE_CHECKING:
    from .meta import Meta

MAGIC = b"memlens derived 1\n"
MAC_BYTES = 32
SUFFIX = ".cache"
PREFIX = "derived-"
MOST_ENTRY_BYTES = 256 << 20
MOST_CACHE_BYTES = 512 << 20
"""In the user's cache directory; the entries that were not used for the longest time go first."""
VARIABLES = ("DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "LD_LIBRARY_PATH", "XDG_STATE_HOME", "HOME")
"""Of the environment: what names of code and the machine's peaks depend on."""

Stat = tuple[int, int, int, int, int] | None


def stat_of(path: str | os.PathLike[str]) -> Stat:
    """What changes whenever a file does; None where there is none. The time of the last change of state cannot be set by a program."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _own_code() -> list[tuple[str, Stat]]:
    """memlens itself: a changed installation gives other results."""
    from ... import _core

    package = Path(__file__).resolve().parents[2]
    files = [*sorted(package.rglob("*.py")), Path(_core.__file__)]
    return [(str(file), stat_of(file)) for file in files]


def key_of(path: Path, meta: Meta, options: Mapping[str, object]) -> str | None:
    """The name of what is derived from a capture with these options; None for a capture that may still change."""
    if meta.get("state") != "complete" or meta.get("finishing"):
        return None
    names = [name for name in os.listdir(path) if not name.startswith(PREFIX)]
    said = {
        "version": __version__,
        "code": _own_code(),
        "meta": hashlib.sha256((path / "meta.json").read_bytes()).hexdigest(),
        "files": [(name, stat_of(path / name)) for name in sorted(names)],
        "options": dict(options),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _is_private(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _read(name: str | Path, *, most: int, dir_fd: int | None = None) -> bytes | None:
    """A private regular file of this user; None for anything else."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not _is_private(status) or status.st_size > most:
            return None
        try:
            return file.read(most + 1)
        except OSError:
            return None


def _secret() -> bytes | None:
    """The key of this user's MACs, made when there is none."""
    path = state_directory() / "secret"
    found = _read(path, most=MAC_BYTES)
    if found is not None and len(found) == MAC_BYTES:
        return found
    made = secrets.token_bytes(MAC_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.stat(path.parent).st_uid != os.geteuid():
            return None
        partial = path.with_name(f".secret-{secrets.token_hex(8)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(made)
        if found is None and not os.path.lexists(path):
            # Another memlens may make one at this moment: the first one stays.
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
            os.unlink(partial)
        else:
            os.replace(partial, path)
    except OSError:
        return None
    return _read(path, most=MAC_BYTES)


def cache_directory() -> Path:
    """The user's own place for entries of captures that it cannot or should not write to."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "memlens"


class KeptResults:
    """Entries of one capture and one set of options."""

    def __init__(self, path: Path, meta: Meta, options: Mapping[str, object]) -> None:
        self._path, self._meta, self._options = path, meta.copy(), dict(options)
        self.key = self._key()

    def _key(self) -> str | None:
        try:
            return key_of(self._path, self._meta, self._options)
        except OSError:
            return None

    @property
    def is_possible(self) -> bool:
        return self.key is not None

    def _places(self) -> list[Path]:
        """Directories to look in and to write to, the preferred one first."""
        beside = []
        try:
            status = os.stat(self._path)
            # A redacted capture is for others to see, and derived tables may have what was left out of it.
            is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            if is_own and not self._is_redacted and os.access(self._path, os.W_OK):
                beside = [self._path]
        except OSError:
            pass
        return [*beside, cache_directory()]

    @property
    def _is_redacted(self) -> bool:
        """Captures of versions without the field say it by the name of the host only."""
        return bool(self._meta.get("redacted")) or (self._meta.get("machine") or {}).get("host") == "redacted"

    def load(self) -> bytes | None:
        """The content that was saved, if it can be trusted and still holds."""
        secret = _secret() if self.key is not None else None
        if secret is None or self.key is None:
            return None
        for place in self._places():
            raw = _read(place / f"{PREFIX}{self.key}{SUFFIX}", most=MOST_ENTRY_BYTES)
            content = self._checked(raw, secret) if raw is not None else None
            if content is not None:
                with contextlib.suppress(OSError):
                    if place != self._path:
                        os.utime(place / f"{PREFIX}{self.key}{SUFFIX}")  # used: it stays longer
                return content
        return None

    def _checked(self, raw: bytes, secret: bytes) -> bytes | None:
        start = len(MAGIC) + MAC_BYTES
        if raw[: len(MAGIC)] != MAGIC or len(raw) < start + 8:
            return None
        if not hmac.compare_digest(raw[len(MAGIC) : start], _mac(secret, raw[start:])):
            return None
        head_bytes = int.from_bytes(raw[start : start + 8], "little")
        if start + 8 + head_bytes > len(raw):
            return None
        head = json.loads(raw[start + 8 : start + 8 + head_bytes])
        if head["key"] != self.key:
            return None
        if any(_listed(stat_of(path)) != was for path, was in head["read"]):
            return None
        return raw[start + 8 + head_bytes :]

    def save(self, content: bytes, *, read: Iterable[str]) -> bool:
        """Keeps `content`, which was made with the files `read`. False: it is not kept; that is no error."""
        secret = _secret() if self.key is not None and len(content) <= MOST_ENTRY_BYTES // 2 else None
        # What was changed meanwhile is of no use to anybody.
        if secret is None or self._key() != self.key:
            return False
        listed = [(path, _listed(stat_of(path))) for path in dict.fromkeys(read)]
        head = json.dumps({"key": self.key, "read": listed}).encode()
        body = len(head).to_bytes(8, "little") + head + content
        raw = MAGIC + _mac(secret, body) + body
        return any(self._write(place, raw) for place in self._places())

    def _write(self, place: Path, raw: bytes) -> bool:
        name, partial = f"{PREFIX}{self.key}{SUFFIX}", f"{PREFIX}{secrets.token_hex(8)}.partial"
        try:
            if place != self._path:
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(directory).st_uid != os.geteuid():
                return False
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(partial, flags, 0o600, dir_fd=directory)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(raw)
                _make_room(directory, keep=name, alone=place == self._path)
                os.replace(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=directory)
                raise
        except OSError:
            return False
        finally:
            os.close(directory)
        return True


MOST_BESIDE = 16
"""Entries beside a capture: reports of different options, and tables."""


def _make_room(directory: int, *, keep: str, alone: bool) -> None:
    """Removes the entries that were not used for the longest time: beside a capture by number, elsewhere by bytes."""
    entries = []
    for name in os.listdir(directory):
        if not name.startswith(PREFIX) or not name.endswith(SUFFIX) or name == keep:
            continue
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            entries.append((status.st_mtime_ns, status.st_size, name))
    entries.sort(reverse=True)
    total = 0
    for number, (_, size, name) in enumerate(entries):
        total += size
        if (alone and number + 1 >= MOST_BESIDE) or (not alone and total > MOST_CACHE_BYTES - MOST_ENTRY_BYTES):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)


def _listed(found: Stat) -> list[int] | None:
    """As JSON gives it back."""
    return None if found is None else list(found)


def _mac(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()
