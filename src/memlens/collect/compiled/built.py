"""What a program and the libraries that it needs were built for."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from ...capture.store import counted_modules

FUNCTION = struct.Struct("<QqIIQII")
"""ml_count_function: offset, table, counters, bytes of the table, first site, traced sites, reserved"""


@dataclass(frozen=True)
class Built:
    """What a program and the libraries that it needs were built with."""

    counted: bool
    traced: bool


def sums(path: str) -> tuple[int, int]:
    """Counters and traced sites of a module."""
    try:
        with counted_modules.ElfHeaders(path) as file:
            if not file.has_section(counted_modules.FUNCTIONS):
                return 0, 0
            heads, _ = file.section(counted_modules.FUNCTIONS)
    except (OSError, ValueError):
        return 0, 0
    found = list(FUNCTION.iter_unpack(heads[: len(heads) // FUNCTION.size * FUNCTION.size]))
    return sum(head[2] for head in found), sum(head[5] for head in found)


def built(program: str) -> Built:
    if not counted_modules.is_elf(program):
        return Built(False, False)
    found = [sums(path) for path in counted_modules.libraries(program)]
    return Built(any(counters for counters, _ in found), any(sites for _, sites in found))


def why_not(program: str) -> tuple[str, str] | None:
    """(reason, remedy) when neither the program nor a library that it needs has counters; a script may start one that has, and a program
    that knows dlopen may load one."""
    if not counted_modules.is_elf(program) or counted_modules.first_counted(program) is not None:
        return None
    if counted_modules.loads_plugins(program):
        return None
    return (
        f"{os.path.basename(program)} has no counters: neither it nor a library that it needs was built with memlens cc",
        'build it with CC="memlens cc" (and CXX="memlens c++"), or use --count=children if it starts programs that were',
    )
