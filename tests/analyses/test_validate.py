"""`memlens validate`: drawn windows are fair and analysed as recorded ones, errors have closed forms, intervals hold as claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from conftest import run_memlens
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens.analyses._observable import chance_of
from memlens.analyses._window_sizes import WindowSizes, footprint_across, footprint_of_spans, groups_across
from memlens.analyses.data_locality import locality
from memlens.analyses.validation import fitting, validate
from memlens.capture.model.drawing import DrawnAccesses, ThinnedAccesses, drawn_windows, every_window
from memlens.capture.model.locality import AccessBatch, ThreadAccesses
from memlens.errors import NoDataError, UsageError

LOAD = 1
A = 0x10_0000
CONSTANT, STRIDED, IRREGULAR = 1, 2, 3
Access = tuple[int, int, int, int]


def cyclic(count: int, words: int) -> list[Access]:
    return [(0x1000, A + 8 * (i % words), 8, LOAD) for i in range(count)]


def stream(count: int) -> list[Access]:
    return [(0x1000, A + 8 * i, 8, LOAD) for i in range(count)]


def metric(result: Any, name: str, scope: str = "program") -> dict[str, Any]:
    found = [row for row in result.tables["metrics"].to_pylist() if (row["scope"], row["metric"]) == (scope, name)]
    assert len(found) == 1, name
    return dict(found[0])


# ---- drawing ----------------------------------------------------------------------------------------------------


def test_every_access_has_the_same_chance_to_be_in_a_window() -> None:
    """The places of a period that a window may begin at are even; only the first and last window - 1 accesses see fewer."""
    window, period, length, draws = 10, 100, 1000, 4000
    hits = np.zeros(length)
    random = np.random.default_rng(1)
    for _ in range(draws):
        drawn = drawn_windows(length, window, period, random)
        assert (
            drawn.count == 10
            and (drawn.start // period == np.arange(10)).all()
            and (drawn.end - drawn.start == window).all()
        )
        assert drawn.reach[-1] == length
        for start, end in zip(drawn.start, drawn.end, strict=True):
            hits[start:end] += 1
    inner = hits.reshape(10, period)[:, window:-window] / draws
    expected = window / (period - window + 1)
    assert abs(inner - expected).max() < 6 * (expected / draws) ** 0.5


@given(st.integers(0, 3000), st.integers(1, 200))
def test_a_trace_is_cut_into_windows_at_all_places_of_a_loop(length: int, window: int) -> None:
    """Nothing overlaps, one or two accesses lie between windows, and starts meet every residue of a loop of 4."""
    cut = every_window(length, window)
    assert (cut.end - cut.start == window).all() and (cut.end <= length).all()
    assert set((cut.start[1:] - cut.end[:-1]).tolist()) <= {1, 2}
    assert cut.count == 0 or cut.reach[-1] == length
    assert cut.count < 4 or set((cut.start % 4).tolist()) == {0, 1, 2, 3}


def test_a_drawn_window_is_analysed_as_a_recorded_one(tmp_path: Path) -> None:
    """The same windows, drawn from everything and written by hand as samples, give the same tables."""
    random = np.random.default_rng(3)
    words = random.integers(0, 500, 20_000)
    trace = [(0x1000 + 8 * (i % 3), A + 8 * int(w) if i % 3 else 0x7000, 8, LOAD) for i, w in enumerate(words)]
    full = CaptureBuilder()
    for at in range(0, len(trace), 3000):  # several records
        full.window(at, trace[at : at + 3000], first_executed=at)
    capture = full.open(tmp_path / "full.memlens")
    drawn = DrawnAccesses.drawn(capture, 100, 1000, seed=7)
    sampled = CaptureBuilder()
    (windows,) = drawn._windows
    before = 0
    for start, end, reach in zip(windows.start.tolist(), windows.end.tolist(), windows.reach.tolist(), strict=True):
        sampled.window(start, trace[start:end], executed=reach - before, first_executed=before, period=1000)
        before = reach
    by_hand = locality(sampled.open(tmp_path / "sampled.memlens"), by="thread", heat_columns=0)
    ours = locality(capture, by="thread", accesses=drawn, heat_columns=0)
    for name in ("by_program", "by_thread", "reuse_distances", "reuse_intervals", "miss_curve"):
        assert ours.tables[name].to_pylist() == by_hand.tables[name].to_pylist(), name
    assert ours.figures["windows"] == 20 and not ours.figures["everything_recorded"]


def test_constants_that_a_stream_leaves_out_are_drawn_with_their_windows(tmp_path: Path) -> None:
    builder = CaptureBuilder().window(10, stream(1000), implied_constant=500, executed=1500)
    drawn = DrawnAccesses.drawn(builder.open(tmp_path / "a.memlens"), 50, 200, seed=1)
    covered = sum(int((part.end - part.start).sum()) for part in drawn._windows)
    assert int(drawn.unit_executed.sum()) == 1500
    assert drawn.recorded + int(drawn.implied_constants.sum()) == covered
    assert drawn.recorded == pytest.approx(covered * 2 / 3, abs=7)
    row = locality(drawn.capture, accesses=drawn).tables["by_program"].to_pylist()[0]
    assert row["window_constant_percent"] == pytest.approx(100 / 3, rel=0.03)
    # Classes are inferred: whether an instruction stays at one address for the whole run, windows do not show.
    assert row["constant_percent"] is row["kappa"] is None
    # Every access that was executed is in `executed`, constants too.
    assert row["rho"] == pytest.approx(1500 / covered) and row["executed"] == pytest.approx(1500)


def test_thinned_windows_stand_for_those_left_out(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for number in range(40):
        builder.window(1000 * number, stream(20), executed=100, first_executed=100 * number, period=100)
    thin = ThinnedAccesses(builder.open(tmp_path / "a.memlens"), 10, seed=1)
    assert thin.recorded == 80 and thin.unit_executed.tolist() == [1000] * 4
    batches = list(thin)
    assert sum(len(batch) for batch in batches) == 80
    assert {float(w) for batch in batches for w in batch.weight} == {50.0}


# ---- footprint by window size -----------------------------------------------------------------------------------

traces = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from((CONSTANT, STRIDED, IRREGULAR))), min_size=1, max_size=150
)


@settings(max_examples=300, deadline=None)
@given(traces, st.integers(16, 70))
def test_footprints_of_all_sizes_equal_sets(trace: list[tuple[int, int]], window: int) -> None:
    addresses = np.array([8 * a for a, _ in trace], dtype=np.uint64)
    classes = np.array([c for _, c in trace], dtype=np.uint8)
    units = (np.arange(len(trace)) // window).astype(np.uint32)
    sizes = WindowSizes(window)
    sizes.add(addresses, classes, units)
    found = sizes.means()
    for size in sizes.sizes:
        pieces = [
            trace[begin + at : begin + at + size]
            for begin in range(0, len(trace), window)
            for at in range(0, min(window, len(trace) - begin) // size * size, size)
        ]
        if not pieces:
            assert (size, "footprint") not in found
            continue
        expected = {
            "footprint": [len({a for a, c in p if c != CONSTANT}) + any(c == CONSTANT for _, c in p) for p in pieces],
            "footprint_strided": [len({a for a, c in p if c == STRIDED}) for p in pieces],
            "footprint_irregular": [len({a for a, c in p if c == IRREGULAR}) for p in pieces],
        }
        for kind, values in expected.items():
            assert found[size, kind] == pytest.approx(sum(values) / len(values)), (size, kind)


def batch_of(trace: list[tuple[int, int]], begin: int, units: Any) -> tuple[AccessBatch, Any]:
    count = len(trace)
    nothing = np.zeros(count, dtype=np.uint64)
    batch = AccessBatch(0, 1, 100, nothing, units, nothing, nothing, np.array([8 * a for a, _ in trace], dtype=np.uint64),
                        np.full(count, 8, np.uint32), nothing, nothing, number=begin + np.arange(count))  # fmt: skip
    return batch, np.array([c for _, c in trace], dtype=np.uint8)


@settings(max_examples=200, deadline=None)
@given(traces, st.integers(1, 40))
def test_footprints_of_spans_equal_sets(trace: list[tuple[int, int]], part: int) -> None:
    spans = [span for span in (7, 14, 28) if span <= len(trace)]
    batches = [batch_of(trace[at : at + part], at, None) for at in range(0, len(trace), part)]
    found = footprint_of_spans(batches, spans, [len(trace)])
    for span in spans:
        pieces = [trace[at : at + span] for at in range(0, len(trace) // span * span, span)]
        expected = [len({a for a, c in piece if c != CONSTANT}) for piece in pieces]
        assert found[span] == pytest.approx(sum(expected) / len(expected))


def test_groups_of_windows_are_scaled_by_the_ratio() -> None:
    """4 windows of 5 accesses to 5 words, the same in all: a period is 50, so each group has 10 times 5."""
    trace = [(i % 5, STRIDED) for i in range(20)]
    found = footprint_across([batch_of(trace, 0, np.arange(20, dtype=np.uint32) // 5)], 50, 5)
    assert groups_across(4) == [1, 2, 4] and found == {50: 50.0, 100: 50.0, 200: 50.0}


# ---- errors that are known beforehand -----------------------------------------------------------------------------


def test_a_cycle_is_right_within_windows_and_scaled_too_far_across_them(tmp_path: Path) -> None:
    """Every window of 256 sees all 64 words. The whole footprint is 64, and rho = 100 makes 6,400 of it."""
    capture = CaptureBuilder().window(10, cyclic(256_000, 64)).open(tmp_path / "a.memlens")
    result = validate(capture, window=256, period=2560, seeds=2)
    for name in ("window_growth", "window_footprint", "blocks_of_window", "executed"):
        assert metric(result, name)["mape_percent"] == pytest.approx(0, abs=1e-9), name
    assert metric(result, "footprint_estimated")["bias_percent"] == pytest.approx(100 * (10 - 1), rel=1e-6)
    assert metric(result, "window_growth")["covered_percent"] == 100
    within = [row for row in result.tables["window_sizes"].to_pylist() if row["where"] == "within windows"]
    assert {row["window_accesses"] for row in within} == {16, 32, 64, 128, 256}
    assert all(
        row["truth"] == pytest.approx(min(64, row["window_accesses"])) for row in within if row["metric"] == "footprint"
    )
    assert (
        result.figures["window_mape_percent_footprint"] == 0
        and result.figures["window_mape_percent_footprint_irregular"] is None
    )
    across = [row for row in result.tables["window_sizes"].to_pylist() if row["where"] == "across windows"]
    assert {row["truth"] for row in across} == {64.0} and {round(row["bias_percent"]) for row in across} == {900}
    assert any("upper estimates" in note for note in result.quality.notes)


def test_a_stream_is_right_across_windows_too(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, stream(100_000)).open(tmp_path / "a.memlens")
    result = validate(capture, window=100, period=1000, seeds=2)
    for name in ("footprint_estimated", "footprint_strided_estimated", "window_growth"):
        assert metric(result, name)["mape_percent"] == pytest.approx(0, abs=1e-6), name
    assert all(
        row["mape_percent"] == pytest.approx(0) for row in result.tables["window_sizes"].to_pylist() if row["judged"]
    )
    assert not any("upper estimates" in note for note in result.quality.notes)


def random_phases(length: int, shortest: int, longest: int, seed: int) -> list[Access]:
    """Phases over 20 to 2,000 words at random: windows differ."""
    random = np.random.default_rng(seed)
    words: list[int] = []
    while len(words) < length:
        phase = int(random.integers(shortest, longest))
        words += random.integers(0, int(random.choice([20, 200, 2000])), phase).tolist()
    return [(0x1000, A + 8 * w, 8, LOAD) for w in words]


def sampled_rows(capture: Any, window: int, period: int, seeds: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of all windows, and that of each sample."""

    def row(accesses: Any) -> dict[str, Any]:
        found = locality(capture, accesses=accesses, by="program", heat_columns=0).tables["by_program"].to_pylist()
        return dict(found[0])

    source = list(ThreadAccesses(capture).batches(constants=True))
    samples = [row(DrawnAccesses.drawn(capture, window, period, seed=seed, source=source)) for seed in range(seeds)]
    return row(DrawnAccesses.tiled(capture, window, source=source)), samples


