"""Constant accesses of traces: by function as Eq. 2 and 4 of the MemGaze paper have them, in windows, and what threads share of them.

Oracles: the compiled-in counters of the same run, closed forms, and every access of the run for what is drawn from it.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder
from conftest import MEMLENS
from count_runs import needs_clang

import memlens
from memlens import _core
from memlens.analyses.data_locality import locality
from memlens.analyses.sharing import line_sharing
from memlens.capture.model.drawing import DrawnAccesses
from memlens.capture.model.locality import ThreadAccesses

LOAD, STORE = 1, 2
A = 0x10_0000

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct node { struct node *next; long v; };
static int counter;
static volatile int flag;
static long table[4096];
static _Thread_local long own;
static inline long twice(long x) { volatile long y = x; return y + y; }
__attribute__((noinline)) long spin(long n) { long s = 0; for (long i = 0; i < n; i++) s += flag; return s; }
__attribute__((noinline)) long frame(long n) { volatile long t = 0; for (long i = 0; i < n; i++) t = t + i; return t; }
__attribute__((noinline)) long sweep(const long *a, long n) { long s = 0; for (long i = 0; i < n; i++) s += a[i]; return s; }
__attribute__((noinline)) long branchy(const long *a, long n) {
  volatile long k = 0;
  long s = 0;
  for (long i = 0; i < n; i++) {
    if (a[i] & 1) { k = k + 1; counter++; }
    else if (a[i] & 2) own++;
    else s += twice(a[i]);
  }
  return s + k;
}
__attribute__((noinline)) long chase(struct node *p, long n) { long s = 0; while (n--) { s += p->v; p = p->next; } return s; }
__attribute__((noinline)) void fill(long *a, long n) { for (long i = 0; i < n; i++) { flag = i & 1; a[i] = i * 7; } }
__attribute__((noinline)) void copy(long *to, const long *from, size_t n) { volatile size_t m = n; memcpy(to, from, m); flag = 1; }
__attribute__((noinline)) long deep(long n) { volatile long here = n; return n ? here + deep(n - 1) : 0; }
int main(int count, char **arguments) {
  long n = count > 1 ? atol(arguments[1]) : 3000;
  struct node *nodes = malloc(n * sizeof *nodes);
  for (long i = 0; i < n; i++) { nodes[i].next = &nodes[(i * 17 + 5) % n]; nodes[i].v = i; }
  fill(table, 4096);
  long s = sweep(table, 4096), *other = malloc(sizeof table);
  for (int r = 0; r < 3; r++) {
    copy(other, table, sizeof table);
    s += spin(n) + frame(n) + branchy(table, 4096) + chase(nodes, n) + deep(200);
  }
  printf("%ld %d\n", s, counter);
  return 0;
}
"""


