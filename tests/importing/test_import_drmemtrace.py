"""`memlens import` of DynamoRIO's drmemtrace: streams made by a small writer of entries, after its trace_entry.h."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_tools import accesses, imported

from memlens import _core, analyses
from memlens.errors import TraceError

READ, WRITE, PREFETCH, INSTR, CALL, BUNDLE = 0, 1, 2, 10, 14, 17
DATA_FLUSH, THREAD, THREAD_EXIT, PID, HEADER, FOOTER, MARKER, NO_FETCH, ENCODING, UNTAKEN = (
    20,
    22,
    23,
    24,
    25,
    26,
    28,
    29,
    47,
    49,
)
TIMESTAMP, CPU_ID, FILETYPE, VERSION, WINDOW_ID = 2, 3, 9, 12, 14
X86_64, ENCODINGS, FILTERED = 0x40, 0x200, 0x1
TO_1970_US = 11_644_473_600_000_000


class Writer:
    """One trace file, entry by entry."""

    def __init__(self, *, version: int = 7, pid: int = 100, tid: int = 101, file_type: int = X86_64) -> None:
        self.content = b""
        self.entry(HEADER, 0, version)
        self.entry(MARKER, VERSION, version).entry(MARKER, FILETYPE, file_type)
        self.entry(THREAD, 4, tid).entry(PID, 4, pid)

    def entry(self, kind: int, size: int, address: int) -> Writer:
        self.content += struct.pack("<HHQ", kind, size, address)
        return self

    def time(self, unix_us: int, cpu: int = 0) -> Writer:
        return self.entry(MARKER, TIMESTAMP, unix_us + TO_1970_US).entry(MARKER, CPU_ID, cpu)

    def code(self, pc: int, *refs: tuple[int, int, int], kind: int = INSTR, length: int = 4) -> Writer:
        """An instruction with its encoding and its (type, address, bytes) references."""
        self.entry(ENCODING, length, 0x90909090)
        self.entry(kind, length, pc)
        for operation, address, size in refs:
            self.entry(operation, size, address)
        return self

    def end(self, tid: int = 101) -> bytes:
        return self.entry(THREAD_EXIT, 4, tid).entry(FOOTER, 0, 0).content


def simple() -> Writer:
    return (
        Writer()
        .time(1_700_000_000_000_000, cpu=3)
        .code(0x401000, (READ, 0x1000, 8), (WRITE, 0x2000, 4))
        .code(0x401004)
        .code(0x401008, (PREFETCH, 0x3000, 64), (READ, 0x3000, 1), kind=CALL)
        .code(0x40100C, (WRITE, 0x4000, 32), kind=UNTAKEN)
    )


EXPECTED = [(0x401000, 0x1000, 8, "load"), (0x401000, 0x2000, 4, "store"), (0x401008, 0x3000, 1, "load"),
            (0x40100C, 0x4000, 32, "store")]  # fmt: skip


def test_accesses_times_cpus_and_counts(tmp_path: Path) -> None:
    (tmp_path / "drmemtrace.app.100.0001.trace").write_bytes(simple().end())
    capture = imported(tmp_path / "drmemtrace.app.100.0001.trace", tmp_path / "c.memlens")
    assert accesses(capture) == EXPECTED and capture.quality.exact
    (window,) = capture.table("windows").to_pylist()
    # An instruction is a nanosecond after the marker: the first access is at the first, the last at the fourth.
    assert window["begin_ns"] == 1_700_000_000 * 10**9 + 1 and window["end_ns"] == window["begin_ns"] + 3
    assert (window["cpu"], window["thread"], window["period"]) == (3, 101, 4)
    (process,) = capture.table("processes").to_pylist()
    assert (process["pid"], process["name"]) == (100, "app")
    figures = capture.meta["import"]["figures"]
    assert (
        figures | {"version": 7, "instructions": 4, "loads": 2, "stores": 2, "prefetches": 1, "threads": 1} == figures
    )
    assert any("1 prefetches" in note for note in capture.quality.notes)
    rows = {row["pc"]: row for row in capture.table("code_counts").to_pylist()}
    assert rows[0x401000]["load_bytes"] == 8 and rows[0x40100C]["store_width"] == 32
    assert analyses.run("traffic", capture).quality.exact


@pytest.mark.parametrize("how", ["plain", "gz", "zip", "zst"])
def test_a_directory_in_any_compression(tmp_path: Path, how: str) -> None:
    import pyarrow as pa

    folder = tmp_path / "drmemtrace.app.100.0001.dir" / "trace"
    folder.mkdir(parents=True)
    content = simple().end()
    if how == "zip":  # chunks of one stream, cut anywhere
        with zipfile.ZipFile(folder / "drmemtrace.app.100.0001.trace.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for number, at in enumerate(range(0, len(content), 100)):
                archive.writestr(f"chunk.{number:04d}", content[at : at + 100])
    elif how == "zst":
        with pa.CompressedOutputStream(
            pa.OSFile(str(folder / "drmemtrace.app.100.0001.trace.zst"), "wb"), "zstd"
        ) as out:
            out.write(content)
    else:
        data = gzip.compress(content) if how == "gz" else content
        (folder / f"drmemtrace.app.100.0001.trace{'.gz' if how == 'gz' else ''}").write_bytes(data)
    (folder / "cpu_schedule.bin.zip").write_bytes(b"not a trace")
    capture = imported(folder.parent, tmp_path / "c.memlens")
    assert accesses(capture) == EXPECTED


def test_files_are_threads_and_pids_processes(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_bytes(Writer(pid=7, tid=7).time(50).code(0x10, (READ, 0x1, 8)).end(7))
    (tmp_path / "b.trace").write_bytes(Writer(pid=7, tid=8).time(40).code(0x20, (WRITE, 0x2, 8)).end(8))
    (tmp_path / "c.trace").write_bytes(Writer(pid=9, tid=9).time(60).code(0x30, (READ, 0x3, 8)).end(9))
    capture = imported([tmp_path / f"{name}.trace" for name in "abc"], tmp_path / "o.memlens")
    assert {row["pid"]: row["process"] for row in capture.table("processes").to_pylist()} == {7: 1, 9: 2}
    assert accesses(capture, process=1, thread=8) == [(0x20, 0x2, 8, "store")]
    assert accesses(capture, process=2) == [(0x30, 0x3, 8, "load")]
    assert (capture.begin_ns, capture.end_ns) == (40_001, 60_001)


def test_threads_interleaved_in_one_file_keep_their_own_order(tmp_path: Path) -> None:
    writer = Writer(pid=7, tid=7).code(0x10, (READ, 0x1, 8))
    writer.entry(THREAD, 4, 8).entry(PID, 4, 7).code(0x20, (READ, 0x2, 8))
    writer.entry(THREAD, 4, 7).code(0x11, (READ, 0x3, 8))  # its process is known already
    (tmp_path / "a.trace").write_bytes(writer.end(7))
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    assert [access[1] for access in accesses(capture, thread=7)] == [0x1, 0x3]
    assert [access[1] for access in accesses(capture, thread=8)] == [0x2]


def test_bundles_no_fetch_and_entries_that_only_name_a_pc(tmp_path: Path) -> None:
    writer = Writer().code(0x100, (READ, 0x1, 8), length=3)
    writer.entry(BUNDLE, 3, int.from_bytes(bytes([2, 5, 4]), "little")).entry(READ, 8, 0x2)  # 0x103, 0x105, 0x10a
    writer.entry(NO_FETCH, 2, 0x200).entry(WRITE, 1, 0x3)  # the second round of a rep
    writer.entry(INSTR, 0, 0x300).entry(READ, 4, 0x4)
    (tmp_path / "a.trace").write_bytes(writer.end())
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    assert [(access[0], access[1]) for access in accesses(capture)] == [(0x100, 1), (0x10A, 2), (0x200, 3), (0x300, 4)]
    assert capture.meta["import"]["figures"]["instructions"] == 4


def test_windows_of_a_traced_program_are_told_apart(tmp_path: Path) -> None:
    writer = Writer().entry(MARKER, WINDOW_ID, 0).code(0x10, (READ, 0x1, 8)).code(0x11, (READ, 0x2, 8))
    writer.entry(MARKER, WINDOW_ID, 0).entry(MARKER, WINDOW_ID, 1).code(0x12, (READ, 0x3, 8))
    (tmp_path / "a.trace").write_bytes(writer.end())
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    windows = capture.table("windows").to_pylist()
    assert [row["recorded"] for row in windows] == [2, 1] and len({row["unit"] for row in windows}) == 2
    assert not capture.quality.exact and capture.table("code_counts").num_rows == 0
    assert any("Tracing was switched off 1 times" in note for note in capture.quality.notes)


def test_a_filtered_trace_is_never_called_exact(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_bytes(Writer(file_type=X86_64 | FILTERED).code(0x10, (READ, 0x1, 8)).end())
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    assert not capture.quality.exact and any("-L0_filter" in note for note in capture.quality.notes)
    assert capture.table("code_counts").num_rows == 0


@pytest.mark.parametrize("left", [0, 5], ids=["between entries", "inside an entry"])
def test_a_cut_file_keeps_what_it_has_and_says_so(tmp_path: Path, left: int) -> None:
    content = simple().content
    (tmp_path / "a.trace").write_bytes(content[: len(content) - 12 + left])
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    assert accesses(capture) == EXPECTED[:3]
    assert capture.quality.truncated and any("without the footer" in note for note in capture.quality.notes)


def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    path, output = tmp_path / "a.trace", tmp_path / "c.memlens"
    path.write_bytes(simple().entry(77, 0, 0).end())
    with pytest.raises(
        TraceError, match=rf"a\.trace, byte {len(simple().content)} of its content: an entry of type 77"
    ):
        imported(path, output)
    path.write_bytes(struct.pack("<HHQ", HEADER, 0, 900))
    with pytest.raises(TraceError, match="format version is 900; versions 1 to 7"):
        imported(path, output)
    path.write_bytes(struct.pack("<HHIHHI", HEADER, 0, 7, MARKER, VERSION, 7) * 2)
    with pytest.raises(TraceError, match="32-bit program"):
        imported(path, output)
    path.write_bytes(struct.pack("<HHQHHQ", HEADER, 0, 7, READ, 8, 0x10))
    with pytest.raises(TraceError, match="before the entry that names its thread"):
        imported(path, output)
    (tmp_path / "d" / "raw").mkdir(parents=True)
    (tmp_path / "d" / "raw" / "drmemtrace.app.1.raw.gz").write_bytes(b"x")
    with pytest.raises(TraceError, match="raw files only") as caught:
        imported(tmp_path / "d", output)
    assert "drraw2trace" in str(caught.value.hint) and not output.exists()


REFERENCES = st.lists(
    st.tuples(st.sampled_from([READ, WRITE]), st.integers(0, 2**64 - 1), st.integers(0, 64)), max_size=3
)
CODE = st.lists(st.tuples(st.integers(0, 2**48), REFERENCES), max_size=30)


@settings(max_examples=80, deadline=None)
@given(CODE, st.integers(1, 50))
def test_any_stream_in_any_blocks(code: list[tuple[int, list[tuple[int, int, int]]]], cut: int) -> None:
    writer = Writer()
    for pc, references in code:
        writer.code(pc, *references)
    content = writer.end()
    reader = _core.DrmemtraceImport()
    reader.begin_file()
    for at in range(0, len(content), cut):
        assert reader.feed(content[at : at + cut]), reader.fault
    assert reader.end_file() and reader.has_footer and reader.left_bytes == 0
    found = []
    for _, payload, _, _, _ in reader.take(end=True):
        batches = _core.AccessReader(payload)
        while (batch := batches.next()) is not None:
            found.extend(zip(*(batch[n].tolist() for n in ("code", "address", "bytes", "operation")), strict=True))
    expected = [(pc, a, size, 1 if kind == READ else 2) for pc, references in code for kind, a, size in references]
    assert found == expected and reader.instructions == len(code)
