"""The records of a capture: its files opened and checked, their chunks, and records as Arrow batches.

`RecordStore` verifies everything it reads; what is missing is in `RecordStore.quality`. It knows nothing of what records mean.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ... import _core
from ...errors import CaptureError, CaptureVersionError, NoDataError, os_reason
from ...results import Quality
from . import manifest
from .columns import named
from .count_arena import COUNTERS
from .directory import META_FILE
from .files import refuse_special
from .layouts import Layout, enum_names, layout_of_kind, layouts, records_with_tails
from .meta import check_meta, read_meta
from .os_names import text_of
from .side_tables import other_table_file, other_table_name, read_side_table
from .source import TimedPayload
from .standalone import RUNTIME_WRITER, LeftCounts, LeftRings, OwnIds

if TYPE_CHECKING:
    import pyarrow as pa

    from .meta import Meta

BATCH_BYTES = 4 << 20
"""Small chunks are joined up to this: a tree of thousands of processes has thousands of them."""


class ChunkLike(Protocol):
    """A header and what it describes."""

    @property
    def header(self) -> dict[str, int]: ...
    def payload(self) -> bytes | None: ...


class ChunkFile(Protocol):
    """A file with chunks by number, or what stands for one."""

    def header(self, index: int) -> dict[str, int]: ...
    def payload(self, index: int) -> bytes | None: ...
    def refresh(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def damage(self) -> dict[str, int]: ...


class Chunk:
    """One chunk of a file; its ids are the capture's."""

    __slots__ = ("header", "index", "own_ids", "reader")
    _reading = threading.Lock()
    """A reader of a file has one buffer: threads take turns."""
    payloads_read = 0
    bytes_read = 0
    """Of all captures of this process, compressed as they are: what a growing capture and a selection save."""

    def __init__(self, reader: ChunkFile, index: int, own_ids: OwnIds | None = None) -> None:
        self.reader = reader
        self.index = index
        self.own_ids = own_ids
        self.header: dict[str, int] = reader.header(index)
        if own_ids is not None:
            self.header["process"] = own_ids.process

    def payload(self) -> bytes | None:
        with Chunk._reading:
            payload = self.reader.payload(self.index)
            Chunk.payloads_read += 1
            Chunk.bytes_read += self.header.get("stored_bytes", 0)
        if payload is None or self.own_ids is None:
            return payload
        return self.own_ids.to_capture(self.header["kind"], payload)


