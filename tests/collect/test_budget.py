"""The budget of recording faults: levels, estimates and their errors, against the same program with every fault recorded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import needs_faults, run_memlens, workload_path

import memlens
from memlens.analyses.faults import faults as faults_of
from memlens.analyses.first_touch import first_touch
from memlens.analyses.objects import objects as objects_of

ALTERNATING = r"""
#define _GNU_SOURCE 1
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
/* Every third page is touched by `third`: a sample of one fault in 3 k would see one function alone. */
__attribute__((noinline)) void others(volatile char *page) { *page = 1; }
__attribute__((noinline)) void third(volatile char *page) { *page = 2; }
int main(int argc, char **argv) {
  size_t pages = (size_t)atol(argv[1]);
  char *area = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(area, pages * 4096, MADV_NOHUGEPAGE);
  for (size_t i = 0; i < pages; i++) (i % 3 ? others : third)(area + i * 4096);
  printf("%d\n", area[0]);
  return argc - 2;
}
"""


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("alternating")
    (folder / "a.c").write_text(ALTERNATING)
    subprocess.run(["gcc", "-O1", "-g", "-o", folder / "a", folder / "a.c"], check=True)
    return str(folder / "a")


def sampled(output: Path, *command: str, budget: str = "0.1%") -> memlens.Capture:
    """Records with a budget that a program of nothing but faults is far beyond."""
    done = run_memlens("record", "-q", "--force", "--budget", budget, "-o", output, "--", *command)
    assert done.returncode == 0, done.stderr
    return memlens.open(output)


@needs_faults
def test_estimates_agree_with_closed_forms_within_their_errors(alternating: str, tmp_path: Path) -> None:
    """200,000 pages, a third by one function: bytes by function, totals against the kernel's count, each within 4 errors."""
    pages = 200_000
    capture = sampled(tmp_path / "c.memlens", alternating, str(pages))
    levels = capture.table("fault_levels").to_pylist()
    assert [row["level"] for row in levels if row["level"] == "sampled"], levels
    result = first_touch(capture)
    rows = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    for function, truth in (("third", (pages + 2) // 3), ("others", pages - (pages + 2) // 3)):
        row = rows[function]
        assert row["faults_error"] > 0
        assert abs(row["faults"] - truth) < 4 * row["faults_error"], (function, row, truth)
        assert abs(row["bytes"] - 4096 * truth) < 4 * row["bytes_error"]
    figures = faults_of(capture).figures
    assert figures["faults_recorded"] < 0.5 * figures["faults"]
    # The weights are scaled to the kernel's count.
    assert abs(figures["faults"] + figures["own_faults"] - figures["kernel_faults"]) < 0.01 * pages
    assert any("--exact" in note for note in result.quality.notes)
    assert not result.quality.exact


@needs_faults
def test_intervals_hold_as_often_as_they_claim(alternating: str, tmp_path: Path) -> None:
    """Two standard errors on twelve runs: by chance at most three miss (the probability of more is below 0.3 %)."""
    missed, pages = 0, 60_000
    for _ in range(12):
        capture = sampled(tmp_path / "c.memlens", alternating, str(pages))
        row = {r["function"]: r for r in first_touch(capture).tables["by_function"].to_pylist()}["third"]
        missed += abs(row["faults"] - pages / 3) > 1.96 * max(row["faults_error"], 1)
    assert missed <= 3


@needs_faults
def test_what_was_never_touched_is_not_known_while_faults_are_sampled(alternating: str, tmp_path: Path) -> None:
    source = tmp_path / "n.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\nint main(void) {\n  char *used = malloc(400 << 20), *unused = malloc(64 << 20);\n"
        "  for (size_t i = 0; i < (400u << 20); i += 4096) used[i] = 1;\n  return used[5] + (unused == 0);\n}\n"
    )
    subprocess.run(["gcc", "-O0", "-g", "-o", tmp_path / "n", source], check=True)
    rows = [
        row
        for row in sampled(tmp_path / "s.memlens", str(tmp_path / "n")).table("objects").to_pylist()
        if row["kind"] == "heap" and row["bytes"] >= 64 << 20
    ]
    assert [row["never_touched_bytes"] for row in rows] == [None, None]
    used = max(rows, key=lambda row: row["bytes"])
    assert abs(used["touched_bytes"] - (400 << 20)) < 0.1 * (400 << 20)
    done = run_memlens("record", "-q", "--exact", "-o", tmp_path / "e.memlens", "--", tmp_path / "n")
    assert done.returncode == 0
    exact = [
        row
        for row in memlens.open(tmp_path / "e.memlens").table("objects").to_pylist()
        if row["kind"] == "heap" and row["bytes"] >= 64 << 20
    ]
    assert sorted((row["never_touched_bytes"] or 0) >> 20 for row in exact) == [0, 63]


@needs_faults
def test_a_program_within_the_budget_is_recorded_exactly(alternating: str, tmp_path: Path) -> None:
    """1,000 faults cost less than what a program may cost at its start."""
    capture = sampled(tmp_path / "c.memlens", alternating, "1000", budget="3%")
    assert {row["level"] for row in capture.table("fault_levels").to_pylist()} == {"both"}
    assert set(capture.table("faults").column("weight").to_pylist()) == {1.0}
    third = {r["function"]: r for r in first_touch(capture).tables["by_function"].to_pylist()}["third"]
    assert (third["faults"], third["faults_error"]) == (334, 0)


@needs_faults
@pytest.mark.parametrize(
    ("finding", "command"),
    [
        ("fault_storm", ("fault_storm", "--mib", "64", "--iterations", "30")),
        ("serial_first_touch", ("first_touch", "--mode", "serial", "--mib", "256")),
    ],
)
def test_findings_of_faults_are_found_with_the_default_budget(
    finding: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    program, *arguments = command
    capture = sampled(tmp_path / "c.memlens", str(workload_path(program)), *arguments, budget="3%")
    assert capture.meta["session"]["sampled_faults"] > 0
    assert finding in {found.name for found in memlens.analyses.report(capture).findings}


def test_weights_are_the_kernels_count_over_the_records(tmp_path: Path) -> None:
    """Hand-built: 10 records of one fault in 31 for which the kernel counted 330; after the last stretch, the period counts."""
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p").fault(10, 1)
    for number in range(10):
        builder.sampled_fault(100 + number, 200 + number, period=31)
    builder.fault_level(50, 150, counted=330, recorded=10, level="sampled", period=31)
    builder.sampled_fault(160, 300, period=1).sampled_fault(170, 301, period=0).sampled_fault(
        40_000_000, 302, period=31
    )
    capture = memlens.open(builder.write(tmp_path / "c.memlens"))
    assert capture.table("faults").column("weight").to_pylist() == [1.0, *[33.0] * 10, 1.0, 0.0, 31.0]
    result = faults_of(capture)
    assert result.figures["faults"] == 1 + 330 + 1 + 31
    error = next(row for row in result.tables["by_class"].to_pylist() if row["class"] == "first")["faults_error"]
    assert error == pytest.approx((10 * 33 * 32 + 31 * 30) ** 0.5)


@pytest.mark.parametrize("text", ["0%", "101%", "x", "-3%", "nan"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    done = run_memlens("record", f"--budget={text}", "--", "true")
    assert done.returncode == 64
    assert "expected a percentage" in done.stderr


LARGE_BLOCKS = r"""
#include <stdlib.h>
__attribute__((noinline)) void *one(size_t bytes) { return malloc(bytes); }
__attribute__((noinline)) void *two(size_t bytes) { return malloc(bytes); }
int main(int argc, char **argv) {
  long n = atol(argv[1]);
  for (long i = 0; i < n; i++) {
    char *a = one(70000 + (i % 7) * 10000), *b = i % 4 ? 0 : two(300000);
    if (a) a[i % 60000] = 1;
    free(a);
    free(b);
  }
  return argc - 2;
}
"""


def test_large_objects_beyond_the_budget_are_sampled_without_bias(tmp_path: Path) -> None:
    """A loop of malloc and free of blocks above --large-bytes: allocations and bytes by function within 4 standard errors."""
    (tmp_path / "l.c").write_text(LARGE_BLOCKS)
    subprocess.run(["gcc", "-O1", "-g", "-fno-builtin", "-o", tmp_path / "l", tmp_path / "l.c"], check=True)
    rounds = 400_000
    capture = sampled(tmp_path / "c.memlens", str(tmp_path / "l"), str(rounds), budget="3%")
    assert any("large objects were sampled too" in note for note in objects_of(capture).quality.notes)
    recorded = capture.kinds()["allocation"]
    assert recorded < rounds, "most objects have no record"
    rows = {row["function"]: row for row in objects_of(capture).tables["by_site"].to_pylist()}
    for function, count, n_bytes in (
        ("one", rounds, sum(70000 + (i % 7) * 10000 for i in range(rounds))),
        ("two", rounds // 4, rounds // 4 * 300_000),
    ):
        row = rows[function]
        assert abs(row["allocations"] - count) < 4 * row["allocations_error"], (function, row)
        assert abs(row["allocated_bytes"] - n_bytes) < 4 * row["allocated_bytes_error"], (function, row)
    done = run_memlens("record", "-q", "--exact", "-o", tmp_path / "e.memlens", "--", tmp_path / "l", "20000")
    assert done.returncode == 0, done.stderr
    rows = {
        row["function"]: row for row in objects_of(memlens.open(tmp_path / "e.memlens")).tables["by_site"].to_pylist()
    }
    assert (rows["one"]["allocations"], rows["two"]["allocations"]) == (20000, 5000)
    assert rows["one"]["allocations_error"] == 0
