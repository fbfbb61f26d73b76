"""Sampled heap figures: exact in short programs, estimates with errors that hold, peaks without bias, nothing that a sample
cannot show."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memlens
from memlens import _core, analyses
from memlens.capture.store.layouts import Packer, enum_value

Record = Callable[..., memlens.Capture]
ALLOCATION = Packer("allocation")
MALLOC, FREE = (enum_value("allocation_operation", name) for name in ("malloc", "free"))

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static __attribute__((noinline)) char *leaked(int i) { char *at = malloc(1500); memset(at, i, 1500); return at; }
static __attribute__((noinline)) char *kept(int i) { char *at = malloc(64 + i % 64); at[0] = 1; return at; }
int main(int count, char **arguments) {
  const int objects = atoi(arguments[1]), short_lived = atoi(arguments[2]);
  long sum = 0;
  for (int i = 0; i < objects; i++) sum += leaked(i)[7];
  static char *window[100];
  for (int i = 0; i < short_lived; i++) {  /* at most 100 alive: each is freed 100 allocations later */
    free(window[i % 100]);
    window[i % 100] = kept(i);
  }
  for (int i = 0; i < 100; i++) free(window[i]);
  printf("%ld\\n", sum);
  return count < 3;
}
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sampled_heap")
    (folder / "heap.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O1", "-g", "-fno-builtin", "-o", folder / "heap", folder / "heap.c"], check=True)
    return str(folder / "heap")


def site(capture: memlens.Capture, function: str) -> dict[str, Any]:
    rows = analyses.run("objects", capture).tables["by_site"].to_pylist()
    return next(row for row in rows if row["function"] == function)


def test_a_short_program_is_exact_without_options(record: Record, program: str) -> None:
    capture = record(program, "300", "2000")
    row = site(capture, "leaked")
    assert (row["allocations"], row["live_bytes"], row["live_bytes_error"]) == (300, 300 * 1500, 0)
    assert site(capture, "kept")["allocations"] == 2000
    result = analyses.run("objects", capture)
    assert result.figures["sample_bytes"] == 0 and result.figures["allocations_error"] == 0
    assert result.figures["temporary_allocations"] == 1  # the last one of `kept`, at most one printf buffer


def test_a_long_program_has_errors_that_hold(record: Record, program: str) -> None:
    """The truth is within 4 standard errors, which are a few percent."""
    capture = record(program, "60000", "300000")
    for function, allocations, sizes in (("leaked", 60000, 60000 * 1500), ("kept", 300000, None)):
        row = site(capture, function)
        assert 0 < row["allocations_error"] < 0.1 * allocations
        assert abs(row["allocations"] - allocations) <= 4 * row["allocations_error"]
        if sizes is not None:
            assert abs(row["allocated_bytes"] - sizes) <= 4 * row["allocated_bytes_error"]
            assert abs(row["live_bytes"] - sizes) <= 4 * row["live_bytes_error"]
        assert row["temporary"] is None
    figures = analyses.run("objects", capture).figures
    assert figures["temporary_allocations"] is None
    assert abs(figures["peak_heap_bytes"] - 60000 * 1500) <= 4 * figures["peak_heap_bytes_error"] + 1e5
    assert abs(figures["allocations"] - 360000) <= 4 * figures["allocations_error"] + 100


# ---- many seeds, through the engine ----------------------------------------------------------------


def engine(events: list[tuple[int, str, int, int, int]], rate: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draws a sample as the library does and gives the totals of the site and of the process."""
    draw = random.Random(seed)
    picked: set[int] = set()
    payload = []
    for time_ns, what, address, size, stack in events:
        if what == "free":
            if address in picked:
                picked.remove(address)
                payload.append(ALLOCATION.pack(time_ns=time_ns, operation=FREE, address=address))
            continue
        chance = -math.expm1(-size / rate)
        if draw.random() < chance:
            picked.add(address)
            weight = round(size / chance)
            payload.append(ALLOCATION.pack(time_ns=time_ns, operation=MALLOC, address=address, bytes=size, stack=stack,
                                           weight_bytes=weight))  # fmt: skip
    table = _core.ObjectTable(page_bytes=4096)
    table.add_allocations(1, b"".join(payload))
    table.run()
    return table.by_stack(), table.peaks()


def test_intervals_of_two_standard_errors_hold_as_often_as_they_claim() -> None:
    """Sites of 1 to 100 expected samples: 95 % nominal, 90 to 99.9 % required of those that the report shows."""
    rate = 4096
    for expected in (1, 3, 10, 100):
        objects = expected * rate // 64
        events = [(i + 1, "malloc", 0x1000 + 64 * i, 64, 1) for i in range(objects)]
        held = shown = 0
        for seed in range(300 if expected < 100 else 60):
            sites, _ = engine(events, rate, seed)
            if len(sites["stack"]) == 0:
                continue
            shown += 1
            both = (("allocations", objects), ("allocated_bytes", 64 * objects), ("live_bytes", 64 * objects))
            held += all(
                abs(float(sites[name][0]) - truth) <= 2 * float(sites[f"{name}_error"][0]) for name, truth in both
            )
        assert held / shown >= 0.9, (expected, held, shown)


def test_the_peak_of_a_sampled_heap_is_not_its_luckiest_moment() -> None:
    """1,000 objects alive for 40,000 allocations: the plain maximum of the estimates is far above the truth."""
    rate, alive, count, size = 8192, 1000, 40_000, 64
    events: list[tuple[int, str, int, int, int]] = []
    for i in range(count):
        if i >= alive:
            events.append((2 * i, "free", 0x10000 + size * (i - alive), 0, 0))
        events.append((2 * i + 1, "malloc", 0x10000 + size * i, size, 1))
    truth = alive * size
    estimates, errors = [], []
    for seed in range(30):
        _, peaks = engine(events, rate, seed)
        estimates.append(float(peaks["heap_peak_bytes"][0]))
        errors.append(float(peaks["heap_peak_error"][0]))
    # The spread of one estimate is 35 %; of the mean of 30, 7 %.
    assert abs(np.mean(estimates) / truth - 1) < 0.2, np.mean(estimates) / truth
    covered = np.mean([abs(e - truth) <= 2 * s for e, s in zip(estimates, errors, strict=True)])
    assert covered >= 0.85


def test_a_finding_does_not_rest_on_few_samples(tmp_path: Path) -> None:
    from builders import CaptureBuilder

    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    for i in range(3):  # each stands for 60,000 objects: 180,000 in all, or 8
        builder.allocation(1000 * i + 10, "malloc", 0x1000, 16, weight_bytes=16 * 60_000)
        builder.allocation(1000 * i + 20, "free", 0x1000)
    builder.add("runtime_status", 1, time_ns=9000, sample_bytes=512 << 10, large_bytes=64 << 10, flags=16 | 32)
    report = memlens.analyses.report(builder.open(tmp_path / "c"))
    assert "allocation_churn" not in [finding.name for finding in report.findings]
