"""Functions that are regions (`--functions REGEX`): where they begin in the program's files, for the emulator's plugin."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from .... import _core
from ....errors import UsageError

SHT_SYMTAB, SHT_DYNSYM, SHT_DYNAMIC = 2, 11, 6
STT_FUNC, STT_GNU_IFUNC = 2, 10
PT_LOAD = 1
DT_NEEDED = 1
LIBRARY_DIRECTORIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
TRIPLETS = {
    "x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "riscv64": "riscv64-linux-gnu",
    "ppc64le": "powerpc64le-linux-gnu",
}  # fmt: skip


class _Elf:
    """As much of a little-endian 64-bit ELF file as is needed here."""

    def __init__(self, path: str) -> None:
        self.data = Path(path).read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        headers, sections = struct.unpack_from("<QQ", self.data, 32)
        size, count, section_size, section_count = struct.unpack_from("<HHHH", self.data, 54)
        self.loads: list[tuple[int, int, int]] = []
        for at in range(headers, headers + size * count, size or 1):
            kind, _, offset, address, _, file_bytes = struct.unpack_from("<IIQQQQ", self.data, at)
            if kind == PT_LOAD:
                self.loads.append((address, address + file_bytes, offset))
        self.sections = [
            struct.unpack_from("<IIQQQQIIQQ", self.data, sections + index * section_size)
            for index in range(section_count)
        ]

    def file_offset(self, address: int) -> int | None:
        for begin, end, offset in self.loads:
            if begin <= address < end:
                return address - begin + offset
        return None

    def _text(self, table: int, at: int) -> str:
        begin = self.sections[table][4] + at
        return self.data[begin : self.data.index(b"\0", begin)].decode("utf-8", "replace")

    def functions(self) -> Iterator[tuple[int, str]]:
        tables = [s for s in self.sections if s[1] == SHT_SYMTAB] or [s for s in self.sections if s[1] == SHT_DYNSYM]
        machine = struct.unpack_from("<H", self.data, 18)[0]
        for section in tables:
            for at in range(section[4], section[4] + section[5], 24):
                name, info, other, index, address, _ = struct.unpack_from("<IBBHQQ", self.data, at)
                if info & 15 in (STT_FUNC, STT_GNU_IFUNC) and index != 0 and address != 0:
                    yield address, self._text(section[6], name)
                    if machine == 21 and other >> 5 >= 2:  # POWER: callers of the same module enter a few words later
                        yield address + (1 << (other >> 5)), self._text(section[6], name)

    def needed(self) -> Iterator[str]:
        for section in self.sections:
            if section[1] == SHT_DYNAMIC:
                for at in range(section[4], section[4] + section[5], 16):
                    tag, value = struct.unpack_from("<QQ", self.data, at)
                    if tag == DT_NEEDED:
                        yield self._text(section[6], value)


def _libraries(program: str, machine: str, root: str) -> list[str]:
    """The program and the shared libraries that it names, as far as they lie where libraries usually do."""
    places = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")),
        *(f"{root}{base}/{TRIPLETS[machine]}" for base in LIBRARY_DIRECTORIES),
        *(f"{root}{base}" for base in LIBRARY_DIRECTORIES),
    ]
    found, queue = [os.path.realpath(program)], [os.path.realpath(program)]
    while queue:
        try:
            names = list(_Elf(queue.pop()).needed())
        except (OSError, ValueError, struct.error):
            continue
        for name in names:
            path = next(
                (os.path.realpath(f"{place}/{name}") for place in places if os.path.isfile(f"{place}/{name}")), None
            )
            if path is not None and path not in found:
                found.append(path)
                queue.append(path)
    return found


def list_of(pattern: str, program: str, machine: str, root: str) -> str:
    """`@PATH` lines, each followed by `FILE_OFFSET NAME` lines in ascending order; raises UsageError when there are none."""
    try:
        matches = re.compile(pattern).search
    except re.error as error:
        raise UsageError(f"--functions {pattern!r} is not a regular expression: {error}") from None
    count = 0
    lines: list[str] = []
    for path in _libraries(program, machine, root):
        try:
            elf = _Elf(path)
        except (OSError, ValueError, struct.error):
            continue
        places: dict[int, str] = {}
        for address, name in elf.functions():
            full = _core.demangle(name)
            if matches(full) or matches(name):
                offset = elf.file_offset(address)
                if offset is not None:
                    places[offset] = full
        if places:
            lines.append(f"@{path}")
            lines.extend(f"{offset:x} {places[offset]}" for offset in sorted(places))
            count += len(set(places.values()))
    if not count:
        raise UsageError(
            f"no function of {os.path.basename(program)} or its libraries matches --functions {pattern!r}",
            hint="names are compared as c++filt prints them; a stripped program has none",
        )
    return "\n".join(lines) + "\n"
