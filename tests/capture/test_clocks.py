"""Clocks are correlated by the recorded pairs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import run_memlens

import memlens
from memlens.capture.store.layouts import enum_value
from memlens.errors import NoDataError

TSC = enum_value("clock", "tsc")


def pair(builder: CaptureBuilder, monotonic_ns: int, ticks: int, *, per_second: int = 0) -> None:
    builder.add(
        "clock_pair",
        0,
        monotonic_ns=monotonic_ns,
        ticks=ticks,
        uncertainty_ns=30,
        ticks_per_second=per_second,
        clock=TSC,
    )


def test_two_pairs_give_offset_and_rate(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    pair(builder, 1_000_000, 5_000_000)
    pair(builder, 2_000_000, 8_000_000)
    clock = builder.open(tmp_path / "c").clock("tsc")
    assert clock.to_monotonic_ns(6_500_000) == 1_500_000
    assert clock.from_monotonic_ns(1_500_000) == 6_500_000
    assert clock.uncertainty_ns == 30


def test_one_pair_needs_a_nominal_frequency(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    pair(builder, 1_000_000, 5_000_000)
    with pytest.raises(NoDataError, match="frequency"):
        builder.open(tmp_path / "a").clock("tsc")
    builder = CaptureBuilder()
    pair(builder, 1_000_000, 5_000_000, per_second=2_000_000_000)
    assert builder.open(tmp_path / "b").clock("tsc").to_monotonic_ns(5_000_200) == 1_000_100


def test_an_unknown_clock_names_the_known_ones(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    pair(builder, 1, 1, per_second=1)
    with pytest.raises(NoDataError) as error:
        builder.open(tmp_path / "c").clock("sundial")
    assert "tsc" in str(error.value.hint)


def test_a_real_recording_correlates_realtime(tmp_path: Path) -> None:
    run_memlens("record", "-q", "-o", tmp_path / "c.memlens", "--", "sleep", "0.3")
    capture = memlens.open(tmp_path / "c.memlens")
    now_mono, now_real = time.monotonic_ns(), time.time_ns()
    clock = capture.clock("realtime")
    assert abs(clock.to_monotonic_ns(now_real) - now_mono) < 50_000_000
    for name in ("boottime", "monotonic_raw", "tsc"):
        assert capture.clock(name).uncertainty_ns < 1_000_000
