"""Finds qemu-user and our plugin for a program, and makes the command line that runs it so.

The plugin (native/emulator) writes windows, stacks and modules through the channel. Exact counts are in the
*arena*, a memory file of the recorder that outlives every process; they become records when the program has ended.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....capture.store.arena_layouts import constants, layout
from ....errors import CollectorError, UsageError
from ... import preload
from ...links import plain_path

SEPARATOR = "\x1f"
EMULATOR_VARIABLE = "MEMLENS_EMULATOR"
ARENA_BYTES = 1 << 40
ARENA_FIRST_BYTE = constants()["ML_ARENA_FIRST_BYTE"]
ARENA_EXTENT = 1 << 20
RING_BYTES = 4 << 20
DEFAULT_WINDOW, DEFAULT_PERIOD = 1_000, 100_000

EM_PPC64, EM_X86_64, EM_AARCH64, EM_RISCV = 21, 62, 183, 243
MACHINES = {EM_X86_64: "x86_64", EM_AARCH64: "aarch64", EM_RISCV: "riscv64", EM_PPC64: "ppc64le"}
SYSROOTS = {
    "x86_64": "/usr/x86_64-linux-gnu",
    "aarch64": "/usr/aarch64-linux-gnu",
    "riscv64": "/usr/riscv64-linux-gnu",
    "ppc64le": "/usr/powerpc64le-linux-gnu",
}
LIBRARIES = {
    "x86_64": "libc6-dev-amd64-cross", "aarch64": "libc6-dev-arm64-cross", "riscv64": "libc6-dev-riscv64-cross",
    "ppc64le": "libc6-dev-ppc64el-cross",
}  # fmt: skip


@dataclass(frozen=True)
class EmulateOptions:
    """What `--emulate` records."""

    window: int = DEFAULT_WINDOW
    """Accesses recorded with their addresses at a time; 0: none."""
    period: int = DEFAULT_PERIOD
    """One window in so many executed accesses."""
    full: bool = False
    pages: bool = False
    stacks: bool = True
    split_stack: bool = False
    frames: bool = False
    """Tell stack and other memory apart at every access."""
    wait: bool = True
    cpu: str = ""
    seed: int = 0
    functions: str = ""

    @property
    def settings(self) -> dict[str, object]:
        """What a reader must know."""
        described: dict[str, object] = {"counts": True, "pages": self.pages, "stacks": self.stacks}
        if self.full:
            described["full"] = True
        elif self.window:
            described |= {"window": self.window, "period": self.period}
        if self.functions:
            described["functions"] = self.functions
        return described


def parse(text: str) -> EmulateOptions:
    """`counts`, `full`, `pages`, `stack`, `window=N`, `period=N`, `stacks=off`, `wait=off`, `cpu=NAME`, `seed=N`, joined by commas."""
    options = EmulateOptions()
    hint = "memlens record --help"
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if name == "counts" and not equals:
            options = replace(options, window=0, stacks=False)
        elif name == "full" and not equals:
            options = replace(options, full=True)
        elif name == "pages" and not equals:
            options = replace(options, pages=True, window=0, stacks=False)
        elif name == "stack" and not equals:
            options = replace(options, split_stack=True)
        elif name == "frames" and not equals:
            options = replace(options, split_stack=True, frames=True)
        elif name in ("window", "period", "seed"):
            try:
                number = int(value.replace("_", ""))
            except ValueError:
                number = -1
            if number < (0 if name == "seed" else 1):
                expected = "an integer of at least 0" if name == "seed" else "a positive integer"
                raise UsageError(f"--emulate: invalid value {value!r} for {name}; expected {expected}", hint=hint)
            changed: dict[str, Any] = {name: number}
            options = replace(options, **changed)
        elif name in ("stacks", "wait") and value in ("on", "off"):
            switched: dict[str, Any] = {name: value == "on"}
            options = replace(options, **switched)
        elif name == "cpu" and value:
            options = replace(options, cpu=value)
        else:
            raise UsageError(
                f"--emulate: unknown option {word!r}",
                hint="use counts, full, pages, stack, window=N, period=N, stacks=off, wait=off, cpu=NAME or seed=N",
            )
    if options.window > options.period:
        raise UsageError(
            f"--emulate: a window of {options.window} accesses does not fit a period of {options.period}", hint=hint
        )
    return options


# ---- what is installed ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Emulator:
    """One qemu-user that can run our plugin."""

    path: str
    version: str
    plugin_api: int
    """Of our plugin that fits."""


@functools.cache
def find(machine: str) -> Emulator | tuple[str, str]:
    """qemu-user for a machine, or (why not, what to type)."""
    path = shutil.which(f"qemu-{machine}")
    if path is None:
        if shutil.which(f"qemu-{machine}-static"):
            return (
                f"qemu-{machine}-static is there, but a static qemu cannot load plugins",
                "sudo apt-get install qemu-user",
            )
        return f"qemu-user for {machine} is not installed", "sudo apt-get install qemu-user"
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        usage = subprocess.run([path, "-help"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} does not run: {error}", "reinstall it: sudo apt-get install --reinstall qemu-user"
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        return f"{path} does not report its version", "install qemu-user 7.0 or newer"
    major, minor, _ = (int(number) for number in found.groups())
    version = found.group(0).removeprefix("version ")
    if "-plugin" not in usage:
        return (
            f"{path} {version} was built without plugins (Debian 13's is)",
            "install a qemu-user configured with --enable-plugins, and put it first in PATH",
        )
    if (major, minor) < (7, 0) or (major, minor) >= (11, 0):
        return (
            f"{path} is version {version}; this memlens has plugins for qemu 7.0 to 10.2",
            "put a qemu-user of these versions first in PATH",
        )
    api = 1 if major < 9 else 2
    if not plugin(api).is_file():
        return f"{plugin(api).name} is not installed beside memlens", "make build"
    return Emulator(path, version, api)


def plugin(api: int) -> Path:
    return preload.runtime_directory() / f"libmemlens_emulate_{api}.so"


def guest_library(machine: str) -> Path | None:
    """Our library for programs of that machine, if it was built."""
    own = os.uname().machine == machine
    path = preload.library() if own else preload.runtime_directory() / f"libmemlens-{machine}.so"
    return path if path.is_file() else None


# ---- the program --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Guest:
    """A program as the emulator must start it."""

    words: list[str]
    """Path and arguments, an interpreter put before a script."""
    argument0: str
    machine: str
    dynamic: bool
    interpreter: str


def examine(program: str, command: list[str]) -> Guest:
    """What kind of program this is; refuses what qemu-user cannot run."""
    words, argument0 = [program, *command[1:]], command[0]
    for _ in range(5):
        with open(words[0], "rb") as file:
            head = file.read(4096)
        if head[:2] != b"#!":
            break
        line = head[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").strip()
        interpreter, _, argument = line.partition(" ")
        words = [interpreter, *([argument.strip()] if argument.strip() else []), *words]
        argument0 = interpreter
    if head[:4] != b"\x7fELF":
        raise CollectorError(
            f"{program} is not a program that qemu can run (no ELF file)", hint="name its interpreter before it"
        )
    wide, little = head[4] == 2, head[5] == 1
    machine = int.from_bytes(head[18:20], "little" if little else "big")
    name = MACHINES.get(machine)
    if name is None or not wide or not little:
        kind = f"{'64' if wide else '32'}-bit {'little' if little else 'big'}-endian ELF machine {machine}"
        raise CollectorError(
            f"--emulate does not know this kind of program ({kind})", hint=f"it knows {', '.join(MACHINES.values())}"
        )
    interpreter = _interpreter(head, words[0])
    return Guest(words, argument0, name, bool(interpreter), interpreter)


def _interpreter(head: bytes, path: str) -> str:
    offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    with open(path, "rb") as file:
        file.seek(offset)
        headers = file.read(size * count)
        for at in range(0, len(headers) - size + 1, size or 1):
            if struct.unpack_from("<I", headers, at)[0] == preload.PT_INTERP:
                file.seek(struct.unpack_from("<Q", headers, at + 8)[0])
                return file.read(struct.unpack_from("<Q", headers, at + 32)[0]).rstrip(b"\0").decode()
    return ""


def sysroot(guest: Guest) -> str | None:
    """The directory under which the guest's libraries are; None: here."""
    if not guest.dynamic or (guest.machine == os.uname().machine and os.path.exists(guest.interpreter)):
        return None
    root = SYSROOTS[guest.machine]
    if os.path.exists(root + guest.interpreter):
        return root
    if os.path.exists(guest.interpreter):
        return None
    raise CollectorError(
        f"the {guest.machine} program needs {guest.interpreter}, which is neither here nor under {root}",
        hint=f"sudo apt-get install {LIBRARIES[guest.machine]}",
    )


