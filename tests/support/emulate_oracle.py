"""What exact counts of memory accesses are compared with: closed forms, and valgrind's lackey instruction by instruction.

Two independent answers:

- ``count_kernels`` (workloads/) is built for an instruction set by :func:`build_count_kernels`; it prints what each of
  its functions accesses, to the last access (:func:`closed_form`).
- :func:`lackey` runs any x86-64 program under ``valgrind --tool=lackey`` and adds up its trace by instruction address.

Where lackey and a count of the instructions' own accesses differ, found with valgrind 3.19 on the kernels above and on the
musl builds of the graph workloads, address by address. The first four are put right here, so that what remains is exact:

- *Dead loads.* VEX removes a load whose result is overwritten in the same block (``pop %rax`` to drop a word) before the tool
  sees it. ``--vex-iropt-level=0`` keeps them.
- *M lines.* A store to where the same instruction just loaded is printed as one line ``M``: one load and one store.
- *Locked instructions* (``lock add``, ``lock xadd``, ``xchg`` with memory; not ``cmpxchg``) are made of a load and a
  compare-and-swap, which lackey prints as L and M: one load too many in each execution.
- *Bit tests of registers* (``bt %rax, %rcx``) are made with a scratch word on the stack: a store and a load that the
  program does not make.
- ``rep lods`` runs only once (VEX ignores the prefix). No compiler emits it; :data:`LACKEY_CANNOT` names the kernel.
- *Repeated string instructions.* lackey shows every element. memlens counts one access for each 64 bytes of an execution
  (repeated movs, stos and lods). Put right: they are merged here by that definition.
- *The initial stack.* valgrind and qemu give the program other environment and auxiliary vectors, so code of the C library
  that walks over them sees more or fewer words: :data:`START_UP` names those functions of musl.
- *Long double.* valgrind computes x87 values in double precision, so printing a floating-point number with musl goes another
  way (and may print other digits). The workloads compared print integers.
- *The C library's choice.* CPUID differs, so functions chosen at start (ifunc: memcpy, memset, strlen …) are not the same
  code under both. ``GLIBC_TUNABLES`` did not bring them together with glibc 2.36. musl has no such functions:
  :func:`build_without_ifunc`. Lines of code that look at the time, at addresses or at CPUID themselves differ as well.
- *Several threads.* valgrind runs one at a time, and lackey does not say which. Waiting (futexes, spinning) is not the
  same; compare one thread.

Equal in both, and checked by the kernels: x87 values are one access of 10 bytes; 16- and 32-byte accesses are one each, also
over a page boundary; a gather is one load for each element. What the
kernel reads and writes in a system call is in neither.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"

LACKEY_CANNOT = frozenset({"kernel_load_string_8"})
# Repeated string instructions: one access for each 64 bytes, and one load for the return.
REPEATED = frozenset(f"kernel_{name}" for name in ("move_string_1", "move_string_8", "store_string_1", "load_string_8"))
STRING_BYTES = 64
START_UP = frozenset({"__init_libc", "__vdsosym", "dl_iterate_phdr", "__malloc_alloc_meta"})  # of musl
COLUMNS = ("loads", "stores", "load_bytes", "store_bytes")


@dataclasses.dataclass
class Accesses:
    """What one instruction or function accessed."""

    executions: int = 0
    loads: int = 0
    stores: int = 0
    load_bytes: int = 0
    store_bytes: int = 0

    def add(self, other: Accesses) -> None:
        self.executions += other.executions
        self.loads += other.loads
        self.stores += other.stores
        self.load_bytes += other.load_bytes
        self.store_bytes += other.store_bytes

    @property
    def figures(self) -> tuple[int, int, int, int]:
        return self.loads, self.stores, self.load_bytes, self.store_bytes


# ---- instruction sets -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Isa:
    """How programs for an instruction set are built here and run."""

    name: str
    machine: str  # as platform.machine() says it
    compilers: tuple[str, ...]

    @property
    def emulator(self) -> str:
        return f"qemu-{self.name}"

    def compiler(self) -> str | None:
        native = ("gcc", "cc") if platform.machine() == self.machine else ()
        return next((path for name in (*self.compilers, *native) if (path := shutil.which(name))), None)


ISAS = {
    isa.name: isa
    for isa in (
        Isa("x86_64", "x86_64", ("x86_64-linux-gnu-gcc",)),
        Isa("aarch64", "aarch64", ("aarch64-linux-gnu-gcc",)),
        Isa("riscv64", "riscv64", ("riscv64-linux-gnu-gcc",)),
        Isa("ppc64le", "ppc64le", ("powerpc64le-linux-gnu-gcc",)),
    )
}


def build_count_kernels(isa: str, folder: Path) -> Path:
    """``count_kernels`` for an instruction set, static and at fixed addresses; skips the test without a compiler."""
    compiler = ISAS[isa].compiler()
    if compiler is None:
        pytest.skip(f"no C compiler for {isa}; to run: make test, which installs it")
    program = folder / f"count_kernels_{isa}"
    sources = [str(WORKLOADS / "count_kernels.c"), str(WORKLOADS / f"count_kernels_{isa}.S")]
    flags = ["-std=gnu11", "-O2", "-g", "-static", "-no-pie", "-fno-pie", "-pthread"]
    subprocess.run([compiler, *flags, "-o", str(program), *sources], check=True)
    return program


def build_without_ifunc(workload: str, folder: Path) -> Path:
    """A workload linked statically with musl, at fixed addresses; skips the test where musl-gcc is missing."""
    compiler = shutil.which("musl-gcc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("no musl-gcc, or not x86-64; to run: sudo apt-get install musl-tools")
    program = folder / f"{workload}_musl"
    flags = ["-std=gnu11", "-O2", "-g", "-static", "-no-pie", "-fno-pie"]
    subprocess.run([compiler, *flags, "-o", str(program), str(WORKLOADS / f"{workload}.c")], check=True)
    return program


def run_under_qemu(isa: str, command: Sequence[str | Path]) -> str:
    """What a program prints under the plain emulator."""
    emulator = shutil.which(ISAS[isa].emulator)
    if emulator is None:
        pytest.skip(f"{ISAS[isa].emulator} is not installed; to run: sudo apt-get install qemu-user")
    done = subprocess.run([emulator, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- functions --------------------------------------------------------------------------------


class Functions:
    """Which function an address of a program at fixed addresses belongs to.

    Of several symbols at an address the first in the order of the names counts.
    """

    def __init__(self, program: Path) -> None:
        listing = subprocess.run(["readelf", "-sW", str(program)], capture_output=True, text=True, check=True).stdout
        found: dict[int, tuple[int, str]] = {}
        for line in listing.splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[3] not in ("FUNC", "IFUNC") or fields[6] == "UND":
                continue
            begin, n_bytes, name = int(fields[1], 16), int(fields[2], 0), fields[-1]
            if begin not in found or (n_bytes, name) < found[begin]:
                found[begin] = (n_bytes, name)
        self.begins = sorted(found)
        self.ends = [begin + found[begin][0] for begin in self.begins]
        self.names = [found[begin][1] for begin in self.begins]

    def name_of(self, pc: int) -> str:
        """The function's name, or the address itself where no symbol covers it (hand-written start code)."""
        at = bisect.bisect_right(self.begins, pc) - 1
        return self.names[at] if at >= 0 and pc < self.ends[at] else f"{pc:#x}"

    def begin_of(self, name: str) -> int:
        return self.begins[self.names.index(name)]

    def totals(self, by_pc: Mapping[int, Accesses]) -> dict[str, Accesses]:
        totals: dict[str, Accesses] = {}
        for pc, accesses in by_pc.items():
            totals.setdefault(self.name_of(pc), Accesses()).add(accesses)
        return totals


