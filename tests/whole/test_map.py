"""ARCHITECTURE.md is a map that is read in five minutes: short, every path in it exists, and its answers hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

MAP = ROOT / "ARCHITECTURE.md"
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DECISIONS = [page for page in PAGES if page.name != "README.md"]
MOST_LINES = 150
ROOTS = ("benchmarks/", "docs/", "format/", "native/", "src/", "tests/", "tools/", "workloads/")


def paths_in(text: str) -> set[str]:
    """Paths of this repository between backticks, and link targets."""
    quoted = re.findall(r"`([\w./-]+)`", text)
    linked = re.findall(r"\]\(([^)#]+)\)", text)
    return {path for path in (*quoted, *linked) if path.startswith(ROOTS)}


def answer_to(question: str) -> str:
    rows = [line for line in MAP.read_text().splitlines() if line.startswith(f"| {question} ")]
    assert len(rows) == 1, question
    return rows[0].strip("| ").split(" | ", 1)[1]


@pytest.mark.parametrize("page", [MAP, *DECISIONS], ids=lambda page: page.name)
def test_every_path_in_it_exists(page: Path) -> None:
    found = paths_in(page.read_text())
    missing = sorted(path for path in found if not (ROOT / path).exists())
    assert not missing, f"{page.relative_to(ROOT)} names {', '.join(missing)}"
    assert page != MAP or len(found) > 50


def test_the_map_is_short() -> None:
    assert len(MAP.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("question", "file", "what"),
    [
        ("Where does a page fault become a row?", "native/core/replay/fault_classifier.cpp", r"FaultClass::again"),
        ("Where does a page fault become a row?", "src/memlens/capture/tables/faults.py", r'name="faults"'),
        ("Where would a new PMU record be decoded?", "native/perf/perf_records.c", r"\bmp_\w*sample\w*\("),
        ("Which file says how `growth` is labelled?", "src/memlens/analyses/_locality_view.py", r'"growth", label="'),
    ],
)
def test_an_answer_names_the_file_that_does_it(question: str, file: str, what: str) -> None:
    assert f"`{file}`" in answer_to(question)
    assert re.search(what, (ROOT / file).read_text())


def test_every_folder_of_the_code_is_on_the_map() -> None:
    text = MAP.read_text()
    folders = [*(ROOT / "native").iterdir(), *(ROOT / "src" / "memlens").iterdir()]
    for folder in folders:
        if folder.is_dir() and folder.name != "__pycache__":
            name = f"{folder.relative_to(ROOT)}/"
            assert name in text, name


def test_decisions_are_numbered_listed_and_have_their_parts() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert [page.name[:5] for page in DECISIONS] == [f"{number:04}-" for number in range(1, len(DECISIONS) + 1)]
    for page in DECISIONS:
        assert index.count(f"({page.name})") == 1, page.name
        heads = re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
        assert heads[:3] == ["Context", "Decision", "Consequence"] and heads[3:] in ([], ["Tried"]), page.name


def test_the_glossary_defines_the_terms_of_the_code() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    for term in (
        "arena", "budget", "capture", "channel", "chunk", "code", "collector", "epoch", "figure", "finding", "lap", "part",
        "phase", "quality", "region", "segment", "site", "slot", "tag", "view", "window",
    ):  # fmt: skip
        assert re.search(rf"^\| {term} \| \w", text, flags=re.MULTILINE), term
