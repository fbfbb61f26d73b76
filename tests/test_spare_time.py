"""Work that waits for an idle CPU, and chunks that are written later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memlens import _core
from memlens.capture.writer import RECORD_FILE, CaptureWriter
from memlens.collect.spare_time import LOOK_S, SpareTime


class Machine:
    """Two CPUs, the first of which this process may use, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.own, self.idle = 0.0, 0.0, [0.0, 0.0]
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        monkeypatch.setattr("memlens.collect.spare_time.time.process_time", lambda: self.own)

    def stat(self) -> str:
        hz = os.sysconf("SC_CLK_TCK")
        lines = [f"cpu{i} 5 0 5 {round(idle * hz)} 0 0 0 0 0 0" for i, idle in enumerate(self.idle)]
        return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 5"])

    def runs(self, seconds: float, *, idle: float = 0.0, other_idle: float = 0.0, own: float = 0.0) -> None:
        self.now += seconds
        self.idle[0] += idle * seconds
        self.idle[1] += other_idle * seconds
        self.own += own * seconds


def test_an_idle_cpu_is_seen_and_a_busy_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    spare = SpareTime(machine.stat, lambda: machine.now)
    assert spare.there_is()  # nothing is known yet
    machine.runs(1.0, idle=0.1)
    assert not spare.there_is()
    machine.runs(1.0, idle=0.9)
    assert spare.there_is()
    machine.runs(1.0, idle=0.1, other_idle=1.0)
    assert not spare.there_is(), "a CPU that this process may not use is no help"
    machine.runs(1.0, own=1.0)
    assert spare.there_is(), "what this process itself takes is there to be taken"
    machine.runs(LOOK_S / 2)
    assert spare.there_is(), "it does not look all the time"


def test_without_figures_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)

    def fails() -> str:
        raise FileNotFoundError

    for read in (fails, lambda: "cpu0 1 2 3 x 5"):
        spare = SpareTime(read, lambda: machine.now)
        machine.runs(1.0)
        assert spare.there_is() and spare.there_is()


def written(path: Path) -> list[tuple[bytes, bool]]:
    """Payloads in the file's order, and whether they are compressed."""
    reader = _core.ChunkReader(str(path / RECORD_FILE))
    reader.refresh()
    assert not any(reader.damage.values())
    headers = [reader.header(i) for i in range(reader.count)]
    return [(reader.payload(i), header["stored_bytes"] < header["payload_bytes"]) for i, header in enumerate(headers)]


def test_what_waits_keeps_its_order_and_is_all_written(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c", {})
    payloads = [bytes([i]) * 1000 for i in range(6)]
    for payload in payloads[:4]:
        writer.append_later(900, payload, record_count=1)
    writer.append(901, b"first", record_count=1)
    writer.write_later(compress=False, keep_bytes=2500, keep_s=60)
    assert written(tmp_path / "c") == [(b"first", False), (payloads[0], False), (payloads[1], False)]
    writer.write_later(compress=False, keep_bytes=2500, keep_s=0)
    assert len(written(tmp_path / "c")) == 5, "they have waited long enough"
    for payload in payloads[4:]:
        writer.append_later(900, payload, record_count=1)
    writer.finish()
    assert written(tmp_path / "c")[1:] == [(payload, i >= 4) for i, payload in enumerate(payloads)]
