"""How fast the locality engines are, beside others on the same trace: python benchmarks/locality.py --output docs/locality-speed.md

The trace: zipf 0.8 over a million lines, in random order of addresses. Speeds are accesses for each second of CPU time of the
thread that runs the engine: on a busy machine that is what an idle one would show, but for its caches, which others use
too. Rounds are interleaved and the best of each counts.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from memlens.capture.model.locality import (
    CacheModel,
    Footprint,
    LineSharing,
    LocalityStream,
    MissCurve,
    ReuseDistances,
    SampledCurve,
)
from memlens.capture.store.machine import cpu_model

HERE = Path(__file__).resolve().parent
LINES, EXPONENT = 1_000_000, 0.8
TABLE = 1 << 24
PART = 1 << 16
LEVELS = [(32 << 10, 8, False, "lru"), (1 << 20, 16, False, "lru"), (32 << 20, 16, True, "lru")]
TLBS = [(64 * 4096, 4, False, "lru"), (2048 * 4096, 8, False, "lru")]
GOALS = {
    "exact reuse distances": 15,
    "miss-ratio curve, sampled 1 %": 200,
    "footprint and classes": 100,
    "three-level cache model": 15,
}
"""Million accesses a second and core that are wanted."""


def zipf(count: int) -> np.ndarray:
    """Addresses of lines; probabilities are rounded to 2^-24."""
    weights = np.arange(1, LINES + 1, dtype=np.float64) ** -EXPONENT
    edges = np.cumsum(weights) / weights.sum()
    rank = np.minimum(np.searchsorted(edges, (np.arange(TABLE) + 0.5) / TABLE), LINES - 1)
    random = np.random.default_rng(1)
    line = (random.permutation(LINES).astype(np.uint64) * np.uint64(64) + np.uint64(0x7F0000000000))[rank]
    made = np.empty(count, dtype=np.uint64)
    for at in range(0, count, 1 << 22):
        end = min(at + (1 << 22), count)
        made[at:end] = line[random.integers(0, TABLE, end - at)]
    return made


class Columns:
    """A trace with what else accesses have; of one length, or repeated to be longer."""

    def __init__(self, addresses: np.ndarray) -> None:
        count = len(addresses)
        self.addresses = addresses
        self.bytes = np.full(PART, 8, dtype=np.uint32)
        self.stores = (np.arange(PART) % 4 == 0).astype(np.uint8)
        self.threads = (np.arange(PART) % 2).astype(np.uint32)
        self.groups = np.zeros(PART, dtype=np.uint32)
        # A class belongs to an instruction, and instructions to data: half of the pages are strided.
        self.classes = (2 + (addresses >> np.uint64(16) & np.uint64(1))).astype(np.uint8)
        self.times = np.arange(count, dtype=np.uint64)

    def parts(self) -> Any:
        for at in range(0, len(self.addresses), PART):
            yield at, self.addresses[at : at + PART]


def exact(c: Columns) -> Any:
    engine = ReuseDistances()
    for _, part in c.parts():
        engine.add(part, intervals=False)
    return engine


def exact_with_intervals(c: Columns) -> Any:
    engine = ReuseDistances()
    for _, part in c.parts():
        engine.add(part)
    return engine


def exact_curve(c: Columns) -> Any:
    engine, curve = ReuseDistances(), MissCurve()
    for _, part in c.parts():
        curve.add(engine.add(part, intervals=False)[0])
    return engine


def sampled(rate: float, most: int = 0) -> Callable[[Columns], Any]:
    def run(c: Columns) -> Any:
        engine = SampledCurve(rate=rate, most_blocks=most)
        for _, part in c.parts():
            engine.add(part)
        return engine

    return run


def footprint(c: Columns) -> Any:
    engine = Footprint(has_windows=False)
    for at, part in c.parts():
        engine.add(part, bytes=c.bytes[: len(part)], classes=c.classes[at : at + PART])
    engine.end_window()
    return engine


def footprint_by_window(c: Columns) -> Any:
    engine = Footprint()
    for at, part in c.parts():
        engine.add(part, bytes=c.bytes[: len(part)], classes=c.classes[at : at + PART])
        engine.end_window()
    return engine


def caches(tlbs: list[Any]) -> Callable[[Columns], Any]:
    def run(c: Columns) -> Any:
        engine = CacheModel(levels=LEVELS, tlbs=tlbs)
        for _, part in c.parts():
            engine.add(part, bytes=c.bytes[: len(part)], is_store=c.stores[: len(part)])
        return engine

    return run


def sharing(c: Columns) -> Any:
    engine = LineSharing()
    for _, part in c.parts():
        n = len(part)
        engine.add(part, c.bytes[:n], c.stores[:n], c.threads[:n])
    return engine


def everything(c: Columns) -> Any:
    engine = LocalityStream(
        views=1, has_windows=False, heat_columns=96, heat_rows=512, begin_ns=0, end_ns=len(c.addresses)
    )
    for at, part in c.parts():
        n = len(part)
        engine.add(
            part,
            bytes=c.bytes[:n],
            classes=c.classes[at : at + PART],
            times_ns=c.times[at : at + PART],
            groups=[c.groups[:n]],
        )
    engine.finish()
    return engine


ENGINES: dict[str, Callable[[Columns], Any]] = {
    "exact reuse distances": exact,
    "exact distances and intervals": exact_with_intervals,
    "exact distances and miss-ratio curve": exact_curve,
    "miss-ratio curve, sampled 1 %": sampled(0.01),
    "miss-ratio curve, sampled 0.1 %": sampled(0.001),
    "miss-ratio curve, at most 8,192 lines": sampled(0.1, 8192),
    "footprint and classes": footprint,
    "footprint and classes, window by window": footprint_by_window,
    "three-level cache model": caches([]),
    "three-level cache model, two TLBs": caches(TLBS),
    "sharing of lines": sharing,
    "all of a report: distances, intervals, footprint, curve, heat map": everything,
}


def timed(run: Callable[[Columns], Any], columns: Columns) -> tuple[float, Any]:
    begin = time.thread_time()
    engine = run(columns)
    return time.thread_time() - begin, engine


def on_two(run: Callable[[Columns], Any], halves: list[Columns]) -> float:
    """CPU seconds of the slower of two threads, each with half of the trace."""
    took = [0.0, 0.0]

    def work(at: int) -> None:
        took[at] = timed(run, halves[at])[0]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(took)


def measure(addresses: np.ndarray, rounds: int) -> list[list[str]]:
    whole = Columns(addresses)
    halves = [Columns(half) for half in np.array_split(addresses, 2)]
    best: dict[str, list[float]] = {name: [float("inf"), float("inf")] for name in ENGINES}
    memory: dict[str, int] = {}
    for _ in range(rounds):
        for name, run in ENGINES.items():
            took, engine = timed(run, whole)
            best[name][0] = min(best[name][0], took)
            memory[name] = getattr(engine, "memory_bytes", 0)
            del engine
            best[name][1] = min(best[name][1], on_two(run, halves))
    rows = []
    for name, (one, two) in best.items():
        speed = len(addresses) / one / 1e6
        goal = f"{GOALS[name]}" if name in GOALS else ""
        used = f"{memory[name] / 2**20:.0f} MiB" if memory[name] else ""
        rows.append([name, f"{speed:.1f}", f"{len(addresses) / two / 1e6:.1f}", goal, used])
        print("  ".join(rows[-1]), flush=True)
    return rows


def peers(trace: Path, addresses: np.ndarray, python: str) -> list[list[str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        olken = Path(folder) / "olken"
        subprocess.run(["g++", "-O2", "-std=c++20", "-o", str(olken), str(HERE / "olken.cpp")], check=True)
        # A tree of all lines is deep from the start: 5 million accesses fill it.
        for count in (min(5_000_000, len(addresses)),):
            took, total = subprocess.run(
                [str(olken), str(trace), str(count)], capture_output=True, text=True, check=True
            ).stdout.split()
            ours_s, _ = timed(exact, Columns(addresses[:count]))
            distances, _ = ReuseDistances().add(addresses[:count], intervals=False)
            same = int(distances[distances < 0xFFFFFFFE].astype(np.uint64).sum()) == int(total)
            note = "the sum of all distances is the same" if same else "THE SUM OF ALL DISTANCES DIFFERS"
            rows.append(
                [
                    "exact reuse distances",
                    "Olken's tree in C++",
                    f"{count / float(took) / 1e6:.2f}",
                    f"{count / ours_s / 1e6:.1f}",
                    note,
                ]
            )
    for name, count, what in (
        ("libcachesim", 5_000_000, "one LRU cache of 16,384 lines"),
        ("pycachesim", 2_000_000, "three levels, LRU"),
    ):
        count = min(count, len(addresses))
        done = subprocess.run(
            [python, str(HERE / "locality_peers.py"), name, str(trace), str(count)], capture_output=True, text=True
        )
        if done.returncode != 0:
            rows.append(
                [
                    what,
                    name,
                    "",
                    "",
                    f"not run: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}",
                ]
            )
            continue
        took, misses = done.stdout.split()[-2:]
        levels = [(16384 * 64, 16, False, "lru")] if name == "libcachesim" else LEVELS
        model = CacheModel(levels=levels)
        begin = time.thread_time()
        model.add(addresses[:count], bytes=np.full(count, 8, dtype=np.uint32))
        ours_s = time.thread_time() - begin
        found = int(model.columns()["misses_1"][0])
        note = f"misses of the first level: {int(misses):,}, ours {found:,}" + (
            " (16 ways, not fully associative)" if name == "libcachesim" else ""
        )
        rows.append([what, name, f"{count / float(took) / 1e6:.2f}", f"{count / ours_s / 1e6:.1f}", note])
    rows.extend(cachegrind())
    return rows


CHASE = """
#include <stdlib.h>
static long a[1 << 20];
int main(void) { unsigned long x = 1; for (long i = 0; i < 20000000; i++) { x = x * 6364136223846793005ul + 1; a[x >> 44] += i; } return 0; }
"""


def cachegrind() -> list[list[str]]:
    """Valgrind's whole cost: it runs the program as well."""
    if shutil.which("valgrind") is None:
        return [
            ["two levels, running the program", "valgrind cachegrind", "", "", "not run: valgrind is not installed"]
        ]
    with tempfile.TemporaryDirectory() as folder:
        source, program, out = (Path(folder) / name for name in ("chase.c", "chase", "out"))
        source.write_text(CHASE)
        subprocess.run(["cc", "-O1", "-o", str(program), str(source)], check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [
                "valgrind",
                "--tool=cachegrind",
                "--cache-sim=yes",
                f"--cachegrind-out-file={out}",
                "--log-file=/dev/null",
                str(program),
            ],
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        lines = out.read_text().splitlines()
        events = next(line.split()[1:] for line in lines if line.startswith("events:"))
        sums = dict(
            zip(
                events,
                (int(v) for v in next(line for line in lines if line.startswith("summary:")).split()[1:]),
                strict=True,
            )
        )
        data = sums["Dr"] + sums["Dw"]
        addresses = (
            np.random.default_rng(2).integers(0, 1 << 20, 5_000_000).astype(np.uint64) * np.uint64(8)
        ) + np.uint64(0x500000)
        model = CacheModel(levels=LEVELS[:2], inclusive=False)
        begin = time.thread_time()
        model.add(addresses, bytes=np.full(len(addresses), 8, dtype=np.uint32))
        ours = len(addresses) / (time.thread_time() - begin) / 1e6
        return [["two levels, random words of 8 MiB", "valgrind cachegrind", f"{data / took / 1e6:.2f}", f"{ours:.1f}",
                 "it also runs the program and simulates instruction fetches"]]  # fmt: skip


def growth(addresses: np.ndarray, most: int) -> list[list[str]]:
    rows = []
    counts = [c for c in (1_000_000, 10_000_000, 100_000_000, 1_000_000_000) if c <= most]
    for count in counts:
        best = float("inf")
        for _ in range(3 if count <= 10_000_000 else 1):
            engine = ReuseDistances()
            begin = time.thread_time()
            done = 0
            while done < count:
                for at in range(0, min(count - done, len(addresses)), PART):
                    engine.add(addresses[at : min(at + PART, count - done)], intervals=False)
                done += min(count - done, len(addresses))
            best = min(best, time.thread_time() - begin)
        rows.append([f"{count:,}", f"{best / count * 1e9:.1f}", f"{engine.memory_bytes / 2**20:.0f} MiB"])
        print("  ".join(rows[-1]), flush=True)
    return rows


def table(titles: list[str], rows: list[list[str]]) -> str:
    sides = ["---", *(["---:"] * (len(titles) - 1))]
    lines = [f"| {' | '.join(row)} |" for row in (titles, sides, *rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accesses", type=int, default=100_000_000)
    parser.add_argument("--longest", type=int, default=1_000_000_000, help="longest trace for the cost of an access")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with libcachesim and pycachesim")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    addresses = zipf(options.accesses)
    engines = measure(addresses, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        addresses[:10_000_000].tofile(trace)
        beside = peers(trace, addresses, options.peer_python)
    lengths = growth(addresses, options.longest)
    machine = [["processor", cpu_model()], ["cores", str(os.cpu_count())], ["kernel", platform.release()],
               ["load when it began", f"{load:.1f}"], ["date", datetime.date.today().isoformat()]]  # fmt: skip
    text = f"""# Speed of the locality engines

Written by `python benchmarks/locality.py --accesses {options.accesses} --rounds {options.rounds} --output`.

{table(["machine", ""], machine)}

{options.accesses:,} accesses, zipf {EXPONENT} over {LINES:,} lines of 64 bytes at random places. Million accesses for each second of CPU time of
the engine's thread, best of {options.rounds} interleaved rounds. Two cores: two threads with half of the trace each, by the CPU time of the slower one.

{table(["engine", "one core", "two cores", "wanted", "memory"], engines)}

## Beside others

On the beginning of the same trace, million accesses a second of CPU time.

{table(["what", "peer", "peer's speed", "memlens", "note"], beside)}

## Cost of an access against the length of the trace

Exact reuse distances; the trace is repeated to be longer. Short traces consist of first accesses, which enlarge the tables.

{table(["accesses", "ns an access", "memory"], lengths)}
"""
    if options.output:
        options.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
