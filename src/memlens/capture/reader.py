"""Reads captures: whole, cut, damaged, or still growing.

`Capture` streams record batches as Arrow columns and gives side tables. It
verifies everything it reads; what is missing is in `Capture.quality`.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import CaptureError, CaptureVersionError, NoDataError, os_reason
from ..results import Quality
from .store import manifest
from .store.directory import META_FILE
from .store.files import refuse_special
from .store.layouts import Layout, enum_names, layout_of_kind, layouts, records_with_tails
from .store.meta import check_meta, read_meta
from .store.os_names import text_of
from .store.standalone import RUNTIME_WRITER, LeftCounts, LeftRings, OwnIds

if TYPE_CHECKING:
    import pyarrow as pa

    from .model.accesses import Windows
    from .model.clocks import ClockMap
    from .model.counting import Counts
    from .model.objects import Objects
    from .model.replay import Replay
    from .model.tracing import TraceSites
    from .store.calibration import Peaks

BATCH_BYTES = 4 << 20
"""Small chunks are joined up to this: a tree of thousands of processes has thousands of them."""
COUNT_TABLES = (
    "count_functions",
    "count_sites",
    "count_terms",
    "count_blocks",
    "count_counters",
    "count_callees",
    "count_traced",
    "count_loops",
)
"""What counted modules say about their counters; written only when there are any."""
IMPORT_TABLES = ("import_sites",)
"""What the files of an imported trace say about its instructions; written only when they do."""
SIDE_TABLES = (
    *("processes", "threads", "modules", "sites", "variables", "objects", "regions", "pinning"),
    *COUNT_TABLES,
    *IMPORT_TABLES,
)
DERIVED = ("faults", "placed", "accesses", "block_counts", "site_counts", "region_times", "trace_sites")
WITH_CODE = ("code_counts", "page_counts", "unseen")
"""Record kinds with an instruction pointer: their tables have `code` too, the row of ``sites`` that names it."""
PLURALS = {
    "string": "strings",
    "stack": "stacks",
    "stack_dump": "stack_dumps",
    "process_event": "process_events",
    "mapping": "mappings",
    "jit_code": "jit_code",
    "clock_pair": "clock_pairs",
    "loss": "losses",
    "fault": "fault_records",
    "sampled_fault": "sampled_fault_records",
    "fault_level": "fault_levels",
    "residency": "residency",
    "placement": "placements",
    "timeline": "timeline",
    "allocation": "allocations",
    "region_event": "region_events",
    "tag_event": "tag_events",
    "pinning": "pinning_events",
    "thread_memory": "thread_memory",
    "tls_module": "tls_modules",
    "runtime_status": "runtime_status",
    "block_count": "block_count_records",
    "window": "windows",
    "access": "access_records",
    "code_count": "code_counts",
    "page_count": "page_counts",
    "unseen": "unseen",
    "emulator_status": "emulator_status",
    "region_node": "region_nodes",
    "region_time": "region_time_records",
    "counted_module": "counted_modules",
    "count_tables": "count_table_parts",
    "count_status": "count_status",
    "count_epoch": "count_epochs",
    "region_span": "region_spans",
    "sample_group": "sample_groups",
    "sample_count": "sample_count_records",
    "region_duration": "region_durations",
    "traced_module": "traced_modules",
    "trace_status": "trace_status",
}


def open_capture(path: str | Path) -> Capture:
    """Opens a capture directory.

    Raises
    ------
    CaptureError
        Not there, not a capture, or nothing of it can be read.
    CaptureVersionError
        Written by a version whose format this build does not read.
    """
    return Capture(Path(path))


class _Chunk:
    """One chunk of a file; its ids are the capture's."""

    __slots__ = ("header", "index", "own_ids", "reader")

    def __init__(self, reader: Any, index: int, own_ids: OwnIds | None = None) -> None:
        self.reader = reader
        self.index = index
        self.own_ids = own_ids
        self.header: dict[str, int] = reader.header(index)
        if own_ids is not None:
            self.header["process"] = own_ids.process

    def payload(self) -> bytes | None:
        payload: bytes | None = self.reader.payload(self.index)
        if payload is None or self.own_ids is None:
            return payload
        return self.own_ids.to_capture(self.header["kind"], payload)


