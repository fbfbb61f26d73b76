"""Delta streams of windows: encoder, decoder, tables, against the decoder that FORMAT.md prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CaptureBuilder, stream_of
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens import _core
from memlens.capture.store.layouts import Packer

Access = tuple[int, int, int, int]


def documented_decoder(name: str) -> Callable[..., list[Any]]:
    """As FORMAT.md has it."""
    text = (ROOT / "format" / "FORMAT.md").read_text()
    source = re.search(rf"```python\n(def {name}\(.*?)```", text, re.DOTALL)
    assert source is not None
    names: dict[str, Any] = {}
    exec(source[1], names)
    return names[name]  # type: ignore[no-any-return]


decode, decode_segments = documented_decoder("decode"), documented_decoder("decode_segments")


def native(stream: bytes, recorded: int, *, encoding: int = 2, batch: int = 1 << 18) -> list[Access] | None:
    """All accesses of one window; None when it is damaged."""
    payload = Packer("window").pack(stream, recorded=recorded, encoding=encoding, begin_ns=10, end_ns=10)
    reader = _core.AccessReader(payload, batch_accesses=batch)
    found: list[Access] = []
    while (part := reader.next()) is not None:
        assert 0 < len(part["row"]) <= batch
        rows = zip(*(part[n].tolist() for n in ("code", "address", "bytes", "operation")), strict=True)
        found.extend(rows)  # type: ignore[arg-type]
    return None if reader.damaged else found


numbers = st.one_of(
    st.integers(0, 63), st.integers(0, 2**14), st.integers(0, 2**47), st.integers(0, 2**64 - 1),
    st.integers(2**64 - 200, 2**64 - 1),
)  # fmt: skip
accesses = st.tuples(
    st.one_of(st.integers(0x401000, 0x401040), numbers), numbers,
    st.one_of(st.sampled_from([1, 2, 4, 8, 16, 31, 32, 64]), st.integers(0, 2**32 - 1)), st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(accesses, max_size=80), st.integers(1, 90))
def test_what_is_encoded_is_decoded_by_the_documented_and_the_native_decoder(trace: list[Access], batch: int) -> None:
    stream = stream_of(trace)
    assert decode(stream, len(trace), pc_delta=True) == trace
    assert native(stream, len(trace), batch=batch) == trace
    assert _core.is_sound_stream(stream, len(trace), 2)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 5000), st.integers(0, 2**32 - 1)), numbers,
            st.one_of(st.just(0), st.integers(1, 200), st.integers(1, 2**32 - 1)),
        ),
        max_size=80,
    ),
    st.integers(1, 90),
)  # fmt: skip
def test_site_streams_round_trip(trace: list[tuple[int, int, int]], batch: int) -> None:
    """Bytes 0: the site's table tells them, and the stream has none."""
    codes, addresses = (np.array([t[i] for t in trace], dtype=np.uint64) for i in (0, 1))
    n_bytes = np.array([t[2] for t in trace], dtype=np.uint32)
    stream = bytes(_core.encode_stream(codes, addresses, n_bytes, np.zeros(0, dtype=np.uint8)))
    found = decode(stream, len(trace), pc_delta=False)
    assert [(site, address, width or 0) for site, address, width, _ in found] == trace
    assert native(stream, len(trace), encoding=1, batch=batch) == [(*access, 0) for access in trace]
    assert _core.is_sound_stream(stream, len(trace), 1)


SEGMENTS = 5


def varint(value: int) -> bytes:
    found = b""
    while value >= 128:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


Segment = tuple[int, int, list[int]]
"""first site, form, words"""
HAS_VECTORS = "avx2" in Path("/proc/cpuinfo").read_text()


