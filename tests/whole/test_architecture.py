"""Which part may depend on which (ARCHITECTURE.md), for Python and for the native parts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from conftest import ROOT

from memlens import registry
from memlens.cli.main import COMMANDS

PACKAGE = ROOT / "src" / "memlens"
LEAVES = {"arrays", "errors", "plain_text", "plugins", "registry", "results", "selection", "units", "version", "view"}
ALLOWED: dict[str, set[str]] = {
    # core ← bindings ← capture ← analyses ← present ← cli; collect beside capture
    "annotations": set(),  # runs inside other people's programs: nothing of ours comes with it
    "arrays": set(),
    "errors": set(),
    "version": set(),
    "registry": {"plugins"},
    "plugins": {"errors"},
    "plain_text": {"errors"},
    "results": {"errors", "selection", "view"},
    "view": set(),
    "selection": set(),
    "view_types": {"results", "view"},
    "units": set(),
    "capture": {"_core", *LEAVES},
    "collect": {"_core", "_recorder", "capture", *LEAVES},
    "importing": {"_core", "capture", *LEAVES},
    "exporting": LEAVES,
    "analyses": {"capture", *LEAVES},
    "present": LEAVES,
    "compile": LEAVES,
    "cli": {"analyses", "capture", "collect", "compile", "exporting", "importing", "present", *LEAVES},
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


# ---- names of collectors ------------------------------------------------------------------
ROOMS_WITHOUT_NAMES = ("collect", "cli", "present", "capture", "analyses")
NAMED: dict[str, tuple[str, str]] = {
    "capture/store/count_arena.py": ("count", "what a program that records itself calls its collector in meta.json"),
    "capture/store/meta.py": (
        "count emulate trace",
        "fields of meta.json with what was found in arenas: part of the format",
    ),
    "capture/model/call_stacks.py": ("alloc", "a part of names of functions that allocate"),
    "analyses/accuracy.py": ("emulate", "a field of meta.json: blocks that the arena refused"),
    "cli/verify.py": ("count emulate", "the command runs a program under one and judges the other by it"),
}
"""Files outside a collector's module that name one, which, and why."""
WORDS = {"count", "faults", "sample", "timeline", "trace"}
"""Also names of kinds of values, tables, records, analyses and charts: as such they may stand anywhere."""


ASKED = {"collector", "collectors", "is_asked", "is_chosen", "is_named", "ledger", "leave_out"}


def speaks_of_collectors(node: ast.AST) -> bool:
    """Whether an expression has a variable, a method or a key that is about collectors."""
    for inner in ast.walk(node):
        said = {getattr(inner, "id", None), getattr(inner, "attr", None), getattr(inner, "value", None)} if isinstance(
            inner, (ast.Name, ast.Attribute, ast.Constant)
        ) else set()  # fmt: skip
        if ASKED & {word for word in said if isinstance(word, str)}:
            return True
    return False


def names_of_collectors(path: Path) -> set[str]:
    """Collectors that a module names: in its imports, or in a text where it speaks of collectors."""
    names = set(registry.all_of("collector"))
    tree = ast.parse(path.read_text())
    if (
        not any(isinstance(n, ast.Constant) and n.value in names for n in ast.walk(tree))
        and "collectors" not in path.read_text()
    ):
        return set()
    found = set()

    def texts(node: ast.AST) -> set[str]:
        return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)} & names

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if "collectors" in parts:
                found |= {*parts[parts.index("collectors") + 1 :], *(alias.name for alias in node.names)} & names
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names - WORDS:
            found.add(node.value)
        elif isinstance(node, (ast.Compare, ast.Subscript, ast.Call)) and texts(node) and speaks_of_collectors(node):
            found |= texts(node)
    return found


def test_no_name_of_a_collector_stands_outside_its_module() -> None:
    for room in ROOMS_WITHOUT_NAMES:
        for path in (PACKAGE / room).rglob("*.py"):
            inside = path.relative_to(PACKAGE)
            own = set()
            if inside.parts[:2] == ("collect", "collectors"):
                own = {inside.parts[2].removesuffix(".py")}
            allowed = set(NAMED.get(str(inside), ("", ""))[0].split())
            found = names_of_collectors(path) - own
            if room == "collect":  # strict: no word that is also something else
                tree = ast.parse(path.read_text())
                strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
                kinds = {"timeline"} if own else set()  # the record kind
                found |= (strings & set(registry.all_of("collector"))) - own - kinds
            assert found <= allowed, f"{inside} names the collectors {sorted(found - allowed)}"


def test_names_of_collectors_are_found_where_they_hide(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    for text, expected in (
        ('settings = meta["collectors"]["faults"]', {"faults"}),
        ('if "timeline" in collectors: pass', {"timeline"}),
        ('x = (meta.get("collectors") or {}).get("count")', {"count"}),
        ("from ..collect.collectors import alloc", {"alloc"}),
        ("from .collectors.trace import tracing", {"trace"}),
        ('if name == "emulate": pass', {"emulate"}),
        ('run.is_asked("trace")', {"trace"}),
        ('table = capture.table("faults")', set()),
        ('measure("x", "y", "count")', set()),
    ):
        path.write_text(text)
        assert names_of_collectors(path) == expected, text


def test_exceptions_from_the_rule_of_names_are_needed() -> None:
    for inside, (names, reason) in NAMED.items():
        text = (PACKAGE / inside).read_text()
        assert reason and all(f'"{name}"' in text or f".{name}" in text for name in names.split()), inside
