"""Writes a capture directory while a program runs.

Order matters for a reader after a crash: the directory and ``meta.json`` with
state "recording" exist before the first record; side tables and state "complete"
come last. Each chunk goes to the kernel whole, so a killed recorder leaves
everything up to its last flush, but for what `append_later` holds back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Sized
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import OutputError, os_reason
from ..version import __version__
from .layouts import Packer, layouts, records_with_tails

RECORD_FILE = "records-recorder.mlc"
META_FILE = "meta.json"


SHARED_MEMORY = (b"/memfd:", b"/SYSV", b"/anon_hugepage", b"/dev/zero", b"/dev/shm/")
"""What the kernel calls memory that is no file; a reader knows it by these beginnings."""


def redacted(path: bytes) -> bytes:
    """The last component of a path; what is no path stays.

    >>> redacted(b"/home/me/solver"), redacted(b"//anon"), redacted(b"/dev/shm/me/buffer")
    (b'solver', b'//anon', b'/dev/shm/buffer')
    """
    if not path.startswith(b"/") or path.startswith(b"//"):
        return path
    if path.startswith(SHARED_MEMORY):
        return b"/dev/shm/" + os.path.basename(path) if path.startswith(b"/dev/shm/") else path
    return os.path.basename(path)


def write_json_atomically(path: Path, content: dict[str, Any]) -> None:
    """A reader sees the old file or the new one, never half of one."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


