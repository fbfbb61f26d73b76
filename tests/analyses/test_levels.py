"""A region is compared with a level's peak only with evidence of the level: what is evidence, and what the comparison gives."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from count_tools import BLOCK, LOAD, MIX_FLAG, STORE, Block, CountBuilder, Function, Site

import memlens
from memlens.present import html, terminal
from memlens.units import human_bytes

GB = 10**9
READS = Function("reads", sites=[Site(LOAD, 1, bytes=64)])
"""64 bytes an execution."""
COPIES = Function("copies", sites=[Site(LOAD, 1, bytes=32), Site(STORE, 1, bytes=32)])
WRITES = Function("writes", sites=[Site(STORE, 1, bytes=64)])
EVENTS = ["L1-dcache-load-misses", "LLC-load-misses", "instructions"]
PEAKS = {"L1": (400, 800), "L2": (200, 400), "L3": (100, 150), "DRAM": (20, 30)}
"""Of one core and of all four, reading; writing is half as fast, a copy three quarters."""
SIZES: dict[str, int | None] = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20, "DRAM": None}


def calibration() -> dict[str, Any]:
    factors = {"read": 1.0, "write": 0.5, "copy": 0.75}
    levels = [
        {
            "level": name, "bytes": SIZES[name], "shared_by_cores": 4,
            **{who: {kind: {"bytes_per_second": factor * rate * GB} for kind, factor in factors.items()}
               for who, rate in zip(("one", "all"), rates, strict=True)},
        }
        for name, rates in PEAKS.items()
    ]  # fmt: skip
    arithmetic = {who: {"double": {"per_second": rate * GB}} for who, rate in (("one", 10), ("all", 40))}
    return {"version": 1, "cores": [0, 1, 2, 3], "levels": levels, "float": arithmetic}


def a_builder(function: Function = READS, *, known: bool = True, opened: int = 7, **fields: int) -> CountBuilder:
    """One region, `solve`: 1000 executions of a function in 8 µs, 64000 bytes, 8 GB/s."""
    builder = CountBuilder().module([function]).node(1, "solve").status(events_open=opened, event_error=2)
    builder.counted({0: 1000}, node=1).timed(1, counted_ns=8_000, **fields)
    builder.meta["collectors"]["count"] |= {"events": EVENTS, "add_ps": 0}  # type: ignore[index]
    if known:
        builder.meta["calibration"] = calibration()
    return builder


def result_of(builder: CountBuilder, path: Path) -> Any:
    return memlens.analyses.run("bandwidth", builder.open(path / f"c{len(list(path.iterdir()))}.memlens"))


def solve(result: Any, *, exclusive: bool = False) -> dict[str, Any]:
    rows = result.tables["by_region"].to_pylist()
    return next(row for row in rows if row["region"] == "solve" and row["exclusive"] == exclusive)


def events(l1: int, llc: int, share_ppm: int = 1_000_000) -> dict[str, int]:
    return {"counted_event_0": l1, "counted_event_1": llc, "counted_event_2": 1, "event_share_ppm": share_ppm}


# ---- events ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "fields", "level"),
    [
        (READS, events(l1=990, llc=500), "DRAM"),  # half of the 1000 lines
        (READS, events(l1=990, llc=499), None),  # from some cache, and no saying which
        (READS, events(l1=50, llc=0), "L1"),
        (READS, events(l1=51, llc=0), None),
        (READS, events(l1=50, llc=0) | {"joined": 1}, None),  # other threads' misses are not in it
        (READS, events(l1=990, llc=900) | {"joined": 1}, "DRAM"),  # at least so many
        (READS, events(l1=990, llc=900, share_ppm=99_999), None),
        (READS, {}, None),
        (COPIES, events(l1=500, llc=250), "DRAM"),  # half of the 500 lines read
        (WRITES, events(l1=0, llc=0), None),  # misses of loads say nothing about stores
    ],
)
def test_misses_at_the_ends_of_a_region_tell_its_level(
    tmp_path: Path, function: Function, fields: dict[str, int], level: str | None
) -> None:
    row = solve(result_of(a_builder(function, **fields), tmp_path))
    assert row["level"] == level and (row["level_evidence"] is None) == (level is None)
    assert (row["peak_share"] is None) == (level is None)
    if level:
        assert ("LLC" if level == "DRAM" else "L1") in row["level_evidence"]


TOLD, READ_0, READ_1 = 8, 16, 32
"""Flags of a region's times: which events have a value is known; the first has one, the second has one."""


