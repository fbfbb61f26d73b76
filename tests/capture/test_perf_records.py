"""native/perf decodes what perf writes: recordings of real hardware beside perf's own listing, and every field of a sample by its ABI."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from conftest import recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from memlens import _core
from memlens.errors import TraceError
from memlens.importing.perf_data import PerfData

LINE = re.compile(
    r"^\s*(?P<comm>.+?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?:\[(?P<cpu>\d+)\]\s+)?(?P<s>\d+)\.(?P<ns>\d{9}):\s+(?P<period>\d+)\s+(?P<event>\S+?):\s+(?P<rest>.*)$"
)
RECORDINGS = (
    "pebs-ivybridge/perf.data",
    "perfdata/perf.data.hybrid_topology",
    "perfdata/perf.data.i686-3.4",
    "perfdata/perf.data.lost_samples-4.4",
    "perfdata/perf.data.piped.header_features_aligned-6.12",
    "perfdata/perf.data.piped.target.throttled-3.4",
    "perfdata/perf.data.singleprocess-3.8",
)


def samples_of(path: Path) -> tuple[list[dict[str, Any]], int]:
    with open(path, "rb") as file:
        reader = _core.PerfFile(file.fileno())
        found = []
        while (sample := reader.next_sample()) is not None:
            found.append(sample)
        return found, reader.undecoded


@pytest.mark.parametrize("name", RECORDINGS)
def test_samples_are_those_that_perf_lists(name: str) -> None:
    folder, _, file = name.partition("/")
    path = recordings(folder) / file
    listed = []
    for line in Path(f"{path}.script.txt").read_text().splitlines():
        found = LINE.match(line)
        if found is None:
            assert line.startswith("#") or not line.strip(), line
            continue
        words = found["rest"].split()
        entry = [
            1_000_000_000 * int(found["s"]) + int(found["ns"]), int(found["pid"]), int(found["tid"]), int(found["period"]),
            int(words[-1], 16),
        ]  # fmt: skip
        if folder == "pebs-ivybridge":
            entry += [int(words[0], 16), int(words[1], 16), int(words[-2])]
        listed.append(tuple(entry))
    samples, undecoded = samples_of(path)
    keys = ["time_ns", "pid", "tid", "period", "ip"]
    if folder == "pebs-ivybridge":
        keys += ["address", "data_src", "weight"]
    decoded = [tuple(sample.get(key, 1 if key == "period" else None) for key in keys) for sample in samples]
    assert undecoded == 0 and len(listed) > 5
    assert sorted(decoded) == sorted(listed)


def test_a_raw_record_of_amd_ibs_has_the_bytes_of_its_registers() -> None:
    """One PERF_RECORD_SAMPLE of ibs_op, wrapped into a stream with the attribute that it was recorded with."""
    record = (recordings("ibs-zen4") / "genoa-sample-record.bin").read_bytes()
    kinds = sum(BITS[name] for name in ("ip", "tid", "time", "id", "cpu", "raw"))
    sample = one_sample(record[8:], sample_type=kinds)
    assert sample["ip"] == 0xFFFFFFFF81143526 and sample["time_ns"] == 118629299983995
    capabilities, *registers = struct.unpack("<I8Q", sample["raw"])
    assert capabilities == 0xBFF and registers[1] == 0xFFFFFFFF81143526
    assert registers[5:7] == [0xFFFF899F7C3B5784, 0x11F7C3B5784]


# ---- every field, by the ABI ------------------------------------------------------------
BITS = {
    name: 1 << bit
    for bit, name in enumerate(
        ("ip", "tid", "time", "addr", "read", "callchain", "id", "cpu", "period", "stream_id", "raw", "branch_stack", "regs_user",
         "stack_user", "weight", "data_src", "identifier", "transaction", "regs_intr", "phys_addr", "aux", "cgroup",
         "data_page_size", "code_page_size", "weight_struct")
    )
}  # fmt: skip
REGS = 0b1010_0110_0001


def attribute(sample_type: int, *, read_format: int = 0, branches: int = 0, size: int = 136) -> bytes:
    flags = 1 << 18  # sample_id_all
    raw = struct.pack("<IIQQQQQ", 4, size, 0xCD, 1000, sample_type, read_format, flags)
    raw += struct.pack("<IIQQQQIiQ", 0, 0, 0, 0, branches, REGS, 4096, 0, REGS)
    return raw.ljust(size, b"\0")[:size]


def stream(attr: bytes, *records: bytes) -> bytes:
    header = struct.pack("<IHH", 64, 0, 8 + len(attr) + 8) + attr + struct.pack("<Q", 7)
    return b"PERFILE2" + struct.pack("<Q", 16) + header + b"".join(records)


def read_bytes(content: bytes) -> Any:
    descriptor = os.memfd_create("perf.data")
    try:
        os.write(descriptor, content)
        reader = _core.PerfFile(descriptor)
        found = []
        while (sample := reader.next_sample()) is not None:
            found.append(sample)
        return found, reader
    finally:
        os.close(descriptor)


def one_sample(body: bytes, **attr: Any) -> dict[str, Any]:
    record = struct.pack("<IHH", 9, 2, 8 + len(body)) + body
    found, reader = read_bytes(stream(attribute(**attr), record))
    assert reader.undecoded == 0
    assert len(found) == 1
    return dict(found[0])


u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_field_of_a_sample_is_decoded(data: st.DataObject) -> None:
    """Writes samples as the comment of PERF_RECORD_SAMPLE in perf_event.h says, in its order."""
    wanted = data.draw(st.sets(st.sampled_from(sorted(BITS))))
    if "weight" in wanted:
        wanted.discard("weight_struct")  # the kernel refuses both
    kinds = sum(BITS[name] for name in wanted)
    read_format = data.draw(st.integers(0, 31))
    branch_kind = data.draw(st.sampled_from((0, 1 << 17, 1 << 19, 1 << 17 | 1 << 19)))
    body, expected = b"", {}

    def put(name: str, key: str, form: str = "<Q") -> None:
        nonlocal body
        if name in wanted:
            value = data.draw(u64 if form == "<Q" else u32)
            body += struct.pack(form, value) + (b"\0" * 4 if form == "<I" else b"")
            expected[key] = value

    def words(count: int) -> bytes:
        return b"".join(struct.pack("<Q", data.draw(u64)) for _ in range(count))

    put("identifier", "identifier")
    put("ip", "ip")
    if "tid" in wanted:
        expected["pid"], expected["tid"] = data.draw(u32), data.draw(u32)
        body += struct.pack("<II", expected["pid"], expected["tid"])
    put("time", "time_ns")
    put("addr", "address")
    put("id", "id")
    put("stream_id", "stream_id")
    put("cpu", "cpu", "<I")
    put("period", "period")
    if "read" in wanted:
        members = data.draw(st.integers(0, 4)) if read_format & 8 else 1
        times = bool(read_format & 1) + bool(read_format & 2)
        each = 1 + bool(read_format & 4) + bool(read_format & 16)
        body += (struct.pack("<Q", members) if read_format & 8 else b"") + words(times + members * each)
    if "callchain" in wanted:
        chain = data.draw(st.lists(u64, max_size=5))
        body += struct.pack(f"<Q{len(chain)}Q", len(chain), *chain)
        expected["callchain"] = chain
    if "raw" in wanted:
        raw = data.draw(st.binary(max_size=20)).ljust(4, b"x")
        raw = raw.ljust((len(raw) + 4 + 7) // 8 * 8 - 4, b"\0")
        body += struct.pack("<I", len(raw)) + raw
        expected["raw"] = raw
    if "branch_stack" in wanted:
        count = data.draw(st.integers(0, 3))
        body += struct.pack("<Q", count) + words(
            bool(branch_kind & 1 << 17) + 3 * count + (count if branch_kind & 1 << 19 else 0)
        )
        expected["branches"] = count
    if "regs_user" in wanted:
        abi = data.draw(st.sampled_from((0, 1, 2)))
        body += struct.pack("<Q", abi) + words(REGS.bit_count() if abi else 0)
        expected["user_registers"] = REGS.bit_count() if abi else 0
    if "stack_user" in wanted:
        room = 8 * data.draw(st.integers(0, 4))
        filled = data.draw(st.integers(0, room))
        body += struct.pack("<Q", room) + b"s" * room + (struct.pack("<Q", filled) if room else b"")
        expected["user_stack_bytes"] = filled
    if wanted & {"weight", "weight_struct"}:
        expected["weight"] = data.draw(u64)
        body += struct.pack("<Q", expected["weight"])
    put("data_src", "data_src")
    put("transaction", "transaction")
    if "regs_intr" in wanted:
        abi = data.draw(st.sampled_from((0, 2)))
        body += struct.pack("<Q", abi) + words(REGS.bit_count() if abi else 0)
        expected["intr_registers"] = REGS.bit_count() if abi else 0
    put("phys_addr", "phys_address")
    put("cgroup", "cgroup")
    put("data_page_size", "data_page_bytes")
    put("code_page_size", "code_page_bytes")
    if "aux" in wanted:
        aux = data.draw(st.binary(max_size=2)) * 8
        body += struct.pack("<Q", len(aux)) + aux
    sample = one_sample(body, sample_type=kinds, read_format=read_format, branches=branch_kind)
    assert {key: sample[key] for key in expected} == expected
    if body:  # one word less is a cut sample, never another one
        record = struct.pack("<IHH", 9, 2, len(body)) + body[:-8]
        found, reader = read_bytes(stream(attribute(kinds, read_format=read_format, branches=branch_kind), record))
        assert not found and reader.undecoded == 1


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136, 256])
def test_attributes_of_any_version_are_read(size: int) -> None:
    kinds = BITS["ip"] | BITS["tid"]
    record = struct.pack("<IHHQII", 9, 2, 8 + 16, 0x1234, 5, 6)
    found, reader = read_bytes(stream(attribute(kinds, size=size), record))
    assert found[0]["ip"] == 0x1234 and reader.events[0]["config"] == 0xCD and reader.events[0]["ids"] == [7]


def test_a_sample_with_fields_of_a_later_kernel_is_not_guessed() -> None:
    record = struct.pack("<IHHQ", 9, 2, 16, 1)
    found, reader = read_bytes(stream(attribute(1 << 40), record))
    assert not found and reader.undecoded == 1


def test_a_corrupted_file_is_refused_with_its_byte() -> None:
    path = recordings("perfdata") / "perf.data.piped.corrupted.zero_size_sample-3.2"
    with open(path, "rb") as file, pytest.raises(TraceError, match=r"byte [0-9,]+: a record with an impossible size"):
        list(PerfData(file, path.name).records())


def test_compressed_recordings_say_so() -> None:
    path = recordings("perfdata") / "sleep.compressed.data"
    with open(path, "rb") as file, pytest.raises(TraceError, match="compressed"):
        list(PerfData(file, path.name).records())
