"""Emulated accesses beside lackey; modelled misses beside cachegrind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .model import Missing, Row
from .programs import Program
from .running import RunError, cachegrind, checked, folder_for, lackey, missing_tool, record

D1, LAST = (32 << 10, 8), (1 << 20, 16)
"""Bytes and ways of both levels: small, so that these programs miss in them."""
STRING_SHARE = 0.1
"""Of all accesses, elements of repeated string instructions at most."""
MISS_PROGRAM = """\
#include <stdio.h>
#include <stdlib.h>
/* A matrix by rows and by columns, and a random walk: hits and misses of every level. */
static double matrix[384][384];
static unsigned next_of[1 << 16];
int main(void) {
  unsigned at = 1;
  double sum = 0;
  for (int i = 0; i < 384; i++) for (int j = 0; j < 384; j++) matrix[i][j] = i ^ j;
  for (int j = 0; j < 384; j++) for (int i = 0; i < 384; i++) sum += matrix[i][j];
  for (unsigned i = 0; i < 1 << 16; i++) next_of[i] = (i * 40503u + 12345u) & 0xffff;
  for (int i = 0; i < 300000; i++) at = next_of[at];
  printf("%d %u\\n", sum > 0, at);
  return 0;
}
"""


def judge(memlens: list[str], programs: list[Program], root: Path) -> Iterator[Row | Missing]:
    """Loads, stores and bytes of programs that execute the same instructions each time."""
    lacking = missing_tool("valgrind", "qemu-x86_64")
    for program in programs:
        if not program.exact:
            continue
        why = program.missing() or lacking
        if why:
            yield Missing(program.name, "accesses", why)
            continue
        with folder_for(program, root) as folder:
            recorded = record(memlens, program, folder, "--emulate=counts")
            try:
                expected = lackey(program, folder)
            except RunError as error:
                yield Missing(program.name, "accesses beside lackey", str(error))
                continue
        for metric in ("load_bytes", "store_bytes"):
            # The C library chooses string functions by CPUID, which valgrind and qemu show differently: code of another width.
            value = expected[metric]
            yield Row(
                program.name, "emulate", metric.replace("_", " "), recorded.figure("traffic", metric), value, value, "lackey",
                0.005, 20_000, "bytes",
            )  # fmt: skip
        for metric in ("loads", "stores"):
            # A repeated string instruction is one access for each 64 bytes here and one for each element there: at most as many.
            value = expected[metric]
            yield Row(
                program.name, "emulate", metric, recorded.figure("traffic", metric), value * (1 - STRING_SHARE), value, "lackey",
                0.002, 20_000,
            )  # fmt: skip


def judge_misses(memlens: list[str], python: str, root: Path) -> Iterator[Row | Missing]:
    """Misses of the cache model on every access of a program, beside cachegrind with the same caches."""
    why = missing_tool("valgrind", "qemu-x86_64", "gcc")
    if why:
        yield Missing("matrix and walk", "misses", why)
        return
    made = Program("matrix and walk", "", ("./misses",))
    with folder_for(made, root) as folder:
        (folder / "misses.c").write_text(MISS_PROGRAM)
        checked(["gcc", "-O1", "-static", "misses.c", "-o", "misses"], folder)
        recorded = record(memlens, made, folder, "--emulate=full", report=False)
        model = (
            "import sys,json,memlens;from memlens.analyses.caches import cache_model, Level;"
            f"r=cache_model(memlens.open(sys.argv[1]),by=('program',),levels=[Level({D1[0]},{D1[1]}),Level({LAST[0]},{LAST[1]})],inclusive=False);"
            "print(json.dumps([r.figures['accesses'],*[v['misses'] for v in r.figures['levels']]]))"
        )
        accesses, first, last = json.loads(checked([python, "-c", model, str(recorded.capture)], folder))
        expected = cachegrind(["./misses"], folder, d1=f"{D1[0]},{D1[1]},64", last=f"{LAST[0]},{LAST[1]},64")
    # cachegrind's last level holds instructions too, and it counts an instruction that loads and stores as one of each.
    for metric, value, names, tolerance in (
        ("data references", accesses, ("Dr", "Dw"), 0.01),
        ("misses of 32 KiB, 8 ways", first, ("D1mr", "D1mw"), 0.02),
        ("misses of 1 MiB, 16 ways", last, ("DLmr", "DLmw"), 0.05),
    ):
        oracle = sum(expected[name] for name in names)
        yield Row("matrix and walk", "caches", metric, float(value), oracle, oracle, "cachegrind", tolerance, 500)
