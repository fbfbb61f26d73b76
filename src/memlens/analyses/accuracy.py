"""Analysis `accuracy`: how far the counts that one capture claims are from the exact ones of another.

Owns the comparison by region and what the exact side consists of, so that a difference can be understood. It reads two
captures and runs nothing; `memlens verify` records them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NoDataError
from ..registry import AnalysisDescriptor, Option

if TYPE_CHECKING:
    import pyarrow as pa

    from ..arrays import Bools, Ints
    from ..capture.model.sections import Modules
    from ..capture.reader import Capture
    from ..results import Result

QUANTITIES = {"loads": "loads", "stores": "stores", "read_bytes": "load_bytes", "written_bytes": "store_bytes"}
"""Our names and those of the columns of `code_counts`."""
SCOPES = ("heap_and_global", "all")
WHOLE_PROGRAM = "(whole program)"
STACK_KNOWN, ATOMIC, EMULATOR_WIDTH = 1, 8, 32
MAX_WINDOWS = 5000
"""Decoded for the address-based categories: about a million accesses, under two seconds."""

CONSTANT_SECTIONS = (".rodata", ".srodata", ".lrodata")
GOT_SECTIONS = (".got", ".data.rel.ro", ".toc")
UNSEEN_CAUSES = {
    "exec": "programs that ran outside the emulator",
    "instruction": "instructions whose accesses the emulator does not show",
    "system_call": "system calls that the emulator answered otherwise",
}


_CLONE_OF_LLVM = re.compile(r" \((\.[^()]*)\)$")
_OUTLINED = re.compile(r"\.(?:_omp_fn|omp_outlined(?:_debug__)?)\.?(?:\.?(\d+))?(?=\]?$)")


def region_key(name: str) -> str:
    """The name of a region in any build: compilers and demanglers name outlined bodies of parallel regions and templates differently.

    >>> region_key("sum(double*) (.omp_outlined)"), region_key("sum(double*) [clone ._omp_fn.0]")
    ('sum(double*) [clone .omp_outlined]', 'sum(double*) [clone .omp_outlined]')
    >>> region_key("sum._omp_fn.1"), region_key("sum.omp_outlined.1"), region_key("sum.omp_outlined_debug__")
    ('sum.omp_outlined.1', 'sum.omp_outlined.1', 'sum.omp_outlined')
    >>> region_key("step 1.5"), region_key("a.isra.0"), region_key("f(int) (phase)")
    ('step 1.5', 'a.isra.0', 'f(int) (phase)')
    >>> region_key("walk<box<vector<int> > >")
    'walk<box<vector<int>>>'
    """
    while "> >" in name:  # demanglers differ in how they close nested templates
        name = name.replace("> >", ">>")
    name = _CLONE_OF_LLVM.sub(r" [clone \1]", name)
    return _OUTLINED.sub(lambda match: ".omp_outlined" + (f".{match[1]}" if match[1] and match[1] != "0" else ""), name)


class _Counts:
    """The counts of one capture as columns, one row an instruction, thread and region."""

    def __init__(self, capture: Capture) -> None:
        import numpy as np

        _require_counts(capture)
        if not capture.kinds().get("code_count"):
            self._of_counters(capture)
            return
        table = capture.table("code_counts")
        names = np.array([region_key(name or "") for name in table.column("region").to_pylist()], dtype=np.str_)
        self._regions, self._region_of_row = np.unique(names, return_inverse=True)
        wanted = (
            "process",
            "pc",
            "flags",
            "unseen",
            *QUANTITIES.values(),
            *(f"stack_{n}" for n in QUANTITIES.values()),
        )
        self.columns = {name: table.column(name).to_numpy().astype(np.uint64) for name in wanted}
        self.stack_known = (self.columns["flags"] & np.uint64(STACK_KNOWN)) != 0
        accesses = self.columns["loads"] + self.columns["stores"]
        self.stack_known |= accesses == 0

    def _of_counters(self, capture: Capture) -> None:
        """Counts of a program that counts for itself: one row a site, thread and region; sampled executions stand for all."""
        import numpy as np

        from ._region_sums import place_factors

        counts = capture.counts
        executed, places = counts.by_site(), counts.places()
        accesses = counts.accesses(executed)
        innermost = [
            region_key((counts.path_of(int(image), int(node)) or ("",))[-1])
            for image, node in zip(places.image, places.node, strict=True)
        ]
        names = np.array(innermost or [""], dtype=np.str_)[executed.place]
        self._regions, self._region_of_row = np.unique(names, return_inverse=True)
        factors = place_factors(capture)[executed.place]
        ours = {"loads": "loads", "stores": "stores", "load_bytes": "read_bytes", "store_bytes": "written_bytes"}
        self.columns = {
            name: np.zeros(len(executed.what), dtype=np.uint64) for name in ("process", "pc", "flags", "unseen")
        }
        for name, column in ours.items():
            for prefix in ("", "stack_"):
                values = accesses[f"{prefix}{column}"]
                scaled = values if (factors == 1.0).all() else np.rint(values * factors)
                self.columns[f"{prefix}{name}"] = np.maximum(scaled, 0).astype(np.uint64)
        self.stack_known = np.ones(len(executed.what), dtype=bool)

    def __len__(self) -> int:
        return len(self.stack_known)

    @property
    def named(self) -> list[str]:
        """The regions, in the order of their names."""
        return sorted(set(self._regions.tolist()) - {""})

    def rows_of(self, region: str) -> Bools:
        import numpy as np

        if region == WHOLE_PROGRAM:
            return np.ones(len(self), dtype=bool)
        found = np.flatnonzero(self._regions == region)
        return self._region_of_row == found[0] if len(found) else np.zeros(len(self), dtype=bool)

    def sums(self, rows: Bools, scope: str) -> dict[str, int | None]:
        """Loads, stores and bytes of some rows; None where the capture does not separate the stack."""
        if scope == "heap_and_global" and not self.stack_known[rows].all():
            return dict.fromkeys(QUANTITIES)
        found: dict[str, int | None] = {}
        for quantity, column in QUANTITIES.items():
            value = int(self.columns[column][rows].sum())
            stack = int(self.columns[f"stack_{column}"][rows].sum()) if scope == "heap_and_global" else 0
            found[quantity] = value - stack
        return found

    def best_sums(self, rows: Bools) -> dict[str, int]:
        """Without the stack as far as that is known of each instruction."""
        return {
            quantity: int((self.columns[column][rows] - self.columns[f"stack_{column}"][rows]).sum())
            for quantity, column in QUANTITIES.items()
        }


def _require_counts(capture: Capture) -> None:
    kinds = capture.kinds()
    if kinds.get("code_count"):
        return
    if kinds.get("block_count"):
        if capture.table("count_sites").num_rows:
            return
        modules = sorted({row["module"] or "?" for row in capture.table("block_count_records").to_pylist()})
        raise NoDataError(
            f"{capture.path} says how often {len(modules)} modules' counters ran ({kinds['block_count']} block counts), but the "
            f"static tables of their code are missing, for build-id {', '.join(modules[:3])}",
            hint="record again while the program's files are there",
        )
    held = ", ".join(sorted(name for name in kinds if name not in ("string", "clock_pair"))) or "nothing"
    raise NoDataError(
        f"{capture.path} has no counts of accesses (0 code_count and 0 block_count records; it has {held})",
        hint="record it with: memlens record --emulate -- PROGRAM",
    )


def error_percent(exact: int | None, claimed: int | None) -> float | None:
    """Of the exact count; None where there is nothing to compare or nothing to compare with.

    >>> error_percent(200, 210), error_percent(200, 0), error_percent(0, 0), error_percent(0, 8)
    (5.0, -100.0, 0.0, None)
    """
    if exact is None or claimed is None:
        return None
    if exact == 0:
        return 0.0 if claimed == 0 else None
    return (claimed - exact) * 100 / exact


def accuracy(exact: Capture, *, claim: Capture) -> Result:
    """Claimed loads, stores and bytes of each region compared with the exact counts, and what the exact counts consist of.

    An access counts for the innermost region that its thread is in. Without any region the whole program is one;
    otherwise accesses outside regions are not judged. ``heap_and_global`` is everything but the stack, null where a
    side does not separate the stack. An error is a percentage of the exact count; a region that the claim does
    not have is off by -100 %, one that only the claim has is *unbounded*. In
    ``summary`` the quantity ``bytes`` is bytes read and written together.

    Table ``explained``: the stack, and outside the stack (where it is separated) code in libraries by file, code in no file,
    atomic operations, and what was not seen, all counted exactly; and loads from constant pools and from tables of
    addresses (GOT), estimated from windows: the share of each instruction's recorded loads times its exact count.
    ``standard_error_bytes`` is that of the estimate, windows taken as independent. ``not_sampled`` is what
    instructions loaded that no window has.
    """
    import pyarrow as pa

    from ..capture.model.sections import Modules
    from ..results import Quality, Result

    if not exact.kinds().get("code_count"):
        raise NoDataError(
            f"{exact.path} has no exact counts to judge by (0 code_count records)",
            hint="record it with: memlens record --emulate -- PROGRAM",
        )
    ours, theirs = _Counts(exact), _Counts(claim)
    regions = sorted({*ours.named, *theirs.named}) or [WHOLE_PROGRAM]
    rows: list[dict[str, object]] = []
    for region in regions:
        mine, yours = ours.rows_of(region), theirs.rows_of(region)
        status = "both" if mine.any() and yours.any() else "not claimed" if mine.any() else "not executed"
        for scope in SCOPES:
            exact_sums, claimed_sums = ours.sums(mine, scope), theirs.sums(yours, scope)
            for quantity in QUANTITIES:
                a, b = exact_sums[quantity], claimed_sums[quantity]
                rows.append(
                    {
                        "region": region, "status": status, "scope": scope, "quantity": quantity, "exact": a, "claimed": b,
                        "error_percent": error_percent(a, b), "unbounded": a == 0 and bool(b),
                    }
                )  # fmt: skip
    both = _both_ways(rows)
    summary = [
        _summary(both if quantity == "bytes" else rows, scope, quantity)
        for scope in SCOPES
        for quantity in (*QUANTITIES, "bytes")
    ]
    modules = Modules(exact)
    explained, notes = _explained(exact, ours, modules, regions)
    notes += _notes(exact, claim, ours, theirs, regions)
    text, number, real = pa.string(), pa.int64(), pa.float64()
    tables = {
        "by_region": _table(
            rows,
            {"region": text, "status": text, "scope": text, "quantity": text, "exact": number, "claimed": number,
             "error_percent": real, "unbounded": pa.bool_()},
        ),
        "summary": _table(
            summary,
            {"scope": text, "quantity": text, "regions": number, "mean_error_percent": real, "max_error_percent": real,
             "worst_region": text, "unbounded_regions": number, "total_exact": number, "total_claimed": number,
             "total_error_percent": real},
        ),
        "explained": _table(
            explained,
            {"region": text, "category": text, "what": text, "loads": number, "stores": number, "read_bytes": number,
             "written_bytes": number, "share_percent": real, "estimated": pa.bool_(), "standard_error_bytes": real,
             "executions": number},
        ),
    }  # fmt: skip
    statuses = {row["region"]: row["status"] for row in rows}
    outside = ours.rows_of("")
    figures: dict[str, object] = {
        "regions": len(regions),
        "regions_not_claimed": [name for name, status in statuses.items() if status == "not claimed"],
        "regions_not_executed": [name for name, status in statuses.items() if status == "not executed"],
        "outside": None if regions == [WHOLE_PROGRAM] else ours.best_sums(outside),
    }
    for row in summary:
        prefix = f"{row['scope']}_{row['quantity']}"
        figures[f"{prefix}_mean_error_percent"] = row["mean_error_percent"]
        figures[f"{prefix}_max_error_percent"] = row["max_error_percent"]
    joined = exact.quality.joined(claim.quality).joined(Quality(exact=not notes, notes=tuple(notes)))
    return Result("accuracy", figures, tables, joined)


def _table(rows: Sequence[Mapping[str, object]], columns: dict[str, object]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))


def _both_ways(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Bytes read and written together, of each region and scope."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["quantity"] not in ("read_bytes", "written_bytes"):
            continue
        empty = {"region": row["region"], "scope": row["scope"], "quantity": "bytes", "exact": 0, "claimed": 0}
        sums = found.setdefault((row["region"], row["scope"]), empty)
        for side in ("exact", "claimed"):
            sums[side] = None if sums[side] is None or row[side] is None else sums[side] + row[side]
    for row in found.values():
        row["error_percent"] = error_percent(row["exact"], row["claimed"])
        row["unbounded"] = row["exact"] == 0 and bool(row["claimed"])
    return list(found.values())


def _summary(rows: list[dict[str, Any]], scope: str, quantity: str) -> dict[str, object]:
    """Mean and largest |error| over the regions, and the error of their sum."""
    mine = [row for row in rows if row["scope"] == scope and row["quantity"] == quantity]
    judged = [row for row in mine if row["error_percent"] is not None]
    worst = max(judged, key=lambda row: abs(row["error_percent"]), default=None)
    known = all(row["exact"] is not None and row["claimed"] is not None for row in mine)
    total_exact = sum(row["exact"] for row in mine) if known else None
    total_claimed = sum(row["claimed"] for row in mine) if known else None
    return {
        "scope": scope, "quantity": quantity, "regions": len(judged),
        "mean_error_percent": sum(abs(row["error_percent"]) for row in judged) / len(judged) if judged else None,
        "max_error_percent": abs(worst["error_percent"]) if worst else None,
        "worst_region": worst["region"] if worst and worst["error_percent"] else None,
        "unbounded_regions": sum(row["unbounded"] for row in mine),
        "total_exact": total_exact, "total_claimed": total_claimed,
        "total_error_percent": error_percent(total_exact, total_claimed),
    }  # fmt: skip


# ---- what the exact side consists of --------------------------------------------------------------------------------


def _explained(
    capture: Capture, counts: _Counts, modules: Modules, regions: list[str]
) -> tuple[list[dict[str, object]], list[str]]:
    import numpy as np

    files, file_of_row = _files(counts, modules)
    programs = _programs(capture, modules)
    shares = _AddressShares(capture, counts, modules)
    atomic = (counts.columns["flags"] & np.uint64(ATOMIC)) != 0
    found: list[dict[str, object]] = []
    for region in regions:
        mine = counts.rows_of(region)
        if not mine.any():
            continue
        all_bytes = sum(int(counts.columns[name][mine].sum()) for name in ("load_bytes", "store_bytes"))

        def add(category: str, what: str | None, sums: Mapping[str, int | None], **more: object) -> None:
            n_bytes = (sums.get("read_bytes") or 0) + (sums.get("written_bytes") or 0)
            share = n_bytes * 100 / all_bytes if all_bytes else None  # noqa: B023
            row = {"region": region, "category": category, "what": what, **sums, "share_percent": share}  # noqa: B023
            found.append({"estimated": False, "standard_error_bytes": None, "executions": None, **row, **more})

        if counts.stack_known[mine].all():
            add("stack", "spills, locals, return addresses", {
                quantity: int(counts.columns[f"stack_{column}"][mine].sum()) for quantity, column in QUANTITIES.items()
            })  # fmt: skip
        for number in np.unique(file_of_row[mine]).tolist():
            name = files[number]
            if name not in programs:
                add("library" if name else "code in no file", name, counts.best_sums(mine & (file_of_row == number)))
        if (mine & atomic).any():
            add("atomic operations", None, counts.best_sums(mine & atomic))
        for category, what, estimate, standard_error in shares.of(mine):
            sums = {"read_bytes": round(estimate)}
            add(category, what, sums, estimated=standard_error is not None, standard_error_bytes=standard_error)
        unseen = int(counts.columns["unseen"][mine].sum())
        if unseen:
            add("unseen", UNSEEN_CAUSES["instruction"], {}, executions=unseen)
    for batch in capture.batches("unseen"):
        for row in batch.to_pylist():
            what = f"{UNSEEN_CAUSES.get(row['cause'], row['cause'])}: {row['name'] or 'unknown'}"
            if row["cause"] != "instruction":  # those are counted by region
                found.append({"region": None, "category": "unseen", "what": what, "executions": row["executions"],
                              "estimated": False})  # fmt: skip
    return found, shares.notes


def _files(counts: _Counts, modules: Modules) -> tuple[list[str | None], Ints]:
    """Files, and the number of the file that each row's instruction is in."""
    import numpy as np

    numbers: dict[str | None, int] = {}
    file_of_row = np.zeros(len(counts), dtype=np.int64)
    processes = counts.columns["process"]
    for process in np.unique(processes):
        rows = np.flatnonzero(processes == process)
        names = modules.of_code(int(process), counts.columns["pc"][rows])
        file_of_row[rows] = [numbers.setdefault(name, len(numbers)) for name in names]
    return list(numbers), file_of_row


