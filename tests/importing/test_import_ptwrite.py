"""`memlens import` of Intel PT with ptwrite: packet streams and perf.data files made here, after Intel's manual and
perf's format; packets themselves are compared with Intel's libipt in tests/native/compare_libipt.cpp."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import recordings, run_memlens
from hypothesis import given, settings
from hypothesis import strategies as st
from import_tools import accesses, imported

import memlens
from memlens import _core
from memlens.errors import CollectorError, OutputError, TraceError
from memlens.importing import ptwrite_run, survey

PSB = b"\x02\x82" * 8
PSBEND, OVF, STOP, PAD = b"\x02\x23", b"\x02\xf3", b"\x02\x83", b"\0"
CYCLES_PER_NS = 2  # time_mult 2**31, time_shift 32: a cycle is half a nanosecond
NOBODY = 0xFFFFFFFF


def tsc(value: int) -> bytes:
    return b"\x19" + value.to_bytes(7, "little")


def at_ns(ns: int) -> bytes:
    return tsc(ns * CYCLES_PER_NS)


def address(kind: int, ip: int, form: int = 6) -> bytes:
    size = {0: 0, 1: 2, 2: 4, 3: 6, 4: 6, 6: 8}[form]
    return bytes([kind | form << 5]) + (ip % 2 ** (8 * size)).to_bytes(size, "little")


def fup(ip: int, form: int = 6) -> bytes:
    return address(0x1D, ip, form)


def ptw(value: int, *, ip: int | None = None, form: int = 6) -> bytes:
    return (
        b"\x02"
        + bytes([0x32 | (0x80 if ip is not None else 0)])
        + value.to_bytes(8, "little")
        + (b"" if ip is None else fup(ip, form))
    )


def start(ns: int) -> bytes:
    return PSB + at_ns(ns) + PSBEND


class PerfFile:
    """A perf.data with one event (sample_type TID | TIME | CPU) and sample_id_all."""

    def __init__(self, *, shift: int = 32, mult: int = 1 << 31, clock: bool = True, snapshot: bool = False) -> None:
        self.records = b""
        info = [8, shift, mult, 0, int(clock), 0, 0, 0, int(snapshot), 0, 0, 0x3C000, 4, 1, 0, 0]
        self.record(70, struct.pack("<II", 1, 0) + struct.pack(f"<{len(info)}Q", *info))

    def record(self, kind: int, body: bytes, misc: int = 0) -> PerfFile:
        self.records += struct.pack("<IHH", kind, misc, 8 + len(body)) + body
        return self

    def event(
        self, kind: int, body: bytes, *, pid: int = 7, tid: int = 7, ns: int = 0, cpu: int = 0, misc: int = 0
    ) -> PerfFile:
        body += b"\0" * (-len(body) % 8)
        return self.record(kind, body + struct.pack("<IIQII", pid, tid, ns, cpu, 0), misc)

    def comm(self, name: str, pid: int = 7, tid: int = 7) -> PerfFile:
        return self.event(3, struct.pack("<II", pid, tid) + name.encode() + b"\0")

    def mmap2(self, path: str, address: int, size: int, *, pid: int = 7, inode: int = 5, offset: int = 0) -> PerfFile:
        fixed = struct.pack("<IIQQQIIQQII", pid, pid, address, size, offset, 8, 1, inode, 0, 5, 2)
        return self.event(10, fixed + path.encode() + b"\0")

    def itrace_start(self, *, pid: int = 7, tid: int = 7, ns: int = 0, cpu: int = 0) -> PerfFile:
        return self.event(12, struct.pack("<II", pid, tid), pid=pid, tid=tid, ns=ns, cpu=cpu)

    def switch_in(self, *, pid: int, tid: int, ns: int, cpu: int) -> PerfFile:
        return self.event(15, struct.pack("<II", 0, 0), pid=pid, tid=tid, ns=ns, cpu=cpu)

    def aux(self, offset: int, size: int, *, flags: int = 0, cpu: int = 0) -> PerfFile:
        return self.event(11, struct.pack("<QQQ", offset, size, flags), cpu=cpu)

    def trace(self, content: bytes, *, offset: int = 0, index: int = 0, tid: int = NOBODY, cpu: int = 0) -> PerfFile:
        self.record(71, struct.pack("<QQQIIII", len(content), offset, 0, index, tid, cpu, 0))
        self.records += content
        return self

    def content(self, *, stream: bool = False) -> bytes:
        flags = 1 << 18
        attribute = struct.pack("<IIQQQQQ", 8, 64, 3 << 14, 1, 0x2 | 0x4 | 0x80, 0, flags) + b"\0" * 16
        if stream:
            head = struct.pack("<IHH", 64, 0, 8 + 64) + attribute
            return b"PERFILE2" + struct.pack("<Q", 16) + head + self.records
        header = b"PERFILE2" + struct.pack("<10Q", 104, 80, 104, 80, 184, len(self.records), 0, 0, 0, 0) + b"\0" * 16
        return header + attribute + b"\0" * 16 + self.records

    def write(self, path: Path, *, stream: bool = False) -> Path:
        path.write_bytes(self.content(stream=stream))
        return path


def addresses(path: Path, output: Path) -> list[tuple[int, int]]:
    return [(access[0], access[1]) for access in accesses(imported(path, output))]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "pipe"])
def test_addresses_instructions_threads_and_times(tmp_path: Path, stream: bool) -> None:
    trace = start(1000) + ptw(0x7000, ip=0x401000) + at_ns(1500) + ptw(0x7008, ip=0x401010, form=1) + ptw(0x7010)
    perf = PerfFile().comm("prog").mmap2("/bin/prog", 0x400000, 0x2000).itrace_start(ns=900, cpu=3).trace(trace, cpu=3)
    capture = imported(perf.write(tmp_path / "perf.data", stream=stream), tmp_path / "c.memlens")
    assert accesses(capture) == [(0x401000, 0x7000, 0, "load"), (0x401010, 0x7008, 0, "load"), (0, 0x7010, 0, "load")]
    (window,) = capture.table("windows").to_pylist()
    assert (window["begin_ns"], window["end_ns"], window["thread"], window["cpu"]) == (1000, 1500, 7, 3)
    (process,) = capture.table("processes").to_pylist()
    assert (process["pid"], process["name"]) == (7, "prog")
    site = next(row for row in capture.table("sites").to_pylist() if row["module"] == "/bin/prog")
    assert site["file_offset"] == 0x1000
    assert not capture.quality.exact  # only what was written is known
    assert any("1 accesses have no instruction" in note for note in capture.quality.notes)
    assert run_memlens("report", tmp_path / "c.memlens").returncode == 0


def test_an_overflow_starts_a_window_and_is_a_loss_placed_in_time(tmp_path: Path) -> None:
    trace = start(1000) + ptw(1, ip=0x10) + ptw(2, ip=0x11) + OVF + fup(0x99) + at_ns(3000) + ptw(3, ip=0x12)
    perf = PerfFile().itrace_start().trace(trace)
    capture = imported(perf.write(tmp_path / "perf.data"), tmp_path / "c.memlens")
    assert [access[:2] for access in accesses(capture)] == [(0x10, 1), (0x11, 2), (0x12, 3)]
    windows = capture.table("windows").to_pylist()
    assert [row["recorded"] for row in windows] == [2, 1] and windows[0]["unit"] != windows[1]["unit"]
    (loss,) = capture.table("losses").to_pylist()
    assert (loss["begin_ns"], loss["end_ns"], loss["cpu"], loss["count"]) == (1000, 3000, 0, 1)
    assert capture.quality.dropped_records == 1 and not capture.quality.exact
    assert any("1 overflows" in note for note in capture.quality.notes)


def test_where_tracing_was_off_a_window_ends(tmp_path: Path) -> None:
    off, on = address(0x01, 0x50), address(0x11, 0x60)
    trace = start(10) + ptw(1, ip=0x10) + off + on + at_ns(20) + ptw(2, ip=0x11) + STOP + on + ptw(3, ip=0x12)
    capture = imported(PerfFile().itrace_start().trace(trace).write(tmp_path / "p"), tmp_path / "c.memlens")
    assert [row["recorded"] for row in capture.table("windows").to_pylist()] == [1, 1, 1]
    assert capture.meta["import"]["figures"]["switched_off"] == 2 and capture.table("losses").num_rows == 0


def test_damage_is_skipped_to_the_next_psb(tmp_path: Path) -> None:
    trace = b"\x05\x05" + start(10) + ptw(1, ip=0x10) + b"\x02\x44" + ptw(2, ip=0x11) + start(50) + ptw(3, ip=0x12)
    capture = imported(PerfFile().itrace_start().trace(trace).write(tmp_path / "p"), tmp_path / "c.memlens")
    assert [access[1] for access in accesses(capture)] == [1, 3]
    figures = capture.meta["import"]["figures"]
    assert figures["damaged"] == 1 and figures["skipped_bytes"] == 2 + 2 + len(ptw(2, ip=0x11))
    (loss,) = capture.table("losses").to_pylist()
    assert (loss["begin_ns"], loss["end_ns"]) == (10, 50)


def test_pieces_of_a_buffer_are_one_stream_and_cuts_are_losses(tmp_path: Path) -> None:
    trace = start(10) + b"".join(ptw(value, ip=0x10 + value) for value in range(20))
    parts = [(0, 33), (33, 34), (34, 150), (150, len(trace))]
    perf = PerfFile().itrace_start()
    for begin, end in parts:
        perf.trace(trace[begin:end], offset=begin)
    assert [a for _, a in addresses(perf.write(tmp_path / "p"), tmp_path / "c.memlens")] == list(range(20))
    # A piece is missing: what follows begins at the next PSB, and the hole is a loss.
    second = start(90) + ptw(77, ip=0x99)
    perf = PerfFile().itrace_start().trace(trace, offset=0).trace(b"\x11" * 5 + second, offset=len(trace) + 400)
    capture = imported(perf.write(tmp_path / "q"), tmp_path / "d.memlens")
    assert [access[1] for access in accesses(capture)] == [*range(20), 77]
    assert capture.table("losses").num_rows == 1 and capture.quality.truncated
    # The kernel says that it had no room after the first half.
    half = len(start(10)) + 10 * len(ptw(0, ip=0))
    perf = PerfFile().itrace_start().aux(0, half, flags=1).trace(trace[:half] + second, offset=0)
    capture = imported(perf.write(tmp_path / "r"), tmp_path / "e.memlens")
    assert [access[1] for access in accesses(capture)] == [*range(10), 77]
    assert [(row["begin_ns"], row["end_ns"]) for row in capture.table("losses").to_pylist()] == [(10, 90)]


def test_context_switches_tell_the_threads_of_a_cpu(tmp_path: Path) -> None:
    trace = start(100) + ptw(1) + at_ns(200) + ptw(2) + at_ns(300) + ptw(3) + at_ns(400) + ptw(4)
    perf = PerfFile().comm("one", 7, 7).comm("two", 9, 9).itrace_start(pid=7, tid=7, ns=50, cpu=1)
    perf.trace(trace, cpu=1)  # what ran is known later in the file
    perf.switch_in(pid=9, tid=9, ns=190, cpu=1).switch_in(pid=0, tid=0, ns=250, cpu=1).switch_in(
        pid=7, tid=8, ns=350, cpu=1
    )
    capture = imported(perf.write(tmp_path / "p"), tmp_path / "c.memlens")
    rows = capture.table("accesses").to_pylist()
    names = {row["process"]: row["name"] for row in capture.table("processes").to_pylist()}
    found = sorted((names[row["process"]], row["thread"], row["address"]) for row in rows)
    assert found == [("one", 7, 1), ("one", 8, 4), ("two", 9, 2)]
    assert capture.meta["import"]["figures"]["unknown_thread"] == 1  # the idle task cannot write
    assert any("1 accesses were left out" in note for note in capture.quality.notes)


def test_buffers_of_threads_need_no_switches(tmp_path: Path) -> None:
    perf = PerfFile().comm("main", 7, 7).event(7, struct.pack("<IIIIQ", 7, 7, 8, 7, 0))
    perf.trace(start(10) + ptw(1), index=0, tid=7, cpu=NOBODY).trace(start(20) + ptw(2), index=1, tid=8, cpu=NOBODY)
    capture = imported(perf.write(tmp_path / "p"), tmp_path / "c.memlens")
    assert sorted((row["thread"], row["address"]) for row in capture.table("accesses").to_pylist()) == [(7, 1), (8, 2)]
    assert capture.table("processes").num_rows == 1


def test_mtc_packets_refine_the_time(tmp_path: Path) -> None:
    """A crystal tick is 4 cycles, 2 ns; an MTC comes each 8 ticks (mtc_period 3): 16 ns."""
    tma = (
        b"\x02\x73" + (0x123).to_bytes(2, "little") + b"\0" + bytes([6, 0])
    )  # 3 ticks past a multiple of 8; 6 cycles ago
    first = (0x123 >> 3) & 0xFF
    trace = PSB + at_ns(1000) + tma + PSBEND + ptw(1)
    trace += b"\x59" + bytes([(first + 1) & 0xFF]) + ptw(2) + b"\x59" + bytes([(first + 3) & 0xFF]) + ptw(3)
    capture = imported(PerfFile().itrace_start().trace(trace).write(tmp_path / "p"), tmp_path / "c.memlens")
    (window,) = capture.table("windows").to_pylist()
    # 5 ticks to the first MTC, 16 more to the third: 21 ticks = 84 cycles after 2000 - 6 cycles.
    assert (window["begin_ns"], window["end_ns"]) == (1000, (2000 - 6 + 84) // CYCLES_PER_NS)


def test_address_compression_follows_all_address_packets(tmp_path: Path) -> None:
    trace = start(10) + ptw(1, ip=0x7F0012345678)
    trace += ptw(2, ip=0x9999, form=1) + address(0x0D, 0xAAAABBBB, 2) + ptw(3, ip=0xCCCC, form=1)
    trace += ptw(4, ip=0xFFFF_8000_0000_1000, form=3) + ptw(5, ip=0x1234_5678_9ABC, form=4) + ptw(6, ip=0, form=0)
    perf = PerfFile().itrace_start().trace(trace)
    assert [pc for pc, _ in addresses(perf.write(tmp_path / "p"), tmp_path / "c.memlens")] == [
        0x7F0012345678, 0x7F0012349999, 0x7F00AAAACCCC, 0xFFFF800000001000, 0xFFFF123456789ABC, 0]  # fmt: skip


def test_a_file_without_a_clock_says_that_times_are_cycles(tmp_path: Path) -> None:
    perf = PerfFile(clock=False).itrace_start().trace(start(10) + ptw(1))
    capture = imported(perf.write(tmp_path / "p"), tmp_path / "c.memlens")
    assert capture.table("windows").to_pylist()[0]["begin_ns"] == 10 * CYCLES_PER_NS
    assert any("times are in cycles" in note for note in capture.quality.notes)


def test_files_that_are_cut_or_hold_no_trace(tmp_path: Path) -> None:
    content = PerfFile().itrace_start().trace(start(10) + ptw(1, ip=2) + ptw(3, ip=4)).content()
    path = tmp_path / "p"
    path.write_bytes(content[:-5])  # inside the last address packet
    capture = imported(path, tmp_path / "c.memlens")
    assert [access[:2] for access in accesses(capture)] == [(2, 1), (0, 3)] and capture.quality.truncated
    assert any("truncated at byte" in note for note in capture.quality.notes)
    for cut in range(9, len(content) - 5, 3):  # wherever it is cut: a capture or one sentence
        path.write_bytes(content[:cut])
        try:
            imported(path, tmp_path / f"{cut}.memlens")
        except TraceError as error:
            assert str(path) in str(error)
    path.write_bytes(PerfFile().itrace_start().content())
    with pytest.raises(TraceError, match="no Processor Trace in it"):
        imported(path, tmp_path / "d.memlens")
    path.write_bytes(PerfFile().record(81, b"\0" * 16).content())
    with pytest.raises(TraceError, match="compressed records"):
        imported(path, tmp_path / "d.memlens")
    path.write_bytes(b"PERFILE2" + b"\0" * 200)
    with pytest.raises(TraceError, match="no records"):
        imported(path, tmp_path / "d.memlens")


def test_real_files_of_perf_without_a_trace_are_refused_in_words(tmp_path: Path) -> None:
    for number, path in enumerate(sorted(recordings("perfdata").glob("*"))):
        if path.read_bytes()[:8] != b"PERFILE2":
            continue
        with pytest.raises(TraceError) as caught:
            imported(path, tmp_path / f"{number}.memlens")
        assert str(path) in str(caught.value), caught.value


@pytest.mark.skipif(not shutil.which("perf"), reason="no perf: sudo apt-get install linux-perf")
def test_perf_cuts_the_same_file_into_the_same_packets(tmp_path: Path) -> None:
    """perf's own dump of a file made here: offsets and bytes of each packet, also of kinds that libipt does not know."""
    source = random.Random(3)
    kinds = [
        lambda: ptw(source.getrandbits(64), ip=source.getrandbits(47), form=source.choice([0, 1, 2, 3, 4, 6])),
        lambda: ptw(source.getrandbits(64)),
        lambda: b"\x02\x12" + source.randbytes(4),
        lambda: at_ns(source.getrandbits(40)),
        lambda: b"\x59" + source.randbytes(1),
        lambda: b"\x02\x73" + source.randbytes(2) + b"\0" + source.randbytes(1) + b"\1",
        lambda: b"\x02\x03" + source.randbytes(1) + b"\0",
        lambda: OVF,
        lambda: address(0x11, source.getrandbits(47), 3),
        lambda: b"\x02\x63" + bytes([5 | source.choice([0, 0x80])]),
        lambda: b"\x02\x33",
        lambda: b"\x02\x13\x84\x01",
        lambda: b"\x02\x53\x03" + source.randbytes(8),
        lambda: b"\x02\xa3" + source.randbytes(5) + b"\x01",
        lambda: bytes([0x06]),
        lambda: b"\x07" + bytes([0x03, 0x10]),
        lambda: PSB + PSBEND,
    ]
    trace = start(5) + b"".join(source.choice(kinds)() for _ in range(400))
    # In a block of items a byte like xxxxx100 begins one.
    trace += (
        b"\x02\x63\x05" + b"\x0c" + source.randbytes(8) + b"\x02\x63\x85" + b"\x14" + source.randbytes(4) + b"\x02\xb3"
    )
    path = PerfFile().comm("prog").itrace_start().trace(trace).write(tmp_path / "perf.data")
    done = subprocess.run(["perf", "report", "-D", "-i", path], capture_output=True, text=True)
    dumped = re.findall(r"^\.  ([0-9a-f]{8}):  ((?:[0-9a-f]{2} )+) *(\S.*)", done.stdout, re.MULTILINE)
    if not any(name == "PSB" for _, _, name in dumped):
        pytest.skip("this perf does not dump Processor Traces")
    theirs = [(int(at, 16), len(raw.split())) for at, raw, _ in dumped]
    ours, at = [], 0
    for _, size, _, _ in _core.pt_packets(trace):
        ours.append((at, size))
        at += size
    assert at == len(trace) and ours == theirs and len(ours) > 400


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.none() | st.integers(0, 2**47 - 1)), max_size=40),
    st.integers(1, 64),
)
def test_any_writes_in_any_pieces(writes: list[tuple[int, int | None]], cut: int) -> None:
    content = start(10) + b"".join(ptw(value, ip=ip) + PAD * (value % 3) for value, ip in writes)
    reader = _core.PtWriteImport(clock=(0, 1 << 31, 32, 0, 0, 0))
    reader.begin_stream(cpu=0, process=1, thread=5)
    for at in range(0, len(content), cut):
        reader.feed(content[at : at + cut])
    reader.end_stream()
    found = []
    for _, payload, _, _, _ in reader.take(end=True):
        batches = _core.AccessReader(payload)
        while (batch := batches.next()) is not None:
            found.extend(zip(batch["address"].tolist(), batch["code"].tolist(), strict=True))
    assert found == [(value, ip or 0) for value, ip in writes]
    assert reader.counts["left_bytes"] == 0 and reader.counts["damaged"] == 0


