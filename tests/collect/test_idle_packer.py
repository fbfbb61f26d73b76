"""Windows are compressed in idle time: whatever the packer has done by then, the file has all of them, once and in order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens import _core
from memlens.capture.store.writer import RECORD_FILE, CaptureWriter

BUSY = "no CPU was idle for a minute; run alone: pytest tests/collect/test_idle_packer.py"


def payload(number: int, length: int = 1000) -> bytes:
    return bytes([number % 256]) * length


def written(path: Path) -> list[tuple[bytes, bool]]:
    """Payloads in the file's order, and whether they are compressed."""
    reader = _core.ChunkReader(str(path / RECORD_FILE))
    reader.refresh()
    assert not any(reader.damage.values())
    headers = [reader.header(i) for i in range(reader.count)]
    return [(reader.payload(i), header["stored_bytes"] < header["payload_bytes"]) for i, header in enumerate(headers)]


def until(done: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_the_packer_gives_back_what_it_was_given_in_order() -> None:
    packer = _core.IdlePacker()
    payloads = [os.urandom(500) if i % 3 == 0 else payload(i, 300_000) for i in range(40)]
    found: list[bytes] = []
    given_ = 0
    assert packer.take() is None
    end = time.monotonic() + 60
    while len(found) < len(payloads):
        if time.monotonic() > end:
            pytest.skip(BUSY)
        while given_ < len(payloads) and packer.give(payloads[given_]):
            given_ += 1
        assert given_ - len(found) <= 16
        packed = packer.take()
        if packed is None:
            time.sleep(0.005)
        else:
            found.append(packed)
    assert packer.take() is None
    for number, (packed, original) in enumerate(zip(found, payloads, strict=True)):
        assert packed == b"" if number % 3 == 0 else len(packed) < len(original) / 100  # random bytes stay as they are


def test_a_packer_may_go_while_it_works() -> None:
    """In a process of its own: a thread that read freed memory would end it."""
    script = """
import os
from memlens import _core
for _ in range(30):
    packer = _core.IdlePacker()
    for _ in range(5):
        packer.give(os.urandom(1 << 20))
    del packer
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0


def test_what_waits_too_long_is_written_as_it_is(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c", {})
    payloads = [payload(i) for i in range(6)]
    for one in payloads[:4]:
        writer.append_later(900, one, record_count=1)
    writer.append(901, b"first", record_count=1)
    writer.write_packed(keep_bytes=2500, keep_s=60)
    assert written(tmp_path / "c") == [(b"first", False), (payloads[0], False), (payloads[1], False)]
    writer.write_packed(keep_bytes=2500, keep_s=0)
    assert [one for one, _ in written(tmp_path / "c")] == [b"first", *payloads[:4]], "they have waited long enough"
    for one in payloads[4:]:
        writer.append_later(900, one, record_count=1)
    writer.finish()
    found = written(tmp_path / "c")[1:]
    assert [one for one, _ in found] == payloads
    assert [packed for _, packed in found[4:]] == [True, True]


def test_what_a_cpu_has_time_for_is_compressed(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "c", {})
    payloads = [payload(i, 100_000) for i in range(40)]
    for one in payloads:
        writer.append_later(900, one, record_count=1)

    def all_written() -> bool:
        writer.write_packed(keep_bytes=1 << 30, keep_s=600)
        return len(written(tmp_path / "c")) == len(payloads)

    if not until(all_written):
        pytest.skip(BUSY)
    assert written(tmp_path / "c") == [(one, True) for one in payloads]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 30), st.tuples(st.integers(0, 20_000), st.sampled_from([0.0, 0.002, 60.0])))))
def test_every_chunk_is_written_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[object]
) -> None:
    path = tmp_path_factory.mktemp("packer") / "c"
    writer = CaptureWriter(path, {})
    count = 0
    for step in steps:
        if isinstance(step, tuple):
            writer.write_packed(keep_bytes=step[0], keep_s=step[1])
        else:
            assert isinstance(step, int)
            for _ in range(step):
                writer.append_later(900, payload(count, 100 + 37 * (count % 50)), record_count=1)
                count += 1
    writer.finish()
    assert [one for one, _ in written(path)] == [payload(i, 100 + 37 * (i % 50)) for i in range(count)]


def test_the_packers_thread_is_not_in_anyones_way() -> None:
    """It has the policy for idle time, so that the program's threads never wait for it."""
    before = set(os.listdir("/proc/self/task"))
    packer = _core.IdlePacker()
    assert packer.give(b"x" * (1 << 20))
    new = set(os.listdir("/proc/self/task")) - before
    assert threading.active_count() >= 1 and new, "no thread was started"
    assert until(lambda: any(os.sched_getscheduler(int(task)) == os.SCHED_IDLE for task in new), 20)
