"""Shared memory that has its pages before the recording begins: POSIX segments in /dev/shm and System V segments.

A page of these that the program touches was placed by somebody else; without this list it would count as the
program's own first touch.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST_SEGMENTS = 1000
MOST_RANGES = 1000
"""A segment with more pieces is listed up to here; the rest counts as placed by the program."""


def placed_ranges(fd: int, length: int) -> list[list[int]]:
    """[offset, bytes] of what a file of tmpfs holds."""
    ranges: list[list[int]] = []
    at = 0
    with contextlib.suppress(OSError):  # ENXIO: no data after this
        while at < length and len(ranges) < MOST_RANGES:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            ranges.append([begin, at - begin])
    return ranges


def shared_memory_before(
    directory: Path = Path("/dev/shm"), system_v: Path = Path("/proc/sysvipc/shm")
) -> list[dict[str, object]]:
    """Segments with resident pages: device, inode and the ranges that are placed."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name)[:MOST_SEGMENTS]:
            with contextlib.suppress(OSError):
                if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_blocks == 0:
                    continue
                fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    facts = os.fstat(fd)
                    ranges = placed_ranges(fd, facts.st_size)
                finally:
                    os.close(fd)
                device = [os.major(facts.st_dev), os.minor(facts.st_dev)]
                found.append({"device": device, "inode": facts.st_ino, "placed": ranges})
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = system_v.read_text().splitlines()
        names = lines[0].split()
        for line in lines[1 : MOST_SEGMENTS + 1]:
            row = dict(zip(names, map(int, line.split()), strict=False))
            # How much is placed is known, not where: only a segment that is resident whole can be listed. The kernel
            # maps these from a tmpfs of its own, device 0:1, with the segment's id as inode.
            if 0 < row["size"] <= row["rss"]:
                found.append({"device": [0, 1], "inode": row["shmid"], "placed": [[0, row["size"]]]})
    return found
