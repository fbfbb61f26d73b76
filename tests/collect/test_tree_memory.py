"""Memory of a tree over time: shared pages once, high-water marks, hugetlb, growth and peak of phases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import ROOT

import memlens
from memlens import analyses

MIB = 1 << 20
S = 10**9
Record = Callable[..., memlens.Capture]

PHASES = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "memlens.h"
static void touch(char *at, size_t bytes) { for (size_t i = 0; i < bytes; i += 4096) at[i] = 1; }
int main(void) {
  memlens_phase("small");
  usleep(50000);
  memlens_phase("comes and goes");
  char *large = malloc(64 << 20);
  touch(large, 64 << 20);
  free(large);  /* too short for a reading: the high-water mark knows it */
  memlens_phase("stays");
  char *kept = malloc(32 << 20);
  touch(kept, 32 << 20);
  usleep(30000);
  memlens_phase("end");
  usleep(50000);
  printf("%d\\n", kept[4096]);
}
"""

SHARED = """
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  const size_t bytes = 48 << 20;
  volatile char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (size_t i = 0; i < bytes; i += 4096) at[i] = 1;
  for (int k = 0; k < 3; k++)
    if (fork() == 0) {
      long sum = 0;
      for (size_t i = 0; i < bytes; i += 4096) sum += at[i];
      sleep(1);
      _exit(sum < 0);
    }
  while (wait(0) > 0) {}
  return 0;
}
"""


def build(folder: Path, text: str) -> Path:
    (folder / "program.c").write_text(text)
    command = ["cc", "-O1", "-g", "-fno-builtin", f"-I{ROOT / 'native' / 'include'}", "-o", folder / "program"]
    subprocess.run([*command, folder / "program.c"], check=True)
    return folder / "program"


def two(builder: CaptureBuilder) -> CaptureBuilder:
    return builder.event(1, "fork").event(2, "exec", name="p").event(3, "fork", process=2, parent=1, thread=102)


def test_shared_pages_count_once_in_the_trees_peak(tmp_path: Path) -> None:
    builder = two(CaptureBuilder())
    for second in (1, 2):
        for process in (1, 2):
            builder.reading(second * S // 10, "rss_bytes", 100 * MIB, process=process)
            builder.reading(second * S // 10, "shared_bytes", (80 if process == 1 else 70) * MIB, process=process)
    figures = analyses.run("capacity", builder.open(tmp_path / "c")).figures
    assert figures["peak_rss_bytes"] == (20 + 30 + 80) * MIB
    assert figures["peak_rss_sum_bytes"] == 200 * MIB


def test_one_process_keeps_its_whole_rss(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    builder.reading(S // 10, "rss_bytes", 100 * MIB).reading(S // 10, "shared_bytes", 80 * MIB)
    assert analyses.run("capacity", builder.open(tmp_path / "c")).figures["peak_rss_bytes"] == 100 * MIB


def test_a_process_has_the_kernels_high_water_mark(tmp_path: Path) -> None:
    builder = two(CaptureBuilder()).reading(S // 10, "rss_bytes", 10 * MIB, process=2)
    builder.reading(S // 5, "peak_rss_bytes", 50 * MIB, process=2).reading(S // 5, "hugetlb_bytes", 6 * MIB, process=2)
    result = analyses.run("capacity", builder.open(tmp_path / "c"))
    assert result.tables["by_process"].to_pylist()[0]["peak_rss_bytes"] == 50 * MIB
    assert result.figures["peak_hugetlb_bytes"] == 6 * MIB


def test_growth_of_a_region_is_net_and_its_peak_is_its_own(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "fork").event(2, "exec", name="p")
    for time, mib in ((1, 10), (3, 200), (4, 10), (6, 50), (9, 50)):
        builder.reading(time * S // 10, "rss_bytes", mib * MIB)
    builder.region(2 * S // 10, "phase", "comes and goes").region(5 * S // 10, "phase", "stays").region(
        8 * S // 10, "phase", "end"
    )
    rows = {
        row["name"]: (row["peak_rss_bytes"], row["rss_growth_bytes"])
        for row in analyses.run("regions", builder.open(tmp_path / "c")).tables["by_name"].to_pylist()
    }
    assert rows["comes and goes"] == (200 * MIB, 0)
    assert rows["stays"] == (50 * MIB, 40 * MIB)


def test_phases_of_a_real_program_know_their_memory_at_both_ends(record: Record, tmp_path: Path) -> None:
    capture = record(build(tmp_path, PHASES))
    rows = {row["name"]: row for row in analyses.run("regions", capture).tables["by_name"].to_pylist()}
    assert 64 * MIB <= rows["comes and goes"]["peak_rss_bytes"] <= 72 * MIB
    assert abs(rows["comes and goes"]["rss_growth_bytes"]) <= 2 * MIB
    assert abs(rows["stays"]["rss_growth_bytes"] - 32 * MIB) <= 2 * MIB


@pytest.mark.parametrize("processes", [4])
def test_a_shared_mapping_of_several_processes_counts_once(record: Record, tmp_path: Path, processes: int) -> None:
    figures = analyses.run("capacity", record(build(tmp_path, SHARED))).figures
    assert 48 * MIB <= figures["peak_rss_bytes"] <= 60 * MIB
    assert figures["peak_rss_sum_bytes"] > 0.8 * processes * 48 * MIB
