"""Surroundings that nobody expects: a working directory that is gone, names that are no text, state files that are no files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MEMLENS, run_memlens

import memlens
from memlens.capture.store import calibration


@pytest.mark.parametrize("command", ["record", "import"])
def test_a_working_directory_that_was_removed(tmp_path: Path, command: str) -> None:
    output, trace, gone = tmp_path / "c.memlens", tmp_path / "t.log", tmp_path / "gone"
    trace.write_text(" L 10,4\n")
    gone.mkdir()
    words = (
        ["record", "-q", "-o", output, "--", "/bin/echo", "ran"]
        if command == "record"
        else ["import", trace, "-o", output]
    )
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", gone, *MEMLENS, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and (command == "import" or done.stdout == "ran\n"), done.stderr
    assert memlens.open(output).meta["working_directory"] == "(removed)"


def test_a_process_whose_name_is_no_text_is_watched(tmp_path: Path) -> None:
    code = r"import ctypes, time; ctypes.CDLL(None).prctl(15, b'\xff) Z 1\x1b\n', 0, 0, 0); print('named', flush=True); time.sleep(60)"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None and program.stdout.readline() == "named\n"
        output = tmp_path / "c.memlens"
        done = run_memlens("record", "-q", "-o", output, "--pid", str(program.pid), "--duration", "0.3")
    finally:
        program.kill()
        program.wait()
    assert done.returncode == 0, done.stderr
    assert memlens.open(output).complete


@pytest.mark.parametrize("how", ["deep", "pipe", "endless", "no text"])
def test_a_calibration_that_is_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = calibration.path_of("abc")
    path.parent.mkdir(parents=True)
    if how == "deep":
        path.write_text("[" * 100_000)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"\xff" + json.dumps({"version": 1}).encode())
    found = calibration.load("abc")
    assert found.content is None and found.problem is not None and found.problem.startswith("cannot be read")