def segment_of(site: int, form: int, words: list[int]) -> Segment:
    if form == 1:
        words = [word if i % 2 == 0 else word % (2**32 - 1) + 1 for i, word in enumerate(words)]
        words = words[: len(words) // 2 * 2] or [7, 8]
    return site, form, words


def segment_stream(segments: list[Segment]) -> tuple[bytes, list[tuple[int, int, int]]]:
    """The native encoder's stream, the same with vectors and without, and what is in it."""
    columns = (
        np.array([s for s, _, _ in segments], dtype=np.uint64),
        np.array([len(w) for _, _, w in segments], dtype=np.uint8),
        np.array([f for _, f, _ in segments], dtype=np.uint8),
        np.array([word for _, _, part in segments for word in part], dtype=np.uint64),
    )
    stream = _core.encode_segments(*columns)
    if HAS_VECTORS:
        assert _core.encode_segments(*columns, by_vectors=True) == stream
    told = []
    for site, form, part in segments:
        if form == 1:
            told += [(site + i, part[2 * i], part[2 * i + 1]) for i in range(len(part) // 2)]
        else:
            told += [(site + i * (form == 0), word, 0) for i, word in enumerate(part)]
    return bytes(stream), told


segments = st.lists(
    st.builds(
        segment_of,
        st.one_of(st.integers(65536, 65550), st.integers(65536 + 1020, 65536 + 1030), st.integers(0, 2**32 - 32)),
        st.integers(0, 2),
        st.lists(st.one_of(st.sampled_from([0, 8, 16, 64]), numbers), min_size=1, max_size=31),
    ),
    max_size=40,
).flatmap(
    lambda some: (
        st.just(some)
        if not some
        else st.lists(st.tuples(st.sampled_from(some), st.sampled_from([1, 1, 1, 9, 40])), max_size=60).map(
            lambda runs: [segment for segment, times in runs for _ in range(times)]
        )
    )
)


@settings(max_examples=300, deadline=None)
@given(segments, st.integers(1, 90))
def test_segment_streams_round_trip(trace: list[Segment], batch: int) -> None:
    stream, told = segment_stream(trace)
    found = decode_segments(stream, len(told))
    assert [(site, address, width or 0) for site, address, width in found] == told
    assert native(stream, len(told), encoding=SEGMENTS, batch=batch) == [(*access, 0) for access in told]
    assert _core.is_sound_stream(stream, len(told), SEGMENTS)


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.binary(max_size=120), segments.map(lambda some: segment_stream(some)[0])),
    st.integers(0, 40), st.integers(0, 200), st.integers(0, 255), st.integers(1, 50),
)  # fmt: skip
def test_damaged_segment_streams_are_left_out(stream: bytes, recorded: int, at: int, byte: int, batch: int) -> None:
    if at < len(stream):
        stream = stream[:at] + bytes([byte]) + stream[at + 1 :]
    try:
        expected = decode_segments(stream, recorded)
    except (ValueError, IndexError):
        expected = None
    found = native(stream, recorded, encoding=SEGMENTS, batch=batch)
    assert (found is None) == (expected is None)
    assert _core.is_sound_stream(stream, recorded, SEGMENTS) == (expected is not None)
    if expected is not None and found is not None:
        assert [access[:3] for access in found] == [(site, address, width or 0) for site, address, width in expected]


def test_a_strided_loop_takes_a_few_bytes_however_long_it_is() -> None:
    """Its names are zeros, which are told by their number."""
    trace = [(65536, 0, [0x7F0000000000 + 8 * i, 0x7F1000000000 + 64 * i, 0x7F2000000000]) for i in range(1000)]
    stream, told = segment_stream(trace)
    assert len(stream) <= 80
    assert native(stream, len(told), encoding=SEGMENTS) == [(*access, 0) for access in told]


def test_zeros_between_other_names_are_told_by_their_number() -> None:
    """Of every length, at every place, first and last: what is cut out and what is not."""
    for before in range(0, 20):
        for zeros in (0, 1, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 40):
            trace = [(65536 + 2 * (i % 2), 0, [64 * i**3]) for i in range(before)]
            trace += [(65600, 0, [8 * i]) for i in range(zeros)]
            trace += [(65536 + 2 * (i % 2), 0, [64 * i**3]) for i in range(20 - before)]
            stream, told = segment_stream(trace)
            assert native(stream, len(told), encoding=SEGMENTS) == [(*access, 0) for access in told]
            assert [found[:2] for found in decode_segments(stream, len(told))] == [access[:2] for access in told]


def test_more_zeros_than_a_record_can_have_are_damage() -> None:
    """A few bytes may not ask for gigabytes."""
    front = bytes.fromhex("81801001 00".replace(" ", ""))  # a segment of one word, as expected
    for zeros, sound in ((2 * 32766, True), (2**21, False), (2**40, False), (2**63, False)):
        parts = bytes([len(front)]) + front + varint(zeros)
        stream = varint(2 * len(parts) + 1) + parts
        assert _core.is_sound_stream(stream, 1 + zeros // 2 if sound else 32768, SEGMENTS) == sound


def test_differences_of_more_than_32_bits_have_eight_bytes() -> None:
    edges = [0, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64 - 2**31, 2**64 - 2**31 - 1]
    trace = [(65536 + i % 2, 0, [(base + step) % 2**64] * 5) for base in edges for i, step in enumerate(edges)]
    stream, told = segment_stream(trace)
    assert native(stream, len(told), encoding=SEGMENTS) == [(*access, 0) for access in told]
    assert [found[:2] for found in decode_segments(stream, len(told))] == [access[:2] for access in told]


def test_more_segments_than_there_are_blocks_are_told_again() -> None:
    """3,000 of 1 to 31 words, some of which share an entry: the blocks are handed out several times over."""
    some = np.random.default_rng(3)
    trace = [
        (65536 + int(site), 0, [int(site) * 4096 + 8 * i + turn] * (1 + int(site) % 31))
        for turn in range(3)
        for i, site in enumerate(some.permutation(3000)[:1000])
    ]
    for order in (trace, sorted(trace), [segment for segment in trace[:1500] for _ in range(2)]):
        stream, told = segment_stream(order)
        assert native(stream, len(told), encoding=SEGMENTS) == [(*access, 0) for access in told]
        assert [found[:2] for found in decode_segments(stream, len(told))] == [access[:2] for access in told]


def test_strided_accesses_of_three_sites_take_two_bytes() -> None:
    codes = np.tile(np.array([65536, 65537, 65538], dtype=np.uint64), 1000)
    addresses = np.repeat(np.arange(1000, dtype=np.uint64) * np.uint64(8), 3) + np.tile(
        np.array([0x7F0000000000, 0x7F1000000000, 0x7F2000000000], dtype=np.uint64), 1000
    )
    none32, none8 = np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint8)
    stream = bytes(_core.encode_stream(codes, addresses, none32, none8))
    assert len(stream) <= 2 * 3000 + 40


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(max_size=120), st.lists(accesses, max_size=20).map(stream_of)), st.integers(0, 40),
       st.integers(0, 200), st.integers(0, 255), st.sampled_from([1, 2]), st.integers(1, 50))  # fmt: skip
