"""Loops of traced programs: each access in the innermost loop of the source, whatever the compiler made of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from count_runs import each_clang_at_length, environment, levels_and_clangs, needs_clang

import memlens
from memlens.analyses import locality

pytestmark = needs_clang
ROWS, COLUMNS = 50, 37
"""Columns are no multiple of a vector: there is a remainder."""

NEST = r"""
#include <stdio.h>
#include <stdlib.h>
#define OWN __attribute__((noinline))
OWN int nest(const int *m, const int *weights, long rows, long columns) {
  int s = 0;
  for (long i = 0; i < rows; i++) { // outer
    s += weights[i];
    for (long j = 0; j < columns; j++) // inner
      s += m[i * columns + j];
  }
  return s;
}
OWN int unrolled(const int *m, long n) {
  int s = 0;
#pragma clang loop vectorize(disable) unroll_count(4)
  for (long i = 0; i < n; i++) s = s * 3 + m[i]; // unrolled
  return s;
}
OWN long others(const int *m, long n) {
  long s = 0, i = 0;
  while (i < n) { // while
    int v = m[i++];
    if (v & 1) continue;
    s += v;
  }
  i = 0;
  do s += m[i] ^ s; while (++i < n); // do
  i = 0;
again:
  s += m[i] % 3; // goto
  if (++i < n) goto again;
  return s;
}
OWN int beside(const int *m, long n) {
  int s = 0;
  for (long i = 0; i < n; i++) s ^= m[i] + s; for (long i = 0; i < n; i += 2) s ^= m[i] * s; // beside
  return s;
}
int main(int count, char **arguments) {
  int *m = malloc(ROWS * COLUMNS * sizeof *m), *w = malloc(ROWS * sizeof *w);
  for (int i = 0; i < ROWS * COLUMNS * count; i++) m[i] = rand(); // fill
  for (int i = 0; i < ROWS * count; i++) w[i] = m[i] >> 3; // weights
  printf("%d %d %ld %d\n", nest(m, w, ROWS, COLUMNS), unrolled(m, COLUMNS), others(m, COLUMNS), beside(m, COLUMNS));
  return 0;
}
"""
SIZES = (f"-DROWS={ROWS}", f"-DCOLUMNS={COLUMNS}")


def run(*arguments: object, clang: str = "") -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memlens", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(clang),
    )
    assert done.returncode == 0, done.stderr


def recorded(source: Path, *options: str, clang: str = "", how: str = "full,on-full=wait") -> Any:
    """A capture of everything that the program accesses."""
    program = source.with_suffix("")
    compiler = "c++" if source.suffix == ".cpp" else "cc"
    run(compiler, "--memlens=trace", *options, "-w", source, "-o", program, clang=clang)
    run(
        "record",
        "-q",
        "--force",
        "-o",
        program.with_suffix(".memlens"),
        "--collectors",
        "trace",
        f"--trace={how}",
        "--",
        program,
    )
    return memlens.open(program.with_suffix(".memlens"))


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"// {mark}"))


def moved(capture: Any) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """(loop, its function) → accesses, bytes."""
    import duckdb

    connection = duckdb.connect()
    for name in ("accesses", "trace_sites"):
        connection.register(name, capture.table(name))
    rows = connection.execute(
        "SELECT s.loop, coalesce(s.loop_function, s.function), count(*), sum(a.bytes) FROM accesses a JOIN trace_sites s "
        "ON a.code = s.code GROUP BY ALL"
    ).fetchall()
    return {(loop, function): (count, total) for loop, function, count, total in rows}


@levels_and_clangs("-O0", "-O1", "-O2", "-O3", with_all="-O3")
def test_every_loop_moves_what_its_source_says(clang: str, level: str, tmp_path: Path) -> None:
    """Bytes of each loop are its closed form at every level: vector bodies, remainders and unrolled copies are the loop of the source."""
    (tmp_path / "p.c").write_text(NEST)
    capture = recorded(tmp_path / "p.c", level, "-g", *SIZES, clang=clang)
    found = moved(capture)
    place = {
        mark: f"p.c:{line_of(NEST, mark)}"
        for mark in ("outer", "inner", "unrolled", "while", "do", "goto", "fill", "weights")
    }
    expected = {
        (place["outer"], "nest"): 4 * ROWS,
        (place["inner"], "nest"): 4 * ROWS * COLUMNS,
        (place["unrolled"], "unrolled"): 4 * COLUMNS,
        (place["while"], "others"): 4 * COLUMNS,
        (place["do"], "others"): 4 * COLUMNS,
        (place["goto"], "others"): 4 * COLUMNS,
        (f"p.c:{line_of(NEST, 'beside')}:3", "beside"): 4 * COLUMNS,
        (f"p.c:{line_of(NEST, 'beside')}:47", "beside"): 4 * ((COLUMNS + 1) // 2),
        (place["fill"], "main"): 4 * ROWS * COLUMNS,
        (place["weights"], "main"): 8 * ROWS,
    }
    assert {key: total for key, (_, total) in found.items() if key[0]} == expected
    widths = set(
        capture.table("trace_sites").to_pandas().query("loop == @place['inner'] and not implied")["bytes"].tolist()
    )
    assert widths == ({16, 4} if level in ("-O2", "-O3") else {4}), "a vector body and its remainder"


@each_clang_at_length
def test_locality_by_loop(clang: str, tmp_path: Path) -> None:
    """At -O1 an access of the source is one of the code: everything of the nest has a closed form."""
    (tmp_path / "p.c").write_text(NEST)
    capture = recorded(tmp_path / "p.c", "-O1", "-g", *SIZES, clang=clang)
    result = locality(capture, by=["loop", "loop,line", "loop,object", "function,loop"])
    rows = {(row["loop"], row["function"]): row for row in result.tables["by_loop"].to_pylist()}
    outer, inner = (f"p.c:{line_of(NEST, mark)}" for mark in ("outer", "inner"))
    made = {
        key: (row["recorded"], row["footprint"], row["footprint_strided"], row["loop_depth"], row["loop_parent"])
        for key, row in rows.items()
    }
    assert made[outer, "nest"] == (ROWS, ROWS, ROWS, 1, None)
    assert made[inner, "nest"] == (ROWS * COLUMNS, ROWS * COLUMNS, ROWS * COLUMNS, 2, outer)
    assert made[f"p.c:{line_of(NEST, 'do')}", "others"][0] == COLUMNS
    assert rows[inner, "nest"]["growth"] == 1 and rows[inner, "nest"]["module"].endswith("/p")
    everything = result.tables["by_program"].column("recorded").to_pylist()[0]
    for name in ("by_loop", "by_loop_and_line", "by_loop_and_object", "by_function_and_loop"):
        assert sum(result.tables[name].column("recorded").to_pylist()) == everything, name
    sites = capture.table("sites").to_pylist()
    assert {site["loop"] for site in sites if site["function"] == "nest" and site["class"] == "strided"} >= {
        outer,
        inner,
    }


INLINED = r"""
#include <vector>
#include <cstdio>
#include "total.h"
#define OWN __attribute__((noinline))
struct Box { std::vector<int> items; int at(size_t i) const { return items[i]; } };
OWN int ranged(const std::vector<int> &v) {
  int s = 0;
  for (int x : v) s ^= x + s; // range
  return s;
}
OWN int sums(const int *m, long rows, long columns) {
  int s = 0;
  for (long i = 0; i < rows; i++) // caller
    s ^= total(m + i * columns, columns) + s;
  return s;
}
OWN int through(const Box &box, size_t n) {
  int s = 0;
  for (size_t i = 0; i < n; i++) s ^= box.at(i) + s; // getter
  return s;
}
OWN int once(const int *m, long columns) { return total(m, columns); }
int main() {
  Box box;
  for (int i = 0; i < ROWS * COLUMNS; i++) box.items.push_back(i * 7919 % 1000); // filled
  const int *m = box.items.data();
  std::printf("%d %d %d %d\n", ranged(box.items), sums(m, ROWS, COLUMNS), through(box, box.items.size() / ROWS), once(m, COLUMNS));
}
"""
TOTAL = """
__attribute__((always_inline)) static inline int total(const int *row, long n) {
  int s = 0;
  for (long j = 0; j < n; j++) s ^= row[j] + s; // total
  return s;
}
"""


@levels_and_clangs("-O1", "-O3", with_all="-O1")
def test_inlined_loops_belong_to_where_they_are_written(clang: str, level: str, tmp_path: Path) -> None:
    (tmp_path / "p.cpp").write_text(INLINED)
    (tmp_path / "total.h").write_text(TOTAL)
    capture = recorded(tmp_path / "p.cpp", level, "-g", *SIZES, clang=clang)
    rows = {
        (row["loop"], row["function"].split("(")[0]): row
        for row in locality(capture, by="loop").tables["by_loop"].to_pylist()
    }
    inside = (f"total.h:{line_of(TOTAL, 'total')}", "total")
    # The loop of `total` runs inside the one of `sums`, and alone in `once`: it is one loop, and outermost in its own function.
    assert rows[inside]["recorded"] == ROWS * COLUMNS + COLUMNS
    assert (rows[inside]["loop_depth"], rows[inside]["loop_parent"]) == (1, None)
    assert rows[f"p.cpp:{line_of(INLINED, 'range')}", "ranged"]["recorded"] == ROWS * COLUMNS
    # `at` is inlined: its accesses are of another function than the loop around them.
    getter = f"p.cpp:{line_of(INLINED, 'getter')}"
    assert rows[getter, "through"]["recorded"] >= COLUMNS
    assert not any(loop == getter and function != "through" for loop, function in rows)
    crossed = locality(capture, by="loop,function").tables["by_loop_and_function"].to_pylist()
    found = {
        (row["loop_function"].split("(")[0], row["function"].split("(")[0]) for row in crossed if row["loop"] == getter
    }
    assert all(function == "through" for function, _ in found) and any(
        "operator[]" in name or "at" in name for _, name in found
    )
    table = capture.table("count_loops").to_pylist()
    in_sums = [
        row
        for row in table
        if row["name"].startswith("total") and any(text.startswith("sums") for text in row["inlined_into"])
    ]
    assert in_sums and all(table[row["parent"]]["line"] == line_of(INLINED, "caller") for row in in_sums)


def test_without_debug_information_loops_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(NEST)
    capture = recorded(tmp_path / "p.c", "-O1", "-g0", *SIZES)
    found = {key: value for key, value in moved(capture).items() if key[1] == "nest"}
    assert found == {("loop 1", "nest"): (ROWS, 4 * ROWS), ("loop 2", "nest"): (ROWS * COLUMNS, 4 * ROWS * COLUMNS)}


def test_windows_know_loops_too(tmp_path: Path) -> None:
    """And what runs an untouched copy of ours between them makes no loops of its own."""
    (tmp_path / "p.c").write_text(NEST)
    capture = recorded(tmp_path / "p.c", "-O2", "-g", *SIZES, how="window=50,period=500,seed=3,on-full=wait")
    loops = {row["loop"] for row in locality(capture, by="loop").tables["by_loop"].to_pylist()}
    assert f"p.c:{line_of(NEST, 'inner')}" in loops
    lines = {row["line"] for row in capture.table("count_loops").to_pylist()}
    marks = ("outer", "inner", "unrolled", "while", "do", "goto", "beside", "fill", "weights")
    assert lines == {line_of(NEST, mark) for mark in marks}