# ---- the closed form ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ClosedForm:
    """What ``count_kernels`` printed."""

    isa: str
    kernels: dict[str, dict[str, int]]  # one run of a kernel: loads, stores, bytes, stack_…, unseen
    runs_of_thread: dict[int, int]
    skipped: list[str]

    def expected(self, kernel: str, column: str, *, thread: int | None = None) -> int:
        """Of one thread, or of all."""
        n_runs = sum(self.runs_of_thread.values()) if thread is None else self.runs_of_thread[thread]
        return n_runs * self.kernels[kernel][column]


def closed_form(text: str) -> ClosedForm:
    document: dict[str, Any] = json.loads(text)
    for kernel in document["kernels"]:
        if kernel["name"] in REPEATED:
            kernel["loads"] = -(-(kernel["load_bytes"] - 8) // STRING_BYTES) + 1
            kernel["stores"] = -(-kernel["store_bytes"] // STRING_BYTES)
    return ClosedForm(
        isa=document["isa"],
        kernels={kernel["name"]: {k: v for k, v in kernel.items() if k != "name"} for kernel in document["kernels"]},
        runs_of_thread={thread["thread"]: thread["runs"] for thread in document["threads"]},
        skipped=document["skipped"],
    )


# ---- lackey ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Peculiar:
    """Instructions of a program that lackey shows otherwise than they are."""

    locked: frozenset[int]
    bit_tests: frozenset[int]
    strings: frozenset[int]  # repeated movs, stos, lods


_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")


def peculiar_instructions(program: Path) -> Peculiar:
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "-w", str(program)], capture_output=True, text=True, check=True
    ).stdout
    locked, bit_tests, strings = set(), set(), set()
    for line in listing.splitlines():
        match = _INSTRUCTION.match(line)
        if not match:
            continue
        pc, text = int(match[1], 16), match[2]
        has_memory_operand = "(" in text
        if (text.startswith("lock ") and "cmpxchg" not in text) or (text.startswith("xchg") and has_memory_operand):
            locked.add(pc)
        elif re.match(r"bt[src]?[wlq]?\s", text) and not has_memory_operand:
            bit_tests.add(pc)
        elif re.match(r"rep[a-z]* (movs|stos|lods)", text):
            strings.add(pc)
    return Peculiar(frozenset(locked), frozenset(bit_tests), frozenset(strings))


