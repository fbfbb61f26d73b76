"""Compiled-in counting without a compiler: an encoder of static tables, ELF files that carry them, and programs that
write the arena by the contract (format/memlens_count.h), so that what is read back is known in advance."""

from __future__ import annotations

import functools
import os
import shlex
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders import CaptureBuilder
from conftest import MEMLENS, ROOT

FUNCTIONS_ADDRESS, TABLES_ADDRESS = 0x4000, 0x2000
LOAD, STORE, ATOMIC, COPY, FILL, READ, CALL, PREFETCH = range(8)
BLOCK, ENTRY, EXIT, BYTES, KEPT = range(5)
STACK_READ, STACK_WRITTEN, VECTOR, MASKED, FLOAT = 1, 2, 4, 8, 128
MIX_FLAG, ENTRY_FLAG, NAKED_FLAG, LOOPS_FLAG = 1, 4, 8, 1024


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 127
        value >>= 7
        out.append(byte | (128 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 127
        value >>= 7
        done = (value == 0 and not byte & 64) or (value == -1 and byte & 64)
        out.append(byte | (0 if done else 128))
        if done:
            return bytes(out)


@dataclass
class Site:
    kind: int
    group: int
    bytes: int = 8
    flags: int = 0
    block: int = 0
    bytes_counter: int | None = None
    scope: int | None = None
    file: str = "kernel.c"
    line: int = 10
    column: int = 3
    callee: str = ""
    loop: int | None = None


@dataclass
class Loop:
    parent: int | None = None
    scope: int | None = None
    file: str = "kernel.c"
    line: int = 9
    column: int = 3


@dataclass
class Block:
    group: int
    depth: int = 0
    line: int = 9
    mix: tuple[int, ...] = (0,) * 7


@dataclass
class Scope:
    name: str
    file: str = "inlined.h"
    line: int = 5
    parent: int | None = None
    call_line: int = 12
    call_column: int = 7


@dataclass
class Function:
    """One counted function; groups are lists of (counter, scale)."""

    name: str
    counters: list[int] = field(default_factory=lambda: [BLOCK])
    groups: list[list[tuple[int, int]]] = field(default_factory=lambda: [[], [(0, 1)]])
    blocks: list[Block] = field(default_factory=lambda: [Block(1)])
    sites: list[Site] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    file: str = "kernel.c"
    line: int = 1
    flags: int = 0
    loops: list[Loop] = field(default_factory=list)

    def table(self) -> bytes:
        texts = [""]

        def text(value: str) -> bytes:
            if value not in texts:
                texts.append(value)
            return uleb(texts.index(value))

        body = text(self.name) + text(self.file) + uleb(self.line)
        body += uleb(len(self.counters)) + b"".join(map(uleb, self.counters))
        body += uleb(len(self.groups))
        for terms in self.groups:
            body += uleb(len(terms)) + b"".join(uleb(counter) + sleb(scale) for counter, scale in terms)
        body += uleb(len(self.scopes))
        for scope in self.scopes:
            body += text(scope.name) + text(scope.file) + uleb(scope.line)
            body += (
                uleb(0 if scope.parent is None else scope.parent + 1) + uleb(scope.call_line) + uleb(scope.call_column)
            )
        body += uleb(len(self.blocks))
        for block in self.blocks:
            body += uleb(block.group) + uleb(block.depth) + uleb(block.line)
            if self.flags & MIX_FLAG:
                body += b"".join(map(uleb, block.mix))
        body += uleb(len(self.sites))
        for site in self.sites:
            body += uleb(site.kind) + uleb(site.flags) + uleb(site.block) + uleb(site.group) + uleb(site.bytes)
            body += uleb(0 if site.bytes_counter is None else site.bytes_counter + 1)
            body += uleb(0 if site.scope is None else site.scope + 1)
            body += text(site.file) + uleb(site.line) + uleb(site.column) + text(site.callee)
        if self.flags & LOOPS_FLAG:
            body += uleb(len(self.loops))
            for loop in self.loops:
                body += uleb(0 if loop.parent is None else loop.parent + 1) + uleb(
                    0 if loop.scope is None else loop.scope + 1
                )
                body += text(loop.file) + uleb(loop.line) + uleb(loop.column)
            body += b"".join(uleb(0 if site.loop is None else site.loop + 1) for site in self.sites)
        strings = b"".join(uleb(len(value.encode())) + value.encode() for value in texts)
        return uleb(2 if self.flags & LOOPS_FLAG else 1) + uleb(self.flags) + uleb(len(texts)) + strings + body


def sections(functions: list[Function]) -> tuple[bytes, int, bytes, int]:
    """Both sections and their addresses, as a linker would lay them out."""
    heads, tables = b"", b""
    for number, function in enumerate(functions):
        table = function.table()
        member = FUNCTIONS_ADDRESS + 40 * number + 8
        heads += struct.pack(
            "<QqIIQII", 0, TABLES_ADDRESS + len(tables) - member, len(function.counters), len(table), 0, 0, 0
        )
        tables += table
    return heads, FUNCTIONS_ADDRESS, tables, TABLES_ADDRESS


class CountBuilder(CaptureBuilder):
    """Captures of a counted program."""

    def __init__(self) -> None:
        super().__init__()
        self.event(1, "fork").event(2, "exec", name="/bin/counted")
        self.meta = {"collectors": {"count": {"sampling": "all", "events": [], "add_ps": 500}}, "wall_s": 1.0}

    def module(
        self, functions: list[Function], *, name: str = "b0b0", image: int = 1, path: str = "/bin/counted"
    ) -> CountBuilder:
        heads, heads_at, tables, tables_at = sections(functions)
        self.add("count_tables", 0, tail=heads + tables, functions_address=heads_at, functions_bytes=len(heads),
                 tables_address=tables_at, tables_bytes=len(tables), module=self.string(name))  # fmt: skip
        return self.loaded(name=name, image=image, path=path, counters=sum(len(f.counters) for f in functions))

    def loaded(
        self, *, name: str = "b0b0", image: int = 1, path: str = "/bin/counted", counters: int = 1
    ) -> CountBuilder:
        self.add("counted_module", 1, image=image, module=self.string(name), path=self.string(path), counters=counters)
        return self

    def status(self, *, image: int = 1, born_ns: int = 10, ended_ns: int = 10**9, **fields: int) -> CountBuilder:
        self.add("count_status", 1, image=image, born_ns=born_ns, ended_ns=ended_ns, pid=1001, clock=1,
                 ticks_per_second=10**9, flags=1, **fields)  # fmt: skip
        return self

    def node(self, node: int, name: str, *, parent: int = 0, image: int = 1) -> CountBuilder:
        self.add("region_node", 1, image=image, node=node, parent=parent, name=self.string(name))
        return self

    def counted(self, values: dict[int, int], *, node: int = 0, thread: int = 100, epoch: int = 0, image: int = 1,
                module: str = "b0b0") -> CountBuilder:  # fmt: skip
        for counter, value in values.items():
            self.add("block_count", 1, value=value % 2**64, epoch=epoch, counter=counter, module=self.string(module),
                     image=image, node=node, thread=thread)  # fmt: skip
        return self

    def spanned(self, node: int, *, union_ns: int, image: int = 1, **fields: int) -> CountBuilder:
        """At least one thread was in the node for so long."""
        self.add("region_span", 1, node=node, image=image, union_ns=union_ns, **fields)
        return self

    def sampled(self, node: int, groups: list[tuple[int, int]], *, image: int = 1, thread: int = 100,
                module: str = "b0b0") -> CountBuilder:  # fmt: skip
        """Groups of (executions counted by chance, value of counter 0)."""
        for number, (counted, value) in enumerate(groups, 1):
            self.add("sample_group", 1, counted=counted, counted_ns=1000 * counted, group=number, image=image, node=node, thread=thread)  # fmt: skip
            self.add("sample_count", 1, value=value, group=number, counter=0, module=self.string(module), image=image,
                     node=node, thread=thread)  # fmt: skip
        return self

    def timed(self, node: int, *, counted: int = 1, counted_ns: int = 0, untouched: int = 0, untouched_ns: int = 0,
              self_ns: int | None = None, thread: int = 100, epoch: int = 0, image: int = 1, **fields: int) -> CountBuilder:  # fmt: skip
        fields = {"entered": counted + untouched, "first_ns": 100, "last_ns": 100 + counted_ns + untouched_ns, **fields}
        self.add("region_time", 1, node=node, thread=thread, epoch=epoch, image=image, counted=counted, counted_ns=counted_ns,
                 untouched=untouched, untouched_ns=untouched_ns, counted_self_ns=counted_ns if self_ns is None else self_ns,
                 untouched_self_ns=untouched_ns, **fields)  # fmt: skip
        return self


def build_program(path: Path, functions: list[Function], body: str, *, flags: tuple[str, ...] = ()) -> Path:
    """A program that carries the tables and writes the arena with the helpers of tests/native/counted_program.h.

    `body` is C: what `counted_main` does.
    """
    lines = []
    for number, function in enumerate(functions):
        table = ", ".join(map(str, function.table()))
        lines.append(
            f'__attribute__((section("memlens_tables"), used, aligned(1))) static const unsigned char table_{number}[] = {{{table}}};'
        )
    # The difference of two addresses in different sections is the assembler's to compute.
    entries = "\\n".join(
        f".quad 0\\n.quad table_{number} - .\\n.long {len(function.counters)}\\n.long {len(function.table())}\\n.quad 0\\n.quad 0"
        for number, function in enumerate(functions)
    )
    source = path.with_suffix(".c")
    source.write_text(
        '#include "counted_program.h"\n' + "\n".join(lines)
        + f'\n__asm__(".pushsection memlens_functions,\\"aw\\",@progbits\\n{entries}\\n.popsection");\n'
        + f"int main(int argc, char **argv) {{ (void)argc; (void)argv; open_arena();\n{body}\nreturn 0; }}\n"
    )  # fmt: skip
    subprocess.run(
        ["gcc", "-O1", "-g", "-Wl,--build-id", f"-I{ROOT / 'format'}", f"-I{ROOT / 'tests' / 'native'}", source, "-o", path, "-lpthread", *flags],
        check=True,
    )  # fmt: skip
    return path


@functools.cache
def _compiler() -> list[str]:
    """`memlens cc`; MEMLENS_TEST_CC names another."""
    command = shlex.split(os.environ.get("MEMLENS_TEST_CC", "")) or [*MEMLENS, "cc"]
    try:
        done = subprocess.run([*command, "-x", "c", "-c", "-o", os.devnull, "-"], input=b"int x;", capture_output=True)
    except OSError:
        return []
    return command if done.returncode == 0 else []


def compile_counted(source: Path, output: Path, *flags: str) -> Path:
    """A program built with `memlens cc -O2 -g`; skips where there is no compiler for it."""
    if not _compiler():
        pytest.skip("memlens cc does not work here: sudo apt-get install clang llvm-dev lld, then make build")
    subprocess.run([*_compiler(), "-O2", "-g", *flags, source, "-o", output, "-lpthread", "-lm"], check=True)
    return output
