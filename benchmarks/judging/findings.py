"""Findings: none on healthy programs that a person would not agree with, and each bad program found.

The bad programs are written here, not taken from workloads/: they show whether a finding knows its kind of program, or only ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .model import Missing, Row
from .programs import Program
from .running import RunError, checked, folder_for, missing_tool, record

AGREED: dict[tuple[str, str], str] = {
    # (program, finding): why a person agrees with it
    ("sort", "unused_allocation"): "true: its buffer is sized for a larger input than this file",
    ("xz", "unused_allocation"): "true: the dictionary of preset 6 is larger than this file",
    ("hpcc", "unused_allocation"): "true: its tables are sized before it reads how small the problem is",
}

LEAK = """\
#include <stdlib.h>
#include <string.h>
struct entry { struct entry *next; char text[1000]; };
static void *remember(int i) {
  struct entry *made = malloc(sizeof *made + (size_t)(i % 5) * 64);
  memset(made, i, sizeof *made);
  return made;
}
int main(void) {
  volatile char sum = 0;
  for (int i = 0; i < 120000; i++) {
    const char *text = remember(i);
    for (int k = 0; k < 4000; k++) sum += text[k % 900];
  }
  return 0;
}
"""
SERIAL = """\
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  const long n = 24L << 20;
  double *a = malloc(sizeof(double) * (size_t)n), sum = 0;
  for (long i = 0; i < n; i++) a[i] = 1.0;
  for (int k = 0; k < 60; k++) {
    #pragma omp parallel for reduction(+ : sum) num_threads(2)
    for (long i = 0; i < n; i++) sum += a[i];
  }
  printf("%g\\n", sum);
  free(a);
  return 0;
}
"""
STORM = """\
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
  for (int i = 0; i < 400; i++) {
    char *p = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long j = 0; j < 8 << 20; j += 4096) p[j] = 1;
    munmap(p, 8 << 20);
  }
  return 0;
}
"""
SHARED = """\
#include <pthread.h>
#include <stdio.h>
static struct { volatile long mine, yours; } both;
static void *add(void *where) { volatile long *p = where; for (int i = 0; i < 400000; i++) *p += 1; return 0; }
int main(void) {
  pthread_t other;
  pthread_create(&other, 0, add, (void *)&both.mine);
  add((void *)&both.yours);
  pthread_join(other, 0);
  printf("%ld\\n", both.mine + both.yours);
  return 0;
}
"""
STRIDE = """\
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  const int n = 1024;
  float *m = calloc((size_t)n * n, sizeof *m), sum = 0;
  for (int k = 0; k < 3; k++)
    for (int j = 0; j < n; j++)
      for (int i = 0; i < n; i++) sum += m[(size_t)i * n + j];
  printf("%g\\n", sum);
  return 0;
}
"""
BAD: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    # name, source, flags, options of record, findings of which one is expected
    ("leaks 120 MiB", LEAK, ("-fno-builtin",), (), ("leak",)),
    ("serial first touch", SERIAL, ("-fopenmp",), (), ("serial_first_touch",)),
    ("maps and unmaps", STORM, (), (), ("fault_storm",)),
    ("two counters in a line", SHARED, ("-pthread",), ("--emulate=full",), ("false_sharing",)),
    (
        "columns of a matrix",
        STRIDE,
        (),
        ("--emulate",),
        ("set_conflicts", "few_bytes_used", "sparse_lines", "line_use"),
    ),
)


def judge(memlens: list[str], programs: list[Program], root: Path, *, quick: bool) -> Iterator[Row | Missing]:
    for program in programs:
        if not program.healthy:
            continue
        why = program.missing()
        if why:
            yield Missing(program.name, "findings", why)
            continue
        with folder_for(program, root) as folder:
            recorded = record(memlens, program, folder)
        rejected = [f for f in recorded.findings if (program.name, f["name"]) not in AGREED]
        said = "; ".join(f"{f['name']}: {f['claim']}"[:160] for f in rejected)
        yield Row(
            program.name,
            "findings",
            "findings on a healthy program" + (f" ({said})" if said else ""),
            len(rejected),
            0,
            0,
            "a person",
            0.0,
        )
    why = missing_tool("gcc", "qemu-x86_64")
    for name, source, flags, options, expected in BAD[:3] if quick else BAD:
        if why:
            yield Missing(name, "findings", why)
            continue
        bad = Program(name.replace(" ", "-"), "", ("./bad",), healthy=False)
        with folder_for(bad, root) as folder:
            (folder / "bad.c").write_text(source)
            try:
                checked(["gcc", "-O1", "-g", *flags, "bad.c", "-o", "bad"], folder)
                recorded = record(memlens, bad, folder, *options)
            except RunError as error:
                yield Missing(name, "findings", str(error))
                continue
        names = [finding["name"] for finding in recorded.findings]
        found = float(any(one in names for one in expected))
        yield Row(
            name,
            "findings",
            f"{' or '.join(expected)} is found (found: {', '.join(names) or 'none'})",
            found,
            1,
            1,
            "a person",
            0.0,
        )
