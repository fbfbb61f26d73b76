"""Paths of our libraries as the loader and qemu can take them: both split lists at blanks and colons.

An installation whose path has such a character gets a link elsewhere. The link stays: a program may outlive the recorder, and what it
starts then would complain about a library that is gone. So there is one for each user and installation, not one for each recording.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

SPLITTING = " :,$\t\n"
"""Characters that the loader (blank, colon, dollar) or qemu's -plugin (comma) give a meaning."""


def plain_path(path: Path) -> str:
    """The path, or that of a link to it, without characters at which it would be split.

    Raises
    ------
    OSError
        There is no place for a link.
    """
    if not _is_split(path):
        return str(path)
    name = f"memlens-{os.geteuid()}-{hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:12]}"
    for folder in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if _is_split(Path(folder)):
            continue
        with contextlib.suppress(OSError):
            return _link(Path(folder) / name, path)
    # Somebody else has taken the name everywhere, or nothing can be written.
    return _link(Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp")), path)


def _is_split(path: Path) -> bool:
    return any(character in str(path) for character in SPLITTING)


def _link(folder: Path, path: Path) -> str:
    """A link to `path` in `folder`, which is ours and which nobody else can change."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{folder} belongs to another user")
        os.fchmod(descriptor, 0o755)  # programs of other users in the tree load it too, whatever the umask
        with contextlib.suppress(FileExistsError):
            os.symlink(path, path.name, dir_fd=descriptor)
        if os.readlink(path.name, dir_fd=descriptor) != str(path):
            raise FileExistsError(f"{folder / path.name} leads elsewhere")
    finally:
        os.close(descriptor)
    return str(folder / path.name)
