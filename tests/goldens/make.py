"""Makes the golden captures and what `memlens report --json` says of each.

    python tests/goldens/make.py [NAME…]      record these captures (all), and write their reports
    python tests/goldens/make.py --reports    write the reports of the kept captures anew

Captures are redacted, so they hold no paths. Their reports may change only with a reason: tests/present/test_goldens.py compares.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "native" / "include"
MEMLENS = [sys.executable, "-m", "memlens"]


@dataclass(frozen=True)
class Golden:
    """One capture: how its program is built and recorded."""

    build: str
    """plain, count or trace."""
    options: tuple[str, ...]
    arguments: tuple[str, ...] = ("3", "1")
    variables: tuple[tuple[str, str], ...] = ()
    """Set: the program writes its capture itself, without a recorder."""


EXACT = ("--exact", "--rate", "100")
GOLDENS = {
    "faults": Golden("plain", EXACT, ("4", "2")),
    "budget": Golden("plain", ("--budget", "0.1%", "--rate", "100"), ("48", "12")),
    "heap": Golden("plain", (*EXACT, "--sample-bytes", "2K", "--collectors", "alloc,timeline"), ("24", "1")),
    "objects": Golden("plain", (*EXACT, "--sample-bytes", "0"), ("2", "1")),
    "emulate": Golden("plain", (*EXACT, "--emulate=window=500,period=20000"), ("3", "1")),
    "emulate-full": Golden("plain", (*EXACT, "--emulate=full,pages"), ("1", "1")),
    "count": Golden("count", EXACT),
    "count-sampled": Golden("count", (*EXACT, "--count=every=5,seed=1,epoch=10ms"), ("200", "1")),
    "trace": Golden("trace", (*EXACT, "--trace=window=500,period=10000,seed=1"), ("8", "1")),
    "trace-full": Golden("trace", (*EXACT, "--trace=full,on-full=wait"), ("2", "1")),
    "alone": Golden("count", (), ("3", "1"), (("MEMLENS_OUTPUT", "{output}"),)),
}


def lackey_trace() -> str:
    """Loads and stores by three instructions: a sweep, a line that is used again, a walk through 1 MiB."""
    lines = ["==7== Lackey, an example Valgrind tool", "==7== Command: ./prog 1", "==7== "]
    at = 1
    for i in range(4000):
        at = (at * 1103515245 + 12345) % (1 << 31)
        lines += [
            f"I  {0x400000 + 4 * (i % 3):08x},4",
            f" L {0x1000000 + 8 * i:08x},8",
            f" S {0x2000000 + 8 * (i % 8):08x},8",
            f" L {0x3000000 + (at >> 11 << 3) % (1 << 20):08x},8",
        ]
    return "\n".join(lines) + "\n"


def capture_of(name: str) -> Path:
    return HERE / f"{name}.memlens"


def packed(name: str) -> Path:
    """Counters without a recorder are a sparse file of 70 MB: kept as an archive."""
    return HERE / f"{name}.tar.xz"


def opened(name: str, scratch: Path) -> Path:
    """The capture, unpacked if need be."""
    if capture_of(name).exists():
        return capture_of(name)
    subprocess.run(["tar", "-xJf", packed(name), "-C", scratch], check=True)
    return scratch / f"{name}.memlens"


def report_of(capture: Path) -> dict[str, Any]:
    """What `memlens report --json` prints, on no machine in particular."""
    with tempfile.TemporaryDirectory() as nowhere:
        surroundings = os.environ | {"XDG_STATE_HOME": nowhere, "DEBUGINFOD_URLS": ""}
        done = subprocess.run(
            [*MEMLENS, "report", "--no-cache", str(capture), "--json"],
            capture_output=True,
            check=True,
            env=surroundings,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write_report(name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        text = json.dumps(report_of(opened(name, Path(scratch))), indent=0, sort_keys=True)
    (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _run(*words: str | Path, cwd: Path | None = None, **variables: str) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=cwd, env=os.environ | variables)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")


def make(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="memlens-golden-") as scratch:
        folder = Path(scratch)
        flags = ("-O1", "-g", "-pthread", "-I", INCLUDE, f"-ffile-prefix-map={HERE}=.", HERE / "program.c", "-o")
        builds = {"plain": ("cc",), "count": (*MEMLENS, "cc"), "trace": (*MEMLENS, "cc", "--memlens=trace")}
        for build in {GOLDENS[name].build for name in names if name in GOLDENS}:
            _run(*builds[build], *flags, folder / build)
        for name in names:
            output = capture_of(name)
            shutil.rmtree(output, ignore_errors=True)
            if name == "lackey":
                (folder / "lackey.log").write_text(lackey_trace())
                _run(*MEMLENS, "import", "lackey.log", "-o", output, cwd=folder)
                continue
            golden = GOLDENS[name]
            variables = {key: value.format(output=output) for key, value in golden.variables}
            command = [folder / golden.build, *golden.arguments]
            if not variables:
                command = [*MEMLENS, "record", "-q", "--redact", *golden.options, "-o", output, "--", *command]
            _run(*command, **variables)
            if variables:
                _run("tar", "-C", HERE, "--sparse", "-cJf", packed(name), output.name)
                shutil.rmtree(output)


def main() -> None:
    names = sys.argv[1:] or [*GOLDENS, "lackey"]
    if names == ["--reports"]:
        names = [*GOLDENS, "lackey"]
    else:
        make(names)
    for name in names:
        write_report(name)


if __name__ == "__main__":
    main()
