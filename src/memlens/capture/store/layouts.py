"""Record layouts as NumPy types, packers and Arrow columns; all derived from format/records.def."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ... import _core

if TYPE_CHECKING:
    import numpy as np

_STRUCT_CODES = {"<u1": "B", "<u2": "H", "<u4": "I", "<u8": "Q", "<i2": "h", "<i4": "i", "<i8": "q"}


@dataclass(frozen=True)
class Field:
    name: str
    code: str
    """NumPy type code."""
    offset: int
    role: str
    """As format/records.def has it, without the family: TIME, STRING, STACK, ID, CODE, ENUM, FLAGS, TAIL, RESERVED or VALUE."""
    text: str
    family: str = ""
    """Of ENUM and FLAGS: the family of value names."""

    @classmethod
    def of(cls, name: str, code: str, offset: int, role: str, text: str) -> Field:
        """A field as the native core lists it.

        >>> Field.of("cause", "<u2", 4, "ENUM(loss_cause)", "").family
        'loss_cause'
        """
        role, _, family = role.partition("(")
        return cls(name, code, offset, role, text, family.removesuffix(")"))

    @property
    def enumeration(self) -> str | None:
        """The family of value names of this field, if it holds one value of it (flags do not)."""
        return self.family if self.role == "ENUM" else None

    @property
    def is_string_id(self) -> bool:
        return self.role == "STRING"


@dataclass(frozen=True)
class Layout:
    """One record kind."""

    name: str
    kind: int
    version: int
    record_bytes: int
    table: str
    """The table that `query` has of these records."""
    text: str
    fields: tuple[Field, ...]

    @property
    def has_tail(self) -> bool:
        return any(field.role == "TAIL" for field in self.fields)

    def dtype(self) -> np.dtype[np.void]:
        import numpy as np

        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [field.code for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.record_bytes,
            }
        )

    @property
    def time_field(self) -> str | None:
        return next((field.name for field in self.fields if field.role == "TIME"), None)


@cache
def layouts() -> dict[str, Layout]:
    """All record kinds by name.

    >>> layouts()["fault"].record_bytes
    40
    """
    return {
        name: Layout(
            name,
            raw["kind"],
            raw["version"],
            raw["bytes"],
            raw["table"],
            raw["text"],
            tuple(Field.of(*field) for field in raw["fields"]),
        )
        for name, raw in _core.record_layouts().items()
    }


@cache
def layout_of_kind(kind: int) -> Layout | None:
    """The layout of a chunk kind; None for a kind this build does not know."""
    return next((layout for layout in layouts().values() if layout.kind == kind), None)


@cache
def enum_names(family: str) -> dict[int, str]:
    """Value → name of an enumerated field's family, or of a list of format/lists.def."""
    found = _core.enum_values().get(family)
    return dict(_core.lists()[family] if found is None else found)


@cache
def enum_value(family: str, name: str) -> int:
    """Name → value.

    >>> enum_value("metric", "rss_bytes")
    1
    """
    return next(value for value, text in enum_names(family).items() if text == name)


@cache
def listed(family: str) -> tuple[str, ...]:
    """Names in the order of their values, which count from 0.

    >>> listed("counter_kind")[0]
    'block'
    """
    names = enum_names(family)
    if list(names) != list(range(len(names))):
        raise AssertionError(f"{family} does not count from 0")
    return tuple(names.values())


class Packer:
    """Makes records of one kind from keyword arguments, for what Python itself records."""

    def __init__(self, name: str) -> None:
        self.layout = layouts()[name]
        self._names = [field.name for field in self.layout.fields]
        self._struct = struct.Struct("<" + "".join(_STRUCT_CODES[field.code] for field in self.layout.fields))
        assert self._struct.size == self.layout.record_bytes

    def pack(self, tail: bytes | None = None, **values: int) -> bytes:
        if tail is not None:
            values["tail_bytes"] = len(tail)
        unknown = set(values) - set(self._names)
        if unknown:
            raise TypeError(f"{self.layout.name} has no field {', '.join(sorted(unknown))}")
        fixed = self._struct.pack(*(values.get(name, 0) for name in self._names))
        return fixed if tail is None else fixed + tail + b"\0" * (-len(tail) % 8)


def records_with_tails(layout: Layout, payload: bytes) -> list[tuple[dict[str, int], bytes]]:
    """Records of a kind with variable tails; stops at one whose length does not fit."""
    codes = struct.Struct("<" + "".join(_STRUCT_CODES[field.code] for field in layout.fields))
    names = [field.name for field in layout.fields]
    found = []
    at = 0
    while at + codes.size <= len(payload):
        values = dict(zip(names, codes.unpack_from(payload, at), strict=True))
        at += codes.size
        tail_bytes = values["tail_bytes"]
        if at + tail_bytes > len(payload):
            break
        found.append((values, payload[at : at + tail_bytes]))
        at += tail_bytes + (-tail_bytes % 8)
    return found
