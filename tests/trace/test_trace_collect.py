"""Collector `trace` from end to end: a program built with `memlens cc --memlens=trace`, recorded, decoded, joined with objects."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from count_runs import each_clang, environment, needs_clang

import memlens
from memlens.analyses.object_accesses import object_accesses
from memlens.collect.collectors.trace import tracing
from memlens.errors import UsageError

SOURCE = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define N 20000
static double a[N], b[N];
static int idx[N];
struct node { struct node *next; long value; };
__attribute__((noinline)) static void scale(double *to, const double *from, long n) {
#pragma clang loop vectorize(disable) unroll(disable)
  for (long i = 0; i < n; i++) to[i] = from[i] * 2;
}
__attribute__((noinline)) static double pick(const double *t, const int *at, long n) {
  double s = 0;
#pragma clang loop vectorize(disable) unroll(disable)
  for (long i = 0; i < n; i++) s += t[at[i]];
  return s;
}
__attribute__((noinline)) static long chase(const struct node *at) {
  long s = 0;
  for (; at; at = at->next) s += at->value;
  return s;
}
__attribute__((noinline)) static void bulk(char *to, const char *from, size_t n) { memcpy(to, from, n); }
static void *work(void *rounds) {
  for (long r = 0; r < (long)rounds; r++) scale(b, a, N);
  return NULL;
}
int main(int count, char **arguments) {
  long rounds = count > 1 ? atol(arguments[1]) : 20;
  struct node *nodes = malloc(N * sizeof *nodes);
  for (long i = 0; i < N; i++) {
    nodes[i].value = i;
    nodes[i].next = i + 1 < N ? &nodes[i + 1] : NULL;
    idx[i] = (int)(i * 7919 % N);
  }
  double s = 0;
  if (count > 2 && strcmp(arguments[2], "threads") == 0) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, work, (void *)rounds);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  }
  for (long r = 0; r < rounds; r++) {
    scale(b, a, N);
    a[r % N] = (double)r;
    s += pick(b, idx, N) + (double)chase(nodes + r % 7);
    bulk((char *)b, (char *)a, sizeof a - (size_t)(r % 100));
  }
  if (count > 2 && strcmp(arguments[2], "fork") == 0) {
    if (fork() == 0) {
      work((void *)rounds);
      exit(0);
    }
    wait(NULL);
  }
  if (count > 2 && strcmp(arguments[2], "kill") == 0) raise(SIGKILL);
  printf("%g\n", s);
  return 0;
}
"""
N = 20_000
pytestmark = needs_clang


def run(*arguments: object, status: int = 0, clang: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "memlens", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(clang) if clang else None,
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "p.c").write_text(SOURCE)
    run("cc", "--memlens=trace", "-O2", "-g", folder / "p.c", "-o", folder / "p", "-pthread")
    return folder / "p"


def record(
    program: Path, folder: Path, how: str, *arguments: object, status: int = 0, collectors: str = "alloc,trace"
) -> Any:
    output = folder / "run.memlens"
    run("record", "-q", "--force", "-o", output, "--collectors", collectors, f"--trace={how}", "--", program, *arguments, status=status)  # fmt: skip
    return memlens.open(output)


def rows(capture: Any, question: str) -> list[tuple[Any, ...]]:
    import duckdb

    connection = duckdb.connect()
    for name in ("accesses", "sites", "trace_sites", "windows"):
        if name in question:
            connection.register(name, capture.table(name))
    return connection.execute(question).fetchall()


def test_a_full_trace_has_every_access_of_every_line(program: Path, tmp_path: Path) -> None:
    rounds = 3
    capture = record(program, tmp_path, "full,on-full=wait", rounds)
    found = {
        (function, operation, width): count
        for function, operation, width, count in rows(
            capture,
            "SELECT s.function, a.operation, a.bytes, count(*) FROM accesses a JOIN sites s ON a.code = s.id GROUP BY ALL",
        )
    }
    assert found["scale", "load", 8] == found["scale", "store", 8] == rounds * N
    assert found["pick", "load", 8] == found["pick", "load", 4] == rounds * N
    assert found["chase", "load", 8] == sum(2 * (N - r % 7) for r in range(rounds))
    for r in range(rounds):  # sizes that are known only at run time
        assert found["bulk", "load", 8 * N - r] == found["bulk", "store", 8 * N - r] == 1
    assert {weight for (weight,) in rows(capture, "SELECT DISTINCT weight FROM accesses")} == {1.0}
    assert capture.windows.thread_totals == capture.meta["trace"]["executed"] == capture.meta["trace"]["recorded"] + capture.meta["trace"]["implied"]  # fmt: skip


