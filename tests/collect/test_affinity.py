"""Affinity that a thread gets from its attributes, or from another thread: recorded for the thread that gets it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import memlens

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
static void *work(void *name) {
  pthread_setname_np(pthread_self(), name);
  char *p = malloc(100000);
  p[0] = 1;
  usleep(100000);
  free(p);
  return p;
}
int main(int argc, char **argv) {
  (void)argc;
  cpu_set_t cpus;
  pthread_attr_t attributes;
  pthread_t made, moved, plain;
  CPU_ZERO(&cpus);
  CPU_SET(atoi(argv[1]), &cpus);
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
  pthread_create(&made, &attributes, work, "made");
  pthread_create(&moved, NULL, work, "moved");
  pthread_create(&plain, NULL, work, "plain");
  CPU_ZERO(&cpus);
  CPU_SET(atoi(argv[2]), &cpus);
  if (pthread_setaffinity_np(moved, sizeof cpus, &cpus)) return 1;
  pthread_join(made, NULL);
  pthread_join(moved, NULL);
  pthread_join(plain, NULL);
  return 0;
}
"""


def test_affinity_of_other_threads_is_theirs(tmp_path: Path, record: Callable[..., memlens.Capture]) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    capture = record(tmp_path / "p", str(cpus[1]), str(cpus[0]))
    names = {row["thread"]: row["name"] for row in capture.table("threads").to_pylist()}
    found = {
        names[row["thread"]]: row["members"]
        for row in capture.table("pinning").to_pylist()
        if row["operation"] == "sched_setaffinity"
    }
    assert found == {"made": [cpus[1]], "moved": [cpus[0]]}
