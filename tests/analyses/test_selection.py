"""Selections of the kept captures: parts add up to the whole, everything is the whole, and a filter by hand finds the same."""

from __future__ import annotations

import io
import itertools
import math
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

import memlens
from memlens import analyses
from memlens.analyses._select import part_of
from memlens.errors import UsageError
from memlens.results import Result
from memlens.selection import Selection

sys.path.insert(0, str(ROOT / "tests" / "goldens"))

import make

quick = settings(max_examples=6, deadline=None)
shares = st.lists(st.floats(0.02, 0.98), min_size=1, max_size=3, unique=True)


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    opened.directory = tmp_path_factory.mktemp("goldens")  # type: ignore[attr-defined]
    yield
    opened.cache_clear()


@cache
def opened(name: str) -> memlens.Capture:
    directory: Path = opened.directory / name  # type: ignore[attr-defined]
    directory.mkdir()
    path = directory / f"{name}.memlens"
    found = make.opened(name, directory)
    if found != path:  # reports are kept beside a capture
        shutil.copytree(found, path)
    return memlens.open(path)


def duration_s(capture: memlens.Capture) -> float:
    return (capture.end_ns - capture.begin_ns) / 1e9


def run(analysis: str, capture: memlens.Capture, **selection: Any) -> Result:
    """The result of a part, without the short cut for a selection of everything."""
    from memlens import registry
    from memlens.analyses import _of_part

    return _of_part(registry.all_of("analysis")[analysis].run, part_of(capture, Selection(**selection)), {})


def ranges(capture: memlens.Capture, cuts: list[float]) -> list[tuple[float, float]]:
    """Ranges that follow each other and cover the run, windows before its begin included."""
    points = [-1.0, *(cut * duration_s(capture) for cut in sorted(cuts)), duration_s(capture) + 1]
    return list(itertools.pairwise(points))


def sum_column(result: Result, table: str, column: str) -> float:
    return float(sum(value or 0 for value in result.tables[table].column(column).to_pylist()))


ADDITIVE = {
    ("faults", "faults"): ("faults", "major_faults", "placements"),
    ("first_touch", "faults"): ("first_touched_bytes", "placing_faults", "placed_without_event_bytes"),
    ("objects", "objects"): ("allocations", "allocated_bytes", "temporary_allocations", "leaked_bytes", "objects_recorded"),
    ("objects", "heap"): ("allocations", "allocated_bytes", "leaked_objects"),
    ("regions", "faults"): ("executions",),
    ("bandwidth", "count-sampled"): ("loads", "read_bytes", "written_bytes"),
    ("accesses", "emulate"): ("executed_accesses", "object_accesses", "windows"),
    ("accesses", "trace"): ("object_accesses", "recorded_accesses"),
    ("locality", "trace-full"): ("recorded_accesses", "executed_accesses"),
}  # fmt: skip


@pytest.mark.parametrize(("analysis", "name"), ADDITIVE)
@given(cuts=shares)
@settings(max_examples=3, deadline=None)
def test_times_that_follow_each_other_add_up_to_the_run(analysis: str, name: str, cuts: list[float]) -> None:
    capture = opened(name)
    whole = analyses.run(analysis, capture)
    parts = [run(analysis, capture, time_s=one) for one in ranges(capture, cuts)]
    assert all(part.scope != "whole run" for part in parts), parts[0].scope_reason
    if analysis == "bandwidth" and any(_withheld(part) for part in parts):
        return  # executions of a region were sampled, and none of this time was counted
    for figure in ADDITIVE[analysis, name]:
        # What sampled faults and windows stand for is rounded to whole numbers in each part.
        assert sum(part.figures[figure] or 0 for part in parts) == pytest.approx(
            whole.figures[figure] or 0, rel=1e-6, abs=len(parts) * 20
        ), figure


