"""Tables that took long to derive, kept for the next query: `store/kept.py` says where, and when they are trusted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...errors import CaptureError
from ..store import calibration
from ..store.kept import KeptResults
from ..store.os_names import file_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from ..store.meta import Meta

LEAST_S = 0.5
"""What is made faster is not kept."""
MOST_TABLE_BYTES = 1 << 30
"""In memory; larger tables are made each time."""
NOT_KEPT = ("modules",)
"""What says which files a table depends on."""


class Deriving(Protocol):
    """A capture whose tables are derived."""

    @property
    def path(self) -> Path: ...
    @property
    def meta(self) -> Meta: ...
    def table(self, name: str) -> pa.Table: ...


def files_read(capture: Deriving) -> list[str]:
    """Files outside of the capture that names and figures depend on: binaries, their debug files, and the peaks of the machine."""
    found: list[str] = []
    modules = capture.table("modules")
    for row in modules.select([n for n in ("path", "build_id") if n in modules.column_names]).to_pylist():
        path, build_id = row["path"], row.get("build_id") or ""
        if path and path.startswith("/"):
            found += [file_of(path), f"/usr/lib/debug{path}.debug"]
        if len(build_id) > 2:
            found.append(f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug")
    machine = (capture.meta.get("machine") or {}).get("fingerprint")
    if isinstance(machine, str):
        found.append(str(calibration.path_of(machine)))
    return found


def kept_or_made(capture: Deriving, name: str, options: Mapping[str, object], make: Callable[[], pa.Table]) -> pa.Table:
    """A derived table: the one that was kept, or a new one, which is kept where making it took long."""
    import pyarrow as pa

    kept = KeptResults(capture.path, capture.meta, {"what": "table", "name": name, **options})
    if not kept.is_possible or name in NOT_KEPT:
        return make()
    content = kept.load()
    if content is not None:
        return pa.ipc.open_stream(content).read_all()
    begin = time.monotonic()
    table = make()
    if time.monotonic() - begin >= LEAST_S and table.nbytes <= MOST_TABLE_BYTES:
        with contextlib.suppress(pa.ArrowException, CaptureError):  # it is made again the next time
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
                writer.write_table(table)
            kept.save(sink.getvalue().to_pybytes(), read=files_read(capture))
    return table