FAKE_PERF = """#!/bin/sh
# Takes what `perf record -q -e EVENT -o FILE -- PROGRAM` is given.
[ "$1 $2 $3 $5" = "record -q -e -o" ] || exit 99
echo "$4" > "$PREPARED.event"
[ -s "$PREPARED" ] && cp "$PREPARED" "$6"
shift 7
"$@"
"""


@pytest.fixture
def with_ptwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has the instruction, and a perf whose recording is prepared here."""
    (tmp_path / "intel_pt" / "caps").mkdir(parents=True)
    (tmp_path / "intel_pt" / "caps" / "ptwrite").write_text("1\n")
    monkeypatch.setattr(survey, "INTEL_PT", str(tmp_path / "intel_pt"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "perf").write_text(FAKE_PERF)
    (tmp_path / "bin" / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PREPARED", str(tmp_path / "prepared"))
    return tmp_path


def test_recording_runs_perf_and_imports_what_it_took_down(with_ptwrite: Path) -> None:
    trace = start(1000) + ptw(0x7000, ip=0x401000) + ptw(0x7008, ip=0x401010)
    PerfFile().comm("prog").itrace_start(ns=900).trace(trace).write(with_ptwrite / "prepared")
    output = with_ptwrite / "c.memlens"
    program = ["sh", "-c", f'[ "$MEMLENS_PTWRITE" = 1 ] && touch {with_ptwrite}/ran && exit 7']
    run = ptwrite_run.record(program, output, force=False)
    assert os.waitstatus_to_exitcode(run.wait_status) == 7 and (with_ptwrite / "ran").exists()
    assert [access[:2] for access in accesses(memlens.open(output))] == [(0x401000, 0x7000), (0x401010, 0x7008)]
    assert (with_ptwrite / "prepared.event").read_text().strip() == "intel_pt/ptw=1,fup_on_ptw=1,branch=0/u"
    (with_ptwrite / "ran").unlink()
    with pytest.raises(OutputError, match="exists already"):
        ptwrite_run.record(program, output, force=False)
    assert not (with_ptwrite / "ran").exists()  # found before anything was started
    killed = ptwrite_run.record(["sh", "-c", "kill -9 $$"], output, force=True)
    assert os.waitstatus_to_exitcode(killed.wait_status) in (-9, 137)  # a shell tells of its child's signal by 128 + N
    (with_ptwrite / "prepared").write_bytes(b"")
    with pytest.raises(CollectorError, match="perf recorded nothing: it ended with status 3"):
        ptwrite_run.record(["sh", "-c", "exit 3"], output, force=True)


def test_a_machine_without_ptwrite_is_told_before_the_program_starts(tmp_path: Path) -> None:
    if os.path.isdir(survey.INTEL_PT):
        pytest.skip("this machine has Intel Processor Trace")
    done = run_memlens("record", "--ptwrite", "-o", tmp_path / "c.memlens", "--", "touch", tmp_path / "ran")
    assert done.returncode == 69 and not (tmp_path / "ran").exists()
    assert "--ptwrite cannot record here: this CPU has no Intel Processor Trace" in done.stderr
    assert "--memlens=trace" in done.stderr
    both = run_memlens("record", "--ptwrite", "--trace", "--", "true")
    assert both.returncode == 64 and "excludes" in both.stderr
