"""The same programs under memlens and under heaptrack: the same calls, in the same order, of the same sizes.

What heaptrack (1.4) counts: malloc, calloc, realloc (one release and one call), posix_memalign, aligned_alloc and valloc
that succeed. What differs, and why, to the call:

- heaptrack's library is written in C++ and loads the C++ library into a C program, which takes 72,704 bytes for
  exceptions before main and gives them back at the end. That is its first call and one release more.
- A thread's table of thread-local blocks has 16 bytes for each loaded module that has such variables. heaptrack loads
  other modules than memlens, so this calloc of the C library (one a thread) has another size.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from alloc_oracle import EVERY, HEAP, allocations

import memlens

EMERGENCY_POOL_BYTES = 72704
DTV_ENTRY_BYTES = 16
SQL = (
    "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 5000) "
    "insert into t select x, x * 7 from c; select sum(a * b) from t;"
)
PROGRAMS = {
    "sort": ["sort", "-n", "numbers", "-o", "sorted"],
    "xz": ["xz", "-9", "-T1", "-k", "-c", "numbers"],
    "gzip": ["gzip", "-9", "-k", "-c", "numbers"],
    "mawk": ["mawk", "{ sum += $1 } END { print sum }", "numbers"],
    "sqlite3": ["sqlite3", ":memory:", SQL],
    "ls": ["ls", "-l", "/usr/lib"],
}
Record = Callable[..., memlens.Capture]


def heaptrack(directory: Path, command: list[str]) -> tuple[list[tuple[str, int]], int]:
    """(sign, bytes) of every call and release, and the calls as heaptrack_print counts them."""
    subprocess.run(
        ["heaptrack", "--raw", "-o", directory / "raw", *command], cwd=directory, capture_output=True, check=True
    )
    raw = next(directory.glob("raw*"))
    compression = "zstd" if raw.suffix == ".zst" else "gzip"
    text = pa.input_stream(str(raw), compression=compression).read().decode(errors="replace")
    events = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["+"]:
            events.append(("+", int(words[1], 16)))
        elif words[:1] == ["-"]:
            events.append(("-", 0))
    subprocess.run(["heaptrack", "-o", directory / "whole", *command], cwd=directory, capture_output=True, check=True)
    done = subprocess.run(
        ["heaptrack_print", "-f", next(directory.glob("whole*"))], capture_output=True, text=True, errors="replace"
    )
    counted = re.search(r"calls to allocation functions: (\d+)", done.stdout)
    assert counted is not None, done.stdout[-2000:]
    return events, int(counted[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_calls_are_heaptracks(tmp_path: Path, record: Record, name: str) -> None:
    if not shutil.which("heaptrack") or not shutil.which("heaptrack_print"):
        pytest.skip("heaptrack is not installed: sudo apt-get install heaptrack")
    command = PROGRAMS[name]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed: sudo apt-get install {command[0]}")
    (tmp_path / "numbers").write_text("".join(f"{i * 7919 % 100003}\n" for i in range(100_000)))
    expected, counted = heaptrack(tmp_path, command)
    capture = record(*command, options=EVERY, cwd=tmp_path, errors="replace")
    rows = [row for row in allocations(capture, operations=HEAP) if row["address"]]
    events = [("-", 0) if row["operation"] == "free" else ("+", row["bytes"]) for row in rows]

    their_sizes = [size for sign, size in expected if sign == "+"]
    our_sizes = [size for sign, size in events if sign == "+"]
    assert their_sizes[0] == EMERGENCY_POOL_BYTES
    del their_sizes[0]
    assert len(our_sizes) == len(their_sizes) == counted - 1
    different = [(ours, theirs) for ours, theirs in zip(our_sizes, their_sizes, strict=True) if ours != theirs]
    threads = len({row["thread"] for row in capture.table("thread_memory").to_pylist() if row["thread"]})
    created = len([row for row in capture.table("thread_memory").to_pylist() if row["creator"]])
    assert len(different) <= max(created, threads - 1), different
    assert all((theirs - ours) % DTV_ENTRY_BYTES == 0 and abs(theirs - ours) <= 64 for ours, theirs in different)
    assert sum(our_sizes) == sum(their_sizes) - sum(theirs - ours for ours, theirs in different)
    our_leaks = len(our_sizes) - sum(sign == "-" for sign, _ in events)
    their_leaks = len(their_sizes) - (sum(sign == "-" for sign, _ in expected) - 1)
    assert our_leaks == their_leaks