def test_functions_are_chosen_when_the_program_runs(program: Path, tmp_path: Path) -> None:
    rounds = 12
    output = tmp_path / "some.memlens"
    question = "SELECT s.function, count(*), sum(a.weight) FROM accesses a JOIN sites s ON a.code = s.id GROUP BY ALL"
    everything = record(program, tmp_path, "full,on-full=wait", rounds).meta["trace"]["executed"]

    def some(how: str, functions: str) -> Any:
        run("record", "-q", "--force", "-o", output, "--collectors", "trace", f"--trace={how}", "--functions", functions, "--", program, rounds)  # fmt: skip
        return memlens.open(output)

    capture = some("full,on-full=wait", "^(pick|bulk)$")
    assert {(f, n) for f, n, _ in rows(capture, question)} == {("pick", 2 * rounds * N), ("bulk", 2 * rounds)}
    assert capture.meta["trace"]["executed"] == everything
    # Windows are drawn over everything, so that the estimate has no bias: pick makes 2 of 8 accesses of a round.
    found = rows(some("window=200,period=2000,seed=3", "^pick$"), question)
    assert [f for f, _, _ in found] == ["pick"]
    windows = everything / 2000
    share = 2 * rounds * N / everything
    assert abs(found[0][2] / everything - share) < 5 * (share * (1 - share) / windows) ** 0.5
    listed = tmp_path / "hot.txt"
    listed.write_text("# hot\n^chase$\n^scale$\n")
    assert {f for f, _, _ in rows(some("window=50,period=500", f"@{listed}"), question)} == {"chase", "scale"}
    refused = run(
        "record", "-o", tmp_path / "none.memlens", "--trace", "--functions", "nothing", "--", program, status=64
    )
    assert "no traced function of p or its libraries matches --functions 'nothing'" in refused.stderr


def test_classes_and_strides(program: Path, tmp_path: Path) -> None:
    capture = record(program, tmp_path, "window=100,period=1000", 2)
    found = set(
        rows(capture, "SELECT function, operation, class, kind, stride_bytes FROM trace_sites WHERE NOT implied")
    )
    assert {("scale", "load", "strided", "plain", 8), ("scale", "store", "strided", "plain", 8)} <= found
    assert {("pick", "load", "strided", "plain", 4), ("pick", "load", "irregular", "computed", None)} <= found
    assert ("chase", "load", "irregular", "chase", None) in found


def test_windows_estimate_what_a_full_trace_counts(program: Path, tmp_path: Path) -> None:
    rounds = 1000  # some 0.1 s: a recorder that comes after its end cannot name what was allocated
    capture = record(program, tmp_path, "window=500,period=5000,on-full=wait,seed=3", rounds)
    result = object_accesses(capture)
    by_function = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    exact = {"scale": 2 * N * rounds, "pick": 2 * N * rounds, "chase": sum(2 * (N - r % 7) for r in range(rounds))}
    for name, total in exact.items():
        row = by_function[name]
        assert abs(row["accesses"] - total) < 4 * row["accesses_error"] + 5000, (name, row, total)
    by_object = {row["object"]: row for row in result.tables["by_object"].to_pylist()}
    heap = next(row for name, row in by_object.items() if name.startswith("heap of main"))
    assert abs(heap["accesses"] - exact["chase"] - 2 * N) < 4 * heap["accesses_error"] + 5000
    assert by_object["a"]["kind"] == by_object["idx"]["kind"] == "static"
    executed = capture.meta["trace"]["executed"]
    assert abs(capture.meta["trace"]["windows"] - executed / 5000) <= max(0.01 * executed / 5000, 1.5)
    windows = capture.table("windows")
    assert windows.num_rows == capture.meta["trace"]["windows"] and "end" not in windows.column_names
    stacks = set(windows.column("stack").to_pylist())
    assert 0 not in stacks and len(stacks) >= 3, "one for each function that runs"


