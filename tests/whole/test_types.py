"""How much of the package is typed: `mypy` is strict, and `Any` is what it cannot check."""

from __future__ import annotations

import re

from conftest import ROOT

MOST_ANY = 250
INSTEAD = (
    "write the type: an array of memlens.arrays, a TypedDict for rows of fixed columns, memlens.results.Row for those of a table, "
    "a Protocol for what several classes have, object for what is only passed on"
)


def test_any_is_rare() -> None:
    sources = sorted((ROOT / "src" / "memlens").rglob("*.py"))
    counts = {path: len(re.findall(r"\bAny\b", path.read_text())) for path in sources}
    total = sum(counts.values())
    most = ", ".join(
        f"{path.relative_to(ROOT)} {count}" for path, count in sorted(counts.items(), key=lambda item: -item[1])[:5]
    )
    assert total <= MOST_ANY, f"{total} mentions of Any, at most {MOST_ANY} ({most}): {INSTEAD}"
