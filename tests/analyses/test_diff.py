"""`memlens diff`: aligned figures and rows, noise, findings and conditions, against changes that the tests make themselves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import run_memlens
from hypothesis import given
from hypothesis import strategies as st

from memlens import errors, view
from memlens.analyses import _comparison, _conditions, diff
from memlens.results import Finding, Quality, Reference, Report, Result
from memlens.view import Figure, Table, View, key, measure

SITES = Table(
    name="by_site", title="Sites", sort="-bytes",
    columns=(key("function", "function", "function"), measure("bytes", "bytes", "bytes", better="lower", error="bytes_error")),
)  # fmt: skip
FIGURES = (
    Figure(name="bytes", label="bytes", kind="bytes", better="lower", error="bytes_error"),
    Figure(name="calls", label="calls", kind="count"),
    Figure(name="speed", label="speed", kind="bytes_per_s", better="higher"),
)


def report(
    figures: dict[str, Any], rows: list[dict[str, Any]] | None = None, findings: tuple[Finding, ...] = (), **meta: Any
) -> Report:
    result = Result("heap", figures, {"by_site": pa.Table.from_pylist(rows or [])}, Quality())
    views = {"heap": View(title="Heap", figures=FIGURES, tables=(SITES,))}
    return Report(
        "prog",
        {"command": ["/bin/prog"], "state": "complete", **meta},
        {"heap": result},
        list(findings),
        Quality(),
        views,
    )


def row(function: str, amount: float, *, line: int = 1, error: float = 0.0, file: str = "a.c") -> dict[str, Any]:
    return {
        "function": function,
        "file": file,
        "line": line,
        "module": "/x/prog",
        "bytes": amount,
        "bytes_error": error,
    }


def verdicts(before: Report, after: Report) -> dict[str, str]:
    return {r["figure"]: r["verdict"] for r in diff.of_reports(before, after).tables["figures"].to_pylist()}


def test_a_capture_with_itself_has_no_difference() -> None:
    one = report({"bytes": 1e9, "bytes_error": 1e7, "calls": 5, "speed": 1e9}, [row("f", 1e9)])
    result = diff.of_reports(one, one)
    assert result.figures["no_difference"] and result.figures["comparable"] == "yes"
    assert not view.problems(diff.view(result), result)


def test_a_change_within_two_standard_errors_is_noise() -> None:
    before = report({"bytes": 1000e6, "bytes_error": 40e6, "calls": 1, "speed": 1.0})
    inside, outside = (report({"bytes": b, "bytes_error": 30e6, "calls": 1, "speed": 1.0}) for b in (1099e6, 1101e6))
    assert verdicts(before, inside)["heap.bytes"] == "noise"  # SE of the change: 50e6
    assert verdicts(before, outside)["heap.bytes"] == "worse"
    assert verdicts(outside, before)["heap.bytes"] == "better"


def test_null_is_no_zero() -> None:
    before = report({"bytes": None, "bytes_error": None, "calls": 0, "speed": None})
    after = report({"bytes": 5e6, "bytes_error": 0, "calls": 0, "speed": None})
    found = verdicts(before, after)
    assert found == {"heap.bytes": "only after", "heap.calls": "same"}


def test_rows_are_aligned_when_lines_move() -> None:
    before = report({}, [row("f", 60e6, line=10), row("f", 30e6, line=20), row("g", 10e6, line=5)])
    after = report({}, [row("f", 61e6, line=13), row("f", 90e6, line=23), row("g", 10e6, line=8)])
    pairs = {(p.name, p.place[2]): p for p in _comparison.row_pairs(before, after)}
    assert [(p.before, p.after) for _, p in sorted(pairs.items())] == [(60e6, 61e6), (30e6, 90e6), (10e6, 10e6)]
    assert pairs["f a.c:23", 23].verdict == "worse" and pairs["f a.c:13", 13].verdict == "noise"


def test_rows_of_different_stacks_are_different_things() -> None:
    old = [{**row("f", 50e6), "frames": ["f", "a"]}, {**row("f", 50e6), "frames": ["f", "b"]}]
    new = [{**row("f", 50e6), "frames": ["f", "b"]}, {**row("f", 80e6), "frames": ["f", "a"]}]
    found = [(p.before, p.after) for p in _comparison.row_pairs(report({}, old), report({}, new))]
    assert sorted(found) == [(50e6, 50e6), (50e6, 80e6)]


def test_rows_are_ranked_by_the_change_of_their_share() -> None:
    before = report({}, [row("a", 50e6), row("b", 50e6)])
    after = report({}, [row("a", 52e6), row("b", 150e6), row("c", 108e6)])
    ranked = [(p.name.split()[0], round(p.weight, 3)) for p in _comparison.row_pairs(before, after)]
    assert ranked == [("c", round(108 / 310, 3)), ("a", round(0.5 - 52 / 310, 3)), ("b", round(0.5 - 150 / 310, 3))]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 4), st.floats(0, 1e9)), max_size=20))
def test_alignment_loses_no_row(rows: list[tuple[str, int, float]]) -> None:
    """Sums of both sides are kept, whatever is aligned with what."""
    made = [row(name, value, line=line) for name, line, value in rows]
    half = len(made) // 2
    pairs = _comparison.aligned(made[:half], made[half:], SITES, SITES.columns[1])
    for side, expected in ((0, made[:half]), (1, made[half:])):
        total = sum(pair[side].value for pair in pairs if pair[side] is not None)
        assert math.isclose(total, sum(r["bytes"] for r in expected), rel_tol=1e-9, abs_tol=1e-6)


# ---- findings ------------------------------------------------------------
def finding(name: str, function: str, severity: str = "low") -> Finding:
    return Finding(
        name,
        severity,  # type: ignore[arg-type]
        f"{function} does it",
        {},
        "stop",
        references=(Reference(kind="code", name=function),),
    )


def test_a_finding_about_other_code_is_a_new_one() -> None:
    before = report({}, findings=(finding("leak", "f"), finding("churn", "f")))
    after = report({}, findings=(finding("leak", "g"), finding("churn", "f", "high")))
    states = {(r["finding"], r["state"]) for r in diff.compare_findings(before, after)}
    assert states == {("leak", "new"), ("leak", "gone"), ("churn", "kept")}


def test_captures_of_different_programs_are_compared_with_care() -> None:
    before = report({"calls": 1}, command=["/bin/one"])
    after = report({"calls": 1}, command=["/bin/two", "x"])
    result = diff.of_reports(before, after)
    facts = {r["fact"]: (r["before"], r["after"]) for r in result.tables["comparability"].to_pylist()}
    assert result.figures["comparable"] == "with care"
    assert facts["program"] == ("one", "two") and facts["arguments"] == ("", "x")


def test_different_sampling_is_a_fact() -> None:
    before = report({"calls": 1}, collectors={"alloc": {"sample_bytes": 0}})
    after = report({"calls": 1}, collectors={"alloc": {"sample_bytes": 65536}})
    rows = diff.of_reports(before, after).tables["comparability"].to_pylist()
    assert [(r["fact"], r["before"], r["after"]) for r in rows] == [("alloc: sample_bytes", "0", "65536")]


# ---- conditions ------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("heap.calls >= 10", True), ("heap.calls > 10", False), ("calls <= 10", True), ("calls < 10", False),
        ("calls >= +5", True), ("calls > +5", False), ("calls >= +100%", True), ("calls < -1", False),
        ("heap.by_site[f].bytes > +10%", True), ("heap.by_site[g].bytes > +10%", False),
        ("heap.by_site[new].bytes > +1MiB", True), ("heap.by_site[f].bytes >= 2MiB", True),
        ("heap.by_site[operator new[](unsigned long)].bytes > 1", True),
    ],
)  # fmt: skip
def test_conditions(text: str, expected: bool) -> None:
    mib = 1 << 20
    before = report({"calls": 5}, [row("f", mib), row("g", mib), row("operator new[](unsigned long)", 1)])
    after = report(
        {"calls": 10}, [row("f", 2 * mib), row("g", mib), row("new", 9 * mib), row("operator new[](unsigned long)", 2)]
    )
    condition = _conditions.parse(text)
    assert _conditions.holds(condition, _conditions.measured(condition, before, after)) == expected


def test_a_condition_on_a_sampled_figure_needs_more_than_noise() -> None:
    before = report({"bytes": 100e6, "bytes_error": 8e6})
    after = report({"bytes": 120e6, "bytes_error": 8e6})
    condition = _conditions.parse("heap.bytes > +10%")
    assert not _conditions.holds(condition, _conditions.measured(condition, before, after))
    sure = report({"bytes": 120e6, "bytes_error": 1e6})
    exact = report({"bytes": 100e6, "bytes_error": 1e6})
    assert _conditions.holds(condition, _conditions.measured(condition, exact, sure))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("calls", "expected SUBJECT RELATION LIMIT"), ("cals > 5", "calls"), ("heap.by_sites[f].bytes > 5", "heap.by_site"),
        ("heap.by_site[f].bites > 5", "bytes"), ("heap.by_site[ff].bytes > 5", "f"), ("calls > 5%", "sign"),
    ],
)  # fmt: skip
def test_a_wrong_condition_is_explained(text: str, words: str) -> None:
    one = report({"calls": 5}, [row("f", 1.0)])
    with pytest.raises(errors.UsageError) as raised:
        _conditions.measured(_conditions.parse(text), one, one)
    assert words in f"{raised.value} {raised.value.hint}"


def test_a_figure_of_several_analyses_is_named_in_full() -> None:
    one = report({"calls": 5})
    both = replace(one, results={**one.results, "other": Result("other", {"calls": 7}, {}, Quality())})
    with pytest.raises(errors.UsageError, match="several analyses"):
        _conditions.measured(_conditions.parse("calls > 5"), both, both)


# ---- as a command ------------------------------------------------------------
GOLDENS = Path(__file__).parent.parent / "goldens"


@pytest.mark.parametrize("name", ["objects", "faults", "trace", "emulate", "count"])
def test_a_golden_capture_with_itself(name: str) -> None:
    path = GOLDENS / f"{name}.memlens"
    content = json.loads(run_memlens("diff", path, path, "--json").stdout)
    figures = content["results"]["diff"]["figures"]
    assert figures["no_difference"] and figures["figures_compared"] > 5 and figures["new_findings"] == 0
    assert content["failed"] == []


def test_the_text_says_what_changed_first() -> None:
    done = run_memlens("diff", GOLDENS / "objects.memlens", GOLDENS / "heap.memlens", "--fail-on-finding")
    assert done.stdout.index("comparable") < done.stdout.index("  figure  ")
    new = [line for line in done.stdout.splitlines() if line.startswith("failed: new finding")]
    assert done.returncode == (1 if new else 0)


def test_fail_on_finding_names_what_it_knows() -> None:
    path = GOLDENS / "faults.memlens"
    done = run_memlens("diff", path, path, "--fail-on-finding=leek")
    assert done.returncode == 64 and "leak" in done.stderr
