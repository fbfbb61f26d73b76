"""Big captures with known contents, for benchmarks of reports: python benchmarks/big_captures.py KIND --count N --output DIR

    accesses   N accesses in windows of two threads, 1 executed access in 10 recorded, over 64 heap objects; 96 instructions of as many functions
    faults     N page faults of four threads on distinct pages, one in 16 again on a page that was given back; one stack in 64
    objects    a program that allocates N objects from 64 call stacks and frees most of them, recorded with every object by `memlens record`
    traced     a workload built with `memlens cc --memlens=trace` and recorded in windows until about N accesses are in the capture

`accesses` and `faults` are written by the capture's writer, so that they have N rows exactly, the same ones each time. The program of `objects` can be recorded
by other tools too (`object_program`). Nothing is made where the capture exists already.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from memlens import _core
from memlens.capture.store.layouts import Packer, enum_value, layouts
from memlens.capture.store.machine import cpu_model
from memlens.capture.store.writer import CaptureWriter

ACCESSES, FAULTS, OBJECTS = 50_000_000, 20_000_000, 20_000_000
PAGE = 4096
PROCESS = 1
HEAP = 0x7000_0000_0000
RECORD_BATCH = 1 << 16
WINDOW, PERIOD = 4096, 40_960
WINDOWS_A_CHUNK = 16
DISTINCT_WINDOWS = 512
NS_AN_ACCESS = 1
READ, WRITE, EXECUTE = 1, 2, 4
FUNCTIONS = 200


class Writer:
    """A capture of one process with a small library as its code, written as a recorder writes."""

    def __init__(self, path: Path, name: str, *, threads: int, end_ns: int) -> None:
        meta = {"command": [name], "machine": {"page_bytes": PAGE, "cpu": cpu_model(), "cpus": threads, "numa_nodes": [], "numa_balancing": False},
                "begin_ns": 1, "end_ns": end_ns, "collectors": {}}  # fmt: skip
        self.writer = CaptureWriter(path, meta)
        self._strings: list[bytes] = []
        self._written = 0
        self.threads = list(range(100, 100 + threads))
        library, self.text, text_bytes, offset, inode = _library(path.parent)
        events = [self._event("exec", 100, name)]
        events += [self._event("thread", thread, name) for thread in self.threads[1:]]
        code = self.mapping(
            self.text, text_bytes, path=library, file_offset=offset, inode=inode, protection=READ | EXECUTE
        )
        self.records("process_event", events)
        self.records("mapping", [code])
        self.text_bytes = text_bytes

    def string(self, text: str) -> int:
        self._strings.append(Packer("string").pack(text.encode(), id=len(self._strings) + 1))
        return len(self._strings)

    def _event(self, operation: str, thread: int, name: str) -> bytes:
        return Packer("process_event").pack(time_ns=1, pid=100, thread=thread, operation=enum_value("process_operation", operation),
                                            name=self.string(name), status=-1)  # fmt: skip

    def mapping(self, address: int, size: int, *, path: str = "//anon", file_offset: int = 0, inode: int = 0,
                protection: int = READ | WRITE) -> bytes:  # fmt: skip
        return Packer("mapping").pack(time_ns=1, address=address, bytes=size, path=self.string(path), file_offset=file_offset, inode=inode,
                                      protection=protection, thread=100, operation=enum_value("mapping_operation", "map"))  # fmt: skip

    def stacks(self, count: int, random: Any) -> None:
        """Call stacks 1 to `count`."""
        outer = random.integers(0, self.text_bytes, 64, dtype=np.uint64) + np.uint64(self.text)
        made = []
        for number in range(1, count + 1):
            inner = random.integers(0, self.text_bytes, 4, dtype=np.uint64) + np.uint64(self.text)
            frames = np.concatenate((inner, outer[random.integers(0, len(outer), 8)]))
            made.append(Packer("stack").pack(frames.astype("<u8").tobytes(), id=number, process=PROCESS))
        self.records("stack", made)

    def records(self, kind: str, records: list[bytes], **header: int) -> None:
        self.writer.records(kind, records, **{"process": PROCESS, "begin_ns": 1, "end_ns": 1, **header})

    def array(self, kind: str, rows: Any, *, begin_ns: int, end_ns: int) -> None:
        self.writer.append(layouts()[kind].kind, rows.tobytes(), record_count=len(rows), process=PROCESS, begin_ns=begin_ns, end_ns=end_ns)  # fmt: skip
        if self.writer.failure is not None:
            raise self.writer.failure

    def write_strings(self) -> None:
        """Those so far; records that name them may come before or after."""
        self.writer.records("string", self._strings[self._written :])
        self._written = len(self._strings)

    def finish(self) -> None:
        self.write_strings()
        self.writer.finish()
        if self.writer.side_failure is not None:
            raise self.writer.side_failure


def _library(folder: Path) -> tuple[str, int, int, int, int]:
    """(path, address, bytes, offset, inode) of the code of a library of many functions, compiled into the folder and mapped here."""
    path = folder.absolute() / "big_captures_code.so"
    if not path.exists():
        source = path.with_suffix(".c")
        source.write_text("".join(f"double solve_{n}(double *a, long n) {{ double s = {n}; for (long i = 0; i < n; i++) s += a[i] * {n}; return s; }}\n"
                                  for n in range(FUNCTIONS)))  # fmt: skip
        subprocess.run(["gcc", "-O1", "-g", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    ctypes.CDLL(str(path))
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, offset, _, inode, *name = line.split(maxsplit=5)
        if name == [str(path)] and "x" in rights:
            begin, end = (int(part, 16) for part in span.split("-"))
            return str(path), begin, end - begin, int(offset, 16), int(inode)
    raise SystemExit(f"big_captures: {path} was not mapped")


# ---- accesses ------------------------------------------------------------------------------------------------------
OBJECTS_ACCESSED, OBJECT_BYTES = 64, 1 << 20
INSTRUCTIONS = 96


def _window_streams(random: Any, text: int, text_bytes: int) -> list[bytes]:
    """Encoded windows: half sweeps, a quarter random in an object, a quarter zipf over all objects; eight phases of code."""
    pcs = (np.sort(random.choice(text_bytes // 16, INSTRUCTIONS, replace=False)) * 16 + text).astype(np.uint64)
    index = np.arange(WINDOW)
    lines = OBJECTS_ACCESSED * OBJECT_BYTES // 64
    weights = np.arange(1, lines + 1, dtype=np.float64) ** -0.8
    edges = np.cumsum(weights) / weights.sum()
    place = random.permutation(lines).astype(np.uint64) * np.uint64(64)
    kind = index % 8
    operations = np.where(kind == 3, 2, 1).astype(np.uint8)
    widths = np.where(kind == 5, 4, 8).astype(np.uint32)
    made = []
    for number in range(DISTINCT_WINDOWS):
        phase = number * 8 // DISTINCT_WINDOWS
        codes = pcs[(phase * 12 + index % 12) % INSTRUCTIONS]
        swept = (number * WINDOW + index) * 8 % (OBJECTS_ACCESSED * OBJECT_BYTES // 2)
        spread = number % OBJECTS_ACCESSED * OBJECT_BYTES + random.integers(0, OBJECT_BYTES // 8, WINDOW) * 8
        hot = place[np.minimum(np.searchsorted(edges, random.random(WINDOW)), lines - 1)]
        offsets = np.where(kind < 4, swept, np.where(kind < 6, spread, hot.astype(np.int64))).astype(np.uint64)
        made.append(bytes(_core.encode_stream(codes, offsets + np.uint64(HEAP), widths, operations)))
    return made


def accesses(path: Path, count: int = ACCESSES) -> Path:
    """A capture with `count` accesses (to the next 4,096) in windows of two threads."""
    if _exists(path):
        return path
    random = np.random.default_rng(24)
    windows = -(-count // WINDOW)
    end_ns = 10 + windows * PERIOD * NS_AN_ACCESS
    made = Writer(path, "generated-accesses", threads=2, end_ns=end_ns)
    made.records("mapping", [made.mapping(HEAP, OBJECTS_ACCESSED * OBJECT_BYTES)])
    made.stacks(OBJECTS_ACCESSED // 2, random)
    made.records("allocation", [
        Packer("allocation").pack(time_ns=2, operation=enum_value("allocation_operation", "malloc"), address=HEAP + at * OBJECT_BYTES,
                                  bytes=OBJECT_BYTES, thread=100, stack=at // 2 + 1)
        for at in range(OBJECTS_ACCESSED)
    ])  # fmt: skip
    streams = _window_streams(random, made.text, made.text_bytes)
    packer, kind = Packer("window"), layouts()["window"].kind
    region = made.string("solve")
    made.write_strings()  # so that windows end the file
    done = [0, 0]
    for chunk, first in enumerate(range(0, windows, WINDOWS_A_CHUNK)):
        side = chunk % 2
        records = []
        numbers = range(first, min(first + WINDOWS_A_CHUNK, windows))
        # Both threads run at the same time: a pair of chunks covers one stretch of time.
        base = chunk // 2 * WINDOWS_A_CHUNK * PERIOD * NS_AN_ACCESS + 10 + side
        for at, number in enumerate(numbers):
            begin = base + at * PERIOD * NS_AN_ACCESS
            records.append(packer.pack(streams[number % DISTINCT_WINDOWS], begin_ns=begin, end_ns=begin + WINDOW * NS_AN_ACCESS,
                                       first_executed=done[side], executed=PERIOD, recorded=WINDOW, thread=made.threads[side], period=PERIOD,
                                       region=region if number % 3 else 0, encoding=enum_value("stream_encoding", "pc_delta")))  # fmt: skip
            done[side] += PERIOD
        made.writer.append(kind, b"".join(records), record_count=len(records), process=PROCESS, thread=made.threads[side], begin_ns=base,
                           end_ns=base + len(records) * PERIOD * NS_AN_ACCESS)  # fmt: skip
        if made.writer.failure is not None:
            raise made.writer.failure
    made.finish()
    return path


# ---- faults ---------------------------------------------------------------------------------------------------------
FAULTING_CODES = 200
STACKS, STACK_SHIFT = 500, 6
AGAIN = 16
FAULT_THREADS = 4


def faults(path: Path, count: int = FAULTS) -> Path:
    """A capture with `count` page faults of four threads, each on a quarter of one mapping."""
    if _exists(path):
        return path
    random = np.random.default_rng(24)
    made = Writer(path, "generated-faults", threads=FAULT_THREADS, end_ns=1000 + count * 500)
    pages = count  # of the mapping; fewer are touched, some of them twice
    made.records("mapping", [made.mapping(HEAP, pages * PAGE)])
    made.stacks(STACKS, random)
    pcs = random.choice(made.text_bytes, FAULTING_CODES, replace=False).astype(np.uint64) + np.uint64(made.text)
    quarter = pages // FAULT_THREADS
    dtype = layouts()["fault"].dtype()
    for first in range(0, count, RECORD_BATCH):
        number = np.arange(first, min(first + RECORD_BATCH, count), dtype=np.int64)
        thread, step = number % FAULT_THREADS, number // FAULT_THREADS
        again = (step % AGAIN == AGAIN - 1) & (step >= 4096)
        page = thread * quarter + np.minimum(np.where(again, step - 4095, step), quarter - 1)
        rows = np.zeros(len(number), dtype=dtype)
        rows["time_ns"] = 1000 + number * 500
        rows["address"] = HEAP + page * PAGE + step % 512 * 8
        rows["ip"] = pcs[(step // 64 + thread * 7) % FAULTING_CODES]
        rows["thread"] = 100 + thread
        sampled = step % (1 << STACK_SHIFT) == 0
        rows["stack"] = np.where(sampled, 1 + (step // 64 + thread) % STACKS, 0)
        rows["stack_weight_shift"] = np.where(sampled, STACK_SHIFT, 0)
        rows["cpu"] = thread
        rows["after_shift"] = 12
        made.array("fault", rows, begin_ns=int(rows["time_ns"][0]), end_ns=int(rows["time_ns"][-1]))
    made.finish()
    return path


# ---- objects ------------------------------------------------------------------------------------------------------------
OBJECT_PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
enum { LIVE = 1 << 20 };
static void *live[LIVE];
static uint64_t state = 88172645463325252u;
static uint64_t next(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
__attribute__((noinline)) static void *leaf(size_t bytes) { void *made = malloc(bytes); __asm__ volatile("" ::: "memory"); return made; }
#define NODE(name, child) __attribute__((noinline)) static void *name##_left(unsigned path, size_t bytes) { \
    void *made = path & 1 ? child##_right(path >> 1, bytes) : child##_left(path >> 1, bytes); __asm__ volatile("" ::: "memory"); return made; } \
  __attribute__((noinline)) static void *name##_right(unsigned path, size_t bytes) { \
    void *made = path & 1 ? child##_left(path >> 1, bytes) : child##_right(path >> 1, bytes); __asm__ volatile("" ::: "memory"); return made; }
__attribute__((noinline)) static void *other(size_t bytes) { void *made = calloc(1, bytes); __asm__ volatile("" ::: "memory"); return made; }
static void *end_left(unsigned path, size_t bytes) { (void)path; return leaf(bytes); }
static void *end_right(unsigned path, size_t bytes) { (void)path; return other(bytes); }
NODE(e, end) NODE(d, e) NODE(c, d) NODE(b, c) NODE(a, b)
int main(int argc, char **argv) {
  const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t random = next();
    const size_t slot = random % LIVE;
    free(live[slot]);
    live[slot] = (i & 1 ? a_left : a_right)((unsigned)(random >> 32) & 31u, 16 + (random >> 40) % 112);
  }
  printf("%llu\n", (unsigned long long)count);
  return 0;
}
"""