def _withheld(part: Result) -> bool:
    rows = part.tables["by_region"].to_pylist()
    assert (part.figures["accessed_bytes"] is None) == bool(rows[0]["bytes_withheld"])
    return bool(rows[0]["bytes_withheld"])


@pytest.mark.parametrize(
    ("analysis", "name", "figure"),
    [("faults", "faults", "faults"), ("first_touch", "faults", "first_touched_bytes"), ("objects", "objects", "allocated_bytes"),
     ("objects", "faults", "allocations"), ("traffic", "emulate", "accessed_bytes"), ("traffic", "emulate", "loads"),
     ("page_use", "emulate-full", "page_accesses"), ("page_use", "emulate-full", "accesses_by_others"),
     ("bandwidth", "count", "accessed_bytes"), ("bandwidth", "count-sampled", "accessed_bytes"), ("accesses", "emulate", "object_accesses"),
     ("locality", "trace", "executed_accesses"), ("patterns", "emulate", "recorded_accesses")],
)  # fmt: skip
def test_threads_add_up_to_the_run(analysis: str, name: str, figure: str) -> None:
    capture = opened(name)
    threads = set(capture.table("threads").column("thread").to_pylist())
    if capture.kinds().get("region_time"):
        threads |= set(capture.table("region_time_records").column("thread").to_pylist())
    whole = analyses.run(analysis, capture)
    parts = [run(analysis, capture, threads=(thread,)) for thread in sorted(threads)]
    assert {part.scope for part in parts} == {"selection"}
    assert len(parts) > 1
    assert sum(part.figures[figure] or 0 for part in parts) == pytest.approx(whole.figures[figure], rel=1e-9, abs=2)


def differences(part: Result, whole: Result) -> list[str]:
    """Figures and tables that differ, but for figures that a part does not know."""
    found = []
    for name, value in whole.figures.items():
        mine = part.figures[name]
        if mine is None and value is not None:
            found.append(name)
        elif isinstance(value, float) and mine is not None:
            if not math.isclose(value, mine, rel_tol=1e-6, abs_tol=1e-9):
                found.append(f"{name}: {mine} instead of {value}")
        elif value != mine:
            found.append(f"{name}: {mine} instead of {value}")
    for name, table in whole.tables.items():
        if (whole.name, name) == ("objects", "over_time"):  # a curve in slices of the selected time
            continue
        if part.tables[name].num_rows != table.num_rows:
            found.append(f"{name}: {part.tables[name].num_rows} rows instead of {table.num_rows}")
            continue
        for column in table.column_names:
            one, other = part.tables[name].column(column).to_pylist(), table.column(column).to_pylist()
            if not all(_same(a, b) for a, b in zip(one, other, strict=True)):
                found.append(f"{name}.{column}")
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    return bool(one == other)


UNKNOWN_IN_A_PART = {
    # The kernel's totals are of the whole run.
    "faults": {"own_faults", "kernel_faults", "user_s", "system_s"},
    "capacity": {"kernel_peak_rss_bytes"},
}
EVERYTHING = [
    ("faults", "faults"), ("first_touch", "faults"), ("objects", "objects"), ("objects", "heap"), ("regions", "faults"),
    ("traffic", "emulate"), ("accesses", "emulate"), ("accesses", "trace"), ("locality", "emulate"), ("locality", "trace"), ("caches", "emulate"), ("patterns", "trace"),
    ("sharing", "emulate-full"), ("page_use", "emulate-full"), ("bandwidth", "count"), ("bandwidth", "alone"), ("accesses", "lackey"),
]  # fmt: skip


