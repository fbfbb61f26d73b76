"""Hand-built captures: records as a collector would write them, with answers known in advance."""

from __future__ import annotations

import json
from pathlib import Path

from memlens import _core
from memlens.capture.layouts import Packer, enum_value, layouts
from memlens.capture.reader import Capture, open_capture

PAGE = 4096
WRITE = 3
MACHINE = {"page_bytes": PAGE, "numa_balancing": False, "numa_nodes": [{"node": 0, "cpus": [0], "bytes": 1 << 33, "distances": [10]}],
           "memory_bytes": 1 << 33, "cpu": "test", "cpus": 2, "kernel": "6.0"}  # fmt: skip


class CaptureBuilder:
    """Collects records, then writes them as one capture."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bytes]] = []
        self.strings: dict[str, int] = {}
        self.meta: dict[str, object] = {}
        self.machine = dict(MACHINE)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.records.append(("string", 0, Packer("string").pack(text.encode(), id=self.strings[text])))
        return self.strings[text]

    def add(self, kind: str, process: int = 1, /, **fields: int) -> CaptureBuilder:
        self.records.append((kind, process, Packer(kind).pack(**fields)))
        return self

    def fault(self, time_ns: int, page: int, *, process: int = 1, thread: int = 100, before: int = 0, after: int = 12,
              flags: int = 0, ip: int = 0x1000) -> CaptureBuilder:  # fmt: skip
        return self.add("fault", process, time_ns=time_ns, address=page * PAGE + 8, thread=thread, before_shift=before,
                        after_shift=after, flags=flags, ip=ip)  # fmt: skip

    def mapping(self, time_ns: int, page: int, pages: int, *, process: int = 1, path: str = "//anon", inode: int = 0,
                shared: bool = False, protection: int = WRITE, offset: int = 0) -> CaptureBuilder:  # fmt: skip
        return self.add("mapping", process, time_ns=time_ns, address=page * PAGE, bytes=pages * PAGE, path=self.string(path),
                        inode=inode, shared=int(shared), protection=protection, file_offset=offset)  # fmt: skip

    def event(
        self, time_ns: int, operation: str, *, process: int = 1, parent: int = 0, thread: int = 100, name: str = ""
    ) -> CaptureBuilder:
        return self.add("process_event", process, time_ns=time_ns, pid=process + 1000, thread=thread, parent_process=parent,
                        operation=enum_value("process_operation", operation), name=self.string(name) if name else 0,
                        status=-1)  # fmt: skip

    def allocation(self, time_ns: int, operation: str, address: int, bytes: int = 0, *, process: int = 1, thread: int = 100,
                   stack: int = 1, **fields: int) -> CaptureBuilder:  # fmt: skip
        return self.add("allocation", process, time_ns=time_ns, operation=enum_value("allocation_operation", operation),
                        address=address, bytes=bytes, thread=thread, stack=stack, **fields)  # fmt: skip

    def tag(
        self, time_ns: int, operation: str, address: int, bytes: int = 0, *, name: str = "", process: int = 1
    ) -> CaptureBuilder:
        return self.add("tag_event", process, time_ns=time_ns, operation=enum_value("tag_operation", operation),
                        address=address, bytes=bytes, name=self.string(name) if name else 0, thread=100)  # fmt: skip

    def region(
        self, time_ns: int, operation: str, name: str, *, process: int = 1, thread: int = 100, executions: int = 1
    ) -> CaptureBuilder:
        return self.add("region_event", process, time_ns=time_ns, operation=enum_value("region_operation", operation),
                        region=self.string(name), thread=thread, executions=executions)  # fmt: skip

    def look(
        self, begin_ns: int, end_ns: int, page: int, pages: int, *, process: int = 1, flags: int = 0
    ) -> CaptureBuilder:
        return self.add("residency", process, begin_ns=begin_ns, end_ns=end_ns, address=page * PAGE, bytes=pages * PAGE,
                        flags=flags, scan_us=0)  # fmt: skip

    def reading(
        self, time_ns: int, metric: str, value: int, *, process: int = 1, thread: int = 0, node: int = -1
    ) -> CaptureBuilder:
        return self.add("timeline", process, time_ns=time_ns, metric=enum_value("metric", metric), value=value,
                        thread=thread, node=node)  # fmt: skip

    def write(self, path: Path, *, state: str = "complete", chunk_records: int = 1000) -> Path:
        path.mkdir()
        times = [0, 10**9]
        meta = {"format_version": _core.FORMAT_CURRENT, "memlens_version": "test", "state": state, "command": ["test"],
                "machine": self.machine, "begin_ns": times[0], "end_ns": times[1], "collectors": {}, **self.meta}  # fmt: skip
        (path / "meta.json").write_text(json.dumps(meta))
        writer = _core.ChunkWriter(str(path / "records-recorder.mlc"))
        groups: dict[tuple[str, int], list[bytes]] = {}
        for name, process, record in self.records:
            groups.setdefault((name, process), []).append(record)
        for (name, process), records in groups.items():
            for at in range(0, len(records), chunk_records):
                part = records[at : at + chunk_records]
                writer.append(layouts()[name].kind, b"".join(part), record_count=len(part), process=process)
        writer.close()
        return path

    def open(self, path: Path) -> Capture:
        return open_capture(self.write(path))
