"""The capture that an import writes: windows as they come, then names, side tables and quality."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..capture.store.directory import Replaced
from ..capture.store.layouts import Packer, enum_value, layouts
from ..capture.store.os_names import working_directory
from ..capture.store.writer import CaptureWriter
from ..errors import OutputError, os_reason

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.model.symbols import SiteRow
    from ..capture.store.meta import Meta

IMPORTER_WRITER = enum_value("writer", "importer")
NO_CPU = 0xFFFFFFFF
WINDOW_ACCESSES = 4096
"""Of a window that Python writes."""


@dataclass
class Outcome:
    """What an import did, for its summary."""

    path: Path
    format: str
    read_bytes: int = 0
    accesses: int = 0
    windows: int = 0
    stream_bytes: int = 0
    record_bytes: int = 0
    processes: int = 0
    seconds: float = 0.0
    figures: dict[str, object] = field(default_factory=dict)
    """What the format counted besides."""
    notes: list[str] = field(default_factory=list)


class ImportTarget:
    """One capture being written by an import.

    Nothing half is left: an import that fails removes what it wrote, and puts a capture back that it was to
    replace. `with` does both ends.
    """

    def __init__(
        self, path: Path, *, format_name: str, sources: list[str], settings: dict[str, object], force: bool
    ) -> None:
        self.outcome = Outcome(path, format_name)
        self.notes = self.outcome.notes
        self.incomplete = False
        """Something of the trace is missing: no result is exact."""
        self.import_sites: list[dict[str, Any]] = []
        self.command: list[str] | None = None
        self._began = time.monotonic()
        self._strings: dict[str, int] = {}
        self._executed: dict[tuple[int, int], int] = {}
        """Accesses so far, by process and thread."""
        self._first_ns: int | None = None
        self._last_ns = 0
        self._processes: set[int] = set()
        now = time.time_ns()
        meta: Meta = {
            "command": None,
            "pid": None,
            "working_directory": working_directory(),
            "started": datetime.fromtimestamp(now / 1e9, UTC).isoformat(timespec="milliseconds"),
            "started_unix_ns": now,
            "machine": {},
            "collectors": {},
            "unsupported": [],
            "redacted": False,
            "import": {"format": format_name, "sources": sources, "settings": settings},
        }
        self._replaced = Replaced(path) if force and os.path.lexists(path) else None
        try:
            self.writer = CaptureWriter(path, meta, writer=IMPORTER_WRITER)
        except BaseException:
            if self._replaced is not None:
                self._replaced.put_back()
            raise

    def __enter__(self) -> ImportTarget:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.writer.close_records()
            self.writer.directory.remove()
        self.writer.directory.close()
        if self._replaced is not None:
            if kind is None:
                self._replaced.discard()
            else:
                self._replaced.put_back()

    # ---- records -----------------------------------------------------------------------
    def string(self, text: str) -> int:
        """The id of a string, written when it is new; 0 for an empty one."""
        if not text:
            return 0
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self._append(
                "string", [Packer("string").pack(text.encode("utf-8", "surrogateescape"), id=self._strings[text])]
            )
        return self._strings[text]

    def _append(self, kind: str, records: list[bytes], **header: int) -> None:
        self.writer.records(kind, records, **header)
        self._check()

    def _check(self) -> None:
        failure = self.writer.failure
        if failure is not None:
            raise self._refused(failure)

    def _refused(self, failure: OSError) -> OutputError:
        return OutputError(
            f"cannot write {self.writer.path}: {os_reason(failure)}; the unfinished capture was removed",
            hint="give a location with free space with -o; a capture takes about 1 to 4 bytes an access",
        )

    def chunks(self, chunks: list[tuple[int, bytes, int, int, int]], *, kind: str = "window") -> None:
        """Appends chunks that a native reader made ready."""
        number = layouts()[kind].kind
        for process, payload, records, begin_ns, end_ns in chunks:
            self.writer.append(number, payload, record_count=records, process=process, begin_ns=begin_ns, end_ns=end_ns)
            self._check()
            self.see(begin_ns)
            self.see(end_ns)

    def accesses(
        self, process: int, *, thread: int, begin_ns: int, pcs: Sequence[int], addresses: Sequence[int], sizes: Sequence[int],
        stores: Sequence[bool],
    ) -> None:  # fmt: skip
        """All accesses of a thread since the last call, in their order: a full trace. Each counts as a nanosecond.

        Parameters
        ----------
        begin_ns
            When the first of them was made; not before the end of the call before.
        pcs, addresses, sizes, stores
            Address of the instruction, address of the data, bytes, and whether it was written: one of each for an access.
        """
        import numpy as np

        load, store = enum_value("access_operation", "load"), enum_value("access_operation", "store")
        packer = Packer("window")
        for at in range(0, len(pcs), WINDOW_ACCESSES):
            part = slice(at, at + WINDOW_ACCESSES)
            operations = np.where(np.asarray(stores[part], dtype=bool), store, load).astype(np.uint8)
            stream = bytes(
                _core.encode_stream(
                    np.asarray(pcs[part], dtype=np.uint64), np.asarray(addresses[part], dtype=np.uint64),
                    np.asarray(sizes[part], dtype=np.uint32), operations,
                )
            )  # fmt: skip
            count, first = len(operations), self._executed.get((process, thread), 0)
            self._executed[process, thread] = first + count
            begin, end = begin_ns + at, begin_ns + at + count
            window = packer.pack(
                stream, begin_ns=begin, end_ns=end, first_executed=first, executed=count, recorded=count, period=count,
                thread=thread, encoding=enum_value("stream_encoding", "pc_delta"),
            )  # fmt: skip
            self.chunks([(process, window, 1, begin, end)])
            self.outcome.accesses += count
            self.outcome.windows += 1
            self.outcome.stream_bytes += len(stream)

    def see(self, time_ns: int) -> None:
        """The capture lasts at least from its earliest to its latest time."""
        self._first_ns = time_ns if self._first_ns is None else min(self._first_ns, time_ns)
        self._last_ns = max(self._last_ns, time_ns)

    def process(self, number: int, *, pid: int, name: str, begin_ns: int) -> None:
        """A process of the trace, with the name it is shown by."""
        self._processes.add(number)
        for operation in ("seen", "name"):
            self._event(
                operation, number, pid=pid, thread=pid, name=name if operation == "name" else "", time_ns=begin_ns
            )

    def thread(self, number: int, *, pid: int, thread: int, begin_ns: int, end_ns: int, name: str = "") -> None:
        self._event("thread", number, pid=pid, thread=thread, name="", time_ns=begin_ns)
        if name:
            self._event("name", number, pid=pid, thread=thread, name=name, time_ns=begin_ns)
        self._event("thread_exit", number, pid=pid, thread=thread, name="", time_ns=end_ns)

    def _event(self, operation: str, number: int, *, pid: int, thread: int, name: str, time_ns: int) -> None:
        record = Packer("process_event").pack(
            time_ns=time_ns,
            pid=pid & 0xFFFFFFFF,
            thread=thread & 0xFFFFFFFF,
            operation=enum_value("process_operation", operation),
            name=self.string(name),
            status=-1,
        )
        self._append("process_event", [record], process=number, begin_ns=time_ns, end_ns=time_ns)

    def mapping(
        self,
        number: int,
        *,
        time_ns: int,
        address: int,
        size: int,
        file_offset: int,
        path: str,
        inode: int,
        device_major: int,
        device_minor: int,
        protection: int,
    ) -> None:
        """Code of a file in a process's memory: what names its instructions."""
        record = Packer("mapping").pack(
            time_ns=time_ns, address=address, bytes=size, file_offset=file_offset, path=self.string(path), inode=inode,
            device_major=device_major, device_minor=device_minor, protection=protection,
        )  # fmt: skip
        self._append("mapping", [record], process=number, begin_ns=time_ns, end_ns=time_ns)

    def losses(self, losses: list[tuple[int, int, int]], *, cause: str) -> None:
        """Holes of a trace, (begin_ns, end_ns, cpu) each: how much is missing is not known, so each counts one."""
        packer = Packer("loss")
        number, cause_number = layouts()["window"].kind, enum_value("loss_cause", cause)
        records = [
            packer.pack(begin_ns=begin, end_ns=end, count=1, kind=number, cause=cause_number, cpu=cpu)
            for begin, end, cpu in losses
        ]
        if records:
            self._append(
                "loss", records, begin_ns=min(begin for begin, _, _ in losses), end_ns=max(end for _, end, _ in losses)
            )

    # ---- the end -------------------------------------------------------------------------
    def finish(self, *, figures: dict[str, object]) -> Outcome:
        """Side tables and meta.json; the capture is complete."""
        outcome = self.outcome
        outcome.figures = figures
        outcome.processes = len(self._processes)
        outcome.seconds = time.monotonic() - self._began
        begin_ns = self._first_ns or 0
        self.writer.meta["import"].update(figures=figures, accesses=outcome.accesses, windows=outcome.windows)
        self.writer.meta.update(
            {
                "command": self.command,
                "begin_ns": begin_ns,
                "end_ns": max(self._last_ns, begin_ns),
                "quality": {"notes": self.notes, "incomplete": self.incomplete, "stack": "none"},
            }
        )
        self._write_tables()
        self.writer.finish()
        if self.writer.side_failure is not None:
            raise self._refused(self.writer.side_failure)
        outcome.record_bytes = self.writer.record_bytes
        return outcome

    def _write_tables(self) -> None:
        from ..capture.model.symbols import name_codes, site_table
        from ..capture.reader import Capture
        from ..capture.store.side_tables import COUNT_TABLES, SIDE_TABLES
        from ..capture.tables.catalogue import derive_table

        capture = Capture(self.writer.path)
        modules = derive_table(capture, "modules")
        build_ids = {row["path"]: row["build_id"] for row in modules.to_pylist() if row["build_id"]}
        rows = name_codes(capture.replay.codes, self.writer.strings, {}, build_ids=build_ids)
        self._name_sites(rows)
        for name in SIDE_TABLES:
            if name in COUNT_TABLES:
                continue
            if name == "import_sites":
                table = self._import_sites_table()
            elif name == "sites":
                table = site_table(rows)
            elif name == "modules":
                table = modules
            elif name in ("variables", "objects"):
                table = capture.table(name)
            else:
                table = derive_table(capture, name)
            if table is not None:
                self.writer.write_table(name, table)

    def _name_sites(self, rows: list[SiteRow]) -> None:
        """What the trace's own files say of an instruction goes into `sites` too, where nothing better is known."""
        known = {(row["process"], row["pc"]): row for row in self.import_sites}
        for row in rows:
            site = known.get((row["process"], row["file_offset"]))
            if site is None or row["function"]:
                continue
            row.update(
                {
                    "function": site["function"], "file": site["file"], "line": site["line"] or 0, "kind": site["kind"],
                    "stride_bytes": site["stride_bytes"], "loop": site.get("loop"), "module": site["module"] or row["module"],
                    "quality": "import" if site["function"] else row["quality"], "class": site["class"],
                }
            )  # fmt: skip

    def _import_sites_table(self) -> pa.Table | None:
        import pyarrow as pa

        from ..capture.tables.catalogue import table_schema

        if not self.import_sites:
            return None
        schema = table_schema("import_sites")
        return pa.Table.from_pylist(
            [{name: row[name] for name in schema.names} for row in self.import_sites], schema=schema
        )
