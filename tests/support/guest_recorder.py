"""Runs a program under qemu-user with the library inside the guest and a stand-in for the emulator's plugin.

As a script it is the recorder of one such run: the same Recorder as `memlens record`, given a command of qemu's words
and variables for a guest instead of for a native program. ::

    python guest_recorder.py OUTPUT {"command": [...], "variables": {...}}
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import memlens
from memlens.collect import preload

ROOT = Path(__file__).resolve().parents[2]
TRIPLES = {"x86_64": "", "aarch64": "aarch64", "riscv64": "riscv64", "ppc64le": "powerpc64le"}
"""qemu's name of a machine, and the compiler's."""
OTHERS = [name for name in TRIPLES if name != "x86_64"]


def compiler_of(machine: str) -> str:
    name = f"{TRIPLES[machine]}-linux-gnu-gcc" if TRIPLES[machine] else "gcc"
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed: sudo apt-get install gcc-{TRIPLES[machine].replace('_', '-')}-linux-gnu")
    return name


def library_of(machine: str) -> Path:
    path = preload.runtime_directory() / ("libmemlens.so" if machine == "x86_64" else f"libmemlens-{machine}.so")
    if not path.exists():
        pytest.skip(f"libmemlens.so is not built for {machine}: install its compiler, then make build")
    return path


@dataclass
class Guest:
    """A machine under the emulator, and what it leaves behind."""

    machine: str
    directory: Path
    plugin: Path | None
    fake_policy: bool = False
    runs: int = field(default=0)

    @property
    def log(self) -> Path:
        return self.directory / "calls.log"

    def calls(self, kind: str) -> list[list[str]]:
        """Lines of the stand-in's log: the words after `kind`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == kind]

    def words(self) -> list[str]:
        emulator = shutil.which(f"qemu-{self.machine}")
        if emulator is None:
            pytest.skip(f"qemu-{self.machine} is not installed: sudo apt-get install qemu-user")
        words = [emulator]
        if self.plugin is not None:
            words += ["-plugin", f"{self.plugin},log={self.log}" + (",policy=fake" if self.fake_policy else "")]
        if TRIPLES[self.machine]:
            words += ["-L", f"/usr/{TRIPLES[self.machine]}-linux-gnu"]
        return words

    def command(self, *program: str | Path) -> list[str]:
        preloaded = ["-E", f"LD_PRELOAD={library_of(self.machine)}"]
        return [*self.words(), *preloaded, *map(str, program)]

    def variables(self) -> dict[str, str]:
        return {"MEMLENS_EMULATOR": "\x1f".join([*self.words(), "--", "NAME=VALUE"])}

    def run(self, *program: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
        """Without a recorder."""
        environment = {**os.environ, **self.variables()}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            self.command(*program), **{"capture_output": True, "text": True, "timeout": 120, "env": environment, **more}
        )

    def record(
        self, *program: str | Path, status: int = 0, **more: object
    ) -> tuple[memlens.Capture, subprocess.CompletedProcess[str]]:
        """Every object of a program, and what it printed."""
        self.runs += 1
        output = self.directory / f"guest{self.runs}.memlens"
        what = {"command": self.command(*program), "variables": self.variables()}
        done = subprocess.run(  # type: ignore[call-overload]
            [sys.executable, __file__, str(output), json.dumps(what)],
            **{"capture_output": True, "text": True, "timeout": 240, **more},
        )
        assert done.returncode == status, done.stderr
        return memlens.open(output), done


def make_guest(directory: Path, machine: str, *, plugin: bool = True, fake_policy: bool = False) -> Guest:
    built = None
    if plugin:
        built = directory / "guest_plugin.so"
        source = ROOT / "tests" / "native" / "guest_plugin.c"
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(ROOT / "format")]
        subprocess.run(["gcc", *flags, str(source), "-o", str(built)], check=True)
    return Guest(machine, directory, built, fake_policy)


def build_program(
    directory: Path, machine: str, name: str, source: str | Path, *flags: str, compiler: str | None = None
) -> Path:
    """A program for a machine from C text or from a file of workloads/."""
    if isinstance(source, str):
        path = directory / f"{name}.c"
        path.write_text(source)
    else:
        path = source
    compiler = compiler or compiler_of(machine)
    standard = ["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-D_GNU_SOURCE"]
    standard += [
        "-fasynchronous-unwind-tables"
    ]  # backtrace() needs them; not every machine's compiler makes them unasked
    program = directory / name
    done = subprocess.run(
        [compiler, *standard, str(path), "-o", str(program), "-pthread", *flags, "-ldl"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return program


def without_ours(text: str) -> list[str]:
    """Lines of `env` that are not about memlens, sorted: qemu turns the order of variables around."""
    return sorted(line for line in text.splitlines() if not re.match(r"MEMLENS_\w+=|_=", line))


def main() -> None:
    output, what = Path(sys.argv[1]), json.loads(sys.argv[2])
    from memlens.collect import program, record_options, recorder
    from memlens.collect.collectors import alloc

    def for_a_guest(channel_value: str, *, program: str | None = None) -> list[str]:
        return [f"{preload.CHANNEL_VARIABLE}={channel_value}", *(f"{k}={v}" for k, v in what["variables"].items())]

    preload.preloading = for_a_guest  # type: ignore[assignment]
    exact = {"alloc": alloc.AllocOptions(sample_bytes=0)}
    options = record_options.RecordOptions(output=output, collectors=("alloc", "timeline"), settings=exact)
    outcome = recorder.Recorder(options).run_command(what["command"])
    assert outcome.wait_status is not None
    program.exit_like(outcome.wait_status)


if __name__ == "__main__":
    main()