@pytest.mark.parametrize(
    ("fields", "opened", "values", "level"),
    [
        # The first could not be opened: its 0 is no count, and no evidence of the first cache.
        (events(l1=0, llc=0) | {"flags": TOLD | READ_1}, 2, (None, 0), None),
        (events(l1=0, llc=900) | {"flags": TOLD | READ_1}, 2, (None, 900), "DRAM"),
        (events(l1=3, llc=0) | {"flags": TOLD | READ_0}, 1, (3, None), "L1"),
        # Opened, and never scheduled: the share of the time is 0.
        (events(l1=0, llc=0, share_ppm=0) | {"flags": TOLD}, 3, (None, None), None),
        # A recording from before the flags: what could be opened in the first thread.
        (events(l1=0, llc=900), 2, (None, 900), "DRAM"),
        (events(l1=0, llc=900), 0, (None, None), None),
    ],
)
def test_an_event_that_was_not_read_is_null_and_no_evidence(
    tmp_path: Path, fields: dict[str, int], opened: int, values: tuple[int | None, ...], level: str | None
) -> None:
    capture = a_builder(opened=opened, **fields).open(tmp_path / "c.memlens")
    result = memlens.analyses.run("bandwidth", capture)
    row = solve(result)
    assert (row["event_0"], row["event_1"]) == values and row["level"] == level
    assert set(result.figures["events_missing"]) >= {EVENTS[n] for n in (0, 1) if values[n] is None}
    for table in ("region_times", "region_time_records"):
        (record,) = [row for row in capture.table(table).to_pylist() if row["node"] == 1]
        assert (record["counted_event_0"], record["counted_event_1"]) == values
    report = memlens.analyses.report(capture)
    out = io.StringIO()
    terminal.show(report, file=out)
    text, page = " ".join(out.getvalue().split()), html.render(report)
    for name, why in result.figures["events_missing"].items():
        assert name in text and name in page and why.split(" (")[0] in text and why.split(" (")[0] in page
    assert ("Evidence of L1" in text) == (level == "L1")


def test_an_event_that_one_thread_could_not_read_has_no_sum(tmp_path: Path) -> None:
    builder = a_builder(opened=3, **events(l1=990, llc=900), flags=TOLD | READ_0 | READ_1)
    builder.counted({0: 1000}, node=1, thread=101)
    builder.timed(1, counted_ns=8_000, thread=101, **events(l1=990, llc=0), flags=TOLD | READ_0)
    result = result_of(builder, tmp_path)
    assert (solve(result)["event_0"], solve(result)["event_1"]) == (1980, None)
    assert "was not counted in every execution or thread of solve" in result.figures["events_missing"][EVENTS[1]]


@pytest.mark.parametrize(("function", "kind", "peak"), [(READS, "read", 20), (COPIES, "copy", 15)])
def test_bandwidth_by_the_peak_of_its_kind(tmp_path: Path, function: Function, kind: str, peak: float) -> None:
    result = result_of(a_builder(function, **events(l1=1000, llc=1000)), tmp_path)
    row = solve(result)
    assert (row["peak_kind"], row["peak_bytes_per_second"]) == (kind, peak * GB)
    assert row["bytes_per_second"] == pytest.approx(8 * GB) and row["peak_share"] == pytest.approx(8 / peak)
    assert solve(result, exclusive=True)["level"] is None  # events are those of all that is inside
    assert result.figures["peaks_known"] and result.figures["peaks_missing"] is None


def test_threads_that_work_at_the_same_time_share_the_machines_peak(tmp_path: Path) -> None:
    together, in_turn = a_builder(**events(1000, 1000)), a_builder(**events(1000, 1000))
    together.counted({0: 1000}, node=1, thread=101).timed(1, counted_ns=8_000, thread=101, **events(1000, 1000))
    in_turn.counted({0: 1000}, node=1, thread=101)
    in_turn.timed(1, counted_ns=8_000, thread=101, first_ns=20_000, last_ns=28_000, **events(1000, 1000))
    row = solve(result_of(together, tmp_path))
    assert row["peak_bytes_per_second"] == 30 * GB and row["peak_share"] == pytest.approx(16 / 30)
    row = solve(result_of(in_turn, tmp_path))
    assert row["peak_bytes_per_second"] == 20 * GB and row["peak_share"] == pytest.approx(8 / 20)


