"""Tables of what ran: processes, threads, modules, regions, pinning. Made of records alone, when a recording ends or when it was cut short."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from ... import _core
from ..model.pinning import pinned
from ..store.os_names import file_of
from ..store.source import RecordSource
from .descriptor import PROCESS, THREAD, TableDescriptor

if TYPE_CHECKING:
    import pyarrow as pa


def _processes_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()),
            ("pid", pa.uint32()),
            ("parent", pa.uint32()),
            ("name", pa.string()),
            ("program", pa.string()),
            ("begin_ns", pa.uint64()),
            ("end_ns", pa.uint64()),
            ("execs", pa.uint32()),
            ("threads", pa.uint32()),
            ("status", pa.int32()),
        ]
    )


def _threads_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()),
            ("thread", pa.uint32()),
            ("name", pa.string()),
            ("begin_ns", pa.uint64()),
            ("end_ns", pa.uint64()),
        ]
    )


def _modules_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("path", pa.string()),
            ("inode", pa.uint64()),
            ("device_major", pa.uint32()),
            ("device_minor", pa.uint32()),
            ("build_id", pa.string()),
            ("processes", pa.uint32()),
            ("status", pa.string()),
        ]
    )


def _regions_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("name", pa.string()),
            ("kind", pa.string()),
            ("process", pa.uint32()),
            ("thread", pa.uint32()),
            ("begin_ns", pa.uint64()),
            ("end_ns", pa.uint64()),
            ("depth", pa.uint32()),
            ("parent", pa.string()),
            ("open", pa.bool_()),
            ("executions", pa.uint64()),
            ("sampled", pa.bool_()),
        ]
    )


def _pinning_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("process", pa.uint32()),
            ("thread", pa.uint32()),
            ("time_ns", pa.uint64()),
            ("operation", pa.string()),
            ("policy", pa.uint16()),
            ("members", pa.list_(pa.uint32())),
        ]
    )


class _ProcessEvent(TypedDict):
    """A record `process_event`."""

    process: int
    time_ns: int
    pid: int
    thread: int
    parent_process: int
    parent_thread: int
    status: int
    name: str | None
    operation: str


class ProcessRow(TypedDict):
    """A row of `processes`."""

    process: int
    pid: int
    parent: int
    name: str | None
    program: str | None
    begin_ns: int
    end_ns: int | None
    execs: int
    threads: int
    status: int | None


class ThreadRow(TypedDict):
    """A row of `threads`."""

    process: int
    thread: int
    name: str | None
    begin_ns: int
    end_ns: int | None


class CodeMapping(TypedDict):
    """A record `mapping` of code, and its process."""

    process: int
    path: str
    protection: int
    inode: int
    device_major: int
    device_minor: int


class ModuleRow(TypedDict):
    """A row of `modules`."""

    path: str
    inode: int
    device_major: int
    device_minor: int
    build_id: str
    processes: int
    status: str


class PinningRow(TypedDict):
    """A row of `pinning`."""

    process: int
    thread: int
    time_ns: int
    operation: str
    policy: int
    members: list[int]


class _RegionEvent(TypedDict):
    """A record `region_event`."""

    process: int
    time_ns: int
    thread: int
    operation: str
    region: str
    parent: str | None
    executions: int
    sampled_ns: int


class RegionRow(TypedDict):
    """A row of `regions`."""

    name: str
    kind: str
    process: int
    thread: int
    begin_ns: int
    end_ns: int | None
    depth: int
    parent: str | None
    open: bool
    executions: int
    sampled: bool


def process_rows(capture: RecordSource) -> tuple[list[ProcessRow], list[ThreadRow]]:
    """Processes and threads from process events."""
    events: list[_ProcessEvent] = []
    for batch in capture.batches("process_event"):
        events.extend(batch.to_pylist())
    events.sort(key=lambda event: event["time_ns"])
    processes: dict[int, ProcessRow] = {}
    threads: dict[tuple[int, int], ThreadRow] = {}
    for event in events:
        number, tid, now = event["process"], event["thread"], event["time_ns"]
        process = processes.setdefault(
            number,
            ProcessRow(process=number, pid=event["pid"], parent=0, name=None, program=None, begin_ns=now, end_ns=None,
                       execs=0, threads=0, status=None),
        )  # fmt: skip
        thread = threads.setdefault(
            (number, tid), ThreadRow(process=number, thread=tid, name=None, begin_ns=now, end_ns=None)
        )
        operation = event["operation"]
        if operation == "fork":
            process["parent"] = event["parent_process"]
            parent = processes.get(event["parent_process"])
            if parent is not None:
                process["name"] = process["name"] or parent["name"]
                process["program"] = process["program"] or parent["program"]
                thread["name"] = process["name"]
        elif operation == "thread":
            creator = threads.get((number, event["parent_thread"]))
            thread["name"] = thread["name"] or (creator["name"] if creator else process["name"])
        elif operation in ("exec", "name"):
            path, name = event["name"], os.path.basename(event["name"] or "")
            thread["name"] = name
            if operation == "exec":
                process["execs"] += 1
                process["program"] = path if name != path else None  # the kernel only gives a name
            if operation == "exec" or tid == process["pid"]:
                process["name"] = name
        elif operation == "exit":
            process["end_ns"] = process["end_ns"] or now
            thread["end_ns"] = thread["end_ns"] or now
            if event["status"] != -1:
                process["status"] = event["status"]
        elif operation == "thread_exit":
            thread["end_ns"] = now
    for number, _ in threads:
        processes[number]["threads"] += 1
    programs = _programs(capture)
    for process in processes.values():
        process["program"] = process["program"] or programs.get(process["process"])
    return list(processes.values()), list(threads.values())


def executable_mappings(capture: RecordSource) -> list[CodeMapping]:
    """Mappings of code from files, in the order of recording."""
    import pyarrow as pa
    import pyarrow.compute as pc

    none = pa.scalar(0, pa.uint64())  # a plain 0 is signed: larger inodes would not fit
    rows: list[CodeMapping] = []
    for batch in capture.batches("mapping", columns=["path", "protection", "inode", "device_major", "device_minor"]):
        code = pc.and_(
            pc.greater_equal(batch.column("protection"), 4),
            pc.and_(pc.greater(batch.column("inode"), none), pc.is_valid(batch.column("path"))),
        )
        rows.extend(batch.filter(code).to_pylist())
    return rows


def _programs(capture: RecordSource) -> dict[int, str]:
    """The executable of each process: the file of its first executable mapping."""
    found: dict[int, str] = {}
    for row in executable_mappings(capture):
        found.setdefault(row["process"], row["path"])
    return found


def module_rows(capture: RecordSource, *, paths: dict[str, str] | None = None) -> list[ModuleRow]:
    """Executable files that were mapped, with the build-id of the file as it is now.

    `paths` maps a recorded path to the real one when the capture is redacted.
    """
    modules: dict[tuple[str, int], ModuleRow] = {}
    users: dict[tuple[str, int], set[int]] = {}
    for row in executable_mappings(capture):
        key = (row["path"], row["inode"])
        users.setdefault(key, set()).add(row["process"])
        if key in modules:
            continue
        real = file_of((paths or {}).get(row["path"], row["path"]))
        build_id, status = "", ""
        try:
            if os.stat(real).st_ino != row["inode"]:
                status = "the file was replaced since it ran"
            else:
                build_id = _core.read_build_id(real)
        except OSError:
            status = "the file is not there"
        modules[key] = ModuleRow(
            path=row["path"], inode=row["inode"], device_major=row["device_major"], device_minor=row["device_minor"],
            build_id=build_id, processes=0, status=status,
        )  # fmt: skip
    for key, numbers in users.items():
        modules[key]["processes"] = len(numbers)
    return list(modules.values())


def pinning_rows(capture: RecordSource) -> list[PinningRow]:
    return [
        PinningRow(process=row["process"], thread=row["thread"], time_ns=row["time_ns"], operation=row["operation"],
                   policy=row["policy"], members=row["members"])
        for row in pinned(capture)
    ]  # fmt: skip


def region_rows(capture: RecordSource) -> list[RegionRow]:
    """Regions from their begin and end events, and phases, each until the process's next one.

    A begin without an end lasts until its thread's end, or the capture's, and is `open`. An end
    closes the innermost open region of its name; what was begun inside it ends with it, `open` too.
    """
    events: list[_RegionEvent] = []
    for batch in capture.batches("region_event"):
        events.extend(batch.to_pylist())
    if not events:
        return []
    events.sort(key=lambda event: event["time_ns"])
    process_table, thread_table = process_rows(capture)
    process_ends = {row["process"]: row["end_ns"] for row in process_table}
    thread_ends = {(row["process"], row["thread"]): row["end_ns"] for row in thread_table}
    last_ns = max(capture.end_ns, events[-1]["time_ns"])
    rows: list[RegionRow] = []
    running: dict[tuple[int, int], list[RegionRow]] = {}
    phases: dict[int, RegionRow] = {}
    for event in events:
        process, now = event["process"], event["time_ns"]
        executions = event["executions"] or 1
        row = RegionRow(name=event["region"], kind="region", process=process, thread=event["thread"], begin_ns=now, end_ns=None,
                        depth=0, parent=None, open=True, executions=executions,
                        sampled=executions > 1 or event["sampled_ns"] > 0)  # fmt: skip
        if event["operation"] == "phase":
            before = phases.get(process)
            if before is not None:
                before.update({"end_ns": now, "open": False})
            row.update({"kind": "phase", "thread": 0})
            phases[process] = row
            rows.append(row)
            continue
        stack = running.setdefault((process, event["thread"]), [])
        if event["operation"] == "begin":
            row.update({"depth": len(stack), "parent": stack[-1]["name"] if stack else event["parent"]})
            stack.append(row)
            rows.append(row)
        elif event["operation"] == "end":
            at = next((i for i in reversed(range(len(stack))) if stack[i]["name"] == event["region"]), None)
            if at is None:
                continue  # began before the recording
            for inner in stack[at + 1 :]:
                inner["end_ns"] = now
            begun = stack[at]
            begun.update({"end_ns": now, "open": False, "executions": max(begun["executions"], executions),
                          "sampled": begun["sampled"] or row["sampled"]})  # fmt: skip
            del stack[at:]
    for row in rows:
        if row["end_ns"] is None:
            end_ns = thread_ends.get((row["process"], row["thread"])) or process_ends.get(row["process"]) or last_ns
            row["end_ns"] = max(end_ns, row["begin_ns"])
    return rows


def _processes(capture: RecordSource) -> pa.Table:
    return _table(process_rows(capture)[0], _processes_schema())


def _threads(capture: RecordSource) -> pa.Table:
    return _table(process_rows(capture)[1], _threads_schema())


def modules_table(capture: RecordSource, *, paths: dict[str, str] | None = None) -> pa.Table:
    """Table `modules`; `paths` as in `module_rows`."""
    return _table(module_rows(capture, paths=paths), _modules_schema())


def _regions(capture: RecordSource) -> pa.Table:
    return _table(region_rows(capture), _regions_schema())


def _pinning(capture: RecordSource) -> pa.Table:
    return _table(pinning_rows(capture), _pinning_schema())


def _table(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=schema)


TABLES = (
    TableDescriptor(
        name="processes",
        text="One row for each process.",
        make=_processes,
        schema=_processes_schema,
        columns={
    "process": PROCESS,
    "pid": "kernel process id (they are reused, process numbers are not)",
    "parent": "process number of the parent, 0 = not in the capture",
    "name": "last name it had (15 characters, the kernel's limit)",
    "program": "executable file",
    "begin_ns": "fork, or first seen",
    "end_ns": "exit, null = still running",
    "execs": "successful exec calls",
    "threads": "threads over its life",
    "status": "wait status of the main program, null for others (`status >> 8` is the exit status)",
},
    ),
    TableDescriptor(
        name="threads",
        text="One row for each thread.",
        make=_threads,
        schema=_threads_schema,
        columns={
    "process": PROCESS,
    "thread": THREAD,
    "name": "last name it had",
    "begin_ns": "start",
    "end_ns": "exit, null = not seen",
},
    ),
    TableDescriptor(
        name="modules",
        text="Executable files that were mapped.",
        make=modules_table,
        schema=_modules_schema,
        columns={
    "path": "file",
    "inode": "inode when it was mapped",
    "device_major": "device of the file",
    "device_minor": "device of the file",
    "build_id": "GNU build-id, empty = none or not readable",
    "processes": "processes that mapped it",
    "status": "why it could not be read (replaced, gone), empty = fine",
},
    ),
    TableDescriptor(
        name="regions",
        text="Regions of interest, one row for each execution, and phases of processes.",
        make=_regions,
        schema=_regions_schema,
        columns={
    "name": "name",
    "kind": "region or phase (which lasts until the process's next phase)",
    "process": PROCESS,
    "thread": "kernel thread id, 0 for a phase",
    "begin_ns": "begin",
    "end_ns": "end",
    "depth": "regions around it in its thread",
    "parent": "the region around it, null = none",
    "open": "no end was recorded: it ends with what encloses it, its thread or the capture",
    "executions": "executions that it stands for",
    "sampled": "only some executions were measured",
},
    ),
    TableDescriptor(
        name="pinning",
        text="CPUs that threads may run on and memory policies, with the bit masks decoded.",
        make=_pinning,
        schema=_pinning_schema,
        columns={
    "process": PROCESS,
    "thread": THREAD + "; 0: another thread's handle was given, and that thread was never seen",
    "time_ns": "when",
    "operation": "what was called; found = as it was read from outside",
    "policy": "MPOL_* number of the kernel",
    "members": "CPU or node numbers",
},
    ),
)  # fmt: skip
