"""Who may depend on whom (ARCHITECTURE.md), for Python and for the native parts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from conftest import ROOT

from memlens import registry
from memlens.cli.main import COMMANDS

PACKAGE = ROOT / "src" / "memlens"
LEAVES = {"errors", "plain_text", "plugins", "registry", "results", "selection", "units", "version", "view"}
ALLOWED: dict[str, set[str]] = {
    # core ← bindings ← capture ← analyses ← present ← cli; collect beside capture
    "annotations": set(),  # runs inside other people's programs: nothing of ours comes with it
    "errors": set(),
    "version": set(),
    "registry": {"plugins"},
    "plugins": set(),
    "plain_text": {"errors"},
    "results": {"errors", "selection", "view"},
    "view": set(),
    "selection": set(),
    "view_types": {"results", "view"},
    "units": set(),
    "capture": {"_core", *LEAVES},
    "collect": {"_core", "_recorder", "capture", *LEAVES},
    "importing": {"_core", "capture", *LEAVES},
    "analyses": {"capture", *LEAVES},
    "present": LEAVES,
    "compile": LEAVES,
    "cli": {"analyses", "capture", "collect", "compile", "importing", "present", *LEAVES},
    "__init__": {"annotations", "capture", "analyses", *LEAVES},
    "__main__": {"cli"},
}
NATIVE_ALLOWED: dict[str, set[str]] = {
    "format": set(),
    "include": set(),  # copied into other people's programs
    "perf": set(),
    "recorder": {"format", "perf"},
    "runtime": {"format", "include"},
    "emulator": {"format"},
    "pass": {"format"},
    "core": {"format"},
    "bindings": {"format", "perf", "recorder", "core"},
}


def imports_of(path: Path) -> set[str]:
    """Top-level parts of memlens that a module imports, anywhere in it."""
    inside = path.relative_to(PACKAGE)
    package = ("memlens", *inside.with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] + [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "memlens" and len(parts) > 1:
                found.add(parts[1])
    return found


def test_python_parts_import_only_what_the_rule_allows() -> None:
    known = set(ALLOWED) | {"_core", "_recorder"}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert part in ALLOWED, f"{path} belongs to no part of ARCHITECTURE.md"
        used = {name for name in imports_of(path) if name in known and name != part}
        used.discard("__version__")
        assert used <= ALLOWED[part], f"{path.relative_to(ROOT)} imports {used - ALLOWED[part]}"


def test_only_bindings_know_python_and_native_parts_do_not_include_each_other() -> None:
    owners: dict[str, str] = {}
    files = [
        p
        for folder in ("format", "native")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".h", ".c", ".cpp", ".def")
    ]

    def part_of(path: Path) -> str:
        parts = path.relative_to(ROOT).parts
        return "format" if parts[0] == "format" else parts[1]

    for path in files:
        if path.suffix in (".h", ".def"):
            owners.setdefault(path.name, part_of(path))
    for path in files:
        part = part_of(path)
        for quote, included in re.findall(r'^\s*#\s*include\s+([<"])([^">]+)[">]', path.read_text(), re.MULTILINE):
            assert part == "bindings" or not included.startswith(("Python.h", "nanobind")), path
            if quote == "<":
                continue  # the system's: ours are in quotes
            owner = owners.get(included.rsplit("/", 1)[-1])
            if owner and owner != part and not (path.parent / included).exists():
                assert owner in NATIVE_ALLOWED[part], f"{path.relative_to(ROOT)} includes {included} of {owner}"


def test_the_recorders_native_half_is_c11_and_never_exits_or_prints() -> None:
    for path in (ROOT / "native" / "recorder").glob("*"):
        assert path.suffix in (".c", ".h")
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\b(exit|abort|printf|puts|perror)\s*\(", text), path


def test_every_part_describes_itself() -> None:
    for kind in registry.PACKAGES:
        if kind == "presenter":
            continue
        found = registry.all_of(kind)
        assert found, kind
        for name, descriptor in found.items():
            assert descriptor.name == name and descriptor.question.strip()
    for descriptor in registry.all_of("finding").values():
        assert descriptor.evidence_sql and descriptor.bad_workload and descriptor.good_workload


def test_one_file_a_command() -> None:
    for name in COMMANDS:
        file = "compile" if name in ("cc", "c++") else name  # two names of one driver
        file = "import_" if name == "import" else file  # a word of Python
        assert (PACKAGE / "cli" / f"{file}.py").is_file()


def test_analyses_do_not_print() -> None:
    for part in ("analyses", "capture", "collect", "importing"):
        for path in (PACKAGE / part).rglob("*.py"):
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), path


def test_no_lock_file_or_script_names_a_registry() -> None:
    import subprocess

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        return
    pattern = re.compile(r"index-url|--registry\b|\"resolved\": *\"http")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".lock", ".json", ".toml", ".cfg", ".sh", "") and path.is_file() and path != Path(__file__):
            text = path.read_text(errors="replace")
            assert not pattern.search(text), name