def test_locality_knows_static_classes_and_functions(program: Path, tmp_path: Path) -> None:
    from memlens import analyses
    from memlens.analyses.caches import cache_model

    capture = record(program, tmp_path, "window=500,period=5000,seed=3", 40)
    result = analyses.locality(capture, by="function")
    rows = {row["function"]: row for row in result.tables["by_function"].to_pylist()}
    assert result.figures["class_origin"] == "static"
    assert rows["scale"]["window_irregular_percent"] == 0
    assert rows["pick"]["window_irregular_percent"] == pytest.approx(50, abs=5)
    assert rows["chase"]["window_irregular_percent"] == pytest.approx(100)
    modelled = {row["function"] for row in cache_model(capture, by=["function"]).tables["by_function"].to_pylist()}
    assert {"scale", "pick", "chase"} <= modelled


def test_threads_and_forks_tell_their_totals(program: Path, tmp_path: Path) -> None:
    for what, parts in (("threads", 5), ("fork", 2)):
        capture = record(program, tmp_path, "window=100,period=1000,on-full=wait", 5, what)
        ends = capture.windows.columns["first_executed"][capture.windows.is_end]
        assert len(ends) == parts
        assert ends.sum() == capture.meta["trace"]["executed"]
        assert all(total is not None for (total,) in rows(capture, "SELECT code FROM accesses USING SAMPLE 1000"))