def run(*arguments: str | Path) -> None:
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def traced(folder: Path, source: str, name: str, *flags: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    run(*MEMLENS, "cc", "--memlens=count,trace", "-g", *flags, folder / f"{name}.c", "-o", folder / name, "-pthread")
    return folder / name


def recorded(program: Path, trace: str, *arguments: str) -> Any:
    output = program.parent / f"{trace.replace(',', '_').replace('=', '')}.memlens"
    run(*MEMLENS, "record", f"--trace={trace}", "-o", output, "--", program, *arguments)
    return memlens.open(output)


def counted(capture: Any, *, loads_only: bool = False) -> dict[str, list[int]]:
    """[accesses that are not constant, constants] of each function, by the counters of the run and the classes of the sites."""
    sites = defaultdict(list)
    for row in capture.table("trace_sites").to_pylist():
        sites[row["build_id"], row["site"]].append((row["class"], row["function"], row["operation"]))
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in capture.table("site_counts").to_pylist():
        for kind, function, operation in sites[row["module"], row["site"]]:
            if not loads_only or operation != "store":
                found[function][kind == "constant"] += row["executions"]
    return {function: sums for function, sums in found.items() if sum(sums)}


@needs_clang
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_constants_of_each_function_are_those_that_its_counters_count(tmp_path: Path, level: str) -> None:
    capture = recorded(traced(tmp_path, SOURCE, "p", level), "full,on-full=wait")
    expected = counted(capture)
    result = locality(capture)
    rows = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    assert {name: [row["accesses"], row["constants"]] for name, row in rows.items()} == expected
    for name, (a, constants) in expected.items():
        row = rows[name]
        assert row["kappa"] == (pytest.approx(1 + constants / a) if a else None)  # Eq. 2
        assert row["growth"] == pytest.approx(row["footprint"] / (a + constants))  # Eq. 4
        assert row["executed"] == a + constants
    program = result.tables["by_program"].to_pylist()[0]
    assert program["constants"] == sum(constants for _, constants in expected.values())
    assert program["executed"] == result.figures["executed_accesses"] == sum(map(sum, expected.values()))
    if level == "-O2":  # new addresses only
        assert rows["sweep"]["growth"] == 1.0 and rows["sweep"]["kappa"] == 1.0


@needs_clang
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_a_trace_of_loads_counts_no_store_as_a_constant(tmp_path: Path, level: str) -> None:
    capture = recorded(traced(tmp_path, SOURCE, "p", level), "full,loads,on-full=wait")
    rows = {row["function"]: row for row in locality(capture).tables["by_function"].to_pylist()}
    assert {name: [row["accesses"], row["constants"]] for name, row in rows.items()} == counted(
        capture, loads_only=True
    )


@needs_clang
def test_windows_in_code_with_constants_only_count_like_others(tmp_path: Path) -> None:
    """A third of the accesses are made in a loop over one global: its windows have no other access, and every access is in a window's weight."""
    source = r"""
    #include <stdlib.h>
    static volatile int counter;
    __attribute__((noinline)) long walk(const long *a, long n) { long s = counter; for (long i = 0; i < n; i++) s += a[i]; return s; }
    __attribute__((noinline)) long bump(long n) { long s = 0; for (long i = 0; i < n; i++) s += counter; return s; }
    int main(void) { long *a = calloc(1 << 16, sizeof *a), s = 0; for (int r = 0; r < 6; r++) s += walk(a, 1 << 16) + bump(1 << 15); return s != 0; }
    """
    program = traced(tmp_path, source, "p", "-O2", "-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops")
    expected = counted(recorded(program, "full,on-full=wait"))
    total, truth = sum(map(sum, expected.values())), 100 / 3
    assert 100 * sum(constants for _, constants in expected.values()) / total == pytest.approx(truth, abs=0.01)
    held = 0
    for seed in range(6):
        capture = recorded(program, f"window=200,period=4000,seed={seed}")
        row = locality(capture).tables["by_program"].to_pylist()[0]
        assert row["executed"] == pytest.approx(total)
        assert row["constant_percent"] == pytest.approx(truth, abs=12)
        held += row["constant_percent_low"] <= truth <= row["constant_percent_high"]
    assert held >= 4
    rows = {row["function"]: row for row in locality(capture).tables["by_function"].to_pylist()}
    assert rows["bump"]["accesses"] == 0 and rows["bump"]["executed"] == pytest.approx(total / 3, rel=0.4)
    assert rows["walk"]["window_growth"] == pytest.approx(1.0, abs=0.01)


def test_draws_from_a_trace_with_constants_only_records_are_fair(tmp_path: Path) -> None:
    """Records of 1,000 accesses and of 500 constants take turns: a third of what is drawn is constant, and weights add up to everything."""
    builder = CaptureBuilder()
    at = 0
    for number in range(100):
        trace = [(0x1000, A + 8 * (number * 1000 + i), 8, LOAD) for i in range(1000)]
        builder.window(10 + 2000 * number, trace, first_executed=at)
        builder.window(1500 + 2000 * number, [], first_executed=at + 1000, implied_constant=500, executed=500)
        at += 1500
    capture = builder.open(tmp_path / "a.memlens")
    assert ThreadAccesses(capture).is_whole
    row = locality(capture).tables["by_program"].to_pylist()[0]
    assert (row["accesses"], row["constants"], row["executed"], row["growth"]) == (
        100_000,
        50_000,
        150_000,
        pytest.approx(100_001 / 150_000),
    )
    shares = []
    for seed in range(20):
        drawn = (
            locality(capture, accesses=DrawnAccesses.drawn(capture, 50, 1000, seed=seed))
            .tables["by_program"]
            .to_pylist()[0]
        )
        assert drawn["executed"] == pytest.approx(150_000)
        shares.append(drawn["window_constant_percent"])
    assert np.mean(shares) == pytest.approx(100 / 3, abs=1.5)


def test_constants_of_no_known_code_leave_functions_without_growth(tmp_path: Path) -> None:
    """A record says how many constants it leaves out, not whose: the program has a growth, its functions have none."""
    builder = CaptureBuilder().window(
        10, [(0x1000, A + 8 * i, 8, LOAD) for i in range(100)], implied_constant=100, executed=200
    )
    result = locality(builder.open(tmp_path / "a.memlens"))
    program, function = (result.tables[name].to_pylist()[0] for name in ("by_program", "by_function"))
    assert program["kappa"] == 2.0 and program["growth"] == pytest.approx(101 / 200)
    assert function["kappa"] is function["constants"] is function["growth"] is None
    assert function["growth_memgaze"] == 1.0
    assert any("constants" in note and "function" in note for note in result.quality.notes)


# ---- what threads share -----------------------------------------------------------------------------------------


def sharing(accesses: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    """Of (thread, address, bytes, is store) in the order of time."""
    engine = _core.LineSharing()
    columns = [np.array(column) for column in zip(*accesses, strict=True)]
    engine.add(
        columns[1].astype(np.uint64),
        columns[2].astype(np.uint32),
        columns[3].astype(np.uint8),
        columns[0].astype(np.uint32),
    )
    return dict(engine.pairs())


def test_a_reader_that_follows_another_reader_is_no_hand_over() -> None:
    """One write, then two readers in turn: each fetches the line once."""
    found = sharing([(0, A, 8, 1), *[(1 + i % 2, A + 8, 8, 0) for i in range(1000)]])
    by_pair = {(t, o): h for t, o, h in zip(found["thread"], found["other"], found["hand_overs"], strict=True)}
    assert by_pair == {(0, 1): 1, (0, 2): 1}


def test_hand_overs_are_those_of_a_coherent_cache() -> None:
    """Against copies that are kept one by one: a read needs one, a write needs the only one."""
    random = np.random.default_rng(5)
    accesses = [
        (int(t), A, 8, int(s)) for t, s in zip(random.integers(0, 4, 5000), random.random(5000) < 0.2, strict=True)
    ]
    expected, holders, last, is_written = 0, set(), None, False
    for thread, _, _, is_store in accesses:
        if is_store:
            expected += last is not None and last != thread
            holders, is_written = {thread}, True
        else:
            expected += is_written and thread not in holders
            holders.add(thread)
        last = thread
    assert int(np.sum(sharing(accesses)["hand_overs"])) == expected


@pytest.mark.parametrize("seed", range(4))
def test_useful_hand_overs_are_those_that_pass_data(seed: int) -> None:
    """Against each thread's list of what it has not seen: two counters, of which one is read by all now and then."""
    random = np.random.default_rng(seed)
    accesses = []
    for thread, kind in zip(random.integers(0, 3, 4000).tolist(), random.random(4000).tolist(), strict=True):
        mine = A + 8 * (thread % 2)
        accesses.append(
            (thread, A + 16, 8, 0) if kind < 0.1 else (thread, A, 8, 0) if kind < 0.11 else (thread, mine, 8, 1)
        )
    expected = 0
    unseen: dict[int, set[int]] = {thread: set() for thread in range(3)}
    waiting = dict.fromkeys(range(3), False)
    fresh: set[int] = set()  # who has the line as it was last written
    last_writer, last, read_by_others = None, None, set()
    for thread, address, _, is_store in accesses:
        if is_store and last is not None and last != thread:
            waiting[thread] = True
            if last_writer == thread and address in read_by_others:
                unseen[thread].add(address)
        elif not is_store and last_writer not in (None, thread) and thread not in fresh:
            waiting[thread] = True
        if address in unseen[thread]:
            unseen[thread].clear()
            expected += waiting[thread]
            waiting[thread] = False
        if is_store:
            for other in unseen:
                if other != thread:
                    unseen[other].add(address)
            fresh, last_writer, read_by_others = set(), thread, set()
        elif last_writer != thread:
            read_by_others.add(address)
        fresh.add(thread)
        last = thread
    found = sharing(accesses)
    assert int(np.sum(found["useful"])) == expected
    assert 0 < expected < int(np.sum(found["hand_overs"]))


def test_counters_that_one_thread_adds_up_at_the_end_are_shared_falsely(tmp_path: Path) -> None:
    builder = CaptureBuilder()
    for thread, offset in ((100, 0), (101, 8)):
        accesses = [(0x1000, A + offset, 8, STORE)] * 500 + (
            [(0x2000, A, 8, LOAD), (0x2004, A + 8, 8, LOAD)] if offset else []
        )
        for number, one in enumerate(accesses):
            builder.window(
                1000 * number + offset, [one], thread=thread, end_ns=1000 * number + offset + 1, first_executed=number
            )
    (row,) = line_sharing(builder.open(tmp_path / "a.memlens")).tables["lines"].to_pylist()
    assert row["kind"] == "false" and row["common_offsets"] == "0-7"
    assert row["hand_overs"] >= 999 and row["useful_hand_overs"] == 1


CONTENDED = r"""
#include <pthread.h>
static struct { long a, b; char rest[112]; } g __attribute__((aligned(64)));
static long total __attribute__((aligned(64)));
static void *work(void *which) {
  volatile long *mine = which ? &g.b : &g.a;
  for (long i = 0; i < 60000; i++) { (*mine)++; __atomic_fetch_add(&total, 1, __ATOMIC_RELAXED); }
  return 0;
}
int main(void) {
  pthread_t threads[2];
  for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  return total != 120000;
}
"""


@needs_clang
def test_global_scalars_that_threads_write_are_seen_in_a_trace(tmp_path: Path) -> None:
    """The counter is a constant for locality (A_const), and a shared line here."""
    capture = recorded(traced(tmp_path, CONTENDED, "p", "-O1"), "full,on-full=wait")
    lines = line_sharing(capture).tables["lines"].to_pylist()
    used = {
        kind: max(row["writes"] + row["other_writes"] for row in lines if row["kind"] == kind)
        for kind in ("false", "true")
    }
    assert used == {"false": 120_000, "true": 120_000}
    row = locality(capture).tables["by_program"].to_pylist()[0]
    assert row["constants"] >= 120_000


def both_in_windows(overlap: bool) -> CaptureBuilder:
    """Two threads that write next to each other, in windows that never overlap: by turns, or one thread after the other."""
    builder = CaptureBuilder()
    for thread, offset in ((100, 0), (101, 8)):
        for number in range(10):
            begin = 1000 * (2 * number + offset // 8) if overlap else 1000 * (number + 10 * (offset // 8))
            accesses = [
                access for _ in range(50) for access in ((0x1000, A + offset, 8, LOAD), (0x1000, A + offset, 8, STORE))
            ]
            builder.window(
                begin + 10, accesses, thread=thread, end_ns=begin + 500, executed=10_000, first_executed=10_000 * number
            )
    return builder


def test_sharing_in_windows_needs_both_threads_in_the_same_time(tmp_path: Path) -> None:
    from memlens.analyses.findings.false_sharing import check

    for overlap in (True, False):
        capture = both_in_windows(overlap).open(tmp_path / f"{overlap}.memlens")
        result = line_sharing(capture)
        (row,) = result.tables["lines"].to_pylist()
        assert row["kind"] == "false" and min(row["windows"], row["other_windows"]) >= (9 if overlap else 0)
        found = check(capture, {"sharing": result})
        assert len(found) == overlap
        if found:
            assert "is not seen in windows" in found[0].claim


def test_what_threads_share_is_no_value_that_is_reloaded(tmp_path: Path) -> None:
    """A counter that two threads write is loaded again and again because it has to be."""
    from memlens.analyses.findings.reloaded_value import check

    capture = both_in_windows(True).open(tmp_path / "a.memlens")
    results = {name: memlens.analyses.run(name, capture) for name in ("patterns", "sharing")}
    assert not check(capture, results)


MATCHES = r"""
#include <stdlib.h>
#include <string.h>
enum { SIZE = 1 << 16, CHAINS = 1 << 12, DEPTH = 16 };
static unsigned char text[SIZE + 300];
static int *head, *before, *counts;
__attribute__((noinline)) static int longest(int at) {
  int best = 0;
  for (int other = head[(text[at] * 31 + text[at + 1]) % CHAINS], n = 0; other >= 0 && n < DEPTH; other = before[other], n++) {
    int length = 0;
    while (length < 64 && text[at + length] == text[other + length]) length++;
    if (length > best) best = length;
  }
  return best;
}
__attribute__((noinline)) static void enter(int at) {
  int chain = (text[at] * 31 + text[at + 1]) % CHAINS;
  before[at] = head[chain];
  head[chain] = at;
}
__attribute__((noinline)) static void tally(const unsigned char *from, int n) { for (int i = 0; i < n; i++) counts[from[i]]++; }
int main(void) {
  head = malloc(CHAINS * sizeof *head), before = malloc(SIZE * sizeof *before), counts = calloc(256, sizeof *counts);
  memset(head, 255, CHAINS * sizeof *head);
  unsigned long r = 88172645463325252ul;
  for (int i = 0; i < SIZE + 300; i++) { r ^= r << 13, r ^= r >> 7, r ^= r << 17; text[i] = i > 64 && r % 5 ? text[i - 1 - r / 64 % 60] : 97 + r / 8 % 20; }
  long s = 0;
  for (int at = 0; at < SIZE;) {
    int n = longest(at);
    s += n;
    for (int end = at + (n > 3 ? n : 1); at < end && at < SIZE; at++) enter(at);
    if (at % 7 == 0) tally(text + at / 2, 200);
  }
  return s == 0;
}
"""
STATED = {
    "constant_percent": "constant_percent", "window_growth": "window_growth", "window_irregular_percent": "window_irregular_percent",
    "window_reuse_distance_mean": "window_reuse_distance",
}  # fmt: skip


@pytest.mark.slow
@needs_clang
def test_intervals_of_a_match_finder_hold_as_often_as_they_claim(tmp_path: Path) -> None:
    """A program whose functions change with their input: 60 samples, 95 % claimed, of all stated intervals at least 90 % hold."""
    capture = recorded(traced(tmp_path, MATCHES, "p", "-O2"), "full,on-full=wait")
    source = list(ThreadAccesses(capture).batches(constants=True))
    length = sum(ThreadAccesses(capture).lengths)
    window, period = 300, max(3000, length // 120)

    def rows(**options: Any) -> dict[Any, dict[str, Any]]:
        result = locality(capture, by="function", heat_columns=0, **options)
        return {
            row.get("function"): row
            for name in ("by_program", "by_function")
            for row in result.tables[name].to_pylist()
        }

    whole, tiles = rows(), rows(accesses=DrawnAccesses.tiled(capture, window, source=source))
    held: dict[str, list[bool]] = defaultdict(list)
    for seed in range(60):
        for key, row in rows(accesses=DrawnAccesses.drawn(capture, window, period, seed=seed, source=source)).items():
            if row["under_sampled"] or whole[key]["share"] < 0.01:
                continue
            for name, interval in STATED.items():
                truth = (tiles if name.startswith("window") else whole)[key][name]
                low, high = row[f"{interval}_low"], row[f"{interval}_high"]
                if truth is not None and low is not None:
                    held[name].append(low - 0.001 * truth <= truth <= high + 0.001 * truth)
    shares = {name: sum(found) / len(found) for name, found in held.items()}
    assert set(shares) == set(STATED) and all(share >= 0.9 for share in shares.values()), shares
