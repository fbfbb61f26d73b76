"""The documentation is true: generated parts are current, links resolve, examples run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "format" / "FORMAT.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    if path.exists()
)
WORKLOAD = ROOT / "build" / "workloads" / "first_touch"
MEMLENS = [sys.executable, "-c", "from memlens.cli.main import main; main()"]
OPTIONAL = ("polars", "pandas")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """Headings as GitHub links to them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of every block that is marked as Python."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start(1)) + 1, match.group(1))
        for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    ]


def test_generated_parts_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text())):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_public_text_names_no_private_path(page: Path) -> None:
    assert not re.findall(r"/(?:work|root|home)/\S+|\.pyenv|file://\S+", page.read_text())


def test_every_block_of_the_format_runs() -> None:
    blocks = python_blocks(ROOT / "format" / "FORMAT.md")
    assert blocks
    for line, code in blocks:
        exec(compile("\n" * (line - 1) + code, "format/FORMAT.md", "exec"), {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with run.memlens in it."""
    if not WORKLOAD.exists():
        pytest.skip("workload first_touch is not built: make build/workloads/.stamp")
    directory = tmp_path_factory.mktemp("docs")
    command = [str(WORKLOAD), "--mode", "serial", "--mib", "8", "--iterations", "2"]
    done = subprocess.run(
        [*MEMLENS, "record", "-o", "run.memlens", "--", *command],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("name", ["docs/reference/python-api.md", "README.md"])
def test_python_examples_run(recorded: Path, name: str) -> None:
    page = ROOT / name
    blocks = python_blocks(page)
    assert blocks
    shared: dict[str, object] = {}
    before = os.getcwd()
    os.chdir(recorded)
    try:
        for line, code in blocks:
            missing = [name for name in OPTIONAL if f"import {name}" in code and importlib.util.find_spec(name) is None]
            if not missing:
                exec(compile("\n" * (line - 1) + code, str(page), "exec"), shared)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("name", ["first_touch", "capacity", "faults"])
def test_evidence_queries_of_findings_run(recorded: Path, name: str) -> None:
    import memlens
    from memlens import registry
    from memlens.capture.tables.sql import run_query

    capture = memlens.open(recorded / "run.memlens")
    queries = [d.evidence_sql for d in registry.all_of("finding").values() if name in d.analyses and d.evidence_sql]
    assert queries
    for sql in queries:
        run_query(capture, sql)
