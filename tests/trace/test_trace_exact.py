"""A trace has what ran: every access of every site, in program order, and windows that favour none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import count_generator
import numpy as np
import pytest
from count_runs import compile_with, levels_and_clangs, needs, needs_clang

from memlens.capture.reader import open_capture

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"

pytestmark = needs_clang


def build(sources: list[Path], out: Path, *options: str, clang: str = "", cxx: bool = True) -> Path:
    done = compile_with(
        *options, "-g", "-w", *sources, "-o", out, "-pthread", "-lm", clang=clang, name="c++" if cxx else "cc"
    )
    assert done.returncode == 0, done.stderr
    return out


def record(capture: Path, program: list[str], *options: str, status: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-m", "memlens", "record", "-q", "--force", "-o", str(capture), *options, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode in status, done.stderr
    return done.stdout


def exact_counts(capture: Path) -> dict[tuple[str, int], int]:
    """Executions of each site by its counters."""
    table = open_capture(capture).table("site_counts").group_by(["module", "site"]).aggregate([("executions", "sum")])
    columns = (table.column(name).to_pylist() for name in ("module", "site", "executions_sum"))
    return {(module, site): count for module, site, count in zip(*columns, strict=True)}


def traced_sites(capture: Path) -> dict[int, dict[str, Any]]:
    """Rows of `trace_sites` by code."""
    return {row["code"]: row for row in open_capture(capture).table("trace_sites").to_pylist()}


def recorded_counts(capture: Path) -> dict[int, int]:
    counts: dict[int, int] = {}
    for batch in open_capture(capture).accesses(code=True):
        codes, numbers = np.unique(batch.column("code").to_numpy(zero_copy_only=False), return_counts=True)
        for code, number in zip(codes.tolist(), numbers.tolist(), strict=True):
            counts[code] = counts.get(code, 0) + number
    return counts


def compare(capture: Path) -> tuple[int, int]:
    """Every site's accesses in a full trace are its executions; returns how many sites and accesses there were."""
    exact, found, sites = exact_counts(capture), recorded_counts(capture), traced_sites(capture)
    wrong = []
    every = 0
    for code, row in sites.items():
        expected = exact.get((row["build_id"], row["site"]), exact.get((row["module"], row["site"]), 0))
        every += expected
        # A copy whose size is known only when it runs may be one of nothing: no access, though it runs.
        is_right = found.get(code, 0) <= expected if row["bytes"] == 0 else found.get(code, 0) == expected
        if not row["implied"] and not is_right:
            wrong.append((row["function"], row["line"], row["operation"], found.get(code, 0), expected))
    assert not wrong, wrong[:10]
    total = sum(found.values())
    windows = open_capture(capture).table("windows")
    assert sum(windows.column("dropped").to_pylist()) == 0
    assert total + sum(windows.column("implied_constant").to_pylist()) == every
    return len(found), total


@levels_and_clangs("-O0", "-O2", with_all="-O2", slow=("-O3",))
def test_generated_control_flow(clang: str, level: str, tmp_path: Path) -> None:
    """Loops, continue, goto, switch, exceptions and longjmp: the trace has each site as often as a counter of its own says."""
    sources = []
    for number, text in enumerate(count_generator.program(70 + len(level), functions=20)):
        sources.append(tmp_path / f"unit{number}.cpp")
        sources[-1].write_text(text)
    program = build(
        sources,
        tmp_path / "program",
        level,
        "--memlens=count,trace",
        "--memlens-naive",
        "--memlens-verify",
        clang=clang,
    )
    capture = tmp_path / "full.memlens"
    plain = subprocess.run([program], capture_output=True, text=True)
    out = record(
        capture, [str(program)], "--collectors", "count,trace", "--trace=full,on-full=wait", status=(plain.returncode,)
    )
    assert out == plain.stdout
    sites, accesses = compare(capture)
    assert sites > 100 and accesses > 10_000
    # Whatever is recorded, as many accesses are executed.
    total = open_capture(capture).meta["trace"]["executed"]
    for settings in ("window=97,period=1000", "window=1,period=100", "window=1,period=1000000000"):
        record(capture, [str(program)], "--collectors", "trace", f"--trace={settings}", status=(plain.returncode,))
        assert open_capture(capture).meta["trace"]["executed"] == total, settings