class Capture:
    """A capture. Use `memlens.open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = self._read_meta()
        self._readers: dict[str, Any] = {}
        self._chunks: list[_Chunk] = []
        self._own_ids: dict[str, OwnIds] = {}
        self._own_processes: dict[str, int] = {}
        self._left_images = 0
        self._strings: dict[int, str] | None = None
        self._tables: dict[str, pa.Table] = {}
        self._replay: Replay | None = None
        self._objects: Objects | None = None
        self._windows: Windows | None = None
        self._trace_sites: TraceSites | None = None
        self._counts: Counts | None = None
        self.skip_frames: re.Pattern[str] | None = None
        """Functions and modules that are never shown as the place of an allocation or a first touch."""
        self.derived: dict[str, Any] = {}
        """What analyses derive from the capture and share; emptied when it grows."""
        self.refresh()
        if not self._readers and self.meta["state"] == "complete":
            raise CaptureError(f"{path} has no record file", hint="it was damaged or copied in part; record again")

    # ---- opening ------------------------------------------------------------------
    def _read_meta(self) -> dict[str, Any]:
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

    def refresh(self) -> int:
        """Looks for chunks added since the last call (a capture may still be growing); returns how many."""
        added = 0
        for file in sorted(self.path.glob("records-*.mlc")):
            reader = self._readers.get(file.name)
            if reader is None:
                refuse_special(file)
                try:
                    reader = _core.ChunkReader(str(file))
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
                self._chunks.extend(_Chunk(reader, index, own_ids) for index in range(known, reader.count))
                added += reader.count - known
        added += self._add_left_rings() + self._add_left_counts()
        if added:
            self._strings = None
            self._tables.clear()
            self._replay = None
            self._objects = None
            self._windows = None
            self._trace_sites = None
            self._counts = None
            self.derived.clear()
        return added

    def _own_ids_of(self, file: Path, reader: Any) -> OwnIds | None:
        """Files that a process wrote itself count their strings, stacks and processes from 1, each for itself."""
        if reader.file_header["writer"] != RUNTIME_WRITER:
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
            self._chunks.extend(_Chunk(left, index, own_ids) for index in range(left.count))
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
            self._chunks.extend(_Chunk(left, index) for index in range(left.count))
            collectors = self.meta.setdefault("collectors", {})
            collectors.setdefault("count", {"sampling": "all"})
            if not left.has_counts and self._left_images == left.images:
                del collectors["count"]  # built for tracing only: nothing was counted
            added += left.count
        return added

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

    def clock(self, name: str) -> ClockMap:
        """Converts readings of another clock (``tsc``, ``perf``, ``realtime``, …) to this capture's times."""
        from .model.clocks import clock_map

        return clock_map(self, name)

    # ---- records -----------------------------------------------------------------------
    def payloads(self, name: str) -> Iterator[tuple[dict[str, int], bytes]]:
        """(chunk header, decoded payload) of every sound chunk of a kind whose version is known."""
        layout = layouts()[name]
        for chunk in self._chunks:
            if chunk.header["kind"] != layout.kind or chunk.header["record_version"] != layout.version:
                continue
            payload = chunk.payload()
            if payload is not None:
                yield chunk.header, payload

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
        arrays: dict[str, Any] = {"process": pa.array(numbers)}
        for field in layout.fields:
            if field.name.startswith("reserved") or field.name == "tail_bytes":
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

    # ---- tables ---------------------------------------------------------------------------
    @property
    def replay(self) -> Replay:
        """Faults classed by replaying the capture (cached)."""
        if self._replay is None:
            from .model.replay import Replay

            self._replay = Replay(self)
        return self._replay

    @property
    def objects(self) -> Objects:
        """Objects and what lies where, by replaying allocations, tags and mappings (cached)."""
        if self._objects is None:
            from .model.objects import Objects

            self._objects = Objects(self)
        return self._objects

    @property
    def windows(self) -> Windows:
        """Windows of accesses (cached): table, units, decoded accesses, join with objects."""
        if self._windows is None:
            from .model.accesses import Windows

            self._windows = Windows(self)
        return self._windows

    @property
    def counts(self) -> Counts:
        """What compiled-in counters say (cached): executions and bytes of sites and blocks, by thread and region."""
        if self._counts is None:
            from .model.counting import Counts

            self._counts = Counts(self)
        return self._counts

    @cached_property
    def peaks(self) -> Peaks | None:
        """The machine's peaks: those known when it was recorded, else those that `memlens calibrate` has measured since
        on the same machine."""
        from .store import calibration

        content = self.meta.get("calibration")
        if content is None:
            name = (self.meta.get("machine") or {}).get("fingerprint")
            content = calibration.load(name).content if name else None
        if content is None:
            return None
        peaks = calibration.Peaks(content)
        try:
            peaks.check()
        except (KeyError, TypeError, ValueError, IndexError, StopIteration):
            return None
        return peaks

    @property
    def trace_sites(self) -> TraceSites:
        """Sites of traced code (cached): what the numbers in streams of sites mean."""
        if self._trace_sites is None:
            from .model.tracing import TraceSites

            self._trace_sites = TraceSites(self)
        return self._trace_sites

    def accesses(
        self,
        *,
        windows: Collection[int] | None = None,
        threads: Collection[int] | None = None,
        code: bool = False,
        batch_accesses: int = 1 << 15,
    ) -> Iterator[pa.RecordBatch]:
        """Streams the accesses of windows, decoded: a trace of any length, never whole in memory.

        Columns: process, thread, window (row of table ``windows``), time_ns, pc, address, bytes, operation, weight.
        ``time_ns`` is interpolated: the window's accesses are spread evenly from its begin to its end. ``weight``
        is how many executed accesses of the thread this one stands for. Damaged windows are left out whole.

        Parameters
        ----------
        windows, threads
            Only these.
        code
            Adds ``code``: the row of table ``sites`` that names the instruction.
        """
        return self.windows.accesses(windows=windows, threads=threads, code=code, batch_accesses=batch_accesses)

    def table_names(self) -> list[str]:
        """Everything `table` and `memlens query` offer."""
        return [*DERIVED, *SIDE_TABLES, *PLURALS.values()]

    def reader(self, name: str) -> pa.RecordBatchReader:
        """A table as a stream of record batches: for ``accesses``, which may not fit in memory."""
        import pyarrow as pa

        if name == "accesses":
            from .model.accesses import access_schema

            return pa.RecordBatchReader.from_batches(access_schema(code=True), self.accesses(code=True))
        return self.table(name).to_reader()

    def table(self, name: str) -> pa.Table:
        """One table as Arrow (``.to_pandas()``, DuckDB and polars read it as it is).

        ``faults`` are classed and named by function and line; ``placed`` are pages
        placed by the kernel without an event; ``accesses`` are the decoded accesses of
        all windows (`accesses` and `reader` stream them); ``site_counts``, ``block_counts``
        and ``region_times`` are what compiled-in counters say; the other names are side tables
        and record kinds as recorded.
        """
        if name not in self._tables:
            self._tables[name] = self._make_table(name)
        return self._tables[name]

    def _make_table(self, name: str) -> pa.Table:
        import pyarrow as pa

        if name == "faults":
            return self.replay.fault_table()
        if name == "placed":
            return self.replay.placed_table()
        if name == "accesses":
            return self.reader("accesses").read_all()
        if name == "windows":
            return self.windows.table()
        if name in ("block_counts", "site_counts", "region_times"):
            from .tables import count_views

            views = {
                "block_counts": count_views.block_counts,
                "site_counts": count_views.site_counts,
                "region_times": count_views.region_times,
            }
            return views[name](self.counts)
        if name == "trace_sites":
            return self.trace_sites.table
        if name == "sites":
            return self.trace_sites.behind(self._side_table(name))
        if name in SIDE_TABLES:
            return self._side_table(name)
        kind = next((kind for kind, plural in PLURALS.items() if plural == name), None)
        if kind is None:
            import difflib

            close = difflib.get_close_matches(name, self.table_names(), n=1)
            raise NoDataError(
                f"a capture has no table {name!r}",
                hint=f"did you mean {close[0]!r}?" if close else f"tables: {', '.join(self.table_names())}",
            )
        batches = list(self.batches(kind))
        if not batches:
            table = self._to_batch_schema(layouts()[kind])
        else:
            table = pa.concat_tables(
                [pa.Table.from_batches([b]) for b in batches], promote_options="permissive"
            ).unify_dictionaries()
        if kind == "region_time":
            from .tables.count_views import with_known_events

            return with_known_events(table, self)
        return self.windows.with_code(table) if name in WITH_CODE else table

    def _to_batch_schema(self, layout: Layout) -> pa.Table:
        import pyarrow as pa

        empty = self._to_batch(layout, [(0, b"")], None)
        return pa.Table.from_batches([empty])

    def _side_table(self, name: str) -> pa.Table:
        from .tables.derived import derive_table, table_schema

        if self.complete:
            file = self.path / f"{name}.parquet"
            if file.exists() and self.is_as_written(file.name):
                from .store.side_tables import read_side_table

                table = read_side_table(file, table_schema(name))
                if table is not None:
                    return table  # else it is another version's: make it anew

        return derive_table(self, name)


def named(values: Any, names: dict[int, str]) -> pa.Array:
    """Numbers as a dictionary array of their names; a number without a name keeps its digits, 0 of ids is null."""
    import numpy as np
    import pyarrow as pa

    distinct, inverse = np.unique(values, return_inverse=True)
    texts = [names.get(int(v), None if int(v) == 0 else str(int(v))) for v in distinct]
    indices = pa.array(inverse.astype(np.int32))
    if None in texts:
        named = [text for text in texts if text is not None]
        is_named = np.array([text is not None for text in texts])
        mapping = np.where(is_named, np.cumsum(is_named) - 1, -1).astype(np.int32)
        mapped = mapping[inverse]
        return pa.DictionaryArray.from_arrays(pa.array(mapped, mask=mapped < 0), pa.array(named, type=pa.string()))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, type=pa.string()))
