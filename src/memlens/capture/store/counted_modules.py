"""Files with compiled-in counters: whether a program has any, and the static tables of a module (format/memlens_count.h).

Reads headers and the few sections it needs, never a whole file: programs with debug information are large.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ... import _core
from .os_names import file_of, text_of

FUNCTIONS, TABLES, PATTERNS = "memlens_functions", "memlens_tables", "memlens_patterns"
C_LIBRARIES = ("libc.so", "libdl.so", "libpthread.so", "ld-linux", "ld64.so", "libgcc_s.so", "libstdc++.so")
"""They name dlopen for others."""
PT_LOAD, PT_DYNAMIC = 1, 2
SHT_NOBITS = 8
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29
MACHINES = {21: "powerpc64le", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
LIBRARY_DIRECTORIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
MOST_SECTION_BYTES = 1 << 30
MOST_LIBRARIES = 200


@dataclass(frozen=True)
class CountSections:
    """What a module's file says about its counters."""

    functions: bytes
    functions_address: int
    tables: bytes
    tables_address: int


class ElfHeaders:
    """The headers of a 64-bit little-endian ELF file; ValueError: it is none, or damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = self._read(0, 64)
            if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
                raise ValueError("not a 64-bit little-endian ELF file")
            self.machine = int.from_bytes(head[18:20], "little")
            segments, sections = struct.unpack_from("<QQ", head, 32)
            segment_bytes, n_segments, section_bytes, n_sections, names = struct.unpack_from("<5H", head, 54)
            raw = self._read(segments, segment_bytes * n_segments)
            self._segments = [
                struct.unpack_from("<IIQQQQ", raw, at) for at in range(0, len(raw) - 55, segment_bytes or 56)
            ]
            raw = self._read(sections, section_bytes * n_sections)
            headers = [struct.unpack_from("<IIQQQQ", raw, at) for at in range(0, len(raw) - 63, section_bytes or 64)]
            texts = self._read(headers[names][4], headers[names][5]) if names < len(headers) else b""
            self._sections = {}
            for name_at, kind, _, address, offset, n_bytes in headers:
                name = texts[name_at : texts.find(b"\0", name_at)].decode("ascii", "replace")
                if kind != SHT_NOBITS:
                    self._sections[name] = (address, offset, n_bytes)
        except struct.error as error:
            self.close()
            raise ValueError(str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ElfHeaders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, offset: int, n_bytes: int) -> bytes:
        if n_bytes > MOST_SECTION_BYTES or offset >= 1 << 62:
            raise ValueError("a length in its headers is out of range")
        return os.pread(self._fd, n_bytes, offset)

    def has_section(self, name: str) -> bool:
        return name in self._sections

    def place(self, name: str) -> tuple[int, int]:
        """Begin and end of a section in the file; (0, 0) if there is none."""
        _, offset, n_bytes = self._sections.get(name, (0, 0, 0))
        return offset, offset + n_bytes

    def section(self, name: str) -> tuple[bytes, int]:
        """Content, and address as in the file."""
        address, offset, n_bytes = self._sections[name]
        content = self._read(offset, n_bytes)
        if len(content) != n_bytes:
            raise ValueError(f"section {name} is cut off")
        return content, address

    def needed(self) -> tuple[list[str], list[str]]:
        """Names of libraries, and the directories in which the file says to look first."""
        names: list[int] = []
        places: list[int] = []
        table = 0
        for kind, _, offset, _, _, file_bytes in self._segments:
            if kind == PT_DYNAMIC:
                raw = self._read(offset, min(file_bytes, 1 << 20))
                for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]):
                    if tag == DT_NEEDED:
                        names.append(value)
                    elif tag in (DT_RPATH, DT_RUNPATH):
                        places.append(value)
                    elif tag == DT_STRTAB:
                        table = value
        at = self._file_offset(table)
        if at is None:
            return [], []

        def text(offset: int) -> str:
            return self._read(at + offset, 4096).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")

        origin = os.path.dirname(os.path.realpath(self.path))
        directories = [
            place.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)
            for value in places
            for place in text(value).split(":")
        ]
        return [text(value) for value in names], directories

    def _file_offset(self, address: int) -> int | None:
        for kind, _, offset, begin, _, file_bytes in self._segments:
            if kind == PT_LOAD and begin <= address < begin + file_bytes:
                return int(address - begin + offset)
        return None

    def defined_symbols(self) -> set[str]:
        """Names that the file gives to others (.dynsym)."""
        if not self.has_section(".dynsym") or not self.has_section(".dynstr"):
            return set()
        symbols, _ = self.section(".dynsym")
        texts, _ = self.section(".dynstr")
        found = set()
        for name, _, _, index, _, _ in struct.iter_unpack("<IBBHQQ", symbols[: len(symbols) // 24 * 24]):
            if index != 0 and name:
                found.add(text_of(texts[name : texts.find(b"\0", name)]))
        return found


def is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def libraries(program: str) -> Iterator[str]:
    """The program and the libraries that it needs, as far as they lie where the loader looks first."""
    seen = {os.path.realpath(program)}
    queue = [program]
    inherited = [place for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    while queue:
        path = queue.pop(0)
        yield path
        try:
            with ElfHeaders(path) as file:
                names, places = file.needed()
                triplet = f"{MACHINES.get(file.machine, 'x86_64')}-linux-gnu"
        except (OSError, ValueError):
            continue
        where = [*places, *inherited, *(f"{base}/{triplet}" for base in LIBRARY_DIRECTORIES), *LIBRARY_DIRECTORIES]
        for name in names:
            candidates = [name] if "/" in name else [os.path.join(place, name) for place in where]
            found = next((candidate for candidate in candidates if os.path.isfile(candidate)), None)
            if found is not None and os.path.realpath(found) not in seen and len(seen) < MOST_LIBRARIES:
                seen.add(os.path.realpath(found))
                queue.append(found)


def is_counted(path: str) -> bool:
    try:
        with ElfHeaders(path) as file:
            return file.has_section(FUNCTIONS)
    except (OSError, ValueError):
        return False


def first_counted(program: str) -> str | None:
    """The program, or the first library that it needs, that has counters; None: neither has."""
    return next((path for path in libraries(program) if is_counted(path)), None)


def loads_plugins(program: str) -> bool:
    """Whether the program, or a library that it needs, may load others while it runs."""
    return any(_names_dlopen(path) for path in libraries(program) if not os.path.basename(path).startswith(C_LIBRARIES))


def _names_dlopen(path: str) -> bool:
    try:
        with ElfHeaders(path) as file:
            names = file.section(".dynstr")[0] if file.has_section(".dynstr") else b""
    except (OSError, ValueError):
        return False
    return b"\0dlopen\0" in names or b"\0dlmopen\0" in names


def matches_of_patterns(path: str) -> dict[str, int]:
    """Expressions of --memlens-functions that a module was built with, and how many functions each matched."""
    try:
        with ElfHeaders(path) as file:
            content = file.section(PATTERNS)[0] if file.has_section(PATTERNS) else b""
    except (OSError, ValueError):
        return {}
    parts = content.decode("utf-8", "replace").split("\0")[:-1]
    found: dict[str, int] = {}
    for pattern, number in zip(parts[::2], parts[1::2], strict=False):
        found[pattern] = found.get(pattern, 0) + (int(number) if number.isdecimal() else 1)
    return found


def read_sections(path: str) -> CountSections | None:
    """The static tables of a module; None: it has none. Raises OSError and ValueError."""
    with ElfHeaders(path) as file:
        if not file.has_section(FUNCTIONS) or not file.has_section(TABLES):
            return None
        functions, functions_address = file.section(FUNCTIONS)
        tables, tables_address = file.section(TABLES)
        return CountSections(functions, functions_address, tables, tables_address)


def find_module(path: str, pid: int, build_id: str) -> tuple[str, bool]:
    """(where the module's file can be read, whether it is the one that ran).

    The program may live in another mount namespace, and its file may have been replaced meanwhile.
    """
    present = False
    for candidate in (path, file_of(path), file_of(f"/proc/{pid}/root{path}"), f"/proc/{pid}/exe"):
        try:
            if not os.path.isfile(candidate):
                continue
            found = _core.read_build_id(candidate)
        except OSError:
            continue
        if build_id and found == build_id:
            return candidate, True
        if not build_id and not found and candidate in (path, file_of(path)):
            return candidate, True  # nothing to compare: it is taken to be the one
        present = present or candidate in (path, file_of(path))
    return file_of(path) if present else "", False
