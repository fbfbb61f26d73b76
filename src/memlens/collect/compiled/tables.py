"""Side tables of counted modules: what their counters mean, and which libraries the functions are in that they call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...capture.reader import Capture
from ...capture.store.writer import CaptureWriter

if TYPE_CHECKING:
    import pyarrow as pa


def write_count_tables(
    capture: Capture, writer: CaptureWriter, sections: dict[str, tuple[bytes, int, bytes, int]]
) -> None:
    """What the counters of each counted module mean; what is wrong with a module's tables becomes a note."""
    from ...capture.model.count_tables import decode_modules, problems, static_tables

    decoded = decode_modules(sections)
    tables = static_tables(decoded, redact=writer.redact)
    for name, table in tables.items():
        writer.write_table(name, table)
    rows = capture.table("counted_modules")
    paths = dict(zip(rows.column("module").to_pylist(), rows.column("path").to_pylist(), strict=True))
    writer.write_table("count_callees", _callees(capture, writer, tables))
    writer.meta.setdefault("quality", {}).setdefault("notes", []).extend(problems(decoded, paths))


def _callees(capture: Capture, writer: CaptureWriter, tables: dict[str, pa.Table]) -> pa.Table:
    """The library that defines each function which counted code calls and no counted module has, where one is found."""
    import pyarrow as pa

    from ...capture.model.count_tables import static_schema
    from ...capture.store.counted_modules import ElfHeaders, libraries

    called = set(tables["count_sites"].column("callee").to_pylist()) - {None, ""}
    wanted = called - set(tables["count_functions"].column("linkage_name").to_pylist())
    real = set(writer.strings.values())
    programs = [
        path for path in real if path.startswith("/") and os.path.isfile(path) and not path.endswith((".pyc", ".py"))
    ]
    mapped = dict.fromkeys(capture.table("modules").column("path").to_pylist())
    found: dict[str, str] = {}
    candidates = dict.fromkeys(path for path in programs if path in mapped or os.path.basename(path) in mapped)
    counted: dict[str, None] = {}
    for row in capture.table("counted_modules").to_pylist():
        start = next((path for path in programs if path == row["path"] or os.path.basename(path) == row["path"]), None)
        if start:
            counted[start] = None
            candidates |= dict.fromkeys(libraries(start))
    # Counted modules last: what they take the place of, as pthread_create, is in a library.
    candidates = {path: None for path in (*(c for c in candidates if c not in counted), *counted)}
    for path in candidates:
        if os.path.basename(path).startswith("libmemlens"):
            continue  # it stands before others and calls them
        missing = wanted - set(found)
        if not missing:
            break
        try:
            with ElfHeaders(path) as file:
                for name in missing & file.defined_symbols():
                    found[name] = os.path.basename(path)
        except (OSError, ValueError):
            continue
    rows = [{"callee": name, "library": found.get(name)} for name in sorted(wanted)]
    return pa.Table.from_pylist(rows, schema=static_schema("count_callees"))
