"""Counts of the emulator are exact: closed forms to the last access on four instruction sets, lackey on whole programs."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import run_memlens
from emulate_oracle import (
    COLUMNS,
    ISAS,
    LACKEY_CANNOT,
    START_UP,
    Accesses,
    ClosedForm,
    Functions,
    build_count_kernels,
    build_without_ifunc,
    closed_form,
    differences,
    lackey,
    run_under_qemu,
    total,
)

import memlens

STACK_COLUMNS = tuple(f"stack_{column}" for column in COLUMNS)
STACK_KNOWN = 1  # ml_code_flags
N_TURNS = 1000

# Newer emulators (10.0) move 10-byte values past the plugin's eyes: those executions have to be reported as unseen.
MAY_BE_UNSEEN = frozenset({"kernel_x87_10"})


@functools.cache
def why_no_emulation(emulator: str) -> str | None:
    """Why programs cannot be recorded under this emulator here; None when they can."""
    path = shutil.which(emulator)
    if path is None:
        return f"{emulator} is not installed"
    if "-plugin" not in subprocess.run([path, "-help"], capture_output=True, text=True).stdout:
        return f"{emulator} is built without plugins"
    collectors = json.loads(run_memlens("doctor", "--json").stdout)["collectors"]
    states = {collector["collector"]: collector for collector in collectors}
    if states["emulate"]["state"] != "works":
        return f"the collector emulate does not work here: {states['emulate']['detail']}"
    return None


def need_emulation(isa: str) -> None:
    reason = why_no_emulation(ISAS[isa].emulator)
    if reason:
        pytest.skip(reason)


def count(folder: Path, *command: str | Path, mode: str = "counts") -> tuple[memlens.Capture, str]:
    """A capture of the command under the emulator, and what it printed."""
    output = folder / "run.memlens"
    done = run_memlens("record", "-q", "--force", "-o", output, f"--emulate={mode}", "--", *command, timeout=300)
    assert done.returncode == 0, done.stderr
    return memlens.open(output), done.stdout


# ---- the oracles themselves -----------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_run_under_the_plain_emulator(isa: str, tmp_path: Path) -> None:
    program = build_count_kernels(isa, tmp_path)
    answer = closed_form(run_under_qemu(isa, [program, "--n", "10", "--threads", "4", "--alone"]))
    assert answer.isa == isa
    assert sorted(answer.runs_of_thread.values()) == [1, 1, 1, 2]
    assert not answer.skipped, "the emulator's default processor lacks a feature"
    functions = set(Functions(program).names)
    assert answer.kernels.keys() <= functions


def test_lackey_counts_the_kernels_as_their_closed_form_says(tmp_path: Path) -> None:
    program = build_count_kernels("x86_64", tmp_path)
    by_pc, output = lackey([program, "--n", "100"])
    answer, counted = closed_form(output), Functions(program).totals(by_pc)
    for kernel in answer.kernels.keys() - LACKEY_CANNOT:
        assert counted[kernel].figures == tuple(answer.expected(kernel, column) for column in COLUMNS), kernel


# ---- the closed form ----------------------------------------------------------------------------


def rows_by_kernel(capture: memlens.Capture, program: Path) -> dict[str, list[dict[str, int]]]:
    """Rows of code_counts by the kernel they belong to. The program is at fixed addresses: no map is needed."""
    functions = Functions(program)
    found: dict[str, list[dict[str, int]]] = {}
    for row in capture.table("code_counts").to_pylist():
        found.setdefault(functions.name_of(row["pc"]), []).append(row)
    return found


def wrong_counts(kernel: str, rows: list[dict[str, int]], answer: ClosedForm, *, thread: int | None) -> list[str]:
    """What differs from the closed form, of one thread or of all."""

    def counted(column: str) -> int:
        return sum(row[column] for row in rows)

    n_runs = sum(answer.runs_of_thread.values()) if thread is None else answer.runs_of_thread[thread]
    expected = {column: n_runs * count for column, count in answer.kernels[kernel].items()}
    if kernel in MAY_BE_UNSEEN and counted("unseen"):
        # Then only the return is seen. Executions of instructions: one for each access.
        returned = {"loads": n_runs, "load_bytes": 8 * n_runs, "stack_loads": n_runs, "stack_load_bytes": 8 * n_runs}
        n_unseen = expected["loads"] + expected["stores"] - n_runs
        expected = {**dict.fromkeys(expected, 0), **returned, "unseen": n_unseen}
    columns: tuple[str, ...] = (*COLUMNS, "unseen")
    accessing = [row for row in rows if row["loads"] or row["stores"]]
    if accessing and all(row["flags"] & STACK_KNOWN for row in accessing):
        columns += STACK_COLUMNS
    where = "" if thread is None else f" of thread {thread}"
    return [
        f"{kernel}{where}: {column} {counted(column)}, not {expected[column]}"
        for column in columns
        if counted(column) != expected[column]
    ]


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone first"])
@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("isa", ISAS)
def test_counts_equal_the_closed_form_to_the_last_access(isa: str, n_threads: int, alone: bool, tmp_path: Path) -> None:
    need_emulation(isa)
    program = build_count_kernels(isa, tmp_path)
    options = ["--n", str(N_TURNS), "--threads", str(n_threads), *(["--alone"] if alone else [])]
    capture, output = count(tmp_path, program, *options)
    answer = closed_form(output)
    assert len(answer.kernels) >= 20
    found = rows_by_kernel(capture, program)
    wrong = []
    for kernel in answer.kernels:
        rows = found.get(kernel, [])
        wrong += wrong_counts(kernel, rows, answer, thread=None)
        if any(row["thread"] == 0 for row in rows):
            continue  # several threads in one counter: only their sum is known
        for thread in answer.runs_of_thread:
            of_thread = [row for row in rows if row["thread"] == thread]
            wrong += wrong_counts(kernel, of_thread, answer, thread=thread)
    assert not wrong


@pytest.mark.parametrize("isa", ISAS)
def test_the_stack_is_told_from_other_memory(isa: str, tmp_path: Path) -> None:
    need_emulation(isa)
    program = build_count_kernels(isa, tmp_path)
    capture, output = count(tmp_path, program, "--n", "100", "--threads", "2", mode="pages")
    answer, found = closed_form(output), rows_by_kernel(capture, program)
    kernel = "kernel_stack_frame"
    assert answer.expected(kernel, "stack_stores") > 0
    assert all(row["flags"] & STACK_KNOWN for row in found[kernel] if row["loads"] or row["stores"])
    for name in (kernel, "kernel_copy_8"):
        assert not wrong_counts(name, found[name], answer, thread=None)


ATOMICS = """
#include <pthread.h>
#include <stdint.h>
static uint64_t words[16];
static unsigned char bytes[64] __attribute__((aligned(64)));
__attribute__((noinline, noclone)) static void aligned(long turns) {
  uint64_t *at = words, value = 1;
  __asm__ volatile(
      "1: lock addq $1, (%1)\\n lock xaddq %2, 8(%1)\\n mov $1, %2\\n lock cmpxchgq %2, 16(%1)\\n"
      "xchgq %2, 24(%1)\\n mov $1, %2\\n incq 64(%1)\\n dec %0\\n jnz 1b\\n"
      : "+r"(turns), "+r"(at), "+r"(value) :: "rax", "memory");
}
__attribute__((noinline, noclone)) static void across(long turns) {
  __asm__ volatile("1: lock addl $1, (%1)\\n dec %0\\n jnz 1b\\n" : "+r"(turns) : "r"(bytes + 3) : "memory");
}
__attribute__((noinline, noclone)) static void between(long turns) {
  __asm__ volatile(
      "1: incl (%1)\\n incl 8(%1)\\n lock addl $1, 3(%1)\\n incl 16(%1)\\n incl 24(%1)\\n lock addl $1, 32(%1)\\n"
      "incl 40(%1)\\n dec %0\\n jnz 1b\\n"
      : "+r"(turns) : "r"(bytes) : "memory");
}
static void *run(void *unused) {
  aligned(500000);
  across(2000);
  between(30000);
  aligned(500000);
  return unused;
}
int main(void) {
  pthread_t other;
  between(30000);
  pthread_create(&other, 0, run, 0);
  run(0);
  return pthread_join(other, 0);
}
"""


def test_atomics_of_two_threads_are_exact_after_learning(tmp_path: Path) -> None:
    """They run long enough to count by themselves; those that are not aligned are run twice by the emulator, which leaves
    their block for it: what lies around them in `between` is counted with executions of that block."""
    need_emulation("x86_64")
    source, program = tmp_path / "atomics.c", tmp_path / "atomics"
    source.write_text(ATOMICS)
    flags = ["-O2", "-no-pie", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", program, source], check=True)
    capture, _ = count(tmp_path, program)
    found = rows_by_kernel(capture, program)
    main = min(row["thread"] for row in found["between"])
    for function, n_each, width, n_instructions in (
        ("aligned", 1_000_000, 8, 5), ("across", 2000, 4, 1), ("between", 30_000, 4, 7),
    ):  # fmt: skip
        rows = [row for row in found[function] if row["stores"]]
        places = {(row["thread"], row["pc"]) for row in rows}
        assert len({thread for thread, _ in places}) == 2 and len(places) == 2 * n_instructions
        for thread, pc in places:
            of_place = [row for row in rows if (row["thread"], row["pc"]) == (thread, pc)]
            figures = [sum(row[column] for row in of_place) for column in COLUMNS]
            n = 2 * n_each if function == "between" and thread == main else n_each
            wanted = dict.fromkeys(("loads", "stores"), n) | dict.fromkeys(("load_bytes", "store_bytes"), n * width)
            assert figures == [wanted[column] for column in COLUMNS], (function, thread, hex(pc))


@pytest.mark.parametrize("flags", [("-no-pie",), ("-static",)], ids=["with our library in it", "static"])
def test_atomics_of_one_thread_are_exact_after_learning(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Shown whole in a static program; as one access, both load and store, where our library has mapped shared memory."""
    need_emulation("x86_64")
    source, program = tmp_path / "atomics.c", tmp_path / "atomics"
    source.write_text(
        ATOMICS.replace("int main(", "int several_threads(") + "int main(void) { between(300000); return 0; }\n"
    )
    subprocess.run(["gcc", "-O2", "-pthread", *flags, "-o", program, source], check=True)
    capture, _ = count(tmp_path, program)
    rows = [row for row in rows_by_kernel(capture, program)["between"] if row["stores"]]
    assert len(rows) == 7
    for row in rows:
        assert [row[column] for column in COLUMNS] == [
            1_200_000 if "bytes" in column else 300_000 for column in COLUMNS
        ], hex(row["pc"])


