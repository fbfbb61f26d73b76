"""The chunk file: framing, checksums, damage, growth. Every byte is distrusted."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from builders import CaptureBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memlens
from memlens import _core
from memlens.capture.store.layouts import Packer, layouts, records_with_tails
from memlens.errors import CaptureError, CaptureVersionError


@given(st.binary(max_size=200) | st.binary(min_size=1000, max_size=5000))
def test_checksum_equals_the_reference_xxh64(data: bytes) -> None:
    assert _core.checksum(data) == xxhash.xxh64(data).intdigest()


def test_layouts_have_no_gaps_and_unique_kinds() -> None:
    kinds = [layout.kind for layout in layouts().values()]
    assert len(set(kinds)) == len(kinds)
    for layout in layouts().values():
        at = 0
        for field in layout.fields:
            assert field.offset == at, f"{layout.name}.{field.name} leaves a gap"
            at += np.dtype(field.code).itemsize
        assert at == layout.record_bytes and at % 8 == 0


def write_chunks(path: Path, payloads: list[bytes], *, kind: int = 900, level: int = 1) -> list[int]:
    """Returns the file's size after each chunk."""
    writer = _core.ChunkWriter(str(path), level=level)
    sizes = []
    for payload in payloads:
        assert writer.append(kind, payload, record_count=1) == 0
        sizes.append(writer.bytes)
    writer.close()
    return sizes


def read_chunks(path: Path) -> tuple[list[bytes | None], dict[str, int]]:
    reader = _core.ChunkReader(str(path))
    reader.refresh()
    return [reader.payload(i) for i in range(reader.count)], reader.damage


PAYLOADS = st.lists(st.binary(max_size=300) | st.binary(min_size=3, max_size=3).map(lambda b: b * 700), max_size=12)


