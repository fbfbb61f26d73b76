"""`memlens import` of valgrind's lackey, and what all formats share: files, errors, memory.

The oracle is a parser of lines written here, a sentence of Python each; the program's own loop counts; and valgrind.
"""

from __future__ import annotations

import gzip
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MEMLENS, needs_root, recordings, run_memlens
from hypothesis import given, settings
from hypothesis import strategies as st
from import_tools import Access, accesses, imported

import memlens
from memlens import _core, analyses
from memlens.errors import OutputError, TraceError, UsageError

LINE = re.compile(r"^(I | L| S| M) ([0-9a-fA-F]+),([0-9]+)$")


def expected_of(text: str) -> list[Access]:
    """What a lackey trace says, line by line."""
    found: list[Access] = []
    pc = 0
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        kind, address, size = match.group(1).strip(), int(match.group(2), 16), int(match.group(3))
        if kind == "I":
            pc = address
        if kind in "LM":
            found.append((pc, address, size, "load"))
        if kind in "SM":
            found.append((pc, address, size, "store"))
    return found


@pytest.mark.parametrize("name", ["dave", "yi", "yi2"])
def test_published_traces_come_through_access_by_access(tmp_path: Path, name: str) -> None:
    source = recordings("lackey") / f"cachelab-{name}.trace"
    capture = imported(source, tmp_path / "c.memlens")
    assert accesses(capture) == expected_of(source.read_text())
    assert capture.quality.exact


NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 2**20)
LINES = st.builds(
    lambda kind, address, size: f"{kind} {address:x},{size}", st.sampled_from(["I ", " L", " S", " M"]), NUMBERS,
    st.integers(1, 512),
) | st.sampled_from(
    ["==17== words", "--17-- words", "**17** words", "", "==00:00:00:01.250 17== words", "--17:1:main words"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, max_size=60), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.booleans())
def test_any_lines_in_any_blocks_decode_to_what_they_say(lines: list[str], cuts: list[int], has_end: bool) -> None:
    text = "\n".join(lines) + ("\n" if has_end else "")
    reader = _core.LackeyImport(process=1)
    content, at, step = text.encode(), 0, 0
    while at < len(content):
        size = cuts[step % len(cuts)]
        assert reader.feed(content[at : at + size])
        at, step = at + size, step + 1
    assert reader.finish()
    decoded: list[Access] = []
    for _, payload, records, _, _ in reader.take(end=True):
        batches = _core.AccessReader(payload)
        while (found := batches.next()) is not None:
            names = {1: "load", 2: "store"}
            columns = (found[name].tolist() for name in ("code", "address", "bytes", "operation"))
            decoded.extend((pc, address, size, names[op]) for pc, address, size, op in zip(*columns, strict=True))
        assert records >= 1 and batches.damaged == 0
    expected = expected_of(text)
    assert decoded == expected
    assert (reader.loads, reader.stores) == tuple(sum(a[3] == op for a in expected) for op in ("load", "store"))
    assert reader.malformed == 0 and reader.accesses == len(expected)


def long_trace(n_instructions: int) -> str:
    """A sweep and a hash: two data lines for each instruction but every third."""
    lines = []
    for i in range(n_instructions):
        lines.append(f"I  {0x401000 + 4 * (i % 50):08x},4")
        if i % 3:
            lines.append(f" L {0x10000000 + 8 * i:x},8")
            lines.append(f" S {0x20000000 + (i * 2654435761) % (1 << 24):x},4")
    return "\n".join(lines) + "\n"