def test_a_killed_program_leaves_a_sound_capture(program: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed.memlens"
    done = subprocess.run([sys.executable, "-m", "memlens", "record", "-q", "-o", output, "--trace=window=100,period=1000", "--", program, "50", "kill"], capture_output=True)  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    capture = memlens.open(output)
    assert capture.table("accesses").num_rows > 1000
    assert capture.windows.damaged == 0


def test_only_loads(program: Path, tmp_path: Path) -> None:
    capture = record(program, tmp_path, "window=500,period=5000,loads,on-full=wait", 100)
    assert {operation for (operation,) in rows(capture, "SELECT DISTINCT operation FROM accesses")} == {"load"}
    total = sum(weight for (weight,) in rows(capture, "SELECT sum(weight) FROM accesses JOIN sites ON code = id WHERE function = 'scale'"))  # fmt: skip
    assert abs(total - 100 * N) < 0.15 * 100 * N


def test_a_program_that_was_not_built_for_it_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memlens", "record", "--trace", "-o", tmp_path / "x.memlens", "--", "/bin/true"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode != 0 and "--memlens=trace" in done.stderr and "Traceback" not in done.stderr


def test_a_static_program_is_told_so(program: Path, tmp_path: Path) -> None:
    static = tmp_path / "static"
    run("cc", "--memlens=trace", "-O2", "-static", program.parent / "p.c", "-o", static, "-pthread")
    capture = record(static, tmp_path, "window=100,period=1000", 1)
    assert any("not loaded" in note for note in capture.meta["quality"]["notes"])


@pytest.mark.parametrize(
    "text",
    [
        "window=0",
        "period=ten",
        "windows=3",
        "window=10,period=10",
        "on-full=maybe",
        "full=1",
        "period=9999999999999999",
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as error:
        tracing.parse(text)
    assert error.value.hint


def test_settings_reach_the_program_and_the_capture(program: Path, tmp_path: Path) -> None:
    capture = record(program, tmp_path, "window=100,period=1000,seed=5,stacks=off", 2)
    meta = json.loads((Path(capture.path) / "meta.json").read_text())
    assert meta["collectors"]["trace"] == {"window": 100, "period": 1000, "seed": 5, "loads_only": False, "regions": [], "functions": "", "stacks": False, "on_full": "drop"}  # fmt: skip
    assert set(capture.windows.columns["stack"].tolist()) == {0}


PRETEND_TWO_NODES = """
import sys
from memlens.collect import facts
real = facts.gather
facts.gather = lambda: {**real(), "numa_nodes": 2}
from memlens.cli.main import main
sys.exit(main())
"""


def test_pages_of_windows_are_asked_for_their_nodes(program: Path, tmp_path: Path) -> None:
    """The kernel answers on one node too; what is asked and when is what a machine with several needs."""
    output = tmp_path / "nodes.memlens"
    words = [
        "record",
        "-q",
        "-o",
        output,
        "--collectors",
        "trace",
        "--trace=window=100,period=20000",
        "--",
        program,
        20_000,  # long enough for the recorder to come by, whatever else runs
    ]
    subprocess.run([sys.executable, "-c", PRETEND_TWO_NODES, *map(str, words)], check=True, timeout=300)
    capture = memlens.open(output)
    placements = capture.table("placements").to_pylist()
    touched = {a & ~4095 for (a,) in rows(capture, "SELECT address FROM accesses")}
    asked = [row["address"] for row in placements]
    assert len(asked) > 20 and set(asked) <= touched
    assert {row["node"] for row in placements} <= {0, -3, -14}  # -3: the program had ended, -14: the zero page
    assert sum(row["node"] == 0 for row in placements) > 20
    assert all(row["evidence_ns"] <= row["time_ns"] for row in placements)
    seen: dict[int, int] = {}  # a page is asked about again when its answer is old
    for row in sorted(placements, key=lambda row: row["time_ns"]):
        assert row["time_ns"] - seen.get(row["address"], -(1 << 62)) > 500_000_000
        seen[row["address"]] = row["time_ns"]
    assert json.loads((output / "meta.json").read_text())["slow"]["window_pages_asked"] >= len(asked)


@each_clang
def test_a_step_that_only_the_program_knows_is_strided(clang: str, tmp_path: Path) -> None:
    """A column of a matrix of any width, also under a condition and backwards; not a step that the loop changes, nor a loaded one."""
    (tmp_path / "s.c").write_text(r"""
#include <stdio.h>
#include <stdlib.h>
#define OWN __attribute__((noinline))
#define PLAINLY _Pragma("clang loop vectorize(disable) unroll(disable)")
OWN int column(const int *m, long width, long rows) {
  int s = 0;
  PLAINLY for (long i = 0; i < rows; i++) s ^= m[i * width] + s;
  return s;
}
OWN int guarded(const int *m, long step, long n, long from) {
  int s = 0;
  PLAINLY for (long i = 0; i < n; i++) s += i * step >= from ? m[i * step - from] : 1;
  return s;
}
OWN int growing(const int *m, long n) {
  int s = 0;
  PLAINLY for (long i = 0, step = 1; i < n; i += step, step++) s ^= m[i] + s;
  return s;
}
OWN int loaded(const int *m, const int *steps, long n) {
  int s = 0;
  long at = 0;
  PLAINLY for (long i = 0; i < n; i++) s ^= m[at += steps[i]] + s;
  return s;
}
int main(void) {
  int *m = calloc(1 << 16, sizeof *m), *steps = calloc(64, sizeof *steps);
  for (int i = 0; i < 1 << 16; i++) m[i] = rand();
  for (int i = 0; i < 64; i++) steps[i] = m[i] & 7;
  printf("%d\n", column(m, 100, 64) + guarded(m, 3, 64, 10) + growing(m, 4000) + loaded(m, steps, 64));
}
""")
    run("cc", "--memlens=trace", "-O2", "-g", "-w", tmp_path / "s.c", "-o", tmp_path / "s", clang=clang)
    capture = record(tmp_path / "s", tmp_path, "full,on-full=wait", collectors="trace")
    found = set(
        rows(
            capture,
            "SELECT function, class, kind, stride_bytes FROM trace_sites WHERE NOT implied AND operation = 'load'",
        )
    )
    assert {row for row in found if row[0] in ("column", "guarded")} == {
        ("column", "strided", "variable", None), ("guarded", "strided", "variable", None),
    }  # fmt: skip
    assert {row[1:] for row in found if row[0] == "growing"} == {("irregular", "computed", None)}
    assert {row[1:] for row in found if row[0] == "loaded"} == {
        ("strided", "plain", 4),
        ("irregular", "computed", None),
    }
    # What was recorded steps as the program was told.
    addresses = [
        a
        for (a,) in rows(
            capture,
            "SELECT a.address FROM accesses a JOIN trace_sites s ON a.code = s.code WHERE s.function = 'column'",
        )
    ]
    assert {b - a for a, b in pairwise(addresses)} == {400}
