"""What `locality`, `caches`, `sharing` and `patterns` show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..view import Chart, Column, Figure, Kind, Series, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ..results import Result

LEAST_SHARE = 0.002
"""Rows with less of the accesses, or of the misses, are folded."""
LEAST_HAND_OVERS = 0.001
"""Of all accesses: threads that start and end share some lines in every program."""
KEYS: Mapping[str, tuple[str, str, Kind]] = {
    "function": ("function", "function", "code"),
    "line": ("function", "line", "code"),
    "loop": ("loop", "loop", "text"),
    "object": ("object", "object", "object"),
    "thread": ("thread", "thread", "thread"),
    "region": ("region", "region", "region"),
    "node": ("node", "node", "node"),
    "range": ("begin", "addresses from", "address"),
}


def _keys(name: str, columns: list[str]) -> tuple[Column, ...]:
    """The columns that identify the rows of a table ``by_A`` or ``by_A_and_B``."""
    found = [KEYS[part] for part in name.removeprefix("by_").split("_and_") if part in KEYS]
    return tuple(key(column, label, kind) for column, label, kind in found if column in columns)


# ---- locality ------------------------------------------------------------
def locality_view(result: Result) -> View:
    figures, whole = result.figures, result.figures["everything_recorded"]
    if not figures["recorded_accesses"]:  # also where memory did not suffice: the quality of the result says so
        return View(title="Locality", order=400, silent=True)
    window = "" if whole else "window_"
    where = "" if whole else " in windows"
    how = "every access" if whole else "{windows} windows"
    constant = "[; {constant_percent} of the accesses constant]"
    if figures["constant_percent"] is None:  # a class that is inferred from windows is that of a window
        constant = f"[; {{{window}constant_percent}} of the accesses stay at one address{where}]"
    inferred = "" if figures["class_origin"] == "static" else ", classes inferred"
    remarks = [
        f"footprint: unique bytes, without constants; growth: unique addresses an access; distance: mean number of other blocks of {figures['line_bytes']} B between two uses."
    ]
    if not whole:
        remarks = [
            f"growth, irregular and distance are those of windows of {figures['window_accesses']:,} accesses: they depend on that length.",
            *remarks, "not seen: accesses whose last use lies outside their window. few windows: the row is under-sampled.",
        ]  # fmt: skip
    return View(
        title="Locality",
        order=400,
        headline=f"{how}: {{footprint}} addresses, {{footprint_bytes}} in {{footprint_lines}} lines[; {{{window}growth}} new addresses an access{where}]{constant}{inferred}",
        figures=_locality_figures(),
        tables=tuple(_locality_tables(result, window, whole=whole)),
        charts=_locality_charts(result, whole=whole),
        remarks=tuple(remarks),
    )  # fmt: skip


def _locality_figures() -> tuple[Figure, ...]:
    return (
        Figure(name="windows", label="windows", kind="count"),
        Figure(name="everything_recorded", label="every access recorded", kind="flag"),
        Figure(name="recorded_accesses", label="recorded accesses", kind="count"),
        Figure(name="executed_accesses", label="executed accesses", kind="count", better="lower"),
        Figure(name="window_accesses", label="accesses of a window", kind="count"),
        Figure(name="line_bytes", label="block", kind="bytes", help="Reuse is that of blocks of this size."),
        Figure(name="class_origin", label="origin of classes", kind="text", help="static: from the compiler; inferred: from the addresses seen."),
        Figure(name="damaged_windows", label="damaged windows", kind="count", better="lower", show="nonzero", help="Left out."),
        Figure(name="memory_bytes", label="memory of the engines", kind="bytes"),
        Figure(name="footprint", label="footprint", kind="count", better="lower", help="F: unique addresses, all constants as one."),
        Figure(name="footprint_estimated", label="footprint, estimated", kind="count", better="lower", help="rho · F: windows extrapolated to the run."),
        Figure(name="footprint_bytes", label="footprint in bytes", kind="bytes", better="lower", help="Unique bytes, without constants."),
        Figure(name="footprint_lines", label="footprint in lines", kind="count", better="lower"),
        Figure(name="growth", label="growth", kind="number", better="lower", help="F / (kappa · A): unique addresses an access."),
        Figure(name="growth_memgaze", label="growth, constants left out", kind="number", better="lower", help="F / A: what MemGaze's tool prints."),
        Figure(name="observed_growth", label="growth of what was recorded", kind="number", better="lower"),
        Figure(name="window_growth", label="growth in windows", kind="number", better="lower"),
        Figure(name="strided_percent", label="strided", kind="percent", better="higher", help="Of the accesses that are not constant."),
        Figure(name="irregular_percent", label="irregular", kind="percent", better="lower", help="Of the accesses that are not constant."),
        Figure(name="constant_percent", label="constant", kind="percent", help="Of all accesses."),
        Figure(name="window_irregular_percent", label="irregular in windows", kind="percent", better="lower"),
        Figure(name="window_constant_percent", label="at one address in windows", kind="percent"),
        Figure(name="kappa", label="kappa", kind="number", help="1 + A_const / A: accesses for each that is not constant."),
        Figure(name="rho", label="rho", kind="number", help="Executed accesses for each recorded one."),
        Figure(name="reuse_distance_mean", label="reuse distance, mean", kind="number", better="lower", help="Other blocks between two uses of a block."),
        Figure(name="window_reuse_distance_mean", label="reuse distance in windows, mean", kind="number", better="lower"),
        Figure(name="unobservable", label="accesses with unknown reuse", kind="count", better="lower", help="The first of their window to a block."),
        Figure(name="blocks_of_window", label="blocks of a window", kind="number", better="lower"),
        Figure(name="blocks_between_windows_estimated", label="blocks between windows, estimated", kind="number"),
    )  # fmt: skip


def _locality_tables(result: Result, window: str, *, whole: bool) -> list[Table]:
    measures = (
        measure("executed", "accesses", "count", better="lower"),
        measure("share", "share", "share", bar=True),
        measure("footprint_bytes", "footprint", "bytes", better="lower"),
        measure(f"{window}growth", "growth", "number", better="lower"),
        measure(f"{window}irregular_percent", "irregular", "percent", better="lower"),
        measure(f"{window}reuse_distance_mean", "distance", "number", better="lower"),
        *(() if whole else (
            measure("unobservable_percent", "not seen", "percent", help="The reuse of these accesses lies outside their window."),
            measure("under_sampled", "few windows", "flag", show="nonzero", zero=""),
        )),
        *(() if whole else (
            detail(f"{window}growth_low", "growth, low", "number"), detail(f"{window}growth_high", "growth, high", "number"),
            detail("reuse_distance_low", "distance, low", "number", show="known"), detail("reuse_distance_high", "distance, high", "number", show="known"),
            detail("footprint_estimated", "footprint, estimated", "count"),
        )),
        detail(f"{window}constant_percent", "constant", "percent"), detail("kappa", "kappa", "number", show="known"),
        detail("footprint_lines", "lines", "count", better="lower"), detail("reuses", "reuses", "count"),
        detail("reuse_interval_mean", "interval", "number", show="known", help="Accesses between two uses."), detail("windows", "windows", "count"),
    )  # fmt: skip
    made = []
    for name, table in result.tables.items():
        if not name.startswith("by_") or name == "by_program":
            continue
        keys = _keys(name, table.column_names)
        if not keys:  # grouped by something that a plug-in names
            keys = (key(table.column_names[0], table.column_names[0], "text"),)
        made.append(
            Table(name=name, title="By " + " and ".join(column.label for column in keys), role="key" if name == "by_function" else "measure",
                  columns=(*keys, *measures), fold="share", fold_below=LEAST_SHARE, leads_to="accesses")
        )  # fmt: skip
    made.append(
        Table(name="reuse_intervals", title="What windows can show", role="detail", columns=(
            key("from", "interval from", "count"), key("to", "to", "count"), measure("reuses", "reuses", "count"),
            measure("observed_percent", "observed", "percent", better="higher"), measure("reuses_estimated", "estimated", "count"),
            measure("observable", "observable", "text"),
        ))
    )  # fmt: skip
    return made


def _locality_charts(result: Result, *, whole: bool) -> tuple[Chart, ...]:
    ends = "" if whole else "; a range where the last use of a line lies outside its window"
    last = "first accesses, which have no reuse" if whole else "unobservable accesses"
    return (
        Chart(name="miss_curve", title="Misses of a fully associative LRU cache, one for each thread", kind="curve", role="key",
              x_kind="bytes", y_kind="share", x_label="size of the cache", help=f"Share of the accesses that miss{ends}.",
              series=(Series(label="misses", table="miss_curve", x="cache_bytes", y="miss_ratio", low="miss_ratio_low"),)),
        Chart(name="reuse_distance", title="Reuse distance", kind="bars", role="detail", table="reuse_distances", y_kind="count", drawing="reuse_histogram",
              columns=(("from", "from"), ("to", "to"), ("value", "reuses_by_distance")), x_label="other data used in between",
              x_kind="bytes", help=f"Accesses by how much other data was used since the last use of their block; hatched: {last}."),
        Chart(name="reuse_interval", title="Reuse interval", kind="bars", role="detail", table="reuse_distances", y_kind="count", drawing="reuse_histogram",
              columns=(("from", "from"), ("to", "to"), ("value", "reuses_by_interval")), x_label="accesses from one use to the next",
              x_kind="count", help=f"Accesses by how many accesses of the thread ago their block was used; hatched: {last}."),
        Chart(name="heat_map", title="Addresses over time", kind="heat_map", role="detail", table="heat_map", drawing="addresses", x_kind="time_s", y_kind="address",
              columns=(("row", "address"), ("row_bytes", "bytes"), ("begin", "begin_ns"), ("end", "end_ns"), ("group", "process"),
                       ("value", "accesses"), ("value", "reuse_distance_mean"))),
    )  # fmt: skip


# ---- caches ------------------------------------------------------------
def caches_view(result: Result) -> View:
    figures = result.figures
    names = [str(level["name"]) for level in figures["levels"]]
    unknown = figures["unknown"]
    beside = result.tables["levels"].num_rows and any(
        v is not None for v in result.tables["levels"].column("curve_miss_ratio").to_pylist()
    )
    misses = tuple(
        measure(f"miss_ratio_{at}", f"{name} misses", "share", low=f"miss_ratio_{at}" if unknown else None,
                high=f"miss_ratio_high_{at}" if unknown else None, is_range=bool(unknown), better="lower")
        for at, name in enumerate(names, 1)
    )  # fmt: skip
    rest = (
        measure("accesses", "accesses", "count", better="lower"), *misses,
        *((measure("unknown", "unknown", "count", of="accesses"),) if unknown else ()),
        *(detail(f"misses_{at}", f"{name} misses, count", "count", better="lower") for at, name in enumerate(names, 1)),
        *(detail(f"store_misses_{at}", f"{name} store misses", "count", better="lower") for at, name in enumerate(names, 1)),
        *(detail(f"tlb_misses_{at}", f"{tlb['name']} misses", "count", better="lower") for at, tlb in enumerate(figures["tlbs"], 1)),
        detail("stores", "stores", "count"),
    )  # fmt: skip
    tables = [
        Table(name="levels", title="By level", role="key", columns=(
            key("level", "level"), measure("bytes", "size", "bytes", null=""), measure("entries", "entries", "count", show="known", null=""),
            measure("miss_ratio", "misses", "share", low="miss_ratio" if unknown else None, high="miss_ratio_high" if unknown else None,
                    is_range=bool(unknown), better="lower", help="Of all accesses: the model with sets and ways, all levels together."),
            measure("curve_miss_ratio", "curve", "share", low="curve_miss_ratio_low" if unknown else None,
                    high="curve_miss_ratio" if unknown else None, is_range=bool(unknown), show="known", null="", better="lower",
                    help="Of all accesses: a fully associative cache of this size alone, one for each thread."),
            detail("misses", "misses, count", "count", better="lower"), detail("ways", "ways", "count"), detail("shared", "shared", "flag"),
            detail("kind", "kind", "text"),
        )),
    ]  # fmt: skip
    for name, table in result.tables.items():
        if name == "levels":
            continue
        terminal = name == "by_function" or (name == "by_line" and any(table.column("file").to_pylist()))
        keys = _keys(name, table.column_names) or (key(table.column_names[0], table.column_names[0], "text"),)
        tables.append(
            Table(name=name, title="By " + " and ".join(column.label for column in keys), role="measure" if terminal else "detail",
                  columns=(*keys, *rest), leads_to="accesses")
        )  # fmt: skip
    remarks = ["Misses are those of a model, not measured."]
    if beside:
        remarks.append(
            "misses: sets and ways, all levels together; curve: each size alone, fully associative, one for each thread."
        )
    if unknown:
        remarks.append("A range: accesses that are their window's first to a line may hit or miss.")
    return View(
        title="Modelled misses",
        order=410,
        silent=not figures["accesses"],
        headline="{modelled_accesses} accesses[ in the caches of {machine}][; {unknown} of them may hit or miss]",
        figures=(
            Figure(name="accesses", label="accesses", kind="count", better="lower"),
            Figure(name="modelled_accesses", label="modelled accesses", kind="count"),
            Figure(name="unknown", label="accesses that may hit or miss", kind="count", better="lower", show="nonzero"),
            Figure(name="tlb_unknown", label="accesses that may hit or miss the TLB", kind="count", better="lower", show="nonzero"),
            Figure(name="everything_recorded", label="every access recorded", kind="flag"),
            Figure(name="cores", label="cores", kind="count"),
            Figure(name="line_bytes", label="line", kind="bytes"),
            Figure(name="machine", label="machine", kind="text"),
            Figure(name="machine_description", label="caches of", kind="text"),
        ),
        tables=tuple(tables),
        remarks=tuple(remarks),
    )  # fmt: skip


def with_curve(result: Result, others: Mapping[str, Result]) -> Result:
    """The levels of the cache model with the miss curve at the same size beside them, where `locality` has one of the same lines."""
    import pyarrow as pa

    from ..results import Result as Made

    curve = others.get("locality")
    if (
        curve is None
        or curve.figures.get("line_bytes") != result.figures["line_bytes"]
        or "miss_curve" not in curve.tables
    ):
        return result
    points = curve.tables["miss_curve"].to_pylist()
    rows = result.tables["levels"].to_pylist()
    for row in rows:
        if row["kind"] != "cache":
            continue
        # Beyond the last row the curve is flat.
        at = [p for p in points if p["cache_bytes"] == row["bytes"]] or [
            p for p in points[-1:] if p["cache_bytes"] < row["bytes"]
        ]
        if at:
            row["curve_miss_ratio_low"], row["curve_miss_ratio"] = at[0]["miss_ratio_low"], at[0]["miss_ratio"]
    levels = pa.Table.from_pylist(rows, schema=result.tables["levels"].schema)
    return Made(result.name, result.figures, {**result.tables, "levels": levels}, result.quality)


# ---- sharing ------------------------------------------------------------
def is_contended(row: Mapping[str, int], accesses: int) -> bool:
    """Whether two threads meet in a line often, or would: windows of two threads seldom overlap, so few hand-overs are seen in them.

    >>> line = {"hand_overs": 3, "reads": 500, "writes": 500, "other_reads": 400, "other_writes": 0}
    >>> is_contended(line, 10_000), is_contended(line, 10_000_000)
    (True, False)
    """
    both = min(row["reads"] + row["writes"], row["other_reads"] + row["other_writes"])
    return bool(max(row["hand_overs"], both) > LEAST_HAND_OVERS * accesses)


def sharing_view(result: Result) -> View:
    figures = result.figures
    hand_overs = figures["false_sharing_hand_overs"] + figures["true_sharing_hand_overs"]
    contended = any(is_contended(row, figures["accesses"]) for row in result.tables["lines"].to_pylist())
    seldom = () if result.quality.exact else (
        "Windows of two threads seldom overlap, so hand-overs are fewer than in the run: how often both use a line says more.",
    )  # fmt: skip
    return View(
        title="Shared lines",
        order=420,
        silent=figures["threads"] < 2 or (not contended and hand_overs <= LEAST_HAND_OVERS * figures["accesses"]),
        headline="{false_sharing_lines} falsely ({false_sharing_hand_overs} hand-over(s)), {true_sharing_lines} truly ({true_sharing_hand_overs} hand-over(s))",
        figures=(
            Figure(name="false_sharing_lines", label="falsely shared lines", kind="count", better="lower"),
            Figure(name="false_sharing_hand_overs", label="hand-overs of falsely shared lines", kind="count", better="lower"),
            Figure(name="true_sharing_lines", label="truly shared lines", kind="count", better="lower"),
            Figure(name="true_sharing_hand_overs", label="hand-overs of truly shared lines", kind="count", better="lower"),
            Figure(name="lines", label="lines", kind="count"),
            Figure(name="shared_lines", label="lines that threads share and write", kind="count", better="lower"),
            Figure(name="threads", label="threads", kind="count"),
            Figure(name="accesses", label="recorded accesses", kind="count"),
            Figure(name="line_bytes", label="line", kind="bytes"),
        ),
        tables=(
            Table(name="lines", title="By line and pair of threads", role="measure" if contended else "detail", sort="-hand_overs", drawing="line_bytes", columns=(
                key("object", "object", "object", null="?"), key("line", "line", "address"), measure("kind", "sharing", "text"),
                measure("thread", "thread", "thread"), measure("other_thread", "other", "thread"),
                measure("hand_overs", "hand-overs", "count", better="lower"),
                measure("offsets", "writes", "text", null="none"), measure("other_offsets", "other writes", "text", null="none"),
                measure("fields", "fields", "text", show="known"), measure("other_fields", "other fields", "text", show="known"),
                detail("common_offsets", "both use", "text"), detail("useful_hand_overs", "passing data", "count"),
                detail("reads", "reads", "count"), detail("writes", "writes", "count"), detail("other_reads", "other reads", "count"),
                detail("other_writes", "other writes", "count"), detail("windows", "windows", "count", show="known"),
                detail("other_windows", "other windows", "count", show="known"),
            ), leads_to="accesses"),
            Table(name="by_object", title="By object", role="detail" if contended else "measure", sort="-hand_overs", columns=(
                key("object", "object", "object", null="?"), measure("kind", "sharing", "text"), measure("lines", "lines", "count", better="lower"),
                measure("threads", "threads", "count"), measure("hand_overs", "hand-overs", "count", better="lower"),
            ), leads_to="accesses"),
        ),
        remarks=(
            "A hand-over is an access that finds the line last written, or for a write last used, by the other thread. True: a byte that one writes is used "
            "by the other. False: only the line is shared, and keeping the data apart ends it. writes: bytes of the line that each thread writes.",
            *seldom,
        ),
    )  # fmt: skip


# ---- patterns ------------------------------------------------------------
def patterns_view(result: Result) -> View:
    """What findings judge; nothing of it is in the terminal."""
    return View(
        title="Access patterns",
        order=430,
        silent=not result.figures["recorded_accesses"],
        figures=(
            Figure(name="recorded_accesses", label="recorded accesses", kind="count"),
            Figure(name="looked_at", label="accesses looked at", kind="count"),
            Figure(name="everything_recorded", label="every access recorded", kind="flag"),
            Figure(name="executed_accesses", label="executed accesses", kind="count"),
            Figure(name="line_bytes", label="line", kind="bytes"),
            Figure(name="threads", label="threads", kind="count"),
            Figure(name="first_cache_bytes", label="first cache", kind="bytes"),
            Figure(name="first_cache_ways", label="its ways", kind="count"),
            Figure(name="first_cache_sets", label="its sets", kind="count"),
            Figure(name="no_reuse", label="first accesses to a line", kind="count"),
        ),
        tables=(
            Table(name="by_instruction", title="By instruction", role="detail", columns=(
                key("function", "instruction", "code"), key("object", "object", "object"), measure("operation", "operation", "text"),
                measure("accesses", "accesses", "count"), measure("share", "share", "share"), measure("class", "class", "text"),
                measure("stride_bytes", "stride", "bytes", show="known"), measure("stride_share", "of its accesses", "share", show="known"),
                measure("same_address_share", "same address", "share"), measure("misses", "misses", "count", better="lower"),
                detail("misses_full", "misses, fully associative", "count"), detail("mean_bytes", "bytes each", "number"),
                detail("leads_itself", "loads its next address", "flag", show="known"), detail("recorded", "recorded", "count"),
            ), leads_to="accesses"),
            Table(name="by_function_and_object", title="By function and object", role="detail", columns=(
                key("function", "function", "code"), key("object", "object", "object"), measure("accesses", "accesses", "count"),
                measure("share", "share", "share"), measure("lines", "lines", "count"), measure("used_bytes", "used bytes", "bytes"),
                measure("visit_bytes", "bytes a visit", "number", show="known", help="Of a line, each time that it is brought in."),
                measure("misses", "misses", "count", better="lower"), detail("misses_full", "misses, fully associative", "count"),
                detail("sets", "sets used", "share"), detail("irregular_share", "irregular", "share"),
                detail("step_bytes", "step", "bytes", show="known"), detail("step_share", "of its accesses", "share", show="known"),
                detail("recorded", "recorded", "count"),
            ), leads_to="accesses"),
            Table(name="levels", title="Misses of smaller and larger caches", role="detail", columns=(
                key("level", "level"), measure("cache_bytes", "size", "bytes"), measure("times", "of its size", "number"),
                measure("miss_ratio", "misses", "share", better="lower"), detail("misses", "misses, count", "count", better="lower"),
            )),
        ),
    )  # fmt: skip
