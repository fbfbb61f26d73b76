"""The environment that makes a program and everything it starts load our library."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Literal

from .. import _recorder
from .links import plain_path

CHANNEL_VARIABLE = "MEMLENS_CHANNEL"
PT_INTERP, PT_NOTE = 3, 4


def runtime_directory() -> Path:
    """Where libmemlens.so and libmemlens.a are installed."""
    return Path(_recorder.__file__).parent / "runtime"


def include_directory() -> Path:
    """Where memlens.h is installed."""
    return Path(_recorder.__file__).parent / "include"


def library() -> Path:
    return runtime_directory() / "libmemlens.so"


def launcher() -> str | None:
    """The program that starts the user's, so that its peak RSS is its own; None in a build without it."""
    path = runtime_directory() / "memlens-launch"
    return str(path) if os.access(path, os.X_OK) else None


def preloading(
    channel_value: str, surroundings: dict[str, str] | None = None, *, program: str | None = None
) -> list[str]:
    """``NAME=VALUE`` strings for the program's environment.

    A program of another class or machine gets none: its loader would complain of our library. (The library does the same for
    what the program starts: native/runtime/loadable.c.)
    """
    if program is not None and is_foreign(program):
        return []
    environment = os.environ if surroundings is None else surroundings
    path = plain_path(library())
    others = environment.get("LD_PRELOAD", "")
    variables = [
        f"LD_PRELOAD={path}:{others}" if others else f"LD_PRELOAD={path}",
        f"{CHANNEL_VARIABLE}={channel_value}",
    ]
    # A program built with AddressSanitizer refuses to start when another library is loaded
    # before its own, unless it is told that this is meant.
    sanitizer = [option for option in environment.get("ASAN_OPTIONS", "").split(":") if option]
    if not any(option.startswith("verify_asan_link_order") for option in sanitizer):
        variables.append("ASAN_OPTIONS=" + ":".join([*sanitizer, "verify_asan_link_order=0"]))
    return variables


def is_foreign(program: str) -> bool:
    """An ELF program of another class, byte order or machine than we are, or a script of one."""
    with contextlib.suppress(OSError):
        own = _elf_kind(Path("/proc/self/exe"))
        path = Path(program)
        for _ in range(6):
            kind = _elf_kind(path)
            if kind is not None:
                return kind != own
            with open(path, "rb") as file:
                words = file.readline(256)
            if not words.startswith(b"#!") or not words[2:].split():
                return False
            path = Path(os.fsdecode(words[2:].split()[0]))
    return False


def _elf_kind(path: Path) -> tuple[int, int, bytes] | None:
    with open(path, "rb") as file:
        head = file.read(20)
    return (head[4], head[5], head[18:20]) if head[:4] == b"\x7fELF" and len(head) == 20 else None


def why_not(program: str) -> tuple[str, str] | None:
    """(reason, remedy) when the loader will not put our library into this program, None when it will."""
    name = os.path.basename(program)
    try:
        status = os.stat(program)
        with open(program, "rb") as file:
            head = file.read(64)
            if head[:2] == b"#!":
                return None  # its interpreter decides; what it starts is seen too
            if head[:4] != b"\x7fELF":
                return None
            wide, little = head[4] == 2, head[5] == 1
            if wide != (sys.maxsize > 2**32):
                return f"{name} is a 32-bit program", "build it for 64 bits"
            order: Literal["little", "big"] = "little" if little else "big"
            machine = int.from_bytes(head[18:20], order)
            with open("/proc/self/exe", "rb") as own:
                if int.from_bytes(own.read(20)[18:20], sys.byteorder) != machine:
                    return f"{name} is built for another kind of processor", "record it where it runs natively"
            offset = int.from_bytes(head[32:40], order)
            size, count = int.from_bytes(head[54:56], order), int.from_bytes(head[56:58], order)
            file.seek(offset)
            headers = file.read(size * count)
            annotated = _has_note(file, headers, size, order)
    except OSError:
        return None  # exec will say it
    if not any(int.from_bytes(headers[at : at + 4], order) == PT_INTERP for at in range(0, len(headers), size or 1)):
        if annotated:
            return (
                f"{name} is statically linked: its allocations are not recorded, its regions and tags are",
                "link it dynamically",
            )
        return (
            f"{name} is statically linked: no loader can preload a library (Go programs and Rust programs for musl are static)",
            "link it dynamically, or annotate it and link libmemlens.a for regions and tags",
        )
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() not in (0, status.st_uid):
        return f"{name} is setuid: the loader ignores other libraries in it", "run it as its owner"
    return None


def _has_note(file: BinaryIO, headers: bytes, size: int, order: Literal["little", "big"]) -> bool:
    """True when the archive for static programs is linked in: it has a note that annotations look for."""
    for at in range(0, len(headers), size or 1):
        if int.from_bytes(headers[at : at + 4], order) == PT_NOTE:
            file.seek(int.from_bytes(headers[at + 8 : at + 16], order))
            if b"memlens\0" in file.read(min(int.from_bytes(headers[at + 32 : at + 40], order), 1 << 16)):
                return True
    return False