@given(PAYLOADS, st.integers(0, 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path: Path, payloads: list[bytes], level: int) -> None:
    path = tmp_path / "f.mlc"
    path.unlink(missing_ok=True)
    write_chunks(path, payloads, level=level)
    got, damage = read_chunks(path)
    assert got == payloads
    assert not any(damage.values())


def test_a_cut_at_any_byte_gives_every_whole_chunk_before_it(tmp_path: Path) -> None:
    payloads = [bytes([i]) * (40 * i + 3) for i in range(8)]
    path = tmp_path / "f.mlc"
    sizes = write_chunks(path, payloads)
    content = path.read_bytes()
    cut = tmp_path / "cut.mlc"
    for length in range(64, len(content) + 1):
        cut.write_bytes(content[:length])
        got, damage = read_chunks(cut)
        whole = sum(1 for size in sizes if size <= length)
        assert got == payloads[:whole], f"cut at {length}"
        assert damage["torn_tail_bytes"] == length - ([64, *sizes][whole])


def test_a_flipped_bit_costs_one_chunk_and_is_reported(tmp_path: Path) -> None:
    payloads = [os.urandom(64 + 8 * i) for i in range(6)]
    path = tmp_path / "f.mlc"
    sizes = write_chunks(path, payloads)
    content = path.read_bytes()
    damaged = tmp_path / "d.mlc"
    for position in range(64, len(content)):
        chunk = next(i for i, size in enumerate(sizes) if position < size)
        flipped = bytearray(content)
        flipped[position] ^= 1 << (position % 8)
        damaged.write_bytes(flipped)
        got, damage = read_chunks(damaged)
        expected = [p for i, p in enumerate(payloads) if i != chunk]
        sound = [p for p in got if p is not None]
        if sound == payloads:  # the bit was in the padding, which nothing protects or uses
            continue
        assert sound == expected
        assert any(damage.values())


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "f.mlc"
    payloads = [b"a" * 100, b"b" * 1000, b"c" * 10]
    write_chunks(path, payloads)
    content = path.read_bytes()
    growing = tmp_path / "g.mlc"
    growing.write_bytes(content[:64])
    reader = _core.ChunkReader(str(growing))
    seen: list[bytes] = []
    for end in range(65, len(content) + 1, 7):
        growing.write_bytes(content[:end])
        known = reader.count
        reader.refresh()
        seen.extend(reader.payload(i) for i in range(known, reader.count))
    growing.write_bytes(content)
    known = reader.count
    reader.refresh()
    seen.extend(reader.payload(i) for i in range(known, reader.count))
    assert seen == payloads
    assert not any(reader.damage.values())


def test_a_length_beyond_the_limit_is_damage_not_an_allocation(tmp_path: Path) -> None:
    path = tmp_path / "f.mlc"
    write_chunks(path, [b"x" * 50])
    content = bytearray(path.read_bytes())
    content[64 + 12 : 64 + 16] = struct.pack("<I", 0xFFFFFFF0)
    content[64 + 72 : 64 + 80] = struct.pack("<Q", _core.checksum(bytes(content[64 : 64 + 72])))
    path.write_bytes(content)
    got, damage = read_chunks(path)
    assert got == [] and damage["torn_tail_bytes"] > 0


@given(st.binary(max_size=400))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_never_crash_the_reader(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "n.mlc"
    path.unlink(missing_ok=True)
    write_chunks(path, [b"good" * 20])
    with path.open("ab") as file:
        file.write(noise)
    got, _ = read_chunks(path)
    assert got[0] == b"good" * 20


@given(st.binary(max_size=300))
def test_records_with_tails_never_read_past_the_end(noise: bytes) -> None:
    for name in ("string", "stack", "window", "pinning", "stack_dump"):
        for _, tail in records_with_tails(layouts()[name], noise):
            assert len(tail) <= len(noise)


def test_unknown_kinds_and_newer_record_versions_are_skipped(tmp_path: Path) -> None:
    path = CaptureBuilder().event(1, "exec", name="x").write(tmp_path / "c.memlens")
    writer = _core.ChunkWriter(str(path / "records-other.mlc"))
    writer.append(60000, b"future", record_count=1)
    writer.close()
    capture = memlens.open(path)
    assert capture.kinds()["kind 60000"] == 1
    assert capture.table("processes").num_rows == 1


def test_packer_refuses_unknown_fields() -> None:
    with pytest.raises(TypeError, match="no field"):
        Packer("fault").pack(nonsense=1)


# ---- captures as directories ---------------------------------------------------------


def test_missing_foreign_and_damaged_captures_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no capture at"):
        memlens.open(tmp_path / "nothing.memlens")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(CaptureError, match="is a file"):
        memlens.open(file)
    with pytest.raises(CaptureError, match=r"no meta\.json"):
        memlens.open(tmp_path)
    broken = tmp_path / "broken.memlens"
    broken.mkdir()
    (broken / "meta.json").write_text("{")
    with pytest.raises(CaptureError, match="damaged"):
        memlens.open(broken)
    (broken / "meta.json").write_text("[1]")
    with pytest.raises(CaptureError, match="not a memlens"):
        memlens.open(broken)
    capture = CaptureBuilder().event(1, "exec").write(tmp_path / "c.memlens")
    (capture / "records-recorder.mlc").write_bytes(b"\x7fELF" + b"\0" * 100)
    with pytest.raises(CaptureError, match="not a memlens record file"):
        memlens.open(capture)
    (capture / "records-recorder.mlc").unlink()
    with pytest.raises(CaptureError, match="no record file"):
        memlens.open(capture)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    capture = CaptureBuilder().event(1, "exec").write(tmp_path / "c.memlens")
    meta = json.loads((capture / "meta.json").read_text())
    meta["format_version"] = 99
    (capture / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(CaptureVersionError, match=r"format 99; this build reads 1"):
        memlens.open(capture)
    meta["format_version"] = 1
    (capture / "meta.json").write_text(json.dumps(meta))
    content = bytearray((capture / "records-recorder.mlc").read_bytes())
    content[8:12] = struct.pack("<I", 98)
    content[56:64] = struct.pack("<Q", _core.checksum(bytes(content[:56])))
    (capture / "records-recorder.mlc").write_bytes(content)
    with pytest.raises(CaptureVersionError, match="format 98"):
        memlens.open(capture)


def test_a_cut_capture_says_what_is_missing(tmp_path: Path) -> None:
    builder = CaptureBuilder().event(1, "exec")
    for page in range(3000):
        builder.fault(100 + page, 10 + page)
    path = builder.write(tmp_path / "c.memlens", chunk_records=500)
    file = path / "records-recorder.mlc"
    file.write_bytes(file.read_bytes()[:-100])
    capture = memlens.open(path)
    assert capture.table("fault_records").num_rows == 2500
    assert capture.quality.truncated and not capture.quality.exact
    assert "unfinished chunk" in " ".join(capture.quality.notes)


def test_follow_gives_chunks_as_they_come_and_ends_with_the_recording(tmp_path: Path) -> None:
    path = CaptureBuilder().event(1, "exec").fault(5, 1).write(tmp_path / "c.memlens", state="recording")
    capture = memlens.open(path)
    stream = capture.follow("fault", poll_s=0.01)
    assert next(stream).num_rows == 1
    second = CaptureBuilder().fault(6, 2).fault(7, 3).write(tmp_path / "d.memlens")
    shutil.copy(second / "records-recorder.mlc", path / "records-more.mlc")
    assert next(stream).num_rows == 2
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "state": "complete"}))
    assert list(stream) == []
    assert capture.complete


