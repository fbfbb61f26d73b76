"""Writes a capture directory while a program runs.

Order matters for a reader after a crash: the directory and ``meta.json`` with
state "recording" exist before the first record; side tables and state "complete"
come last. Each chunk goes to the kernel whole, so a killed recorder leaves
everything up to its last flush, but for what `append_later` holds back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from ... import _core
from ...errors import OutputError, os_reason
from ...version import __version__
from . import manifest
from .directory import META_FILE, CaptureDirectory
from .layouts import Packer, layouts, records_with_tails
from .os_names import text_of
from .side_tables import MOST_OTHER_BYTES, MOST_OTHER_TABLES, OTHER_NAME, other_table_file, other_table_name

if TYPE_CHECKING:
    import pyarrow as pa

    from .meta import FileEntry, Meta

RECORD_FILE = "records-recorder.mlc"
META_PARTIAL = "meta.partial"


SHARED_MEMORY = (b"/memfd:", b"/SYSV", b"/anon_hugepage", b"/dev/zero", b"/dev/shm/")
"""What the kernel calls memory that is no file; a reader knows it by these beginnings."""


SETTING = re.compile(r"(?<!\S)(?!operator=)([A-Za-z_]\w*)=(?!=)\S+")
"""A word like TOKEN=secret."""


def redacted(path: bytes) -> bytes:
    """The last component of a path; what is no path stays. Values of words like NAME=value and this host's name are dropped.

    >>> redacted(b"/home/me/solver"), redacted(b"//anon"), redacted(b"/dev/shm/me/buffer"), redacted(b"TOKEN=hunter2")
    (b'solver', b'//anon', b'/dev/shm/buffer', b'TOKEN=redacted')
    """
    if path.startswith(b"/dev/shm/"):
        path = b"/dev/shm/" + (os.path.basename(path) or b"redacted")
    elif path.startswith(b"/") and not path.startswith((b"//", *SHARED_MEMORY)):
        path = os.path.basename(path)
    return redacted_text(path.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


PATH_IN_TEXT = re.compile(r"(?<![\w/])/(?![/\s]).*/")
"""From where a path begins to its last component; directories may hold blanks, so what lies between two paths goes as well."""


def redacted_text(text: str, *, host: str | None = None) -> str:
    """Without directories, without values of words like NAME=value, and without this host's name.

    >>> redacted_text("worker PASS=x on node7", host="node7.example.org"), redacted_text("a::operator==(b)")
    ('worker PASS=redacted on redacted', 'a::operator==(b)')
    >>> redacted_text("JS:~ /home/me/my app/main.js:3"), redacted_text("operator/(a, b/c)"), redacted_text("node:fs/x")
    ('JS:~ main.js:3', 'operator/(a, b/c)', 'node:fs/x')
    """
    if not text.startswith(("//", *(name.decode() for name in SHARED_MEMORY))):
        text = PATH_IN_TEXT.sub("", text)
    text = SETTING.sub(r"\1=redacted", text)
    name = os.uname().nodename if host is None else host
    for word in dict.fromkeys((name, name.split(".")[0])):
        if word and word in text:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", "redacted", text)
    return text


class Progress(TypedDict):
    """What is in the files of a capture so far."""

    bytes: int
    chunks: int
    failed_errno: int
    dropped_records: int
    side_errno: int | None
    tables: dict[str, FileEntry]


def _redacted_notes(value: object) -> object:
    """Sentences of meta.json: also without paths."""
    if isinstance(value, str):
        return redacted_text(re.sub(r"(?<![\w/])/(?:[^\s/:,;]+/)*([^\s/:,;]+)", r"\1", value))
    if isinstance(value, list):
        return [_redacted_notes(entry) for entry in value]
    return {key: _redacted_notes(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _redacted_texts(table: pa.Table) -> pa.Table:
    """Columns of text as `redacted_text` leaves them; columns of other types than numbers, times and texts are dropped."""
    import pyarrow as pa

    kept = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = [None if text is None else redacted_text(text) for text in column.to_pylist()]
            kept[field.name] = pa.array(texts, pa.string())
        elif pa.types.is_primitive(column.type):
            kept[field.name] = column
    return pa.table(kept)


class CaptureWriter:
    """One capture being written.

    Parameters
    ----------
    path
        Directory to create.
    meta
        What is known at the start; the rest is given to `finish`.
    force
        Replace an existing capture, which stays beside the new one until `directory.settle` or `finish`. Never removes anything
        that is no file of a capture.
    redact
        Keep only the last component of every path that is written.
    writer
        Who writes (enum ml_writer): 1 recorder, 3 importer.
    """

    def __init__(
        self,
        path: Path,
        meta: Meta,
        *,
        more: Mapping[str, object] | None = None,
        force: bool = False,
        redact: bool = False,
        writer: int = 1,
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
        self._adopted: Progress | None = None
        self.tables: dict[str, FileEntry] = {}
        """Side tables written so far, as meta.json lists them."""
        try:
            self.directory = CaptureDirectory(path, force=force)
            try:
                self.meta: Meta = {
                    "format_version": _core.FORMAT_CURRENT,
                    "memlens_version": __version__,
                    "state": "recording",
                    **meta,
                }
                self.fields.update(more or {})
                self.write_meta()
                self._chunks = _core.ChunkWriter(str(self.root / RECORD_FILE), writer=writer)
            except BaseException:
                self.directory.give_up()
                raise
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {os_reason(error)}",
                hint="give a writable location with free space with -o",
            ) from error

    @property
    def fields(self) -> dict[str, Any]:
        """`meta` by names that parts of the recorder chose."""
        return cast("dict[str, Any]", self.meta)

    @property
    def root(self) -> Path:
        """Where the files are, also after the directory was moved or another took its name."""
        return self.directory.root

    @property
    def record_bytes(self) -> int:
        return self.progress()["bytes"]

    @property
    def failure(self) -> OSError | None:
        """Why writing stopped, if it did; everything before is in the file."""
        number = self.progress()["failed_errno"]
        return OSError(number, os.strerror(number)) if number else None

    @property
    def dropped_records(self) -> int:
        return self.progress()["dropped_records"]

    def progress(self) -> Progress:
        """What is in the files so far, as plain values for another process."""
        if self._adopted is not None:
            return self._adopted
        return {
            "bytes": self._chunks.bytes,
            "chunks": self._chunks.chunks,
            "failed_errno": self._chunks.failed_errno,
            "dropped_records": self._chunks.dropped_records,
            "side_errno": self.side_failure.errno if self.side_failure is not None else 0,
            "tables": self.tables,
        }

    def adopt(self, progress: Progress) -> None:
        """Another process goes on writing: what it says of the files holds, and this one writes meta.json only."""
        self._adopted = progress
        self.tables = progress["tables"]
        number = progress["side_errno"]
        self.side_failure = OSError(number, os.strerror(number)) if number else None

    def recover_records(self) -> None:
        """After the end of a process that went on writing: what is whole of the record file is kept."""
        if self._adopted is None:
            return
        with contextlib.suppress(OSError, _core.FormatError):
            reader = _core.ChunkReader(str(self.root / RECORD_FILE))
            reader.refresh()
            size = os.stat(self.root / RECORD_FILE).st_size
            whole = size - reader.damage["torn_tail_bytes"]
            if whole < size:
                os.truncate(self.root / RECORD_FILE, whole)
            self._adopted.update({"bytes": whole, "chunks": reader.count})

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
            text = text_of(tail)
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

    def write_table(self, name: str, table: pa.Table) -> None:
        """Writes a side table; like `append`, a full disk is no reason to fail the program."""
        import pyarrow.parquet as parquet

        partial = f"{name}.partial"
        try:
            with self.directory.create(partial) as file:
                parquet.write_table(table, file, compression="zstd")
            with open(self.root / partial, "rb") as written:
                entry: FileEntry = {
                    "bytes": os.fstat(written.fileno()).st_size,
                    "sha256": manifest.digest(written.fileno()),
                }
            self.directory.rename(partial, f"{name}.parquet")
            self.tables[f"{name}.parquet"] = entry
        except OSError as error:
            self.side_failure = self.side_failure or error
            with contextlib.suppress(OSError):
                self.directory.unlink(partial)

    def write_other_table(self, name: str, table: pa.Table) -> None:
        """Writes a table that only its writer knows: `RecordStore.side_table` reads it. Texts of a redacted capture are redacted.

        Raises
        ------
        ValueError
            The name is none, or the table is too large.
        """
        if not OTHER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a table: small letters, digits and underscores, at most 80")
        known = {file for file in self.tables if other_table_name(file) is not None}
        if len(known | {other_table_file(name)}) > MOST_OTHER_TABLES:
            raise ValueError(f"a capture takes at most {MOST_OTHER_TABLES} tables of other packages")
        if table.nbytes > MOST_OTHER_BYTES:
            raise ValueError(f"the table {name} has {table.nbytes:,} bytes; at most {MOST_OTHER_BYTES:,} are kept")
        self.write_table(
            other_table_file(name).removesuffix(".parquet"), _redacted_texts(table) if self.redact else table
        )

    def write_meta(self) -> None:
        """A reader sees the old file or the new one, never half of one."""
        try:
            with self.directory.create(META_PARTIAL) as file:
                hidden = ("quality", "unsupported") if self.redact else ()
                file.write(
                    manifest.meta_text({k: _redacted_notes(v) if k in hidden else v for k, v in self.meta.items()})
                )
            self.directory.rename(META_PARTIAL, META_FILE)
        except OSError:
            with contextlib.suppress(OSError):
                self.directory.unlink(META_PARTIAL)
            raise

    def update_meta(self, **meta: Unpack[Meta]) -> None:
        """Writes what is known by now, for a reader that comes after a crash."""
        self.meta.update(meta)
        with contextlib.suppress(OSError):
            self.write_meta()

    @property
    def listed_files(self) -> dict[str, FileEntry]:
        """What meta.json says of the files of a complete capture."""
        progress = self.progress()
        records: FileEntry = {"bytes": progress["bytes"], "chunks": progress["chunks"]}
        return {RECORD_FILE: records, **self.tables}

    def finish(self, **meta: Unpack[Meta]) -> None:
        """Closes the record file and marks the capture complete."""
        if self._adopted is None:
            self.close_records()
        self.meta.update(meta)
        self.meta["state"] = "complete"
        self.meta["files"] = self.listed_files
        try:
            self.write_meta()
        except OSError as error:
            self.side_failure = self.side_failure or error
        with contextlib.suppress(OutputError):
            self.directory.settle()
