"""After the program's end: just-in-time names, unwound stacks, symbols, side tables.

Runs outside the program's time. Works from the capture just written, so that a
capture finished here and one repaired by a reader are made by the same code.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..capture.model.objects import MOST_STORED
from ..capture.model.symbols import jit_names, name_codes, site_table, unnamed_modules
from ..capture.reader import Capture
from ..capture.store.layouts import Packer, enum_value, layouts, records_with_tails
from ..capture.store.os_names import file_of
from ..capture.store.writer import CaptureWriter, redacted, redacted_text
from ..capture.tables.catalogue import derive_table

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ALLOCATIONS = 2 * MOST_STORED
"""Records: an object has two, one of its birth and one of its end."""
MOST_UNWINDERS = 64
"""Kept at a time: a program that loads and unloads libraries has many states of its code."""
STACKS_A_CHUNK = 4096


def write_side_tables(
    writer: CaptureWriter,
    *,
    more: Callable[[Capture], None] = lambda capture: None,
    wrote: Callable[[], None] = lambda: None,
) -> Capture:
    """Writes everything that a complete capture has beside its records; returns the capture, as far as it was read.

    What needs little memory comes first: this may end at any point (collect/finishing.py).

    `more`: writes side tables of collectors, behind that of the modules.
    `wrote`: called when something more is in the files.
    """
    capture = Capture(writer.root)
    if _write_jit_code(capture, writer) + _write_unwound_stacks(capture, writer):
        wrote()
        capture.refresh()
    # A redacted capture holds last components only; the real paths are still known here.
    real = {_redacted(path): path for path in writer.strings.values()}
    modules = derive_table(capture, "modules", paths=real if writer.redact else None)
    writer.write_table("modules", modules)
    more(capture)
    for name in ("processes", "threads", "regions", "pinning"):
        writer.write_table(name, derive_table(capture, name))
    wrote()
    writer.write_table("sites", _sites(capture, writer, modules, real))
    wrote()
    variables = capture.table("variables")
    writer.write_table("variables", _redacted_variables(variables) if writer.redact else variables)
    wrote()
    # A reader makes objects from the records; with many of them even counting them would take gigabytes here.
    if capture.kinds().get("allocation", 0) <= MOST_ALLOCATIONS and capture.objects.count <= MOST_STORED:
        writer.write_table("objects", capture.objects.everything.table())
    capture.path = writer.path
    return capture


def _redacted(path: str) -> str:
    return redacted(path.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")


def _redacted_file(path: str | None) -> str | None:
    """Of a source file or module, which may be relative to a directory that a compiler was started in."""
    if not path:
        return path
    return _redacted(path if path.startswith("/") else os.path.basename(path) or path)


def _redacted_variables(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    for names, change in (
        (("module", "file"), _redacted_file),
        (("name", "type"), lambda text: text and redacted_text(text)),
    ):
        for name in names:
            at = table.schema.get_field_index(name)
            field = table.schema.field(at)
            changed = pa.array([change(text) for text in table.column(at).to_pylist()], field.type)
            table = table.set_column(at, field, changed)
    return table


def _sites(capture: Capture, writer: CaptureWriter, modules: pa.Table, real: dict[str, str]) -> pa.Table:
    """Names of all code that the capture mentions."""
    build_ids = {row["path"]: row["build_id"] for row in modules.to_pylist() if row["build_id"]}
    if writer.redact:
        build_ids = {real.get(path, path): build_id for path, build_id in build_ids.items()}
    notes: list[str] = []
    rows = name_codes(capture.replay.codes, writer.strings, jit_names(capture), build_ids=build_ids, notes=notes)
    if not writer.redact:
        writer.meta.setdefault("quality", {}).setdefault("notes", []).extend(notes)  # they hold paths
        writer.meta["unnamed_modules"] = unnamed_modules(rows, build_ids)
    else:
        for row in rows:
            for key in ("module", "file"):
                row[key] = _redacted_file(row[key])
            row["function"] = row["function"] and redacted_text(row["function"])
            row["inlined_into"] = [redacted_text(name) for name in row["inlined_into"] or ()]
    return site_table(rows)


def _write_jit_code(capture: Capture, writer: CaptureWriter) -> int:
    """Names of just-in-time code, from the files that compilers leave for perf."""
    codes = capture.replay.codes
    numbers = {int(p) for p, path in zip(codes["process"], codes["path"], strict=True) if path == 0 and p != 0}
    if not numbers:
        return 0
    pids = {row["process"]: row["pid"] for row in capture.table("processes").to_pylist()}
    dumps = defaultdict(set)
    for batch in capture.batches("mapping", columns=["path"]):
        for row in batch.to_pylist():
            name = os.path.basename(row["path"] or "")
            if name.startswith("jit-") and name.endswith(".dump"):
                dumps[row["process"]].add(row["path"])
    packer = Packer("jit_code")
    strings = Packer("string")
    next_id = max(writer.strings, default=0) + 1
    known: dict[str, int] = {}
    new_strings: list[bytes] = []
    written = 0

    def string_id(text: str) -> int:
        nonlocal next_id
        if not text:
            return 0
        if text not in known:
            known[text] = next_id
            new_strings.append(strings.pack(text.encode(), id=next_id))
            next_id += 1
        return known[text]

    for number in sorted(numbers):
        records: list[bytes] = []
        sources: list[tuple[int, list[tuple[int, int, int, str, str, int]]]] = []
        perf_map = Path(f"/tmp/perf-{pids.get(number, 0)}.map")
        if _is_of_this_run(perf_map, writer):
            sources.append((0, _core.read_perf_map(str(perf_map))))
        files = [file_of(path) for path in sorted(dumps[number])]
        sources.extend((1, _core.read_jitdump(path)) for path in files if os.path.isfile(path))
        for source, entries in sources:
            for begin, end, time_ns, name, file, line in entries:
                records.append(
                    packer.pack(
                        time_ns=time_ns, address=begin, bytes=end - begin, name=string_id(name), file=string_id(file),
                        line=line, source=source,
                    )
                )  # fmt: skip
        if records:
            writer.records("string", new_strings)
            new_strings.clear()
            writer.records("jit_code", records, process=number)
            written += len(records)
    return written


def _is_of_this_run(path: Path, writer: CaptureWriter) -> bool:
    """Anybody can write to /tmp and pids are reused: take a map of our user or root, written since the program began."""
    try:
        status = path.lstat()
    except OSError:
        return False
    began_ns = writer.meta.get("started_unix_ns", 0) if writer.meta.get("command") else 0
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid()) and status.st_mtime_ns >= int(began_ns)


def _write_unwound_stacks(capture: Capture, writer: CaptureWriter) -> int:
    """Stacks from the dumps of `--stacks dwarf`."""
    layout = layouts()["stack_dump"]
    mappings: dict[int, list[dict[str, Any]]] = defaultdict(list)
    stacks = Packer("stack")
    records: list[bytes] = []
    written = 0
    unwinders: OrderedDict[tuple[object, ...], _core.Unwinder] = OrderedDict()
    strings = writer.strings
    for header, payload in capture.payloads("stack_dump"):
        process = header["process"]
        if process not in mappings:
            for map_header, map_payload in capture.payloads("mapping"):
                if map_header["process"] == process:
                    mappings[process].extend(_mapping_rows(map_payload))
        for dump, tail in records_with_tails(layout, payload):
            visible = _executable_at(mappings[process], dump["time_ns"], strings)
            key = (process, visible)
            if key not in unwinders:
                unwinders[key] = _core.Unwinder(dump["machine"], list(visible))
                if len(unwinders) > MOST_UNWINDERS:
                    unwinders.popitem(last=False)
            unwinders.move_to_end(key)
            split = 8 * dump["register_count"]
            addresses = unwinders[key].unwind(dump["register_mask"], tail[:split], dump["stack_pointer"], tail[split:])
            ips = b"".join(address.to_bytes(8, "little") for address in addresses)
            records.append(stacks.pack(ips, id=dump["id"], unwinder=enum_value("unwinder", "dwarf"), process=process))
        if len(records) >= STACKS_A_CHUNK:
            writer.records("stack", records)
            written += len(records)
            records = []
    writer.records("stack", records)
    return written + len(records)


def _mapping_rows(payload: bytes) -> list[dict[str, int]]:
    import numpy as np

    rows = np.frombuffer(payload, dtype=layouts()["mapping"].dtype())
    return [
        {name: int(row[name]) for name in ("time_ns", "address", "bytes", "file_offset", "path", "protection", "inode")}
        for row in rows
        if row["protection"] & 4 and row["inode"]
    ]


def _executable_at(
    rows: list[dict[str, int]], time_ns: int, strings: dict[int, str]
) -> tuple[tuple[int, int, int, str], ...]:
    live: dict[int, tuple[int, int, int, str]] = {}
    for row in rows:
        if row["time_ns"] > time_ns:
            continue
        begin, end = row["address"], row["address"] + row["bytes"]
        for other in [o for o in live.values() if o[0] < end and begin < o[1]]:
            del live[other[0]]
        live[begin] = (begin, end, row["file_offset"], file_of(strings.get(row["path"], "")))
    return tuple(live[begin] for begin in sorted(live))