class CaptureWriter:
    """One capture being written.

    Parameters
    ----------
    path
        Directory to create.
    meta
        What is known at the start; the rest is given to `finish`.
    force
        Replace an existing capture. Never replaces a directory that is not one.
    redact
        Keep only the last component of every path that is written.
    writer
        Who writes (enum ml_writer): 1 recorder, 3 importer.
    """

    def __init__(
        self, path: Path, meta: dict[str, Any], *, force: bool = False, redact: bool = False, writer: int = 1
    ) -> None:
        self.path = path
        self.side_failure: OSError | None = None
        """Why a side table or meta.json could not be written, if so."""
        self.redact = redact
        self._later: deque[tuple[float, int, Sized, dict[str, int]]] = deque()
        self._later_bytes = 0
        self._packer = _core.IdlePacker()
        self._given = self._given_up = 0
        """Of what waits, oldest first, how many the packer has; and how many it has had that are written already."""
        self.strings: dict[int, str] = {}
        """Every string written so far, as it was before redaction."""
        if path.exists() or path.is_symlink():
            if not force:
                raise OutputError(
                    f"{path} exists already", hint="give another name with -o, or replace it with --force"
                )
            if not (path / META_FILE).is_file():
                raise OutputError(
                    f"{path} exists and is not a capture", hint="memlens replaces captures only; give another name"
                )
            shutil.rmtree(path)
        try:
            path.mkdir(parents=True)
            self.meta = {
                "format_version": _core.FORMAT_CURRENT,
                "memlens_version": __version__,
                "state": "recording",
                **meta,
            }
            write_json_atomically(path / META_FILE, self.meta)
            self._chunks = _core.ChunkWriter(str(path / RECORD_FILE), writer=writer)
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {os_reason(error)}",
                hint="give a place with room and permission with -o",
            ) from error

    @property
    def record_bytes(self) -> int:
        return self._chunks.bytes

    @property
    def failure(self) -> OSError | None:
        """Why writing stopped, if it did; everything before is in the file."""
        number = self._chunks.failed_errno
        return OSError(number, os.strerror(number)) if number else None

    @property
    def dropped_records(self) -> int:
        return self._chunks.dropped_records

    def append(
        self,
        kind: int,
        payload: bytes,
        *,
        record_count: int,
        process: int = 0,
        thread: int = 0,
        dropped: int = 0,
        begin_ns: int = 0,
        end_ns: int = 0,
    ) -> None:
        """Appends one chunk; a failure is kept in `failure`, not raised: the program runs on."""
        if kind == layouts()["string"].kind:
            payload = self._take_strings(payload)
        self._chunks.append(
            kind,
            payload,
            record_count=record_count,
            process=process,
            thread=thread,
            dropped=dropped,
            begin_ns=begin_ns,
            end_ns=end_ns,
        )

    def append_later(self, kind: int, payload: Sized, **header: int) -> None:
        """The same when it suits: at `write_packed` or `write_later`. Chunks that wait keep their order, others may come before them."""
        self._later.append((time.monotonic(), kind, payload, header))
        self._later_bytes += len(payload)

    def write_packed(self, *, keep_bytes: int, keep_s: float) -> None:
        """Writes what a CPU had time to compress. What waits for longer than `keep_s`, or is more than `keep_bytes`, is written as it is."""
        while (packed := self._packer.take()) is not None:
            if self._given_up:
                self._given_up -= 1
                continue
            self._given -= 1
            self._write_oldest(compress=False, packed=packed)
        now = time.monotonic()
        while self._later and (self._later_bytes > keep_bytes or now - self._later[0][0] >= keep_s):
            self._give_up_oldest()
            self._write_oldest(compress=False)
        for _, _, payload, _ in itertools.islice(self._later, self._given, None):
            if not self._packer.give(payload):
                break
            self._given += 1

    def write_later(self) -> None:
        """Writes all that waits."""
        while self._later:
            if self._given and (packed := self._packer.take()) is not None:
                if self._given_up:
                    self._given_up -= 1
                    continue
                self._given -= 1
                self._write_oldest(compress=False, packed=packed)
            else:
                self._give_up_oldest()
                self._write_oldest(compress=True)

    def _give_up_oldest(self) -> None:
        """It will be written before the packer has it."""
        if self._given:
            self._given -= 1
            self._given_up += 1

    def _write_oldest(self, *, compress: bool, packed: bytes = b"") -> None:
        _, kind, payload, header = self._later.popleft()
        self._later_bytes -= len(payload)
        self._chunks.append(kind, payload, compress=compress, packed=packed, **header)

    def _take_strings(self, payload: bytes) -> bytes:
        kept = []
        packer = Packer("string")
        for record, tail in records_with_tails(packer.layout, payload):
            text = tail.decode("utf-8", "replace")
            self.strings[record["id"]] = text
            if self.redact:
                tail = redacted(tail)
            kept.append(packer.pack(tail, id=record["id"]))
        return b"".join(kept) if self.redact else payload

    def records(self, name: str, records: list[bytes], **header: int) -> None:
        """Appends records that Python made, as one chunk."""
        if records:
            self.append(layouts()[name].kind, b"".join(records), record_count=len(records), **header)

    def close_records(self) -> None:
        self.write_later()
        self._chunks.close()

    def write_table(self, name: str, table: Any) -> None:
        """Writes a side table; like `append`, a full disk is no reason to fail the program."""
        import pyarrow.parquet as parquet

        try:
            partial = self.path / f"{name}.partial"
            parquet.write_table(table, partial, compression="zstd")
            os.replace(partial, self.path / f"{name}.parquet")
        except OSError as error:
            self.side_failure = self.side_failure or error
            partial.unlink(missing_ok=True)

    def update_meta(self, **meta: Any) -> None:
        """Writes what is known by now, for a reader that comes after a crash."""
        self.meta.update(meta)
        with contextlib.suppress(OSError):
            write_json_atomically(self.path / META_FILE, self.meta)

    def finish(self, **meta: Any) -> None:
        """Closes the record file and marks the capture complete."""
        self.close_records()
        self.meta.update(meta)
        self.meta["state"] = "complete"
        try:
            write_json_atomically(self.path / META_FILE, self.meta)
        except OSError as error:
            self.side_failure = self.side_failure or error
            (self.path / META_FILE).with_suffix(".partial").unlink(missing_ok=True)
