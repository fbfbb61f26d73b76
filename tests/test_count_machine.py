"""What the machine code moves and the IR does not say, against the emulator's counts of a plain build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from count_judge import both
from count_runs import levels_and_clangs, needs, needs_clang
from test_count_cross import MACHINES, check_machine

HARD = Path(__file__).resolve().parent / "count_hard"
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
