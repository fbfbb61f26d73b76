"""Side tables derived from records: what the recorder writes at the end, and what a
reader makes itself from a capture that was cut short."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from ... import _core
from ..store.os_names import file_of
from ..store.source import RecordSource, TableSource

if TYPE_CHECKING:
    import pyarrow as pa

    from ..model.objects import Objects
    from ..model.replay import Replay

MASK_BYTES = 4096
"""Of a mask of CPUs or nodes: four times what a kernel can have."""


class ModelSource(TableSource, Protocol):
    """What side tables are made of."""

    @property
    def replay(self) -> Replay: ...
    @property
    def objects(self) -> Objects: ...


def _schemas() -> dict[str, pa.Schema]:
    import pyarrow as pa

    return {
        "processes": pa.schema(
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
        ),
        "threads": pa.schema(
            [
                ("process", pa.uint32()),
                ("thread", pa.uint32()),
                ("name", pa.string()),
                ("begin_ns", pa.uint64()),
                ("end_ns", pa.uint64()),
            ]
        ),
        "modules": pa.schema(
            [
                ("path", pa.string()),
                ("inode", pa.uint64()),
                ("device_major", pa.uint32()),
                ("device_minor", pa.uint32()),
                ("build_id", pa.string()),
                ("processes", pa.uint32()),
                ("status", pa.string()),
            ]
        ),
        "regions": pa.schema(
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
        ),
        "import_sites": pa.schema(
            [
                ("process", pa.uint32()),
                ("pc", pa.uint64()),
                ("module", pa.string()),
                ("function", pa.string()),
                ("file", pa.string()),
                ("line", pa.uint32()),
                ("class", pa.string()),
                ("kind", pa.string()),
                ("stride_bytes", pa.int64()),
                ("implied_constants", pa.uint32()),
            ]
        ),
        "pinning": pa.schema(
            [
                ("process", pa.uint32()),
                ("thread", pa.uint32()),
                ("time_ns", pa.uint64()),
                ("operation", pa.string()),
                ("policy", pa.uint16()),
                ("members", pa.list_(pa.uint32())),
            ]
        ),
    }


def table_schema(name: str) -> pa.Schema:
    """The columns of a side table."""
    from ..model.object_schema import object_schema
    from ..model.symbols import site_schema
    from ..model.variables import static_object_schema

    if name.startswith("count_"):
        from ..model.count_tables import static_schema

        return static_schema(name)
    if name == "sites":
        return site_schema()
    if name == "objects":
        return object_schema()
    return static_object_schema() if name == "variables" else _schemas()[name]


def process_rows(capture: RecordSource) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Processes and threads from process events."""
    events: list[dict[str, Any]] = []
    for batch in capture.batches("process_event"):
        events.extend(batch.to_pylist())
    events.sort(key=lambda event: event["time_ns"])
    processes: dict[int, dict[str, Any]] = {}
    threads: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        number, tid, now = event["process"], event["thread"], event["time_ns"]
        process = processes.setdefault(
            number,
            dict(process=number, pid=event["pid"], parent=0, name=None, program=None, begin_ns=now, end_ns=None,
                 execs=0, threads=0, status=None),
        )  # fmt: skip
        thread = threads.setdefault(
            (number, tid), dict(process=number, thread=tid, name=None, begin_ns=now, end_ns=None)
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


def executable_mappings(capture: RecordSource) -> list[dict[str, Any]]:
    """Mappings of code from files, in the order of recording."""
    import pyarrow.compute as pc

    rows: list[dict[str, Any]] = []
    for batch in capture.batches("mapping", columns=["path", "protection", "inode", "device_major", "device_minor"]):
        code = pc.and_(
            pc.greater_equal(batch.column("protection"), 4),
            pc.and_(pc.greater(batch.column("inode"), 0), pc.is_valid(batch.column("path"))),
        )
        rows.extend(batch.filter(code).to_pylist())
    return rows


def _programs(capture: RecordSource) -> dict[int, str]:
    """The executable of each process: the file of its first executable mapping."""
    found: dict[int, str] = {}
    for row in executable_mappings(capture):
        found.setdefault(row["process"], row["path"])
    return found


def module_rows(capture: RecordSource, *, paths: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Executable files that were mapped, with the build-id of the file as it is now.

    `paths` maps a recorded path to the real one when the capture is redacted.
    """
    modules: dict[tuple[str, int], dict[str, Any]] = {}
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
        modules[key] = dict(
            path=row["path"], inode=row["inode"], device_major=row["device_major"], device_minor=row["device_minor"],
            build_id=build_id, processes=0, status=status,
        )  # fmt: skip
    for key, numbers in users.items():
        modules[key]["processes"] = len(numbers)
    return list(modules.values())


def pinning_rows(capture: RecordSource) -> list[dict[str, Any]]:
    rows = []
    for batch in capture.batches("pinning"):
        for row in batch.to_pylist():
            mask = int.from_bytes(row["tail"][:MASK_BYTES], "little")
            rows.append(
                dict(process=row["process"], thread=row["thread"], time_ns=row["time_ns"], operation=row["operation"],
                     policy=row["policy"], members=[bit for bit in range(mask.bit_length()) if mask >> bit & 1])
            )  # fmt: skip
    return rows


def region_rows(capture: RecordSource) -> list[dict[str, Any]]:
    """Regions from their begin and end events, and phases, each until the process's next one.

    A begin without an end lasts until its thread's end, or the capture's, and is `open`. An end
    closes the innermost open region of its name; what was begun inside it ends with it, `open` too.
    """
    events: list[dict[str, Any]] = []
    for batch in capture.batches("region_event"):
        events.extend(batch.to_pylist())
    if not events:
        return []
    events.sort(key=lambda event: event["time_ns"])
    process_table, thread_table = process_rows(capture)
    process_ends = {row["process"]: row["end_ns"] for row in process_table}
    thread_ends = {(row["process"], row["thread"]): row["end_ns"] for row in thread_table}
    last_ns = max(capture.end_ns, events[-1]["time_ns"])
    rows: list[dict[str, Any]] = []
    running: dict[tuple[int, int], list[dict[str, Any]]] = {}
    phases: dict[int, dict[str, Any]] = {}
    for event in events:
        process, now = event["process"], event["time_ns"]
        executions = event["executions"] or 1
        row = dict(name=event["region"], kind="region", process=process, thread=event["thread"], begin_ns=now, end_ns=None,
                   depth=0, parent=None, open=True, executions=executions,
                   sampled=executions > 1 or event["sampled_ns"] > 0)  # fmt: skip
        if event["operation"] == "phase":
            before = phases.get(process)
            if before is not None:
                before.update(end_ns=now, open=False)
            row.update(kind="phase", thread=0)
            phases[process] = row
            rows.append(row)
            continue
        stack = running.setdefault((process, event["thread"]), [])
        if event["operation"] == "begin":
            row.update(depth=len(stack), parent=stack[-1]["name"] if stack else event["parent"])
            stack.append(row)
            rows.append(row)
        elif event["operation"] == "end":
            at = next((i for i in reversed(range(len(stack))) if stack[i]["name"] == event["region"]), None)
            if at is None:
                continue  # began before the recording
            for inner in stack[at + 1 :]:
                inner["end_ns"] = now
            begun = stack[at]
            begun.update(end_ns=now, open=False, executions=max(begun["executions"], executions),
                         sampled=begun["sampled"] or row["sampled"])  # fmt: skip
            del stack[at:]
    for row in rows:
        if row["end_ns"] is None:
            end_ns = thread_ends.get((row["process"], row["thread"])) or process_ends.get(row["process"]) or last_ns
            row["end_ns"] = max(end_ns, row["begin_ns"])
    return rows


def derive_table(capture: ModelSource, name: str, *, paths: dict[str, str] | None = None) -> pa.Table:
    """One side table from the capture's records."""
    import pyarrow as pa

    if name.startswith("count_"):
        from ..model.count_tables import decode_modules, kept_sections, static_schema, static_tables

        if name == "count_callees":  # the libraries were there when the program ran
            return static_schema(name).empty_table()
        return static_tables(decode_modules(kept_sections(capture)))[name]
    if name == "sites":
        return capture.replay.code_sites
    if name == "variables":
        from ..model.variables import static_objects

        return static_objects(capture)
    if name == "objects":
        return capture.objects.table()
    schema = _schemas()[name]
    if name == "import_sites":  # the files that came with the trace say it, not its records
        return schema.empty_table()
    if name == "processes":
        rows = process_rows(capture)[0]
    elif name == "threads":
        rows = process_rows(capture)[1]
    elif name == "modules":
        rows = module_rows(capture, paths=paths)
    elif name == "pinning":
        rows = pinning_rows(capture)
    else:
        rows = region_rows(capture)
    return pa.Table.from_pylist(rows, schema=schema)