class RecordStore:
    """The files of a capture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = self._read_meta()
        self._readers: dict[str, ChunkFile] = {}
        self._chunks: list[Chunk] = []
        self._own_ids: dict[str, OwnIds] = {}
        self._own_processes: dict[str, int] = {}
        self._left_images = 0
        self._strings: dict[int, str] | None = None
        self.refresh()
        if not self._readers and self.meta["state"] == "complete":
            raise CaptureError(f"{path} has no record file", hint="it was damaged or copied in part; record again")

    # ---- opening ------------------------------------------------------------------
    def _read_meta(self) -> Meta:
        file = self.path / META_FILE
        try:
            if not stat.S_ISDIR(os.stat(self.path).st_mode):
                raise CaptureError(f"{self.path} is a file; a capture is a directory NAME.memlens")
            meta = read_meta(file)
        except FileNotFoundError as error:
            if self.path.is_dir():
                raise CaptureError(f"{self.path} is not a capture: it has no {META_FILE}") from error
            raise CaptureError(
                f"there is no capture at {self.path}", hint="record one: memlens record -o NAME.memlens -- PROGRAM"
            ) from error
        except ValueError as error:  # a zero byte in the name
            raise CaptureError(f"there is no capture at {str(self.path)!r}: {error}") from error
        except OSError as error:
            raise CaptureError(f"cannot read {file}: {os_reason(error)}") from error
        self._check_version(meta["format_version"])
        meta.setdefault("state", "recording")
        check_meta(file, meta)
        return meta

    def _check_version(self, version: int) -> None:
        oldest, newest = _core.FORMAT_OLDEST_READABLE, _core.FORMAT_CURRENT
        if not oldest <= version <= newest:
            readable = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
            hint = "update memlens" if version > newest else "record again, or use the memlens that wrote it"
            raise CaptureVersionError(
                f"{self.path} has capture format {version}; this build reads {readable}", hint=hint
            )

    def reread_meta(self) -> None:
        """Takes meta.json as it is now: who writes the capture may have completed it."""
        self.meta = self._read_meta()

    def _forget(self) -> None:
        """The capture has grown: what was concluded from its records is made again. For those who conclude."""

    def refresh(self) -> int:
        """Looks for chunks added since the last call (a capture may still be growing); returns how many."""
        added = 0
        for file in sorted(self.path.glob("records-*.mlc")):
            reader = self._readers.get(file.name)
            if reader is None:
                refuse_special(file)
                try:
                    reader = cast("ChunkFile", _core.ChunkReader(str(file)))
                except _core.FormatError as error:
                    kind, _, version = error.args
                    if kind == 1:
                        self._check_version(version)
                    if self.meta["state"] == "recording" and kind == 2:
                        continue  # its header is being written now
                    raise CaptureError(f"{file} is not a memlens record file, or its start is damaged") from error
                except OSError as error:
                    raise CaptureError(f"cannot read {file}: {os_reason(error)}") from error
                self._readers[file.name] = reader
            known = reader.count
            own_ids = self._own_ids_of(file, reader)
            if reader.refresh():
                self._chunks.extend(Chunk(reader, index, own_ids) for index in range(known, reader.count))
                added += reader.count - known
        added += self._add_left_rings() + self._add_left_counts()
        if added:
            self._strings = None
            self._forget()
        return added

    def _own_ids_of(self, file: Path, reader: ChunkFile) -> OwnIds | None:
        """Files that a process wrote itself count their strings, stacks and processes from 1, each for itself."""
        if not isinstance(reader, _core.ChunkReader) or reader.file_header["writer"] != RUNTIME_WRITER:
            return None
        if file.stem not in self._own_ids:
            # records-HOST-PID-TIME: a process has a file for each program that it executed.
            process = self._own_processes.setdefault(file.stem.rpartition("-")[0], len(self._own_processes) + 1)
            self._own_ids[file.stem] = OwnIds(process, len(self._own_ids) + 1)
        return self._own_ids[file.stem]

    def _add_left_rings(self) -> int:
        """What a process that was killed had not written out."""
        added = 0
        for file in sorted(self.path.glob("rings-*.mlr")):
            own_ids = self._own_ids.get(f"records-{file.stem.removeprefix('rings-')}")
            if file.name in self._readers or own_ids is None:
                continue
            refuse_special(file)
            try:
                left = LeftRings(str(file))
            except OSError as error:
                raise CaptureError(
                    f"{file} cannot be read: {os_reason(error)}", hint="remove it to read the rest"
                ) from error
            self._readers[file.name] = left
            self._chunks.extend(Chunk(left, index, own_ids) for index in range(left.count))
            added += left.count
        return added

    def _add_left_counts(self) -> int:
        """What counted programs have left in arenas of their own."""
        if not self.standalone:
            return 0
        added = 0
        for file in sorted(self.path.glob("counts-*.mla")):
            if file.name in self._readers:
                continue
            # counts-HOST-PID-TIME, beside records-HOST-PID-TIME of the library that records allocations.
            own_ids = self._own_ids.setdefault(file.stem, OwnIds(0, len(self._own_ids) + 1))
            host = file.stem.removeprefix("counts-").rpartition("-")[0].rpartition("-")[0]

            def process_of(pid: int, host: str = host) -> tuple[int, bool]:
                name = f"records-{host}-{pid}"
                number = self._own_processes.setdefault(name, len(self._own_processes) + 1)
                return number, any(stem.startswith(f"{name}-") for stem in self._own_ids)

            refuse_special(file)
            try:
                left = LeftCounts(
                    str(file), base=own_ids.base, first_image=self._left_images + 1, process_of=process_of
                )
            except (OSError, ValueError) as error:
                raise CaptureError(f"{file} cannot be read: {error}", hint="remove it to read the rest") from error
            self._left_images += left.images
            self._readers[file.name] = left
            self._chunks.extend(Chunk(left, index) for index in range(left.count))
            collectors = self.meta.setdefault("collectors", {})
            collectors.setdefault(COUNTERS, {"sampling": "all"})
            if not left.has_counts and self._left_images == left.images:
                del collectors[COUNTERS]  # built for tracing only: nothing was counted
            added += left.count
        return added

    # ---- tables of other packages ---------------------------------------------------
    def side_table_names(self) -> list[str]:
        """Tables that collectors of other packages have written beside the records."""
        files = self.meta.get("files") if self.complete else None
        found = (other_table_name(file) for file in (files or {}))
        return sorted(name for name in found if name is not None)

    def side_table(self, name: str) -> pa.Table:
        """A table that a collector of another package has written.

        Raises
        ------
        NoDataError
            The capture has none of this name.
        CaptureError
            Its file is missing or damaged.
        """
        if name not in self.side_table_names():
            known = ", ".join(self.side_table_names()) or "none"
            raise NoDataError(f"the capture has no side table {name!r}", hint=f"side tables: {known}")
        import pyarrow as pa

        file = self.path / other_table_file(name)
        if not file.exists() or not self.is_as_written(file.name):
            raise CaptureError(f"{file} is missing or has changed since it was written", hint="record again")
        found = read_side_table(file, pa.schema([]))
        assert found is not None
        return found

    # ---- facts -----------------------------------------------------------------------
    @property
    def standalone(self) -> bool:
        """True when the processes wrote it themselves, without a recorder."""
        return bool(self.meta["state"] == "standalone")

    @property
    def complete(self) -> bool:
        """True when the recorder finished in order."""
        return bool(self.meta["state"] == "complete")

    @property
    def quality(self) -> Quality:
        """What is missing from the whole capture."""
        notes: list[str] = []
        damage = {"torn_tail_bytes": 0, "bad_header_bytes": 0, "bad_payload_chunks": 0, "missing_chunks": 0}
        for reader in self._readers.values():
            for key, value in reader.damage.items():
                damage[key] += value
        dropped = sum(chunk.header["dropped"] for chunk in self._chunks) + self.ring_losses()
        truncated = not (self.complete or self.standalone) or bool(self.meta.get("quality", {}).get("incomplete"))
        for left in self._readers.values():
            if isinstance(left, LeftCounts):
                notes += left.notes
        if self.standalone:
            notes.append(
                "Unverified: the program wrote this capture itself, without a list of its files; a missing or shortened one would go "
                "unnoticed."
            )
            killed = sum(name.endswith(".mlr") for name in self._readers)
            if killed:
                notes.append(
                    f"{killed} processes still run or were killed: what they had in memory was read from their rings."
                )
        elif not self.complete:
            last = max((chunk.header["end_ns"] for chunk in self._chunks), default=0)
            first = min((c.header["begin_ns"] for c in self._chunks if c.header["begin_ns"]), default=last)
            notes.append(
                f"The recording did not finish: records reach {(last - first) / 1e9:.2f} s after the first one, "
                "and what came later is missing."
            )
        if self.complete:
            notes += self._verdict.notes
            truncated = truncated or self._verdict.records_missing
        if damage["torn_tail_bytes"]:
            truncated = True
            notes.append(f"The last {damage['torn_tail_bytes']} bytes are an unfinished chunk and were left out.")
        if damage["bad_header_bytes"]:
            truncated = True
            notes.append(f"{damage['bad_header_bytes']} bytes in the middle are damaged and were skipped.")
        if damage["bad_payload_chunks"]:
            truncated = True
            notes.append(f"{damage['bad_payload_chunks']} chunks fail their checksum and were left out.")
        if damage["missing_chunks"]:
            truncated = True
            notes.append(f"{damage['missing_chunks']} chunks are missing.")
        if dropped:
            notes.append(f"{dropped} records were lost while recording (see table losses); counts are lower bounds.")
        newer = sum(
            chunk.header["record_count"]
            for chunk in self._chunks
            if (layout := layout_of_kind(chunk.header["kind"])) and chunk.header["record_version"] != layout.version
        )
        if newer:
            notes.append(
                f"{newer} records have a layout that this build does not read and were skipped; update memlens."
            )
        quality = self.meta.get("quality", {})
        notes.extend(str(note) for note in quality.get("notes", ()))
        return Quality(
            exact=not dropped and not truncated and not newer and not (self.complete and self._verdict.changed),
            dropped_records=dropped,
            truncated=truncated,
            notes=tuple(notes),
        )

    @cached_property
    def _verdict(self) -> manifest.Verdict:
        """What of a complete capture is missing, or not as it was written."""
        counts = {name: reader.count for name, reader in self._readers.items() if name.endswith(".mlc")}
        return manifest.verify(self.path, counts)

    def is_as_written(self, name: str) -> bool:
        """False for a file of a complete capture that differs from the capture's own list."""
        return name not in self._verdict.changed

    def ring_losses(self) -> int:
        """Records that found a perf ring full."""
        return sum(int(count) for batch in self.batches("loss") for count in batch.column("count").to_numpy())

    def kinds(self) -> dict[str, int]:
        """Record kinds in the capture and how many records each has; unknown kinds by number."""
        counts: dict[str, int] = {}
        for chunk in self._chunks:
            layout = layout_of_kind(chunk.header["kind"])
            name = layout.name if layout else f"kind {chunk.header['kind']}"
            counts[name] = counts.get(name, 0) + chunk.header["record_count"]
        return counts

    @property
    def begin_ns(self) -> int:
        """Start of the recording: what reports count time from."""
        begin = self.meta.get("begin_ns")
        if begin:
            return int(begin)
        return min((c.header["begin_ns"] for c in self._chunks if c.header["begin_ns"]), default=0)

    @property
    def end_ns(self) -> int:
        end = self.meta.get("end_ns")
        if end:
            return int(end)
        return max((chunk.header["end_ns"] for chunk in self._chunks), default=0)

    # ---- records -----------------------------------------------------------------------
    def payloads(self, name: str) -> Iterator[tuple[dict[str, int], bytes]]:
        """(chunk header, decoded payload) of every sound chunk of a kind whose version is known."""
        for chunk in self.chunks_of(name):
            payload = chunk.payload()
            if payload is not None:
                yield chunk.header, payload

    def chunks_of(self, name: str) -> Sequence[ChunkLike]:
        """The chunks of a kind whose version is known, in the order in which they were found."""
        layout = layouts()[name]
        return [
            chunk
            for chunk in self._chunks
            if chunk.header["kind"] == layout.kind and chunk.header["record_version"] == layout.version
        ]

    def headers(self, name: str) -> list[dict[str, int]]:
        """Headers of the chunks of a kind whose version is known."""
        return [chunk.header for chunk in self.chunks_of(name)]

    def payloads_in_time(self, *names: str) -> Iterator[TimedPayload]:
        """Payloads of several kinds in the order of their first records, for those who cannot hold all of them."""
        kinds = {layouts()[name].kind: (rank, name) for rank, name in enumerate(names)}
        mine = [
            (*kinds[chunk.header["kind"]], chunk)
            for chunk in self._chunks
            if chunk.header["kind"] in kinds
            and chunk.header["record_version"] == layouts()[kinds[chunk.header["kind"]][1]].version
        ]
        mine.sort(key=lambda entry: entry[0])  # stable: the order of `payloads`, one kind after the other
        order = sorted(enumerate(mine), key=lambda entry: entry[1][2].header["begin_ns"])
        for at, (arrival, (_, name, chunk)) in enumerate(order):
            payload = chunk.payload()
            if payload is None:
                continue
            next_ns = order[at + 1][1][2].header["begin_ns"] if at + 1 < len(order) else None
            yield TimedPayload(name, chunk.header, payload, arrival, next_ns)

    def strings(self) -> dict[int, str]:
        """Interned strings by id."""
        if self._strings is None:
            layout = layouts()["string"]
            self._strings = {
                record["id"]: text_of(tail)
                for _, payload in self.payloads("string")
                for record, tail in records_with_tails(layout, payload)
            }
        return self._strings

    def batches(self, name: str, *, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Streams one record kind as Arrow batches, each of one or several chunks.

        Enumerated fields come as their names and string ids as text; ``process`` is
        always the first column.
        """
        layout = layouts()[name]
        waiting: list[tuple[int, bytes]] = []
        waiting_bytes = 0
        for header, payload in self.payloads(name):
            waiting.append((header["process"], payload))
            waiting_bytes += len(payload)
            if waiting_bytes >= BATCH_BYTES:
                yield self._to_batch(layout, waiting, columns)
                waiting, waiting_bytes = [], 0
        if waiting:
            yield self._to_batch(layout, waiting, columns)

    def _to_batch(self, layout: Layout, chunks: list[tuple[int, bytes]], columns: list[str] | None) -> pa.RecordBatch:
        """Chunks of one kind, each (process, payload), as one batch."""
        import numpy as np
        import pyarrow as pa

        tails: list[bytes] | None = None
        if layout.has_tail:
            found = [(process, records_with_tails(layout, payload)) for process, payload in chunks]
            pairs = [pair for _, records in found for pair in records]
            counts = [len(records) for _, records in found]
            tails = [tail for _, tail in pairs]
            fixed = {f.name: np.array([values[f.name] for values, _ in pairs], dtype=f.code) for f in layout.fields}
        else:
            counts = [len(payload) // layout.record_bytes for _, payload in chunks]
            whole = b"".join(p[: n * layout.record_bytes] for (_, p), n in zip(chunks, counts, strict=True))
            rows = np.frombuffer(whole, dtype=layout.dtype())
            fixed = {f.name: rows[f.name] for f in layout.fields}
        numbers = np.repeat(np.array([process for process, _ in chunks], dtype=np.uint32), counts)
        arrays: dict[str, pa.Array] = {"process": pa.array(numbers)}
        for field in layout.fields:
            if field.role in ("RESERVED", "TAIL"):
                continue
            if field.name == "process":
                arrays["process"] = pa.array(np.ascontiguousarray(fixed["process"]))
                continue
            if columns is not None and field.name not in columns:
                continue
            values = np.ascontiguousarray(fixed[field.name])
            if field.enumeration:
                arrays[field.name] = named(values, enum_names(field.enumeration))
            elif field.is_string_id:
                arrays[field.name] = named(values, self.strings())
            else:
                arrays[field.name] = pa.array(values)
        if tails is not None and (columns is None or "tail" in columns):
            if layout.name == "string":
                arrays["text"] = pa.array([text_of(tail) for tail in tails])
            elif layout.name == "stack":
                arrays["ips"] = pa.array(
                    [np.frombuffer(t[: len(t) - len(t) % 8], dtype="<u8") for t in tails], type=pa.list_(pa.uint64())
                )
            else:
                arrays["tail"] = pa.array(tails, type=pa.binary())
        return pa.RecordBatch.from_pydict(arrays)

    def follow(self, name: str, *, poll_s: float = 0.2, timeout_s: float | None = None) -> Iterator[pa.RecordBatch]:
        """Streams a kind's batches, then waits for more until the recording is complete."""
        layout = layouts()[name]
        done = 0
        quiet_since = time.monotonic()
        while True:
            for chunk in self._chunks[done:]:
                if chunk.header["kind"] == layout.kind and chunk.header["record_version"] == layout.version:
                    payload = chunk.payload()
                    if payload is not None:
                        yield self._to_batch(layout, [(chunk.header["process"], payload)], None)
            done = len(self._chunks)
            finished = self._read_meta()["state"] == "complete"
            if self.refresh():
                quiet_since = time.monotonic()
                continue
            if finished or (timeout_s is not None and time.monotonic() - quiet_since > timeout_s):
                self.meta = self._read_meta()
                return
            time.sleep(poll_s)
