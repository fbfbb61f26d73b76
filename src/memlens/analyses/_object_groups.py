"""What objects are called in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..capture.model.call_stacks import StackSource
    from ..results import Key

NO_OBJECT = "no known object"


class ObjectGroups:
    """Objects by what a person calls them: allocation site, variable, tag, stack of a thread, file."""

    def __init__(self, capture: StackSource) -> None:
        import numpy as np

        from ..capture.model.call_stacks import call_stacks
        from ..capture.model.objects import KINDS

        engine = capture.objects.everything
        stacks = call_stacks(capture)
        columns = {name: np.asarray(values) for name, values in engine.columns.items()}
        self._index: dict[Key, int] = {}
        self.rows: list[dict[str, Any]] = []
        self._add("none", NO_OBJECT)
        self.of_object = np.zeros(engine.count + 1, dtype=np.uint32)
        kinds, threads, processes = (columns[n] for n in ("kind", "thread", "process"))
        # Heap objects and mappings of one call stack are one group: name each stack once.
        allocated = engine.is_kind("heap", "mmap")
        pairs, inverse = np.unique(
            kinds[allocated].astype(np.uint64) << np.uint64(32) | columns["stack"][allocated], return_inverse=True
        )
        places = [(KINDS[pair >> 32], stacks.site(pair & 0xFFFFFFFF)) for pair in pairs.tolist()]
        groups = [
            self._add(
                kind, None, function=site["function"], module=site["module"], file=site["file"], line=site["line"]
            )
            for kind, site in places
        ]
        if groups:
            self.of_object[1:][allocated] = np.array(groups, dtype=np.uint32)[inverse.reshape(-1)]
        others = np.flatnonzero(~allocated)
        texts = engine.table(others).column("name").to_pylist() if len(others) else []
        for row, text in zip(others.tolist(), texts, strict=True):
            kind = KINDS[kinds[row]]
            if kind == "stack":
                group = self._add(kind, text, process=int(processes[row]), thread=int(threads[row]))
            else:
                group = self._add(kind, "memlens's own memory" if kind == "memlens" else text)
            self.of_object[row + 1] = group

    def _add(self, kind: str, name: str | None, **where: str | int | None) -> int:
        key = (kind, name, *where.values())
        if key not in self._index:
            self._index[key] = len(self.rows)
            row = dict.fromkeys(("function", "module", "file", "line", "process", "thread"))
            self.rows.append({**row, **where, "kind": kind, "object": name or site_name(where, kind)})
        return self._index[key]


def site_name(site: Mapping[str, object], kind: str) -> str:
    if not site.get("function") and not site.get("module"):
        return f"{kind} of unknown origin"
    module = str(site.get("module") or "?").rpartition("/")[2]
    function = site.get("function") or (module if module.startswith("[") else f"[{module}]")
    line = f" {str(site['file']).rpartition('/')[2]}:{site['line']}" if site.get("file") else ""
    return f"{kind} of {function}{line}"
