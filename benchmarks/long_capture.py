"""A capture of a billion accesses, and what summarising it takes: python benchmarks/long_capture.py --accesses 1000000000 --output docs/locality-speed.md

The capture is made by a generator and written as a recorder writes: records of 65,536 accesses through `CaptureWriter`. Half of the
accesses are zipf 0.8 over a million lines, a quarter sweeps 64 MiB, a quarter is random over 4 MiB; the records repeat after a while, times and
numbers go on. A process of its own analyses it (`memlens.analyses.locality` with its heat map, by function), with a limit of memory, and tells its peak.

The section that is written replaces the one of that title in the output file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memlens import _core
from memlens.capture.store.layouts import Packer, layouts
from memlens.capture.store.machine import cpu_model
from memlens.capture.store.writer import CaptureWriter

RECORD = 1 << 16
DISTINCT = 256
"""Records that differ: 16 million accesses."""
LINES = 1_000_000
BASE = 0x7F00_0000_0000
NS_AN_ACCESS = 1
PC_DELTA = 2
LIMIT_BYTES = 4 << 30
SHORTER = (1_000_000, 10_000_000, 100_000_000)
TITLE = "## A long capture"

ANALYSE = """
import json, resource, sys, time
import memlens
path, limit = sys.argv[1], int(sys.argv[2])
begin, cpu = time.monotonic(), time.process_time()
result = memlens.analyses.locality(memlens.open(path), by="function", memory_limit_bytes=limit)
program = result.tables["by_program"].to_pylist()[0]
print(json.dumps({
    "seconds": time.monotonic() - begin, "cpu_seconds": time.process_time() - cpu, "accesses": result.figures["recorded_accesses"],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "engine_bytes": result.figures["memory_bytes"],
    "cells": result.tables["heat_map"].num_rows, "heat_accesses": sum(result.tables["heat_map"].column("accesses").to_pylist()),
    "footprint_lines": program["footprint_lines"], "whole": result.figures["everything_recorded"],
}))
"""


def streams(random: Any) -> list[bytes]:
    """Encoded accesses of each distinct record."""
    weights = np.arange(1, LINES + 1, dtype=np.float64) ** -0.8
    edges = np.cumsum(weights) / weights.sum()
    place = random.permutation(LINES).astype(np.uint64) * np.uint64(64) + np.uint64(BASE)
    index = np.arange(RECORD)
    kind = index % 4
    codes = (0x1000 + 16 * kind).astype(np.uint64)
    widths = np.full(RECORD, 8, dtype=np.uint32)
    operations = np.where(kind == 3, 2, 1).astype(np.uint8)
    made = []
    for number in range(DISTINCT):
        hot = place[np.minimum(np.searchsorted(edges, random.random(RECORD)), LINES - 1)]
        swept = BASE + (1 << 32) + (number * RECORD // 4 + index // 4) * 16 % (64 << 20)
        spread = BASE + (1 << 33) + random.integers(0, 4 << 17, RECORD) * 8
        addresses = np.where(kind < 2, hot, np.where(kind == 2, swept.astype(np.uint64), spread.astype(np.uint64)))
        made.append(bytes(_core.encode_stream(codes, addresses.astype(np.uint64), widths, operations)))
    return made


def write(path: Path, accesses: int) -> None:
    """A capture of one thread, with everything that a recorder would write of it."""
    made = streams(np.random.default_rng(1))
    count = accesses // RECORD
    meta = {"command": ["generated"], "machine": {"page_bytes": 4096, "cpu": cpu_model(), "cpus": 1, "numa_nodes": []},
            "begin_ns": 0, "end_ns": count * RECORD * NS_AN_ACCESS, "collectors": {}}  # fmt: skip
    writer = CaptureWriter(path, meta, force=True)
    packer, kind = Packer("window"), layouts()["window"].kind
    for number in range(count):
        begin = number * RECORD
        record = packer.pack(made[number % DISTINCT], begin_ns=begin * NS_AN_ACCESS, end_ns=(begin + RECORD) * NS_AN_ACCESS,
                             first_executed=begin, executed=RECORD, recorded=RECORD, thread=1, period=RECORD, encoding=PC_DELTA)  # fmt: skip
        writer.append(kind, record, record_count=1, process=1, thread=1)
        if writer.failure is not None:
            raise writer.failure
    writer.finish()


def analyse(path: Path, limit: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", ANALYSE, str(path), str(limit)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    return dict(json.loads(done.stdout))


@dataclass
class Measured:
    found: dict[str, Any]
    written_s: float
    disk_bytes: int

    @property
    def ns_an_access(self) -> float:
        return float(self.found["cpu_seconds"] / self.found["accesses"] * 1e9)

    def row(self) -> str:
        found, count = self.found, self.found["accesses"]
        cells = [f"{count:,}", f"{self.disk_bytes / 2**20:,.0f} MiB", f"{self.written_s:.0f} s", f"{found['seconds']:.1f} s",
                 f"{found['cpu_seconds']:.1f} s", f"{self.ns_an_access:.0f}", f"{found['peak_bytes'] / 2**20:,.0f} MiB",
                 f"{found['engine_bytes'] / 2**20:,.0f} MiB", f"{found['footprint_lines']:,}", f"{found['cells']:,}"]  # fmt: skip
        return f"| {' | '.join(cells)} |"


def section(measured: list[Measured], load: float) -> str:
    allowed = len(os.sched_getaffinity(0))
    grown = measured[-1].ns_an_access / measured[0].ns_an_access
    held = all(one.found["heat_accesses"] == one.found["accesses"] for one in measured)
    rows = "\n".join(one.row() for one in measured)
    return f"""{TITLE}

