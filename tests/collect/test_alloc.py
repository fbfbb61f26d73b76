"""Collector alloc against programs that know the answer: every call, its size, order, thread, time and call stack."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alloc_oracle import (
    EVERY,
    HEAP,
    IN_REALLOC,
    MAPPINGS,
    allocations,
    births,
    compare,
    read_log,
    releases,
    stacks,
)
from conftest import run_memlens, workload_path

import memlens

Record = Callable[..., memlens.Capture]


def compile_program(tmp_path: Path, name: str, source: str, *flags: str, compiler: str = "gcc") -> Path:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed: sudo apt-get install {compiler.replace('++', '')}")
    suffix = "cpp" if "++" in compiler else "c"
    text = tmp_path / f"{name}.{suffix}"
    text.write_text(source)
    done = subprocess.run(
        [compiler, "-g", "-O1", "-fno-builtin", str(text), "-o", str(tmp_path / name), "-pthread", *flags, "-ldl"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / name


def assert_nothing_lost(capture: memlens.Capture) -> None:
    channel = capture.meta["channel"]
    assert {name: channel[name] for name in ("dropped", "damaged", "holes", "refused", "nested")} == dict.fromkeys(
        ("dropped", "damaged", "holes", "refused", "nested"), 0
    )
    assert capture.table("losses").num_rows == 0
    written = sum(row["records"] for row in capture.table("runtime_status").to_pylist())
    assert written == channel["records"]


# ---- calls ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["case_alloc_calls", "case_alloc_new"])
def test_every_call_is_recorded_as_it_was_made(record: Record, tmp_path: Path, name: str) -> None:
    capture = record(workload_path(name), "--log", tmp_path / "log", options=EVERY)
    calls = read_log(tmp_path / "log")
    compared = compare(capture, calls)
    assert compared >= {"case_alloc_calls": 1000, "case_alloc_new": 10}[name]
    assert_nothing_lost(capture)


def test_what_is_never_released_lives_to_the_end(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_calls"), "--log", tmp_path / "log", options=EVERY)
    kept = [call for call in read_log(tmp_path / "log") if call.bytes == 12345]
    assert len(kept) == 1
    assert not [
        row for row in releases(capture) if row["address"] == kept[0].address and row["time_ns"] > kept[0].end_ns
    ]


def test_alignment_is_recorded(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_calls"), "--log", tmp_path / "log", options=EVERY)
    shifts = [row["alignment_shift"] for row in births(capture) if row["operation"] == "aligned"]
    assert shifts == [6, 8, 5, 12, 12]


def test_sampling_keeps_every_large_object_and_its_release(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_calls"), "--log", tmp_path / "log", options=("--sample-bytes", "1G"))
    large = [call for call in read_log(tmp_path / "log") if call.bytes >= 65536]
    rows = births(capture)
    assert [(r["address"], r["bytes"]) for r in rows if r["bytes"] >= 65536] == [(c.address, c.bytes) for c in large]
    assert all(r["weight_bytes"] == 0 for r in rows if r["bytes"] >= 65536)
    # Each was released, by realloc or free, but for those that failed.
    live: dict[int, int] = {}
    released = 0
    for row in allocations(capture, operations=HEAP):
        if row["operation"] in ("free", "delete"):
            released += live.pop(row["address"], 0) >= 65536
        elif row["address"]:
            live[row["address"]] = row["bytes"]
    assert released == len([c for c in large if c.address])


def test_an_object_that_fails_to_grow_lives_on_when_sampled(record: Record, tmp_path: Path) -> None:
    program = compile_program(
        tmp_path,
        "fails",
        """#include <stdint.h>
           #include <stdlib.h>
           int main(void) { char *p = malloc(70001); if (realloc(p, SIZE_MAX / 2)) return 1; free(p); return 0; }""",
    )
    capture = record(program)
    rows = [r for r in allocations(capture, operations=HEAP)]
    assert [
        (r["operation"], r["bytes"], r["flags"]) for r in rows if r["bytes"] == 70001 or r["operation"] == "free"
    ] == [
        ("malloc", 70001, 0),
        ("free", 0, 0),
    ]


# ---- threads ------------------------------------------------------------------------------------------------------------
def test_eight_threads_that_release_each_others_objects(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_threads"), "--log", tmp_path / "log", options=EVERY)
    calls = read_log(tmp_path / "log")
    assert len(calls) == 160_000
    compare(capture, calls, with_stacks=False)
    assert_nothing_lost(capture)
    made_by = {call.address: call.thread for call in calls if call.operation == "malloc"}
    assert all(made_by[call.address] != call.thread for call in calls if call.operation == "free")
    workers = set(made_by.values())
    stack_ids = {r["stack"] for r in births(capture) if r["thread"] in workers and r["address"] in made_by}
    assert 0 not in stack_ids and len(stack_ids) <= 3  # one call in one function, and what a thread's start allocates


def test_threads_tell_where_their_memory_lies(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_threads"), "--objects", "10", "--threads", "5", options=EVERY)
    rows = capture.table("thread_memory").to_pylist()
    threads = {row["thread"] for row in rows if row["thread"]}
    created = [row for row in rows if row["creator"]]
    assert len(threads) == 6 and len(created) == 5
    pointers = {row["thread_pointer"] for row in rows if row["thread"]}
    assert all(row["thread_pointer"] in pointers for row in created)


# ---- processes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "children", "processes"),
    [("fork", 5, 6), ("_Fork", 3, 4), ("clone", 3, 4), ("nested", 2, 9), ("threads", 5, 6)],
)
def test_children_release_their_parents_objects(
    record: Record, tmp_path: Path, how: str, children: int, processes: int
) -> None:
    log = tmp_path / "log"
    capture = record(
        workload_path("case_alloc_fork"), "--how", how, "--children", str(children), "--log", log, options=EVERY
    )
    calls = read_log(log)
    assert len({call.pid for call in calls}) == processes
    compare(capture, calls)
    assert_nothing_lost(capture)
    assert len({row["pid"] for row in capture.table("runtime_status").to_pylist()}) == processes


@pytest.mark.parametrize(("how", "images"), [("vfork", 4), ("spawn", 4), ("system", 4)])
def test_programs_started_by_the_program_are_recorded(record: Record, tmp_path: Path, how: str, images: int) -> None:
    log = tmp_path / "log"
    capture = record(workload_path("case_alloc_fork"), "--how", how, "--children", "3", "--log", log, options=EVERY)
    compare(capture, read_log(log))
    status = capture.table("runtime_status").to_pylist()
    assert len(status) >= images
    assert capture.meta["channel"]["refused"] == 0


def test_a_chain_of_execs_is_one_process_with_several_lives(record: Record, tmp_path: Path) -> None:
    program = compile_program(
        tmp_path,
        "chain",
        """#include <stdio.h>
           #include <stdlib.h>
           #include <unistd.h>
           int main(int argc, char **argv) {
             int left = atoi(argv[1]);
             for (int i = 0; i < 100; i++) free(malloc(20000 + left));
             if (left == 0) return 0;
             char next[16]; sprintf(next, "%d", left - 1);
             execl(argv[0], argv[0], next, (char *)0);
             return 1; }""",
    )
    capture = record(program, "5", options=EVERY)
    sizes = Counter(row["bytes"] for row in births(capture) if 20000 <= row["bytes"] <= 20005)
    assert sizes == dict.fromkeys(range(20000, 20006), 100)
    assert len(capture.table("runtime_status").to_pylist()) == 6
    assert_nothing_lost(capture)


# ---- moments ---------------------------------------------------------------------------------------------------------------
def test_odd_moments(record: Record) -> None:
    capture = record(workload_path("case_alloc_moments"), options=EVERY)
    rows = [row for row in births(capture) if 10101 <= row["bytes"] <= 10113]
    assert Counter(row["bytes"] for row in rows) == {size: 20 if size == 10108 else 1 for size in range(10101, 10114)}
    freed = {(r["address"], r["time_ns"]) for r in releases(capture)}
    for row in rows:
        lives_on = row["bytes"] % 2 == 1
        released = any(address == row["address"] and time_ns >= row["time_ns"] for address, time_ns in freed)
        assert released or lives_on, row
    known = stacks(capture)
    assert all(known[row["stack"]]["ips"] for row in rows)
    cut = Counter(row["bytes"] for row in rows if known[row["stack"]]["truncated"])
    assert not cut, f"stacks that were cut short: {cut}"
    assert_nothing_lost(capture)


def test_stacks_of_signal_handlers_reach_the_interrupted_function(record: Record, tmp_path: Path) -> None:
    program = compile_program(
        tmp_path,
        "ticks",
        """#define _GNU_SOURCE
           #include <signal.h>
           #include <stdio.h>
           #include <stdlib.h>
           #include <sys/time.h>
           static volatile int ticks;
           static void handler(int n) { (void)n; free(malloc(7777)); ticks++; }
           __attribute__((noinline)) unsigned long compute(unsigned long x) {
             while (ticks < 10) for (int i = 0; i < 1000; i++) x = x * 31 + 7;
             return x; }
           int main(void) {
             printf("%p %p\\n", (void *)compute, (void *)main); fflush(stdout);
             signal(SIGALRM, handler);
             struct itimerval t = {{0, 3000}, {0, 3000}}; setitimer(ITIMER_REAL, &t, 0);
             return compute(1) == 42; }""",
        "-O2",
    )
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", *EVERY, "-o", output, "--", program)
    assert done.returncode == 0
    compute, main = (int(text, 16) for text in done.stdout.split())
    capture = memlens.open(output)
    known = stacks(capture)
    rows = [row for row in births(capture) if row["bytes"] == 7777]
    assert len(rows) >= 10
    for row in rows:
        stack = known[row["stack"]]
        assert any(compute <= ip < compute + 512 for ip in stack["ips"]), [hex(ip) for ip in stack["ips"]]
        assert any(main <= ip < main + 512 for ip in stack["ips"])
        assert not stack["truncated"]


def test_handlers_that_interrupt_the_recording_itself_lose_nothing_uncounted(record: Record, tmp_path: Path) -> None:
    """A signal every 100 microseconds, mostly inside our own code: each mmap in its handler is recorded or counted."""
    program = compile_program(
        tmp_path,
        "interrupted",
        """#define _GNU_SOURCE
           #include <signal.h>
           #include <stdio.h>
           #include <stdlib.h>
           #include <sys/mman.h>
           #include <sys/time.h>
           static volatile long ticks;
           static void handler(int n) {
             (void)n;
             void *p = mmap(0, 12345, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
             munmap(p, 12345);
             ticks++; }
           int main(void) {
             signal(SIGALRM, handler);
             struct itimerval t = {{0, 100}, {0, 100}}, none = {{0, 0}, {0, 0}};
             setitimer(ITIMER_REAL, &t, 0);
             for (int i = 0; i < 150000; i++) free(malloc(7000));
             setitimer(ITIMER_REAL, &none, 0);
             free(malloc(1000000 + ticks)); return 0; }""",
    )
    capture = record(program, options=EVERY)
    ticks = next(row["bytes"] for row in births(capture) if row["bytes"] >= 1_000_000) - 1_000_000
    assert sum(row["bytes"] == 7000 for row in births(capture)) == 150_000
    seen = [row for row in allocations(capture, operations=MAPPINGS) if row["bytes"] == 12345]
    channel = capture.meta["channel"]
    assert channel["dropped"] == channel["holes"] == channel["damaged"] == 0
    assert ticks > 50 and len(seen) + channel["nested"] == 2 * ticks


LIBRARY = """
#include <stdlib.h>
__attribute__((noinline)) void *NAME(void) { void *p = malloc(SIZE); return p; }
__attribute__((constructor)) static void come(void) { free(malloc(SIZE + 1)); }
__attribute__((destructor)) static void go(void) { free(malloc(SIZE + 2)); }
"""


def test_two_libraries_at_one_address_do_not_share_stacks(record: Record, tmp_path: Path) -> None:
    for name, size in (("one", 31000), ("two", 32000)):
        (tmp_path / f"{name}.c").write_text(LIBRARY.replace("NAME", "work").replace("SIZE", str(size)))
        subprocess.run(
            ["gcc", "-O1", "-g", "-fno-builtin", "-shared", "-fPIC", f"{name}.c", "-o", f"lib{name}.so"],
            cwd=tmp_path,
            check=True,
        )
    program = compile_program(
        tmp_path,
        "loader",
        """#include <dlfcn.h>
           #include <stdio.h>
           #include <stdlib.h>
           int main(int argc, char **argv) {
             for (int round = 0; round < 6; round++) {
               void *library = dlopen(argv[1 + round % 2], RTLD_NOW);
               if (!library) return 1;
               void *(*work)(void) = (void *(*)(void))dlsym(library, "work");
               printf("%p\\n", (void *)work);
               free(work());
               dlclose(library);
             }
             return 0; }""",
    )
    output = tmp_path / "c.memlens"
    done = run_memlens(
        "record", "-q", *EVERY, "-o", output, "--", program, tmp_path / "libone.so", tmp_path / "libtwo.so"
    )
    assert done.returncode == 0
    assert len(set(done.stdout.split())) == 1, "the loader put them at different addresses: the test tests nothing"
    capture = memlens.open(output)
    rows = births(capture)
    assert Counter(row["bytes"] for row in rows if 31000 <= row["bytes"] < 32003) == {
        size + more: 3 for size in (31000, 32000) for more in (0, 1, 2)
    }
    of_one = {row["stack"] for row in rows if 31000 <= row["bytes"] < 31003}
    of_two = {row["stack"] for row in rows if 32000 <= row["bytes"] < 32003}
    assert of_one and of_two and not of_one & of_two
    known = stacks(capture)
    assert all(known[i]["ips"] for i in of_one | of_two)


# ---- mappings and pinning ----------------------------------------------------------------------------------------------------
def test_mappings(record: Record, tmp_path: Path) -> None:
    capture = record(workload_path("case_alloc_mappings"), "--log", tmp_path / "log", options=EVERY)
    calls = read_log(tmp_path / "log")
    rows = [row for row in allocations(capture, operations=MAPPINGS)]
    for row in rows:
        if row["operation"] == "mremap":
            row["flags"] = 0
    compare(capture, [c for c in calls if c.operation not in ("malloc", "free")], operations=MAPPINGS)
    brk = [call for call in calls if call.operation == "brk"]
    ends = [
        row["address"] + row["bytes"]
        for row in allocations(capture, operations={"brk"})
        if row["time_ns"] <= brk[0].end_ns
    ]
    assert ends[-1] == brk[0].address


def test_pinning_of_threads(tmp_path: Path) -> None:
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", *EVERY, "-o", output, "--", workload_path("case_alloc_pinning"))
    assert done.returncode == 0, done.stderr
    main, worker = (int(line.split("=")[1]) for line in done.stderr.splitlines())
    rows = [
        r for r in memlens.open(output).table("pinning_events").to_pylist() if r["operation"] == "sched_setaffinity"
    ]
    assert [(row["thread"], row["result"]) for row in rows] == [(main, 0), (main, 0), (worker, 0)]
    assert all(int.from_bytes(row["tail"], "little") == 1 for row in rows)  # CPU 0, and no other


LIBNUMA = """
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
  if (numa_available() < 0) return 77;
  unsigned long nodes = 1;
  char *p = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mbind(p, 65536, MPOL_BIND, &nodes, 64, 0) != 0) return 77;
  memset(p, 1, 65536);
  if (set_mempolicy(MPOL_PREFERRED, &nodes, 64) != 0) return 77;
  if (set_mempolicy(MPOL_DEFAULT, NULL, 0) != 0) return 77;
  char *q = numa_alloc_onnode(8192, 0);
  if (!q) return 77;
  numa_free(q, 8192);
  void *pages[1] = {p}; int node[1] = {0}, status[1];
  move_pages(0, 1, pages, node, status, 0);
  printf("%p\\n", (void *)p);
  return 0;
}"""


def test_memory_policies_set_through_libnuma(tmp_path: Path) -> None:
    if not Path("/usr/include/numa.h").exists():
        pytest.skip("libnuma is not installed: sudo apt-get install libnuma-dev")
    program = compile_program(tmp_path, "policies", LIBNUMA, "-lnuma")
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", *EVERY, "-o", output, "--", program)
    if done.returncode == 77:
        pytest.skip("this kernel refuses memory policies")
    assert done.returncode == 0, done.stderr
    rows = [r for r in memlens.open(output).table("pinning_events").to_pylist() if r["operation"] != "found"]
    operations = [row["operation"] for row in rows]
    assert operations.count("set_mempolicy") >= 2
    mbinds = [row for row in rows if row["operation"] == "mbind"]
    assert (mbinds[0]["address"], mbinds[0]["bytes"], mbinds[0]["policy"]) == (int(done.stdout, 16), 65536, 2)
    assert int.from_bytes(mbinds[0]["tail"], "little") == 1  # node 0
    assert "move_pages" in operations


# ---- sampling ---------------------------------------------------------------------------------------------------------------
def mix64(x: int) -> int:
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def mix_bytes(i: int) -> int:
    """bytes_of() of case_alloc_mix.c."""
    if i % 10000 == 0:
        return 65536 + i // 10000 % 3
    if i % 8 < 6:
        return mix64(i) % 16 + 16
    if i % 8 == 6:
        return mix64(i) % 4096 + 64
    return mix64(i) % 61440 + 4096


@pytest.mark.parametrize(("sample_bytes", "threads"), [(512 << 10, 2), (32 << 10, 2), (4 << 10, 1)])
def test_the_sample_is_unbiased(record: Record, sample_bytes: int, threads: int) -> None:
    """Estimates of bytes and count lie within 4 standard errors of the truth, for all small objects and for a class.

    The first 5,000 objects are recorded as they are. An object of b bytes after them is in the sample with the chance
    p = 1 - exp(-b / R), R growing up to S, independently of others (the process is memoryless), and stands for b / p bytes
    and 1 / p objects. So the estimate of a sum of x has the variance sum x^2 (1 - p) / p, estimated by
    sum x^2 (1 - p) / p^2 over the sample, and at most that of R = S.
    """
    capture = record(
        workload_path("case_alloc_mix"), "--threads", str(threads), options=("--sample-bytes", str(sample_bytes))
    )
    sizes = Counter(mix_bytes(i) for i in range(400_000))
    rows = [row for row in births(capture) if row["operation"] == "malloc"]
    large = Counter(row["bytes"] for row in rows if 65536 <= row["bytes"] <= 65538)
    assert large == {size: count * threads for size, count in sizes.items() if size >= 65536}
    classes: dict[str, Callable[[int], bool]] = {
        "small": lambda b: 16 <= b < 32, "middle": lambda b: 64 <= b < 4160, "all": lambda b: b < 65536,
    }  # fmt: skip
    for name, belongs in classes.items():
        chosen = {size: count * threads for size, count in sizes.items() if belongs(size)}
        sampled = [row for row in rows if belongs(row["bytes"]) and row["bytes"] >= 16]
        assert 4900 <= sum(row["weight_bytes"] == 0 for row in rows if row["bytes"] < 65536) <= 5000  # less other calls
        chance = {size: -math.expm1(-size / sample_bytes) for size in chosen}
        for what, value in (("bytes", lambda b: float(b)), ("count", lambda b: 1.0)):
            truth = sum(value(size) * count for size, count in chosen.items())
            most = math.sqrt(
                sum(value(size) ** 2 * count * (1 - chance[size]) / chance[size] for size, count in chosen.items())
            )
            inverse = [max(1.0, row["weight_bytes"] / row["bytes"]) for row in sampled]
            error = math.sqrt(
                sum(value(r["bytes"]) ** 2 * (1 - 1 / w) * w * w for r, w in zip(sampled, inverse, strict=True))
            )
            assert error < 1.5 * most
            estimate = sum(w * value(row["bytes"]) for row, w in zip(sampled, inverse, strict=True))
            # What the program's start allocates besides is below one standard error.
            assert abs(estimate - truth) < 4.5 * most, f"{name} {what}: {estimate} for {truth}, standard error {most}"


def test_weights_are_bytes_over_chance(record: Record) -> None:
    capture = record(workload_path("case_alloc_mix"), "--objects", "50000", options=("--sample-bytes", "8192"))
    rows = [row for row in births(capture) if row["weight_bytes"]]
    assert len(rows) > 1000
    for row in rows:
        # The mean distance grows from 4096 to what was asked for.
        least, most = (row["bytes"] / -math.expm1(-row["bytes"] / rate) for rate in (4096, 8192))
        assert least - 0.51 <= row["weight_bytes"] <= most + 0.51


def test_sampled_objects_are_released_exactly_once(record: Record) -> None:
    capture = record(workload_path("case_alloc_mix"), "--objects", "50000", options=("--sample-bytes", "8192"))
    live: dict[int, dict[str, Any]] = {}
    for row in allocations(capture, operations=HEAP):
        if row["operation"] == "free":
            assert live.pop(row["address"], None) is not None or row["flags"] & IN_REALLOC, row
        else:
            assert row["address"] not in live, row
            live[row["address"]] = row
    assert capture.meta["channel"]["untracked"] == 0
    assert sum(row["bytes"] < 65536 for row in live.values()) < 40  # the program's start, not its objects


def test_query_sees_the_tables(tmp_path: Path, record: Record) -> None:
    capture = record(workload_path("case_alloc_mix"), "--objects", "20000", options=EVERY)
    done = run_memlens(
        "query", capture.path, "SELECT count(*) AS n, sum(bytes) AS b FROM allocations WHERE operation = 'malloc'"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b20\d\d\d\b", done.stdout), done.stdout