ARRAYS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N 512
long first[N], second[N]; int indices[N]; char bytes[4 * N];
struct node { struct node *next; long value; } nodes[N];
__attribute__((noinline)) static long walk(long round) {
  long sum = 0;
  for (int i = 0; i < N; i++) sum += first[indices[i]];
  for (int i = 0; i < N; i++) if (first[i] & 1) second[i] = sum; else second[N - 1 - i] ^= first[i];
  for (struct node *at = nodes; at; at = at->next) sum += at->value;
  for (int i = 0; i + round < N; i += 3) { bytes[i] = (char)sum; if (bytes[2 * i] == 5) break; }
  return sum;
}
__attribute__((noinline)) static long outer(long n) {
  long sum = 0;
  for (long r = 0; r < n; r++) { first[r % N] = sum; sum += walk(r); second[(r * 7) % N] += sum; }
  return sum;
}
int main(void) {
  for (int i = 0; i < N; i++) {
    first[i] = i * 3; indices[i] = i * 77 % N; nodes[i].value = i; nodes[i].next = i + 1 < N ? &nodes[(i + 1) * 77 % N] : 0;
  }
  printf("%ld\n", outer(20));
  return 0;
}
"""


def addresses_inside(capture: Path, ranges: list[tuple[int, int]]) -> np.ndarray:
    parts = []
    opened = open_capture(capture)
    for batch in opened.accesses():
        address = batch.column("address").to_numpy()
        inside = np.zeros(len(address), dtype=bool)
        for begin, end in ranges:
            inside |= (address >= begin) & (address < end)
        parts.append(address[inside])
    return np.concatenate(parts)


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2"])
def test_order_is_program_order(level: str, tmp_path: Path) -> None:
    """The emulator sees the same program make the same accesses to its arrays, in the same order."""
    needs("qemu-x86_64", "qemu-user")
    source = tmp_path / "arrays.c"
    source.write_text(ARRAYS)
    program = build([source], tmp_path / "arrays", level, "-no-pie", "--memlens=trace", cxx=False)
    listed = subprocess.run(["nm", "-S", str(program)], capture_output=True, text=True, check=True).stdout
    ranges = []
    for line in listed.splitlines():
        parts = line.split()
        if len(parts) == 4 and parts[3] in ("first", "second", "indices", "bytes", "nodes"):
            ranges.append((int(parts[0], 16), int(parts[0], 16) + int(parts[1], 16)))
    assert len(ranges) == 5
    record(tmp_path / "native.memlens", [str(program)], "--collectors", "trace", "--trace=full,on-full=wait")
    record(tmp_path / "emulated.memlens", [str(program)], "--emulate=full")
    ours = addresses_inside(tmp_path / "native.memlens", ranges)
    truth = addresses_inside(tmp_path / "emulated.memlens", ranges)
    assert len(ours) > 20 * 512
    assert np.array_equal(ours, truth)


LONG_LOOPS = r"""
#include <stdio.h>
#define N 3000
double first[N], second[N];
int whole[N];
unsigned char bytes[4 * N];
struct pair { long a, b; } pairs[N];

__attribute__((noinline)) long copies(unsigned n) { for (unsigned i = 0; i < n; i++) second[i] = first[i] * 3 + 1; return n; }
__attribute__((noinline)) long backwards(long n) { long i; for (i = n; i-- > 0;) whole[i] = (int)i; return i; }
__attribute__((noinline)) long sums(long n) { long sum = 0, i = 0; do sum += whole[i] ^ i; while (++i < n); return sum * 5 + i; }
__attribute__((noinline)) long thirds(int n) { long sum = 0; for (int i = 0; i < n; i += 3) { bytes[i]++; sum += bytes[i + 1]; } return sum; }
__attribute__((noinline)) long rows(int n, int m) {
  long sum = 0;
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) { pairs[j].a += i; sum += pairs[j].b; pairs[j].b = sum; }
  return sum;
}
__attribute__((noinline)) double carried(long n) {
  double before = first[n % 2], sum = 0;
  for (long i = 1; i < n; i++) { sum += before * first[i]; before = first[i]; }
  return sum + before;
}
__attribute__((noinline)) long until(const char *p, long n) { long i = 0; while (i < n && p[i]) i++; return i; }