@dataclass(frozen=True)
class Launch:
    """How to start the program under the emulator."""

    command: list[str]
    environment: list[str]
    guest: Guest
    emulator: Emulator
    notes: list[tuple[str, str]]
    """What is not seen in this program, and what would change that."""
    cpu: str
    """The processor asked for."""


def why_it_ended(launch: Launch, number: int) -> list[str]:
    """What a signal that ended the program says about the emulator."""
    if number != signal.SIGILL:
        return []
    qemu = f"qemu {launch.emulator.version}"
    if launch.cpu == "max":
        return [
            f"The program ended at an illegal instruction, though {qemu} had every extension that it knows (cpu=max): "
            "build it for an older processor (-march)."
        ]
    return [
        f"The program ended at an illegal instruction: {qemu} as {launch.cpu or 'its default processor'} may lack an "
        f"instruction-set extension that the program was built for. Try --emulate=cpu=max; qemu-{launch.guest.machine} "
        "-cpu help lists what there is."
    ]


def launch(
    options: EmulateOptions, program: str, command: list[str], channel: str, arena: Arena, *, loads_library: bool
) -> Launch:
    """`arena`: also keeps the plugin's list of functions."""
    guest = examine(program, command)
    emulator = find(guest.machine)
    if isinstance(emulator, tuple):
        raise CollectorError(f"collector emulate cannot run here: {emulator[0]}", hint=emulator[1])
    words = [
        os.path.abspath(emulator.path) if not emulator.path.startswith("/") else emulator.path,
        "-plugin",
        plain_path(plugin(emulator.plugin_api)),
    ]
    root = sysroot(guest)
    if root is not None:
        words += ["-L", root]
    if options.cpu:
        words += ["-cpu", options.cpu]
    notes: list[tuple[str, str]] = []
    preloaded: list[str] = []
    library = guest_library(guest.machine)
    if loads_library and not guest.dynamic:
        notes.append((
            f"{os.path.basename(program)} is statically linked: its allocations, memory policies and programs it starts are not seen",
            "link it dynamically",
        ))  # fmt: skip
    elif loads_library and library is None:
        notes.append((
            f"no library for {guest.machine} programs: their allocations and programs they start are not seen",
            f"install a cross compiler for {guest.machine} and build memlens again",
        ))  # fmt: skip
    elif loads_library:
        assert library is not None
        others = os.environ.get("LD_PRELOAD", "")
        path = plain_path(library)
        preloaded = ["-E", f"LD_PRELOAD={path}:{others}" if others else f"LD_PRELOAD={path}"]
    settings: dict[str, object] = {
        "arena": arena.path, "full": int(options.full), "pages": int(options.pages), "stacks": int(options.stacks),
        "wait": int(options.wait), "seed": options.seed, "stack": int(options.split_stack), "frames": int(options.frames),
    }  # fmt: skip
    if options.window and not options.full:
        settings |= {"window": options.window, "period": options.period}
    if options.functions:
        from .functions import list_of

        listed = list_of(options.functions, guest.words[0], guest.machine, root or "")
        settings["functions"] = arena.keep(listed)
    value = SEPARATOR.join([*words, "--", *(f"{name}={setting}" for name, setting in settings.items())])
    environment = [f"{preload.CHANNEL_VARIABLE}={channel}", f"{EMULATOR_VARIABLE}={value}"]
    if "LD_PRELOAD" in os.environ:  # qemu itself is a program of this machine and would load them too
        environment.append("LD_PRELOAD=")
        preloaded = preloaded or ["-U", "LD_PRELOAD"]
    return Launch(
        [*words, *preloaded, "-0", guest.argument0, "--", *guest.words],
        environment,
        guest,
        emulator,
        notes,
        options.cpu,
    )


