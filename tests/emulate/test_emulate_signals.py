"""Frames of signal handlers are the kernel's accesses: the emulator writes them, and no instruction is charged with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulate_tools import build_fixed, by_pc, emulate, needs_emulation, needs_x86, rows
from test_emulate_forms import symbols

SIGNALS = """
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>
static volatile long count;
static char *page;
void (*volatile target)(void);
static void handle(int signal) { (void)signal, count++; }
static void fault(int signal) { (void)signal; mprotect(page, 4096, PROT_READ | PROT_WRITE); }
void jumps(long limit) {
  /* Returns, and calls and jumps through registers and memory. Signals come between them. */
  void *place[3];
  while (count < limit)
    __asm__ volatile(
        "lea 2f(%%rip), %%rax\\n mov %%rax, (%0)\\n lea 3f(%%rip), %%rax\\n mov %%rax, 8(%0)\\n lea 4f(%%rip), %%rax\\n"
        "call_memory: call *(%0)\\n call_register: call *%%rax\\n jump_memory: jmp *8(%0)\\n"
        "2: return_1: ret\\n 4: return_2: ret\\n 3:"
        ::"r"(place) : "rax", "memory");
}
__attribute__((noinline, noclone)) void touch(volatile long *at) { __asm__ volatile("touch_load: mov (%0), %%rax" ::"r"(at) : "rax"); }
int main(void) {
  signal(SIGALRM, handle);
  struct itimerval every = {{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &every, 0);
  jumps(200);
  signal(SIGALRM, SIG_IGN);
  page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  signal(SIGSEGV, fault);
  for (int i = 0; i < 100; i++) mprotect(page, 4096, PROT_NONE), touch((volatile long *)page);
  return 0;
}
"""


@needs_emulation
@needs_x86
@pytest.mark.parametrize("mode", ["counts", "pages", "window=100,period=10000"])
def test_frames_of_signal_handlers_are_charged_to_no_instruction(mode: str, tmp_path: Path) -> None:
    program = build_fixed(tmp_path, "signals", SIGNALS)
    capture, _ = emulate(tmp_path / "run.memlens", program, mode=mode)
    counted, at = by_pc(rows(capture, "code_counts")), symbols(program)
    n = counted[at["call_memory"]][0]
    assert n > 1000
    expected = {
        "call_memory": (n, n, 8 * n, 8 * n),
        "call_register": (0, n, 0, 8 * n),
        "jump_memory": (n, 0, 8 * n, 0),
        "return_1": (n, 0, 8 * n, 0),
        "return_2": (n, 0, 8 * n, 0),
        "touch_load": (100, 0, 800, 0),
    }
    assert {name: counted[at[name]] for name in expected} == expected
    if mode == "pages":
        on_pages = sum(row["loads"] + row["stores"] for row in rows(capture, "page_counts"))
        counted_accesses = sum(row["loads"] + row["stores"] for row in rows(capture, "code_counts"))
        assert abs(on_pages - counted_accesses) < 1000, "a frame has 108 accesses, and 200 signals came"