# ---- all memory of the program ------------------------------------------------------------------------------------------
def with_memory(pages: int, *, file_faults: int = 0, unseen: int = 0, **session: Any) -> CountBuilder:
    builder = a_builder()
    builder.mapping(3, 1000, 100_000)
    builder.mapping(3, 500_000, 1000, path="/lib", inode=7, protection=1)
    builder.mapping(3, 600_000, 10, path="/lib", inode=7, protection=5)
    builder.mapping(3, 700_000, 100_000, path="/memfd:memlens-count (deleted)", inode=8, shared=True)
    for page in range(pages):
        builder.fault(10 + page, 1000 + page)
    for page in range(file_faults):
        builder.fault(10 + page, 500_000 + 16 * page)
    builder.meta["collectors"]["faults"] = {"single": False}  # type: ignore[index]
    builder.meta["session"] = {"include_kernel": True, **session}
    builder.meta["rusage"] = {"minor_faults": pages + file_faults + unseen, "major_faults": 0}
    return builder


@pytest.mark.parametrize(
    ("pages", "file_faults", "level"),
    [
        (6, 0, "L1"),
        (7, 0, "L2"),
        (192, 0, "L2"),
        (193, 0, "L3"),
        (6144, 0, "L3"),
        (6145, 0, None),
        (16, 11, "L2"),
        (16, 12, "L3"),
    ],
)
def test_a_program_that_fits_into_a_cache_has_no_data_further_away(
    tmp_path: Path, pages: int, file_faults: int, level: str | None
) -> None:
    """Pages of 4 KiB, three quarters of a cache at most; a fault on a file maps 64 KiB."""
    row = solve(result_of(with_memory(pages, file_faults=file_faults), tmp_path))
    assert row["farthest_level"] == level
    if level:
        bound = human_bytes((pages * 4 + file_faults * 64) << 10)
        assert row["farthest_evidence"] == f"all memory of the program: at most {bound}"


def test_faults_that_are_not_all_there_are_no_evidence(tmp_path: Path) -> None:
    assert solve(result_of(with_memory(6), tmp_path))["farthest_level"] == "L1"
    for change in (
        {"ring_lost": 1},
        {"event_lost": 1},
        {"queue_dropped": 1},
        {"throttled": 1},
        {"include_kernel": False},
    ):
        assert solve(result_of(with_memory(6, **change), tmp_path))["farthest_level"] is None
    assert solve(result_of(with_memory(6, unseen=64), tmp_path))["farthest_level"] == "L1"
    assert (
        solve(result_of(with_memory(6, unseen=65), tmp_path))["farthest_level"] is None
    )  # populated, and nobody saw what
    data = with_memory(6).mapping(3, 800_000, 200, path="/data", inode=9, protection=1)  # 800 KiB, perhaps populated
    assert solve(result_of(data, tmp_path))["farthest_level"] == "L3"
    for reading, level in ((6 * 4096, "L1"), (6 * 4096 + 1, None)):
        assert solve(result_of(with_memory(6).reading(100, "rss_bytes", reading), tmp_path))["farthest_level"] == level
    for meta in ({"pid": 77}, {"state": "recording"}, {"rusage": {}}):
        builder = with_memory(6)
        builder.meta |= meta
        assert solve(result_of(builder, tmp_path))["farthest_level"] is None


def test_the_memory_of_the_program_is_no_evidence_of_a_regions_level(tmp_path: Path) -> None:
    """A kernel of 16 KiB in a program of 0.8 MiB: no level and no share of a peak, whatever the program fits into."""
    result = result_of(with_memory(200), tmp_path)
    row = solve(result)
    assert row["farthest_level"] == "L3" and "all memory of the program" in row["farthest_evidence"]
    assert row["level"] is None and row["peak_share"] is None and row["level_evidence"] is None
    assert "nothing shows which level" in result.figures["peaks_missing"]


