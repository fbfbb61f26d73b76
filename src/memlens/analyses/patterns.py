"""Analysis `patterns`: how instructions walk through objects, and what that costs in caches; what findings on locality rest on.

One pass over the accesses of windows, or over evenly spread parts of them where there are very many. For each instruction and
object: its step, whether it stays at one address, and its misses in the first cache with sets and without. For each function and object:
what is used of it, line by line.

A *visit* of a line begins when it is accessed after so many others that it has left a cache of the first one's size, or for the
first time, and lasts until that happens again. `visit_bytes` is how many bytes of a line are used in a visit, by whatever code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..registry import AnalysisDescriptor, Option
from ._locality_view import patterns_view

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.model.access_pass import TaskPool
    from ..capture.model.locality import AccessBatch
    from ..capture.reader import Capture
    from ..results import Result
    from .caches import Level

MOST_ACCESSES = 8_000_000
MOST_ROWS = 1000
STEPS_ABOVE = (1.0, 1.125, 1.25, 1.375, 1.5, 2.0)
"""Sizes, of a cache's, that table `levels` has misses for."""
JUST_ABOVE = 1.5
"""Reuses that miss a cache, and would hit one this many times as large, are *near* misses."""


def access_patterns(
    capture: Capture,
    *,
    levels: Sequence[Level] | None = None,
    line_bytes: int = 64,
    most_accesses: int = MOST_ACCESSES,
) -> Result:
    """Steps, use of lines, conflicts and near misses by instruction, function and object.

    Parameters
    ----------
    levels
        Caches, the nearest first; default: those of the capture's machine.
    most_accesses
        Larger traces are sampled in evenly spread parts.

    Returns
    -------
    Result
        ``by_instruction``: instruction (or site) and object. ``stride_bytes`` is the most frequent step that is not 0, ``stride_share``
        its share of such steps; ``same_address_share`` the share of executions at the address of the one before. ``misses`` are those of the
        first cache, ``misses_full`` those of a fully associative one of the same size; the difference are conflicts. ``leads_itself``
        is whether the loaded value is the next address: from the compiler, else from the instruction's encoding; null = not known.
        ``by_function_and_object``: ``lines`` and ``used_bytes`` are distinct. ``sets`` is how many sets of the first cache the
        accesses spread over (the number with the same collision probability). ``step_bytes`` is the most frequent
        step of half a line or more among its strided instructions, ``step_share`` the share of accesses with it, and ``step_offsets`` the bytes
        of every so many from the object's start that the function uses; ``step_settled`` is whether the first half of the time used the same ones as
        the second, so that more time would not show more.
        ``levels``: misses of fully associative caches around the size of each, each thread with one of its own.
    """
    from ..capture.model.access_pass import run

    consumer = PatternsConsumer(capture, levels=levels, line_bytes=line_bytes, most_accesses=most_accesses)
    result: Result = run(consumer.accesses, consumer)
    return result


