"""Rows of `bandwidth` by function, inlined function, line and block, and calls of functions that have no counters."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..capture.model.count_tables import MIX
from ._region_rows import intensity, shares
from ._region_sums import QUANTITIES, Regions, scaled_sums, sums_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Floats, Ints
    from ..capture.model.counting import Counts
    from ..capture.reader import Capture

MOST_BLOCKS = 1000
UNNAMED = {"(inline assembly)": "the program", "(through a pointer)": "other modules"}
"""Callees that are no functions (format/memlens_count.h), and where they are."""


def rows_by_code(capture: Capture, regions: Regions) -> dict[str, list[dict[str, object]]]:
    """Sums over threads and regions by where the code is; counted executions stand for all, as in the regions."""
    import numpy as np

    from ..capture.model.counting import FLOAT, VECTOR, Executed
    from ..capture.model.joins import factorized

    counts = capture.counts
    static = capture.table("count_sites")
    n_sites = static.num_rows
    factors = regions.place_factors()
    runs = _site_runs(counts, factors)
    # Of sites with known bytes the sums follow from the executions; those whose bytes were added up are few.
    once = Executed(
        np.zeros(n_sites, dtype=np.int64), np.arange(n_sites), runs, runs * counts.sites["bytes"].astype(np.int64)
    )
    by_site = {
        name: np.where(counts.summed_sites, 0, values.astype(np.int64))
        for name, values in counts.accesses(once).items()
        if name in QUANTITIES
    }
    bulk = counts.by_site(of=counts.summed_sites)
    for name, values in counts.accesses(bulk).items():
        if name in QUANTITIES:
            by_site[name] = by_site[name] + scaled_sums(bulk.what, values, bulk.place, factors, n_sites)
    moved = by_site["read_bytes"] + by_site["written_bytes"]
    all_bytes = float(moved.sum())
    used = np.flatnonzero(runs)
    flags = counts.sites["flags"]
    names = static.column("name").to_pylist()
    files = static.column("file").to_pylist()
    modules = [counts.module_paths.get(module, module) for module in counts.modules]
    function_names = counts.functions.column("name").to_pylist()
    function_lines = counts.functions.select(["file", "line"]).to_pylist()
    function, module = counts.sites["function"], counts.sites["module"]

    def rows_by(codes: Ints, first: Ints, describe: Any) -> list[dict[str, object]]:
        found = []
        sums = {name: sums_of(codes, by_site[name][used], len(first)) for name in QUANTITIES}
        vector = sums_of(codes, np.where(flags[used] & VECTOR, moved[used], 0), len(first))
        for number, index in enumerate(first.tolist()):
            at = int(used[index])
            row = {**describe(at), **{name: int(sums[name][number]) for name in QUANTITIES}}
            row |= shares(row, all_bytes)
            row["vector_share"] = float(vector[number]) / row["bytes"] if row["bytes"] else None
            found.append(row)
        return sorted(found, key=lambda row: -row["bytes"])

    found: dict[str, list[dict[str, Any]]] = {}
    blocks = _block_sums(capture, factors)
    entries = blocks["entries"]
    codes, first = factorized(function[used])
    found["by_function"] = rows_by(
        codes, first,
        lambda at: {
            "function": function_names[function[at]], "module": modules[module[at]], **function_lines[function[at]],
            "executions": entries.get(int(function[at])), **blocks["mix_of_function"](int(function[at])),
        },
    )  # fmt: skip
    for row in found["by_function"]:
        row |= intensity(row, row["float_results"] is not None)
    name_codes = static.column("name").combine_chunks()
    name_index = _indices(name_codes)
    codes, first = factorized(name_index[used], module[used], (counts.sites_inlined())[used])
    found["by_scope"] = rows_by(
        codes, first,
        lambda at: {"function": names[at], "module": modules[module[at]], "inlined": bool(counts.sites_inlined()[at])},
    )  # fmt: skip
    codes, first = factorized(
        _indices(static.column("file").combine_chunks())[used],
        counts.sites["line"][used],
        name_index[used],
        module[used],
    )
    found["by_line"] = rows_by(
        codes, first,
        lambda at: {"file": files[at], "line": int(counts.sites["line"][at]), "function": names[at], "module": modules[module[at]]},
    )  # fmt: skip
    most = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(most, codes, runs[used])
    key_of = {
        (files[int(used[i])], int(counts.sites["line"][used[i]]), names[int(used[i])]): int(most[n])
        for n, i in enumerate(first.tolist())
    }
    for row in found["by_line"]:
        row["executions"] = key_of[row["file"], row["line"], row["function"]]
    block = counts.sites["block"]
    codes, first = factorized(block[used])
    is_float = (flags & FLOAT) != 0
    lines = counts.sites["line"]
    # A block has a line and no file: code of several files may be inlined into it. A site of that line has the file.
    of_line: dict[tuple[int, int], str] = {}
    for site in used.tolist():
        if files[site]:
            of_line.setdefault((int(block[site]), int(lines[site])), files[site])

    def place_of_block(number: int, at: int) -> dict[str, object]:
        line = int(counts.blocks["line"][number])
        file = of_line.get((int(number), line)) if line else None
        return {"file": file, "line": line} if file else {"file": files[at], "line": int(lines[at]) if files[at] else 0}

    found["by_block"] = rows_by(
        codes, first,
        lambda at: {
            "function": function_names[function[at]], "module": modules[module[at]], "block": int(counts.blocks["block"][block[at]]),
            **place_of_block(int(block[at]), at),
            "depth": int(counts.blocks["depth"][block[at]]), "executions": int(blocks["executions"][block[at]]) or int(runs[at]),
            "_block": int(block[at]),
        },
    )[:MOST_BLOCKS]  # fmt: skip
    scalar = sums_of(block, np.where(is_float & ((flags & VECTOR) == 0), moved, 0), len(counts.blocks["block"]))
    floats = sums_of(block, np.where(is_float, moved, 0), len(counts.blocks["block"]))
    for row in found["by_block"]:
        number = row.pop("_block")
        row |= {"float_bytes": int(floats[number]), "scalar_float_bytes": int(scalar[number])}
        row |= blocks["mix_of_block"](number)
        row |= intensity(row, row["float_results"] is not None)
    return found


def _site_runs(counts: Counts, factors: Floats) -> Ints:
    """Executions of each site in all places; counted executions stand for all."""
    import numpy as np

    groups = counts.by_group()
    totals = scaled_sums(groups.what, groups.executions, groups.place, factors, counts.n_groups)
    runs = np.zeros(len(counts.site_group), dtype=np.int64)
    there = counts.site_group >= 0
    runs[there] = totals[counts.site_group[there]]
    return runs


def _indices(column: pa.Array) -> Ints:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], pa.string()).dictionary_encode()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    indices: Ints = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype("int64")
    return indices


def _block_sums(capture: Capture, factors: Floats) -> dict[str, Any]:
    """Executions of blocks and functions, and their operations."""
    import numpy as np

    from ..capture.model.counting import TABLE_ENTRY

    counts = capture.counts
    groups = counts.by_group()
    totals = scaled_sums(groups.what, groups.executions, groups.place, factors, counts.n_groups)
    n_blocks = len(counts.blocks["block"])
    executions = np.zeros(n_blocks, dtype=np.int64)
    there = counts.block_group >= 0
    executions[there] = totals[counts.block_group[there]]
    function = counts.blocks["function"]
    # A function runs as often as its first block, where that is listed: with the mix, or because it has a counter anyway.
    entries: dict[int, int] = {}
    seen: set[int] = set()
    starts = (counts.functions.column("flags").to_numpy() & TABLE_ENTRY) != 0
    for at, number in enumerate(function.tolist()):
        if number not in seen:
            seen.add(number)
            if counts.blocks["has_mix"][at] or starts[number]:
                entries[number] = int(executions[at])
    has_mix = counts.blocks["has_mix"]
    mixes = {name: counts.blocks[name].astype(np.int64) * executions for name in MIX}
    n_functions = counts.functions.num_rows
    by_function = {name: sums_of(function, values, n_functions) for name, values in mixes.items()}
    function_has = np.zeros(n_functions, dtype=bool)
    function_has[function[has_mix]] = True

    def mix_of_function(number: int) -> dict[str, int | None]:
        return {name: int(by_function[name][number]) if function_has[number] else None for name in MIX}

    def mix_of_block(number: int) -> dict[str, int | None]:
        return {name: int(mixes[name][number]) if has_mix[number] else None for name in MIX}

    return {
        "executions": executions,
        "entries": entries,
        "mix_of_function": mix_of_function,
        "mix_of_block": mix_of_block,
    }


def rows_unseen(capture: Capture, regions: Regions) -> list[dict[str, Any]]:
    """Calls of functions that no counted module defines, or that it has without counters."""
    from ..capture.model.counting import CALL
    from ..capture.model.symbols import readable

    counts = capture.counts
    runs = _site_runs(counts, regions.place_factors())
    runs[counts.sites["kind"] != CALL] = 0
    columns = ("linkage_name", "sound", "flags")
    defined = {
        name
        for name, sound, flags in zip(*(counts.functions.column(one).to_pylist() for one in columns), strict=True)
        if sound and not why_refused(flags)
    }
    table = capture.table("count_sites")
    callees = table.column("callee").to_pylist()
    callers = table.column("name").to_pylist()
    sums: dict[str, int] = defaultdict(int)
    most: dict[str, tuple[int, str]] = {}
    total = 0
    for at in runs.nonzero()[0].tolist():
        total += int(runs[at])
        callee = callees[at]
        if not callee or callee in defined:
            continue
        sums[callee] += int(runs[at])
        most[callee] = max(most.get(callee, (0, "")), (int(runs[at]), callers[at] or ""))
    libraries = dict(
        zip(*(capture.table("count_callees").column(name).to_pylist() for name in ("callee", "library")), strict=True)
    )
    rows = [
        {"callee": readable(callee), "library": UNNAMED.get(callee, libraries.get(callee)), "calls": calls_made, "share": calls_made / total if total else 0.0,
         "caller": most[callee][1]}
        for callee, calls_made in sums.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["calls"], row["callee"]))


def why_refused(flags: int) -> str | None:
    """Why a function has no counters, from the flags of its table; None: it is counted."""
    from ..capture.model.counting import REFUSED

    return next((why for flag, why in REFUSED.items() if flags & flag), None)


def rows_refused(capture: Capture) -> list[dict[str, object]]:
    """Functions of counted modules that the compiler plugin left as they were, and why."""
    counts = capture.counts
    rows = [
        {"function": row["name"], "module": counts.module_paths.get(row["module"], row["module"]), "file": row["file"],
         "line": row["line"], "reason": why}
        for row in counts.functions.select(["name", "module", "file", "line", "flags", "sound"]).to_pylist()
        if row["sound"] and (why := why_refused(row["flags"]))
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["reason"], row["function"]))
