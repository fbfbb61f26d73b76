"""Which programs the collector alloc sees, of which language, allocator and build; docs/alloc-matrix.md says the same.

Each row builds a program, runs it with and without memlens (same output, same status), and asserts what was recorded.
Written anew by: python tests/collect/test_alloc_matrix.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from alloc_oracle import EVERY, births, releases
from conftest import ROOT, run_memlens

import memlens

DOCUMENT = ROOT / "docs" / "alloc-matrix.md"
LIBRARIES = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"
N = 1000

C = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
  for (int i = 0; i < 1000; i++) {
    char *p = malloc(20000); memset(p, 1, 20000); p = realloc(p, 31000); free(p);
    free(calloc(3, 7000)); }
  void *a = NULL; if (posix_memalign(&a, 64, 32000)) return 1; free(a);
  puts("end"); return 6; }
"""
CPP = """
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
int main() {
  for (int i = 0; i < 1000; i++) { char *p = new char[20000]; p[0] = 1; delete[] p; delete new std::string(19000, 'x'); free(malloc(31000)); }
  try { std::vector<char> v; v.resize(v.max_size()); } catch (const std::exception &) { std::puts("caught"); }
  std::puts("end"); return 6; }
"""
BUG = """
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int shared; static void *work(void *a) { for (int i = 0; i < 1000; i++) shared++; return a; }
int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  for (int i = 0; i < 1000; i++) free(malloc(20000));
  puts("begin");
  if (!strcmp(argv[1], "use")) { volatile char *p = malloc(10); free((void *)p); printf("%d\\n", p[argc]); }
  if (!strcmp(argv[1], "overflow")) { int x = INT_MAX; x += argc; printf("%d\\n", x); }
  if (!strcmp(argv[1], "leak")) { volatile char *p = malloc(7777); p[0] = 1; p = NULL; }
  if (!strcmp(argv[1], "race")) { pthread_t t; pthread_create(&t, 0, work, 0); work(0); pthread_join(t, 0); }
  puts("end"); return 0; }
"""
GO = """package main
import "fmt"
func main() { s := 0; for i := 0; i < 1000; i++ { b := make([]byte, 20000); s += len(b) }; fmt.Println(s) }
"""
RUST = """fn main() {
  let mut s = 0;
  for _ in 0..1000 { let v: Vec<u8> = vec![1; 20000]; s += v.len() * unsafe { std::ptr::read_volatile(v.as_ptr()) } as usize; }
  println!("{}", s); std::process::exit(6); }
"""
JAVA = """public class Main { public static void main(String[] a) {
  for (int i = 0; i < 200; i++) { java.nio.ByteBuffer.allocateDirect(20000).put(0, (byte) 1); } System.out.println("end"); } }
"""
NODE = "for (let i = 0; i < 1000; i++) Buffer.allocUnsafeSlow(20000).fill(1); console.log('end')"
NUMPY = "import numpy\nfor i in range(1000): numpy.ones(20000, dtype='u1')\nprint('end')"


@dataclass(frozen=True)
class Row:
    """One line of the matrix."""

    what: str
    level: str
    """fully, partly or no data."""
    says: str
    command: Callable[[Path], list[str]]
    births_of_20000: int | None = N
    """Objects of 20,000 bytes that must be there; None: at least one allocation."""
    released: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    report: str = ""
    """What the program must still report on standard error (a sanitizer's finding)."""
    note: str = ""
    """What memlens must say about it."""


def need(tool: str, package: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed: sudo apt-get install {package}")


def compiled(source: str, tool: str, *flags: str, package: str = "", suffix: str = "c") -> Callable[[Path], list[str]]:
    def build(directory: Path) -> list[str]:
        need(tool, package or tool)
        file = directory / f"main.{suffix}"
        file.write_text(source)
        common = ["-g", "-O1", "-fno-builtin", "-w"] if suffix in ("c", "cpp") else []
        command = [tool, *common, str(file), "-o", str(directory / "main"), *flags]
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory)
        if done.returncode != 0 and any(word in done.stderr for word in ("cannot find", "No such file", "toolchain")):
            pytest.skip(f"{tool} cannot build this here: sudo apt-get install {package or tool}")
        assert done.returncode == 0, done.stderr
        return [str(directory / "main")]

    return build


def with_words(build: Callable[[Path], list[str]], *words: str) -> Callable[[Path], list[str]]:
    return lambda directory: [*build(directory), *words]


def linked(name: str, package: str) -> Callable[[Path], list[str]]:
    return lambda directory: compiled(CPP, "g++", "-Wl,--no-as-needed", library(name, package), suffix="cpp")(directory)


