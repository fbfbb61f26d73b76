"""What each site of a counted program did, from the tables in its files (format/memlens_count.h) and an arena's counters.

A second reader, written for the tests alone, so that they do not judge the reader by itself.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from count_arena import Process

LOAD, STORE, ATOMIC, COPY, FILL, READ, CALL, PREFETCH = range(8)
TABLE_MIX = 1


@dataclass(frozen=True)
class Site:
    kind: int
    flags: int
    group: int
    bytes: int
    bytes_counter: int
    line: int
    column: int
    callee: str


@dataclass(frozen=True)
class Counted:
    """A counted function."""

    name: str
    first: int
    counters: tuple[int, ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]
    sites: tuple[Site, ...]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value - (1 << shift) if signed and byte & 64 else value

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self.data[self.at - size : self.at].decode()


def sections(path: Path) -> dict[str, tuple[int, bytes]]:
    """Address and content of each section of a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", path
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<3H", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    strings = data[heads[names][4] :]
    result = {}
    for name, kind, _, address, start, length in heads:
        title = strings[name : strings.index(b"\0", name)].decode()
        result[title] = (address, b"" if kind == 8 else data[start : start + length])
    return result


def _table(data: bytes, first: int, counters: int) -> Counted:
    b = _Bytes(data)
    version, flags = b.numbers(2)
    assert version == 1
    strings = [b.text() for _ in range(b.number())]
    name, _file, _line = b.numbers(3)
    kinds = tuple(b.numbers(b.number()))
    assert len(kinds) == counters, strings[name]
    groups = tuple(tuple((b.number(), b.number(signed=True)) for _ in range(b.number())) for _ in range(b.number()))
    for _scope in range(b.number()):
        b.numbers(6)
    blocks = [b.numbers(10 if flags & TABLE_MIX else 3) for _ in range(b.number())]
    sites = []
    for _site in range(b.number()):
        kind, mark, block, group, size, counter, *_, line, column, callee = b.numbers(11)
        assert group < len(groups) and block < len(blocks) and counter <= counters
        sites.append(Site(kind, mark, group, size, counter - 1, line, column, strings[callee]))
    assert b.at == len(data)
    for group_terms in groups:
        assert all(counter < counters for counter, _ in group_terms)
    return Counted(strings[name], first, kinds, groups, tuple(sites))


def functions(path: Path) -> tuple[Counted, ...]:
    """The counted functions of a file, in the order of their counters."""
    return _functions(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _functions(path: Path, _changed: int) -> tuple[Counted, ...]:
    found = sections(path)
    if "memlens_functions" not in found:
        return ()
    address, records = found["memlens_functions"]
    tables_address, tables = found["memlens_tables"]
    result, first = [], 0
    for at in range(0, len(records), 40):
        offset, distance, counters, size = struct.unpack_from("<QqII", records, at)
        assert offset == 0
        start = address + at + 8 + distance - tables_address
        result.append(_table(tables[start : start + size], first, counters))
        first += counters
    return tuple(result)


@dataclass
class Sum:
    """Of loads, stores and the rest, each access once."""

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def add(self, site: Site, executions: int, moved: int) -> None:
        reads = site.kind in (LOAD, ATOMIC, COPY, READ)
        writes = site.kind in (STORE, ATOMIC, COPY, FILL)
        self.reads += executions * reads
        self.writes += executions * writes
        self.read_bytes += moved * reads
        self.written_bytes += moved * writes


@dataclass(frozen=True)
class Row:
    """What a site did in one region, all threads together."""

    file: str
    region: str
    function: str
    number: int
    site: Site
    executions: int
    moved: int


def rows(process: Process) -> list[Row]:
    """Functions of one name in a file (static ones of two units) are numbered."""
    result = []
    for module in process.modules:
        path = Path(module.path)
        names: Counter[str] = Counter()
        regions: dict[str, np.ndarray] = {}
        for place in process.places:
            counters = place.counters[path.name]
            regions[place.path] = regions[place.path] + counters if place.path in regions else counters
        for function in functions(path):
            names[function.name] += 1
            title = f"{function.name}#{names[function.name]}" if names[function.name] > 1 else function.name
            for region, counters in regions.items():
                own = counters[function.first : function.first + len(function.counters)].tolist()
                if not any(own):
                    continue
                for number, site in enumerate(function.sites):
                    executions = sum(own[c] * scale for c, scale in function.groups[site.group]) % (1 << 64)
                    moved = own[site.bytes_counter] if site.bytes_counter >= 0 else executions * site.bytes
                    if executions:
                        result.append(Row(path.name, region, title, number, site, executions, moved))
    return result


def per_site(process: Process) -> dict[tuple[str, str, int], tuple[int, int, int, int]]:
    """(region, function, number of the site) → (kind, line, executions, bytes), of a program that is one file."""
    return {(r.region, r.function, r.number): (r.site.kind, r.site.line, r.executions, r.moved) for r in rows(process)}


def sums(process: Process) -> dict[tuple[str, str], Sum]:
    """Of each region and function that did something."""
    result: dict[tuple[str, str], Sum] = defaultdict(Sum)
    for row in rows(process):
        result[row.region, row.function].add(row.site, row.executions, row.moved)
    return dict(result)


def of_region(process: Process, region: str, *names: str) -> Sum:
    """Of all functions, or of those named."""
    total = Sum()
    for row in rows(process):
        if row.region == region and (not names or row.function in names):
            total.add(row.site, row.executions, row.moved)
    return total
