"""The collector emulate against programs whose accesses are known one by one: modes, windows, pages, stacks, regions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, workload_path
from emulate_oracle import Functions
from emulate_tools import (
    LOAD,
    STACK_KNOWN,
    STORE,
    Access,
    accesses,
    build,
    build_fixed,
    by_pc,
    by_thread,
    chi_square,
    emulate,
    needs_emulation,
    needs_x86,
    of_functions,
    rows,
    whole_stream,
    windows,
)

import memlens

pytestmark = [needs_emulation, needs_x86]

N_STEPS = 1024
ACCESSES_OF_STEP = 6

# `walk` goes through an array in the order of a permutation; a step is six accesses of all kinds. `--threads` others do
# the same. Prints the addresses that the sequence depends on.
WALK = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#define N 1024
struct element { unsigned char bytes[32]; };
static struct element array[64][N];
static unsigned order[N];
void walk(const unsigned *order, struct element *array, unsigned long turns);
__asm__(".text\n.globl walk\n.type walk,@function\n"
        "walk:  mov $1024, %ecx\n"
        "       mov %rdi, %r9\n"
        "1:     mov (%r9), %eax\n"           /* 4 bytes of order */
        "       shl $5, %rax\n"
        "       mov (%rsi,%rax), %r8\n"      /* 8 bytes */
        "       mov %r8w, 10(%rsi,%rax)\n"   /* 2 bytes written */
        "       movdqu 16(%rsi,%rax), %xmm0\n"
        "       incl 28(%rsi,%rax)\n"        /* read and written */
        "       add $4, %r9\n"
        "       dec %ecx\n"
        "       jnz 1b\n"
        "       dec %rdx\n"
        "       jnz walk\n"
        "       ret\n.size walk,.-walk\n");
static unsigned long turns;
static void *run(void *mine) { walk(order, mine, turns); return NULL; }
int main(int argc, char **argv) {
  turns = strtoul(argv[1], NULL, 10);
  int threads = argc > 2 ? atoi(argv[2]) : 1;
  for (unsigned i = 0; i < N; i++) order[i] = i * 389 % N;
  pthread_t ids[64];
  for (int i = 1; i < threads; i++) pthread_create(&ids[i], NULL, run, array[i]);
  walk(order, array[0], turns);
  for (int i = 1; i < threads; i++) pthread_join(ids[i], NULL);
  printf("%p %p\n", (void *)order, (void *)array);
  return 0;
}
"""
DENSE, SPARSE = "window=1000,period=100000,seed=7", "window=1000,period=4000000,seed=7"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs are built, once for all tests here."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def walk(shop: Path) -> Path:
    return build_fixed(shop, "walk", WALK)


def walk_sequence(output: str, turns: int, thread: int = 0) -> list[Access]:
    """Every access of `walk`, in order; the pc's are numbered from 0 in the order of the instructions."""
    order, array = (int(word, 16) for word in output.split())
    array += thread * 32 * N_STEPS
    turn = []
    for step in range(N_STEPS):
        element = array + 32 * (step * 389 % N_STEPS)
        turn += [
            (0, order + 4 * step, 4, LOAD),
            (1, element, 8, LOAD),
            (2, element + 10, 2, STORE),
            (3, element + 16, 16, LOAD),
            (4, element + 28, 4, LOAD),
            (4, element + 28, 4, STORE),
        ]
    return turn * turns


def numbered(stream: list[Access]) -> list[Access]:
    """The same with pc's replaced by their place in the order of addresses."""
    numbers = {pc: number for number, pc in enumerate(sorted({access[0] for access in stream}))}
    return [(numbers[pc], *rest) for pc, *rest in stream]  # type: ignore[misc]


# ---- modes --------------------------------------------------------------------------------------
MODES = ("counts", DENSE, SPARSE, "full", "pages", "pages,full")


