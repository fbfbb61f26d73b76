"""Files of traces, block by block: plain, compressed, or standard input; never whole in memory."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import TraceError, os_reason

BLOCK_BYTES = 1 << 20
PEEK_BYTES = 1 << 16
"""What a format is recognised by: the beginning of the content, decompressed."""
STDIN = "-"
PIPE_WAIT_S = 10

_MAGICS = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"PK\x05\x06", "zip"),
)
REMEDIES = {"snappy": "decompress it first, for instance: snzip -d -k FILE"}


def compression_of(beginning: bytes) -> str | None:
    """The compression that a file begins with, None for plain content.

    >>> compression_of(b"\\x1f\\x8b\\x08"), compression_of(b" L 10,4")
    ('gzip', None)
    """
    return next((name for magic, name in _MAGICS if beginning.startswith(magic)), None)


class Source:
    """One file: its content decompressed, with a beginning that may be looked at first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read_bytes = 0
        """Content given out so far, decompressed."""
        self.compression: str | None = None
        self._raw = self._open(name)
        beginning = self._guarded(lambda: _fill(self._raw, 16))
        self.compression = compression_of(beginning)
        self._file = self._decompressed(_Rejoined(beginning, self._raw))
        self._peeked: bytes = self._guarded(lambda: _fill(self._file, PEEK_BYTES))

    @property
    def shown(self) -> str:
        """The name as a message says it."""
        return "standard input" if self.name == STDIN else self.name

    @property
    def beginning(self) -> bytes:
        return self._peeked

    def _open(self, name: str) -> IO[bytes]:
        if name == STDIN:
            return sys.stdin.buffer
        try:
            if os.path.isdir(name):
                raise TraceError(f"{name} is a directory", hint="give the files of the trace in it")
            return _wait_for_writer(name) if stat.S_ISFIFO(os.stat(name).st_mode) else open(name, "rb")
        except OSError as error:
            raise TraceError(f"cannot read {name}: {os_reason(error)}", hint="give the file of a trace") from error

    def _decompressed(self, raw: Any) -> Any:
        if self.compression is None:
            return raw
        if self.compression == "gzip":
            import gzip

            return gzip.GzipFile(fileobj=raw)
        if self.compression == "xz":
            import lzma

            return lzma.LZMAFile(raw)
        if self.compression == "bzip2":
            import bz2

            return bz2.BZ2File(raw)
        if self.compression in ("zstd", "lz4"):
            import pyarrow as pa

            return pa.CompressedInputStream(pa.PythonFile(io.BufferedReader(raw), "r"), self.compression)
        if self.compression == "zip" and self.name != STDIN:
            return _ZipContent(self)
        remedy = REMEDIES.get(self.compression, "decompress it first, or give the file by its name")
        raise TraceError(f"{self.shown} is compressed with {self.compression}, which is not read here", hint=remedy)

    def _guarded(self, read: Any) -> Any:
        """Reading; whatever a damaged file makes a decompressor say becomes one sentence."""
        import lzma
        import zipfile
        import zlib

        try:
            return read()
        except EOFError as error:
            raise TraceError(
                f"{self.shown} is cut short: its {self.compression} stream has no end after {self.read_bytes:,} bytes of content",
                hint="copy or record it again",
            ) from error
        except (lzma.LZMAError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
            raise TraceError(
                f"{self.shown} is damaged: {error} ({self.compression}, after {self.read_bytes:,} bytes of content)",
                hint="copy or record it again",
            ) from error
        except (RuntimeError, ValueError) as error:  # of zipfile: encrypted members, names that are no text
            raise TraceError(
                f"{self.shown} is encrypted or damaged: {error} ({self.compression})",
                hint="decompress it first, or copy it again",
            ) from error
        except OSError as error:
            raise TraceError(
                f"cannot read {self.shown}: {os_reason(error)} (after {self.read_bytes:,} bytes of content)",
                hint="copy or record it again" if self.compression else None,
            ) from error

    def blocks(self) -> Iterator[bytes]:
        """The content, about a megabyte at a time."""
        block, self._peeked = self._peeked, b""
        while block:
            self.read_bytes += len(block)
            yield block
            block = self._guarded(lambda: self._file.read(BLOCK_BYTES))

    def close(self) -> None:
        if self.name != STDIN:
            self._raw.close()


class _Rejoined(io.RawIOBase):
    """A file whose first bytes were read already."""

    def __init__(self, beginning: bytes, file: IO[bytes]) -> None:
        self._beginning = beginning
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = len(buffer)
        if self._beginning:
            part, self._beginning = self._beginning[:room], self._beginning[room:]
        else:
            part = self._file.read(room)
        buffer[: len(part)] = part
        return len(part)


class _ZipContent:
    """All members of an archive, one after the other, as one content."""

    def __init__(self, source: Source) -> None:
        import zipfile

        self._archive = source._guarded(lambda: zipfile.ZipFile(source.name))
        self._members = iter(self._archive.infolist())
        self._open: IO[bytes] | None = None

    def read(self, size: int) -> bytes:
        while True:
            if self._open is None:
                member = next(self._members, None)
                if member is None:
                    return b""
                self._open = self._archive.open(member)
            part = self._open.read(size)
            if part:
                return part
            self._open = None


def _wait_for_writer(name: str) -> IO[bytes]:
    """A pipe, once somebody has opened it for writing; opening it as it is would wait for ever when nobody does."""
    import select

    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(PIPE_WAIT_S * 1000):
        os.close(descriptor)
        raise TraceError(f"{name} is a pipe without a writer for {PIPE_WAIT_S} s", hint="start its writer first")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _fill(file: Any, size: int) -> bytes:
    """Up to so many bytes: a pipe gives fewer at once."""
    parts: list[bytes] = []
    while size > 0:
        part = file.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def files_below(directory: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Files of a directory that a pattern names, in the order of their names."""
    return sorted({path for pattern in patterns for path in directory.glob(pattern) if path.is_file()})