def _programs(capture: Capture, modules: Modules) -> set[str | None]:
    """Files that are programs, not libraries: by their own mark; the one that was started also by its name."""
    import os

    command = capture.meta.get("command") or [""]
    started = os.path.basename(command[0])
    found: set[str | None] = {path for path, file in modules.files.items() if file is not None and file.is_program}
    return found | {path for path in modules.files if os.path.basename(path) == started}


class _AddressShares:
    """Loads from constant pools and address tables, from the windows' addresses and the exact counts."""

    CATEGORIES = (("constant pool", CONSTANT_SECTIONS), ("address tables", GOT_SECTIONS))

    def __init__(self, capture: Capture, counts: _Counts, modules: Modules) -> None:
        import numpy as np

        from ..capture.store.streams import sampled_loads

        self.counts = counts
        self.notes: list[str] = []
        loads, damaged = sampled_loads(capture, max_windows=MAX_WINDOWS)
        self.n_windows = len(np.unique(loads["window"]))
        if damaged:
            self.notes.append(f"{damaged} windows of the exact capture are damaged and were left out of the estimates.")
        if self.n_windows < 2:
            self.n_windows = 0
            self.notes.append(
                "No windows were recorded: loads from constant pools and address tables are not separated."
            )
            return
        if modules.unreadable:
            self.notes.append(
                f"{len(modules.unreadable)} files that the program had mapped cannot be read any more; loads from their "
                "constant pools count as others."
            )  # fmt: skip
        keys = np.stack([counts.columns["process"], counts.columns["pc"]], axis=1)
        sampled = np.stack([loads["process"], loads["pc"]], axis=1)
        _, numbers = np.unique(np.concatenate((keys, sampled)), axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        self.of_row, self.of_load = numbers[: len(keys)], numbers[len(keys) :]
        n_codes = int(numbers.max()) + 1
        self.bytes = loads["bytes"].astype(float)
        self.window = np.unique(loads["window"], return_inverse=True)[1].reshape(-1)
        self.sampled_bytes = np.bincount(self.of_load, weights=self.bytes, minlength=n_codes)
        self.inside = {}
        for category, names in self.CATEGORIES:
            inside = np.zeros(len(self.bytes), dtype=bool)
            for process in np.unique(loads["process"]):
                mine = loads["process"] == process
                inside[mine] = modules.in_sections(int(process), loads["address"][mine], names)
            self.inside[category] = inside

    def of(self, rows: Bools) -> list[tuple[str, str, float, float | None]]:
        """(category, what, estimated bytes, standard error) for the rows of one region."""
        import numpy as np

        if not self.n_windows:
            return []
        exact = np.zeros(len(self.sampled_bytes))
        np.add.at(exact, self.of_row[rows], self.counts.columns["load_bytes"][rows].astype(float))
        known = self.sampled_bytes > 0
        scale = np.where(known, exact / np.where(known, self.sampled_bytes, 1), 0.0)
        found: list[tuple[str, str, float, float | None]] = []
        for category, names in self.CATEGORIES:
            hits = self.bytes * self.inside[category]
            share = np.bincount(self.of_load, weights=hits, minlength=len(exact)) / np.where(
                known, self.sampled_bytes, 1
            )
            estimate = float((exact * share)[known].sum())
            # Of a sum of ratios by instruction: what each window adds beyond its expectation.
            residual = scale[self.of_load] * (hits - share[self.of_load] * self.bytes)
            by_window = np.bincount(self.window, weights=residual, minlength=self.n_windows)
            variance = self.n_windows / (self.n_windows - 1) * float(((by_window - by_window.mean()) ** 2).sum())
            if estimate:
                found.append((category, ", ".join(names), estimate, variance**0.5))
        outside = (self.counts.columns["load_bytes"] - self.counts.columns["stack_load_bytes"])[rows]
        not_sampled = float(outside[~known[self.of_row[rows]]].sum())
        if not_sampled:
            found.append(("not sampled", "loads of instructions that no window has", not_sampled, None))
        return found


def _notes(exact: Capture, claim: Capture, ours: _Counts, theirs: _Counts, regions: list[str]) -> list[str]:
    import numpy as np

    notes = []
    for capture, counts, side in ((exact, ours, "exact"), (claim, theirs, "claiming")):
        if not counts.stack_known.all() and any(not counts.stack_known[counts.rows_of(name)].all() for name in regions):
            notes.append(
                f"The {side} capture {capture.path.name} does not separate the stack everywhere: heap and global counts "
                "are missing there (recorded with --emulate=counts; leave out =counts)."
            )  # fmt: skip
        upper = [
            int((counts.columns["load_bytes"] + counts.columns["store_bytes"])[rows].sum())
            for rows in (counts.rows_of(name) for name in regions)
            for rows in (rows & ((counts.columns["flags"] & np.uint64(EMULATOR_WIDTH)) != 0),)
        ]
        if sum(upper):
            notes.append(
                f"{sum(upper):,} bytes of the {side} capture {capture.path.name} are an upper bound: masked loads, of which the "
                "emulator loads all lanes, and instructions whose width is not known."
            )
        refused = capture.meta.get("emulate", {}).get("refused_blocks")
        if refused:
            notes.append(
                f"The {side} capture {capture.path.name} lost {refused} blocks of counters for lack of memory."
            )
    return notes


DESCRIPTOR = AnalysisDescriptor(
    name="accuracy",
    question="How large are the errors of claimed loads, stores and bytes of each region, and what causes them?",
    needs=("code_count",),
    options=(Option("claim", "the capture whose counts are judged; the first one's are exact"),),
    captures=2,
    run=accuracy,
)