@pytest.mark.parametrize(("analysis", "name"), EVERYTHING)
def test_a_selection_of_all_processes_and_threads_is_the_whole_run(analysis: str, name: str) -> None:
    capture = opened(name)
    from memlens.analyses._select import _threads

    processes = tuple(capture.table("processes").column("process").to_pylist())
    threads = _threads(capture) | {0}
    selection: dict[str, Any] = {"processes": processes, "threads": tuple(threads)}
    if analysis == "first_touch":  # the thread of pages without an event is not known
        del selection["threads"]
    part, whole = run(analysis, capture, **selection), analyses.run(analysis, capture)
    assert part.scope == "selection"
    allowed = {*UNKNOWN_IN_A_PART.get(analysis, set())}
    if analysis == "bandwidth":  # wall-clock time of regions is of all threads together
        allowed |= {one for one in differences(part, whole) if any(word in one for word in ("_ns", "_per_second", "entry_cost", "correct", "counting_cost", "withheld", "level", "evidence", "peak", "farthest", "roofline"))}  # fmt: skip
    assert not [one for one in differences(part, whole) if one not in allowed and one.partition(":")[0] not in allowed]


@pytest.mark.parametrize(("analysis", "name"), [(a, n) for a, n in EVERYTHING if a not in ("traffic", "page_use", "bandwidth")] + [("capacity", "faults"), ("capacity", "heap")])  # fmt: skip
def test_a_selection_of_all_times_is_the_whole_run(analysis: str, name: str) -> None:
    capture = opened(name)
    part = run(analysis, capture, time_s=(-1000.0, duration_s(capture) + 1))
    whole = analyses.run(analysis, capture)
    assert part.scope in ("selection", "time bins")
    allowed = {*UNKNOWN_IN_A_PART.get(analysis, set())}
    if analysis == "capacity" and whole.figures["kernel_peak_rss_bytes"]:
        allowed |= {"peak_rss_bytes"}  # from the kernel, where it is higher than readings
    assert not [one for one in differences(part, whole) if one not in allowed and one.partition(":")[0] not in allowed]


def test_a_selection_of_everything_is_no_selection() -> None:
    from memlens.analyses._select import select

    capture = opened("faults")
    threads = tuple(capture.table("threads").column("thread").to_pylist())
    assert select(capture, Selection(time_s=(0, 1e9), processes=(1,), threads=threads)) is capture


# ---- filters by hand -----------------------------------------------------------------------
@given(begin=st.floats(0, 0.9), length=st.floats(0.01, 0.5))
@quick
def test_faults_of_a_function_in_a_time_are_the_rows_of_the_table(begin: float, length: float) -> None:
    capture = opened("faults")
    d = duration_s(capture)
    first, last = begin * d, (begin + length) * d
    rows = [
        row for row in capture.table("faults").to_pylist()
        if row["function"] == "main" and first <= (row["time_ns"] - capture.begin_ns) / 1e9 < last
    ]  # fmt: skip
    result = run("faults", capture, time_s=(first, last), code="main")
    assert result.scope == "selection"
    assert result.figures["faults"] == round(sum(row["weight"] for row in rows))
    by_class = {row["class"]: row["faults"] for row in result.tables["by_class"].to_pylist()}
    assert by_class == {
        name: sum(row["weight"] for row in rows if row["class"] == name) for name in {r["class"] for r in rows}
    }


@given(begin=st.floats(0, 0.9), length=st.floats(0.01, 0.5))
@quick
def test_objects_of_a_time_are_those_born_in_it_and_its_peak_counts_older_ones(begin: float, length: float) -> None:
    capture = opened("objects")
    d = duration_s(capture)
    first, last = begin * d, (begin + length) * d
    rows = [row for row in capture.table("objects").to_pylist() if row["kind"] == "heap"]
    window = Selection(time_s=(first, last)).window_ns(capture.begin_ns)
    assert window is not None
    born = [row for row in rows if window[0] <= row["born_ns"] < window[1]]
    result = run("objects", capture, time_s=(first, last))
    assert result.figures["allocations"] == len(born)
    assert result.figures["allocated_bytes"] == sum(row["bytes"] for row in born)
    assert sum_column(result, "by_site", "allocations") >= len(born)
    events = sorted(
        [(max(row["born_ns"], window[0]), 1, row["bytes"]) for row in rows if row["born_ns"] < window[1] and (row["died_ns"] is None or row["died_ns"] > window[0])]
        + [(row["died_ns"], 0, -row["bytes"]) for row in rows if row["died_ns"] is not None and window[0] < row["died_ns"] < window[1] and row["born_ns"] < window[1]]
    )  # fmt: skip
    level = highest = 0
    for _, _, change in events:
        level += change
        highest = max(highest, level)
    assert result.figures["peak_heap_bytes"] == highest


