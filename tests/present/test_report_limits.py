"""`memlens report` on long captures: bounded memory, time left, and nothing left behind by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from builders import CaptureBuilder
from conftest import MEMLENS, run_memlens

from memlens import _core
from memlens.capture.store.layouts import Packer, layouts
from memlens.capture.store.writer import CaptureWriter
from memlens.cli.progress import Progress, left_text
from memlens.cli.report import memory_bytes, write_whole
from memlens.errors import OutputError, UsageError

RECORD = 1 << 16


def long_capture(path: Path, records: int) -> Path:
    """The same 65,536 random accesses again and again, as a recorder writes them."""
    random = np.random.default_rng(1)
    addresses = 0x10_0000 + random.integers(0, 1 << 20, RECORD).astype(np.uint64) * np.uint64(8)
    stream = bytes(_core.encode_stream(np.full(RECORD, 0x1000, np.uint64), addresses, np.full(RECORD, 8, np.uint32), np.ones(RECORD, np.uint8)))  # fmt: skip
    writer = CaptureWriter(path, {"command": ["generated"], "machine": {"page_bytes": 4096, "cpus": 1, "numa_nodes": []},
                                  "begin_ns": 0, "end_ns": records * RECORD, "collectors": {}})  # fmt: skip
    for number in range(records):
        record = Packer("window").pack(stream, begin_ns=number * RECORD, end_ns=(number + 1) * RECORD, first_executed=number * RECORD,
                                       executed=RECORD, recorded=RECORD, thread=1, period=RECORD, encoding=2)  # fmt: skip
        writer.append(layouts()["window"].kind, record, record_count=1, process=1, thread=1)
    writer.finish()
    return path


def test_sizes_are_read_as_people_write_them() -> None:
    assert [memory_bytes(text) for text in ("2GiB", "2 g", "512MiB", "1048576", "3MB")] == [
        2 << 30,
        2 << 30,
        512 << 20,
        1 << 20,
        3 << 20,
    ]
    done = run_memlens("report", "x.memlens", "--memory", "plenty")
    assert done.returncode == UsageError.exit_status and "write 2GiB or 512MiB" in done.stderr


def test_what_does_not_fit_is_left_out_with_its_number(tmp_path: Path) -> None:
    trace = [(0x1000, 0x10_0000 + 64 * i, 8, 1) for i in range(60_000)]
    path = CaptureBuilder().window(10, trace).write(tmp_path / "a.memlens")
    small = run_memlens("report", path, "--memory", "1MiB")
    assert small.returncode == 0, small.stderr
    told = " ".join(small.stdout.split())
    assert "Locality was left out" in told and "may use 1048576" in told and "memlens report --memory" in told
    enough = run_memlens("report", path, "--memory", "1GiB")
    assert enough.returncode == 0 and "left out" not in enough.stdout and "Locality" in enough.stdout


def test_time_left_follows_from_what_is_done() -> None:
    assert left_text(30, 1, 4) == "25 %, 90 s left" and left_text(1, 1, 4) == "25 %"  # too early to tell
    with Progress("reading run.memlens") as progress:
        progress.update(3, 4, "locality")
        assert "locality: 75 %" in progress.text() and progress.text().startswith("reading run.memlens (")


def test_an_interrupted_file_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    write_whole(page, "old")

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_whole(page, "new")
    assert page.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(OutputError, match="no such file"):
        write_whole(tmp_path / "nowhere" / "page.html", "new")


def test_control_c_leaves_nothing_behind(tmp_path: Path) -> None:
    capture = long_capture(tmp_path / "long.memlens", 600)  # 39 million accesses: seconds
    before = {file: file.stat().st_size for file in capture.rglob("*")}
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    process = subprocess.Popen([*MEMLENS, "report", str(capture), "--html", "page.html"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env={**os.environ, "TMPDIR": str(temporary)},
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip  # background jobs ignore it
    time.sleep(3)
    assert process.poll() is None, "the capture is too short for this test"
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "memlens: interrupted\n"
    assert time.monotonic() - begin < 30
    assert os.listdir(work) == [] and os.listdir(temporary) == []
    assert {file: file.stat().st_size for file in capture.rglob("*")} == before
    with pytest.raises(ProcessLookupError):  # no process of its session is left
        os.killpg(process.pid, 0)