def test_an_atomic_that_ran_last_is_translated_anew_once(tmp_path: Path) -> None:
    """The store of its last execution was not counted yet when all code was: it seemed to do more loads than stores, went
    on with calls, and after some ten thousand more all code was thrown away again, and so on."""
    need_emulation("x86_64")
    source, program = tmp_path / "atomics.c", tmp_path / "atomics"
    source.write_text(
        ATOMICS.replace("int main(", "int several_threads(")
        + """int main(void) {
  long turns = 3000000;
  __asm__ volatile("1: lock addl $1, (%1)\\n dec %0\\n jnz 1b\\n" : "+r"(turns) : "r"(bytes) : "memory");
  return 0;
}
"""
    )
    subprocess.run(["gcc", "-O2", "-no-pie", "-pthread", "-o", program, source], check=True)
    capture, _ = count(tmp_path, program)
    (status,) = capture.table("emulator_status").to_pylist()
    assert 0 < status["flushes"] < 10, status
    (row,) = (row for row in rows_by_kernel(capture, program)["main"] if row["loads"] == 3_000_000)
    assert [row[column] for column in COLUMNS] == [12_000_000 if "bytes" in column else 3_000_000 for column in COLUMNS]


def test_the_emulator_does_not_change_what_the_program_prints(tmp_path: Path) -> None:
    need_emulation("x86_64")
    program = build_without_ifunc("graph_sssp", tmp_path)
    command = [str(program), "--scale", "8", "--threads", "2", "--check"]
    _, output = count(tmp_path, *command)
    assert output == subprocess.run(command, capture_output=True, text=True, check=True).stdout


