"""Counts of a program built with `memlens cc` beside the emulator's of a plain build, function by function."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from count_runs import compile_with
from test_count_exact import ask, outermost, record


@dataclass
class Moved:
    """Bytes of a function, what is inlined into it included; `stack` is its own frame's part."""

    read: int = 0
    written: int = 0
    stack_read: int = 0
    stack_written: int = 0

    def add(self, row: dict[str, Any]) -> None:
        for name in ("read", "written", "stack_read", "stack_written"):
            setattr(self, name, getattr(self, name) + int(row[name] or 0))

    @property
    def outside(self) -> tuple[int, int]:
        """Bytes read and written outside the stack."""
        return self.read - self.stack_read, self.written - self.stack_written


def moved(rows: list[dict[str, Any]]) -> dict[str, Moved]:
    found: dict[str, Moved] = {}
    for row in rows:
        found.setdefault(outermost(row).strip(), Moved()).add(row)
    return found


def counted_bytes(capture: Path) -> dict[str, Moved]:
    return moved(
        ask(
            capture,
            "SELECT function, inlined_into, read_bytes AS read, written_bytes AS written, stack_read_bytes AS stack_read, "
            "stack_written_bytes AS stack_written FROM site_counts",
        )
    )


def exact_bytes(capture: Path) -> dict[str, Moved]:
    return moved(
        ask(
            capture,
            "SELECT function, inlined_into, load_bytes AS read, store_bytes AS written, stack_load_bytes AS stack_read, "
            "stack_store_bytes AS stack_written FROM code_counts c JOIN sites s ON c.code = s.id WHERE function IS NOT NULL",
        )
    )


def both(
    folder: Path, source: Path, *flags: str, target: str = "", clang: str = "", run: tuple[str, ...] = ()
) -> tuple[dict[str, Moved], dict[str, Moved]]:
    """What the counted build says of each function, and what the plain one did under the emulator."""
    name = "c++" if source.suffix == ".cpp" else "cc"
    machine = [f"--target={target}"] if target else []
    plain, made = folder / "plain", folder / "counted"
    for out, options in ((plain, ("--memlens=none",)), (made, ("--memlens-verify",))):
        done = compile_with(*options, *machine, *flags, "-g", "-w", source, "-o", out, clang=clang, name=name)
        assert done.returncode == 0, done.stderr
    judge, claim = folder / "judge.memlens", folder / "claim.memlens"
    done = record(judge, [str(plain), *run], "--emulate=counts,stack")
    assert done.returncode == 0, done.stderr
    again = record_counted(claim, made, *run, target=target)
    assert again.stdout == done.stdout
    return counted_bytes(claim), exact_bytes(judge)


def record_counted(capture: Path, program: Path, *run: str, target: str = "") -> subprocess.CompletedProcess[str]:
    launcher = [f"qemu-{target.split('-')[0].replace('powerpc', 'ppc')}", "-L", f"/usr/{target}"] if target else []
    done = record(
        capture, [*launcher, str(program), *run], "--collectors", "count", *(["--count=children"] if target else [])
    )
    assert done.returncode == 0, done.stderr
    return done