int main(void) {
  long sum = 0;
  for (int i = 0; i < N; i++) first[i] = i % 17, bytes[i] = (unsigned char)(i | 1);
  for (int round = 1; round <= 40; round++) {
    sum += copies(N / 40 * round) + backwards(N - round) + sums(70 * round) + thirds(3 * N) + rows(round % 7, 2000);
    sum += (long)carried(N - 3 * round) + until((const char *)bytes, 11 * round);
    sum += copies(round) + sums(round) + thirds(round * 20) + rows(3, round);
  }
  printf("%ld %g\n", sum, carried(N));
  return 0;
}
"""

ROUNDS = r"""
#include <stdio.h>
#define N 4096
#define OWN __attribute__((noinline))
unsigned keys[N], counts[64], parents[N], bounds[N / 8 + 16], edges[N];
struct node { struct node *next; long value, marks; } nodes[N], *heads[N / 16];
long out[N];

/* Rounds that execute 1 to 4 accesses, and ways out in the middle of them. */
OWN long branchy(unsigned n, unsigned stop) {
  long sum = 0;
  for (unsigned i = 0; i < n; i++) {
    unsigned k = keys[i];
    if (k % 3 == 0) counts[k % 64]++;
    else if (k % 3 == 1) sum += counts[k % 64] ^ out[i];
    if (k == stop) return sum + i;
    if (k % 5 == 0) { out[i] = sum; if (k % 25 == 0) break; }
    if (k % 7 == 0) continue;
    sum += parents[i];
  }
  return sum;
}
OWN struct node *find(struct node *at, long value) {
  while (at) {
    if (at->value == value) return at;
    if (at->marks < 0) break;
    at->marks++;
    at = at->next;
  }
  return at;
}
/* Short loops inside others; two ways through one, several levels, loops side by side. */
OWN long hook(const unsigned *offsets, unsigned n) {
  long hooked = 0;
  for (unsigned u = 0; u < n; u++)
    for (unsigned e = offsets[u]; e < offsets[u + 1]; e++) {
      unsigned p = parents[u], q = parents[edges[e]];
      if (p == q) continue;
      unsigned high = p > q ? p : q;
      if (parents[high] == high) { parents[high] = p > q ? q : p; hooked++; }
    }
  return hooked;
}
OWN long merge(const unsigned *offsets, unsigned n) {
  long same = 0;
  for (unsigned u = 0; u + 1 < n; u++)
    for (unsigned v = u + 1; v < n && v < u + 4; v++) {
      unsigned a = offsets[u], b = offsets[v];
      for (; b < offsets[v + 1]; b++) {
        while (a < offsets[u + 1] && edges[a] < edges[b]) a++;
        if (a == offsets[u + 1]) break;
        same += edges[a] == edges[b];
      }
      if (same % 11 == 10) same++;
    }
  return same;
}
OWN long lists(int n) {
  long sum = 0;
  for (int i = 0; i < n; i++) {
    for (struct node *at = heads[i]; at; at = at->next) sum += at->value;
    for (struct node *at = heads[i]; at && at->value % 9; at = at->next) at->marks = sum;
    if (sum % 13 == 0) heads[i]->marks++;
  }
  return sum;
}
OWN int shorten(unsigned n) {
  unsigned v = 0, changed = 0;
  do {
    unsigned p = parents[v], above;
    while (p != (above = parents[p])) p = above;
    if (parents[v] != p) { parents[v] = p; changed++; }
  } while (++v < n);
  return changed;
}
OWN long chosen(const unsigned char *text, long n) {
  long state = 0;
  for (long i = 0; i < n; i++)
    switch (text[i] % 4) {
      case 0: state += keys[i % N]; break;
      case 1: state ^= out[i % N]; out[i % N] = state; break;
      case 2: if (state > 1000) state = counts[state % 64]; break;
      default: break;
    }
  return state;
}