def test_intervals_hold_as_often_as_they_claim(tmp_path: Path) -> None:
    """Phases are short beside the period, so windows are as good as independent. 95 % of 120, within binomial limits."""
    capture = CaptureBuilder().window(10, random_phases(200_000, 100, 300, 5)).open(tmp_path / "a.memlens")
    true, samples = sampled_rows(capture, 100, 4000, 120)
    every = 0
    for name, of in (("window_growth", "window_growth"), ("window_reuse_distance", "window_reuse_distance_mean")):
        covered = sum(row[f"{name}_low"] <= true[of] <= row[f"{name}_high"] for row in samples)
        assert covered / 120 >= 0.88, (name, covered)  # 3.5 standard errors below
        every += covered
    assert every < 240, "intervals so wide that none can fail"


def test_slow_changes_of_a_program_are_no_error(tmp_path: Path) -> None:
    """Phases of ten periods: every sample has the same parts of each, so errors are far below the spread of the windows."""
    capture = CaptureBuilder().window(10, random_phases(300_000, 9_000, 11_000, 6)).open(tmp_path / "a.memlens")
    true, samples = sampled_rows(capture, 100, 1000, 60)
    actual = float(np.std([row["window_growth"] - true["window_growth"] for row in samples]))
    stated = float(np.mean([row["window_growth_error"] for row in samples]))
    assert 0.7 * actual <= stated <= 4 * actual, (stated, actual)
    covered = sum(row["window_growth_low"] <= true["window_growth"] <= row["window_growth_high"] for row in samples)
    assert covered / 60 >= 0.85


