"""Wording that was replaced by plain technical English does not come back: messages, help, notes and the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

INSTEAD: dict[str, str] = {
    r"makes? no sense": "invalid value 'x' for every; expected a positive integer",
    r"most of the time": "median",
    r"tells?": "reports, records, gives, shows",
    r"told": "reported, recorded, distinguished",
    r"drawn (evenly|anew|from|at random)": "sampled uniformly",
    r"there stands": "found",
    r"no \w+ is called": "unknown NAME",
    r"as many \w+ as cost": "limit the overhead to",
    r"whatever becomes of": "even if … fails",
    r"for want of": "for lack of",
    r"as it should be": "expected",
    r"in no order": "in irregular order",
    r"this cache cannot be": "invalid cache geometry",
    r"(goes|go) on\b": "continues",
    r"hardly ever": "rarely",
    r"nobody": "not, never",
    r"somebody": "another process",
    r"it is no \w+": "is not a",
}
"""Pattern → what to write instead."""
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src" / "memlens").rglob("*.py"))


def texts_of(path: Path) -> list[tuple[int, str]]:
    """Strings that a person may read: all but docstrings and comments on attributes."""
    tree = ast.parse(path.read_text())
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in silent
        and " " in node.value
    ]


def found_in(text: str) -> list[str]:
    return [pattern for pattern in INSTEAD if re.search(rf"\b(?:{pattern})\b", text, flags=re.IGNORECASE)]


@pytest.mark.parametrize(
    "text",
    [
        "every=x makes no sense",
        "the kernel does not tell page sizes",
        "no machine is called 'x'",
        "18 MiB most of the time",
    ],
)
def test_the_patterns_find_what_they_are_for(text: str) -> None:
    assert found_in(text)


def test_messages_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {pattern}: write {INSTEAD[pattern]}"
        for path in SOURCES
        for line, text in texts_of(path)
        for pattern in found_in(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {pattern}: write {INSTEAD[pattern]}: {line.strip()[:120]}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for pattern in found_in(line)
    ]
    assert not found, "\n".join(found)