int main(void) {
  unsigned x = 12345;
  long sum = 0;
  for (int i = 0; i < N; i++) {
    keys[i] = (x = x * 1664525 + 1013904223) >> 9;
    edges[i] = x >> 20 & (N / 8 - 1);
    nodes[i].value = x >> 7 & 255;
    nodes[i].next = i % 16 ? &nodes[i - 1] : NULL;
    if (i % 16 == 15) heads[i / 16] = &nodes[i];
    parents[i] = i;
  }
  for (int i = 0; i < N / 8 + 16; i++) bounds[i] = i * 8 - (i % 5);
  for (int round = 1; round <= 30; round++) {
    sum += branchy(N - round, keys[100 * round]) + branchy(40, 1) + hook(bounds, N / 8) + merge(bounds, N / 8 - round) + lists(N / 16);
    sum += shorten(N) + chosen((const unsigned char *)keys, 300 * round);
    for (int i = 0; i < 200; i++) {
      struct node *found = find(heads[(i * round) % (N / 16)], i);
      sum += found ? found->value : -1;
    }
    if (round % 5 == 0)
      for (int i = 0; i < N; i++) parents[i] = i;
  }
  printf("%ld\n", sum);
  return 0;
}
"""


def numbered(capture: Path) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Windows of the main thread: number of the first access and constants; accesses as (address, bytes), by their number."""
    opened = open_capture(capture)
    first = {row["window"]: row["first_executed"] for row in opened.table("windows").to_pylist() if row["recorded"]}
    assert not sum(row["implied_constant"] for row in opened.table("windows").to_pylist())
    found: dict[int, tuple[int, int]] = {}
    seen: dict[int, int] = {}
    for batch in opened.accesses():
        columns = (batch.column(name).to_pylist() for name in ("window", "address", "bytes"))
        for window, address, width in zip(*columns, strict=True):
            number = first[window] + seen.get(window, 0)
            seen[window] = seen.get(window, 0) + 1
            assert found.setdefault(number, (address, width)) == (address, width)
    return first, found


@pytest.mark.parametrize("loops", ["long", "rounds"])
@levels_and_clangs("-O2", with_all="-O2", slow=("-O1", "-O3"))
def test_windows_begin_where_they_say(level: str, clang: str, loops: str, tmp_path: Path) -> None:
    """Between windows loops run in parts that have none of our code, rounds without checks, and copies that run far from windows: each
    access of a window is the one that a full trace has under its number."""
    source = tmp_path / "loops.c"
    source.write_text(LONG_LOOPS if loops == "long" else ROUNDS)
    program = build([source], tmp_path / "loops", level, "-no-pie", "--memlens=trace", clang=clang, cxx=False)
    subprocess.run(["cc", level, "-w", source, "-o", tmp_path / "plain"], check=True)
    plain = subprocess.run([tmp_path / "plain"], capture_output=True, text=True, check=True).stdout
    trace = ["--collectors", "trace"]
    assert record(tmp_path / "full", [str(program)], *trace, "--trace=full,on-full=wait") == plain
    _, truth = numbered(tmp_path / "full")
    assert sorted(truth) == list(range(len(truth))) and len(truth) > 300_000
    for seed, window, period in ((1, 20, 700), (2, 1, 331), (3, 100, 5000), (4, 37, 20_011), (5, 500, 600)):
        options = f"--trace=window={window},period={period},seed={seed},on-full=wait"
        assert record(tmp_path / "some", [str(program)], *trace, options) == plain
        first, found = numbered(tmp_path / "some")
        assert len(first) == pytest.approx(len(truth) / period, abs=2)
        assert len(found) == pytest.approx(len(truth) / period * window, rel=0.02, abs=2 * window)
        wrong = [number for number, access in found.items() if truth[number] != access]
        assert not wrong, (seed, len(wrong), wrong[:5])