# ---- what is said without ------------------------------------------------------------------------------------------------
def text_of(builder: CountBuilder, path: Path) -> tuple[str, str]:
    """(terminal, page)"""
    report = memlens.analyses.report(builder.open(path / f"c{len(list(path.iterdir()))}.memlens"))
    out = io.StringIO()
    terminal.show(report, file=out)
    return " ".join(out.getvalue().split()), html.render(report)


def test_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    unknown = a_builder(known=False, **events(1000, 1000))
    assert "memlens calibrate measures them" in result_of(unknown, tmp_path).figures["peaks_missing"]
    result = result_of(a_builder(), tmp_path)
    assert "LLC-load-misses+L1-dcache-load-misses" in result.figures["peaks_missing"]
    assert "nothing shows which level it used" in result.figures["peaks_missing"]
    for builder in (unknown, a_builder()):
        words, page = text_of(builder, tmp_path)
        said = "compared with"
        assert said in words and said in page and "Roofline" not in page and "of the peak" not in words


def test_damaged_peaks_are_as_good_as_none(tmp_path: Path) -> None:
    builder = a_builder(**events(1000, 1000))
    builder.meta["calibration"] = {"levels": [{"level": "DRAM"}]}
    assert not result_of(builder, tmp_path).figures["peaks_known"]


# ---- roofline ---------------------------------------------------------------------------------------------------------------
def test_roofline_in_closed_form(tmp_path: Path) -> None:
    """16 results for 64 bytes at 20 GB/s: 5 G results a second are attainable of 10; 8 GB/s are 2 G of them."""
    mixed = Function(
        "mixed", sites=[Site(LOAD, 1, bytes=64)], counters=[BLOCK], flags=MIX_FLAG,
        blocks=[Block(1, mix=(0, 16, 0, 0, 0, 0, 16))],
    )  # fmt: skip
    builder = a_builder(mixed, **events(1000, 1000))
    result = result_of(builder, tmp_path)
    (row,) = result.tables["roofline"].to_pylist()
    assert row["float_results_per_byte"] == pytest.approx(0.25) and row["limit"] == "memory" and row["level"] == "DRAM"
    assert row["attainable_results_per_second"] == pytest.approx(5 * GB)
    assert row["float_results_per_second"] == pytest.approx(2 * GB) and row["attainable_share"] == pytest.approx(0.4)
    assert row["arithmetic_share"] == pytest.approx(0.2)
    by_level = {row["level"]: row["reached_share"] for row in result.tables["roofline_ceilings"].to_pylist()}
    # From a cache the peak of arithmetic is attainable: 0.25 × 100 GB/s and more.
    assert by_level == pytest.approx({"L1": 0.2, "L2": 0.2, "L3": 0.2, "DRAM": 0.4})
    words, page = text_of(builder, tmp_path)
    assert "solve 0.25 2.00 G 20.0 % DRAM memory" in words and "solve DRAM 20 5.00 G 40.0 %" in words
    assert "Evidence of DRAM: LLC-load-misses" in words
    assert "<svg" in page[page.index("Roofline") :] and "DRAM" in page


def test_without_evidence_all_ceilings_are_drawn_and_no_level_is_named(tmp_path: Path) -> None:
    mixed = Function(
        "mixed", sites=[Site(LOAD, 1, bytes=64)], counters=[BLOCK], flags=MIX_FLAG,
        blocks=[Block(1, mix=(0, 16, 0, 0, 0, 0, 16))],
    )  # fmt: skip
    result = result_of(a_builder(mixed), tmp_path)
    (row,) = result.tables["roofline"].to_pylist()
    assert row["level"] is None and row["attainable_results_per_second"] is None and row["limit"] is None
    assert row["float_results_per_second"] == pytest.approx(2 * GB)
    assert [row["level"] for row in result.tables["roofline_ceilings"].to_pylist()] == ["L1", "L2", "L3", "DRAM"]
    words, page = text_of(a_builder(mixed), tmp_path)
    assert all(f"solve {level} " in words for level in PEAKS) and "limited by" not in words
    assert all(f">{level} " in page for level in PEAKS) and "of the peak" not in words


def test_without_arithmetic_there_is_no_roofline(tmp_path: Path) -> None:
    assert result_of(a_builder(**events(1000, 1000)), tmp_path).tables["roofline"].num_rows == 0
