"""A report as bytes and back: JSON for what is small, Arrow IPC for tables; nothing that could run when it is read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import registry
from ..capture.store.kept import KeptResults
from ..capture.tables.kept import files_read
from ..errors import MemlensError
from ..results import Finding, Note, Quality, Reference, Report, Result
from ..selection import Selection
from ..view import Absence

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.reader import Capture

CLASSES: dict[str, Callable[..., object]] = {
    c.__name__: c for c in (Finding, Reference, Quality, Result, Absence, Selection)
}
PLAIN = (str, int, float, bool, type(None))


class NotKept(Exception):
    """Something in a report has a type that is not kept: another package's, for example."""


class _Writer:
    def __init__(self) -> None:
        self.tables: list[bytes] = []

    def value(self, value: object) -> object:
        """JSON for a value; what JSON has not is an object with one key that begins with $."""
        import pyarrow as pa

        if isinstance(value, Note):
            return {"$note": [value.code, str(value), self.value(dict(value.values))]}
        if type(value) in PLAIN:
            return value if not isinstance(value, float) or math.isfinite(value) else {"$float": repr(value)}
        if type(value) is list:
            return [self.value(one) for one in value]
        if type(value) is tuple:
            return {"$tuple": [self.value(one) for one in value]}
        if type(value) is dict:
            return {"$dict": [[self.value(key), self.value(one)] for key, one in value.items()]}
        if isinstance(value, pa.Table):
            self.tables.append(_table_bytes(value))
            return {"$table": len(self.tables) - 1}
        name = type(value).__name__
        if CLASSES.get(name) is type(value) and dataclasses.is_dataclass(value):
            fields = {field.name: self.value(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"$data": [name, fields]}
        raise NotKept(f"a {type(value).__module__}.{name}")


def _table_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if table.nbytes > 1 << 20 else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class _Reader:
    def __init__(self, tables: list[memoryview]) -> None:
        self._tables = tables

    def value(self, value: object) -> Any:
        import pyarrow as pa

        if isinstance(value, list):
            return [self.value(one) for one in value]
        if not isinstance(value, dict):
            return value
        ((tag, inner),) = value.items()
        if tag == "$note":
            return Note(inner[0], inner[1], **self.value(inner[2]))
        if tag == "$float":
            return float(inner)
        if tag == "$tuple":
            return tuple(self.value(one) for one in inner)
        if tag == "$dict":
            return {self.value(key): self.value(one) for key, one in inner}
        if tag == "$table":
            return pa.ipc.open_stream(self._tables[inner]).read_all()
        assert tag == "$data"
        return CLASSES[inner[0]](**{name: self.value(one) for name, one in inner[1].items()})


def to_bytes(report: Report) -> bytes:
    """What cannot be made again quickly: results, findings, what is absent, quality and title."""
    writer = _Writer()
    parts = {"title": report.title, "results": report.results, "findings": report.findings, "quality": report.quality,
             "absences": report.absences, "selection": report.selection}  # fmt: skip
    body = json.dumps(
        {"parts": writer.value(parts), "tables": [len(table) for table in writer.tables]}, allow_nan=False
    ).encode()
    return len(body).to_bytes(8, "little") + body + b"".join(writer.tables)


def from_bytes(content: bytes) -> dict[str, object]:
    """The parts of a report."""
    end = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:end])
    tables = []
    for size in head["tables"]:
        tables.append(memoryview(content)[end : end + size])
        end += size
    parts: dict[str, object] = _Reader(tables).value(head["parts"])
    return parts


def kept_or_made(
    capture: Capture,
    options: Mapping[str, object],
    make: Callable[[], Report],
    complete: Callable[[dict[str, object]], Report],
) -> Report:
    """The report that was kept for this capture and these options, or a new one, which is kept."""

    kept = KeptResults(capture.path, capture.meta, {"what": "report", **options})
    if kept.is_possible:
        content = kept.load()
        if content is not None:
            return complete(from_bytes(content))
    report = make()
    if kept.is_possible and not registry.problems():  # a plug-in that has failed may work the next time
        _keep(kept, capture, report)
    return report


def _keep(kept: KeptResults, capture: Capture, report: Report) -> None:
    """If it cannot be kept, it is made again the next time."""
    with contextlib.suppress(NotKept, MemlensError, OSError, ValueError):
        kept.save(to_bytes(report), read=files_read(capture))
