"""What annotations cost while nothing records: C sites in a tight loop (GCC and clang) and the Python calls.

    python benchmarks/annotation_cost.py

Prints the best of several runs, which is what a machine that others use too can say.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import timeit
from pathlib import Path

import memlens

ROOT = Path(__file__).resolve().parent.parent
CALLS = 1_000_000
STATEMENTS = [
    'with memlens.region("solve"): pass',
    'memlens.phase("solve")',
    'memlens.tag("matrix", matrix)',
    "memlens.untag(matrix)",
    "memlens.is_recording()",
]


def best_ns(statement: str) -> float:
    names = {"memlens": memlens, "matrix": bytearray(64)}
    return min(timeit.repeat(statement, globals=names, number=CALLS, repeat=9)) / CALLS * 1e9


def main() -> None:
    for compiler in filter(shutil.which, ("gcc", "clang")):
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "annotation_cost"
            source = ROOT / "benchmarks" / "annotation_cost.c"
            include = ROOT / "native" / "include"
            subprocess.run([compiler, "-O2", f"-I{include}", str(source), "-o", str(program)], check=True)
            print(
                f"{compiler} -O2\n{subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout}"
            )
    empty = best_ns("pass")
    print(f"Python, recording: {memlens.is_recording()}")
    for statement in STATEMENTS:
        print(f"  {best_ns(statement) - empty:6.1f} ns  {statement}")


if __name__ == "__main__":
    main()