def test_the_truth_of_windows_does_not_depend_on_where_a_loop_is_cut(tmp_path: Path) -> None:
    """Rounds of 4 accesses to 2 words, each word twice in a row: a window of 128 at an odd place sees 65 words, else 64."""
    trace = [(0x1000, A + 8 * (i // 2), 8, LOAD) for i in range(100_001)]
    result = validate(CaptureBuilder().window(10, trace).open(tmp_path / "a.memlens"), window=128, period=1280, seeds=4)
    row = metric(result, "window_footprint")
    truth = [
        r
        for r in result.tables["window_sizes"].to_pylist()
        if r["window_accesses"] == 128 and r["metric"] == "footprint"
    ]
    assert truth[0]["truth"] == pytest.approx(64.5, abs=0.01) and abs(row["bias_percent"]) < 0.3


def test_a_denser_sample_serves_in_place_of_everything(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for number in range(1000):
        builder.window(1000 * number, stream(64), executed=640, first_executed=640 * number, period=640)
    result = validate(builder.open(tmp_path / "a.memlens"), seeds=2)
    assert not result.figures["truth_is_whole"] and result.figures["period_accesses"] == 6400
    assert metric(result, "window_growth")["mape_percent"] == pytest.approx(0, abs=1e-9)
    assert any("itself sampled" in note for note in result.quality.notes)


# ---- what windows cannot show -------------------------------------------------------------------------------------


def test_intervals_of_reuse_are_corrected_for_their_chance_and_unobservable_beyond_a_window(tmp_path: Path) -> None:
    """A cycle of 30 words: every reuse has interval 30. A window of 100 sees 70 of 100, and none of its own length."""
    builder = CaptureBuilder()
    for number in range(50):
        builder.window(1000 * number, [(0x1000, A + 64 * (i % 30), 8, LOAD) for i in range(100)], executed=1000,
                       first_executed=1000 * number, period=1000)  # fmt: skip
    rows = locality(builder.open(tmp_path / "a.memlens")).tables["reuse_intervals"].to_pylist()
    assert chance_of(np.array([100]), np.array([30, 99, 100, 500])).tolist() == [0.7, 0.01, 0.0, 0.0]
    (mine,) = [row for row in rows if row["reuses"]]
    assert (mine["from"], mine["to"], mine["reuses"], mine["observable"]) == (16, 31, 50 * 70, "in part")
    assert mine["observed_percent"] == pytest.approx(76.5, abs=0.5)  # the bin's mean: intervals 16 to 31
    assert rows[-1] == {
        "from": 100,
        "to": None,
        "reuses": None,
        "observed_percent": 0.0,
        "reuses_estimated": None,
        "observable": "no",
    }
    whole = (
        locality(CaptureBuilder().window(10, cyclic(900, 30)).open(tmp_path / "b.memlens"))
        .tables["reuse_intervals"]
        .to_pylist()
    )
    assert all(row["observable"] == "all" and row["reuses"] == row["reuses_estimated"] for row in whole)


def test_rows_without_enough_windows_have_no_interval_and_are_flagged(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, stream(50), executed=500, period=500).open(tmp_path / "a.memlens")
    row = locality(capture).tables["by_program"].to_pylist()[0]
    assert row["under_sampled"] and row["window_growth_low"] is None and row["window_reuse_distance_high"] is None


# ---- what cannot serve --------------------------------------------------------------------------------------------


def test_captures_that_cannot_serve_are_refused_with_cause_and_remedy(tmp_path: Path) -> None:
    def refused(builder: CaptureBuilder, cause: str, remedy: str, **options: Any) -> None:
        number = len(list(tmp_path.glob("*.memlens")))
        with pytest.raises((NoDataError, UsageError), match=cause) as error:
            validate(builder.open(tmp_path / f"{number}.memlens"), **options)
        assert error.value.hint is not None and remedy in error.value.hint, error.value.hint

    sampled = CaptureBuilder()
    for number in range(100):
        sampled.window(1000 * number, stream(50), executed=500, first_executed=500 * number, period=500)
    refused(CaptureBuilder().fault(10, 5), "holds no accesses", "--trace=full")
    refused(CaptureBuilder().window(10, []), "hold no accesses", "--trace=full")
    refused(CaptureBuilder().window(10, stream(5000)), "fewer than ten periods", "longer run")
    refused(CaptureBuilder().window(10, stream(5000)), "leave almost nothing out", "--period", window=100, period=150)
    refused(CaptureBuilder().window(10, stream(5000)), "invalid value '0' for window", "--window", window=0)
    refused(CaptureBuilder().window(10, stream(50_000), dropped=3), "3 windows were dropped", "on-full=wait")
    refused(sampled, "is 10, and 50 are needed", "more windows")
    refused(sampled, "windows of another length cannot be taken", "--trace=full", window=10)
    refused(sampled, "only 4 times denser", "--period 5000", period=2000)
    refused(sampled, "invalid value '0' for seeds", "--seeds", seeds=0)


def test_defaults_fit_the_length() -> None:
    assert fitting(50_000_000, None, None) == (1000, 100_000) and fitting(10, None, 5000) == (50, 5000)


def test_command_line(tmp_path: Path) -> None:
    path = CaptureBuilder().window(10, cyclic(64_000, 40)).write(tmp_path / "a.memlens")
    done = run_memlens("validate", path, "--window", "64", "--period", "640", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    for text in (
        "2 samples of 64 accesses in 640, against every access (64,000)",
        "By window size",
        "window_growth",
        "hold the truth",
    ):
        assert text in " ".join(done.stdout.split()), done.stdout
    document = json.loads(
        run_memlens("validate", path, "--json", "--window", "64", "--period", "640", "--seeds", "2").stdout
    )
    assert document["figures"]["window_mape_percent_footprint"] == 0 and set(document["tables"]) == {
        "metrics", "functions", "window_sizes", "miss_ratios",
    }  # fmt: skip
    short = run_memlens("validate", CaptureBuilder().window(10, cyclic(100, 4)).write(tmp_path / "b.memlens"))
    assert (
        short.returncode == NoDataError.exit_status
        and "fewer than ten periods" in short.stderr
        and "Traceback" not in short.stderr
    )


def test_functions_say_how_many_windows_they_have(tmp_path: Path) -> None:
    capture = CaptureBuilder().window(10, cyclic(10_000, 50)).open(tmp_path / "a.memlens")
    result = validate(capture, window=100, period=1000, seeds=2)
    assert {row["windows"] for row in result.tables["functions"].to_pylist()} == {10.0}


def test_short_phases_are_innermost_loops_of_one_class_that_a_period_is_longer_than(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the accuracy page says of intervals that hold too seldom."""
    from types import SimpleNamespace

    import pyarrow as pa
    from conftest import ROOT

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import locality_accuracy as page

    def loop(
        name: str | None, executed: float, strided: float, *, parent: str | None = None, function: str = "f"
    ) -> Any:
        return {"function": function, "loop": name, "loop_parent": parent, "executed": executed,
                "window_growth": 1.0, "window_growth_strided": strided}  # fmt: skip

    rows = [
        loop("a.c:1", page.PERIOD / 4, 1.0),
        loop("a.c:2", 4 * page.PERIOD, 1.0),  # many windows fall into it
        loop("a.c:3", page.PERIOD / 2, 0.5),  # what it has others have too
        loop("a.c:4", page.PERIOD / 2, 1.0),  # few accesses, but as long as the loop inside
        loop("a.c:5", 9 * page.PERIOD, 0.0, parent="a.c:4"),
        loop("b.c:1", page.PERIOD / 4, 1.0, function="g"),
        loop(None, page.PERIOD / 4, 1.0),
    ]
    tiled = SimpleNamespace(tables={"by_loop": pa.Table.from_pylist(rows)})
    assert page.short_loops(tiled, ("f", "window_growth_strided")) == {"a.c:1": 0.25}  # type: ignore[arg-type]
