"""What a traced program wrote through tests/native/trace_services.c, and what it must have written."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from memlens.capture.layouts import layouts

STRING, WINDOW = 1, 49
FIRST_SITE = 1 << 16
ACCESS = np.dtype([("site", "<u8"), ("address", "<u8"), ("bytes", "<u8"), ("kind", "<u8")])
CONSTANT, LOAD, STORE, NOTHING = 0, 1, 2, 3
Access = tuple[int, int, int]
"""site, address, bytes (0: the site's own)"""


def decode_sites(stream: bytes, recorded: int) -> list[Access]:
    """A ``site_delta`` stream, as FORMAT.md says; ValueError where it is damaged."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(stream):
                raise ValueError("it ends early")
            byte = stream[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128 and value < 2**64:
                return value
        raise ValueError("a varint that is too long")

    def unzigzag(value: int) -> int:
        return (value >> 1) ^ -(value & 1)

    previous, last = 0, [0] * 1024
    accesses = []
    for _ in range(recorded):
        code = (previous + unzigzag(varint())) % 2**64
        address = (last[code % 1024] + unzigzag(varint())) % 2**64
        n_bytes = varint() if code & 1 else 0
        if code & 1 and not 0 < n_bytes < 2**32:
            raise ValueError("a width out of range")
        previous, last[code % 1024] = code, address
        accesses.append((code >> 1, address, n_bytes))
    if at != len(stream):
        raise ValueError("bytes left over")
    return accesses


@dataclass
class Window:
    fields: dict[str, int]
    stream: bytes

    def __getattr__(self, name: str) -> int:
        return self.fields[name]

    @property
    def accesses(self) -> list[Access]:
        return decode_sites(self.stream, self.fields["recorded"])

    @property
    def end(self) -> int:
        """Number of the access behind the last one."""
        return self.fields["first_executed"] + self.fields["recorded"] + self.fields["implied_constant"]


@dataclass
class Trace:
    strings: dict[int, str] = field(default_factory=dict)
    windows: dict[int, list[Window]] = field(default_factory=lambda: defaultdict(list))
    """By thread, in the order of writing: those with accesses."""
    lost: dict[int, list[Window]] = field(default_factory=lambda: defaultdict(list))
    totals: dict[int, int] = field(default_factory=dict)
    """Accesses of threads that ended in order."""


def read_trace(path: Path) -> Trace:
    trace = Trace()
    raw = path.read_bytes() if path.exists() else b""
    dtype = layouts()["window"].dtype()
    at = 0
    while at < len(raw):
        kind, n_bytes = struct.unpack_from("<II", raw, at)
        record = raw[at + 8 : at + 8 + n_bytes]
        at += 8 + (n_bytes + 7) // 8 * 8
        if kind == STRING:
            number, length = struct.unpack_from("<II", record)
            trace.strings[number] = record[8 : 8 + length].decode()
        elif kind == WINDOW:
            row = np.frombuffer(record[: dtype.itemsize], dtype=dtype)[0]
            window = Window({name: int(row[name]) for name in dtype.names or ()}, record[dtype.itemsize :])
            assert window.tail_bytes == len(window.stream)
            if window.dropped:
                trace.lost[window.thread].append(window)
            elif window.executed == 0:
                assert window.recorded == 0 and window.thread not in trace.totals, "one end for each thread"
                trace.totals[window.thread] = window.first_executed
            else:
                trace.windows[window.thread].append(window)
    return trace


def read_logs(path: Path) -> dict[int, np.ndarray]:
    """By thread: every access that was executed."""
    return {
        int(file.suffix[1:]): np.frombuffer(file.read_bytes(), dtype=ACCESS)
        for file in path.parent.glob(f"{path.name}.*")
    }


def expected(log: np.ndarray, window: Window, *, loads_only: bool = False) -> list[Access]:
    part = log[window.first_executed : window.end]
    wanted = (part["kind"] == LOAD) if loads_only else (part["kind"] == LOAD) | (part["kind"] == STORE)
    part = part[wanted]
    return list(
        zip((part["site"] + FIRST_SITE).tolist(), part["address"].tolist(), part["bytes"].tolist(), strict=True)
    )
