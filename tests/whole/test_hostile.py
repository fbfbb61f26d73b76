"""Captures, names and files that were made to harm: each attack of issue 23, items 13 to 16, in small."""

from __future__ import annotations

import gzip
import json
import os
import pty
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from conftest import MEMLENS, ROOT, needs_root, run_memlens

import memlens
from memlens.capture.store.layouts import layouts
from memlens.errors import CaptureError, TraceError
from memlens.importing.formats import import_trace
from memlens.plain_text import plain

sys.path.insert(0, str(ROOT / "benchmarks"))

from attacking.chunk_files import read_chunk_file, write_chunk_file
from attacking.forked import raw_control

KEPT = ROOT / "tests" / "captures" / "objects.memlens"
OSC = "\x1b]52;c;cHduZWQ=\x07"


def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "c.memlens"))


def with_meta(capture: Path, **fields: Any) -> Path:
    meta = json.loads((capture / "meta.json").read_text())
    (capture / "meta.json").write_text(json.dumps(meta | fields))
    return capture


def limited(*arguments: str | Path, most_bytes: int = 6 << 30, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A command whose address space ends where a bomb would begin."""
    return subprocess.run(
        [*MEMLENS, *map(str, arguments)], capture_output=True, timeout=120, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes)), **options,
    )  # fmt: skip


# ---- item 13: sizes that a capture claims -------------------------------------------------------------


def test_faults_of_impossible_pages_take_no_memory(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "exec", name="p").mapping(2, 0, 1 << 35)
    for number in range(2000):
        builder.fault(10 + number, number << 18, after=30 if number % 2 else 38)
    capture = builder.open(tmp_path / "c.memlens")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = capture.table("faults")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 400 << 10
    assert set(table.column("span_bytes").to_pylist()) == {4096, 1 << 30}
    assert sum(table.column("new_bytes").to_pylist()) == 1000 * (1 << 30) + 1000 * 4096


def test_a_look_that_claims_the_whole_address_space_is_bounded(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "exec", name="p").mapping(2, 0, 1 << 35)
    for number in range(3):
        builder.add("residency", begin_ns=5, end_ns=2**64 - 1 - number, address=4096, bytes=2**64 - 1, scan_us=0)
    capture = builder.open(tmp_path / "c.memlens")
    assert capture.table("placed").num_rows <= 3
    assert capture.replay.engine.unread_look_pages > 1 << 50


def test_shared_memory_of_any_size_before_the_recording_is_a_range(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "exec", name="p")
    builder.meta["shared_memory_before"] = [
        {"device": [0, 5], "inode": 77, "placed": [[1 << 40, 1 << 61], [0, 4096 * 8], [4096 * 4, 4096 * 8]]}
    ]
    builder.add("mapping", time_ns=2, address=0x100000, bytes=4096 * 64, path=builder.string("/dev/shm/x"), inode=77,
                device_major=0, device_minor=5, shared=1, protection=3)  # fmt: skip
    for number, page in enumerate((0, 11, 12, 63)):
        builder.fault(10 + number, 0x100 + page)
    table = builder.open(tmp_path / "c.memlens").table("faults")
    assert table.column("class").to_pylist() == ["file", "file", "first", "first"]


def test_sites_that_no_table_describes_are_refused(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "exec", name="p")
    builder.add("traced_module", image=1, first_site=1 << 16, sites=1 << 31, module=builder.string("ab"))
    capture = builder.open(tmp_path / "c.memlens")
    with pytest.raises(CaptureError, match="claim 2,147,483,648 sites"):
        _ = capture.trace_sites.ranges


def with_field(capture: Path, kind: str, field: str, value: int) -> Path:
    """All records of a kind, which is of one length, with a number of eight bytes changed; checksums are right."""
    layout = layouts()[kind]
    at = layout.dtype().fields[field][1]
    file = read_chunk_file(capture / "records-recorder.mlc")
    for chunk in file.chunks:
        if chunk.header["kind"] == layout.kind:
            payload = bytearray(chunk.payload)
            for record in range(at, len(payload), layout.record_bytes):
                payload[record : record + 8] = value.to_bytes(8, "little")
            chunk.payload = bytes(payload)
    write_chunk_file(capture / "records-recorder.mlc", file)
    for table in capture.glob("*.parquet"):
        table.unlink()
    meta = json.loads((capture / "meta.json").read_text())
    (capture / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k not in ("files", "checksum")}))
    return capture


@pytest.mark.parametrize(
    ("golden", "kind", "field", "status"),
    [("faults", "mapping", "inode", 0), ("count", "region_time", "counted_self_ns", 65)],
)
def test_numbers_beyond_63_bits_are_no_bugs(tmp_path: Path, golden: str, kind: str, field: str, status: int) -> None:
    capture = Path(shutil.copytree(ROOT / "tests" / "goldens" / f"{golden}.memlens", tmp_path / "c.memlens"))
    done = run_memlens("report", with_field(capture, kind, field, (1 << 63) + 5))
    assert done.returncode == status, done.stderr
    assert not status or "bandwidth: its records claim" in done.stderr


@pytest.mark.parametrize("name", ["meta.json", "records-recorder.mlc", "sites.parquet"])
@pytest.mark.parametrize("how", ["pipe", "device", "directory", "endless"])
def test_files_that_block_or_have_no_end_are_refused(tmp_path: Path, name: str, how: str) -> None:
    capture = copy(tmp_path)
    file = capture / name
    file.unlink()
    if how == "pipe":
        os.mkfifo(file)
    elif how == "device":
        file.symlink_to("/dev/zero")
    elif how == "directory":
        file.mkdir()
    else:
        with open(file, "wb") as made:
            made.truncate(1 << 40)
    done = limited("report", capture)
    assert done.returncode == 65, done.stderr
    assert name.encode() in done.stderr and b"Traceback" not in done.stderr


def test_files_that_a_capture_names_as_code_are_opened_only_when_regular(tmp_path: Path) -> None:
    from memlens.capture.model.sections import read_elf

    os.mkfifo(tmp_path / "pipe")
    assert read_elf(str(tmp_path / "pipe")) is None and read_elf("/dev/zero") is None
    assert read_elf(sys.executable) is not None


def test_a_link_to_a_plain_file_is_read(tmp_path: Path) -> None:
    capture = copy(tmp_path)
    (capture / "meta.json").rename(tmp_path / "elsewhere")
    (capture / "meta.json").symlink_to(tmp_path / "elsewhere")
    assert memlens.open(capture).complete


# ---- item 14: damaged metadata ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"machine": {"page_bytes": "4096"}}, "machine.page_bytes"),
        ({"machine": {"page_bytes": 4097}}, "a power of two"),
        ({"machine": None}, "the field machine is null; expected an object"),
        ({"machine": {"numa_nodes": [{"node": 0}]}}, r"machine.numa_nodes\[0\].bytes"),
        ({"machine": {"caches": [{"level": "x"}]}}, "machine.caches"),
        ({"collectors": {"faults": 7}}, "collectors.faults is 7"),
        ({"rusage": {"user_s": [None]}}, "rusage.user_s"),
        ({"quality": {"notes": [1]}}, r"quality.notes\[0\] is 1; expected a text"),
        ({"state": "done"}, "one of recording, complete, standalone"),
        ({"begin_ns": 2**64}, "begin_ns"),
        ({"begin_ns": 9, "end_ns": 5}, "end_ns is 5; expected at least begin_ns, 9"),
        ({"wall_s": 1e300}, "wall_s"),
        ({"command": "ls"}, "command"),
        ({"shared_memory_before": [{"device": [1], "inode": 1, "placed": []}]}, "device"),
        ({"future": [[[1]] * 3, {"x": 10**50}]}, "future"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CaptureError, match=said) as error:
        memlens.open(with_meta(copy(tmp_path), **fields))
    assert "meta.json" in str(error.value) and error.value.hint


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    capture = memlens.open(with_meta(copy(tmp_path), files={"x.mlc": {"chunks": 3, "bytes": 77}}, **{"new": [1, "x"]}))
    assert capture.meta["files"]["x.mlc"]["bytes"] == 77


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{", b"[" * 200_000, b'{"format_version": 1, "x": ' + b"[" * 90 + b"]" * 90 + b"}", b"\xff\xfe",
     b'{"format_version": 1, "wall_s": NaN}', b'{"format_version": ' + b"9" * 5000 + b"}", b'{"format_version": true}'],
    ids=["empty", "list", "cut", "deep", "nested", "bytes", "nan", "digits", "bool"],
)  # fmt: skip
def test_what_is_no_metadata_is_an_error_with_a_status(tmp_path: Path, raw: bytes) -> None:
    capture = copy(tmp_path)
    (capture / "meta.json").write_bytes(raw)
    done = run_memlens("report", capture)
    assert done.returncode in (65, 66) and "Traceback" not in done.stderr and "bug" not in done.stderr


def test_side_tables_of_wrong_types_are_refused_and_of_missing_columns_made_anew(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    capture = copy(tmp_path)
    table = parquet.read_table(capture / "processes.parquet")
    at = table.column_names.index("pid")
    parquet.write_table(table.set_column(at, "pid", pa.nulls(len(table), pa.string())), capture / "processes.parquet")
    with pytest.raises(CaptureError, match=r"processes.parquet: the column pid is string; expected uint32"):
        memlens.open(capture).table("processes")
    parquet.write_table(table.drop_columns(["pid"]), capture / "processes.parquet")
    assert "pid" in memlens.open(capture).table("processes").column_names
    bomb = pa.table(
        {
            name: pa.array([None] * (1 << 22), field.type)
            for name, field in zip(table.column_names, table.schema, strict=True)
        }
    )
    parquet.write_table(bomb, capture / "processes.parquet")
    assert (capture / "processes.parquet").stat().st_size < 1 << 17
    with pytest.raises(CaptureError, match=r"processes.parquet"):
        memlens.open(capture).table("processes")


def test_a_full_output_is_an_error_with_a_status() -> None:
    for arguments in (["report", KEPT], ["report", KEPT, "--json"], ["query", KEPT, "--tables"], ["--help"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*MEMLENS, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            73, "memlens: cannot write to standard output: no space left on device",
        )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["report"], ["query", "SELECT '\u2588\u0416'"], ["export", "-o", "-", "--tables", "sites"]]
)
def test_an_encoding_that_lacks_characters_replaces_them(arguments: list[str]) -> None:
    command = [*MEMLENS, arguments[0], str(KEPT), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, check=False)
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_a_page_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*MEMLENS, "report", str(KEPT), "--html", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


@needs_root
@pytest.mark.parametrize("command", ["html", "export", "import"])
def test_an_output_directory_that_may_not_be_searched(tmp_path: Path, command: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed: sudo apt-get install util-linux")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    (tmp_path / "t.log").write_text(" L 10,4\n")
    arguments: dict[str, list[str]] = {
        "html": ["report", str(KEPT), "--html", str(closed / "x" / "page.html")],
        "export": ["export", str(KEPT), "-o", str(closed / "x")],
        "import": ["import", str(tmp_path / "t.log"), "-o", str(closed / "x" / "c.memlens")],
    }
    # Root may search everything: without these two capabilities it is an owner like any other.
    bounded = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *MEMLENS]
    done = subprocess.run([*bounded, *arguments[command]], capture_output=True, text=True, check=False)
    assert done.returncode == 73 and "ermission denied" in done.stderr, done.stderr


def test_a_capture_that_is_deleted_while_it_is_read(tmp_path: Path) -> None:
    capture = memlens.open(copy(tmp_path))
    shutil.rmtree(tmp_path / "c.memlens")
    assert capture.table("processes").num_rows  # what is open is still read, and side tables are made anew
    assert capture.table("faults").num_rows
    with pytest.raises(CaptureError, match="there is no capture"):
        memlens.open(tmp_path / "c.memlens")


# ---- item 15: names that steer terminals and spreadsheets -----------------------------------------------


def test_plain_text_escapes_every_control_character_and_no_other() -> None:
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        shown = plain(character)
        assert raw_control(shown.encode()) is None
        if raw_control(character.encode()) is None and code not in (0x2028, 0x2029):
            assert shown == character


HOSTILE = (OSC, "\x1b[31mred", "\x9b2J", "\u202egnp.exe", "[bold red]x[/] [/]", "=1+1", "@SUM(1)", "a\rb", "<b>&amp;")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture whose every string is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    capture = Path(shutil.copytree(KEPT, folder / "c.memlens"))
    for table in capture.glob("*.parquet"):
        table.unlink()  # made anew from the records
    path = capture / "records-recorder.mlc"
    file = read_chunk_file(path)
    kind = layouts()["string"]
    number = 0
    for chunk in file.chunks:
        if chunk.header["kind"] != kind.kind:
            continue
        parts, at = [], 0
        while at + kind.record_bytes <= len(chunk.payload):
            record = bytearray(chunk.payload[at : at + kind.record_bytes])
            offset = next(field.offset for field in kind.fields if field.name == "tail_bytes")
            (length,) = struct.unpack_from("<I", record, offset)
            text = chunk.payload[at + kind.record_bytes :][:length]
            at += kind.record_bytes + length + (-length % 8)
            text = (
                HOSTILE[number % len(HOSTILE)].encode() + b"/" + text
                if not text.startswith(b"/")
                else text + HOSTILE[number % len(HOSTILE)].encode()
            )
            struct.pack_into("<I", record, offset, len(text))
            parts.append(bytes(record) + text + b"\0" * (-len(text) % 8))
            number += 1
        chunk.payload = b"".join(parts)
    write_chunk_file(path, file)
    return with_meta(
        capture, command=[OSC, "[/]", "\u202e"], quality={"notes": [OSC, "[/x]"], "incomplete": True, "stack": "fp"}
    )


@pytest.mark.parametrize(
    "arguments",
    [["report"], ["report", "--json"], ["query", "SELECT * FROM strings"], ["query", "SELECT * FROM processes"], ["query", "SELECT * FROM sites"],
     ["query", f"SELECT * FROM nothing_{OSC}"], ["zoom"], ["diff", str(KEPT)], ["suggest"], ["query", "--tables"]],
    ids=lambda value: " ".join(value)[:24].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_no_command_prints_a_raw_control_character(hostile: Path, arguments: list[str]) -> None:
    done = subprocess.run([*MEMLENS, arguments[0], str(hostile), *arguments[1:]], capture_output=True, check=False)
    assert b"bug in memlens" not in done.stderr and b"Traceback" not in done.stderr
    assert raw_control(done.stdout) is None and raw_control(done.stderr) is None


def test_on_a_terminal_only_our_own_sequences_are_sent(hostile: Path) -> None:
    main, end = pty.openpty()
    process = subprocess.Popen(
        [*MEMLENS, "report", str(hostile)], stdout=end, stderr=end, env=os.environ | {"TERM": "xterm-256color"}
    )
    os.close(end)
    shown = b""
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait() == 0
    assert b"\x1b[" in shown  # colours of our own
    assert b"\x1b]" not in shown and b"\x1b[31mred" not in shown and "\u202e".encode() not in shown
    assert rb"\x1b]52" in shown


def test_json_is_lossless(hostile: Path) -> None:
    done = run_memlens("report", hostile, "--json")
    assert json.loads(done.stdout)["meta"]["command"] == [OSC, "[/]", "\u202e"]
    rows = json.loads(run_memlens("query", hostile, "--json", "SELECT text FROM strings").stdout)
    assert any(OSC in row["text"] for row in rows)


def test_cells_of_csv_that_begin_a_formula_are_texts(hostile: Path) -> None:
    import csv
    import io

    done = run_memlens("export", hostile, "-o", "-", "--tables", "strings")
    texts = [row["text"] for row in csv.DictReader(io.StringIO(done.stdout, newline=""))]
    assert any(text.startswith("'=1+1") for text in texts) and any(text.startswith("'@SUM") for text in texts)
    assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r")) for text in texts)
    rows = run_memlens("query", hostile, "--json", "SELECT status FROM processes").stdout
    numbers = run_memlens("export", hostile, "-o", "-", "--tables", "processes").stdout
    assert "'" not in numbers.split("\n")[1].split(",")[0] and rows


# ---- item 16: imports ------------------------------------------------------------------------------------


def perf_data(claimed: int) -> bytes:
    """A perf.data of a few hundred bytes whose trace claims to have `claimed`."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from attacking.seeds import _perf_data

    content = bytearray(_perf_data())
    at = content.index(struct.pack("<IHH", 71, 0, 48))
    struct.pack_into("<Q", content, at + 8, claimed)
    return bytes(content)


@pytest.mark.parametrize("claimed", [1 << 51, (1 << 64) - 1, 1 << 63, 1 << 32])
def test_a_trace_is_no_longer_than_its_file(tmp_path: Path, claimed: int) -> None:
    (tmp_path / "perf.data").write_bytes(perf_data(claimed))
    outcome = import_trace([str(tmp_path / "perf.data")], tmp_path / "c.memlens")
    assert outcome.accesses > 0 and any("truncated" in note for note in outcome.notes)


def test_a_compressed_bomb_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "bomb.log").write_bytes(gzip.compress(b" L 10,4\n" * 10_000) + gzip.compress(b"\0" * (1 << 26)) * 48)
    done = limited("import", tmp_path / "bomb.log", "-o", tmp_path / "c.memlens", most_bytes=2 << 30)
    assert done.returncode == 74 and b"line 10001" in done.stderr


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memlens.importing import sources

    monkeypatch.setattr(sources, "PIPE_WAIT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="without a writer"):
        import_trace([str(tmp_path / "pipe")], tmp_path / "c.memlens")
