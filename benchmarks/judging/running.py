"""One run of a program: natively, under memlens, and under each oracle."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .programs import Program

LIMIT_S = 600.0
ENVIRONMENT = {
    **os.environ,
    "LC_ALL": "C",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PERL_HASH_SEED": "0",
    "PERL_PERTURB_KEYS": "0",
}


class RunError(Exception):
    """A run that gave nothing to compare; the message has the command's last words."""


@dataclasses.dataclass(frozen=True)
class Rusage:
    """What the kernel counted for a program and all children that it waited for."""

    status: int
    faults: int
    peak_rss_bytes: int
    wall_s: float
    output: bytes


@contextlib.contextmanager
def folder_for(program: Program, root: Path) -> Iterator[Path]:
    """A fresh folder with the program's input: a run may change it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{program.name}-", dir=root))
    try:
        program.prepare(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def native(program: Program, folder: Path) -> Rusage:
    """Under GNU time, which is small: what forks from a large process begins with the large one's peak."""
    out, times = folder / "judge-native-output", folder / "judge-time"
    begin = time.monotonic()
    with out.open("wb") as file:
        done = subprocess.run(
            ["/usr/bin/time", "-q", "-o", str(times), "-f", "%R %F %M", *program.command],
            cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, timeout=LIMIT_S,
        )  # fmt: skip
    minor, major, peak_kib = (int(word) for word in times.read_text().split()[-3:])
    return Rusage(done.returncode, minor + major, peak_kib * 1024, time.monotonic() - begin, out.read_bytes())


@dataclasses.dataclass(frozen=True)
class Recorded:
    status: int
    report: dict[str, Any]
    output: bytes
    capture: Path

    def figure(self, analysis: str, name: str) -> float | None:
        result = self.report["results"].get(analysis)
        value = None if result is None else result["figures"].get(name)
        return None if value is None else float(value)

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.report["findings"])


def record(memlens: list[str], program: Program, folder: Path, *options: str, report: bool = True) -> Recorded:
    capture = folder / f"judge-{len(list(folder.glob('judge-*.memlens')))}.memlens"
    out = folder / "judge-recorded-output"
    with out.open("wb") as file:
        done = subprocess.run(
            [*memlens, "record", "-q", "-o", str(capture), *options, "--", *program.command],
            cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, timeout=LIMIT_S,
        )  # fmt: skip
    if not (capture / "meta.json").exists():
        raise RunError(f"memlens record {program.name}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    content: dict[str, Any] = {"results": {}, "findings": []}
    if report:
        content = json.loads(checked([*memlens, "report", "--json", str(capture)], folder))
    return Recorded(done.returncode, content, out.read_bytes(), capture)


def checked(command: list[str], folder: Path, *, errors: bool = False) -> str:
    """Standard output (or error) of a command that must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RunError(
            f"{' '.join(command[:4])} …: exit {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}"
        )
    return (done.stderr if errors else done.stdout).decode(errors="replace")


# ---- oracles ---------------------------------------------------------------------------------------------


def heaptrack(program: Program, folder: Path) -> dict[str, float]:
    """Calls, temporary calls, peak and leaked bytes as heaptrack_print sums them up."""
    checked(["heaptrack", "-o", str(folder / "judge-heaptrack"), *program.command], folder)
    found = next(folder.glob("judge-heaptrack*"))
    printed = checked(["heaptrack_print", "-f", str(found), "-p", "0", "-a", "0", "-T", "0", "-l", "0"], folder)
    found.unlink()
    figures = {}
    for name, pattern in (
        ("calls", r"calls to allocation functions: (\d+)"),
        ("temporary", r"temporary memory allocations: (\d+)"),
        ("peak", r"peak heap memory consumption: ([\d.]+)([KMGT]?)B?"),
        ("leaked", r"total memory leaked: ([\d.]+)([KMGT]?)B?"),
    ):
        match = re.search(pattern, printed)
        if match is None:
            raise RunError(f"heaptrack_print says nothing of {name}")
        scale = 1000 ** " KMGT".index(match[2] or " ") if match.re.groups == 2 else 1
        figures[name] = float(match[1]) * scale
    return figures


def dhat(program: Program, folder: Path) -> dict[str, float]:
    """Blocks and bytes that DHAT saw: total, at its peak, at the end."""
    out = folder / "judge-dhat"
    errors = checked(["valgrind", "--tool=dhat", f"--dhat-out-file={out}", *program.command], folder, errors=True)
    figures = {}
    for name, label in (("total", "Total"), ("peak", "At t-gmax"), ("end", "At t-end")):
        match = re.search(rf"{label}:\s+([\d,]+) bytes in ([\d,]+) blocks", errors)
        if match is None:
            raise RunError("DHAT printed no totals")
        figures[f"{name}_bytes"] = float(match[1].replace(",", ""))
        figures[f"{name}_blocks"] = float(match[2].replace(",", ""))
    return figures


LACKEY_BYTES = {
    "I1": 1,
    "I8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
    "I128": 16,
    "F32": 4,
    "F64": 8,
    "F128": 16,
    "V128": 16,
    "V256": 32,
    "D32": 4,
    "D64": 8,
    "D128": 16,
}


def lackey(program: Program, folder: Path) -> dict[str, float]:
    """Loads, stores and their bytes by lackey's detailed counts."""
    command = [
        "valgrind",
        "--tool=lackey",
        "--basic-counts=yes",
        "--detailed-counts=yes",
        "--vex-iropt-level=0",
        *program.command,
    ]
    errors = checked(command, folder, errors=True)
    figures = {"loads": 0.0, "stores": 0.0, "load_bytes": 0.0, "store_bytes": 0.0}
    for match in re.finditer(r"^==\d+==\s+([IFVD]\d+)\s+([\d,]+)\s+([\d,]+)\s+[\d,]+\s*$", errors, re.MULTILINE):
        width = LACKEY_BYTES[match[1]]
        loads, stores = (float(match[at].replace(",", "")) for at in (2, 3))
        figures["loads"] += loads
        figures["stores"] += stores
        figures["load_bytes"] += loads * width
        figures["store_bytes"] += stores * width
    if not figures["loads"]:
        raise RunError("lackey printed no counts")
    return figures


def cachegrind(command: list[str], folder: Path, *, d1: str, last: str) -> dict[str, float]:
    """Data references and misses of cachegrind's two levels."""
    out = folder / "judge-cachegrind"
    checked(
        [
            "valgrind",
            "--tool=cachegrind",
            f"--D1={d1}",
            f"--LL={last}",
            f"--cachegrind-out-file={out}",
            "--cache-sim=yes",
            *command,
        ],
        folder,
    )
    events = summary = None
    for line in out.read_text(errors="replace").splitlines():
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("summary:"):
            summary = [float(word) for word in line.split()[1:]]
    if events is None or summary is None:
        raise RunError("cachegrind wrote no summary")
    return dict(zip(events, summary, strict=True))


def missing_tool(*names: str) -> str | None:
    packages = {
        "heaptrack": "heaptrack",
        "heaptrack_print": "heaptrack",
        "valgrind": "valgrind",
        "qemu-x86_64": "qemu-user",
        "/usr/bin/time": "time",
        "clang-19": "clang-19 llvm-19-dev lld-19",
    }
    for name in names:
        if shutil.which(name) is None:
            return f"{name} is not installed: sudo apt-get install {packages.get(name, name)}"
    return None
