"""Names for code addresses: native symbols by file, just-in-time code by process.

The recorder names everything at the end of a run and keeps it in the side table
``sites``, so that a capture can be read on another machine. A capture that was cut
short is named when it is read, from the files as they are then.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, cast

from ... import _core
from ..store.counted_modules import ElfHeaders
from ..store.os_names import file_of
from .debug_servers import DebugServers, packages_of, symbols_remedy

if TYPE_CHECKING:
    import pyarrow as pa

    from ...arrays import Columns
    from ..store.meta import UnnamedModule
    from ..store.source import TableSource

Progress = Callable[[int, int, str], None]

SITE_COLUMNS = (
    "id", "module", "file_offset", "process", "function", "file", "line", "column", "inlined_into",
    "kind", "bytes", "class", "stride_bytes", "loop", "quality", "nearest",
)  # fmt: skip

OWN_SECTION = "memlens_runtime"
"""The section with the code that `memlens cc` links into a program (CMakeLists.txt names it)."""
OWN_CODE = "memlens"
"""Kind of a site in that section."""


def site_schema() -> pa.Schema:
    """Static code locations; the columns after `inlined_into` belong to compiled-in collectors, but for the kind of
    our own code in a program."""
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.uint32()),
            ("module", pa.string()),
            ("file_offset", pa.uint64()),
            ("process", pa.uint32()),
            ("function", pa.string()),
            ("file", pa.string()),
            ("line", pa.uint32()),
            ("column", pa.uint32()),
            ("inlined_into", pa.list_(pa.string())),
            ("kind", pa.string()),
            ("bytes", pa.uint32()),
            ("class", pa.string()),
            ("stride_bytes", pa.int64()),
            ("loop", pa.string()),
            ("quality", pa.string()),
            ("nearest", pa.string()),
        ]
    )


class JitNames:
    """Just-in-time code of one process, by address and time."""

    def __init__(self, entries: list[tuple[int, int, int, str, str, int]]) -> None:
        # Later entries of the same address override earlier ones from their time on.
        self._entries = sorted(entries, key=lambda entry: (entry[0], entry[2]))
        self._begins = [entry[0] for entry in self._entries]

    def find(self, address: int, time_ns: int) -> tuple[str, str, int] | None:
        best = None
        at = bisect_right(self._begins, address) - 1
        for index in range(at, max(-1, at - 64), -1):
            begin, end, since_ns, name, file, line = self._entries[index]
            if address < end and since_ns <= time_ns:
                best = (name, file, line)
                break
            if begin + (1 << 24) < address:
                break
        return best


def jit_names(capture: TableSource) -> dict[int, JitNames]:
    """From the capture's own jit_code records, by process."""
    entries: dict[int, list[tuple[int, int, int, str, str, int]]] = defaultdict(list)
    for batch in capture.batches("jit_code"):
        for row in batch.to_pylist():
            entries[row["process"]].append(
                (
                    row["address"],
                    row["address"] + row["bytes"],
                    row["time_ns"],
                    row["name"] or "",
                    row["file"] or "",
                    row["line"],
                )
            )
    return {process: JitNames(list_) for process, list_ in entries.items()}


def readable(name: str) -> str:
    """A linkage name demangled, a clone's suffix beside it; other names as they are.

    >>> readable("_Z3fooi.isra.0"), readable("_Z3fooi.omp_outlined."), readable("memcpy")
    ('foo(int) [clone .isra.0]', 'foo(int) [clone .omp_outlined.]', 'memcpy')
    """
    return str(_core.demangle(name))


UNKNOWN_FILE = re.compile(r"<unknown|\?\?")


def known_place(file: str | None, line: int | None) -> tuple[str | None, int]:
    """A file and a line, or none of both: line 0 is code that no line has (merged or made by the compiler).

    >>> known_place("a.c", 3), known_place("a.c", 0), known_place("<unknown file>", 7)
    (('a.c', 3), (None, 0), (None, 0))
    """
    return (file, line) if file and line and not UNKNOWN_FILE.match(file) else (None, 0)