def object_program(folder: Path) -> Path:
    """The compiled program of `objects`; its argument is the number of objects."""
    program = folder / "many_objects"
    if not program.exists():
        source = folder / "many_objects.c"
        source.write_text(OBJECT_PROGRAM)
        subprocess.run(["gcc", "-O1", "-g", "-fno-optimize-sibling-calls", "-o", str(program), str(source)], check=True)
    return program


def objects(path: Path, count: int = OBJECTS, *, memlens: str | None = None) -> Path:
    """A recording of a program that allocates `count` objects."""
    if _exists(path):
        return path
    program = object_program(path.parent)
    _record(memlens, path, ["--sample-bytes", "0"], [str(program), str(count)])
    return path


# ---- traced ---------------------------------------------------------------------------------------------------------------
TRACED_ROUND = 1_000_000


def traced(path: Path, count: int = ACCESSES, *, memlens: str | None = None) -> Path:
    """A recording of workloads/graph_pr.c, built for tracing, with about `count` accesses in windows."""
    if _exists(path):
        return path
    tool = memlens or str(Path(sys.executable).with_name("memlens"))
    source = Path(__file__).resolve().parent.parent / "workloads" / "graph_pr.c"
    program = path.parent / "traced_graph"
    if not program.exists():
        subprocess.run([tool, "cc", "--memlens=trace", "-O2", "-g", str(source), "-lm", "-o", str(program)], check=True)
    scale = max(8, int(np.log2(max(count, 1 << 20) / 50_000_000 * 2**17)))
    _record(memlens, path, ["--trace=full"], [str(program), str(scale)])
    return path


def _record(memlens: str | None, path: Path, options: list[str], program: list[str]) -> None:
    tool = memlens or str(Path(sys.executable).with_name("memlens"))
    done = subprocess.run(
        [tool, "record", *options, "-o", str(path), "--", *program], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"big_captures: recording failed: {done.stderr[-2000:]}")


def _exists(path: Path) -> bool:
    meta = path / "meta.json"
    return meta.exists() and json.loads(meta.read_text()).get("state") == "complete"


MAKERS = {
    "accesses": (accesses, ACCESSES),
    "faults": (faults, FAULTS),
    "objects": (objects, OBJECTS),
    "traced": (traced, ACCESSES),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--output", type=Path, required=True, help="directory of the capture")
    options = parser.parse_args()
    make, usual = MAKERS[options.kind]
    begin = time.monotonic()
    path = make(options.output, options.count or usual)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"{path}: {size / 2**20:,.0f} MiB, {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
