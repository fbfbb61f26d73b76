"""What memlens links into a program (`memlens cc`) touches memory, too: none of that is told as the program's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from conftest import ROOT, marked_line, needs_faults
from count_tools import compile_counted

import memlens
from memlens.capture.model.symbols import OWN_SECTION
from memlens.capture.store.counted_modules import ElfHeaders
from memlens.collect.preload import runtime_directory

pytestmark = needs_faults
Record = Callable[..., memlens.Capture]
MIB, PAGE = 4, 4096


def runtime_names() -> set[str]:
    """Functions of what is linked in, by the symbol table of the archive."""
    objects = [runtime_directory() / "libmemlens_count.a", runtime_directory() / "memlens_count_dynamic.o"]
    shown = subprocess.run(["nm", *objects], capture_output=True, text=True, check=True).stdout
    return {words[2] for line in shown.splitlines() if len(words := line.split()) == 3 and words[1] in "tT"}


@pytest.mark.parametrize("how", [(), ("--memlens=trace",)], ids=["counted", "traced"])
@pytest.mark.parametrize("stripped", [False, True], ids=["symbols", "stripped"])
def test_first_touches_of_linked_in_code_are_left_out_and_counted(
    record: Record, tmp_path: Path, how: tuple[str, ...], stripped: bool
) -> None:
    program = compile_counted(ROOT / "workloads" / "first_touch.c", tmp_path / "program", *how)
    if stripped:
        subprocess.run(["strip", program], check=True)
    capture = record(program, "--mode", "serial", "--mib", str(MIB), "--iterations", "1")
    faults = capture.table("faults")
    everything = [code for batch in capture.replay.fault_batches(own_code=True) for code in batch["code"].tolist()]
    with ElfHeaders(str(program)) as file:
        begin, end = file.place(OWN_SECTION)
    assert end - begin > 4096

    # By the section: what is left is none of it, what is missing is all of it.
    sites = capture.replay.code_sites.to_pylist()
    own = [s["module"] == str(program) and begin <= s["file_offset"] < end for s in sites]
    assert not any(own[code] for code in faults.column("code").to_pylist())
    n_own = sum(own[code] for code in everything)
    assert n_own > 0 and len(everything) == faults.num_rows + n_own
    assert capture.replay.own_faults == n_own + capture.replay.engine.own_faults

    # By the debug information, which the section knows nothing of: functions inlined into ours are ours, too.
    if not stripped:
        assert not runtime_names() & set(faults.column("function").to_pylist())
        here = [(s, mine) for s, mine in zip(sites, own, strict=True) if s["module"] == str(program) and s["file"]]
        ours = tuple(str(ROOT / folder) + "/" for folder in ("native/runtime", "native/include", "format"))
        assert all(s["file"].startswith(ours) == mine for s, mine in here) and len({mine for _, mine in here}) == 2
        mine = faults.filter(pc.equal(faults.column("line"), marked_line("first_touch.c")))
        first = mine.filter(pc.equal(mine.column("class").cast("string"), "first"))
        assert pc.sum(first.column("new_bytes")).as_py() >= 0.99 * (MIB << 20)
    figures = memlens.analyses.run("faults", capture).figures
    assert figures["own_faults"] == capture.replay.own_faults and figures["faults"] == faults.num_rows
