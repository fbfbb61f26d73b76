"""How fast `memlens import` reads traces of valgrind's lackey, and how small the captures are, beside wc and zstd.

Three loops with different addresses (a sweep, random places, a chain of pointers) are traced with valgrind, once each; the
trace is imported several times and the fastest time counts. `wc -l` on the same file says how fast it can be walked at
all, `zstd -1` how small the text becomes.

Exit status: 0; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
enum { N = 1 << 20 };
static uint64_t data[N];
int main(int count, char **arguments) {
  const char *kind = count > 2 ? arguments[1] : "sweep";
  long rounds = count > 2 ? atol(arguments[2]) : 1000;
  uint64_t sum = 0, at = 1;
  if (!strcmp(kind, "sweep"))
    for (long i = 0; i < rounds; i++) data[i % N] += (uint64_t)i;
  else if (!strcmp(kind, "random"))
    for (long i = 0; i < rounds; i++) { at = at * 6364136223846793005u + 1442695040888963407u; sum += data[at >> 44]; data[at >> 43 & (N - 1)] = sum; }
  else {
    for (long i = 0; i < N; i++) data[i] = (uint64_t)(i * 7919 + 13) % N;
    for (long i = 0; i < rounds; i++) at = data[at];
  }
  return (int)(sum + at) == 42;
}
"""
KINDS = {"sweep": 800_000, "random": 500_000, "chain": 200_000}


def describe_machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{model}, Linux {platform.release()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


def fastest(command: list[str], rounds: int) -> tuple[float, float]:
    """Least wall and least processor time of several runs; the second does not depend on who else runs."""
    wall, processor = float("inf"), float("inf")
    for _ in range(rounds):
        before, begin = os.times(), time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        wall, after = min(wall, time.monotonic() - begin), os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        processor = min(processor, used)
    return wall, processor


def measure(memlens: list[str], kind: str, loops: int, rounds: int, folder: Path) -> str:
    """One row of the table."""
    trace, capture = folder / f"{kind}.lackey", folder / f"{kind}.memlens"
    subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={trace}", folder / "program", kind, str(loops)],
        check=True, capture_output=True,
    )  # fmt: skip
    trace_bytes = trace.stat().st_size
    with trace.open("rb") as file:
        lines = sum(line[:2] in (b" L", b" S", b" M") for line in file)
    seconds, processor_s = fastest([*memlens, "import", "-q", "--force", str(trace), "-o", str(capture)], rounds)
    _, walk = fastest(["wc", "-l", str(trace)], rounds)
    records = (capture / "records-recorder.mlc").stat().st_size
    packed = len(subprocess.run(["zstd", "-1", "-c", str(trace)], check=True, capture_output=True).stdout)
    trace.unlink()
    return (
        f"| {kind} | {trace_bytes / 2**20:,.0f} MiB | {lines / 1e6:.2f} M | {seconds:.2f} s | {processor_s:.2f} s | {trace_bytes / 2**20 / processor_s:,.0f} | "
        f"{lines / 1e6 / processor_s:.1f} | {trace_bytes / 2**20 / max(walk, 0.01):,.0f} | {records / lines:.2f} | {packed / lines:.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memlens", default="memlens", help="command of memlens")
    parser.add_argument("--output", type=Path, help="page to write (default: print)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for tool in ("valgrind", "gcc", "zstd"):
        if not shutil.which(tool):
            sys.stderr.write(f"needs {tool}\n")
            return 2
    with tempfile.TemporaryDirectory(prefix="memlens-import-") as name:
        folder = Path(name)
        (folder / "program.c").write_text(PROGRAM)
        subprocess.run(["gcc", "-O1", "-o", folder / "program", folder / "program.c"], check=True)
        rows = [
            measure(shlex.split(options.memlens), kind, loops, options.rounds, folder) for kind, loops in KINDS.items()
        ]
    page = (
        "# Speed of import\n\nTraces of valgrind's lackey, written and measured by `make bench-import`. Times are of the whole command, start and side\n"
        "tables included; the least of several runs, and rates are by processor time. Accesses are data lines; instructions are most of a trace.\n\n"
        "| loop | trace | accesses | wall | processor | MiB/s | million accesses/s | `wc -l` MiB/s | capture, bytes an access | `zstd -1` of the text |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + f"\n\nMeasured on {describe_machine()}.\n"
    )
    if options.output:
        options.output.write_text(page)
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