@pytest.mark.parametrize(("first", "last"), [(0.2, 0.5), (0.0, 0.35), (0.7, 1.0)])
def test_the_peak_of_a_time_is_the_highest_reading_that_holds_in_it(first: float, last: float) -> None:
    capture = opened("heap")
    d = duration_s(capture)
    begin, end = capture.begin_ns + round(first * d * 1e9), capture.begin_ns + round(last * d * 1e9)
    rows = sorted(
        (row["time_ns"], row["value"]) for row in capture.table("timeline").to_pylist() if row["metric"] == "rss_bytes"
    )
    holding = [value for time_ns, value in rows if begin < time_ns < end]
    before = [value for time_ns, value in rows if time_ns <= begin][-1:]
    result = run("capacity", capture, time_s=(first * d, last * d))
    if capture.table("processes").column("end_ns").to_pylist() == [None]:
        assert result.figures["peak_reading_bytes"] == max(before + holding)
    elif holding:
        assert result.figures["peak_reading_bytes"] in (max(before + holding), max(holding))


@pytest.mark.parametrize("name", ["emulate", "trace"])
def test_accesses_of_code_and_objects_are_the_rows_of_the_whole(name: str) -> None:
    """A row of the whole run, by function and object, has the estimate and the error that the selection of both has."""
    capture = opened(name)
    whole = analyses.run("accesses", capture).tables["by_object_and_function"].to_pylist()
    row = next(row for row in whole if row["object"].startswith("heap of") and row["function"])
    same = [one for one in whole if one["object"] == row["object"] and one["function"] == row["function"]]
    assert len(same) == 1, "the names of the test are of one row"
    part = run("accesses", capture, code=row["function"], object=row["object"])
    assert part.scope == "selection"
    assert part.figures["object_accesses"] == pytest.approx(row["accesses"], rel=1e-9)
    assert [one["accesses_error"] for one in part.tables["by_object"].to_pylist()] == [
        pytest.approx(row["accesses_error"])
    ]
    assert sum_column(part, "by_function", "load_bytes") == pytest.approx(row["load_bytes"])
    assert sum_column(part, "by_instruction", "recorded") == row["recorded"] == part.figures["recorded_accesses"]


