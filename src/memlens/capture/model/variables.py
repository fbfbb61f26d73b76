"""Static and thread-local variables of the programs in a capture, at the addresses they had.

The native reader (native/core/symbols/variables.h) lists the variables of a file; this
module finds where each file was loaded in each process and thread. It knows nothing of
accesses: analyses join its table with theirs by address.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from ... import _core
from ..store.os_names import file_of
from .element_types import described_type

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.source import TableSource

LARGE_VARIABLE_BYTES = 1024
MOST_VARIABLES = 200_000
"""A capture with more (thousands of processes) lists those of LARGE_VARIABLE_BYTES and more only."""
NOTES_KEY = b"notes"
EXECUTABLE = 4
_SYSTEM_LIBRARY = re.compile(r"(/usr)?/lib(32|64|x32)?/")
_MAX_FORK_DEPTH = 1000
_ADDRESS_MASK = (1 << 64) - 1


def static_object_schema() -> pa.Schema:
    """One row a variable, process and program run in it (and thread, for thread-local ones)."""
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("base", pa.uint64()),
            ("bytes", pa.uint64()),
            ("module", pa.string()),
            ("file", pa.string()),
            ("line", pa.uint32()),
            ("type", pa.string()),
            ("element_bytes", pa.uint64()),
            ("padding_bytes", pa.uint64()),
            ("thread", pa.uint32()),
            ("born_ns", pa.uint64()),
            ("died_ns", pa.uint64()),
        ]
    )


def static_objects(capture: TableSource, *, min_bytes: int | None = None, all_modules: bool = False) -> pa.Table:
    """Variables of the mapped modules, with absolute addresses.

    Parameters
    ----------
    capture
        Needs mappings; thread-local variables also need the records `thread_memory` and
        `tls_module`, which the library inside the program writes.
    min_bytes
        Smaller variables are left out. Default: none, or below 1 KiB where there would be more than 200,000 in all.
    all_modules
        Also modules under /lib and /usr/lib.

    Returns
    -------
    pyarrow.Table
        `static_object_schema`. ``kind`` is ``static`` or ``tls``; ``thread`` is 0 for static variables.
        ``element_bytes`` is the distance of neighbouring elements of an array (the innermost
        dimension's), else the variable's size by its type, 0 where no type is known; ``padding_bytes`` are
        the unused bytes of one such element, without those inside its fields. ``born_ns`` is when the module
        was first seen mapped, ``died_ns`` when the process changed its program or ended (null: not seen).
        The schema's metadata has ``notes``: a JSON list of modules that could not be read.

    Notes
    -----
    What is approximate:

    - The files are read as they are now; where the capture knows the build-id that ran, another build is
      refused, else it is trusted.
    - A module is taken to stay where it is until the next exec or the end of the process: unloading
      (dlclose) is not seen. One that is mapped at two addresses is listed at both.
    - A forked child has what its parent had mapped at that moment, without new records.
    - Thread-local variables are listed for threads with a known thread pointer, and only for modules whose
      block is at a fixed distance from it (the program and the libraries it started with).
    - Without debug information variables have no type, file or line, and only exported ones may be known.
    """
    import pyarrow as pa

    schema = static_object_schema()
    runs = _program_runs(capture)
    tables: list[pa.Table] = []
    notes: list[str] = []
    for least in (1, LARGE_VARIABLE_BYTES) if min_bytes is None else (min_bytes,):
        notes = []
        loaded = _LoadedModules(capture, min_bytes=least, all_modules=all_modules, notes=notes)
        tables, rows = [], 0
        for table in (table for run in runs for table in loaded.tables(run)):
            tables.append(table)
            rows += table.num_rows
            if min_bytes is None and least == 1 and rows > MOST_VARIABLES:
                break
        else:
            break
    tables = [table.select(schema.names).cast(schema) for table in tables if table.num_rows]
    result = pa.concat_tables(tables) if tables else schema.empty_table()
    return result.replace_schema_metadata({NOTES_KEY: json.dumps(notes).encode()})


# ---- which files were where ---------------------------------------------------------
class FileMapping(TypedDict):
    """A record `mapping` of a file."""

    process: int
    time_ns: int
    address: int
    bytes: int
    file_offset: int
    path: str
    inode: int
    protection: int
    operation: str


class _ProcessEvent(TypedDict):
    process: int
    time_ns: int
    operation: str
    parent_process: int


class _TlsModule(TypedDict):
    process: int
    time_ns: int
    module_address: int
    offset: int
    path: str | None


class _ThreadMemory(TypedDict):
    process: int
    time_ns: int
    thread_pointer: int
    thread: int


@dataclass
class _ProgramRun:
    """A process between two execs."""

    process: int
    begin_ns: int
    end_ns: int | None
    mappings: list[FileMapping] = field(default_factory=list)
    tls_modules: list[_TlsModule] = field(default_factory=list)
    threads: list[_ThreadMemory] = field(default_factory=list)


def _process_events(capture: TableSource) -> Iterator[_ProcessEvent]:
    for batch in capture.batches("process_event", columns=["time_ns", "operation", "parent_process"]):
        yield from batch.to_pylist()


def _tls_modules(capture: TableSource) -> Iterator[_TlsModule]:
    for batch in capture.batches("tls_module", columns=["time_ns", "module_address", "offset", "path"]):
        yield from batch.to_pylist()


def _thread_memory(capture: TableSource) -> Iterator[_ThreadMemory]:
    for batch in capture.batches("thread_memory", columns=["time_ns", "thread_pointer", "thread"]):
        yield from batch.to_pylist()


def _file_mappings(capture: TableSource) -> Iterator[FileMapping]:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ["time_ns", "address", "bytes", "file_offset", "path", "inode", "protection", "operation"]
    none = pa.scalar(0, pa.uint64())  # a plain 0 is signed: larger inodes would not fit
    for batch in capture.batches("mapping", columns=columns):
        of_file = pc.and_(pc.greater(batch.column("inode"), none), pc.is_valid(batch.column("path")))
        for row in batch.filter(of_file).to_pylist():
            if row["operation"] in ("map", "found") and not row["path"].startswith("["):
                yield row


def _program_runs(capture: TableSource) -> list[_ProgramRun]:
    execs: dict[int, list[int]] = defaultdict(list)
    forks: dict[int, tuple[int, int]] = {}
    exits: dict[int, int] = {}
    for event in _process_events(capture):
        if event["operation"] == "exec":
            execs[event["process"]].append(event["time_ns"])
        elif event["operation"] == "fork" and event["parent_process"]:
            forks.setdefault(event["process"], (event["parent_process"], event["time_ns"]))
        elif event["operation"] == "exit":
            exits[event["process"]] = event["time_ns"]
    for times in execs.values():
        times.sort()
    runs: dict[tuple[int, int], _ProgramRun] = {}

    def run_at(process: int, time_ns: int) -> _ProgramRun:
        times = execs[process]
        generation = bisect_right(times, time_ns)
        if (process, generation) not in runs:
            begin_ns = times[generation - 1] if generation else forks.get(process, (0, 0))[1]
            end_ns = times[generation] if generation < len(times) else exits.get(process)
            runs[process, generation] = _ProgramRun(process, begin_ns, end_ns)
        return runs[process, generation]

    for row in _file_mappings(capture):
        run_at(row["process"], row["time_ns"]).mappings.append(row)
    for block in _tls_modules(capture):
        run_at(block["process"], block["time_ns"]).tls_modules.append(block)
    for memory in _thread_memory(capture):
        run_at(memory["process"], memory["time_ns"]).threads.append(memory)

    # Parents first: a child inherits what its parent inherited.
    inherited: set[int] = set()

    def inherit(process: int, depth: int) -> None:
        if process in inherited or process not in forks or depth > _MAX_FORK_DEPTH:
            return
        inherited.add(process)
        parent, time_ns = forks[process]
        inherit(parent, depth + 1)
        if bisect_right(execs[process], time_ns):
            return  # it changed its program at once
        before, child = run_at(parent, time_ns), run_at(process, time_ns)
        child.mappings = [row for row in before.mappings if row["time_ns"] <= time_ns] + child.mappings
        child.tls_modules = [row for row in before.tls_modules if row["time_ns"] <= time_ns] + child.tls_modules

    for process in forks:
        inherit(process, 0)
    return [runs[key] for key in sorted(runs)]


def load_addresses(segments: list[tuple[int, int, int, int, bool]], mappings: Iterable[FileMapping],
                   *, page_bytes: int) -> list[int]:  # fmt: skip
    """What is added to a file's virtual addresses, for each time it is loaded.

    A mapping begins on a page boundary, where the end of the segment before may lie as well; so code is
    asked first, of which there is usually one segment, and otherwise the address most mappings agree on.
    """
    votes: Counter[int] = Counter()
    code_votes: Counter[int] = Counter()
    for row in mappings:
        offset = row["file_offset"]
        for file_offset, file_bytes, vaddr, _, executable in segments:
            if file_offset - file_offset % page_bytes <= offset < file_offset + file_bytes:
                base = (row["address"] - (vaddr - file_offset + offset)) & _ADDRESS_MASK
                if base % page_bytes:
                    continue
                votes[base] += 1
                if executable and row["protection"] & EXECUTABLE:
                    code_votes[base] += 1
    if code_votes:
        return sorted(code_votes)
    return [votes.most_common(1)[0][0]] if votes else []


# ---- what the files hold ---------------------------------------------------------------
@dataclass
class _Module:
    """The variables of one file, made once for all processes."""

    segments: list[tuple[int, int, int, int, bool]]
    static: pa.Table
    thread_local: pa.Table


class _LoadedModules:
    def __init__(self, capture: TableSource, *, min_bytes: int, all_modules: bool, notes: list[str]) -> None:
        self._min_bytes = min_bytes
        self._all_modules = all_modules
        self._notes = notes
        self._page_bytes = int(capture.meta.get("machine", {}).get("page_bytes", 4096))
        self._modules: dict[str, _Module | None] = {}
        self._build_ids: dict[str, str] = {}
        if capture.complete:
            for row in capture.table("modules").to_pylist():
                if row["build_id"]:
                    self._build_ids[row["path"]] = row["build_id"]

    def _module(self, path: str) -> _Module | None:
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def _read(self, path: str) -> _Module | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        module = _core.ModuleVariables(file_of(path), build_id=self._build_ids.get(path, ""))
        if module.status:
            # Data files are mapped too: only what was code is missed.
            if "not an ELF file" not in module.status:
                self._notes.append(module.status)
            return None
        if module.truncated:
            self._notes.append(f"{path}: its debug information is damaged; variables are missing")
        columns = module.variables(min_bytes=self._min_bytes)
        shapes = _element_shapes(module, columns["type_id"].tolist())
        table = pa.table(
            {
                "vaddr": pa.array(columns["vaddr"]),
                "is_tls": pa.array(columns["is_tls"].astype(bool)),
                "name": pa.array(columns["name"], type=pa.string()),
                "bytes": pa.array(columns["bytes"]),
                "module": pa.array([path] * len(columns["name"]), type=pa.string()),
                "file": _text_or_null(columns["file"]),
                "line": pa.array(columns["line"]),
                "type": _text_or_null(columns["type"]),
                "element_bytes": pa.array([shape[0] for shape in shapes], type=pa.uint64()),
                "padding_bytes": pa.array([shape[1] for shape in shapes], type=pa.uint64()),
            }
        )
        is_tls = table.column("is_tls")
        return _Module(
            segments=[tuple(segment) for segment in module.segments()],
            static=table.filter(pc.invert(is_tls)),
            thread_local=table.filter(is_tls),
        )

    def tables(self, run: _ProgramRun) -> Iterator[pa.Table]:
        """The variables of one program run."""
        by_path: dict[str, list[FileMapping]] = defaultdict(list)
        for row in run.mappings:
            own = row["path"].endswith("libmemlens.so")
            if self._all_modules or not (own or _SYSTEM_LIBRARY.match(row["path"])):
                by_path[row["path"]].append(row)
        modules: dict[int, tuple[str, _Module]] = {}
        for path, rows in by_path.items():
            module = self._module(path)
            if module is None:
                continue
            # What was found mapped was there before.
            born_ns = min(run.begin_ns if row["operation"] == "found" else row["time_ns"] for row in rows)
            born_ns = max(run.begin_ns, born_ns)
            for address in load_addresses(module.segments, rows, page_bytes=self._page_bytes):
                modules[address] = (path, module)
                yield _placed(module.static, "static", address, run, thread=0, born_ns=born_ns)
        yield from self._thread_tables(run, modules)

    def _thread_tables(self, run: _ProgramRun, modules: dict[int, tuple[str, _Module]]) -> Iterator[pa.Table]:
        threads: dict[tuple[int, int], int] = {}  # (thread, pointer) → first seen
        known = {row["thread_pointer"] for row in run.threads if row["thread"]}
        for row in run.threads:
            # A thread just created has no number yet; its own record gives the same pointer later.
            if row["thread_pointer"] and (row["thread"] or row["thread_pointer"] not in known):
                threads.setdefault((row["thread"], row["thread_pointer"]), row["time_ns"])
        offsets: dict[int, tuple[_Module, int]] = {}
        for block in run.tls_modules:
            found = modules.get(block["module_address"])
            if found is None and block["path"]:
                found = next((entry for entry in modules.values() if entry[0] == block["path"]), None)
            if found is not None and found[1].thread_local.num_rows:
                offsets[block["module_address"]] = (found[1], block["offset"])
        for (thread, pointer), seen_ns in threads.items():
            for module, offset in offsets.values():
                base = (pointer + offset) & _ADDRESS_MASK
                yield _placed(module.thread_local, "tls", base, run, thread=thread, born_ns=seen_ns)


def _placed(table: pa.Table, kind: str, address: int, run: _ProgramRun, *, thread: int, born_ns: int) -> pa.Table:
    """A module's variables at one address; texts are shared, not copied."""
    import numpy as np
    import pyarrow as pa

    count = table.num_rows
    # Sums of addresses wrap around as the processor's do.
    base = table.column("vaddr").to_numpy() + np.uint64(address)
    constants = {
        "process": pa.scalar(run.process, pa.uint32()),
        "kind": pa.scalar(kind, pa.string()),
        "thread": pa.scalar(thread, pa.uint32()),
        "born_ns": pa.scalar(born_ns, pa.uint64()),
        "died_ns": pa.scalar(run.end_ns, pa.uint64()),
    }
    for name, value in constants.items():
        table = table.append_column(name, pa.repeat(value, count))
    return table.append_column("base", pa.array(base, type=pa.uint64()))


def _element_shapes(module: _core.ModuleVariables, type_ids: list[int]) -> list[tuple[int, int]]:
    """(element bytes, padding bytes of an element) of each type; (0, 0) where none is known."""
    known: dict[int, tuple[int, int]] = {0: (0, 0)}
    for type_id in type_ids:
        if type_id in known:
            continue
        described = described_type(module, type_id)
        stride = 0
        for _ in range(32):  # arrays of typedefs of arrays
            if described is None or described["kind"] != "array":
                break
            stride = described["element_bytes"]
            described = described_type(module, described["element_id"])
        padding = described["padding_bytes"] if described is not None else 0
        known[type_id] = (stride or (described["bytes"] if described is not None else 0), padding)
    return [known[type_id] for type_id in type_ids]


def _text_or_null(texts: list[str]) -> pa.Array:
    import pyarrow as pa

    return pa.array([text or None for text in texts], type=pa.string())
