"""Shared by the tests of `memlens import`: imports, and what the capture then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memlens
from memlens.importing.formats import Settings, import_trace

Access = tuple[int, int, int, str]
"""(pc, address, bytes, operation)"""


def imported(source: Path | list[Path], output: Path, **settings: Any) -> memlens.Capture:
    """Imports files and opens the capture; `format_name` and the fields of Settings may be given."""
    format_name = settings.pop("format_name", None)
    sources = source if isinstance(source, list) else [source]
    import_trace([str(path) for path in sources], output, format_name=format_name, settings=Settings(**settings))
    return memlens.open(output)


def accesses(capture: memlens.Capture, *, process: int | None = None, thread: int | None = None) -> list[Access]:
    """All accesses in the order of the record files."""
    rows = capture.table("accesses").to_pylist()
    return [
        (row["pc"], row["address"], row["bytes"], row["operation"])
        for row in rows
        if (process is None or row["process"] == process) and (thread is None or row["thread"] == thread)
    ]