def test_accesses_of_a_thread_in_a_time_are_the_rows_of_table_accesses() -> None:
    capture = opened("emulate")
    table = capture.table("accesses")
    windows = capture.table("windows").to_pylist()
    thread, middle = windows[0]["thread"], sorted(row["begin_ns"] for row in windows)[len(windows) // 2]
    mine = {row["window"] for row in windows if row["thread"] == thread and row["begin_ns"] >= middle}
    assert 0 < len(mine) < len(windows)
    chosen = np.isin(table.column("window").to_numpy(), list(mine))
    after = (middle - capture.begin_ns) / 1e9
    part = run("accesses", capture, threads=(thread,), time_s=(after, 1e6))
    assert part.scope == "time bins"
    assert part.figures["recorded_accesses"] == int(chosen.sum())
    assert part.figures["object_accesses"] == pytest.approx(
        float(table.column("weight").to_numpy()[chosen].sum()), rel=1e-3
    )
    selected = part_of(capture, Selection(threads=(thread,), time_s=(after, 1e6)))
    assert selected.table("accesses").num_rows == int(chosen.sum())
    assert selected.table("windows").num_rows == len(mine)
    of_code = part_of(capture, Selection(code="churn", threads=(thread,))).table("accesses")
    names = capture.table("sites").column("function").to_pylist()
    assert of_code.num_rows == sum(
        code is not None and names[code] == "churn" and row_thread == thread
        for code, row_thread in zip(
            table.column("code").to_pylist(), table.column("thread").to_pylist(), strict=True
        )
    )  # fmt: skip
    assert of_code.num_rows > 0


SAME_IN_A_ROW = ("executed", "footprint", "footprint_lines", "constants", "recorded", "reuses", "window_growth", "window_growth_error", "reuse_distance_mean",
                 "window_reuse_distance_mean", "unobservable", "windows")  # fmt: skip


@pytest.mark.parametrize("name", ["emulate", "emulate-full", "trace", "trace-full"])
@pytest.mark.parametrize("what", ["function", "object"])
def test_locality_of_a_function_or_object_is_its_row(name: str, what: str) -> None:
    """Reuse is that among all accesses: the selection and the row of the whole run say the same."""
    capture = opened(name)
    rows = analyses.run("locality", capture).tables[f"by_{what}"].to_pylist()
    names = [row[what] for row in rows]
    row = next(row for row in rows if row[what] and names.count(row[what]) == 1 and row[what] != "no known object")
    part = run("locality", capture, **{"code" if what == "function" else "object": row[what]})
    assert part.scope == "selection"
    program = part.tables["by_program"].to_pylist()[0]
    mine = part.tables[f"by_{what}"].to_pylist()
    assert len(mine) == 1
    for found in (program, mine[0]):
        assert {column: found[column] for column in SAME_IN_A_ROW} == {
            column: pytest.approx(row[column]) if isinstance(row[column], float) else row[column]
            for column in SAME_IN_A_ROW
        }
    assert program["share"] == mine[0]["share"] == pytest.approx(1.0)
    assert part.figures["recorded_accesses"] == row["recorded"]
    assert sum_column(part, "reuse_distances", "reuses_by_distance") == row["reuses"]


@pytest.mark.parametrize("name", ["emulate", "trace"])
def test_misses_of_a_function_or_object_are_its_rows(name: str) -> None:
    capture = opened(name)
    whole = analyses.run("caches", capture)
    row = whole.tables["by_function"].to_pylist()[0]
    part = run("caches", capture, code=row["function"])
    assert part.tables["by_function"].to_pylist()[0] == row
    assert part.figures["accesses"] == part.figures["modelled_accesses"] == row["accesses"]
    assert [level["misses"] for level in part.figures["levels"]] == [row["misses_1"], row["misses_2"], row["misses_3"]][
        : len(part.figures["levels"])
    ]
    thing = next(one for one in whole.tables["by_object"].to_pylist() if one["object"].startswith("heap"))
    mine = run("caches", capture, object=thing["object"])
    same = [one for one in whole.tables["by_object"].to_pylist() if one["object"] == thing["object"]]
    assert mine.figures["accesses"] == sum(one["accesses"] for one in same)
    both = run("caches", capture, object=thing["object"], code=row["function"])
    assert both.figures["accesses"] == sum(
        one["accesses"] for one in whole.tables["by_function_and_object"].to_pylist()
        if (one["object"], one["function"]) == (thing["object"], row["function"])
    )  # fmt: skip


def test_patterns_of_a_function_are_its_rows() -> None:
    capture = opened("trace")
    whole = analyses.run("patterns", capture)
    row = whole.tables["by_function_and_object"].to_pylist()[0]
    part = run("patterns", capture, code=row["function"])
    same = [one for one in whole.tables["by_function_and_object"].to_pylist() if one["function"] == row["function"]]
    mine = part.tables["by_function_and_object"].to_pylist()
    for column in ("object", "lines", "used_bytes", "misses", "recorded", "accesses", "sets"):
        assert [one[column] for one in mine] == [one[column] for one in same]
    assert sum_column(part, "by_instruction", "share") == pytest.approx(1.0)
    assert part.figures["looked_at"] == sum(one["recorded"] for one in same)


def test_sharing_of_an_object_is_its_rows() -> None:
    capture = opened("emulate-full")
    whole = analyses.run("sharing", capture)
    rows = whole.tables["lines"].to_pylist()
    assert rows  # of a kept capture: two threads share lines
    thing = next(row["object"] for row in rows if row["object"])
    part = run("sharing", capture, object=thing)
    assert part.tables["lines"].to_pylist() == [row for row in rows if row["object"] == thing]
    assert part.figures["shared_lines"] == len({row["line"] for row in rows if row["object"] == thing})
    assert run("sharing", capture, code="main").scope == "whole run"


@pytest.mark.parametrize("name", ["emulate", "trace", "count-sampled", "lackey"])
def test_every_section_is_shown_for_every_kind_of_selection(name: str) -> None:
    """Nothing fails, and whatever is shown of a part is shown as one."""
    from memlens.analyses._matching import code_places, object_names, region_names
    from memlens.present.html import render
    from memlens.present.terminal import show

    capture = opened(name)
    thread = capture.table("threads").column("thread").to_pylist()[:1]
    function = next((one for one in code_places(capture)[0] if one), "")
    thing = next((one for one in object_names(capture) if one != "no known object"), "")
    region = next(iter(region_names(capture)), "")
    half = (0.0, 0.5 * duration_s(capture))
    for selection in (
        Selection(time_s=half), Selection(threads=tuple(thread)), Selection(code=function), Selection(object=thing), Selection(region=region),
        Selection(time_s=half, threads=tuple(thread), code=function, object=thing),
    ):  # fmt: skip
        if not selection:
            continue
        report = analyses.report(capture, selection=selection)
        out = io.StringIO()
        show(report, file=out)
        page = render(report)
        text = page if isinstance(page, str) else page.decode()
        for result in report.results:
            if report.scope_line(result) and not report.views[result].silent:
                assert (
                    report.scope_line(result) in " ".join(out.getvalue().split())
                    or report.views[result].title not in out.getvalue()
                )
        assert str(report.selection) in out.getvalue().replace("\n", " ") or not report.selection
        assert "</html>" in text


def test_traffic_of_a_function_is_its_row() -> None:
    capture = opened("emulate")
    row = analyses.run("traffic", capture).tables["by_function"].to_pylist()[0]
    part = run("traffic", capture, code=row["function"])
    assert (part.figures["accessed_bytes"], part.figures["loads"]) == (row["bytes"], row["loads"])
    assert [one["function"] for one in part.tables["by_function"].to_pylist()] == [row["function"]]


def test_bandwidth_of_a_line_is_its_row() -> None:
    capture = opened("count")
    row = analyses.run("bandwidth", capture).tables["by_line"].to_pylist()[0]
    part = run("bandwidth", capture, code=f"{row['file'].rpartition('/')[2]}:{row['line']}")
    assert part.figures["accessed_bytes"] == sum(
        one["bytes"] for one in analyses.run("bandwidth", capture).tables["by_line"].to_pylist()
        if (one["file"], one["line"]) == (row["file"], row["line"])
    )  # fmt: skip
    assert part.figures["accessed_bytes"] > 0


def test_first_touches_of_a_place_are_its_row() -> None:
    capture = opened("faults")
    row = next(row for row in analyses.run("first_touch", capture).tables["by_function"].to_pylist() if row["function"])
    part = run("first_touch", capture, code=row["function"])
    assert part.figures["first_touched_bytes"] == row["bytes"]


def test_a_region_has_the_faults_that_regions_says() -> None:
    capture = opened("faults")
    row = next(row for row in analyses.run("regions", capture).tables["by_name"].to_pylist() if row["kind"] == "region")
    assert run("faults", capture, region=row["name"]).figures["faults"] == row["faults"]
    assert run("objects", capture, region=row["name"]).figures["allocations"] == row["allocations"]
    mine = [
        one
        for one in run("regions", capture, region=row["name"]).tables["by_name"].to_pylist()
        if one["name"] == row["name"]
    ]
    assert mine[0]["seconds"] == pytest.approx(row["seconds"])


# ---- what cannot be selected ---------------------------------------------------------------
def test_what_has_no_time_says_that_it_is_of_the_whole_run() -> None:
    capture = opened("emulate")
    whole, part = analyses.run("traffic", capture), run("traffic", capture, time_s=(0.1, 0.2))
    assert (part.scope, part.scope_reason) == ("whole run", "exact counts of accesses have no times")
    assert part.figures == whole.figures
    assert run("bandwidth", opened("count"), time_s=(0.01, 0.02)).scope == "whole run"
    assert run("bandwidth", opened("count-sampled"), time_s=(0.2, 0.5)).scope == "time bins"


@pytest.mark.parametrize(
    ("selection", "message", "hint"),
    [
        (Selection(time_s=(50, 60)), "nothing was recorded from 50 to 60 s", "the recording lasts"),
        (Selection(processes=(7,)), "no process has the number 7", "processes: 1"),
        (Selection(threads=(3,)), "no thread has the id 3", "threads: "),
        (Selection(region="workre"), "invalid value 'workre' for --region", "did you mean worker"),
        (Selection(code="mian"), "invalid value 'mian' for --code", "did you mean main"),
        (Selection(object="heap of mian"), "invalid value 'heap of mian' for --object", "did you mean heap of"),
    ],
)
def test_what_is_not_in_the_capture_is_an_error_that_helps(selection: Selection, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        analyses.report(opened("faults"), selection=selection)
    assert hint in (caught.value.hint or "")


def test_a_comparison_takes_no_selection() -> None:
    with pytest.raises(UsageError, match="compares captures"):
        analyses.run("diff", opened("faults"), selection=Selection(code="main"))


# ---- the command ---------------------------------------------------------------------------
def test_the_report_says_what_is_selected_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from memlens.cli.report import main

    path = str(opened("emulate").path)
    assert main([path, "--time", "0.1:0.3"]) == 0
    said = capsys.readouterr().out
    assert "[0.1 to 0.3 s]" in said
    assert "of the whole run: exact counts of accesses have no times" in said
    assert main([path, "--time", "0.1:0.3", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["selection"]["time_s"] == [0.1, 0.3]
    assert content["results"]["traffic"]["scope"] == "whole run"
    assert content["results"]["accesses"]["scope"] == "time bins"
    with pytest.raises(UsageError, match="the range ends before it begins"):
        main([path, "--time", "2:1"])


def test_kept_reports_are_those_of_their_selection() -> None:
    capture = opened("faults")
    first, second = Selection(code="main"), Selection(time_s=(0.02, 0.05))
    made = [analyses.report(capture, selection=one, cache=True) for one in (None, first, second)]
    again = [analyses.report(capture, selection=one, cache=True) for one in (None, first, second)]
    assert [one.selection for one in again] == [one.selection for one in made]
    assert [one.results["faults"].figures for one in again] == [one.results["faults"].figures for one in made]
    assert len({one.results["faults"].figures["faults"] for one in again}) == 3
    assert [one.scope_line("capacity") for one in again] == [one.scope_line("capacity") for one in made]
    assert again[1].scope_line("capacity") == "of the whole run: memory and CPU time are read by process"


def test_the_page_says_what_is_not_selected(tmp_path: Path) -> None:
    from memlens.cli.report import main

    page = tmp_path / "page.html"
    assert main([str(opened("emulate").path), "--time", "0.1:0.3", "--html", str(page)]) == 0
    assert "of the whole run: exact counts of accesses have no times" in page.read_text()
