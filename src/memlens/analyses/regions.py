"""Analysis `regions`: time, faults, allocations and memory of the regions and phases that a program names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ..registry import AnalysisDescriptor
from ..view import Figure, Table, View, detail, key, measure

if TYPE_CHECKING:
    from ..arrays import Bools, Columns, Floats, Ints, Uint32s, Uint64s
    from ..capture.reader import Capture
    from ..results import Result


OBJECT_COLUMNS = ("process", "thread", "born_ns", "weight_bytes", "bytes", "count_weight")


class Counter:
    """How many events, and how much weight, a thread (or a process) has before a moment."""

    def __init__(
        self, process: Uint32s, thread: Uint32s, time_ns: Uint64s, weight: Floats, count: Floats | None = None
    ) -> None:
        import numpy as np

        self._of: dict[tuple[int, int], tuple[Uint64s, Floats, Floats]] = {}
        order = np.argsort(time_ns, kind="stable")
        process, thread, time_ns, weight = process[order], thread[order], time_ns[order], weight[order]
        count = np.ones(len(time_ns)) if count is None else count[order]
        for number in np.unique(process):
            mine = process == number
            self._add(int(number), 0, time_ns[mine], weight[mine], count[mine])
            for one in np.unique(thread[mine]):
                its = mine & (thread == one)
                self._add(int(number), int(one), time_ns[its], weight[its], count[its])

    def _add(self, process: int, thread: int, time_ns: Uint64s, weight: Floats, count: Floats) -> None:
        import numpy as np

        self._of[process, thread] = (
            time_ns, np.concatenate(([0.0], np.cumsum(count, dtype=float))),
            np.concatenate(([0.0], np.cumsum(weight, dtype=float))),
        )  # fmt: skip

    def between(self, process: int, thread: int, begin_ns: Ints, end_ns: Ints) -> tuple[Floats, Floats]:
        """(events, weight) of each interval; thread 0: of the whole process."""
        import numpy as np

        found = self._of.get((process, thread))
        if found is None:
            return np.zeros(len(begin_ns)), np.zeros(len(begin_ns))
        times, counts, weights = found
        low, high = np.searchsorted(times, begin_ns), np.searchsorted(times, end_ns)
        return counts[high] - counts[low], weights[high] - weights[low]


class _Region(TypedDict):
    """A row of table ``by_name``."""

    name: str
    kind: str
    executions: int
    threads: int
    seconds: float
    self_seconds: float
    longest_s: float
    faults: int | None
    first_touched_bytes: int | None
    allocations: float | None
    allocated_bytes: int | None
    peak_rss_bytes: int | None
    rss_growth_bytes: int | None
    unfinished: int


def regions(capture: Capture) -> Result:
    """Regions by name: executions, time, and what their threads did meanwhile.

    Times are wall time; ``seconds`` includes nested regions, ``self_seconds`` does not. Faults and
    allocations are those of the region's own thread between begin and end; a phase has those of the
    whole process. Memory (RSS) is the process's, from the timeline's readings in the interval.
    """
    import numpy as np
    import pyarrow as pa

    from ..results import Quality, Result
    from ._fault_sampling import notes as sampling_notes

    table = capture.table("regions")
    merged: list[_Region] = []
    if table.num_rows:
        columns = {
            name: table.column(name).to_numpy().astype(np.int64)
            for name in ("process", "thread", "begin_ns", "end_ns", "depth", "executions", "open")
        }
        faults, allocations = _faults(capture), _allocations(capture)
        inner = _inner_ns(columns)
        per_row: Columns = {name: np.zeros(table.num_rows) for name in ("faults", "placed", "allocations", "allocated")}
        keys = columns["process"] << 32 | columns["thread"]
        for key in np.unique(keys):
            mine = keys == key
            process, thread = int(key >> 32), int(key & 0xFFFFFFFF)
            begin, end = columns["begin_ns"][mine], columns["end_ns"][mine]
            per_row["faults"][mine], per_row["placed"][mine] = faults.between(process, thread, begin, end)
            per_row["allocations"][mine], per_row["allocated"][mine] = allocations.between(process, thread, begin, end)
        seconds = (columns["end_ns"] - columns["begin_ns"]) / 1e9
        pairs = list(zip(table.column("name").to_pylist(), table.column("kind").to_pylist(), strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        pair_of_row = np.array([numbers[pair] for pair in pairs])
        for (text, kind), number in numbers.items():
            mine = pair_of_row == number
            total = float(seconds[mine].sum())
            rss = _rss(capture, columns, mine)
            merged.append(
                {
                    "name": text, "kind": kind, "executions": int(columns["executions"][mine].sum()),
                    "threads": len(set(zip(columns["process"][mine], columns["thread"][mine], strict=True))),
                    "seconds": total, "self_seconds": total - float(inner[mine].sum()) / 1e9,
                    "longest_s": float(seconds[mine].max()), "faults": round(per_row["faults"][mine].sum()),
                    "first_touched_bytes": round(per_row["placed"][mine].sum()),
                    "allocations": float(per_row["allocations"][mine].sum()),
                    "allocated_bytes": int(per_row["allocated"][mine].sum()), "peak_rss_bytes": rss[0],
                    "rss_growth_bytes": rss[1], "unfinished": int(columns["open"][mine].sum()),
                }
            )  # fmt: skip
    merged.sort(key=lambda row: -row["seconds"])
    kinds = capture.kinds()
    for row in merged:
        if "fault" not in kinds:
            row["faults"] = row["first_touched_bytes"] = None
        if "runtime_status" not in kinds:
            row["allocations"] = row["allocated_bytes"] = None
    notes = list(sampling_notes(capture))
    unfinished = sum(row["unfinished"] for row in merged if row["kind"] == "region")
    if unfinished:
        notes.append(f"{unfinished} regions were begun and never ended; they count until their thread's end.")
    if "fault" not in kinds and "code_count" not in kinds:
        notes.append("No page faults were recorded: faults and first-touched bytes of regions are not known.")
    schema = pa.schema(
        [
            ("name", pa.string()), ("kind", pa.string()), ("executions", pa.uint64()), ("threads", pa.uint32()),
            ("seconds", pa.float64()), ("self_seconds", pa.float64()), ("longest_s", pa.float64()),
            ("faults", pa.uint64()), ("first_touched_bytes", pa.uint64()), ("allocations", pa.float64()),
            ("allocated_bytes", pa.uint64()), ("peak_rss_bytes", pa.uint64()), ("rss_growth_bytes", pa.int64()),
            ("unfinished", pa.uint64()),
        ]
    )  # fmt: skip
    figures = {
        "regions": sum(row["kind"] == "region" for row in merged),
        "phases": sum(row["kind"] == "phase" for row in merged),
        "executions": sum(row["executions"] for row in merged),
    }
    return Result(
        "regions",
        figures,
        {"by_name": pa.Table.from_pylist(merged, schema=schema)},
        capture.quality.joined(Quality(exact=not notes, notes=tuple(notes))),
    )


def _inner_ns(columns: Columns) -> Floats:
    """Time of the regions directly inside each one."""
    import numpy as np

    inner = np.zeros(len(columns["begin_ns"]))
    open_rows: dict[tuple[int, int], list[int]] = {}
    for row in np.lexsort((columns["depth"], columns["begin_ns"])):
        key = (int(columns["process"][row]), int(columns["thread"][row]))
        stack = open_rows.setdefault(key, [])
        while stack and columns["end_ns"][stack[-1]] <= columns["begin_ns"][row]:
            stack.pop()
        if stack and columns["depth"][row] > columns["depth"][stack[-1]]:
            inner[stack[-1]] += columns["end_ns"][row] - columns["begin_ns"][row]
        stack.append(int(row))
    return inner


def _faults(capture: Capture) -> Counter:
    import numpy as np

    from .first_touch import placing_faults

    faults = capture.table("faults")
    placing = placing_faults(faults)
    # Every fault counts, only placing ones have bytes.
    everything = {name: faults.column(name).to_numpy() for name in ("process", "thread", "time_ns")}
    placed = {name: placing.column(name).to_numpy() for name in ("process", "thread", "time_ns", "bytes")}
    return Counter(
        np.concatenate((everything["process"], placed["process"])),
        np.concatenate((everything["thread"], placed["thread"])),
        np.concatenate((everything["time_ns"], placed["time_ns"])),
        np.concatenate((np.zeros(faults.num_rows), placed["bytes"].astype(float))),
        np.concatenate((faults.column("weight").to_numpy(), np.zeros(placing.num_rows))),
    )


def _allocations(capture: Capture) -> Counter:
    import numpy as np

    engine = capture.objects.everything
    heap = engine.is_kind("heap")
    if capture.selection:
        from ._selected_objects import chosen_objects

        heap = heap & chosen_objects(capture)
    columns = {name: np.asarray(values)[heap] for name, values in engine.columns.items() if name in OBJECT_COLUMNS}
    weights = np.where(columns["weight_bytes"] != 0, columns["weight_bytes"], columns["bytes"]).astype(float)
    return Counter(
        columns["process"], columns["thread"], columns["born_ns"], weights, columns["count_weight"].astype(float)
    )


MARK_AGE_NS = 1_000_000


def _rss(capture: Capture, columns: Columns, mine: Bools) -> tuple[int | None, int | None]:
    """Peak RSS in these intervals and its net growth over them: at the last reading up to each end less that up to its begin.

    Before and after a phase the program itself reads its RSS and the kernel's high-water mark: if that rose, the phase's peak is
    exact. Otherwise, and in other intervals, the peak is the highest reading.
    """
    import numpy as np
    import pyarrow.compute as pc

    timeline = capture.whole.table("timeline")  # readings are of processes; the intervals are the selected ones
    if timeline.num_rows == 0:
        return None, None
    readings = timeline.filter(pc.equal(timeline.column("metric").cast("string"), "rss_bytes"))
    times, values = readings.column("time_ns").to_numpy(), readings.column("value").to_numpy()
    owner = readings.column("process").to_numpy()
    marks = timeline.filter(pc.equal(timeline.column("metric").cast("string"), "peak_rss_bytes")).sort_by("time_ns")
    mark_when, mark_level, mark_owner = (marks.column(name).to_numpy() for name in ("time_ns", "value", "process"))
    peak, growth = None, 0
    for process in np.unique(columns["process"][mine]):
        its = owner == process
        when, level = times[its], values[its]
        begins, ends = columns["begin_ns"][mine], columns["end_ns"][mine]
        if len(when) == 0:
            continue
        order = np.argsort(when, kind="stable")
        when, level = when[order], level[order]
        own = columns["process"][mine] == process
        begins, ends = begins[own], ends[own]
        first = np.maximum(np.searchsorted(when, begins, side="right") - 1, 0)  # what held when it began
        last = np.maximum(np.searchsorted(when, ends, side="right") - 1, 0)
        inside = np.zeros(len(when), dtype=bool)
        if len(begins) <= 10_000:
            for begin, end in zip(first, last, strict=True):
                inside[begin : end + 1] = True
        else:
            inside[first.min() : last.max() + 1] = True
        # A timeline that begins after the interval's end knows nothing of it.
        if ends.max() >= when[0]:
            peak = max(peak or 0, int(level[inside].max()))
            growth += int((level[last] - level[first]).sum())
        marked = mark_owner == process
        mark_times, mark_values = mark_when[marked], mark_level[marked]
        for begin, end in zip(begins[:10_000], ends[:10_000], strict=True):
            low, high = np.searchsorted(mark_times, [begin, end], side="right") - 1
            # Read right before the phase began and before it ended, not by the recorder some time ago.
            if min(low, high) < 0 or max(begin - mark_times[low], end - mark_times[high]) > MARK_AGE_NS:
                continue
            if mark_values[high] > mark_values[low]:
                peak = max(peak or 0, int(mark_values[high]))
    return peak, growth if peak is not None else None


def view(result: Result) -> View:
    return View(
        title="Regions",
        order=800,
        silent=not result.tables["by_name"].num_rows,
        headline="{regions} region(s)[, {phases} phase(s)]",
        figures=(
            Figure(name="regions", label="regions", kind="count"),
            Figure(name="phases", label="phases", kind="count"),
            Figure(name="executions", label="executions", kind="count"),
        ),
        tables=(
            Table(name="by_name", title="By name", columns=(
                key("name", "name", "region", null="(no name)"), key("kind", "kind"),
                measure("executions", "times", "count"),
                measure("seconds", "time", "s", better="lower", help="Wall time, summed over executions and threads."),
                measure("self_seconds", "self", "s", better="lower", help="Without the regions inside it."),
                measure("faults", "faults", "count", better="lower", show="known"),
                measure("first_touched_bytes", "first touched", "bytes", better="lower", show="known"),
                measure("allocations", "allocations", "count", better="lower", show="known"),
                measure("peak_rss_bytes", "peak RSS", "bytes", better="lower", show="known", null=""),
                measure("rss_growth_bytes", "net growth", "bytes", better="lower", show="known", null=""),
                detail("longest_s", "longest", "s", better="lower"), detail("threads", "threads", "count"),
                detail("allocated_bytes", "allocated", "bytes", better="lower"),
                detail("unfinished", "unfinished", "count", show="nonzero", help="Begun and not ended before the program ended."),
            ), leads_to="regions"),
        ),
        remarks=("A region counts the faults and allocations of its own thread, a phase those of the whole process; RSS is the process's, from readings "
                 "between begin and end, so a short region may have none.",),
    )  # fmt: skip


DESCRIPTOR = AnalysisDescriptor(
    name="regions",
    question="What do the regions and phases that the program names cost in time, faults and memory?",
    needs=("region_event",),
    run=regions,
    view=view,
)
