"""Code that counts, windows, pages and stacks name gets its names when a recording is finished, for any instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from builders import stream_of
from test_cross_symbols import SOURCE, TARGETS, lines

import memlens
from memlens.capture.store.layouts import Packer, enum_value
from memlens.capture.store.writer import CaptureWriter
from memlens.collect.finish import write_side_tables

BASE = 0x5500000000


@pytest.mark.parametrize("target", TARGETS)
def test_sites_name_guest_code(target: str, tmp_path: Path) -> None:
    prefix = f"{target}-linux-gnu-"
    if shutil.which(f"{prefix}gcc") is None:
        pytest.skip(f"no {prefix}gcc; to run: sudo apt-get install gcc-{target.replace('_', '-')}-linux-gnu")
    source, program = tmp_path / "kernel.c", tmp_path / "kernel"
    source.write_text(SOURCE)
    subprocess.run([f"{prefix}gcc", "-g", "-O2", "-pie", "-fPIE", "-o", program, source], check=True)
    symbols = {
        parts[-1]: int(parts[0], 16) for line in lines(f"{prefix}nm", str(program)) if len(parts := line.split()) == 3
    }

    writer = CaptureWriter(tmp_path / "c.memlens", {"machine": {"page_bytes": 4096}, "command": ["kernel"]})
    writer.records("string", [Packer("string").pack(str(program).encode(), id=1)])
    event = Packer("process_event")
    exec_record = event.pack(time_ns=1, pid=7, thread=7, operation=enum_value("process_operation", "exec"), status=-1)
    writer.records("process_event", [exec_record], process=1)
    mappings = [segment(line, program) for line in lines(f"{prefix}readelf", "-lW", str(program)) if "LOAD" in line]
    writer.records("mapping", [Packer("mapping").pack(time_ns=20, path=1, **one) for one in mappings], process=1)
    pc = {name: BASE + symbols[name] + 8 for name in ("main", "walk", "fill")}
    # Counted before its mapping is known, as when the emulator translates the first block.
    counted = Packer("code_count").pack(time_ns=10, pc=pc["fill"], stores=1000, store_bytes=8000, thread=7)
    anonymous = Packer("code_count").pack(time_ns=30, pc=0x77770000, loads=5, load_bytes=5, thread=7, flags=2)
    writer.records("code_count", [counted, anonymous], process=1)
    stack = b"".join(one.to_bytes(8, "little") for one in (pc["walk"], pc["main"]))
    writer.records("stack", [Packer("stack").pack(stack, id=3, unwinder=3, process=1)])
    window = Packer("window").pack(
        stream_of([(pc["walk"], 0x1000, 8, 1)]),
        recorded=1,
        executed=1,
        encoding=2,
        stack=3,
        thread=7,
        begin_ns=40,
        end_ns=40,
    )
    writer.records("window", [window], process=1)
    writer.records(
        "page_count", [Packer("page_count").pack(time_ns=50, page=0x1000, pc=pc["main"], order=1, thread=7)], process=1
    )
    write_side_tables(writer)
    writer.finish()

    sites = parquet.read_table(tmp_path / "c.memlens" / "sites.parquet").to_pylist()
    # Eight bytes into `walk` may be the inlined `add` already.
    outer = {text.partition(" (")[0] for row in sites for text in row["inlined_into"]}
    assert {"main", "walk", "fill"} <= {row["function"] for row in sites} | outer
    capture = memlens.open(tmp_path / "c.memlens")
    rows = memlens.analyses.run("traffic", capture).tables["by_line"].to_pylist()
    by_name = {row["function"]: row for row in rows}
    assert (
        by_name["fill"]["stores"] == 1000
        and by_name["fill"]["file"].endswith("kernel.c")
        and by_name["fill"]["line"] > 0
    )
    assert by_name["[anonymous code]"]["loads"] == 5
    access = next(iter(capture.accesses(code=True))).to_pylist()[0]
    assert sites[access["code"]]["function"] == "walk" or "walk" in str(sites[access["code"]]["inlined_into"])
    frames = [sites[code]["function"] for code in capture.replay.stacks[3]]
    assert frames[-1] == "main"
    page = capture.table("page_counts").to_pylist()[0]
    assert sites[page["code"]]["function"] == "main"


def segment(line: str, program: Path) -> dict[str, Any]:
    """A LOAD line of readelf as the kernel maps it."""
    parts = line.split()
    offset, address, size = (int(parts[at], 16) for at in (1, 2, 4))
    flags = "".join(parts[6:-1])
    begin, end = address & ~4095, (address + size + 4095) & ~4095
    protection = sum(bit for letter, bit in (("R", 1), ("W", 2), ("E", 4)) if letter in flags)
    return {"address": BASE + begin, "bytes": end - begin, "file_offset": offset & ~4095, "inode": os.stat(program).st_ino,
            "protection": protection}  # fmt: skip
