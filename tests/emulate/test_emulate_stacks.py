"""Stacks under emulation have names: that of the main thread too, also in static programs and after a fork."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulate_tools import build, emulate, needs_emulation

from memlens.analyses import run

WORK = """
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) long work(int seed) {
  volatile long on_stack[4096];
  long sum = 0;
  for (int i = 0; i < 4096; i++) on_stack[i] = i + seed;
  for (int i = 0; i < 4096; i++) sum += on_stack[i];
  return sum;
}
static void *thread(void *unused) { (void)unused; return (void *)work(3); }
int main(void) {
  pthread_t other;
  void *result;
  long sum = work(1);
  pthread_create(&other, 0, thread, 0);
  pthread_join(other, &result);
  const int child = fork();
  if (child == 0) _exit(work(2) == 0);
  int status;
  waitpid(child, &status, 0);
  return sum == (long)result || status;
}
"""


@needs_emulation
@pytest.mark.parametrize("flags", [(), ("-static",)], ids=["dynamic", "static"])
def test_accesses_to_stacks_of_all_threads_have_an_object(flags: tuple[str, ...], tmp_path: Path) -> None:
    program = build(tmp_path, "stacks", WORK, *flags)
    capture, _ = emulate(tmp_path / "run.memlens", program, mode="full")
    stacks = {}
    unknown = 0
    for row in run("accesses", capture).tables["by_object_and_function"].to_pylist():
        if row["function"] == "work":
            if row["object"].startswith("stack of thread"):
                stacks[row["object"]] = row["accesses"]
            else:
                unknown += row["accesses"]
    assert len(stacks) == 3, stacks  # the main thread, the other one, the child
    assert all(accesses >= 8192 for accesses in stacks.values())
    assert unknown <= 0.001 * sum(stacks.values())