def lackey(command: Sequence[str | Path], *, correct: bool = True) -> tuple[dict[int, Accesses], str]:
    """Accesses by instruction address, and what the program printed. The trace is read as it comes and never kept.

    With ``correct`` the differences that the head of this file calls put right are. About a million accesses a second.
    """
    # Debian's command is a script that adds three variables to the program's environment.
    valgrind = shutil.which("valgrind.bin") or shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed; to run: sudo apt-get install valgrind")
    options = ["--tool=lackey", "--trace-mem=yes", "--vex-iropt-level=0"]
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [valgrind, *options, f"--log-fd={write_end}", *map(str, command)],
        pass_fds=(write_end,),
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    # "I  04001000,3", then what it accesses: " L 1ffeffe7e0,8", " S …", " M …". Everything else is valgrind's own text.
    by_text: dict[bytes, list[int]] = {}
    current = [0, 0, 0, 0, 0]
    peculiar = peculiar_instructions(Path(command[0])) if correct else None
    strings = {b"I  %08x" % pc for pc in peculiar.strings} if peculiar else set()
    last_line, merged = b"", {b"L": 0, b"S": 0}  # bytes of the present access of a repeated instruction
    with os.fdopen(read_end, "rb", buffering=1 << 20) as trace:
        for line in trace:
            if line.startswith(b"I "):
                found = by_text.get(line)
                if found is None:
                    found = by_text[line] = [0, 0, 0, 0, 0]
                found[0] += 1
                current = found
                if line != last_line:
                    merged = {b"L": STRING_BYTES, b"S": STRING_BYTES}
                last_line = line
            elif line.startswith((b" L", b" S", b" M")):
                access_bytes = int(line[line.rindex(b",") + 1 :])
                kind = line[1:2]
                if strings and last_line.split(b",")[0] in strings:
                    if merged[kind] < STRING_BYTES:
                        merged[kind] += access_bytes
                        current[3 if kind == b"L" else 4] += access_bytes
                        continue
                    merged[kind] = access_bytes
                if kind != b"S":
                    current[1] += 1
                    current[3] += access_bytes
                if kind != b"L":
                    current[2] += 1
                    current[4] += access_bytes
    assert process.stdout is not None
    output = process.stdout.read()
    status = process.wait()
    assert status == 0, f"{command[0]} ended with status {status} under lackey"
    by_pc: dict[int, Accesses] = {}
    for text, counts in by_text.items():
        by_pc.setdefault(int(text[1:].split(b",")[0], 16), Accesses()).add(Accesses(*counts))
    if peculiar is not None:
        _put_right(by_pc, peculiar)
    return by_pc, output


def total(by_key: Mapping[Any, Accesses]) -> Accesses:
    """All accesses, of instructions or functions."""
    found = Accesses()
    for accesses in by_key.values():
        found.add(accesses)
    return found


def _put_right(by_pc: dict[int, Accesses], peculiar: Peculiar) -> None:
    for pc in peculiar.locked & by_pc.keys():
        accesses = by_pc[pc]
        if accesses.loads == 2 * accesses.stores:
            accesses.loads //= 2
            accesses.load_bytes //= 2
    for pc in peculiar.bit_tests & by_pc.keys():
        by_pc[pc] = Accesses(executions=by_pc[pc].executions)


# ---- comparing --------------------------------------------------------------------------------------


def differences(
    counted: Mapping[str, Accesses], expected: Mapping[str, Accesses], *, tolerance: float
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Functions whose loads, stores or bytes differ by more than a share of the expected: counted, expected."""
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for name in counted.keys() | expected.keys():
        mine, theirs = counted.get(name, Accesses()).figures, expected.get(name, Accesses()).figures
        if any(abs(a - b) > tolerance * b for a, b in zip(mine, theirs, strict=True)):
            found[name] = (mine, theirs)
    return found