def test_all_modes_count_the_same_of_one_thread(walk: Path, tmp_path: Path) -> None:
    """Instruction by instruction, the whole program; 6 million accesses: windows far apart come and go."""
    n_turns = 1000
    found = {}
    for mode in MODES:
        capture, _ = emulate(tmp_path / "c.memlens", walk, str(n_turns), mode=mode)
        counted = rows(capture, "code_counts")
        found[mode] = by_pc(counted)
        kernel = of_functions(counted, walk, "walk")
        assert accesses(kernel) == n_turns * N_STEPS * ACCESSES_OF_STEP + 1, mode  # and the return address
        assert capture.meta["emulate"]["refused_blocks"] == 0
    expected = found.pop("counts")
    for mode, counts in found.items():
        differing = {pc for pc in expected.keys() | counts.keys() if expected.get(pc) != counts.get(pc)}
        assert not differing, (mode, {hex(pc): (expected.get(pc), counts.get(pc)) for pc in differing})


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_count_the_same_of_four_threads(walk: Path, tmp_path: Path, mode: str) -> None:
    n_turns, n_threads = 250, 4
    capture, _ = emulate(tmp_path / "c.memlens", walk, str(n_turns), str(n_threads), mode=mode)
    kernel = of_functions(rows(capture, "code_counts"), walk, "walk")
    per_pc = n_turns * N_STEPS
    threads = {row["thread"] for row in kernel}
    assert len(threads) == n_threads and 0 not in threads
    for thread in threads:
        counts = sorted(by_pc(row for row in kernel if row["thread"] == thread).values())
        assert counts == sorted([
            (per_pc, 0, 4 * per_pc, 0), (per_pc, 0, 8 * per_pc, 0), (0, per_pc, 0, 2 * per_pc), (per_pc, 0, 16 * per_pc, 0),
            (per_pc, per_pc, 4 * per_pc, 4 * per_pc), (1, 0, 8, 0),
        ])  # fmt: skip


# ---- full streams ---------------------------------------------------------------------------------
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_full_stream_has_every_access_in_program_order(walk: Path, tmp_path: Path, n_threads: int) -> None:
    n_turns = 12
    capture, done = emulate(tmp_path / "c.memlens", walk, str(n_turns), str(n_threads), mode="full")
    counted = rows(capture, "code_counts")
    code = {row["pc"] for row in of_functions(counted, walk, "walk")}
    expected = {tuple(walk_sequence(done.stdout, n_turns, thread)) for thread in range(n_threads)}
    streams = by_thread(windows(capture))
    assert len(streams) == n_threads
    for thread, pieces in streams.items():
        stream = whole_stream(pieces)
        assert all(piece.fields["dropped"] == 0 and piece.fields["executed"] == piece.recorded for piece in pieces)
        kernel = [access for access in stream if access[0] in code][:-1]  # without the return
        assert tuple(numbered(kernel)) in expected
        expected.discard(tuple(numbered(kernel)))
        # and the rest of the program: what was counted
        seen = Counter((pc, operation) for pc, _, _, operation in stream)
        bytes_seen: Counter[tuple[int, int]] = Counter()
        for pc, _, n_bytes, operation in stream:
            bytes_seen[pc, operation] += n_bytes
        for pc, (loads, stores, load_bytes, store_bytes) in by_pc(r for r in counted if r["thread"] == thread).items():
            assert (seen[pc, LOAD], seen[pc, STORE]) == (loads, stores), hex(pc)
            assert (bytes_seen[pc, LOAD], bytes_seen[pc, STORE]) == (load_bytes, store_bytes), hex(pc)
        assert len(stream) == accesses(row for row in counted if row["thread"] == thread)


