"""Analysis `accesses`: which objects the accesses of windows go to, and which functions make them.

Apart from `objects`, because its numbers are of another kind: estimates from sampled windows with their
errors, known also of variables, stacks and files, and of captures without allocations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..registry import AnalysisDescriptor
from ._traffic_view import accesses_view

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Columns
    from ..capture.model.access_pass import ChunkBatch, TaskPool
    from ..capture.model.locality import AccessJoin
    from ..capture.reader import Capture
    from ..results import Result
    from ._object_groups import ObjectGroups
    from ._sampled_objects import SharedOut
    from .traffic import CodeNames

MOST_INSTRUCTIONS = 2000
ESTIMATES = ("accesses", "loads", "stores", "bytes", "load_bytes", "store_bytes")


def object_accesses(capture: Capture) -> Result:
    """Accesses by object, by object and function, and by instruction, estimated from windows.

    Each window stands for what its thread executed until the next one began; ``*_error`` is the standard
    error of an estimate, from how windows differ (null with fewer than two windows). When everything was
    recorded, numbers are exact and errors 0. The object is the one that lay at the address at the access's
    time, which is interpolated in its window; tags take precedence over the objects that contain them. Accesses to small heap objects that sampling did not
    record are assigned to allocation sites by the weights of recorded ones; what no site explains is "[heap], unattributed".
    """
    from ..capture.model.access_pass import run
    from ..capture.model.locality import ThreadAccesses
    from ._chosen_accesses import with_all_code

    result: Result = run(ThreadAccesses(with_all_code(capture)), AccessesConsumer(capture))
    return result


class AccessesConsumer:
    """Chunks as they are: the native join looks objects and code up itself."""

    order: Literal["chunk"] = "chunk"
    columns: frozenset[str] = frozenset()

    def __init__(self, capture: Capture) -> None:
        from ._chosen_accesses import chosen_groups, with_all_code
        from ._object_groups import ObjectGroups
        from ._sampled_objects import SharedOut
        from .traffic import CodeNames

        self.capture = capture
        self._names = CodeNames(capture)
        self._function_of_code, self._functions = self._names.functions()
        self._groups = ObjectGroups(capture)
        chosen = chosen_groups(capture, self._groups.of_object, self._function_of_code)
        self._totals = with_all_code(capture).windows.join(*chosen)
        self._shared = SharedOut(capture, self._groups.of_object, self._function_of_code, ESTIMATES)

    def begin(self, pool: TaskPool) -> None:
        pass

    def add(self, batch: ChunkBatch) -> None:
        self._totals.add(batch.chunk, batch.packed)
        self._shared.add(batch.chunk, batch.packed)

    def snapshot(self) -> Result:
        self._shared.finish()
        return _result(self.capture, self._names, self._functions, self._groups, self._shared, self._totals.finish())


def _result(
    capture: Capture,
    names: CodeNames,
    functions: Sequence[tuple[str | None, str | None]],
    groups: ObjectGroups,
    shared: SharedOut,
    join: AccessJoin,
) -> Result:
    import numpy as np
    import pyarrow as pa

    from ..results import Note, Quality, Result
    from ._sampled_objects import UNATTRIBUTED

    totals = join.totals
    by_access = capture.selection.by_access
    text, number = pa.string(), pa.uint32()
    where = [("object", text), ("kind", text), ("function", text), ("module", text), ("file", text), ("line", number),
             ("process", number), ("thread", number)]  # fmt: skip
    estimates = _estimates(where)
    rest = {number for number, row in enumerate(groups.rows) if row["kind"] in ("none", "brk")}
    group_rows, pair_rows = _rows(join.by_group()), _rows(join.by_pair())
    accesses, all_bytes = (sum(row[name] for row in group_rows) for name in ("accesses", "bytes"))
    if shared.objects:
        shared.share_out(group_rows, shared.groups, ("group",), rest)
        shared.share_out(pair_rows, shared.pairs, ("group", "function"), rest)
        group_rows, pair_rows = _shares(group_rows, all_bytes), _shares(pair_rows, all_bytes)
        for row in groups.rows:
            if row["kind"] == "brk":
                row["object"] = UNATTRIBUTED
    shared_out = sum(added["accesses"][0] for added in shared.groups.values())
    above = sum(row["accesses"] for row in group_rows) - accesses
    by_object = [{**row, **groups.rows[row["group"]]} for row in group_rows]
    by_function = []
    for row in _rows(join.by_function()):
        function, module = functions[row["function"]]
        by_function.append({**row, "function": function, "module": module})
    crossed = []
    for row in pair_rows:
        function, module = functions[row["function"]]
        group = groups.rows[row["group"]]
        crossed.append(
            {**row, "function": function, "module": module, "object": group["object"], "kind": group["kind"]}
        )
    by_code = join.by_code()
    order = np.argsort(-by_code["accesses"], kind="stable")[:MOST_INSTRUCTIONS]
    instructions = []
    for at in order.tolist():
        code = int(by_code["code"][at])
        row = {name: values[at].item() for name, values in by_code.items()}
        row.update(code=code if code < names.count else None, function=names.function[code], module=names.module[code],
                   file=names.file[code], line=names.line[code])  # fmt: skip
        instructions.append(_plain(row))
    everything = totals["covered"] >= totals["executed"] and not totals["damaged_windows"]
    notes = _notes(capture, totals)
    sampled = not everything
    if sampled and totals["executed"]:
        share = totals["covered"] / totals["executed"]
        notes.insert(
            0,
            f"Accesses by object are estimated from {totals['windows']:,} windows with {100 * share:.2g} % of all accesses; "
            "standard errors are between windows.",
        )
    if shared.objects:
        notes.append(
            Note(
                "accesses.objects_sampled",
                f"Small objects were sampled: accesses to those that were not recorded are estimated by allocation site, from "
                f"{shared.objects:,} recorded objects that stand for others; standard errors include it. Record with --sample-bytes 0 for all of them.",
            )
        )
        if above > 0.01 * accesses:
            notes.append(
                Note(
                    "accesses.objects_above",
                    f"Estimates by object add up to {above / accesses:.0%} more than was accessed: too few objects were recorded to be more precise.",
                )
            )
    figures = {
        "windows": totals["windows"],
        "recorded_accesses": sum(row["recorded"] for row in group_rows) if by_access else totals["recorded"],
        "executed_accesses": round(accesses) if by_access else totals["executed"],
        # Of all objects together: what shares are of. Estimates by site may add up to more.
        "object_accesses": accesses,
        # What windows cover, the constants that they leave out included: 1 where everything was recorded.
        "recorded_share": totals["covered"] / totals["executed"] if totals["executed"] else None,
        "everything_recorded": everything,
        "accessed_objects": len(by_object),
        "in_no_object_share": _share_of(by_object, accesses, lambda row: row["kind"] == "none"),
        # Accesses to objects that were not recorded, by estimate; null where every object was.
        "shared_out_accesses": shared_out if shared.objects else None,
        "damaged_windows": totals["damaged_windows"],
    }
    return Result(
        "accesses",
        figures,
        {
            "by_object": pa.Table.from_pylist(by_object, schema=estimates),
            "by_object_and_function": pa.Table.from_pylist(
                crossed, schema=_estimates([("object", text), ("kind", text), ("function", text), ("module", text)])
            ),
            "by_function": pa.Table.from_pylist(by_function, schema=_estimates([("function", text), ("module", text)])),
            "by_instruction": pa.Table.from_pylist(instructions, schema=_instruction_schema()),
        },
        capture.quality.joined(Quality(exact=everything and not shared.objects, notes=tuple(notes))),
    )


def _share_of(rows: list[dict[str, Any]], total: float, chosen: Any) -> float | None:
    return sum(row["accesses"] for row in rows if chosen(row)) / total if total else None


def _plain(row: dict[str, object]) -> dict[str, Any]:
    """NaN as null: an error that is not known."""
    return {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}


def _rows(columns: Columns) -> list[dict[str, Any]]:
    """Estimates as rows with their share of all bytes, most accesses first."""
    names = list(columns)
    rows = [
        _plain(dict(zip(names, values, strict=True)))
        for values in zip(*(columns[name].tolist() for name in names), strict=True)
    ]
    return _shares(rows, sum(row["bytes"] for row in rows))


def _shares(rows: list[dict[str, Any]], total: float) -> list[dict[str, object]]:
    for row in rows:
        row["share"] = row["bytes"] / total if total else 0.0
    return sorted(rows, key=lambda row: (-row["accesses"], row["group"], row["function"]))


def _estimates(keys: list[tuple[str, pa.DataType]]) -> pa.Schema:
    import pyarrow as pa

    numbers = [(f"{name}{suffix}", pa.float64()) for name in ESTIMATES for suffix in ("", "_error")]
    return pa.schema([*keys, *numbers, ("share", pa.float64()), ("recorded", pa.uint64()), ("windows", pa.uint64())])


def _instruction_schema() -> pa.Schema:
    import pyarrow as pa

    estimated = ("accesses", "bytes", "split", "narrow", "narrow_sequential")
    return pa.schema(
        [
            ("code", pa.uint32()), ("function", pa.string()), ("module", pa.string()), ("file", pa.string()),
            ("line", pa.uint32()),
            *((f"{name}{suffix}", pa.float64()) for name in estimated for suffix in ("", "_error")),
            ("recorded", pa.uint64()), ("windows", pa.uint64()),
        ]
    )  # fmt: skip


def _notes(capture: Capture, totals: dict[str, int]) -> list[str]:
    from ..results import Note

    notes: list[str] = []
    if totals["damaged_windows"]:
        notes.append(f"{totals['damaged_windows']} windows are damaged and were left out.")
    dropped = int(capture.whole.windows.columns["dropped"].sum())
    if dropped:
        notes.append(f"{dropped:,} accesses of windows were dropped for lack of room.")
    kinds = capture.kinds()
    if not kinds.get("allocation"):
        notes.append(
            Note("accesses.no_allocations", "No allocations were recorded: heap objects are not distinguished.")
        )
    if totals["without_code"]:
        notes.append(
            f"{totals['without_code']:,} accesses name sites of traced code whose tables are missing: function and width are not known."
        )
    return notes


DESCRIPTOR = AnalysisDescriptor(
    name="accesses",
    question="Which objects do the accesses go to, how many, and from which functions?",
    needs=("window",),
    run=object_accesses,
    consumer=AccessesConsumer,
    view=accesses_view,
    provide="memlens record --emulate, or memlens cc --memlens=trace and memlens record",
)
