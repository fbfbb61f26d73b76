"""Instructions whose number of accesses is in a register: their counts follow the mask or length of each execution.

Every function first runs long enough with one mask or length to be taken for known, then with another.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from emulate_oracle import ISAS
from emulate_tools import build
from test_emulate_exact import count, need_emulation, rows_by_kernel

TURNS = 300_000
EMULATOR_WIDTH = 32  # ml_code_flags

X86 = """
#include <immintrin.h>
static float data[64] __attribute__((aligned(64)));
__attribute__((noinline, noclone)) static void load(long n, __m256i mask) {
  while (n-- > 0) __asm__ volatile("vmaskmovps (%0), %1, %%ymm5\\n vmaskmovps 64(%0), %1, %%ymm5" :: "r"(data), "x"(mask) : "xmm5", "memory");
}
__attribute__((noinline, noclone)) static void store(long n, __m256i mask) {
  while (n-- > 0) __asm__ volatile("vmaskmovps %%ymm5, %1, (%0)\\n vmaskmovps %%ymm5, %1, 64(%0)" :: "r"(data), "x"(mask) : "memory");
}
__attribute__((noinline, noclone)) static void gather(long n, __m256i mask) {
  __m256i at = _mm256_setr_epi32(0, 9, 2, 11, 4, 13, 6, 15);
  while (n-- > 0) {
    __m256i left = mask;
    __asm__ volatile("vgatherdps %0, (%1,%2,4), %%ymm5" : "+x"(left) : "r"(data), "x"(at) : "xmm5", "memory");
  }
}
int main(void) {
  __m256i all = _mm256_set1_epi32(-1), some = _mm256_setr_epi32(-1, 0, 0, -1, 0, 0, 0, -1);
  load(TURNS, all);
  load(TURNS, some);
  store(TURNS, all);
  store(TURNS, some);
  gather(TURNS, all);
  gather(TURNS, some);
  return 0;
}
"""

RISCV = """
static char data[64] __attribute__((aligned(64)));
__attribute__((noinline, noclone)) static void copy(long n, long length) {
  __asm__ volatile(
      ".option push\\n.option arch, +v\\n vsetvli zero, %1, e8, m1, ta, ma\\n"
      "1: vle8.v v1, (%2)\\n vse8.v v1, (%2)\\n addi %0, %0, -1\\n bnez %0, 1b\\n.option pop\\n"
      : "+r"(n) : "r"(length), "r"(data) : "memory");
}
int main(void) {
  copy(TURNS, 16);
  copy(TURNS, 5);
  return 0;
}
"""


def bytes_of(capture_rows: list[dict[str, int]]) -> tuple[int, int]:
    return sum(row["load_bytes"] for row in capture_rows), sum(row["store_bytes"] for row in capture_rows)


def test_masked_moves_and_gathers_follow_their_mask(tmp_path: Path) -> None:
    need_emulation("x86_64")
    program = build(tmp_path, "masked", X86, "-O2", "-mavx2", "-no-pie", f"-DTURNS={TURNS}")
    capture, _ = count(tmp_path, program, mode="counts,cpu=max")
    found = rows_by_kernel(capture, program)
    moved = TURNS * (8 + 3) * 4
    returned = 2 * 8  # two return addresses
    assert bytes_of(found["load"]) == (4 * TURNS * 32 + returned, 0), "the emulator loads all of it, whatever the mask"
    assert any(row["flags"] & EMULATOR_WIDTH for row in found["load"]), "which is said"
    assert not any(row["flags"] & EMULATOR_WIDTH for name in ("store", "gather", "main") for row in found.get(name, []))
    assert bytes_of(found["store"]) == (returned, 2 * moved)
    vectors = sum(row["load_bytes"] for row in found["gather"] if row["load_width"] in (0, 4))
    assert vectors == moved


def test_vectors_follow_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_emulation("riscv64")
    monkeypatch.setenv("QEMU_CPU", "rv64,v=true")
    program = build(tmp_path, "vectors", RISCV, "-O2", "-static", f"-DTURNS={TURNS}", compiler="riscv64-linux-gnu-gcc")
    plain = subprocess.run([ISAS["riscv64"].emulator, program], capture_output=True, text=True)
    if plain.returncode != 0:
        pytest.skip(
            f"this qemu-riscv64 does not run vectors ({plain.stderr.strip()}); 7.2 and newer do: make test installs it"
        )
    capture, _ = count(tmp_path, program)
    rows = rows_by_kernel(capture, program)["copy"]
    if any(row["unseen"] for row in rows):
        assert sum(row["unseen"] for row in rows) == 4 * TURNS, (
            "newer emulators do not show them: they are counted as unseen"
        )
        return
    assert bytes_of(rows) == (TURNS * (16 + 5), TURNS * (16 + 5))