NO_BIAS = {
    "graph_pr.c": "--scale 12 --iterations 20 --threads 1",
    "graph_bfs.c": "--scale 12 --iterations 30 --threads 1",
    "graph_tc.c": "--scale 10 --iterations 1 --threads 1",
    "hash_map.cpp": "--mib 1 --iterations 4",
    "pointer_chase.c": "--mib 1 --iterations 40",
    "stencil.c": "--mib 2 --iterations 10 --threads 1",
    "patterns.c": "--elements 16384 --repeats 20",
}
MORE_WITHOUT_BIAS = {
    "graph_bc.c": "--scale 11 --iterations 6 --threads 1",
    "graph_cc.c": "--scale 12 --iterations 20 --threads 1",
    "graph_cc_sv.c": "--scale 12 --iterations 4 --threads 1",
    "graph_pr_spmv.c": "--scale 12 --iterations 20 --threads 1",
    "graph_sssp.c": "--scale 11 --iterations 4 --threads 1",
    "stream.c": "--mib 2 --iterations 10 --threads 1",
    "matmul.c": "--mib 1 --iterations 1 --threads 1",
    "linked_sum.c": "",
    "field_walk.c": "",
    "set_conflicts.c": "",
    "working_set.c": "",
    "reloaded_value.c": "",
    "scattered_field.c": "",
    "hash_tables.cpp": "",
    "conv_layers.c": "",
}


@pytest.mark.parametrize(
    "source", [*sorted(NO_BIAS), *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(MORE_WITHOUT_BIAS))]
)
def test_windows_favour_no_site(source: str, tmp_path: Path) -> None:
    """The share of each site in windows against its exact count, the windows being what was drawn."""
    program = build(
        [WORKLOADS / source], tmp_path / "program", "-O2", "--memlens=count,trace", cxx=source.endswith("pp")
    )
    window, period = 50, 2_003
    capture = tmp_path / "windows.memlens"
    settings = f"--trace=window={window},period={period},seed=11,on-full=wait,stacks=off"
    options = (NO_BIAS | MORE_WITHOUT_BIAS)[source].split()
    record(capture, [str(program), *options], "--collectors", "count,trace", settings)
    opened = open_capture(capture)
    windows = opened.table("windows")
    numbers = windows.column("window").to_numpy()
    length = np.zeros(int(numbers.max()) + 1)  # by number: records that tell of a thread's end are not in the table
    length[numbers] = windows.column("recorded").to_numpy() + windows.column("implied_constant").to_numpy()
    totals = opened.meta["trace"]
    drawn = length > 0  # a loop of constants has windows that record nothing
    expected = totals["executed"] / period
    assert abs(int(drawn.sum()) - expected) <= max(0.01 * expected, 3 * expected**0.5), (int(drawn.sum()), expected)
    exact, sites = exact_counts(capture), traced_sites(capture)
    # Of each site: what its accesses in each window stand for.
    weight = np.where(drawn, period / np.maximum(length, 1), 0)
    sums: dict[int, np.ndarray] = {}
    for batch in opened.accesses(code=True):
        codes = batch.column("code").to_numpy(zero_copy_only=False)
        whose = batch.column("window").to_numpy()
        for code in np.unique(codes).tolist():
            counts = np.bincount(whose[codes == code], minlength=len(weight))
            sums[code] = sums.get(code, np.zeros(len(weight))) + counts
    scores = []
    for code, row in sites.items():
        truth = exact.get((row["build_id"], row["site"]), exact.get((row["module"], row["site"]), 0))
        if row["implied"] or truth < 200 * period / window:
            continue
        values = sums.get(code, np.zeros(len(weight)))[drawn] * weight[drawn]
        error = (len(values) * values.var(ddof=1)) ** 0.5
        scores.append((values.sum() - truth) / max(error, 1.0))
    assert scores
    # Neighbouring windows lie in neighbouring cells of one period, so scores are smaller than those of free draws, never larger.
    assert max(abs(score) for score in scores) < 5, sorted(scores)
    assert sum(score**2 for score in scores) / len(scores) < 2.5, sorted(scores)