# ---- sampled windows --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mode", "n_turns"), [("window=300,period=5000,seed=3", 20), ("window=2000,period=4000000,seed=3", 3000)]
)
def test_windows_are_parts_of_the_full_stream(walk: Path, tmp_path: Path, mode: str, n_turns: int) -> None:
    """At the place that they claim, in the dense regime and in the one that stops calling between windows."""
    sampled, _ = emulate(tmp_path / "s.memlens", walk, f"{n_turns:08}", mode=mode)
    full, _ = emulate(tmp_path / "f.memlens", walk, f"{2:08}", mode="full")
    whole = whole_stream(windows(full))
    (begin, end) = (whole.index(next(access for access in whole if access[2:] == (16, LOAD))) - 3, len(whole))
    turn = N_STEPS * ACCESSES_OF_STEP
    found = windows(sampled)
    assert len(found) > 3
    for window in found:
        for at, access in enumerate(window.accesses(), window.begin):
            if at < begin:
                same = whole[at]
            elif at < begin + n_turns * turn:
                same = whole[begin + (at - begin) % turn]
            else:
                same = whole[at - (n_turns - 2) * turn] if at - (n_turns - 2) * turn < end else access
            assert (access[0], *access[2:]) == (same[0], *same[2:]), (at, window.begin)
            if begin <= at < begin + n_turns * turn:
                assert access[1] == same[1], (at, window.begin)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("size", "period", "n_turns", "n_threads"),
    [(1000, 100_000, 1000, 1), (1, 1000, 200, 1), (1000, 4_000_000, 8000, 1), (500, 50_000, 200, 4)],
)
def test_one_window_of_the_set_size_in_every_period(
    walk: Path, tmp_path: Path, size: int, period: int, n_turns: int, n_threads: int, seed: int
) -> None:
    mode = f"window={size},period={period},seed={seed}"
    capture, _ = emulate(tmp_path / "c.memlens", walk, str(n_turns), str(n_threads), mode=mode)
    counted = rows(capture, "code_counts")
    of_thread = by_thread(windows(capture))
    assert len(of_thread) == n_threads
    for thread, found in of_thread.items():
        executed = accesses(row for row in counted if row["thread"] == thread)
        expected = executed / period
        # One begins in each period: only the last period may be without. One without accesses says that the next is late.
        begun = [window for window in found if window.recorded]
        assert abs(len(begun) - expected) <= max(1.0, 0.01 * expected), (len(begun), expected)
        whole = [window for window in begun[:-1] if window.fields["dropped"] == 0]
        merged = [window for window in whole if window.recorded != size]
        assert all(window.recorded > size for window in merged) and len(merged) <= 2 + len(begun) * 2 * size / period
        for window, following in itertools.pairwise(found):
            assert window.fields["period"] == period
            assert window.begin + window.fields["executed"] == following.begin
        covered = found[0].begin + sum(window.fields["executed"] for window in found)
        assert abs(covered - executed) <= 2 * period


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_access_has_the_same_chance_to_be_in_a_window(walk: Path, tmp_path: Path, seed: int) -> None:
    """Though the loop's length divides the period: where windows begin, by instruction and by step of the loop."""
    n_turns, period = 600, ACCESSES_OF_STEP * 128
    capture, done = emulate(
        tmp_path / "c.memlens", walk, str(n_turns), mode=f"window=1,period={period},seed={seed},stacks=off"
    )
    exact: dict[Any, float] = {}
    for row in rows(capture, "code_counts"):
        exact[row["pc"], LOAD], exact[row["pc"], STORE] = row["loads"], row["stores"]
    begun = [window.accesses()[0] for window in windows(capture)]
    statistic, freedom = chi_square(Counter((pc, operation) for pc, _, _, operation in begun), exact)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)
    array = int(done.stdout.split()[1], 16)
    steps = Counter((access[1] - array) // 32 // 16 for access in begun if array <= access[1] < array + 32 * N_STEPS)
    statistic, freedom = chi_square(steps, dict.fromkeys(range(64), 1.0))
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)


def test_the_seed_decides_where_windows_begin(walk: Path, tmp_path: Path) -> None:
    def begins(seed: int) -> list[int]:
        capture, _ = emulate(tmp_path / "c.memlens", walk, "200", mode=f"window=10,period=10000,seed={seed}")
        return [window.begin for window in windows(capture)]

    assert begins(5) == begins(5) != begins(6)


# ---- pages ---------------------------------------------------------------------------------------------
PAGES = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
void touch(void *page, unsigned long loads, unsigned long stores);
__asm__(".text\n.globl touch\n.type touch,@function\n"
        "touch: test %rdx, %rdx\n jz 2f\n"
        "1:     mov %eax, 64(%rdi)\n dec %rdx\n jnz 1b\n"
        "2:     test %rsi, %rsi\n jz 4f\n"
        "3:     mov 64(%rdi), %eax\n dec %rsi\n jnz 3b\n"
        "4:     ret\n.size touch,.-touch\n");