def known_places(table: pa.Table) -> pa.Table:
    """The same for the columns `file` and `line` of a table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file, line = table.column("file").cast(pa.string()), table.column("line")
    no_line = pc.equal(pc.fill_null(line, 0), 0)
    unknown = pc.or_(no_line, pc.fill_null(pc.match_substring_regex(file, "^(?:<unknown|[?][?])"), False))
    if not pc.any(pc.and_(unknown, file.is_valid())).as_py():
        return table
    file = pc.if_else(unknown, pa.scalar(None, pa.string()), file).cast(table.schema.field("file").type)
    line = pc.if_else(unknown, pa.scalar(0, line.type), line)
    table = table.set_column(table.column_names.index("file"), table.schema.field("file"), file)
    return table.set_column(table.column_names.index("line"), table.schema.field("line"), line)


SiteRow = TypedDict(
    "SiteRow",
    {
        "id": int, "module": str, "file_offset": int, "process": int, "function": str | None, "file": str | None, "line": int,
        "column": int, "inlined_into": list[str], "kind": str | None, "bytes": int | None, "class": str | None,
        "stride_bytes": int | None, "loop": str | None, "quality": str | None, "nearest": str | None,
    },
)  # fmt: skip
"""A row of `sites`."""


def name_codes(
    codes: Columns,
    paths: dict[int, str],
    jit: dict[int, JitNames],
    *,
    build_ids: dict[str, str] | None = None,
    progress: Progress | None = None,
    notes: list[str] | None = None,
) -> list[SiteRow]:
    """Site rows for the replay's codes, in their order.

    Parameters
    ----------
    codes
        Columns of `Replay.codes`.
    paths
        String id → path.
    jit
        Names of just-in-time code by process number.
    build_ids
        Path → build-id that the module had when it ran; another file at that path is refused.
    progress
        Called with (modules done, modules, path).
    notes
        Gets a note for each module whose split debug information is missing or stale.
    """
    rows: list[SiteRow] = []
    by_path: dict[int, list[int]] = defaultdict(list)
    columns = (codes[name].tolist() for name in ("path", "process", "address", "time_ns", "executable"))
    for index, (path, process, address, time_ns, executable) in enumerate(zip(*columns, strict=True)):
        row: SiteRow = {
            "id": index, "module": paths.get(path, ""), "file_offset": address, "process": process, "function": None, "file": None,
            "line": 0, "column": 0, "inlined_into": [], "kind": None, "bytes": None, "class": None, "stride_bytes": None, "loop": None,
            "quality": None, "nearest": None,
        }  # fmt: skip
        rows.append(row)
        if path:
            by_path[path].append(index)
            continue
        named = jit[process].find(address, time_ns) if process in jit else None
        if named is not None:
            file, line = known_place(named[1], named[2])
            row.update({"module": "[jit]", "function": named[0], "file": file, "line": line, "quality": "jit"})
        else:
            row.update({"module": "[jit]" if executable else "[unknown]", "function": None, "quality": "none"})
    with DebugServers() as servers:
        _name_native(rows, by_path, paths, build_ids or {}, servers, progress, notes)
    return rows


def _open_module(path: str, build_id: str, servers: DebugServers) -> _core.ModuleSymbols:
    """A module's symbols; without debug information here, with that of a server."""
    path = file_of(path)
    module = _core.ModuleSymbols(path, build_id=build_id)
    if module.status or module.quality == "dwarf" or not servers.enabled:
        return module
    directories = servers.directories(module.build_id)
    return (
        module if directories is None else _core.ModuleSymbols(path, build_id=build_id, debug_directories=directories)
    )