def test_damaged_streams_are_left_out_exactly_when_the_documented_decoder_refuses_them(
    stream: bytes, recorded: int, at: int, byte: int, encoding: int, batch: int
) -> None:
    if at < len(stream):
        stream = stream[:at] + bytes([byte]) + stream[at + 1 :]
    try:
        expected = decode(stream, recorded, pc_delta=encoding == 2)
    except (ValueError, IndexError):
        expected = None
    found = native(stream, recorded, encoding=encoding, batch=batch)
    assert (found is None) == (expected is None)
    assert _core.is_sound_stream(stream, recorded, encoding) == (expected is not None)
    if expected is not None and encoding == 2:
        assert found == expected


def test_strided_accesses_of_one_instruction_take_three_bytes() -> None:
    trace = [(0x401000, 0x7F0000000000 + 16 * i, 8, 1) for i in range(1000)]
    assert len(stream_of(trace)) == 4 + 7 + 1 + 999 * 3


def test_more_entries_than_the_encoder_notes_are_cleared_between_windows(tmp_path: Path) -> None:
    """The cheap start of a window must not leave anything behind: the same trace gives the same bytes."""
    source = ROOT / "tests" / "native" / "stream_windows.c"
    import subprocess

    program = tmp_path / "stream_windows"
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            str(ROOT / "format"),
            "-o",
            str(program),
            str(source),
        ],
        check=True,
    )
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def windows_capture(tmp_path: Path) -> Any:
    builder = CaptureBuilder()
    one = [(0x1000, 0x10000 + 8 * i, 8, 1) for i in range(10)]
    two = [(0x1004, 0x20000 + 4 * i, 4, 2) for i in range(5)]
    builder.window(1000, one, executed=100, end_ns=1009, first_executed=0, region="solve")
    # One window in two records: 5 + 5 recorded of 5 + 45 executed.
    builder.window(2000, two, executed=5, first_executed=100)
    builder.window(2005, two, executed=45, first_executed=105)
    builder.window(3000, two, executed=20, first_executed=0, thread=101, process=2)
    builder.add(
        "window", 1, tail=b"\x80\x80", recorded=1, executed=10, encoding=2, thread=100, begin_ns=9000, end_ns=9000
    )
    return builder.open(tmp_path / "c.memlens")