def test_a_long_trace_is_one_sequence_in_several_records(tmp_path: Path) -> None:
    text = long_trace(120_000)
    (tmp_path / "a.trace").write_text(text)
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    expected = expected_of(text)
    assert accesses(capture) == expected
    windows = capture.table("windows").to_pylist()
    assert len(windows) == 3 and {row["unit"] for row in windows} == {0}
    assert [row["first_executed"] for row in windows] == [0, 65536, 131072]
    assert all(row["period"] == row["recorded"] == row["executed"] and row["weight"] == 1.0 for row in windows)
    assert [row["begin_ns"] for row in windows] == sorted(row["begin_ns"] for row in windows)
    assert capture.end_ns == 120_000  # an instruction is a nanosecond; the last one has data
    result = analyses.run("accesses", capture)
    assert result.figures["recorded_accesses"] == len(expected) and result.quality.exact


def test_counts_by_instruction_are_those_of_the_lines(tmp_path: Path) -> None:
    text = long_trace(3000) + "I  00500000,3\n M 77,8\n L 78,4\n"
    (tmp_path / "a.trace").write_text(text)
    capture = imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    expected: dict[int, list[int]] = {}
    for pc, _, size, operation in expected_of(text):
        counts = expected.setdefault(pc, [0, 0, 0, 0])
        at = operation == "store"
        counts[at] += 1
        counts[2 + at] += size
    rows = capture.table("code_counts").to_pylist()
    found = {row["pc"]: [row["loads"], row["stores"], row["load_bytes"], row["store_bytes"]] for row in rows}
    assert found == expected
    mixed = next(row for row in rows if row["pc"] == 0x500000)
    assert (mixed["load_width"], mixed["store_width"]) == (0, 8)  # loads of 8 and of 4 bytes
    traffic = analyses.run("traffic", capture)
    assert traffic.quality.exact


PROGRAM = """
static int table[4096];
__attribute__((noinline)) long chase(int n) { long s = 0; int at = 0; for (int i = 0; i < n; i++) { at = table[at]; s += at; } return s; }
__attribute__((noinline)) void fill(void) { for (int i = 0; i < 4096; i++) table[i] = (i * 1103 + 7) & 4095; }
int main(void) { fill(); return chase(50000) == 1; }
"""


@pytest.mark.skipif(not shutil.which("valgrind") or not shutil.which("gcc"), reason="sudo apt-get install valgrind gcc")
def test_valgrinds_own_trace_of_a_program_with_known_counts(tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PROGRAM)
    program, trace = tmp_path / "p", tmp_path / "p.lackey"
    subprocess.run(["gcc", "-O1", "-g", "-no-pie", "-o", program, tmp_path / "p.c"], check=True)
    done = subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={trace}", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    capture = imported(trace, tmp_path / "c.memlens", modules=((str(program), 0),))
    assert accesses(capture) == expected_of(trace.read_text())
    by_function = {row["function"]: row for row in analyses.run("traffic", capture).tables["by_function"].to_pylist()}
    assert by_function["chase"]["loads"] == 50_001  # and the return address
    assert by_function["fill"]["stores"] == 4096
    objects = {row["object"]: row for row in analyses.run("accesses", capture).tables["by_object"].to_pylist()}
    assert (objects["table"]["loads"], objects["table"]["stores"]) == (50_000, 4096)
    pid = int(re.match(r"==(\d+)==", trace.read_text()).group(1))  # type: ignore[union-attr]
    (process,) = capture.table("processes").to_pylist()
    assert process["pid"] == pid and process["name"] == "p"
    assert capture.meta["command"] == [str(program)]
    report = run_memlens("report", tmp_path / "c.memlens")
    assert report.returncode == 0 and "imported from lackey: p.lackey" in report.stdout and "chase" in report.stdout
    page = run_memlens("report", tmp_path / "c.memlens", "--html", tmp_path / "c.html")
    assert page.returncode == 0 and "imported from lackey" in (tmp_path / "c.html").read_text()


