"""Rows of the tables of `patterns`."""

from __future__ import annotations

from typing import TypedDict

InstructionRow = TypedDict(
    "InstructionRow",
    {
        "pair": int, "function": str | None, "module": str, "file": str | None, "line": int | None, "code": int | None,
        "object": str, "kind": str, "operation": str, "accesses": float, "share": float, "recorded": int, "mean_bytes": float,
        "class": str, "stride_bytes": int | None, "stride_share": float | None, "same_address_share": float | None, "misses": int,
        "misses_full": int, "near_misses": list[int], "leads_itself": bool | None,
    },
)  # fmt: skip
"""A row of table ``by_instruction``."""


class PatternRow(TypedDict):
    """A row of table ``by_function_and_object``; what only whole lines tell is null where a part of their accesses was chosen."""

    function: str | None
    module: str
    object: str
    kind: str
    accesses: float
    share: float
    recorded: int
    misses: int
    misses_full: int
    irregular: int
    irregular_share: float | None
    lines: int | None
    used_bytes: int | None
    addresses: int | None
    visits: int | None
    visit_bytes: float | None
    sets: float | None
    step_bytes: int | None
    step_share: float | None
    step_offsets: str | None
    step_settled: bool | None
