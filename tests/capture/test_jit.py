"""Programs with just-in-time compilers show their own functions once they write what they compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from conftest import ROOT, needs_faults

import memlens

pytestmark = needs_faults
Record = Callable[..., memlens.Capture]
PAGES = 16384


def bytes_of(capture: memlens.Capture, name: str) -> int:
    faults = capture.table("faults")
    mine = faults.filter(pc.fill_null(pc.match_substring(faults.column("function"), name), False))
    return int(pc.sum(mine.column("new_bytes")).as_py() or 0)


def test_node_shows_its_own_function(record: Record, tmp_path: Path) -> None:
    if not shutil.which("node"):
        pytest.skip("node is not installed: sudo apt-get install nodejs")
    capture = record("node", "--perf-basic-prof", ROOT / "workloads" / "node_touch.js", cwd=tmp_path)
    # The first pages are stored by the interpreter's built-in, the rest by compiled code: how many differs by version.
    assert bytes_of(capture, "touchBuffer") > 0.05 * PAGES * 4096
    assert capture.table("jit_code").num_rows > 100


def test_java_shows_its_own_methods(record: Record) -> None:
    if not shutil.which("java"):
        pytest.skip("java is not installed: sudo apt-get install default-jdk-headless")
    capture = record(
        "java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", ROOT / "workloads" / "Touch.java"
    )
    if capture.table("jit_code").num_rows == 0:
        pytest.skip("this Java writes no perf map: it needs version 17 or newer")
    sites = capture.table("sites")
    jit = sites.filter(pc.equal(sites.column("quality"), "jit"))
    assert jit.num_rows > 10 and jit.column("function").null_count == 0


def test_a_map_left_by_an_older_process_is_not_used(tmp_path: Path, record: Record) -> None:
    """A stale /tmp/perf-PID.map of a reused pid must not name this program's code."""
    script = tmp_path / "stale.sh"
    script.write_text("#!/bin/sh\ntouch -d '2001-01-01' /tmp/perf-$$.map && exec sleep 0.1\n")
    script.chmod(0o755)
    capture = record(script)
    pid = capture.table("processes").to_pylist()[0]["pid"]
    Path(f"/tmp/perf-{pid}.map").unlink(missing_ok=True)
    assert capture.table("jit_code").num_rows == 0
