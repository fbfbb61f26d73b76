"""Layouts of the structs in the arenas of counting and of the emulator, and the numbers that all sides use.

Derived from format/count_arena.def and format/emulator_arena.def. Arenas are written by processes that are not trusted: a layout says where a
member lies, never whether its value makes sense.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ... import _core

if TYPE_CHECKING:
    import numpy as np

_CODES = {"<u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q"}


@dataclass(frozen=True)
class Struct:
    """One struct of an arena."""

    name: str
    n_bytes: int
    members: tuple[tuple[str, str, int, int], ...]
    """Name, NumPy type code, offset, count (0: no array)."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all values in byte order; those of an array have a number, an array of bytes is one value.

        >>> layout("arena_header").fields
        ('magic', 'version', 'token_0', 'token_1', 'file_bytes', 'next_byte', 'refused')
        """
        found = []
        for name, code, _, count in self.members:
            found += [f"{name}_{number}" for number in range(count)] if count and code != "<u1" else [name]
        return tuple(found)

    @property
    def format(self) -> struct.Struct:
        text = "".join(
            f"{count}s" if count and code == "<u1" else _CODES[code] * (count or 1)
            for _, code, _, count in self.members
        )
        made = struct.Struct("<" + text)
        if made.size != self.n_bytes:
            raise AssertionError(f"{self.name}: {made.size} bytes of members, {self.n_bytes} of the struct")
        return made

    def dtype(self) -> np.dtype[np.void]:
        """A NumPy type with the names of `fields`."""
        import numpy as np

        codes: list[str] = []
        offsets: list[int] = []
        for _, code, offset, count in self.members:
            if count and code == "<u1":
                codes, offsets = [*codes, f"S{count}"], [*offsets, offset]
            else:
                width = int(code[2:])
                codes += [code] * (count or 1)
                offsets += [offset + width * number for number in range(count or 1)]
        return np.dtype({"names": list(self.fields), "formats": codes, "offsets": offsets, "itemsize": self.n_bytes})


@cache
def layout(name: str) -> Struct:
    """The layout of `struct ml_NAME`.

    >>> layout("count_entry").n_bytes
    64
    """
    raw = _core.arena_layouts()[name]
    return Struct(name, raw["bytes"], tuple(tuple(member) for member in raw["members"]))


@cache
def constants() -> dict[str, int]:
    """Numbers of format/memlens_count.h, memlens_emulator.h and memlens_trace.h by their names there."""
    return dict(_core.arena_constants())