class PatternsConsumer:
    """One pass for all threads, in the order of the records: groups are numbered as they come."""

    order: Literal["record"] = "record"
    columns = frozenset({"codes", "objects"})

    def __init__(
        self,
        capture: Capture,
        *,
        levels: Sequence[Level] | None = None,
        line_bytes: int = 64,
        most_accesses: int = MOST_ACCESSES,
    ) -> None:
        from ..capture.model.locality import ThreadAccesses
        from ._chosen_accesses import chosen_accesses, with_all_code
        from ._pattern_pass import PatternPass
        from .caches import machine_levels

        self.capture, self._line_bytes = capture, line_bytes
        self.accesses = ThreadAccesses(with_all_code(capture))
        self._choice = chosen_accesses(capture, self.accesses)
        self._levels = tuple(levels) if levels is not None else machine_levels(capture)
        self._walk = PatternPass(
            self.accesses, self._levels, line_bytes=line_bytes, most_accesses=most_accesses, just_above=JUST_ABOVE
        )

    def begin(self, pool: TaskPool) -> None:
        pass

    def add(self, batch: AccessBatch) -> None:
        self._walk.add(batch)

    def snapshot(self) -> Result:
        from ..results import Note, Quality, Result
        from ._chosen_accesses import NO_CURVE
        from ._pattern_rows import function_rows, instruction_rows, level_rows

        capture, accesses, walk, chosen, line_bytes = (
            self.capture,
            self.accesses,
            self._walk,
            self._levels,
            self._line_bytes,
        )
        choice = self._choice
        if choice is not None:
            walk.choose(choice)
        instructions = instruction_rows(walk)
        whole = accesses.is_whole and walk.taken == accesses.recorded
        figures: dict[str, object] = {
            "recorded_accesses": accesses.recorded if choice is None else None,
            "looked_at": walk.looked_at,
            "everything_recorded": accesses.is_whole,
            "executed_accesses": walk.executed,
            "line_bytes": line_bytes,
            "threads": len(accesses.streams),
            "first_cache_bytes": chosen[0].bytes,
            "first_cache_ways": chosen[0].ways,
            "first_cache_sets": walk.n_sets,
            "no_reuse": walk.no_reuse if choice is None else None,
        }
        notes: list[str] = [] if choice is None else [Note("selection.no_curve", NO_CURVE)]
        if walk.taken < accesses.recorded:
            notes.append(
                f"Patterns are those of {walk.taken:,} of {accesses.recorded:,} accesses, in evenly spread parts."
            )
        if not accesses.is_whole:
            notes.append("What is used of lines, and conflicts, are seen within windows only.")
        return Result(
            "patterns",
            figures,
            {
                "by_instruction": _table(instructions[:MOST_ROWS], INSTRUCTION_COLUMNS),
                "by_function_and_object": _table(function_rows(walk, instructions)[:MOST_ROWS], FUNCTION_COLUMNS),
                "levels": _table([] if choice is not None else level_rows(walk, STEPS_ABOVE), LEVEL_COLUMNS),
            },
            capture.quality.joined(Quality(exact=whole, notes=tuple(notes))),
        )


INSTRUCTION_COLUMNS = {
    "function": "string", "module": "string", "file": "string", "line": "uint32", "code": "uint32", "object": "string",
    "kind": "string", "operation": "string", "accesses": "double", "share": "double", "recorded": "uint64", "mean_bytes": "double",
    "class": "string", "stride_bytes": "int64", "stride_share": "double", "same_address_share": "double", "misses": "uint64",
    "misses_full": "uint64", "near_misses": "list", "leads_itself": "bool",
}  # fmt: skip
FUNCTION_COLUMNS = {
    "function": "string", "module": "string", "object": "string", "kind": "string", "accesses": "double", "share": "double",
    "recorded": "uint64", "lines": "uint64", "used_bytes": "uint64", "addresses": "uint64", "visits": "uint64", "visit_bytes": "double",
    "misses": "uint64", "misses_full": "uint64", "sets": "double", "irregular_share": "double", "step_bytes": "uint64", "step_share": "double",
    "step_offsets": "string", "step_settled": "bool",
}  # fmt: skip
LEVEL_COLUMNS = {
    "level": "string",
    "shared": "bool",
    "cache_bytes": "uint64",
    "times": "double",
    "misses": "uint64",
    "miss_ratio": "double",
}


def _table(rows: Sequence[Mapping[str, object]], columns: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    kinds = {
        name: pa.list_(pa.uint64()) if kind == "list" else pa.type_for_alias(kind) for name, kind in columns.items()
    }
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))


DESCRIPTOR = AnalysisDescriptor(
    name="patterns",
    question="How do instructions walk through objects, how much of each line is used, and which misses are avoidable?",
    needs=("window",),
    options=(
        Option("levels", "caches, the nearest first", "those of the capture's machine"),
        Option("line_bytes", "bytes of a line, a power of two", 64),
        Option("most_accesses", "of more, evenly spread parts are looked at", MOST_ACCESSES),
    ),
    run=access_patterns,
    consumer=PatternsConsumer,
    view=patterns_view,
    provide="memlens record --emulate, or memlens cc --memlens=trace and memlens record",
)