def library(name: str, package: str) -> str:
    path = LIBRARIES / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: sudo apt-get install {package}")
    return str(path)


def go(directory: Path) -> list[str]:
    need("go", "golang-go")
    (directory / "main.go").write_text(GO)
    environment = {**os.environ, "GOCACHE": str(directory / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
    command = ["go", "build", "-o", "main", "main.go"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [str(directory / "main")]


I386 = """
.globl _start
_start: mov $4, %eax; mov $1, %ebx; mov $text, %ecx; mov $4, %edx; int $0x80
        mov $1, %eax; mov $6, %ebx; int $0x80
.section .rodata
text: .ascii "end\\n"
"""


def i386(directory: Path) -> list[str]:
    """From assembly: a 32-bit C library is rarely installed, and not needed to see what memlens says."""
    need("as", "binutils")
    (directory / "main.s").write_text(I386)
    for command in (["as", "--32", "main.s", "-o", "main.o"], ["ld", "-m", "elf_i386", "main.o", "-o", "main"]):
        if subprocess.run(command, cwd=directory, capture_output=True).returncode != 0:
            pytest.skip("binutils here make no 32-bit programs")
    program = str(directory / "main")
    if subprocess.run([program], capture_output=True).returncode != 6:
        pytest.skip("this kernel runs no 32-bit programs")
    return [program]


def java(directory: Path) -> list[str]:
    need("java", "default-jdk-headless")
    (directory / "Main.java").write_text(JAVA)
    return ["java", "-Xshare:auto", str(directory / "Main.java")]


def interpreter(*words: str, package: str) -> Callable[[Path], list[str]]:
    def command(directory: Path) -> list[str]:
        need(words[0], package)
        return list(words)

    return command


ALLOCATORS = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc2"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc2.0"),
}
STATIC_NOTE = "is statically linked"
OWN_MALLOC_NOTE = "its own malloc"
SEEN = "every object, its release and its call stack"
ROWS = [
    Row("C, gcc, glibc", "fully", SEEN, compiled(C, "gcc")),
    Row("C, clang, glibc", "fully", SEEN, compiled(C, "clang")),
    Row("C++, g++", "fully", f"{SEEN}; new and new[] by name", compiled(CPP, "g++", suffix="cpp")),
    Row("C++, clang++", "fully", f"{SEEN}; new and new[] by name", compiled(CPP, "clang++", package="clang", suffix="cpp")),
    *[
        Row(f"C++, {name} linked", "fully", f"{SEEN}, at the allocator's own operators too", linked(*where))
        for name, where in ALLOCATORS.items()
    ],
    *[
        Row(
            f"C++, {name} preloaded", "fully", f"{SEEN}, at the allocator's own operators too",
            compiled(CPP, "g++", suffix="cpp"), environment={"LD_PRELOAD": where[0]},
        )
        for name, where in ALLOCATORS.items()
    ],
    *[
        Row(f"gcc -fsanitize={flag}", "fully", f"{SEEN}; the sanitizer finds its bug",
            with_words(compiled(BUG, "gcc", f"-fsanitize={flag}", "-pthread"), bug), report=report)
        for flag, bug, report in (
            ("address", "use", "heap-use-after-free"), ("leak", "leak", "detected memory leaks"),
            ("thread", "race", "data race"), ("undefined", "overflow", "signed integer overflow"),
        )
    ],
    *[
        Row(f"clang -fsanitize={flag}", "no data", "its malloc is inside the program; memlens says so; the sanitizer finds its bug",
            with_words(compiled(BUG, "clang", f"-fsanitize={flag}", "-pthread"), bug), report=report,
            births_of_20000=0, note=OWN_MALLOC_NOTE)
        for flag, bug, report in (
            ("address", "use", "heap-use-after-free"), ("leak", "leak", "detected memory leaks"),
            ("thread", "race", "data race"),
        )
    ],
    Row("clang -fsanitize=undefined", "fully", f"{SEEN}; the sanitizer finds its bug",
        with_words(compiled(BUG, "clang", "-fsanitize=undefined"), "overflow"), report="signed integer overflow"),
    Row("C, static", "no data", "there is no loader to load us; memlens says so", compiled(C, "gcc", "-static"),
        births_of_20000=0, note=STATIC_NOTE),
    Row("C, static-pie", "no data", "there is no loader to load us; memlens says so",
        compiled(C, "gcc", "-static-pie", "-fPIE"), births_of_20000=0, note=STATIC_NOTE),
    Row("C, musl, dynamic", "fully", SEEN, compiled(C, "musl-gcc", package="musl-tools")),
    Row("C, musl, static", "no data", "there is no loader to load us; memlens says so",
        compiled(C, "musl-gcc", "-static", package="musl-tools"), births_of_20000=0, note=STATIC_NOTE),
    Row("32 bits", "no data", "our library is for 64 bits; memlens says so", i386,
        births_of_20000=0, note="is a 32-bit program"),
    Row("Rust, dynamic", "fully", SEEN, compiled(RUST, "rustc", "-O", package="rustc", suffix="rs")),
    Row("Rust, static", "no data", "there is no loader to load us; memlens says so",
        compiled(RUST, "rustc", "-O", "-C", "target-feature=+crt-static", package="rustc", suffix="rs"),
        births_of_20000=0, note=STATIC_NOTE),
    Row("Go", "no data", "static, with a heap of its own; memlens says so", go, births_of_20000=0, note=STATIC_NOTE),
    Row("Java", "partly", "direct buffers and what the virtual machine itself allocates, not the garbage-collected heap",
        java, births_of_20000=None, released=False),
    Row("node", "partly", "buffers and what the engine itself allocates, not the garbage-collected heap",
        interpreter("node", "-e", NODE, package="nodejs"), births_of_20000=None, released=False),
    Row("Python with NumPy", "partly", "arrays and objects above 512 bytes; smaller ones as the blocks that Python takes for them",
        lambda directory: [sys.executable, "-c", NUMPY]),
]  # fmt: skip


def markdown() -> str:
    lines = [
        "# Programs that the collector alloc supports",
        "",
        "Each line is what `tests/collect/test_alloc_matrix.py` asserts of a program that it builds: recorded with `--sample-bytes 0`, its",
        "output and its exit status are those without memlens. *fully* means that every object is recorded once, and released",
        "once; *no data* that memlens reports why. `python tests/collect/test_alloc_matrix.py` writes this page.",
        "",
        "| program | works | what is recorded |",
        "|---|---|---|",
        *[f"| {row.what} | {row.level} | {row.says} |" for row in ROWS],
        "",
        "Not recorded in any of them: memory that a program requests from the kernel by bare system calls, an allocator inside the program",
        "that is not called malloc, and what is allocated after the program has entered a seccomp sandbox (recording ends there, so",
        "that a system call of ours cannot kill it).",
        "",
    ]
    return "\n".join(lines)


def test_the_page_says_what_is_tested() -> None:
    assert DOCUMENT.read_text() == markdown(), "run: python tests/collect/test_alloc_matrix.py"


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_row(tmp_path: Path, row: Row) -> None:
    command = row.command(tmp_path)
    preloaded = row.environment.get("LD_PRELOAD")
    environment = {**os.environ, **({"LD_PRELOAD": library(preloaded, "it")} if preloaded else {})}
    native = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    output = tmp_path / "c.memlens"
    # ThreadSanitizer sees a race only where the threads happen to meet, LeakSanitizer a leak where no word of stacks happens to look like its address.
    for _ in range(5 if row.report in ("data race", "detected memory leaks") else 1):
        done = subprocess.run(
            [sys.executable, "-m", "memlens", "record", "--force", "-q", *EVERY, "-o", str(output), "--", *command],
            capture_output=True, text=True, env=environment, timeout=60,
        )  # fmt: skip
        if done.returncode == native.returncode:
            break
    assert (done.returncode, done.stdout) == (native.returncode, native.stdout), done.stderr
    if row.report:
        assert row.report in native.stderr and row.report in done.stderr
    else:
        assert done.stderr == native.stderr
    capture = memlens.open(output)
    rows = births(capture) if "alloc" in capture.meta["collectors"] else []
    found = [one for one in rows if one["bytes"] == 20000]
    if row.births_of_20000 is None:
        assert rows
    else:
        assert len(found) == row.births_of_20000
    if row.level == "fully":
        stacks = {one["id"]: one["ips"] for one in capture.table("stacks").to_pylist()}
        assert all(stacks[one["stack"]] for one in found)
    if found and row.released:
        live: dict[int, int] = {}
        events = sorted([*rows, *releases(capture)], key=lambda one: one["time_ns"])
        twice = 0
        for one in events:
            if one["operation"] in ("free", "delete"):
                twice += live.pop(one["address"], None) is None
            elif one["address"]:
                live[one["address"]] = one["bytes"]
        assert list(live.values()).count(20000) == 0
        assert twice <= 4, "releases of objects that were not seen"
    if row.note:
        said = run_memlens("report", output)
        words = " ".join((said.stdout + said.stderr).split())
        assert row.note in words, words


if __name__ == "__main__":
    DOCUMENT.write_text(markdown())