#define PAGE 4096
static unsigned char *base;
static pthread_barrier_t turns;
static void *run(void *number) { /* thread t touches page t first, then page 10, one after the other */
  long t = (long)number;
  printf("thread %ld %ld\n", t, (long)syscall(SYS_gettid));
  for (long turn = 0; turn < 4; turn++) {
    pthread_barrier_wait(&turns);
    if (turn != t) continue;
    touch(base + t * PAGE, 0, 10 + t);
    touch(base + 10 * PAGE, 100 + t, 1);
  }
  return NULL;
}
int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 4096);
  base = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  printf("base 0 %ld\n", (long)base);
  pthread_barrier_init(&turns, NULL, 4);
  pthread_t ids[4];
  for (long t = 1; t < 4; t++) pthread_create(&ids[t], NULL, run, (void *)t);
  run((void *)0);
  for (long t = 1; t < 4; t++) pthread_join(ids[t], NULL);
  /* page 20: three lives by unmapping and mapping again, a fourth by MADV_DONTNEED */
  touch(base + 20 * PAGE, 3, 5);
  munmap(base + 20 * PAGE, PAGE);
  mmap(base + 20 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  touch(base + 20 * PAGE, 0, 7);
  mmap(base + 20 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  touch(base + 20 * PAGE, 0, 11);
  madvise(base + 20 * PAGE, PAGE, MADV_DONTNEED);
  touch(base + 20 * PAGE, 13, 0);
  /* page 21 moves to page 25 */
  touch(base + 21 * PAGE, 0, 17);
  munmap(base + 25 * PAGE, PAGE);
  mremap(base + 21 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + 25 * PAGE);
  touch(base + 25 * PAGE, 0, 19);
  mmap(base + 21 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  touch(base + 21 * PAGE, 0, 23);
  return 0;
}
"""


@pytest.fixture(scope="module")
def touched(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[memlens.Capture, int, list[int], Path]:
    """A capture by page of the program above, its pages, its threads."""
    program = build_fixed(shop, "pages", PAGES)
    capture, done = emulate(tmp_path_factory.mktemp("pages") / "c.memlens", program, mode="pages")
    words = [line.split() for line in done.stdout.splitlines()]
    base = next(int(value) for name, _, value in words if name == "base")
    threads = {int(number): int(value) for name, number, value in words if name == "thread"}
    return capture, base, [threads[number] for number in range(4)], program


def lives(capture: memlens.Capture, page: int) -> list[dict[str, Any]]:
    return sorted(
        (row for row in rows(capture, "page_counts") if row["page"] == page), key=lambda row: int(row["order"])
    )


def test_pages_know_who_touched_them_first(touched: tuple[memlens.Capture, int, list[int], Path]) -> None:
    capture, base, threads, _ = touched
    for number, thread in enumerate(threads):
        (row,) = lives(capture, base + number * 4096)
        assert (row["thread"], row["loads"], row["stores"]) == (thread, 0, 10 + number)
    shared = lives(capture, base + 10 * 4096)
    assert [(row["thread"], row["loads"], row["stores"]) for row in shared] == [
        (thread, 100 + number, 1) for number, thread in enumerate(threads)
    ]
    firsts = [lives(capture, base + number * 4096)[0]["order"] for number in range(4)]
    assert firsts == sorted(firsts) and firsts[0] < shared[0]["order"] < firsts[1] < shared[1]["order"]
    orders = [row["order"] for row in rows(capture, "page_counts")]
    assert len(set(orders)) == len(orders)
    assert not lives(capture, base + 11 * 4096)


def test_a_page_that_comes_again_is_another_page(touched: tuple[memlens.Capture, int, list[int], Path]) -> None:
    capture, base, _, _ = touched
    again = lives(capture, base + 20 * 4096)
    assert [(row["loads"], row["stores"]) for row in again] == [(3, 5), (0, 7), (0, 11), (13, 0)]
    assert len({row["generation"] for row in again}) == 4
    assert [row["generation"] for row in again] == sorted(row["generation"] for row in again)
    moved = lives(capture, base + 21 * 4096)
    assert [row["stores"] for row in moved] == [17, 23]
    assert [row["stores"] for row in lives(capture, base + 25 * 4096)] == [19]


def test_pages_add_up_to_what_instructions_did(touched: tuple[memlens.Capture, int, list[int], Path]) -> None:
    capture, _, threads, program = touched
    counted, pages = rows(capture, "code_counts"), rows(capture, "page_counts")
    for thread in threads:
        mine = [row for row in counted if row["thread"] == thread]
        parts = sum(row["loads"] + row["stores"] for row in pages if row["thread"] == thread)
        # An access of 16 bytes may come in two parts; there are no wider ones.
        wide = sum(row["loads"] for row in mine if row["load_width"] not in (1, 2, 4, 8))
        wide += sum(row["stores"] for row in mine if row["store_width"] not in (1, 2, 4, 8))
        assert accesses(mine) <= parts <= accesses(mine) + wide
    kernel = of_functions(counted, program, "touch")
    assert sum(row["stores"] for row in kernel) == 10 + 11 + 12 + 13 + 4 + 5 + 7 + 11 + 17 + 19 + 23
    assert capture.meta["emulate"]["stores"] == sum(row["stores"] for row in counted)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_pages_tell_loads_from_stores_in_code_that_runs_long(tmp_path: Path, n_threads: int) -> None:
    """Code that is known counts its pages in another way; with two threads it is translated anew."""
    options = ["--scale", "12", "--iterations", "2", "--threads", str(n_threads)]
    capture, _ = emulate(tmp_path / "c.memlens", workload_path("graph_tc"), *options, mode="pages")
    counted, pages = rows(capture, "code_counts"), rows(capture, "page_counts")
    for direction in ("load", "store"):
        total = sum(row[f"{direction}s"] for row in counted)
        # A wide access comes in parts, of 2 bytes or more.
        parts = sum(row[f"{direction}_bytes"] for row in counted if row[f"{direction}_width"] not in (1, 2, 4, 8)) // 2
        assert total > 100_000 and parts < total / 20
        assert total <= sum(row[f"{direction}s"] for row in pages) <= total + parts


# ---- stacks ------------------------------------------------------------------------------------------
STACKS = r"""
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
void touch(void *memory, unsigned long n);
__asm__(".text\n.globl touch\n.type touch,@function\n"
        "touch: mov %rax, (%rdi)\n dec %rsi\n jnz touch\n ret\n.size touch,.-touch\n");
static char variable[64];
__attribute__((noinline)) static void deep(int n) {
  volatile char frame[2000];
  frame[0] = 1;
  if (n) deep(n - 1);
  else touch((void *)frame, 30);
  frame[1] = 2;
}
__attribute__((noinline)) static void large(size_t bytes) {
  char *memory = alloca(bytes);
  touch(memory, 5);
  touch(memory + bytes - 8, 7);
}
static void *run(void *unused) {
  char local[64], *heap = malloc(4096);
  touch(local, 1000);
  touch(heap, 200);
  touch(variable, 40);
  deep(2000);
  large(3 << 20);
  free(heap);
  return unused;
}
int main(int argc, char **argv) {
  (void)argv;
  if (argc == 1) { run(NULL); return 0; }
  pthread_t ids[3];
  for (int i = 0; i < 3; i++) pthread_create(&ids[i], NULL, run, NULL);
  for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
  return 0;
}
"""


# Stacks of musl's threads are too small for this program.
@pytest.mark.parametrize(("n_threads", "library"), [(0, "musl"), (0, "glibc"), (3, "glibc")])
def test_stacks_are_told_from_heap_and_variables(shop: Path, tmp_path: Path, n_threads: int, library: str) -> None:
    if library == "musl":
        program = build_fixed(shop, "stacks", STACKS)
    else:
        program = build(shop, "stacks-glibc", STACKS, "-static", "-no-pie", "-fno-pie")
    words = ["threads"] if n_threads else []
    capture, _ = emulate(tmp_path / "c.memlens", program, *words, mode="window=1,period=1000000")
    stores = [row for row in of_functions(rows(capture, "code_counts"), program, "touch") if row["stores"]]
    assert len(stores) == max(n_threads, 1)
    for row in stores:
        assert row["flags"] & STACK_KNOWN
        assert (row["stores"], row["stack_stores"]) == (1000 + 200 + 40 + 30 + 5 + 7, 1000 + 30 + 5 + 7)


# ---- functions as regions ---------------------------------------------------------------------------------
# `touch` loads n times; who called it is known by n. What a region must have is printed.
REGIONS = r"""
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static long word;
extern "C" void touch(void *memory, unsigned long n);
__asm__(".text\n.globl touch\n.type touch,@function\n"
        "touch: mov (%rdi), %rax\n dec %rsi\n jnz touch\n ret\n.size touch,.-touch\n");
#define FUNCTION extern "C" __attribute__((noinline, noclone)) void
#define DO(n) touch(&word, n)
FUNCTION region_inner() { DO(100); __asm__ volatile(""); }
FUNCTION region_outer() { DO(10); region_inner(); DO(11); __asm__ volatile(""); }
FUNCTION region_recursive(int n) { DO(7); if (n) region_recursive(n - 1); else region_inner(); DO(1); __asm__ volatile(""); }
extern "C" void region_b(int n);
FUNCTION region_a(int n) { DO(2); if (n) region_b(n - 1); DO(2); __asm__ volatile(""); }
FUNCTION region_b(int n) { DO(3); if (n) region_a(n - 1); DO(3); __asm__ volatile(""); }
extern "C" void region_tail(), region_tail_end();
__asm__(".globl region_tail\n.type region_tail,@function\n"
        "region_tail: lea -8(%rsp), %rdi\n mov $5, %esi\n sub $8, %rsp\n call touch\n add $8, %rsp\n jmp region_tail_end\n"
        ".size region_tail,.-region_tail\n");
FUNCTION region_tail_end() { DO(50); __asm__ volatile(""); }
static jmp_buf place;
FUNCTION region_jumps() { DO(13); longjmp(place, 1); }
FUNCTION region_catches() { if (setjmp(place) == 0) region_jumps(); DO(17); __asm__ volatile(""); }
FUNCTION region_throws() { DO(19); throw 1; }
FUNCTION region_tries() { try { region_throws(); } catch (int) { DO(23); } DO(29); __asm__ volatile(""); }
FUNCTION region_cleans() { struct end { ~end() { DO(59); } } ended; region_throws(); DO(1000000); }
FUNCTION region_tries_far() {
  try { DO(61); region_cleans(); DO(1000000); region_inner(); } catch (long) { DO(1000000); } catch (int) { DO(67); }
  DO(71); __asm__ volatile("");
}
static volatile sig_atomic_t interrupted;
FUNCTION region_interrupted() { /* no calls: the handler returns into the middle of it */
  interrupted = 0;
  ualarm(3000, 0);
  while (!interrupted) {}
  __asm__ volatile("mov $73, %%ecx\n .type spot,@function\n spot: mov (%0), %%rax\n dec %%ecx\n jnz spot" :: "r"(&word) : "rax", "rcx", "memory");
}
FUNCTION region_alarm(int) { DO(41); interrupted = 1; }
FUNCTION region_raises() { DO(31); raise(SIGUSR1); DO(37); __asm__ volatile(""); }
FUNCTION region_handler(int) { DO(41); __asm__ volatile(""); }
static void plain_handler(int) { DO(43); __asm__ volatile(""); }
static void jumping_handler(int) { DO(3); siglongjmp(place, 2); }
FUNCTION region_left_by_handler() { DO(51); raise(SIGUSR2); DO(1000000); }
FUNCTION region_survives() { if (sigsetjmp(place, 1) == 0) region_left_by_handler(); DO(53); __asm__ volatile(""); }
static void *in_thread(void *) { region_outer(); DO(1); return NULL; }
int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  DO(1);
  for (int i = 0; i < 3; i++) {
    if (!strcmp(what, "nested")) region_outer();
    if (!strcmp(what, "recursive")) region_recursive(5);
    if (!strcmp(what, "deep")) region_recursive(1000);
    if (!strcmp(what, "mutual")) region_a(999);
    if (!strcmp(what, "tail")) region_tail();
    if (!strcmp(what, "longjmp")) region_catches();
    if (!strcmp(what, "exception")) region_tries();
    if (!strcmp(what, "far exception")) region_tries_far();
    if (!strcmp(what, "interrupted")) { signal(SIGALRM, region_alarm); region_interrupted(); }
    if (!strcmp(what, "signal")) { signal(SIGUSR1, plain_handler); region_raises(); }
    if (!strcmp(what, "handler")) { signal(SIGUSR1, region_handler); region_raises(); }
    if (!strcmp(what, "siglongjmp")) { signal(SIGUSR2, jumping_handler); region_survives(); }
    if (!strcmp(what, "threads")) {
      pthread_t ids[4];
      for (int t = 0; t < 4; t++) pthread_create(&ids[t], NULL, in_thread, NULL);
      for (int t = 0; t < 4; t++) pthread_join(ids[t], NULL);
    }
    DO(1);
  }
  return 0;
}
"""
# Exceptions are followed where a call stores its return address: see native/emulator/calls.c.
EXPECTED: dict[str, dict[str, int]] = {
    "nested": {"region_outer": 21, "region_inner": 100},
    "recursive": {"region_recursive": 48, "region_inner": 100},
    "deep": {"region_recursive": 8008, "region_inner": 100},
    "mutual": {"region_a": 2000, "region_b": 3000},
    "tail": {"region_tail": 5, "region_tail_end": 50},
    "longjmp": {"region_jumps": 13, "region_catches": 17},
    "exception": {"region_throws": 19, "region_tries": 52},
    "far exception": {"region_throws": 19, "region_cleans": 59, "region_tries_far": 61 + 67 + 71},
    "interrupted": {"region_interrupted": 73, "region_alarm": 41},
    "signal": {"region_raises": 31 + 43 + 37},
    "handler": {"region_raises": 31 + 37, "region_handler": 41},
    "siglongjmp": {"region_left_by_handler": 54, "region_survives": 53},
    "threads": {"region_outer": 4 * 21, "region_inner": 400, "": 4},
}


@pytest.mark.parametrize("what", EXPECTED)
def test_accesses_belong_to_the_innermost_function_that_is_a_region(shop: Path, tmp_path: Path, what: str) -> None:
    program = build(shop, "regions", REGIONS, "-no-pie", "-fno-pie", compiler="g++")
    capture, _ = emulate(tmp_path / "c.memlens", program, what, functions="^region_")
    functions = Functions(program)
    found: Counter[str] = Counter()
    for row in rows(capture, "code_counts"):
        if row["pc"] in (functions.begin_of("touch"), functions.begin_of("spot")):
            found[row["region"] or ""] += row["loads"]
    expected = {name: 3 * n for name, n in EXPECTED[what].items()}
    expected[""] = expected.get("", 0) + 4
    assert dict(found) == expected


# ---- annotated regions ----------------------------------------------------------------------------------------
ANNOTATED = r"""
#include "memlens.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static long word;
void touch(void *memory, unsigned long n);
__asm__(".text\n.globl touch\n.type touch,@function\n"
        "touch: mov (%rdi), %rax\n dec %rsi\n jnz touch\n ret\n.size touch,.-touch\n");
static void *run(void *unused) {
  touch(&word, 1);
  for (int i = 0; i < 5; i++) {
    memlens_begin("outer");
    touch(&word, 10);
    memlens_begin("inner");
    touch(&word, 100);
    memlens_end("inner");
    touch(&word, 10);
    memlens_end("outer");
    touch(&word, 1);
  }
  return unused;
}
int main(void) {
  run(NULL);
  pthread_t ids[3];
  for (int i = 0; i < 3; i++) pthread_create(&ids[i], NULL, run, NULL);
  for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
  memlens_begin("over the fork");
  touch(&word, 1000);
  pid_t pid = fork();
  touch(&word, pid ? 2000 : 4000);
  memlens_end("over the fork");
  touch(&word, pid ? 3 : 5);
  if (pid) waitpid(pid, NULL, 0);
  return 0;
}
"""


@pytest.mark.parametrize("mode", ["counts", "window=100,period=1000"])
def test_annotated_regions_in_threads_and_over_a_fork(shop: Path, tmp_path: Path, mode: str) -> None:
    program = build(shop, "annotated", ANNOTATED, f"-I{ROOT / 'native' / 'include'}", "-no-pie", "-fno-pie")
    capture, _ = emulate(tmp_path / "c.memlens", program, mode=mode)
    touch = Functions(program).begin_of("touch")
    found: dict[int, Counter[str]] = {}
    for row in rows(capture, "code_counts"):
        if row["pc"] == touch:
            found.setdefault(row["process"], Counter())[row["region"] or ""] += row["loads"]
    assert found[1] == {"": 4 * 6 + 3, "outer": 4 * 100, "inner": 4 * 500, "over the fork": 3000}
    assert found[2] == {"": 5, "over the fork": 4000}
