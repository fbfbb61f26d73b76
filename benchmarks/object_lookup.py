"""How fast the object engine builds and answers: python benchmarks/object_lookup.py [--objects N ...]

A made-up program: objects of 16 B to 3 KiB, at most 100,000 alive at a time, addresses reused with
other sizes. Prints build time, memory and look-ups a second at random addresses, at random
times and in the order of time, as faults and accesses come.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

from memlens import _core
from memlens.capture.store.layouts import enum_value, layouts

SLOT_BYTES = 4096


def history(objects: int, alive: int, seed: int) -> tuple[Any, Any]:
    """(allocations, releases) as record arrays; slot `i % alive` is reused when its object has died."""
    random = np.random.default_rng(seed)
    dtype = layouts()["allocation"].dtype()
    births = np.zeros(objects, dtype=dtype)
    # A slot's place moves a little at each reuse, so that old and new objects overlap in part.
    slot = np.concatenate([random.permutation(alive) for _ in range(-(-objects // alive))])[:objects]
    offset = random.integers(0, 64, objects) * 16
    births["address"] = 0x7F0000000000 + slot * SLOT_BYTES + offset
    births["bytes"] = np.minimum(2 ** random.uniform(4, 11.5, objects), SLOT_BYTES - offset).astype(np.uint64)
    births["time_ns"] = np.arange(objects, dtype=np.uint64) * 100 + 100
    births["operation"] = enum_value("allocation_operation", "malloc")
    births["stack"] = random.integers(1, 5000, objects)
    births["thread"] = random.integers(1, 9, objects)
    order = np.lexsort((births["time_ns"], slot))
    same = slot[order][1:] == slot[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    releases = np.zeros(len(before), dtype=dtype)
    releases["address"] = births["address"][before]
    gap = births["time_ns"][after] - births["time_ns"][before]
    releases["time_ns"] = births["time_ns"][before] + (gap * random.uniform(0.5, 1.0, len(before))).astype(np.uint64)
    releases["operation"] = enum_value("allocation_operation", "free")
    releases["thread"] = births["thread"][before]
    releases.sort(order="time_ns")
    return births, releases


def measure(objects: int, alive: int, lookups: int) -> None:
    births, releases = history(objects, alive, seed=1)
    table = _core.ObjectTable()
    begin = time.perf_counter()
    for records in (births, releases):
        for at in range(0, len(records), 100_000):
            table.add_allocations(1, records[at : at + 100_000].tobytes())
    last_ns, records_total = int(births["time_ns"][-1]), len(births) + len(releases)
    del births, releases, records
    added = time.perf_counter()
    table.run()
    built = time.perf_counter()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{objects:,} objects, {records_total:,} records, {alive:,} alive at most")
    print(
        f"  build: {added - begin:.2f} s taking records, {built - added:.2f} s replaying, index {table.index_bytes / 2**20:.0f} MiB,"
    )
    print(f"  the whole process, this benchmark's own arrays included, at most {peak_mib:.0f} MiB")
    random = np.random.default_rng(2)
    addresses = (0x7F0000000000 + random.integers(0, alive * SLOT_BYTES, lookups)).astype(np.uint64)
    times = random.integers(0, last_ns, lookups).astype(np.uint64)
    processes = np.array([1], dtype=np.uint32)
    for order, asked in (("random times", times), ("in the order of time", np.sort(times))):
        for threads in (1, 2):
            begin = time.perf_counter()
            found = table.find(processes, addresses, asked, layer="any", threads=threads)
            took = time.perf_counter() - begin
            hit = np.count_nonzero(found) / lookups
            print(
                f"  look-ups, {order}: {lookups / took / 1e6:.1f} million/s with {threads} thread(s), {hit:.0%} hit an object"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--objects", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--alive", type=int, default=100_000)
    parser.add_argument("--lookups", type=int, default=10_000_000)
    options = parser.parse_args()
    for objects in options.objects:
        measure(objects, options.alive, options.lookups)


if __name__ == "__main__":
    main()
