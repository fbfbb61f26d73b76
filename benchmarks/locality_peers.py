"""Speed of other cache simulators on the same trace: locality_peers.py NAME TRACE COUNT; prints CPU seconds and misses.

Run by locality.py in an interpreter that has them, so that memlens's own needs none.
"""

from __future__ import annotations

import itertools
import struct
import sys
import tempfile
import time

import numpy as np

LEVELS = ((64, 8), (1024, 16), (32768, 16))
"""(sets, ways) of 64-byte lines: 32 KiB, 1 MiB, 32 MiB."""


def libcachesim(lines: np.ndarray) -> tuple[float, int]:
    """One LRU cache of 16,384 objects, fed by its own native reader: the fastest that it has."""
    import libcachesim as peer

    rows = np.zeros(len(lines), dtype=[("time", "<u4"), ("object", "<u8"), ("bytes", "<u4"), ("next", "<i8")])
    rows["object"], rows["bytes"], rows["next"] = lines, 1, -1
    assert rows.dtype.itemsize == struct.calcsize("<IQIq")
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral") as file:
        rows.tofile(file)
        file.flush()
        reader = peer.TraceReader(trace=file.name, trace_type=peer.TraceType.ORACLE_GENERAL_TRACE)
        cache = peer.LRU(cache_size=16384)
        begin = time.process_time()
        ratio, _ = cache.process_trace(reader)
        return time.process_time() - begin, round(ratio * len(lines))


def pycachesim(lines: np.ndarray) -> tuple[float, int]:
    """Three inclusive LRU levels."""
    import cachesim as peer

    memory = peer.MainMemory()
    caches = [peer.Cache(f"L{number}", sets, ways, 64, "LRU") for number, (sets, ways) in enumerate(LEVELS, 1)]
    for above, below in itertools.pairwise(caches):
        above.set_load_from(below)
        above.set_store_to(below)
    memory.load_to(caches[-1])
    memory.store_from(caches[-1])
    simulator = peer.CacheSimulator(caches[0], memory)
    addresses = (lines * 64).tolist()
    begin = time.process_time()
    simulator.load(addresses, length=8)
    took = time.process_time() - begin
    return took, int(next(iter(simulator.stats()))["MISS_count"])


def main() -> None:
    name, trace, count = sys.argv[1:]
    lines = np.fromfile(trace, dtype=np.uint64, count=int(count)) >> np.uint64(6)
    took, misses = {"libcachesim": libcachesim, "pycachesim": pycachesim}[name](lines - lines.min())
    print(f"{took:.6f} {misses}")


if __name__ == "__main__":
    main()
