"""Offsets in the elements of a static variable, in words: the fields that lie there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..capture.model.element_types import DescribedType, VariableRow
    from ..capture.store.source import TableSource


def variable_named(capture: TableSource, name: str) -> VariableRow | None:
    """The row of table ``variables``, when only one type has the name."""
    table = capture.table("variables")
    rows = [row for row in table.to_pylist() if row["name"] == name]
    return rows[0] if rows and len({(row["module"], row["type"], row["bytes"]) for row in rows}) == 1 else None


def fields_at(described: DescribedType, offsets: Iterable[int]) -> list[str]:
    """``mass (24-31)``: the fields of a described type that have one of the bytes."""
    wanted = set(offsets)
    found = []
    for field in described["fields"]:
        span = range(field["offset"], field["offset"] + max(1, field["bytes"]))
        if wanted.intersection(span):
            found.append(f"{field['name'] or '(unnamed)'} ({span.start}-{span.stop - 1})")
    return found


class FieldsOfVariables:
    """What lies at addresses of static variables, by the variables' names; each is looked up in debug information once."""

    def __init__(self, capture: TableSource) -> None:
        self._capture = capture
        self._known: dict[str, tuple[VariableRow, DescribedType] | None] = {}

    def _of(self, name: str) -> tuple[VariableRow, DescribedType] | None:
        from ..capture.model.element_types import element_type

        if name not in self._known:
            variable = variable_named(self._capture, name)
            described = element_type(self._capture, variable) if variable is not None else None
            is_known = variable is not None and described is not None and described["bytes"]
            self._known[name] = (variable, described) if variable and described and is_known else None
        return self._known[name]

    def at(self, name: str | None, addresses: Iterable[int]) -> str | None:
        """``pairs[1]: left (0-7)``; None where the type is not known or nothing of the variable lies there."""
        found = self._of(name) if name else None
        if found is None:
            return None
        variable, described = found
        offsets = [one - variable["base"] for one in addresses if 0 <= one - variable["base"] < variable["bytes"]]
        fields = fields_at(described, [one % described["bytes"] for one in offsets])
        if not fields:
            return None
        which = f"[{min(offsets) // described['bytes']}]" if variable["bytes"] > described["bytes"] else ""
        return f"{variable['name']}{which}: {', '.join(fields)}"


def layout(described: DescribedType) -> str:
    """All fields with their offsets, in short."""
    return ", ".join(f"{field['name'] or '(unnamed)'} {field['offset']}" for field in described["fields"][:16])
