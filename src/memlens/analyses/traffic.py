"""Analysis `traffic`: how much memory traffic each function, line, module, thread and region makes, counted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from ..capture.store.layouts import enum_value
from ..registry import AnalysisDescriptor
from ._traffic_view import traffic_view

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Columns, Ints, Uint32s, Uint64s
    from ..capture.model.accesses import WindowSource
    from ..capture.reader import Capture
    from ..results import Key, Result, Row

COUNTS = ("loads", "stores", "load_bytes", "store_bytes")
STACK_COUNTS = ("stack_loads", "stack_stores", "stack_load_bytes", "stack_store_bytes")
STACK_KNOWN, ANONYMOUS, MODIFIED, EMULATOR_WIDTH = (
    enum_value("code_flags", name) for name in ("stack_known", "anonymous", "modified", "emulator_width")
)
NARROW_BYTES = 2
ANONYMOUS_CODE = "[anonymous code]"
UNSEEN_CAUSES = {
    "exec": "programs that were executed outside the emulator",
    "instruction": "instructions whose accesses the emulator does not show",
    "system_call": "system calls that the emulator answered otherwise",
}


class CodeNames:
    """Function, module, file and line of codes as lists; the entry after the last is for code that is not known."""

    def __init__(self, capture: WindowSource) -> None:
        sites = capture.trace_sites.behind(capture.replay.code_sites)
        self.count = sites.num_rows
        modules = sites.column("module").to_pylist()
        self.module = [*modules, "[unknown]"]
        functions = sites.column("function").to_pylist()
        self.function: list[str | None] = [
            ANONYMOUS_CODE if name is None and module == "[jit]" else name
            for name, module in zip(functions, modules, strict=True)
        ]
        self.function.append(None)
        self.file = [*sites.column("file").to_pylist(), None]
        self.line = [*sites.column("line").to_pylist(), 0]
        self.inlined_into = [*sites.column("inlined_into").to_pylist(), []]

    def of(self, table: pa.Table) -> Ints:
        """The column `code` as numbers; the one after the last for code that is not known."""
        import numpy as np

        codes: Ints = table.column("code").fill_null(self.count).to_numpy().astype(np.int64)
        return codes

    def functions(self) -> tuple[Uint32s, list[tuple[str | None, str]]]:
        """(function number of each code, (function, module) of each number)."""
        import numpy as np

        index: dict[tuple[str | None, str], int] = {}
        numbers = [index.setdefault(pair, len(index)) for pair in zip(self.function, self.module, strict=True)]
        return np.array(numbers, dtype=np.uint32), list(index)


def _columns(table: pa.Table) -> Columns:
    return {
        name: table.column(name).to_numpy()
        for name in table.column_names
        if name != "code" and not str(table.schema.field(name).type).startswith(("dictionary", "string", "binary"))
    }


class _Total(TypedDict):
    """The row of everything, as far as figures need it."""

    bytes: int
    stack_load_bytes: int | None
    stack_store_bytes: int | None
    mean_width: NotRequired[float | None]
    instructions: int


class _OfFunction(TypedDict):
    """A row of ``by_function``, as far as it says what was not counted."""

    function: str | None
    module: str | None
    unseen: int


class _Unseen(TypedDict):
    """A row of ``unseen``."""

    cause: str
    name: str | None
    function: str | None
    module: str | None
    executions: int


def _summed(keys: Sequence[Key], names: list[str], numbers: Ints, counts: Columns) -> list[Row]:
    """Rows of counts by key, most bytes first; stack counts are None where they are not known of every access."""

    sums = {name: _exact_sums(numbers, values, len(keys)) for name, values in counts.items()}
    total = int(sums["load_bytes"].sum() + sums["store_bytes"].sum())
    rows: list[tuple[tuple[int, int], Row]] = []
    for at, key in enumerate(keys):
        own = {name: int(sums[name][at]) for name in (*COUNTS, *STACK_COUNTS, "narrow", "unseen", "instructions")}
        n_bytes, accesses = own["load_bytes"] + own["store_bytes"], own["loads"] + own["stores"]
        is_known = not sums["stack_unknown"][at]
        on_stack = own["stack_load_bytes"] + own["stack_store_bytes"]
        row: Row = {**dict(zip(names, key, strict=True)), **own}
        if not is_known:
            row.update(dict.fromkeys(STACK_COUNTS))
        row["bytes"] = n_bytes
        row["share"] = n_bytes / total if total else 0.0
        row["stack_share"] = on_stack / n_bytes if is_known and n_bytes else None
        row["mean_width"] = n_bytes / accesses if accesses else None
        rows.append(((-n_bytes, -own["unseen"]), row))
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def _exact_sums(numbers: Ints, values: Uint64s, count: int) -> Uint64s:
    """Sums in 64-bit integers: doubles lose the last digits above 2^53."""
    import numpy as np

    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, numbers, values.astype(np.uint64))
    return sums


def _schema(keys: list[tuple[str, pa.DataType]]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            *keys,
            *((name, pa.uint64()) for name in (*COUNTS, *STACK_COUNTS)),
            ("bytes", pa.uint64()), ("share", pa.float64()), ("stack_share", pa.float64()), ("mean_width", pa.float64()), ("narrow", pa.uint64()),
            ("unseen", pa.uint64()), ("instructions", pa.uint64()),
        ]
    )  # fmt: skip


def traffic(capture: Capture) -> Result:
    """Loads, stores and bytes by function, line, module, thread, region and process.

    Counts are those of the instructions themselves (self): a function has what its own code did, not
    what it called; inlined code belongs to the inlined function. An atomic operation is one load and one
    store. ``stack_*`` are accesses to a stack, null where the collector cannot separate them. ``narrow`` are
    accesses of 1 or 2 bytes outside the stack (as far as that is known) by instructions of one width.
    """
    import numpy as np
    import pyarrow as pa

    from ..results import Quality, Result

    table = capture.table("code_counts")
    columns = _columns(table)
    names = CodeNames(capture)
    code = names.of(table)
    known = (columns["flags"] & STACK_KNOWN) != 0
    counts: Columns = {name: columns[name] for name in (*COUNTS, *STACK_COUNTS, "unseen")}
    narrow = np.zeros(table.num_rows, dtype=np.uint64)
    for accesses, width, on_stack in (
        ("loads", "load_width", "stack_loads"),
        ("stores", "store_width", "stack_stores"),
    ):
        is_narrow = (columns[width] > 0) & (columns[width] <= NARROW_BYTES)
        outside = columns[accesses] - np.where(known, np.minimum(columns[on_stack], columns[accesses]), np.uint64(0))
        narrow += np.where(is_narrow, outside, np.uint64(0))
    counts["narrow"] = narrow
    counts["stack_unknown"] = (~known & ((columns["loads"] + columns["stores"]) > 0)).astype(np.uint64)
    # Rows of one instruction differ by thread and region: the first of each counts.
    order = np.lexsort((code, columns["pc"], columns["process"]))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.any([np.diff(c[order]) != 0 for c in (columns["process"], columns["pc"], code)], axis=0)
    counts["instructions"] = np.zeros(table.num_rows, dtype=np.uint64)
    counts["instructions"][order[is_first]] = 1

    def by(keys_of_row: Sequence[Key], key_names: list[str]) -> list[Row]:
        index: dict[Key, int] = {}
        numbers = np.array([index.setdefault(key, len(index)) for key in keys_of_row], dtype=np.int64)
        return _summed(list(index), key_names, numbers, counts)

    codes = code.tolist()
    functions = [(names.function[c], names.module[c]) for c in codes]
    lines = [(*pair, names.file[c], names.line[c]) for pair, c in zip(functions, codes, strict=True)]
    threads = list(zip(columns["process"].tolist(), columns["thread"].tolist(), strict=True))
    thread_names = {(row["process"], row["thread"]): row["name"] for row in capture.table("threads").to_pylist()}
    process_names = {row["process"]: row["name"] for row in capture.table("processes").to_pylist()}
    text, number = pa.string(), pa.uint32()
    tables = {
        "by_function": (by(functions, ["function", "module"]), [("function", text), ("module", text)]),
        "by_line": (by(lines, ["function", "module", "file", "line"]),
                    [("function", text), ("module", text), ("file", text), ("line", number)]),
        "by_module": (by([(module,) for _, module in functions], ["module"]), [("module", text)]),
        "by_thread": (by([(*key, thread_names.get(key)) for key in threads], ["process", "thread", "name"]),
                      [("process", number), ("thread", number), ("name", text)]),
        "by_region": (by([(region,) for region in table.column("region").to_pylist()], ["region"]), [("region", text)]),
        "by_process": (by([(p, process_names.get(p)) for p, _ in threads], ["process", "name"]),
                       [("process", number), ("name", text)]),
    }  # fmt: skip
    whole = by([()] * table.num_rows, [])
    total = cast(
        "_Total", whole[0] if whole else {name: 0 for name in (*COUNTS, *STACK_COUNTS, "bytes", "instructions")}
    )
    anonymous = (columns["flags"] & ANONYMOUS) != 0
    moved = columns["load_bytes"] + columns["store_bytes"]
    named = np.array([names.function[c] is not None for c in codes], dtype=bool)
    unseen = _unseen(capture, names, tables["by_function"][0])
    cut = _cut_short(capture, columns)
    loaded, stored = total["stack_load_bytes"], total["stack_store_bytes"]
    figures: dict[str, object] = {
        **{name: value for name, value in total.items() if name in COUNTS},
        "accessed_bytes": total["bytes"],
        "mean_width": total.get("mean_width"),
        "stack_share": (loaded + stored) / total["bytes"]
        if loaded is not None and stored is not None and total["bytes"] else None,
        "instructions": total["instructions"],
        "unseen_executions": sum(row["executions"] for row in unseen),
        "uncounted_executions": sum(row["executions"] for row in unseen if row["cause"] != "system_call"),
        "emulator_width_bytes": int(moved[(columns["flags"] & EMULATOR_WIDTH) != 0].sum()),
        "anonymous_code_bytes": int(moved[anonymous].sum()),
        "named_share": float(moved[named].sum()) / total["bytes"] if total["bytes"] else None,
        **_addresses(capture),
    }  # fmt: skip
    return Result(
        "traffic",
        figures,
        {
            **{name: pa.Table.from_pylist(rows, schema=_schema(keys)) for name, (rows, keys) in tables.items()},
            "unseen": pa.Table.from_pylist(unseen, schema=_unseen_schema()),
        },
        capture.quality.joined(
            Quality(
                exact=not (cut or figures["uncounted_executions"] or figures["emulator_width_bytes"]),
                notes=(*cut, *_notes(columns, unseen)),
            )
        ),
    )


def _addresses(capture: Capture) -> dict[str, object]:
    """How much of what was executed has its addresses in windows."""
    if not capture.kinds().get("window") or capture.selection.by_access:
        return {"windows": 0, "recorded_accesses": 0, "recorded_share": None}
    units = capture.windows.units
    executed, recorded = int(units.executed.sum()), int(capture.windows.columns["recorded"].sum())
    return {
        "windows": len(units.executed),
        "recorded_accesses": recorded,
        "recorded_share": int(units.covered.sum()) / executed if executed else None,
    }


def _cut_short(capture: Capture, columns: Columns) -> list[str]:
    """Processes that ended without a last word: their counts are as they were when last written."""
    told = set(capture.table("emulator_status").column("process").to_pylist())
    if not told:
        return []
    silent = {*columns["process"].tolist(), *capture.whole.windows.columns["process"].tolist()} - told
    if not silent:
        return []
    return [f"{len(silent)} processes were killed before they wrote out their counts: their counts are incomplete."]


def _unseen_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("cause", pa.string()), ("name", pa.string()), ("function", pa.string()), ("module", pa.string()),
                      ("executions", pa.uint64())])  # fmt: skip


def _unseen(capture: Capture, names: CodeNames, by_function: list[Row]) -> list[_Unseen]:
    """What belongs to the run and was not counted: records of kind `unseen`, and instructions that count themselves."""
    rows: dict[tuple[str, str | None, str | None, str | None], int] = {}
    table = capture.table("unseen")
    if table.num_rows:
        codes = names.of(table).tolist()
        for row, code in zip(table.to_pylist(), codes, strict=True):
            here = (names.function[code], names.module[code]) if row["pc"] else (None, None)
            key = (row["cause"], row["name"], *here)
            rows[key] = rows.get(key, 0) + row["executions"]
    told = {key[2:] for key in rows if key[0] == "instruction"}
    for one in cast("list[_OfFunction]", by_function):
        if one["unseen"] and (one["function"], one["module"]) not in told:
            rows["instruction", None, one["function"], one["module"]] = one["unseen"]
    found = [
        _Unseen(cause=cause, name=name, function=function, module=module, executions=count)
        for (cause, name, function, module), count in rows.items()
    ]
    return sorted(found, key=lambda row: -row["executions"])


def _notes(columns: Columns, unseen: list[_Unseen]) -> list[str]:
    notes = []
    for cause, text in UNSEEN_CAUSES.items():
        mine = [row for row in unseen if row["cause"] == cause]
        if mine:
            what = [name for name in dict.fromkeys(row["name"] or row["function"] for row in mine) if name]
            listed = f" ({', '.join(what[:5])}{', …' if len(what) > 5 else ''})" if what else ""
            what_happened = "Emulated differently" if cause == "system_call" else "Not counted"
            notes.append(f"{what_happened}: {sum(row['executions'] for row in mine):,} × {text}{listed}.")
    upper = (columns["flags"] & EMULATOR_WIDTH) != 0
    upper_bytes = int((columns["load_bytes"] + columns["store_bytes"])[upper].sum())
    if upper_bytes:
        accesses = int((columns["loads"] + columns["stores"])[upper].sum())
        notes.append(
            f"{upper_bytes:,} bytes of {accesses:,} accesses are an upper bound: masked loads, of which the emulator loads all lanes, "
            "and instructions whose width is not known."
        )
    modified = int(((columns["flags"] & MODIFIED) != 0).sum())
    if modified:
        notes.append(
            f"{modified} counts are of code that was changed while it ran: they belong to an address, not to one instruction."
        )
    return notes


DESCRIPTOR = AnalysisDescriptor(
    name="traffic",
    question="How many loads, stores and bytes does each function, line, thread and region make?",
    needs=("code_count",),
    run=traffic,
    view=traffic_view,
    provide="memlens record --emulate",
)