def test_weights_are_those_of_whole_windows_also_when_written_in_parts(tmp_path: Path) -> None:
    capture = windows_capture(tmp_path)
    rows = capture.table("windows").to_pylist()
    by_begin = {row["begin_ns"]: row for row in rows}
    assert by_begin[1000]["weight"] == 10.0 and by_begin[1000]["region"] == "solve"
    assert by_begin[2000]["weight"] == by_begin[2005]["weight"] == 5.0
    assert by_begin[2000]["unit"] == by_begin[2005]["unit"] != by_begin[1000]["unit"]
    assert by_begin[3000]["weight"] == 4.0 and by_begin[3000]["process"] == 2
    assert by_begin[1000]["stream_bytes"] == len(stream_of([(0x1000, 0x10000 + 8 * i, 8, 1) for i in range(10)]))


def test_accesses_stream_with_interpolated_times_and_without_damaged_windows(tmp_path: Path) -> None:
    capture = windows_capture(tmp_path)
    batches = list(capture.accesses(batch_accesses=7))
    assert all(batch.num_rows <= 7 for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == 25 and capture.windows.damaged == 1
    first = [row for row in rows if row["pc"] == 0x1000]
    assert [row["time_ns"] for row in first] == list(range(1000, 1010))
    assert [row["address"] for row in first] == [0x10000 + 8 * i for i in range(10)]
    assert {row["operation"] for row in first} == {"load"} and {row["weight"] for row in first} == {10.0}
    others = [row for row in rows if row["process"] == 2]
    assert {(row["thread"], row["bytes"], row["operation"]) for row in others} == {(101, 4, "store")}
    assert sum(batch.num_rows for batch in capture.accesses(threads=[101])) == 5
    assert {row["window"] for b in capture.accesses(windows=[0]) for row in b.to_pylist()} == {0}


def test_query_and_export_have_accesses(tmp_path: Path) -> None:
    from memlens.capture.tables.sql import run_query
    from memlens.cli.export import exporters, write_table

    capture = windows_capture(tmp_path)
    table = run_query(capture, "SELECT thread, count(*) n, sum(weight) w FROM accesses GROUP BY thread ORDER BY thread")
    assert table.to_pylist() == [{"thread": 100, "n": 20, "w": 150.0}, {"thread": 101, "n": 5, "w": 20.0}]
    twice = run_query(capture, "SELECT (SELECT count(*) FROM accesses) a, (SELECT max(bytes) FROM accesses) b")
    assert twice.to_pylist() == [{"a": 25, "b": 8}]
    assert list(exporters())[:3] == ["csv", "json", "parquet"]
    for kind, exporter in exporters().items():
        with (tmp_path / kind).open("wb") as file:
            assert write_table(capture, "accesses", exporter, file) == 25
    import json

    assert len(json.loads((tmp_path / "json").read_text())) == 25


@pytest.mark.slow
def test_decoder_speed() -> None:
    """Not a promise of this machine: only that nothing is an order of magnitude off."""
    import time

    count = 4_000_000
    codes = np.full(count, 0x401000, dtype=np.uint64)
    addresses = np.arange(count, dtype=np.uint64) * np.uint64(8) + np.uint64(1 << 44)
    stream = bytes(_core.encode_stream(codes, addresses, np.full(count, 8, np.uint32), np.full(count, 1, np.uint8)))
    began = time.process_time()
    assert _core.is_sound_stream(stream, count, 2)
    assert count / (time.process_time() - began) > 20e6
