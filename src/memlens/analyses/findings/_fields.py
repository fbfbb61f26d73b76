"""Offsets in the elements of a static variable, in words: the fields that lie there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...capture.reader import Capture


def variable_named(capture: Capture, name: str) -> dict[str, Any] | None:
    """The row of table ``variables``, when only one type has the name."""
    table = capture.table("variables")
    rows = [row for row in table.to_pylist() if row["name"] == name]
    return rows[0] if rows and len({(row["module"], row["type"], row["bytes"]) for row in rows}) == 1 else None


def fields_at(described: dict[str, Any], offsets: Iterable[int]) -> list[str]:
    """``mass (24-31)``: the fields of a described type that have one of the bytes."""
    wanted = set(offsets)
    found = []
    for field in described["fields"]:
        span = range(field["offset"], field["offset"] + max(1, field["bytes"]))
        if wanted.intersection(span):
            found.append(f"{field['name'] or '(unnamed)'} ({span.start}-{span.stop - 1})")
    return found


def layout(described: dict[str, Any]) -> str:
    """All fields with their offsets, in short."""
    return ", ".join(f"{field['name'] or '(unnamed)'} {field['offset']}" for field in described["fields"][:16])
