"""The delta stream of window records (format/FORMAT.md), decoded with NumPy: a whole window at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .arena_layouts import constants
from .layouts import enum_value, layouts, records_with_tails

if TYPE_CHECKING:
    from ...arrays import Uint64s
    from .source import RecordSource

ENTRIES = constants()["ML_STREAM_ENTRIES"]
MAX_VARINT_BYTES = 10


def decode_pc_stream(stream: bytes, recorded: int) -> dict[str, Uint64s]:
    """Columns pc, address, bytes and operation of a ``pc_delta`` stream. Raises ValueError where it is damaged.

    >>> columns = decode_pc_stream(bytes.fromhex("80c08004402100202100 2021"), 3)
    >>> [hex(value) for value in columns["address"]], columns["bytes"].tolist()
    (['0x20', '0x30', '0x40'], [8, 8, 8])
    """
    import numpy as np

    raw = np.frombuffer(stream, dtype=np.uint8)
    ends = np.flatnonzero(raw < 128)
    if len(ends) != 3 * recorded or (len(raw) and (not len(ends) or ends[-1] != len(raw) - 1)):
        raise ValueError("a stream that ends early or has bytes left over")
    starts = np.concatenate(([0], ends[:-1] + 1)).astype(np.int64)[: len(ends)]
    lengths = ends - starts + 1
    if len(lengths) and lengths.max() > MAX_VARINT_BYTES:
        raise ValueError("a varint of more than 10 bytes")
    values = np.zeros(len(ends), dtype=np.uint64)
    for at in range(int(lengths.max()) if len(lengths) else 0):
        longer = lengths > at
        values[longer] |= (raw[starts[longer] + at] & 127).astype(np.uint64) << np.uint64(7 * at)
    first, second, third = values[0::3], values[1::3], values[2::3]
    if len(third) and not (third & np.uint64(3)).all():
        raise ValueError("operation 0")
    pc = np.cumsum(_unzigzag(first), dtype=np.uint64)
    # An address is the sum of the differences so far in its entry: sums by entry, in the order of the stream.
    entry = (pc % np.uint64(ENTRIES)).astype(np.int64)
    order = np.argsort(entry, kind="stable")
    sums = np.cumsum(_unzigzag(second)[order], dtype=np.uint64)
    is_first = np.concatenate(([True], np.diff(entry[order]) != 0))[: len(order)]
    group = np.cumsum(is_first) - 1
    before = np.concatenate((np.zeros(1, dtype=np.uint64), sums))[:-1][is_first]
    address = np.empty(recorded, dtype=np.uint64)
    address[order] = sums - before[group]
    return {"pc": pc, "address": address, "bytes": third >> np.uint64(2), "operation": third & np.uint64(3)}


def _unzigzag(values: Uint64s) -> Uint64s:
    import numpy as np

    return (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))


def sampled_loads(capture: RecordSource, *, max_windows: int) -> tuple[dict[str, Uint64s], int]:
    """Loads of at most so many windows, evenly chosen: columns window, process, pc, address, bytes; and damaged windows."""
    import numpy as np

    layout = layouts()["window"]
    pc_delta, store = enum_value("stream_encoding", "pc_delta"), enum_value("access_operation", "store")
    windows = [
        (header["process"], int(record["recorded"]), tail)
        for header, payload in capture.payloads("window")
        for record, tail in records_with_tails(layout, payload)
        if record["encoding"] == pc_delta
    ]
    chosen: Iterable[int] = range(len(windows))
    if len(windows) > max_windows:
        chosen = sorted({int(at) for at in np.linspace(0, len(windows) - 1, max_windows)})
    parts: dict[str, list[Uint64s]] = {name: [] for name in ("window", "process", "pc", "address", "bytes")}
    damaged = 0
    for number in chosen:
        process, recorded, tail = windows[number]
        try:
            columns = decode_pc_stream(tail, recorded)
        except ValueError:
            damaged += 1
            continue
        reads = columns["operation"] != store
        for name in ("pc", "address", "bytes"):
            parts[name].append(columns[name][reads])
        n_reads = int(reads.sum())
        parts["window"].append(np.full(n_reads, number, dtype=np.uint64))
        parts["process"].append(np.full(n_reads, process, dtype=np.uint64))
    return {name: np.concatenate(found or [np.zeros(0, dtype=np.uint64)]) for name, found in parts.items()}, damaged
