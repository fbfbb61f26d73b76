"""Four machines count the same: AArch64, RISC-V 64 and POWER (ppc64le), emulated, against x86-64.

What may differ, and does:
- vector widths. All have 16-byte vectors but RISC-V 64 without V, which has none: a vectorised loop does the same
  bytes in other numbers of accesses. Accesses are compared without vectorisation only.
- long double is 10 bytes on x86-64 (of 16) and 16 elsewhere; char is unsigned on AArch64, RISC-V and POWER; va_list differs; jmp_buf
  differs. No workload here keeps any of them in the data that is compared. int, long, pointers and double are the same on all four.
- structures passed by value: in registers on one machine, on the stack of the caller on another. Those are accesses to the
  stack; they are in the totals of a function, and none of the functions here takes one.
- loops that LLVM unrolls for one machine and not for another (POWER: also those whose count is not known): a load that two
  iterations share is then done once. What is counted is what runs, so the comparison is without unrolling.
- how often a thread waits for another: functions that hand out work are not compared.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from conftest import ROOT
from count_arena import Arena, Process
from count_runs import HAVE, VERSIONS, compile_with, needs, needs_clang
from count_sites import Sum, per_site, sums

pytestmark = needs_clang

MACHINES = {
    "aarch64": ("aarch64-linux-gnu", "arm64"),
    "riscv64": ("riscv64-linux-gnu", "riscv64"),
    "ppc64le": ("powerpc64le-linux-gnu", "ppc64el"),
}
ALIKE = ("-ffp-contract=off", "-fno-unroll-loops")
SCALAR = ("-fno-vectorize", "-fno-slp-vectorize")
WORKLOADS = {
    # source: arguments, functions that are regions, least number of bytes that a run moves
    "stream.c": ("--mib 1 --iterations 2", "^(copy_part|triad_part)$", 10 << 20),
    "stencil.c": ("--mib 4 --iterations 2", "^sweep_rows$", 5 << 20),
    "matmul.c": ("--mib 1 --iterations 1", "^multiply_block$", 100 << 20),
    "graph_pr_spmv.c": ("--scale 9 --iterations 2", "", 100 << 10),
    "graph_tc.c": ("--scale 9 --iterations 1", "", 100 << 10),
    "hash_map.cpp": ("--mib 1 --iterations 1", "find_slot", 1 << 20),
}
"""All but hash_map run with threads as well."""
EVERYWHERE = "--memlens-functions=."
WAITING = ("helper_main", "main", "start_team", "end_team", "run_on_threads", "begin_run", "end_run", "thread_main")


def build(folder: Path, source: str, machine: str, clang: str, *flags: str) -> Path:
    functions = WORKLOADS[source][1]
    target = [f"--target={MACHINES[machine][0]}"] if machine in MACHINES else []
    out = folder / f"{source.partition('.')[0]}-{machine}-{len(os.listdir(folder))}"
    done = compile_with(
        *("-O2", "-w", "--memlens-verify", *target, *flags),
        *([f"--memlens-functions={functions}"] if functions else []),
        *(ROOT / "workloads" / source, "-o", out, "-pthread", "-lm"),
        clang=clang,
        name="c++" if source.endswith("cpp") else "cc",
    )
    assert done.returncode == 0, done.stderr
    return out


def run(program: Path, machine: str, arguments: str) -> tuple[Process, str]:
    launcher = (f"qemu-{machine}", "-L", f"/usr/{MACHINES[machine][0]}") if machine in MACHINES else ()
    arena = Arena(file_bytes=1 << 34)
    try:
        done = arena.run(program, *arguments.split(), launcher=launcher)
        return arena.process(), done.stdout
    finally:
        arena.close()


def check_machine(machine: str) -> None:
    triple, debian = MACHINES[machine]
    if machine not in HAVE.archives:
        pytest.skip(
            f"no library for {machine}: sudo apt-get install gcc-{triple} libc6-dev-{debian}-cross; then: make build"
        )
    needs(f"qemu-{machine}", "qemu-user")


def check_cplusplus(machine: str, folder: Path) -> None:
    (folder / "probe.cpp").write_text("#include <vector>\nint main() { return 0; }\n")
    target = f"--target={MACHINES[machine][0]}"
    if compile_with("--memlens=none", target, folder / "probe.cpp", "-o", folder / "probe", name="c++").returncode:
        pytest.skip(f"no C++ library for {machine}: sudo apt-get install g++-{MACHINES[machine][0]}")


def compared(process: Process) -> dict[tuple[str, str], Sum]:
    """Of functions whose work does not depend on how threads are scheduled, and that do a fair amount of it."""
    return {
        key: one
        for key, one in sums(process).items()
        if key[1] not in WAITING and "parallel_for" not in key[1] and one.read_bytes + one.written_bytes > 10_000
    }


@lru_cache(maxsize=64)
def here(folder: Path, source: str, clang: str, flags: tuple[str, ...], arguments: str) -> tuple[Process, str]:
    return run(build(folder, source, "x86_64", clang, *flags), "x86_64", arguments)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


def agree(ours: dict[tuple[str, str], Sum], theirs: dict[tuple[str, str], Sum], accesses: bool) -> None:
    assert ours.keys() == theirs.keys()
    for key, one in ours.items():
        for name in ("read_bytes", "written_bytes", *(("reads", "writes") if accesses else ())):
            want, got = getattr(theirs[key], name), getattr(one, name)
            assert abs(got - want) <= 0.01 * want + 64, (key, name, got, want)


CASES = [
    pytest.param(f"clang-{major}", source, marks=() if major == VERSIONS[-1] and source in quick else pytest.mark.slow)
    for major in VERSIONS
    for quick in [("graph_pr_spmv.c", "stencil.c", "hash_map.cpp")]
    for source in WORKLOADS
]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="compares with x86-64")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("clang, source", CASES)
def test_machines_count_the_same(tmp_path: Path, shared: Path, machine: str, clang: str, source: str) -> None:
    check_machine(machine)
    if source.endswith("cpp"):
        check_cplusplus(machine, tmp_path)
    arguments, _, least = WORKLOADS[source]
    threads = "" if source == "hash_map.cpp" else " --threads 2"
    for flags in (SCALAR, ()):
        program = build(tmp_path, source, machine, clang, *ALIKE, *flags)
        theirs, printed = here(shared, source, clang, (*ALIKE, *flags), arguments + threads)
        process, text = run(program, machine, arguments + threads)
        assert text == printed
        ours = compared(process)
        assert sum(one.read_bytes + one.written_bytes for one in ours.values()) > least
        assert process.content.functions_refused == 0
        agree(ours, compared(theirs), accesses=flags == SCALAR)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("clang, source", CASES)
def test_few_counters_tell_what_many_tell(tmp_path: Path, machine: str, clang: str, source: str) -> None:
    """Site by site, to the last execution, with one thread and vectors."""
    check_machine(machine)
    if source.endswith("cpp"):
        check_cplusplus(machine, tmp_path)
    arguments = WORKLOADS[source][0] + ("" if source == "hash_map.cpp" else " --threads 1")
    found = []
    for flags in (["--memlens-naive"], []):
        process, _ = run(build(tmp_path, source, machine, clang, *flags), machine, arguments)
        found.append(per_site(process))
    assert sum(row[2] for row in found[0].values()) > 10_000
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("source", ["language.c", "language.cpp"])
@pytest.mark.parametrize("clang", [f"clang-{major}" for major in VERSIONS])
def test_everything_in_the_language(tmp_path: Path, machine: str, clang: str, source: str) -> None:
    """What test_count_hard.py does here, there; at -O3, where LLVM for POWER optimises again after us."""
    check_machine(machine)
    cxx = source.endswith("cpp")
    if cxx:
        check_cplusplus(machine, tmp_path)
    found, printed = [], []
    for options in (
        ("--memlens=none",), ("--memlens-naive",), (), ("--memlens-naive", EVERYWHERE), (EVERYWHERE, "--memlens-versions"),
    ):  # fmt: skip
        done = compile_with(
            *("-O3", "-w", "--memlens-verify", f"--target={MACHINES[machine][0]}", *(["-std=c++20"] if cxx else [])),
            *(*options, ROOT / "tests" / "count" / "hard" / source, "-o", tmp_path / "program", "-pthread"),
            clang=clang,
            name="c++" if cxx else "cc",
        )
        assert done.returncode == 0, done.stderr
        if not found and not printed:
            plain = [f"qemu-{machine}", "-L", f"/usr/{MACHINES[machine][0]}", tmp_path / "program"]
            printed.append(subprocess.run(plain, capture_output=True, text=True, check=True, timeout=60).stdout)
            continue
        process, text = run(tmp_path / "program", machine, "")
        printed.append(text)
        found.append(per_site(process))
    assert len(set(printed)) == 1
    assert found[0] == found[1] and found[2] == found[3] and len(found[0]) > 150