Written by `python benchmarks/long_capture.py --accesses {measured[-1].found["accesses"]} --output` on {cpu_model()}, Linux {platform.release()}, {allowed} core{"s" if allowed > 1 else ""} allowed,
load {load:.1f} when it began, {datetime.date.today().isoformat()}. The capture is made by a generator and has every access; it is summarised
(footprint, classes, exact reuse, miss curve, heat map; program and functions) by `memlens.analyses.locality` with a limit of 4 GiB, in a process of its own for each
length. Its CPU time includes starting Python and opening the capture.

| accesses | on disk | writing | analysing | CPU time | ns of CPU an access | peak memory of the process | engines | lines | cells of the heat map |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

From the shortest to the longest an access costs {grown:.2f} times as much. The heat maps hold {"every access" if held else "**not every access**"}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accesses", type=int, default=1_000_000_000)
    parser.add_argument("--capture", type=Path, help="keep the capture here, and use it when it is there")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = []
    for count in [*(c for c in SHORTER if c < options.accesses), options.accesses]:
        with tempfile.TemporaryDirectory(prefix="memlens-long-") as folder:
            is_kept = options.capture is not None and count == options.accesses
            path = options.capture if is_kept else Path(folder) / "long.memlens"
            begin = time.monotonic()
            if not (path / "meta.json").exists():
                write(path, count)
            written_s = time.monotonic() - begin
            disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            print(f"written in {written_s:.0f} s, {disk >> 20:,} MiB", file=sys.stderr, flush=True)
            measured.append(Measured(analyse(path, LIMIT_BYTES), written_s, disk))
            print(measured[-1].row(), file=sys.stderr, flush=True)
    text = section(measured, load)
    print(text)
    if options.output:
        page = options.output.read_text() if options.output.exists() else "# Speed of the locality engines\n"
        before, _, after = page.partition(TITLE)
        rest = after.partition("\n## ")
        options.output.write_text(before.rstrip() + "\n\n" + text + ("\n## " + rest[2] if rest[1] else ""))
    grown = measured[-1].ns_an_access / measured[0].ns_an_access
    is_whole = all(one.found["heat_accesses"] == one.found["accesses"] for one in measured)
    return 0 if measured[-1].found["peak_bytes"] <= LIMIT_BYTES and is_whole and grown < 2 else 1


if __name__ == "__main__":
    sys.exit(main())
