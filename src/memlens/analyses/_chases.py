"""Which loads lead themselves: the loaded value is the address, or the base of the address, of the same load's next execution.

Traced programs say so at compile time (``trace_sites.kind`` is ``chase``). Of others the instruction's bytes are read from its file: a load
into the register that it takes its address from. That alone would also hold for ``array[i]->field``, where another load has
just filled the register; so between two executions of it there must be no load from elsewhere: only from nearby (the same node) or from the stack.
Known for x86-64 and AArch64; a chase by index (``at = next[at]``) is not found this way, nor one beside other loads.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from ..capture.store.files import open_regular
from ..errors import CaptureError

if TYPE_CHECKING:
    from ..capture.model.locality import ThreadAccesses
    from ._pattern_types import InstructionRow

NODE_BYTES = 256
"""Loads this near to the chased address belong to the same node."""
MOST_FED = 0.1
"""Of a chase's steps may have a load from elsewhere between them."""
LOOKED_AT = 1 << 20
"""Accesses among which loads from elsewhere are looked for."""
X86_64, AARCH64 = 62, 183


def loads_its_own_base(code: bytes, machine: int) -> bool:
    """Whether an instruction loads a full pointer into the register that it takes its address from.

    >>> loads_its_own_base(bytes.fromhex("488b00"), 62)     # mov (%rax),%rax
    True
    >>> loads_its_own_base(bytes.fromhex("488b4708"), 62)   # mov 8(%rdi),%rax
    False
    """
    if machine == X86_64:
        return _x86_64(code)
    if machine == AARCH64 and len(code) >= 4:
        word = int.from_bytes(code[:4], "little")
        # LDR Xt, [Xn, #imm12] and LDUR Xt, [Xn, #imm9]; register 31 is the stack pointer as a base.
        is_load = word & 0xFFC00000 == 0xF9400000 or word & 0xFFE00C00 == 0xF8400000
        return is_load and word & 31 == word >> 5 & 31 and word & 31 != 31
    return False


def _x86_64(code: bytes) -> bool:
    # REX.W 8B /r: mov r64, [base + displacement].
    if len(code) < 3 or code[0] & 0xF8 != 0x48 or code[1] != 0x8B:
        return False
    rex, modrm = code[0], code[2]
    mode, register, base = modrm >> 6, (modrm >> 3 & 7) | (rex & 4) << 1, modrm & 7
    if mode == 3 or (mode == 0 and base == 5):  # a register, or relative to the instruction
        return False
    if base == 4:
        if len(code) < 4:
            return False
        index, base = (code[3] >> 3 & 7) | (rex & 2) << 2, code[3] & 7
        if index != 4 or (mode == 0 and base == 5):
            return False
    return register == base | (rex & 1) << 3


class _SitePlaces(TypedDict):
    """Columns of `sites`."""

    module: list[str | None]
    file_offset: list[int | None]


class Chases:
    """Answers for the instructions of a capture."""

    def __init__(self, accesses: ThreadAccesses) -> None:
        self._accesses = accesses
        self._capture = accesses.capture
        self._files: dict[str, tuple[object, int] | None] = {}
        self._fed: dict[int, float] | None = None

    @cached_property
    def _static(self) -> dict[int, bool]:
        """By code. Copies of a load that unrolling makes have one place in the source: where one of them is a chase, all are.

        Not of inlined functions: their loads have one place wherever they are called.
        """
        names = ["module", "function", "file", "line", "column", "operation", "inlined_into"]
        table = self._capture.table("trace_sites").select(["code", "kind", *names]).to_pydict()
        table["inlined_into"] = [bool(outer) for outer in table["inlined_into"]]
        places = list(zip(*(table[name] for name in names), strict=True))
        chased = {
            place
            for place, kind, inlined, line in zip(
                places, table["kind"], table["inlined_into"], table["line"], strict=True
            )
            if kind == "chase" and line and not inlined
        }
        return {
            code: kind == "chase" or place in chased
            for code, kind, place in zip(table["code"], table["kind"], places, strict=True)
        }

    @cached_property
    def _sites(self) -> _SitePlaces:
        sites: _SitePlaces = self._capture.replay.code_sites.select(["module", "file_offset"]).to_pydict()
        return sites

    def leads_itself(self, row: InstructionRow) -> bool | None:
        """Of a row of `patterns.by_instruction`; None where it cannot be told."""
        code = row["code"]
        if code is None:
            return None
        if code in self._static:
            return self._static[code]
        if row["operation"] != "load" or row["class"] != "irregular" or row["share"] < 0.001:
            return False if row["operation"] == "store" else None
        own = self._own_base(code)
        if not own:
            return own
        return self._fed_share(code) <= MOST_FED

    def _own_base(self, code: int) -> bool | None:
        if code >= len(self._sites["module"]):
            return None
        path, offset = self._sites["module"][code], self._sites["file_offset"][code]
        opened = self._open(path) if path and offset is not None else None
        if opened is None or offset is None:
            return None
        data, machine = opened
        return loads_its_own_base(bytes(data[offset : offset + 16]), machine) if machine in (X86_64, AARCH64) else None

    def _open(self, path: str) -> tuple[Any, int] | None:
        """(bytes, machine) of an ELF file that is still the one that ran."""
        import mmap

        if path in self._files:
            return self._files[path]
        found: tuple[object, int] | None = None
        statuses = self._capture.table("modules").select(["path", "status"]).to_pydict()
        is_same = not dict(zip(statuses["path"], statuses["status"], strict=True)).get(path)
        try:
            if is_same:
                with os.fdopen(open_regular(path), "rb") as file:
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if data[:6] == b"\x7fELF\x02\x01":
                    found = data, int.from_bytes(data[18:20], "little")
        except (OSError, ValueError, CaptureError):
            found = None
        self._files[path] = found
        return found

    def _fed_share(self, code: int) -> float:
        if self._fed is None:
            self._fed = {}
        if code not in self._fed:
            self._fed[code] = self._look(code)
        return self._fed[code]

    def _look(self, code: int) -> float:
        """The share of a load's steps with a load from elsewhere, not from its stack, in between."""
        import numpy as np

        steps = fed = looked = 0
        objects = self._capture.objects.everything
        on_stack = np.concatenate(([False], objects.is_kind("stack"))) if objects.count else None
        for batch in self._accesses:
            mine = np.flatnonzero(self._accesses.codes(batch) == code)
            looked += len(batch)
            if len(mine) > 1:
                nodes = batch.address[mine].astype(np.int64)
                # Each access lies between a step and the next; those before the first and after the last are left out.
                between = np.arange(mine[0] + 1, mine[-1])
                step = np.searchsorted(mine, between, side="right") - 1
                at = batch.address[between].astype(np.int64)
                far = (np.abs(at - nodes[step]) > NODE_BYTES) & (np.abs(at - nodes[step + 1]) > NODE_BYTES)
                far &= (batch.is_store[between] == 0) & (batch.pc[between] != batch.pc[mine[0]])
                if on_stack is not None and far.any():
                    where = np.flatnonzero(far)
                    found = objects.find(
                        batch.address[between[where]], batch.time_ns[between[where]], process=batch.process
                    )
                    far[where[on_stack[found]]] = False
                steps += len(mine) - 1
                fed += len(np.unique(step[far]))
            if looked >= LOOKED_AT and steps > 1000:
                break
        return fed / steps if steps else 1.0
