"""Every x86-64 encoding with a memory operand, as GNU objdump reads it: the oracle of operand widths under emulation."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

SIZES = {
    "BYTE": 1,
    "WORD": 2,
    "DWORD": 4,
    "FWORD": 6,
    "QWORD": 8,
    "TBYTE": 10,
    "XMMWORD": 16,
    "OWORD": 16,
    "YMMWORD": 32,
}
MANDATORY = (b"", b"\x66", b"\xf3", b"\xf2")
SLOT = 16  # bytes for each encoding in the file that is disassembled
NOP = b"\x90"


@dataclasses.dataclass(frozen=True)
class Form:
    """One encoding with the operand [rdi] (a gather: [rdi + 8 * xmm7])."""

    code: bytes
    text: str  # Intel syntax, with its prefixes
    width: int  # bytes of the memory operand, as objdump prints it


def encodings() -> Iterator[bytes]:
    """All opcodes of the maps that qemu-user runs, with a memory operand at [rdi]."""
    tail = b"\x01" + NOP * 6  # an immediate operand: 1
    for prefix in (b"", b"\x66", b"\xf2", b"\xf3", b"\xf0"):
        for rex in (b"", b"\x48"):
            for opcode in range(256):
                for reg in range(8):
                    yield prefix + rex + bytes([opcode, reg << 3 | 7]) + tail
    for prefix in MANDATORY:
        for rex in (b"", b"\x48"):
            for escape in (b"\x0f", b"\x0f\x38", b"\x0f\x3a"):
                for opcode in range(256):
                    for reg in range(8):
                        yield prefix + rex + escape + bytes([opcode, reg << 3 | 7]) + tail
    for opmap in (1, 2, 3):
        for w in (0, 0x80):
            for low in range(8):  # L and pp
                for opcode in range(256):
                    for modrm in (b"\x17", b"\x14\xff"):  # xmm2, [rdi]; [rdi + 8 * xmm7]
                        for unused in (False, True):  # the second register operand
                            vex = bytes([0xC4, 0xE0 | opmap, w | (0x78 if unused else 0x70) | low, opcode])
                            yield vex + modrm + (b"\x10" if opcode in (0x4A, 0x4B, 0x4C) else b"\x01") + NOP * 4


LINE = re.compile(r"^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.*)$")
PTR = re.compile(r"(\w+) PTR ")


def disassembled(codes: list[bytes], folder: Path) -> Iterator[tuple[bytes, str]]:
    """Each encoding as objdump reads it: its own bytes and its text."""
    blob = folder / "forms.bin"
    blob.write_bytes(b"".join(code.ljust(SLOT, NOP)[:SLOT] for code in codes))
    command = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--insn-width=16", "-w", str(blob)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[int, tuple[bytes, str]] = {}
    for line in done.stdout.splitlines():
        match = LINE.match(line)
        if match:
            found[int(match[1], 16)] = (bytes.fromhex(match[2]), match[3].split("#")[0].strip())
    for index in range(len(codes)):
        if index * SLOT in found:
            yield found[index * SLOT]


def forms(folder: Path) -> list[Form]:
    """All encodings whose memory operand objdump prints with its size."""
    found: dict[bytes, Form] = {}
    codes = list(dict.fromkeys(encodings()))
    for code, text in disassembled(codes, folder):
        if "(bad)" in text or "[rdi" not in text:
            continue
        size = PTR.search(text)
        if size and size[1] in SIZES:
            found[code] = Form(code, re.sub(r"\s+", " ", text), SIZES[size[1]])
    return list(found.values())
