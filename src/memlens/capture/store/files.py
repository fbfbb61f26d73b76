"""Files of captures, opened so that they can neither block nor have no end."""

from __future__ import annotations

import os
import stat

from ...errors import CaptureError, os_reason

REMEDY = "a capture holds plain files only; copy it again, or record again"


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file, for reading.

    A pipe is opened without waiting for a writer, and refused like a device or a directory. Links are followed: tools that keep large
    data elsewhere (git-annex, DVC) put links to plain files into a directory.

    Raises
    ------
    OSError
        It cannot be opened.
    CaptureError
        It is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise CaptureError(f"{os.fspath(path)} is {kind_of(mode)}, not a regular file", hint=REMEDY)
    return descriptor


def kind_of(mode: int) -> str:
    """What a file is, in words.

    >>> kind_of(stat.S_IFIFO), kind_of(stat.S_IFDIR)
    ('a pipe', 'a directory')
    """
    names = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in names if test(mode)), "a special file")


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raises CaptureError where a reader that takes a path would block or read for ever, or cannot read at all."""
    try:
        os.close(open_regular(path))
    except OSError as error:
        raise CaptureError(f"cannot read {os.fspath(path)}: {os_reason(error)}", hint=REMEDY) from error


def read_whole(path: str | os.PathLike[str], *, most_bytes: int) -> bytes:
    """The content of a regular file that has at most so many bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise CaptureError(f"{os.fspath(path)} has {size:,} bytes; at most {most_bytes:,} are read", hint=REMEDY)
        return file.read(most_bytes + 1)
