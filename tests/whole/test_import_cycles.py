"""No import cycle in the package: imports inside functions and those for types included."""

from __future__ import annotations

import ast
from pathlib import Path

from conftest import ROOT

SOURCE = ROOT / "src"
KNOWN: dict[frozenset[str], str] = {}
"""Cycles that are still there, each with what removes it. One that is gone must leave this list."""
ROOMS = ("store", "model", "tables")
"""Of capture/, in the order in which they may be imported."""


def modules_of(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the package that a module imports, anywhere in it.

    A package that is named for one of its modules is not an import of what its `__init__` has: Python runs that in any case.
    """
    found = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if f"{whole}.{alias.name}" in modules:
                    found.add(f"{whole}.{alias.name}")
                elif whole in modules and alias.name not in ("_core", "_recorder"):  # native: leaves
                    found.add(whole)
    return found - {name}


def graph_of(package: Path) -> dict[str, set[str]]:
    modules = modules_of(package)
    return {name: imported(name, path, modules) for name, path in modules.items()}


def cycles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        waiting.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in waiting:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = waiting.index(name)
            if len(waiting) - at > 1:
                found.append(frozenset(waiting[at:]))
            del waiting[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = set(cycles(graph_of(SOURCE / "memlens")))
    new = [sorted(cycle) for cycle in found - KNOWN.keys()]
    assert not new, f"import cycles: {new}"
    gone = [sorted(cycle) for cycle in KNOWN.keys() - found]
    assert not gone, f"no cycles any more, take them from KNOWN: {gone}"


def test_rooms_of_captures_import_in_one_direction() -> None:
    """store ← model ← tables ← reader."""
    graph = graph_of(SOURCE / "memlens")
    for name, used in graph.items():
        parts = name.split(".")
        if parts[:2] != ["memlens", "capture"] or len(parts) != 4:
            continue
        later = {f"memlens.capture.{room}" for room in ROOMS[ROOMS.index(parts[2]) + 1 :]} | {"memlens.capture.reader"}
        wrong = {other for other in used if other in later or other.rpartition(".")[0] in later}
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_cycles_are_found_where_they_hide(tmp_path: Path) -> None:
    package = tmp_path / "memlens"
    (package / "part").mkdir(parents=True)
    texts = {
        "__init__.py": "from .part.a import x\n",
        "part/__init__.py": "",
        "part/a.py": "def f() -> None:\n    from . import b\n",
        "part/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import y\n",
        "part/c.py": "from memlens.part.a import x\n",
        "part/d.py": "from .. import _core\nfrom . import a\n",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    names = {f"memlens.part.{name}" for name in "abc"}
    assert cycles(graph_of(package)) == [frozenset(names)]
