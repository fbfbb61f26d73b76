"""Traces that claim more than they hold: `memlens import` stays in proportion to the file, and says in words what is wrong.

Peak memory and processor time are those of the process itself, which a busy machine does not change.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

MIB = 1 << 20


@dataclass(frozen=True)
class Ended:
    status: int
    peak_rss_bytes: int
    cpu_s: float
    text: str


AROUND = (
    "import json, os, subprocess, sys\n"
    "process = subprocess.Popen(sys.argv[2:], stdout=open(sys.argv[1], 'wb'), stderr=subprocess.STDOUT)\n"
    "_, status, usage = os.wait4(process.pid, 0)\n"
    "print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime]))\n"
)
"""The kernel keeps the largest RSS over exec: a small process stands between a large test runner and the command."""


def run(command: list[str], said: Path) -> Ended:
    around = [sys.executable, "-S", "-c", AROUND, str(said), *command]
    done = subprocess.run(around, capture_output=True, text=True, check=True)
    status, peak, cpu_s = json.loads(done.stdout)
    return Ended(status, peak, cpu_s, said.read_text(errors="replace"))


def run_import(source: Path, output: Path) -> Ended:
    command = [sys.executable, "-m", "memlens", "import", "--force", "-o", str(output), str(source)]
    return run(command, output.parent / "said")


def run_reader(reader: str, trace: Path) -> Ended:
    """The decoder alone: what Python does for each thread takes longer and tells nothing here."""
    program = (
        f"from memlens import _core; reader = _core.{reader}; block = open({str(trace)!r}, 'rb').read()\n"
        "getattr(reader, 'begin_file', int)(); assert reader.feed(block)\n"
        "getattr(reader, 'finish', int)(); getattr(reader, 'end_file', int)(); reader.take(end=True)\n"
        "print(reader.accesses, 'accesses')"
    )
    return run([sys.executable, "-c", program], trace.parent / "said")


ENTRY = struct.Struct("<HHQ")


def test_many_threads_of_one_access_take_little_memory_each(tmp_path: Path) -> None:
    content = bytearray(ENTRY.pack(25, 0, 7))
    for number in range(20_000):
        # A thread, an instruction, a load. Every fourth thread begins a process.
        content += ENTRY.pack(22, 4, 1000 + number) + ENTRY.pack(24, 4, 1 + number // 4)
        content += ENTRY.pack(10, 4, 0x401000) + ENTRY.pack(0, 8, 0x7000)
    trace = tmp_path / "drmemtrace.many.trace"
    trace.write_bytes(content)
    ended = run_reader("DrmemtraceImport()", trace)
    assert ended.status == 0 and "20000 accesses" in ended.text, ended.text
    assert ended.peak_rss_bytes < 250 * MIB  # 1.6 GB when each thread has all that a long one needs


def test_all_cpus_of_a_memgaze_trace_take_little_memory_each(tmp_path: Path) -> None:
    trace = tmp_path / "many.trace"
    trace.write_text("".join(f"0x1000 0x7f0000 {cpu} 1.5 {cpu}\n" for cpu in range(65_535)))
    ended = run_reader("MemgazeImport(process=1)", trace)
    assert ended.status == 0 and "65535 accesses" in ended.text, ended.text
    assert ended.peak_rss_bytes < 250 * MIB  # std::bad_alloc, or 800 MB


def test_events_of_a_perf_data_that_share_their_numbers_are_not_copied_for_each(tmp_path: Path) -> None:
    count, shared = 1000, random.Random(1).randbytes(MIB)
    at = 104 + count * 80
    attribute = struct.pack("<IIQQQQQ", 8, 64, 3 << 14, 1, 0x86, 0, 1 << 18) + bytes(16) + struct.pack("<QQ", at, MIB)
    records = struct.pack("<IHH", 70, 0, 144) + struct.pack("<II", 1, 0) + struct.pack("<16Q", 8, *[0] * 15)
    header = b"PERFILE2" + struct.pack("<10Q", 104, 80, 104, count * 80, at + MIB, len(records), 0, 0, 0, 0) + bytes(16)
    file = tmp_path / "perf.data"
    file.write_bytes(header + attribute * count + shared + records)
    ended = run_import(file, tmp_path / "out.memlens")
    assert ended.status == 74 and "has no Processor Trace" in ended.text, ended.text
    assert ended.peak_rss_bytes < 400 * MIB  # 7 GB
    assert ended.cpu_s < 10  # 28 s


def _perf_record(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def _ptwrite_file(records: bytes) -> bytes:
    """One event with sample_type TID | TIME | CPU behind each record."""
    attribute = struct.pack("<IIQQQQQ", 8, 64, 3 << 14, 1, 0x86, 0, 1 << 18) + bytes(32)
    info = _perf_record(70, struct.pack("<II", 1, 0) + struct.pack("<16Q", 8, *[0] * 15))
    header = b"PERFILE2" + struct.pack("<10Q", 104, 80, 104, 80, 184, len(info + records), 0, 0, 0, 0) + bytes(16)
    return header + attribute + info + records


def test_truncations_and_pieces_of_a_trace_are_matched_in_order(tmp_path: Path) -> None:
    who = struct.pack("<IIQII", 7, 7, 900, 0, 0)
    records = b"".join(_perf_record(11, struct.pack("<QQQ", 8 * i, 4, 1) + who) for i in range(40_000))
    for i in range(8_000):
        records += _perf_record(71, struct.pack("<QQQIIII", 8, 8 * i, 0, 0, 0xFFFFFFFF, 0, 0)) + bytes(8)
    file = tmp_path / "perf.data"
    file.write_bytes(_ptwrite_file(records))
    ended = run_import(file, tmp_path / "out.memlens")
    assert "Processor Trace" in ended.text or "ptwrite" in ended.text, ended.text
    assert ended.cpu_s < 3  # 5 s and growing with the square when each piece looks at every truncation


def test_many_buffers_of_one_cpu_are_damage(tmp_path: Path) -> None:
    switch = _perf_record(14, struct.pack("<IIQII", 7, 7, 900, 0, 0))
    records = switch * 10_000
    for i in range(5_000):
        records += _perf_record(71, struct.pack("<QQQIIII", 8, 0, 0, i, 0xFFFFFFFF, 0, 0)) + bytes(8)
    file = tmp_path / "perf.data"
    file.write_bytes(_ptwrite_file(records))
    ended = run_import(file, tmp_path / "out.memlens")
    assert ended.status == 74 and "5,000 buffers of CPU 0" in ended.text, ended.text
    assert ended.cpu_s < 10


@pytest.mark.parametrize("damage", ["encrypted", "name"])
def test_archives_that_cannot_be_opened_are_refused_in_words(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "a.trace.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("abc", bytes(100))
    content = bytearray(archive.read_bytes())
    central = content.find(b"PK\1\2")
    if damage == "encrypted":
        content[central + 8] |= 1
        content[6] |= 1
    else:  # said to be UTF-8
        content[central + 9] |= 8
        content[7] |= 8
        content = bytearray(bytes(content).replace(b"abc", b"\xff\xfec"))
    archive.write_bytes(content)
    ended = run_import(archive, tmp_path / "out.memlens")
    assert ended.status == 74, ended.text
    assert "a.trace.zip is encrypted or damaged" in ended.text


def test_a_long_line_of_digits_is_looked_at_once(tmp_path: Path) -> None:
    from memlens.importing import lackey

    begun = os.times().user
    assert not lackey.recognises(b"==" + b"1" * 65_000)
    assert os.times().user - begun < 1  # 4 s when every digit may begin the number
    assert lackey.recognises(b"==00:00:00:01.250 4711== Lackey, an example Valgrind tool\n")
