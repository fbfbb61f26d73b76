"""OpenMP: what worker threads do counts for the region of the thread that opened the parallel part, to the last access."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from count_arena import UNATTRIBUTED, Arena, Process
from count_runs import VERSIONS, compile_with, counted_functions, needs, needs_clang
from count_sites import LOAD, rows

pytestmark = needs_clang
SOURCES = Path(__file__).resolve().parent / "hard"
VECTOR, VOLATILE = 4, 16
N = 1 << 12


def has_openmp(major: int) -> bool:
    return Path(f"/usr/lib/llvm-{major}/lib/libomp.so").exists()


each_openmp = pytest.mark.parametrize(
    "clang",
    [
        pytest.param(
            f"clang-{major}",
            marks=pytest.mark.skipif(
                not has_openmp(major),
                reason=f"no OpenMP runtime of LLVM {major}: sudo apt-get install libomp-{major}-dev",
            ),
        )
        for major in VERSIONS
    ],
)


def build(out: Path, clang: str, *options: str, source: Path = SOURCES / "openmp.c") -> Path:
    done = compile_with("--memlens-verify", "-O2", "-fopenmp", "-w", *options, source, "-o", out, clang=clang)
    assert done.returncode == 0, done.stderr
    return out


def run(program: Path, threads: int, *arguments: str, **settings: int) -> tuple[Process, str]:
    arena = Arena(**settings)
    try:
        done = arena.run(program, *arguments, environment={"OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"})
        return arena.process(), done.stdout
    finally:
        arena.close()


def volatile_loads(process: Process) -> Counter[str]:
    """Elements of 8 bytes. clang makes vectors even of volatile accesses where `omp simd` or a schedule allows it, then not volatile."""
    found: Counter[str] = Counter()
    for row in rows(process):
        if row.site.kind == LOAD and row.site.flags & (VOLATILE | VECTOR):
            found[row.region] += row.moved // 8
    return found


def expected(rounds: int) -> dict[str, int]:
    once = {
        "": 33 + 11 + 64,
        "/loops": 4 * N,
        "/sections": 100 + 200 + 300 + 50 + 25,
        "/tasks": 2 * N,
        "/nested": 4,
        "/nested/inner": 4 * 256,
        "/own": 64,
    }
    return {region: count * rounds for region, count in once.items()}


@each_openmp
@pytest.mark.parametrize("option", ["", "--memlens-naive", "--memlens-versions"])
def test_totals_of_each_region_are_exact(tmp_path: Path, clang: str, option: str) -> None:
    program = build(tmp_path / "program", clang, *([option] if option else []))
    plain = build(tmp_path / "plain", clang, "--memlens=none")
    want = subprocess.run([plain, "3"], capture_output=True, text=True, check=True, timeout=60).stdout
    for threads in (1, 2, 4):
        process, text = run(program, threads, "3")
        assert text == want
        assert dict(volatile_loads(process)) == expected(3), threads
        assert process.content.switches_ignored == 0
        # nested is begun once a round by one thread; inner by whichever thread had the iteration.
        assert process.sum("/nested", "counted") == 3 and process.sum("/nested/inner", "counted") == 12
        assert process.sum("/own", "counted") == 3 * 64
        if threads > 1:
            working = {
                p.thread for p in process.places if p.path == "/loops" and any(c.any() for c in p.counters.values())
            }
            assert len(working) == threads
            assert process.sum("/loops", "joined") == 3 * 4 * (threads - 1)
        assert process.sum("/loops", "joined_open_ticks") == 0
        assert not any(place.flags & UNATTRIBUTED for place in process.places)


@each_openmp
def test_untouched_executions_run_untouched_parts(tmp_path: Path, clang: str) -> None:
    """Of ten executions of each region two are counted: so is a fifth of the accesses, whichever thread did them."""
    program = build(tmp_path / "program", clang, "--memlens-versions")
    plain = build(tmp_path / "plain", clang, "--memlens=none")
    want = subprocess.run([plain, "10"], capture_output=True, text=True, check=True, timeout=60).stdout
    for threads in (1, 4):
        process, text = run(program, threads, "10", sampling=1, sample_first=0, sample_every=5)
        assert text == want
        found = volatile_loads(process)
        for region in ("/loops", "/sections", "/tasks"):
            assert (process.sum(region, "counted"), process.sum(region, "untouched")) == (2, 8)
            assert found[region] == 2 * expected(1)[region], (region, threads)
        assert found[""] == 10 * expected(1)[""]
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    untouched = {name for line in symbols.splitlines() if (name := line.split()[-1]).endswith(".untouched")}
    assert any(".omp_outlined" in name for name in untouched) and any(".omp_task_entry" in name for name in untouched)


PART = """
#include <stddef.h>
extern volatile long shared_data[];
extern long counted_read(long i);
long gomp_part(long n) {
  long s = 0;
#pragma omp parallel for reduction(+ : s) num_threads(3) schedule(static)
  for (long i = 0; i < n; i++) s += counted_read(i);
  return s;
}
"""
WHOLE = """
#include <stdio.h>
volatile long shared_data[64];
__attribute__((noinline)) long counted_read(long i) { return shared_data[i & 63]; }
long gomp_part(long n);
int main(void) {
  for (int i = 0; i < 64; i++) shared_data[i] = i;
  long s = 0;
#pragma memlens begin(handed)
  s += gomp_part(300);
#pragma memlens end
  printf("%ld\\n", s);
  return 0;
}
"""


def test_threads_of_libgomp_are_told_as_unattributed(tmp_path: Path) -> None:
    """An object that gcc compiled: its library does not tell what its threads work for."""
    needs("gcc", "gcc")
    (tmp_path / "part.c").write_text(PART)
    (tmp_path / "whole.c").write_text(WHOLE)
    done = subprocess.run(
        ["gcc", "-O2", "-fopenmp", "-c", tmp_path / "part.c", "-o", tmp_path / "part.o"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("gcc has no OpenMP: sudo apt-get install libgomp1")
    done = compile_with("-O2", tmp_path / "whole.c", tmp_path / "part.o", "-o", tmp_path / "whole", "-lgomp")
    if "lgomp" in done.stderr:
        found = subprocess.run(["gcc", "-print-file-name=libgomp.so"], capture_output=True, text=True).stdout.strip()
        done = compile_with("-O2", tmp_path / "whole.c", tmp_path / "part.o", "-o", tmp_path / "whole", found)
    assert done.returncode == 0, done.stderr
    process, text = run(tmp_path / "whole", 3)
    assert text == f"{sum(i & 63 for i in range(300))}\n"
    totals: Counter[bool] = Counter()
    for place in process.places:
        counters = place.counters["whole"]
        totals[bool(place.flags & UNATTRIBUTED)] += int(counters.sum()) if place.path == "/handed" or place.flags else 0
    assert {p.thread for p in process.places if p.flags & UNATTRIBUTED} and totals[True] >= 200
    assert dict(volatile_loads(process)) == {"/handed": 100, "": 200}


@each_openmp
@pytest.mark.parametrize("flags", [["-flto"], ["-static"], ["-O0"]], ids=" ".join)
def test_other_builds(tmp_path: Path, clang: str, flags: list[str]) -> None:
    if flags == ["-flto"]:
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    if flags == ["-static"] and not Path(f"/usr/lib/llvm-{clang.rpartition('-')[2]}/lib/libomp.a").exists():
        pytest.skip("no static OpenMP runtime: LLVM's packages have a shared one only")
    program = build(tmp_path / "program", clang, *flags)
    assert counted_functions(program) > 5
    process, _ = run(program, 3)
    found = volatile_loads(process)
    assert dict(found) == expected(1) or flags == ["-static"]


def test_environment_is_not_ours() -> None:
    assert "OMP_TOOL_LIBRARIES" not in os.environ, "another tool would take the place of ours"
