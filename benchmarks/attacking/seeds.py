"""Whole inputs to start from: captures of all kinds, kept and fresh, and traces of every format."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "captures"
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "memlens.h"
static double table[4096];
struct node { struct node *next; long v; };
int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 20000;
  struct node *head = 0;
  double s = 0;
  memlens_begin("build");
  for (int i = 0; i < n / 20; i++) {
    struct node *x = malloc(sizeof *x);
    x->next = head, x->v = i, head = x;
  }
  memlens_end("build");
  char *block = malloc(1 << 20);
  memlens_tag("block", block, 1 << 20);
  memset(block, 1, 1 << 20);
  for (int i = 0; i < n; i++) table[i % 4096] += block[(i * 64) & ((1 << 20) - 1)];
  for (struct node *x = head; x; x = x->next) s += x->v;
  for (int i = 0; i < 4096; i++) s += table[i];
  while (head) { struct node *x = head->next; free(head); head = x; }
  free(block);
  return s < 0;
}
"""


def memlens() -> str:
    beside = Path(sys.executable).parent / "memlens"
    return str(beside) if beside.exists() else "memlens"


def _run(*command: str, **environment: str) -> bool:
    done = subprocess.run(command, capture_output=True, env=os.environ | environment, check=False)
    return done.returncode == 0


