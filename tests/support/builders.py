"""Hand-built captures: records as a collector would write them, with answers known in advance."""

from __future__ import annotations

import json
from pathlib import Path

from memlens import _core
from memlens.capture.reader import Capture, open_capture
from memlens.capture.store.layouts import Packer, enum_value, layouts

PAGE = 4096
WRITE = 3
MACHINE = {"page_bytes": PAGE, "numa_balancing": False, "numa_nodes": [{"node": 0, "cpus": [0], "bytes": 1 << 33, "distances": [10]}],
           "memory_bytes": 1 << 33, "cpu": "test", "cpus": 2, "kernel": "6.0"}  # fmt: skip


def stream_of(accesses: list[tuple[int, int, int, int]]) -> bytes:
    """(pc, address, bytes, operation) as a delta stream, by the encoder that collectors use."""
    import numpy as np

    columns = list(zip(*accesses, strict=True)) or [(), (), (), ()]
    types = (np.uint64, np.uint64, np.uint32, np.uint8)
    return bytes(_core.encode_stream(*(np.array(c, dtype=t) for c, t in zip(columns, types, strict=True))))


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

    def add(self, kind: str, process: int = 1, /, *, tail: bytes | None = None, **fields: int) -> CaptureBuilder:
        self.records.append((kind, process, Packer(kind).pack(tail, **fields)))
        return self

    def fault(self, time_ns: int, page: int, *, process: int = 1, thread: int = 100, before: int = 0, after: int = 12,
              flags: int = 0, ip: int = 0x1000) -> CaptureBuilder:  # fmt: skip
        return self.add("fault", process, time_ns=time_ns, address=page * PAGE + 8, thread=thread, before_shift=before,
                        after_shift=after, flags=flags, ip=ip)  # fmt: skip

    def sampled_fault(
        self, time_ns: int, page: int, *, period: int, process: int = 1, thread: int = 100
    ) -> CaptureBuilder:
        return self.add("sampled_fault", process, time_ns=time_ns, address=page * PAGE + 8, thread=thread, before_shift=255,
                        after_shift=12, ip=0x1000, period=period)  # fmt: skip

    def fault_level(
        self, begin_ns: int, end_ns: int, *, counted: int, recorded: int, level: str, period: int
    ) -> CaptureBuilder:
        return self.add("fault_level", 0, begin_ns=begin_ns, end_ns=end_ns, counted=counted, recorded=recorded, period=period,
                        level=enum_value("fault_level_kind", level))  # fmt: skip

    def mapping(self, time_ns: int, page: int, pages: int, *, process: int = 1, path: str = "//anon", inode: int = 0,
                shared: bool = False, protection: int = WRITE, offset: int = 0, operation: str = "map") -> CaptureBuilder:  # fmt: skip
        return self.add("mapping", process, time_ns=time_ns, address=page * PAGE, bytes=pages * PAGE, path=self.string(path),
                        inode=inode, shared=int(shared), protection=protection, file_offset=offset,
                        operation=enum_value("mapping_operation", operation))  # fmt: skip

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

    def stack(self, number: int, ips: list[int], *, process: int = 1) -> CaptureBuilder:
        return self.add("stack", process, tail=b"".join(ip.to_bytes(8, "little") for ip in ips), id=number,
                        unwinder=enum_value("unwinder", "shadow"), process=process)  # fmt: skip

    def window(self, begin_ns: int, accesses: list[tuple[int, int, int, int]], *, process: int = 1, thread: int = 100,
               executed: int | None = None, end_ns: int | None = None, region: str = "", **fields: int) -> CaptureBuilder:  # fmt: skip
        """A window of (pc, address, bytes, operation); `executed` is what was recorded unless it is given."""
        count = len(accesses)
        fields = {"period": count, "encoding": 2, **fields}
        return self.add("window", process, tail=stream_of(accesses), begin_ns=begin_ns,
                        end_ns=begin_ns + count if end_ns is None else end_ns, recorded=count,
                        executed=count if executed is None else executed, thread=thread,
                        region=self.string(region) if region else 0, **fields)  # fmt: skip

    def code_count(self, pc: int, *, loads: int = 0, stores: int = 0, width: int = 8, process: int = 1, thread: int = 100,
                   region: str = "", time_ns: int = 50, stack_loads: int = 0, stack_stores: int = 0,
                   stack_known: bool = True, flags: int = 0, **fields: int) -> CaptureBuilder:  # fmt: skip
        """Counts of one instruction whose accesses all have one width."""
        known = {"stack_loads": stack_loads, "stack_stores": stack_stores, "stack_load_bytes": stack_loads * width,
                 "stack_store_bytes": stack_stores * width} if stack_known else {}  # fmt: skip
        return self.add("code_count", process, time_ns=time_ns, pc=pc, loads=loads, stores=stores, load_bytes=loads * width,
                        store_bytes=stores * width, thread=thread, region=self.string(region) if region else 0,
                        load_width=width if loads else 0, store_width=width if stores else 0,
                        flags=flags | (1 if stack_known else 0), **{**known, **fields})  # fmt: skip

    def page_count(self, time_ns: int, page: int, *, order: int, loads: int = 0, stores: int = 0, process: int = 1,
                   thread: int = 100, pc: int = 0x1000, **fields: int) -> CaptureBuilder:  # fmt: skip
        return self.add("page_count", process, time_ns=time_ns, page=page * PAGE, order=order, loads=loads, stores=stores,
                        thread=thread, pc=pc, **fields)  # fmt: skip

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