def test_batches_give_names_for_enums_and_strings(tmp_path: Path) -> None:
    capture = (
        CaptureBuilder()
        .event(5, "exec", name="prog")
        .mapping(6, 1, 2, path="/lib/x.so", inode=7)
        .open(tmp_path / "c.memlens")
    )
    (events,) = capture.batches("process_event")
    assert events.column("operation").to_pylist() == ["exec"]
    assert events.column("name").to_pylist() == ["prog"]
    assert capture.table("mappings").column("path").to_pylist() == ["/lib/x.so"]
    assert capture.table("timeline").num_rows == 0  # an empty kind has its columns all the same
    assert "metric" in capture.table("timeline").column_names


@pytest.mark.parametrize(
    "version", sorted((Path(__file__).parent.parent / "captures").glob("*.memlens")), ids=lambda p: p.name
)
def test_captures_of_every_format_version_stay_readable(version: Path) -> None:
    capture = memlens.open(version)
    expected = json.loads((version.parent / f"{version.stem}.expected.json").read_text())
    assert capture.kinds() == expected["kinds"]
    classes = capture.table("faults").group_by("class").aggregate([("time_ns", "count")])
    got = dict(
        zip(map(str, classes.column("class").to_pylist()), classes.column("time_ns_count").to_pylist(), strict=True)
    )
    assert got == expected["classes"]
    assert [row["name"] for row in capture.table("processes").to_pylist()] == expected["processes"]
    if "heap_objects" in expected:
        result = memlens.analyses.run("objects", capture)
        assert capture.table("objects").column("kind").to_pylist().count("heap") == expected["heap_objects"]
        assert result.figures["allocated_bytes"] == expected["allocated_bytes"]
        assert result.tables["by_site"].column("function").to_pylist() == expected["sites"]
        assert capture.table("regions").column("name").to_pylist() == expected["regions"]


def test_side_tables_of_another_version_are_made_anew_and_damaged_ones_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = CaptureBuilder().event(1, "fork").event(2, "exec", name="p").fault(10, 200).write(tmp_path / "c.memlens")
    parquet.write_table(pa.table({"strange": [1]}), path / "sites.parquet")
    parquet.write_table(pa.table({"strange": [1]}), path / "processes.parquet")
    capture = memlens.open(path)
    assert capture.table("faults").num_rows == 1
    assert capture.table("processes").column("name").to_pylist() == ["p"]
    # A capture without a list of its files: nothing says whether such a table was ever ours.
    for name, table in (("sites", "faults"), ("threads", "threads")):
        (path / f"{name}.parquet").write_bytes(b"not parquet")
        with pytest.raises(CaptureError, match=rf"{name}\.parquet is damaged") as refused:
            memlens.open(path).table(table)
        assert "remove it" in str(refused.value.hint)
        (path / f"{name}.parquet").unlink()
        assert memlens.open(path).table(table).num_rows == 1
