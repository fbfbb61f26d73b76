"""The unwinder of the preload library against libgcc's, in every shape of frame that compilers make; and wrong stacks."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

import memlens

NATIVE = ROOT / "tests" / "native"
INCLUDES = [f"-I{ROOT / folder}" for folder in ("native/runtime", "format", "native/include", "tests/native")]
SHAPES = {
    "O0": ["-O0"],
    "O2": ["-O2", "-fomit-frame-pointer"],
    "O2-frames": ["-O2", "-fno-omit-frame-pointer"],
    "O3-native": ["-O3", "-march=native"],
    "sections": ["-Os", "-ffunction-sections", "-fno-plt"],
}


def build(directory: Path, compiler: str, flags: list[str], *, cpp: str | None) -> Path:
    for tool in filter(None, (compiler, cpp)):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed: sudo apt-get install {tool.replace('++', '')}")
    program = directory / "oracle"
    objects = []
    for source, how in ((NATIVE / "unwind_oracle.c", flags), (ROOT / "native/runtime/unwind.c", ["-O2"])):
        into = directory / f"{source.stem}.o"
        command = [compiler, "-std=gnu11", *how, "-Wall", "-Wextra", *INCLUDES, "-c", str(source), "-o", str(into)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        objects.append(str(into))
    if cpp is not None:
        into = directory / "cases.o"
        cases = str(NATIVE / "unwind_oracle_cases.cpp")
        done = subprocess.run([cpp, "-std=c++17", *flags, *INCLUDES, "-c", cases, "-o", str(into)], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        objects.append(str(into))
    done = subprocess.run([cpp or compiler, *objects, "-o", str(program), "-pthread"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return program


def assert_agrees(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"checks=(\d+) differences=0 jit_not_walked=0", done.stdout)
    assert found is not None and int(found[1]) > 240, done.stdout


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the cases are written for these machines")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_stack_is_libgccs(tmp_path: Path, compiler: str, shape: str) -> None:
    cpp = {"gcc": "g++", "clang": "clang++"}[compiler]
    program = build(tmp_path, compiler, SHAPES[shape], cpp=cpp)
    assert_agrees(subprocess.run([program], capture_output=True, text=True, timeout=60))


@pytest.mark.slow
def test_a_million_wrong_stacks_are_survived(tmp_path: Path) -> None:
    program = build(tmp_path, "gcc", ["-O2"], cpp="g++")
    assert_agrees(subprocess.run([program, "1000000"], capture_output=True, text=True, timeout=300))


@pytest.mark.parametrize("shape", ["O0", "O2", "O2-frames"])
def test_every_stack_is_libgccs_on_aarch64(tmp_path: Path, shape: str) -> None:
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-aarch64 is not installed: sudo apt-get install qemu-user")
    if not shutil.which("aarch64-linux-gnu-gcc"):
        pytest.skip("the cross compiler is not installed: sudo apt-get install gcc-aarch64-linux-gnu")
    program = build(tmp_path, "aarch64-linux-gnu-gcc", SHAPES[shape], cpp=None)
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", str(program)]
    assert_agrees(subprocess.run(command, capture_output=True, text=True, timeout=120))


def test_the_whole_library_on_aarch64(tmp_path: Path) -> None:
    """Built for another processor and run by an emulator, writing its capture itself."""
    if not shutil.which("qemu-aarch64") or not shutil.which("aarch64-linux-gnu-gcc"):
        pytest.skip("not installed: sudo apt-get install qemu-user gcc-aarch64-linux-gnu")
    (tmp_path / "main.c").write_text(
        """
        #include <stdio.h>
        #include <stdlib.h>
        __attribute__((noinline)) void *inner(int n) { void *p = malloc(n); return p; }
        __attribute__((noinline)) int outer(int n) { free(inner(n)); return n; }
        int main(void) {
          int sum = 0;
          for (int i = 0; i < 5000; i++) sum += outer(20000 + i % 7);
          printf("%p %p %p\\n", (void *)inner, (void *)outer, (void *)main); return 3; }"""
    )
    sources = [str(path) for path in sorted((ROOT / "native/runtime").glob("*.c")) if path.stem != "static_start"]
    flags = [
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-Wall",
        "-Werror",
    ]
    no_builtin = [f"-fno-builtin-{name}" for name in ("malloc", "calloc", "realloc", "free")]
    library = tmp_path / "libmemlens.so"
    compiler = "aarch64-linux-gnu-gcc"
    subprocess.run([compiler, *flags, *no_builtin, *INCLUDES, *sources, "-o", library, "-ldl"], check=True)
    subprocess.run([compiler, "-O1", "-fno-builtin", tmp_path / "main.c", "-o", tmp_path / "main"], check=True)
    settings = {
        "LD_PRELOAD": library, "MEMLENS_OUTPUT": tmp_path / "c.memlens", "MEMLENS_SAMPLE_BYTES": "0",
    }  # fmt: skip
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    for name, value in settings.items():
        command += ["-E", f"{name}={value}"]
    done = subprocess.run([*command, str(tmp_path / "main")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    functions = [int(text, 16) for text in done.stdout.split()]
    capture = memlens.open(tmp_path / "c.memlens")
    rows = capture.table("allocations").to_pylist()
    born = [row for row in rows if 20000 <= row["bytes"] < 20007]
    assert len(born) == 5000 and sum(row["operation"] == "free" for row in rows) >= 5000
    known = {row["id"]: row for row in capture.table("stacks").to_pylist()}
    for stack in (known[number] for number in {row["stack"] for row in born}):
        assert not stack["truncated"]
        assert all(0 <= ip - function < 256 for ip, function in zip(stack["ips"], functions, strict=False))
