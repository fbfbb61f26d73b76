"""What the machine code moves and the IR does not say, against the emulator's counts of a plain build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from count_judge import both
from count_runs import VERSIONS, compile_with, counted_run, levels_and_clangs, needs, needs_clang
from count_sites import sums
from test_count_cross import MACHINES, check_machine
from test_count_exact import ask

HARD = Path(__file__).resolve().parent / "hard"
CALLS = 100

pytestmark = needs_clang


def check_by_value(folder: Path, level: str, clang: str = "", machine: str = "") -> None:
    target = MACHINES[machine][0] if machine else ""
    counted, exact = both(folder, HARD / "by_value.c", level, clang=clang, target=target, run=(str(CALLS),))
    in_library = (
        {"pass_page", "pass_pointer"} if machine else set()
    )  # large copies: memcpy, a function of its own there
    judged = [name for name in counted if name.startswith("pass_") and name not in in_library | {"pass_inlined"}]
    assert len(judged) == (10 if machine == "" else 8)
    constant = 8 * CALLS if machine == "" else 0  # 1.0, a constant of the compiler's own
    for name in judged:
        read, written = counted[name].outside
        assert exact[name].outside == (read + (constant if name == "pass_both" else 0), written), name
        # The area of arguments is stack, as are saved registers and return addresses: at most 16 words in a call, and 32 once.
        missing = exact[name].stack_written - counted[name].stack_written
        assert 0 <= missing <= CALLS * (8 + (128 if level == "-O0" else 0)) + 256, (name, missing)
    size = 4096 * CALLS
    for name in ("pass_page", "pass_pointer"):
        assert counted[name].outside[0] >= size and counted[name].stack_written >= size


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the copies of x86-64")
@levels_and_clangs("-O0", "-O2", with_all="-O2")
def test_structures_passed_by_value_count_as_the_machine_code_copies_them(
    tmp_path: Path, level: str, clang: str
) -> None:
    needs("qemu-x86_64", "qemu-user")
    check_by_value(tmp_path, level, clang)


@pytest.mark.parametrize("machine", ["aarch64", "ppc64le"])
def test_structures_passed_by_value_elsewhere(tmp_path: Path, machine: str) -> None:
    """AArch64 passes a pointer to a copy; POWER copies, and loads what is passed in registers. (RISC-V is as AArch64.)"""
    check_machine(machine)
    check_by_value(tmp_path, "-O2", machine=machine)


def check_comparisons(folder: Path, at: int, flags: tuple[str, ...], clang: str = "", machine: str = "") -> None:
    """`at`: where the buffers differ, -1 = nowhere."""
    target = MACHINES[machine][0] if machine else ""
    counted, exact = both(folder, HARD / "compares.c", *flags, clang=clang, target=target, run=(str(at),))
    inlined = [name for name in counted if name.startswith("inline_")]
    assert len(inlined) == 31
    for name in inlined:
        if exact[name].outside[0]:  # else: a call of the library
            assert counted[name].outside == exact[name].outside, (name, at)
    assert sum(exact[name].outside[0] > 0 for name in inlined) >= (31 if not machine else 10)

    def until(size: int, unit: int = 1) -> int:
        """Bytes of each side up to the first unit that differs, and with it."""
        return size if at < 0 or at >= size else (at // unit + 1) * unit

    assert counted["library_order"].outside == (2 * until(640), 0)
    assert counted["library_equal"].outside == (2 * until(1000), 0)
    assert counted["library_wide"].outside == (2 * until(1000, 4), 0)
    assert counted["library_wide_copy"].outside == (1000, 1000)
    assert counted["library_wide_fill"].outside == (0, 500)
    rows = ask(
        folder / "claim.memlens",
        "SELECT function, callee, sum(executions)::BIGINT n FROM site_counts WHERE kind = 'call' GROUP BY ALL",
    )
    calls = {(row["function"], row["callee"]): row["n"] for row in rows}
    assert calls["library_string", "strcmp"] == 1
    assert calls["far_calls", "(through a pointer)"] == 10
    if not machine:
        assert calls["assembly", "(inline assembly)"] == 2


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the expansions of x86-64")
@pytest.mark.parametrize("at", [-1, 8, 500, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 3, 7, 14))])
def test_comparisons_count_what_the_machine_code_reads(tmp_path: Path, at: int) -> None:
    needs("qemu-x86_64", "qemu-user")
    check_comparisons(tmp_path, at, ("-O2",))


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the expansions of x86-64")
@pytest.mark.parametrize("flags", [("-O1",), ("-O2", "-mavx2"), ("-O2", "-msse4.1"), ("-Os",), ("-O3",)])
@pytest.mark.parametrize("clang", [f"clang-{major}" for major in VERSIONS])
def test_comparisons_of_each_clang(tmp_path: Path, clang: str, flags: tuple[str, ...]) -> None:
    needs("qemu-x86_64", "qemu-user")
    for at in (-1, 3, 12):
        check_comparisons(tmp_path, at, flags, clang=clang)


@pytest.mark.parametrize("machine", ["aarch64", pytest.param("ppc64le", marks=pytest.mark.slow)])
def test_comparisons_elsewhere(tmp_path: Path, machine: str) -> None:
    check_machine(machine)
    for at in (-1, 9):
        check_comparisons(tmp_path, at, ("-O2",), machine=machine)


LANES_OF = {
    "x86_64": [(), ("-march=x86-64-v3",)],
    "aarch64": [("-march=armv8-a+sve",)],
    "riscv64": [("-march=rv64gcv",)],
}
"""Flags that give a machine masked vectors."""
CPU = {
    "aarch64": ["max", "max,sve256=on", "max,sve512=on"],
    "riscv64": ["rv64,v=true,vlen=128", "rv64,v=true,vlen=512"],
    "x86_64": [""],
}


@pytest.mark.parametrize("machine", LANES_OF)
@pytest.mark.parametrize("n", [995, pytest.param(17, marks=pytest.mark.slow)])
def test_masked_vectors_count_the_lanes_that_take_part(tmp_path: Path, machine: str, n: int) -> None:
    """The closed form of each loop: a vector of any length moves as much as the loop without vectors."""
    target = ""
    if machine != os.uname().machine:
        check_machine(machine)
        target = MACHINES[machine][0]
    third, half = (n + 2) // 3, n // 2
    odd_bytes = sum(i & 1 for i in range(n))
    for flags in LANES_OF[machine]:
        program = tmp_path / "program"
        done = compile_with(
            "-O3", "-w", "--memlens-verify", *([f"--target={target}"] if target else []), *flags, HARD / "lanes.c", "-o", program
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for cpu in CPU[machine]:
            launcher = (f"qemu-{machine}", "-cpu", cpu, "-L", f"/usr/{target}") if target else ()
            process, _ = counted_run(program, str(n), launcher=launcher)
            found = {name: (one.read_bytes, one.written_bytes) for (_, name), one in sums(process).items()}
            assert found["store_third"] == (4 * n, 4 * third), cpu
            assert found["load_third"] == (4 * n + 8 * third, 0), cpu
            assert found["gather_half"] == (4 * n + 8 * half, 0), cpu
            assert found["scatter_third"] == (4 * n, 8 * third), cpu
            assert found["store_bytes"] == (n, odd_bytes), cpu
            assert found["intrinsics"] == (8 * n, 4 * n), cpu


@pytest.mark.parametrize("machine", [os.uname().machine, pytest.param("aarch64", marks=pytest.mark.slow)])
def test_narrowed_accesses_count_what_the_machine_code_moves(tmp_path: Path, machine: str) -> None:
    needs(f"qemu-{machine}", "qemu-user")
    target = ""
    if machine != os.uname().machine:
        check_machine(machine)
        target = MACHINES[machine][0]
    counted, exact = both(tmp_path, HARD / "narrowed.c", "-O2", target=target)
    judged = [name for name in counted if name.startswith("part_")]
    assert len(judged) == 22
    differing = {name: (counted[name].outside, exact[name].outside) for name in judged}
    assert {name: pair for name, pair in differing.items() if pair[0] != pair[1]} == {}
