"""Widths of memory operands of AArch64, RISC-V and POWER under emulation, against their manuals.

Each instruction stands with the loads, stores and bytes of one execution. The same base register holds the address in all.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from emulate_oracle import ISAS
from emulate_tools import build, by_pc, emulate, needs_emulation, rows, windows
from test_emulate_exact import need_emulation

Figures = tuple[int, int, int, int]


def load(width: int, count: int = 1) -> Figures:
    return (count, 0, width * count, 0)


def store(width: int, count: int = 1) -> Figures:
    return (0, count, 0, width * count)


def both(width: int) -> Figures:
    return (1, 1, width, width)


AARCH64 = {
    **{f"ldr {register}, [x9]": load(width) for register, width in zip(["w0", "x0", "b0", "h0", "s0", "d0", "q0"], (4, 8, 1, 2, 4, 8, 16), strict=True)},
    **{f"str {register}, [x9]": store(width) for register, width in zip(["w0", "x0", "b0", "h0", "s0", "d0", "q0"], (4, 8, 1, 2, 4, 8, 16), strict=True)},
    **{f"{name} {register}, [x9]": load(width) for name, register, width in (
        ("ldrb", "w0", 1), ("ldrsb", "x0", 1), ("ldrh", "w0", 2), ("ldrsh", "w0", 2), ("ldrsw", "x0", 4), ("ldur", "q0", 16), ("ldtr", "x0", 8),
        ("ldar", "x0", 8), ("ldarb", "w0", 1), ("ldapr", "w0", 4), ("ldapurh", "w0", 2), ("ldxr", "x0", 8), ("ldaxrb", "w0", 1), ("ldlar", "x0", 8))},
    **{f"{name} {registers}, [x9]": load(width) for name, registers, width in (
        ("ldp", "w0, w1", 8), ("ldp", "x0, x1", 16), ("ldp", "s0, s1", 8), ("ldp", "d0, d1", 16), ("ldp", "q0, q1", 32), ("ldpsw", "x0, x1", 8),
        ("ldnp", "q0, q1", 32), ("ldxp", "w0, w1", 8), ("ldaxp", "x0, x1", 16))},
    **{f"{name} {registers}, [x9]": store(width) for name, registers, width in (
        ("stp", "w0, w1", 8), ("stp", "x0, x1", 16), ("stp", "q0, q1", 32), ("stnp", "d0, d1", 16), ("strb", "w0", 1), ("strh", "w0", 2),
        ("stlr", "x0", 8), ("stlurb", "w0", 1), ("sttr", "w0", 4))},
    **{f"ld{n} {{{', '.join(f'v{i}.{kind}' for i in range(n))}}}, [x9]": load(n * width) for n in (1, 2, 3, 4)
       for kind, width in (("16b", 16), ("8b", 8), ("4s", 16), ("2d", 16))},
    **{f"st{n} {{{', '.join(f'v{i}.{kind}' for i in range(n))}}}, [x9]": store(n * width) for n in (1, 2, 3, 4)
       for kind, width in (("16b", 16), ("8b", 8), ("4h", 8), ("2d", 16))},
    "ld1 {v0.4s, v1.4s, v2.4s}, [x9]": load(48),
    "st1 {v0.2d, v1.2d, v2.2d, v3.2d}, [x9]": store(64),
    **{f"ld{n} {{{', '.join(f'v{i}.{kind}' for i in range(n))}}}[1], [x9]": load(n * width) for n in (1, 2, 3, 4) for kind, width in (("b", 1), ("h", 2), ("s", 4), ("d", 8))},
    **{f"st{n} {{{', '.join(f'v{i}.{kind}' for i in range(n))}}}[1], [x9]": store(n * width) for n in (1, 2, 3, 4) for kind, width in (("b", 1), ("s", 4), ("d", 8))},
    **{f"ld{n}r {{{', '.join(f'v{i}.{kind}' for i in range(n))}}}, [x9]": load(n * width) for n in (1, 2, 3, 4) for kind, width in (("16b", 1), ("8h", 2), ("4s", 4), ("2d", 8))},
    **{f"ld{name}{order}{size} {register}1, {register}0, [x9]": both(width) for name in ("add", "clr", "eor", "set", "smax", "smin", "umax", "umin")
       for order, size, register, width in (("", "", "x", 8), ("al", "", "w", 4), ("a", "b", "w", 1), ("l", "h", "w", 2))},
    "stadd x1, [x9]": both(8),
    "swp x1, x0, [x9]": both(8),
    "swpalb w1, w0, [x9]": both(1),
    "cas x0, x1, [x9]": both(8),
    "casab w0, w1, [x9]": both(1),
    "casp w0, w1, w2, w3, [x9]": both(8),
    "caspal x0, x1, x2, x3, [x9]": both(16),
    "prfm pldl1keep, [x9]": (0, 0, 0, 0),
}  # fmt: skip
RISCV64 = {
    **{f"{name} a0, 0(s1)": load(width) for name, width in (("lb", 1), ("lbu", 1), ("lh", 2), ("lhu", 2), ("lw", 4), ("lwu", 4), ("ld", 8))},
    **{f"{name} a0, 0(s1)": store(width) for name, width in (("sb", 1), ("sh", 2), ("sw", 4), ("sd", 8))},
    **{f"{name} fa0, 0(s1)": figures for name, figures in (("flw", load(4)), ("fld", load(8)), ("fsw", store(4)), ("fsd", store(8)))},
    **{f"{name} {register}, 0(s1)": figures for name, register, figures in (("c.lw", "a0", load(4)), ("c.ld", "a0", load(8)), ("c.fld", "fa0", load(8)),
       ("c.sw", "a0", store(4)), ("c.sd", "a0", store(8)), ("c.fsd", "fa0", store(8)))},
    "c.ldsp a0, 0(sp)": load(8),
    "c.sdsp a0, 0(sp)": store(8),
    "lr.w a0, (s1)": load(4),
    "lr.d a0, (s1)": load(8),
    **{f"amo{name}.{size}{order} a0, a1, (s1)": both(width) for name in ("add", "and", "or", "xor", "swap", "max", "min", "maxu", "minu")
       for size, width, order in (("w", 4, ""), ("d", 8, ".aqrl"))},
}  # fmt: skip
RISCV64_VECTORS = {  # 4 elements of 32 bits
    "vle32.v v1, (s1)": load(16),
    "vse32.v v1, (s1)": store(16),
    "vle8.v v1, (s1)": load(4),
    "vle64.v v2, (s1)": load(32),
    "vlse32.v v1, (s1), a2": load(4, 4),  # 16 bytes apart
    "vsse32.v v1, (s1), a2": store(4, 4),
    "vluxei32.v v2, (s1), v4": load(4, 4),
    "vsuxei32.v v2, (s1), v4": store(4, 4),
    "vlseg2e32.v v2, (s1)": load(32),
    "vle32.v v1, (s1), v0.t": load(4, 2),  # elements 0 and 2
    "vse32.v v1, (s1), v0.t": store(4, 2),
    "vl1re8.v v1, (s1)": load(16),
    "vs1r.v v1, (s1)": store(16),
    "vlm.v v1, (s1)": load(1),
}
PPC64LE = {
    **{f"{name} 3, 0(9)": load(width) for name, width in (("lbz", 1), ("lhz", 2), ("lha", 2), ("lwz", 4), ("lwa", 4), ("ld", 8))},
    **{f"{name} 3, 0(9)": store(width) for name, width in (("stb", 1), ("sth", 2), ("stw", 4), ("std", 8))},
    **{f"{name} 3, 0, 9": load(width) for name, width in (("lbzx", 1), ("lhbrx", 2), ("lwbrx", 4), ("ldbrx", 8), ("lwax", 4), ("ldx", 8),
       ("lbarx", 1), ("lharx", 2), ("lwarx", 4), ("ldarx", 8))},
    **{f"{name} 3, 0, 9": store(width) for name, width in (("stbx", 1), ("sthbrx", 2), ("stwbrx", 4), ("stdbrx", 8))},
    **{f"{name} 1, 0(9)": figures for name, figures in (("lfs", load(4)), ("lfd", load(8)), ("stfs", store(4)), ("stfd", store(8)))},
    **{f"{name} 1, 0, 9": figures for name, figures in (("lfiwax", load(4)), ("lfiwzx", load(4)), ("stfiwx", store(4)))},
    **{f"{name} 1, 0, 9": load(width) for name, width in (("lvebx", 1), ("lvehx", 2), ("lvewx", 4), ("lvx", 16), ("lvxl", 16), ("lxvd2x", 16), ("lxvw4x", 16), ("lxvh8x", 16),
       ("lxvb16x", 16), ("lxvx", 16), ("lxsdx", 8), ("lxsspx", 4), ("lxsiwzx", 4), ("lxsiwax", 4), ("lxsibzx", 1), ("lxsihzx", 2), ("lxvdsx", 8), ("lxvwsx", 4))},
    **{f"{name} 1, 0, 9": store(width) for name, width in (("stvebx", 1), ("stvehx", 2), ("stvewx", 4), ("stvx", 16), ("stxvd2x", 16), ("stxvw4x", 16), ("stxvb16x", 16),
       ("stxvx", 16), ("stxsdx", 8), ("stxsspx", 4), ("stxsiwx", 4), ("stxsibx", 1), ("stxsihx", 2))},
    "lxv 1, 0(9)": load(16),
    "stxv 1, 0(9)": store(16),
    "lq 4, 0(9)": load(16),
    "stq 4, 0(9)": store(16),
    "dcbt 0, 9": (0, 0, 0, 0),
}  # fmt: skip
START = {
    "aarch64": ("  adrp x9, data\n  add x9, x9, :lo12:data\n  mov x0, 1", "  ret", ".arch armv8.4-a+lse+rcpc"),
    "riscv64": ("  la s1, data\n  li a1, 1\n  li a2, 16", "  ret", ""),
    "ppc64le": ("  addis 9, 2, data@toc@ha\n  addi 9, 9, data@toc@l", "  blr", ".machine power9\n.abiversion 2"),
}
PROGRAM = """
#include <stdlib.h>
__attribute__((aligned(4096))) unsigned char data[65536];
void all(void);
int main(int count, char **words) {
  (void)count;
  for (int n = atoi(words[1]); n > 0; n--) all();
}
"""


def measure(
    isa: str, table: dict[str, Figures], folder: Path, *, more: str = "", mode: str, turns: int
) -> dict[str, Figures | None]:
    begin, end, head = START[isa]
    lines = [head, ".text", ".globl all", ".type all, @function", "all:"]
    if isa == "ppc64le":
        lines += ["0: addis 2, 12, .TOC.-0b@ha", "  addi 2, 2, .TOC.-0b@l", ".localentry all, .-all"]
    if isa == "riscv64":
        lines += ["  addi sp, sp, -32", "  sd s1, 16(sp)"]
    for i, text in enumerate(table):
        lines += [begin, more, f".globl form_{i}", f"form_{i}: {text}"]
    if isa == "riscv64":
        lines += ["  ld s1, 16(sp)", "  addi sp, sp, 32"]
    (folder / "forms.S").write_text("\n".join([*lines, end, '.section .note.GNU-stack,"",@progbits', ""]))
    compiler = {
        "aarch64": "aarch64-linux-gnu-gcc",
        "riscv64": "riscv64-linux-gnu-gcc",
        "ppc64le": "powerpc64le-linux-gnu-gcc",
    }[isa]
    program = build(folder, "forms", PROGRAM, "-static", "-no-pie", str(folder / "forms.S"), compiler=compiler)
    plain = subprocess.run([ISAS[isa].emulator, program, "1"], capture_output=True, text=True)
    if plain.returncode != 0:
        pytest.skip(f"{ISAS[isa].emulator} does not run this program: {plain.stderr.strip()}")
    capture, _ = emulate(folder / "run.memlens", program, str(turns), mode=mode)
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
    at = {words[2]: int(words[0], 16) for words in map(str.split, names) if len(words) == 3}
    counts = rows(capture, "code_counts")
    if any(row["unseen"] and at["form_0"] <= row["pc"] <= at[f"form_{len(table) - 1}"] for row in counts):
        pytest.skip("newer emulators do not show these accesses: they are counted as unseen")
    counted = by_pc(counts)
    pcs = {at[f"form_{i}"]: text for i, text in enumerate(table)}
    if mode == "full":
        recorded = {pc: [0, 0, 0, 0] for pc in pcs}
        for window in windows(capture):
            for pc, _, width, operation in window.accesses():
                if pc in pcs:
                    recorded[pc][operation - 1] += 1
                    recorded[pc][operation + 1] += width
        assert {pc: tuple(found) for pc, found in recorded.items()} == {pc: counted.get(pc, (0, 0, 0, 0)) for pc in pcs}
    return {text: counted.get(pc, (0, 0, 0, 0)) for pc, text in pcs.items()}  # type: ignore[misc]


def wrong(found: dict[str, Figures | None], table: dict[str, Figures], turns: int) -> dict[str, object]:
    expected = {text: tuple(turns * figure for figure in figures) for text, figures in table.items()}
    return {text: (figures, expected[text]) for text, figures in found.items() if figures != expected[text]}


@needs_emulation
@pytest.mark.parametrize("mode", ["counts", "full"])
@pytest.mark.parametrize(
    ("isa", "table"),
    [("aarch64", AARCH64), ("riscv64", RISCV64), ("ppc64le", PPC64LE)],
    ids=["aarch64", "riscv64", "ppc64le"],
)
def test_every_form_counts_the_bytes_of_the_instruction_set(
    isa: str, table: dict[str, Figures], mode: str, tmp_path: Path
) -> None:
    need_emulation(isa)
    turns = 1000 if mode == "counts" else 5
    found = measure(isa, table, tmp_path, mode=mode, turns=turns)
    assert not wrong(found, table, turns)


@needs_emulation
def test_vectors_of_riscv_count_their_active_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_emulation("riscv64")
    monkeypatch.setenv("QEMU_CPU", "rv64,v=true,vlen=128")
    setup = ".option push\n.option arch, +v\n  vsetivli zero, 4, e32, m1, ta, ma\n  vid.v v4\n  vsll.vi v4, v4, 5\n  vmv.v.i v0, 5\n"
    found = measure("riscv64", RISCV64_VECTORS, tmp_path, more=setup, mode="counts", turns=100)
    assert not wrong(found, RISCV64_VECTORS, 100)