def _name_native(
    rows: list[SiteRow], by_path: dict[int, list[int]], paths: dict[int, str], build_ids: dict[str, str],
    servers: DebugServers, progress: Progress | None, notes: list[str] | None,
) -> None:  # fmt: skip
    """Names of the code of files, put into their rows."""
    for done, (path, indices) in enumerate(by_path.items()):
        text = paths.get(path, "")
        if progress is not None:
            progress(done, len(by_path), text)
        if text.startswith("["):
            continue
        module = _open_module(text, build_ids.get(text, ""), servers)
        quality = module.quality if not module.status else "none"
        own_begin, own_end = _own_code(text) if not module.status else (0, 0)
        resolved = module.resolve([rows[index]["file_offset"] for index in indices])
        if notes is not None and module.split_note:
            notes.append(f"{os.path.basename(text)}: {module.split_note}.")
        for index, frames in zip(indices, resolved, strict=True):
            row = rows[index]
            row["quality"] = quality
            if own_begin <= row["file_offset"] < own_end:
                row["kind"] = OWN_CODE
            if not frames or not frames[0][0]:
                near = cast("tuple[str, int] | None", module.nearest(row["file_offset"]))
                row["nearest"] = f"{near[0]}+{near[1]:#x}" if near else None
            if not frames:
                continue
            function, named_file, named_line, column, _ = frames[0]
            file, line = known_place(named_file, named_line)
            row.update({"function": function or None, "file": file, "line": line, "column": column if line else 0})
            row["inlined_into"] = [
                f"{outer[0]} ({os.path.basename(outer[1])}:{outer[2]})"
                if known_place(outer[1], outer[2])[0]
                else outer[0]
                for outer in frames[1:]
            ]


def unnamed_modules(rows: list[SiteRow], build_ids: dict[str, str], *, most: int = 3) -> list[UnnamedModule]:
    """Modules with most code addresses that have no name, and where their symbols are."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["function"] is None and row["module"] and not row["module"].startswith("["):
            counts[row["module"]] += 1
    found = sorted(
        ((path, count) for path, count in counts.items() if count >= LEAST_UNNAMED), key=lambda item: -item[1]
    )
    packages = packages_of([path for path, _ in found[:most]])
    return [
        {"module": path, "addresses": count, "build_id": build_ids.get(path, ""),
         "remedy": symbols_remedy(build_ids.get(path, ""), packages.get(path))}
        for path, count in found[:most]
    ]  # fmt: skip


LEAST_UNNAMED = 10


def _own_code(path: str) -> tuple[int, int]:
    """Where in a file the code lies that memlens linked into it; (0, 0) in most."""
    try:
        with ElfHeaders(file_of(path)) as file:
            return file.place(OWN_SECTION)
    except (OSError, ValueError):
        return 0, 0


def site_table(rows: list[SiteRow]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=site_schema())


def _stored_sites(capture: TableSource) -> pa.Table | None:
    """The side table, unless it is not there or another version's."""
    import pyarrow as pa

    from ..store.side_tables import read_side_table

    file = capture.path / "sites.parquet"
    if not capture.complete or not os.path.lexists(file) or not capture.is_as_written(file.name):
        return None
    schema = site_schema()
    older = pa.schema([field for field in schema if field.name != "nearest"])
    table = read_side_table(file, older)
    if table is not None and "nearest" not in table.column_names:  # of an older version
        table = table.append_column("nearest", pa.nulls(table.num_rows, pa.string()))
    return table


def sites_of_codes(capture: TableSource, codes: Columns) -> pa.Table:
    """Sites in the order of the replay's codes: from the side table, or named now."""
    table = _stored_sites(capture)
    strings = capture.strings()
    if table is not None and table.num_rows == len(codes["path"]):
        modules = table.column("module").to_pylist()
        offsets = table.column("file_offset").to_pylist()
        same = all(
            offset == address and (not path or strings.get(path, "") == module)
            for offset, address, path, module in zip(
                offsets, codes["address"].tolist(), codes["path"].tolist(), modules, strict=True
            )
        )
        if same:
            return known_places(table)
    build_ids = {
        row["path"]: row["build_id"]
        for row in capture.table("modules").to_pylist()
        if capture.complete and row["build_id"]
    }
    return site_table(name_codes(codes, strings, jit_names(capture), build_ids=build_ids))
