"""What a traced program wrote through tests/native/trace_services.c, and what it must have written."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from memlens.capture.store.layouts import layouts

STRING, WINDOW = 1, 49
FIRST_SITE = 1 << 16
ACCESS = np.dtype([("site", "<u8"), ("address", "<u8"), ("bytes", "<u8"), ("kind", "<u8")])
CONSTANT, LOAD, STORE, NOTHING = 0, 1, 2, 3
Access = tuple[int, int, int]
"""site, address, bytes (0: the site's own)"""


def documented_decoder() -> Callable[..., list[tuple[int, int, int | None]]]:
    text = (Path(__file__).parents[2] / "format" / "FORMAT.md").read_text()
    source = re.search(r"```python\n(def decode_segments\(.*?)```", text, re.DOTALL)
    assert source is not None
    names: dict[str, Any] = {}
    exec(source[1], names)
    return names["decode_segments"]  # type: ignore[no-any-return]


decode_segments = documented_decoder()


def decode_sites(stream: bytes, recorded: int) -> list[Access]:
    """A segment stream, as FORMAT.md says; ValueError where it is damaged."""
    return [(site, address, n_bytes or 0) for site, address, n_bytes in decode_segments(stream, recorded)]


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