def captures(folder: Path, *, fresh: bool = True) -> list[Path]:
    """The kept captures, and fresh ones of all kinds that can be made here."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(KEPT.glob("*.memlens"))
    if not fresh:
        return found
    source, include, tool = folder / "attacked.c", str(ROOT / "native" / "include"), memlens()
    source.write_text(PROGRAM)
    plain, counted, traced = (str(folder / name) for name in ("plain", "counted", "traced"))
    built = {
        plain: _run("cc", "-O1", "-g", "-I", include, str(source), "-o", plain),
        counted: _run(tool, "cc", "-O1", "-g", "-I", include, str(source), "-o", counted),
        traced: _run(tool, "cc", "--memlens=trace", "-O1", "-g", "-I", include, str(source), "-o", traced),
    }
    for name, program, options in (
        ("default", plain, ()), ("emulate", plain, ("--emulate=window=200,period=2000,pages",)), ("count", counted, ()), ("trace", traced, ("--trace=window=200,period=2000",)),
    ):  # fmt: skip
        output = folder / f"{name}.memlens"
        if built[program] and _run(tool, "record", "--force", "-o", str(output), *options, "--", program, "6000"):
            found.append(output)
    alone = folder / "alone.memlens"
    shutil.rmtree(alone, ignore_errors=True)
    if built[counted] and _run(counted, "6000", MEMLENS_OUTPUT=str(alone)) and alone.is_dir():
        found.append(alone)
    return found


def _lackey() -> bytes:
    lines = ["==7== Lackey, an example Valgrind tool", "==7== Command: ./prog 1", "==7== "]
    for i in range(300):
        lines += [
            f"I  {0x400000 + 4 * (i % 40):08x},4",
            f" L {0x1FFE000 + 8 * i:08x},8",
            f" S {0x1FFF000 + 64 * i:08x},4",
            f" M {0x2000000 + i:08x},1",
        ]
    return ("\n".join(lines) + "\n").encode()


def _memgaze() -> dict[str, bytes]:
    trace = "".join(
        f"{0x1000 + 4 * (i % 9):x} {0x7F0000 + 8 * i:x} {i % 2} {i * 0.001:.6f} {i // 20}\n" for i in range(300)
    )
    classes = "".join(f"{0x1000 + 4 * i:x} {i % 3} 0 1 {i} 0 f{i}\n" for i in range(9))
    structure = (
        '<?xml version="1.0"?><HPCToolkitStructure><LM i="1" n="/bin/x" v="{}"><F i="2" n="x.c"><P i="3" n="main" l="3" v="{[0x1000-0x1001)}">'
        '<L i="4" l="5" v="{}"><S i="5" l="6" v="{[0x1000-0x1020)}"/></L></P></F></LM></HPCToolkitStructure>'
    )
    return {"m.trace": trace.encode(), "m.binanlys": classes.encode(), "m.hpcstruct": structure.encode()}


def _drmemtrace() -> bytes:
    def entry(kind: int, size: int, address: int) -> bytes:
        return struct.pack("<HHQ", kind, size, address)

    content = entry(25, 0, 7) + entry(28, 12, 7) + entry(28, 9, 0x40) + entry(22, 4, 101) + entry(24, 4, 100)
    for i in range(200):
        if i % 40 == 0:
            content += entry(28, 2, 11_644_473_600_000_000 + i * 10) + entry(28, 3, i % 4)
        content += entry(47, 4, 0x90909090) + entry(10, 4, 0x401000 + 4 * (i % 30)) + entry(i % 2, 8, 0x7000 + 8 * i)
    return content + entry(23, 4, 101) + entry(26, 0, 0)


def _perf_data() -> bytes:
    def record(kind: int, body: bytes, misc: int = 0) -> bytes:
        return struct.pack("<IHH", kind, misc, 8 + len(body)) + body

    def event(kind: int, body: bytes) -> bytes:
        return record(kind, body + b"\0" * (-len(body) % 8) + struct.pack("<IIQII", 7, 7, 900, 0, 0))

    info = [8, 32, 1 << 31, 0, 1, 0, 0, 0, 0, 0, 0, 0x3C000, 4, 1, 0, 0]
    packets = b"\x02\x82" * 8 + b"\x19" + (2000).to_bytes(7, "little") + b"\x02\x23"
    for i in range(60):
        packets += b"\x02\xb2" + (0x7000 + 8 * i).to_bytes(8, "little") + b"\xdd" + (0x401000 + i).to_bytes(8, "little")
    mapping = struct.pack("<IIQQQIIQQII", 7, 7, 0x400000, 0x2000, 0, 8, 1, 5, 0, 5, 2) + b"/bin/prog\0"
    records = record(70, struct.pack("<II", 1, 0) + struct.pack(f"<{len(info)}Q", *info))
    records += event(3, struct.pack("<II", 7, 7) + b"prog\0") + event(10, mapping) + event(12, struct.pack("<II", 7, 7))
    records += record(71, struct.pack("<QQQIIII", len(packets), 0, 0, 0, 0xFFFFFFFF, 0, 0)) + packets
    records += event(11, struct.pack("<QQQ", 0, len(packets), 0))
    attribute = struct.pack("<IIQQQQQ", 8, 64, 3 << 14, 1, 0x86, 0, 1 << 18) + b"\0" * 16
    header = b"PERFILE2" + struct.pack("<10Q", 104, 80, 104, 80, 184, len(records), 0, 0, 0, 0) + b"\0" * 16
    return header + attribute + b"\0" * 16 + records


def traces(folder: Path) -> list[Path]:
    """One directory a trace, its main file first by name: every format, plain and compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    contents: dict[str, dict[str, bytes]] = {
        "lackey": {"a.log": _lackey()},
        "lackey-gz": {"a.log.gz": gzip.compress(_lackey())},
        "memgaze": _memgaze(),
        "drmemtrace": {"drmemtrace.app.100.0001.trace": _drmemtrace()},
        "drmemtrace-gz": {"drmemtrace.app.100.0001.trace.gz": gzip.compress(_drmemtrace())},
        "ptwrite": {"perf.data": _perf_data()},
    }
    found = []
    for name, files in contents.items():
        (folder / name).mkdir(exist_ok=True)
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
        found.append(folder / name)
    zipped = folder / "drmemtrace-zip"
    zipped.mkdir(exist_ok=True)
    with zipfile.ZipFile(zipped / "drmemtrace.app.100.0001.trace.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        content = _drmemtrace()
        for number, at in enumerate(range(0, len(content), 1000)):
            archive.writestr(f"chunk.{number:04d}", content[at : at + 1000])
    found.append(zipped)
    import lzma

    import pyarrow as pa

    for name, compressed in (
        ("lackey-xz", lzma.compress(_lackey())),
        ("lackey-zst", pa.compress(_lackey(), "zstd", asbytes=True)),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "a.log").write_bytes(compressed)
        found.append(folder / name)
    return found