# ---- lackey ---------------------------------------------------------------------------------------


def counted_by_pc(capture: memlens.Capture) -> dict[int, Accesses]:
    found: dict[int, Accesses] = {}
    for row in capture.table("code_counts").to_pylist():
        found.setdefault(row["pc"], Accesses()).add(Accesses(0, *(row[column] for column in COLUMNS)))
    return found


WHOLE_PROGRAMS = {
    **{f"graph_{name}": ("--scale", "8", "--iterations", "2") for name in ("bfs", "bc", "cc", "sssp", "pr", "pr_spmv")},
    **{f"graph_{name}": ("--scale", "8", "--iterations", "1") for name in ("cc_sv", "tc")},
    "graph_search": ("--mib", "1", "--iterations", "1"),
    "pointer_chase": ("--mib", "1", "--iterations", "1"),
}


# Emulators from 8.2 on give the program a vdso, as the kernel does and valgrind does not: the time is read there, and it is looked up by name.
OF_VDSO = {"strcmp", "cgt_init", "__clock_gettime", "__syscall_ret", "__vdsosym", "clock_gettime"}


def without_vdso(capture: memlens.Capture, functions: dict[str, Accesses]) -> dict[str, Accesses]:
    (status,) = capture.table("emulator_status").to_pylist()
    if status["plugin_api"] < 2:
        return functions
    return {
        name: sums for name, sums in functions.items() if name not in OF_VDSO and not name.startswith(("0x7e", "0x7f"))
    }


@pytest.mark.parametrize("workload", WHOLE_PROGRAMS)
def test_a_whole_program_agrees_with_lackey(workload: str, tmp_path: Path) -> None:
    """Every function to the last access, except those of the C library that walk over what the emulator put on the
    stack; and the sums with them within 0.1 %."""
    need_emulation("x86_64")
    program = build_without_ifunc(workload, tmp_path)
    command = [str(program), *WHOLE_PROGRAMS[workload]]
    expected_by_pc, expected_output = lackey(command)
    capture, output = count(tmp_path, *command)
    assert output == expected_output
    functions = Functions(program)
    counted = without_vdso(capture, functions.totals(counted_by_pc(capture)))
    expected = without_vdso(capture, functions.totals(expected_by_pc))
    found = differences(counted, expected, tolerance=0)
    assert not {name: figures for name, figures in found.items() if name not in START_UP}
    sums = {"": total(counted)}, {"": total(expected)}
    assert not differences(*sums, tolerance=0.001), sums
