"""Functions and lines of programs of other instruction sets, against each one's own addr2line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from memlens import _core

SOURCE = """\
#include <stdlib.h>
struct node { struct node *next; long value; };
static inline long add(long a, long b) { return a * 3 + b; }
__attribute__((noinline)) static long walk(struct node *n) {
  long s = 0;
  while (n) {
    s = add(s, n->value);
    n = n->next;
  }
  return s;
}
__attribute__((noinline)) long fill(double *p, int n) {
  for (int i = 0; i < n; i++) p[i] = i * 0.5;
  return n;
}
int main(int c, char **v) {
  double *p = malloc(1000 * sizeof *p);
  struct node one = {0, c}, two = {&one, (long)v};
  return fill(p, 1000) + walk(&two) == 0;
}
"""
TARGETS = ("x86_64", "aarch64", "riscv64", "powerpc64le")


def lines(*command: str, text: str = "") -> list[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("flags", [("-O2",), ("-O0",), ("-O2", "-no-pie"), ("-O2", "-static")], ids=" ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_names_and_lines_equal_those_of_addr2line(target: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    prefix = f"{target}-linux-gnu-"
    if shutil.which(f"{prefix}gcc") is None:
        pytest.skip(f"no {prefix}gcc; to run: sudo apt-get install gcc-{target.replace('_', '-')}-linux-gnu")
    source, program = tmp_path / "kernel.c", str(tmp_path / "kernel")
    source.write_text(SOURCE)
    subprocess.run([f"{prefix}gcc", "-g", *flags, "-o", program, str(source)], check=True)
    segments = [
        tuple(int(number, 16) for number in match.groups())
        for line in lines(f"{prefix}readelf", "-lW", program)
        if (match := re.match(r"\s+LOAD\s+(\S+)\s+(\S+)\s+\S+\s+(\S+)", line))
    ]
    addresses = []
    for line in lines(f"{prefix}nm", "-S", program):
        match = re.match(r"([0-9a-f]+) ([0-9a-f]+) [tT] (main|walk|fill)$", line)
        if match:  # every address inside, so also the global and the local entry of POWER
            begin, size = int(match[1], 16), int(match[2], 16)
            addresses += range(begin, begin + size, 2)
    assert len(addresses) > 50
    offsets = [next(a - v + o for o, v, size in segments if v <= a < v + size) for a in addresses]
    module = _core.ModuleSymbols(program)
    assert module.quality == "dwarf" and not module.status
    expected: list[list[str]] = []
    for line in lines(f"{prefix}addr2line", "-f", "-i", "-a", "-e", program, text="\n".join(map(hex, addresses))):
        if re.match(r"0x[0-9a-f]+$", line):
            expected.append([])
        else:
            expected[-1].append(line.partition(" (")[0].rpartition("/")[2])
    wrong = []
    for address, frames, theirs in zip(addresses, module.resolve(offsets), expected, strict=True):
        ours = [part for name, file, line, _, _ in frames for part in (name, f"{file.rpartition('/')[2]}:{line}")]
        if ours != [part.replace(":?", ":0") for part in theirs]:
            wrong.append((hex(address), ours, theirs))
    # POWER's traceback tables and padding behind the code are data; they have no line.
    code = [one for one in wrong if not one[2][-1].startswith("??")]
    assert not code