# ---- the arena -----------------------------------------------------------------------------------------------------
class Arena:
    """The memory file with the processes' counters (format/memlens_emulator.h)."""

    _HEADER = layout("arena_header")
    MAGIC, VERSION = constants()["ML_ARENA_MAGIC"], constants()["ML_ARENA_VERSION"]

    def __init__(self, channel: str) -> None:
        token = [int(part, 16) for part in channel.split(":")[:2]]
        self.fd = os.memfd_create("memlens-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, ARENA_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        header = self._HEADER.format.pack(self.MAGIC, self.VERSION, *token, ARENA_BYTES, ARENA_FIRST_BYTE, 0)
        os.pwrite(self.fd, header, 0)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self._kept: list[int] = []

    def keep(self, text: str) -> str:
        """The path of a file in memory with this text, which ends with the arena: nothing is left on a disk."""
        descriptor = os.memfd_create("memlens-list", os.MFD_CLOEXEC)
        self._kept.append(descriptor)
        with open(descriptor, "w", closefd=False) as file:
            file.write(text)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    @property
    def refused(self) -> int:
        return self._header("refused")

    def _header(self, field: str) -> int:
        values = self._HEADER.format.unpack(os.pread(self.fd, self._HEADER.n_bytes, 0))
        return int(values[self._HEADER.fields.index(field)])

    def extents(self) -> Iterator[bytes]:
        # The guest can write to all of it: what its header says is a claim, and only what has memory behind it is read.
        end = min(self._header("next_byte"), ARENA_BYTES)
        at = ARENA_FIRST_BYTE
        while at < end:
            try:
                data = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:
                return  # no data from here to the end
            at += (data - at) // ARENA_EXTENT * ARENA_EXTENT
            if at < end:
                yield os.pread(self.fd, ARENA_EXTENT, at)
            at += ARENA_EXTENT

    def close(self) -> None:
        for descriptor in (self.fd, *self._kept):
            os.close(descriptor)