@pytest.mark.parametrize("how", ["gz", "xz", "zst", "lz4", "bz2", "stdin"])
def test_compressed_files_and_pipes_give_the_same_accesses(tmp_path: Path, how: str) -> None:
    import bz2

    import pyarrow as pa

    text = long_trace(2000)
    content = text.encode()
    output = tmp_path / "c.memlens"
    if how == "stdin":
        done = subprocess.run([*MEMLENS, "import", "-", "-q", "-o", output], input=content, capture_output=True)
        assert done.returncode == 0, done.stderr
    else:
        path = tmp_path / f"a.{how}"
        if how in ("zst", "lz4"):
            with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), {"zst": "zstd"}.get(how, how)) as stream:
                stream.write(content)
        else:
            path.write_bytes({"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[how](content))
        imported(tmp_path / f"a.{how}", output)
    assert accesses(memlens.open(output)) == expected_of(text)


def test_several_files_are_several_processes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("==11== Command: ./left -x\nI  40,4\n L 10,4\n")
    (tmp_path / "b").write_text("==12== Command: ./right\nI  80,4\n S 20,8\n")
    capture = imported([tmp_path / "a", tmp_path / "b"], tmp_path / "c.memlens")
    rows = {row["process"]: row for row in capture.table("processes").to_pylist()}
    assert [(rows[n]["pid"], rows[n]["name"]) for n in (1, 2)] == [(11, "left"), (12, "right")]
    assert accesses(capture, process=1) == [(0x40, 0x10, 4, "load")]
    assert accesses(capture, process=2) == [(0x80, 0x20, 8, "store")]


def test_processes_in_one_file_are_told_as_a_defect(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("==11== one\n L 10,4\n==12== two\n L 20,4\n")
    capture = imported(tmp_path / "a", tmp_path / "c.memlens")
    assert any("2 processes wrote into one file" in note for note in capture.quality.notes)


# ---- errors ---------------------------------------------------------------------------------

BAD_LINES = {
    "a letter": " X 10,4",
    "no size": " L 10",
    "no number": " L 10,",
    "size 0": " S 10,0",
    "a giant": " L 10,99999999",
    "not hex": " L 1g,4",
    "65 bits": " L 1ffffffffffffffff,4",
    "no blank": "L 10,4",
    "more": " L 10,4 x",
    "prose": "hello world",
    "bytes": "\x01\x02",
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_malformed_line_is_named_and_nothing_is_left(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.trace").write_text(f" L 10,4\n{line}\n L 20,4\n")
    done = run_memlens("import", tmp_path / "a.trace", "-o", tmp_path / "c.memlens")
    assert done.returncode == TraceError.exit_status
    assert f"{tmp_path / 'a.trace'}, line 2: expected `I  ADDRESS,SIZE`" in done.stderr
    assert f"found {line!r}" in done.stderr and "--skip-malformed" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "c.memlens").exists()
    capture = imported(tmp_path / "a.trace", tmp_path / "d.memlens", skip_malformed=True)
    assert [access[1] for access in accesses(capture)] == [0x10, 0x20]
    assert not capture.quality.exact and capture.quality.truncated
    assert any("1 of 3 lines could not be read" in note for note in capture.quality.notes)


def test_a_trace_that_is_cut_in_a_line_says_which(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text(" L 10,4\n L 2")
    with pytest.raises(TraceError, match="line 2: expected"):
        imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    (tmp_path / "b.trace").write_text(" L 10,4\n L 20,4")
    capture = imported(tmp_path / "b.trace", tmp_path / "d.memlens")
    assert len(accesses(capture)) == 2 and any("no newline" in note for note in capture.quality.notes)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text(" L 10,4\n" + "x" * 3_000_000 + "\n L 20,4\n")
    with pytest.raises(TraceError, match="line 2: expected a line of a text trace: at most 65536 bytes"):
        imported(tmp_path / "a.trace", tmp_path / "c.memlens")
    capture = imported(tmp_path / "a.trace", tmp_path / "d.memlens", skip_malformed=True)
    assert [access[1] for access in accesses(capture)] == [0x10, 0x20]


CONTENTS = {
    "empty": (b"", "is empty"),
    "junk": (bytes(range(256)) * 40, "in none of the formats lackey, memgaze, drmemtrace, ptwrite"),
    "prose": (b"Dear reader,\nthis is no trace.\n", "it begins with 'Dear reader,'"),
    "cut gzip": (gzip.compress(os.urandom(4000))[:-900], "is cut short: its gzip stream has no end"),
    "cut xz": (lzma.compress(os.urandom(4000))[:-900], "is cut short: its xz stream has no end"),
    "damaged gzip": (b"\x1f\x8b\x08" + b"\x00" * 7 + b"\xff" * 200, "is damaged"),
    "cut zstd": (b"\x28\xb5\x2f\xfd\x04\x58", "cannot read"),
    "zip of nothing": (b"PK\x05\x06" + b"\0" * 18, "is empty"),
    "cut zip": (b"PK\x03\x04" + b"\0" * 30, "is damaged"),
    "snappy": (b"\xff\x06\x00\x00sNaPpY\x00\x05", "compressed with snappy"),
}


@pytest.mark.parametrize(("content", "said"), CONTENTS.values(), ids=CONTENTS.keys())
def test_files_that_are_no_traces_are_refused_with_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a").write_bytes(content)
    done = run_memlens("import", tmp_path / "a", "-o", tmp_path / "c.memlens")
    assert done.returncode == TraceError.exit_status, done.stderr
    assert said in done.stderr and str(tmp_path / "a") in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "c.memlens").exists()


def test_wrong_format_missing_file_directory_and_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" L 10,4\n")
    (tmp_path / "long").write_text(" L 10,4\n" * 9)
    output = tmp_path / "c.memlens"
    with pytest.raises(TraceError, match="line 1: expected `INSTRUCTION ADDRESS CPU"):
        imported(tmp_path / "a", output, format_name="memgaze")
    with pytest.raises(TraceError, match="byte 0 of its content: a drmemtrace file begins with a header"):
        imported(tmp_path / "long", output, format_name="drmemtrace")
    with pytest.raises(TraceError, match="8 bytes of content: less than the header"):
        imported(tmp_path / "a", output, format_name="drmemtrace")
    with pytest.raises(TraceError, match=r"is not a perf\.data"):
        imported(tmp_path / "a", output, format_name="ptwrite")
    with pytest.raises(TraceError, match="no such file"):
        imported(tmp_path / "none", output)
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceError, match="a directory without a trace"):
        imported(tmp_path / "folder", output)
    with pytest.raises(TraceError, match="cannot read /proc/self/mem"):
        imported(Path("/proc/self/mem"), output)
    (tmp_path / "m").write_text("0x1 0x2 0 1.5 0\n")
    with pytest.raises(TraceError, match="different formats: lackey, memgaze"):
        imported([tmp_path / "a", tmp_path / "m"], output)
    with pytest.raises(UsageError, match="--period does not apply"):
        imported(tmp_path / "a", output, period=5)
    with pytest.raises(TraceError, match="cannot be read as a 64-bit ELF"):
        imported(tmp_path / "a", output, modules=((str(tmp_path / "a"), 0),))
    assert not output.exists()


def test_an_existing_capture_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" L 10,4\n")
    output = tmp_path / "c.memlens"
    imported(tmp_path / "a", output)
    with pytest.raises(OutputError, match="exists already"):
        imported(tmp_path / "a", output)
    assert accesses(memlens.open(output)) == [(0, 0x10, 4, "load")]
    (tmp_path / "bad").write_text("")
    done = run_memlens("import", "--force", tmp_path / "bad", "-o", output)
    assert done.returncode == TraceError.exit_status and output.exists()  # it is looked at before anything is replaced
    (tmp_path / "bad").write_text(" L 10,4\n" * 300_000 + " L\n")
    done = run_memlens("import", "--force", tmp_path / "bad", "-o", output)
    assert done.returncode == TraceError.exit_status and "line 300001" in done.stderr
    assert accesses(memlens.open(output)) == [(0, 0x10, 4, "load")]  # it was put back
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    done = run_memlens("import", "--force", "-q", tmp_path / "a", "-o", output)
    assert done.returncode == 0 and done.stdout == ""


@needs_root
@pytest.mark.parametrize("size", ["64k", "1m"])
def test_a_full_disk_is_told_and_the_unfinished_capture_removed(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    source = random.Random(1)
    lines = "".join(f"I  {0x401000 + i % 64:x},4\n L {source.getrandbits(64):x},8\n" for i in range(400_000))
    (tmp_path / "a").write_text(lines)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        done = run_memlens("import", tmp_path / "a", "-o", disk / "c.memlens")
        left = list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == OutputError.exit_status, done.stderr
    assert "no space left on device" in done.stderr.lower() and "-o" in done.stderr and left == []


MEASURE = """
import resource, sys
from pathlib import Path
from memlens.importing.formats import import_trace
import_trace([sys.argv[1]], Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    block = long_trace(30_000)
    peaks = []
    for repeats in (4, 40):  # 3 MB and 30 MB
        source = tmp_path / f"{repeats}.trace"
        with source.open("w") as file:
            for _ in range(repeats):
                file.write(block)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, source, tmp_path / f"{repeats}.memlens"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 24_000, peaks  # KiB; the trace grew by 27 MB, its accesses by 1.4 million


def test_imported_captures_can_be_compared_asked_and_exported(tmp_path: Path) -> None:
    for name, lines in (("a", 500), ("b", 800)):
        (tmp_path / name).write_text(long_trace(lines))
        imported(tmp_path / name, tmp_path / f"{name}.memlens")
    assert run_memlens("diff", tmp_path / "a.memlens", tmp_path / "b.memlens").returncode == 0
    asked = run_memlens("query", tmp_path / "a.memlens", "SELECT count(*) AS n FROM accesses")
    assert str(len(expected_of(long_trace(500)))) in asked.stdout
    done = run_memlens("export", tmp_path / "a.memlens", "--tables", "windows,sites", "-o", tmp_path / "out")
    assert done.returncode == 0 and (tmp_path / "out" / "windows.csv").exists()


def test_doctor_and_help_name_every_format() -> None:
    import json

    from memlens.importing.formats import formats

    names = [one.name for one in formats()]
    assert names == ["lackey", "memgaze", "drmemtrace", "ptwrite"]  # in the order in which they are asked
    state = json.loads(run_memlens("doctor", "--json").stdout)
    assert [entry["format"] for entry in state["imports"]] == names
    shown = run_memlens("import", "--help").stdout
    assert all(f"  {name} " in shown for name in names)


def test_the_importer_signs_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" L 10,4\n")
    imported(tmp_path / "a", tmp_path / "c.memlens")
    reader = _core.ChunkReader(str(tmp_path / "c.memlens" / "records-recorder.mlc"))
    assert reader.file_header["writer"] == 3


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("options", [["-v"], ["--time-stamp=yes"], ["-v", "--time-stamp=yes", "--trace-signals=yes"]])
def test_logs_with_valgrinds_own_lines_come_through_access_by_access(tmp_path: Path, options: list[str]) -> None:
    log = tmp_path / "true.log"
    subprocess.run(
        ["valgrind", "--tool=lackey", "--trace-mem=yes", *options, f"--log-file={log}", "/bin/true"],
        check=True,
        timeout=120,
    )
    assert accesses(imported(log, tmp_path / "c.memlens")) == expected_of(log.read_text())


def test_a_log_whose_beginning_is_all_valgrinds_own_is_recognised(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    own = "".join(f"--17-- option {number}\n" for number in range(20_000))
    log.write_text(f"==17== Lackey, an example Valgrind tool\n{own}I  00001000,3\n L 00002000,8\n")
    assert accesses(imported(log, tmp_path / "c.memlens")) == [(0x1000, 0x2000, 8, "load")]
