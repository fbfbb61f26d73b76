"""Programs and libraries that `memlens cc` builds, in all the ways that build systems build them, run and count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from count_arena import Arena
from count_runs import (
    HAVE,
    VERSIONS,
    built,
    compile_with,
    counted_functions,
    counted_run,
    each_clang_at_length,
    environment,
    needs,
)
from count_runs import needs_clang as needs_any_clang

MAIN = """
#include <stdio.h>
#include <stdlib.h>
long total(const long *values, long n);
long other(const long *values, long n);
int main(int argc, char **argv) {
  long n = argc > 1 ? atol(argv[1]) : 1000;
  long *values = malloc(n * sizeof *values);
  for (long i = 0; i < n; i++) values[i] = i;
  printf("%ld %ld\\n", total(values, n), other(values, n));
  free(values);
  return 0;
}
"""
TOTAL = """
#include "shared.h"
long total(const long *values, long n) {
  long sum = 0;
#pragma memlens begin(total)
  for (long i = 0; i < n; i++) sum += pick(values, i);
#pragma memlens end
  return sum;
}
"""
OTHER = TOTAL.replace("total", "other")
SHARED = """
static inline long pick(const long *values, long i) { return values[i]; }
"""
PRINTED = "499500 499500\n"
SUMMED = "499500"
PLAIN_LOOPS = ("-fno-unroll-loops", "-fno-vectorize")
"""A counter of a loop's body is then its number of iterations."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in (("main.c", MAIN), ("total.c", TOTAL), ("other.c", OTHER), ("shared.h", SHARED)):
        (tmp_path / name).write_text(text)
    return tmp_path


def check(program: Path, *, printed: str = PRINTED, **variables: str) -> None:
    """It runs with and without a recorder, and both regions are counted."""
    quiet = subprocess.run([program], capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, printed, "")
    process, text = counted_run(program, **variables)
    assert text == printed
    for region in ("/total", "/other"):
        assert process.sum(region, "counted") == 1 and process.total(region) > 0


def two_steps(sources: Path, *flags: str, clang: str, link: tuple[str, ...] = ()) -> Path:
    """Compiles and links as make does; `link` is for the second step only."""
    objects = []
    for name in ("main", "total", "other"):
        built("-Werror", "-Wall", *flags, "-c", sources / f"{name}.c", "-o", sources / f"{name}.o", clang=clang)
        objects.append(sources / f"{name}.o")
    built("-Werror", *flags, *link, *objects, "-o", sources / "program", clang=clang)
    return sources / "program"


COMPILED = [
    ["-O0"], ["-O1"], ["-O2"], ["-O3"], ["-Os"], ["-O2", "-g"], ["-O2", "-g0"], ["-O2", "-fPIE"], ["-O3", "-march=native"],
    ["-O2", "-fPIC", "-fno-plt"], ["-O2", "-fno-exceptions", "-fomit-frame-pointer"], ["-flto"], ["-flto", "-O2"],
    ["-flto=thin", "-O2"], ["-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"],
]  # fmt: skip


@each_clang_at_length
@pytest.mark.parametrize("flags", COMPILED, ids=" ".join)
def test_compiled_and_linked_apart(sources: Path, clang: str, flags: list[str]) -> None:
    if "-flto" in " ".join(flags):
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    program = two_steps(sources, *flags, clang=clang)
    assert counted_functions(program) >= (1 if "-flto" in flags else 3)  # full optimisation inlines all into main
    check(program)


LINKED = [
    ("no-pie", ["-fno-pie"], ["-no-pie"]),
    ("pie", ["-fPIE"], ["-pie"]),
    ("static", [], ["-static"]),
    ("static-pie", ["-fPIE"], ["-static-pie"]),
    ("strip", [], ["-s"]),
    ("gc", ["-ffunction-sections", "-fdata-sections"], ["-Wl,--gc-sections"]),
    ("gc-lld", ["-ffunction-sections", "-fdata-sections"], ["-Wl,--gc-sections", "-fuse-ld=lld"]),
    ("icf-lld", ["-ffunction-sections"], ["-Wl,--gc-sections,--icf=all", "-fuse-ld=lld"]),
    ("relro-now", [], ["-Wl,-z,relro,-z,now,--as-needed"]),
    ("no-undefined", [], ["-Wl,--no-undefined,--fatal-warnings"]),
    ("static-lto", ["-flto"], ["-flto", "-static"]),
    ("rdynamic", [], ["-rdynamic"]),
]


@each_clang_at_length
@pytest.mark.parametrize(("compiled", "linked"), [case[1:] for case in LINKED], ids=[case[0] for case in LINKED])
def test_kinds_of_links(sources: Path, clang: str, compiled: list[str], linked: list[str]) -> None:
    if "lld" in " ".join(linked) or "-flto" in linked:
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    check(two_steps(sources, "-O2", *compiled, clang=clang, link=tuple(linked)))


@each_clang_at_length
def test_in_one_step_from_standard_input_and_a_response_file(sources: Path, clang: str) -> None:
    (sources / "files").write_text("-O2 total.c\nother.c")
    done = subprocess.run(
        [sys.executable, "-m", "memlens", "cc", "@files", "-o", "program", "-x", "c", "-"],
        input=MAIN,
        text=True,
        cwd=sources,
        env=environment(clang),
        capture_output=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    check(sources / "program")


@each_clang_at_length
def test_assembly_and_preprocessed_text_in_between(sources: Path, clang: str) -> None:
    built("-E", sources / "total.c", "-o", sources / "total.i", clang=clang)
    built("-O2", "-S", sources / "total.i", "-o", sources / "total.s", clang=clang)
    built("-c", sources / "total.s", "-o", sources / "total.o", clang=clang)
    built("-O2", "-S", "-emit-llvm", sources / "other.c", "-o", sources / "other.ll", clang=clang)
    built("-O2", "-c", sources / "other.ll", "-o", sources / "other.o", clang=clang)  # counted once, not twice
    built("-O2", sources / "main.c", sources / "total.o", sources / "other.o", "-o", sources / "program", clang=clang)
    check(sources / "program")


@each_clang_at_length
@pytest.mark.parametrize("linker", ["bfd", "lld"])
def test_dropped_functions_take_their_tables_along(sources: Path, clang: str, linker: str) -> None:
    if linker == "lld":
        needs("ld.lld", "lld")
    with (sources / "total.c").open("a") as file:
        file.write("long unused(const long *values, long n) { return total(values, n) + values[n]; }\n")
    kept = two_steps(sources, "-O2", "-ffunction-sections", clang=clang, link=(f"-fuse-ld={linker}",))
    everything = counted_functions(kept)
    dropped = two_steps(
        sources, "-O2", "-ffunction-sections", clang=clang, link=(f"-fuse-ld={linker}", "-Wl,--gc-sections")
    )
    assert counted_functions(dropped) == everything - 1
    check(dropped)


@each_clang_at_length
def test_stripped_afterwards_and_archives(sources: Path, clang: str) -> None:
    two_steps(sources, "-O2", clang=clang)
    subprocess.run(["ar", "rcs", sources / "libt.a", sources / "total.o", sources / "other.o"], check=True)
    built(sources / "main.o", "-L", sources, "-lt", "-o", sources / "program", clang=clang)
    subprocess.run(["strip", sources / "program"], check=True)
    check(sources / "program")
    whole = ("-Wl,--whole-archive", sources / "libt.a", "-Wl,--no-whole-archive")
    built(sources / "main.o", *whole, "-o", sources / "program", clang=clang)
    check(sources / "program")


@each_clang_at_length
def test_relocatable_links_in_between(sources: Path, clang: str) -> None:
    two_steps(sources, "-O2", clang=clang)
    built("-r", "-nostdlib", sources / "total.o", sources / "other.o", "-o", sources / "both.o", clang=clang)
    built(sources / "main.o", sources / "both.o", "-o", sources / "program", clang=clang)
    check(sources / "program")


@each_clang_at_length
def test_inline_functions_of_two_files_are_one(tmp_path: Path, clang: str) -> None:
    (tmp_path / "h.hpp").write_text(
        "template <class T> __attribute__((noinline)) T work(const T *p, long n) {\n  T sum{};\n"
        "#pragma memlens begin(work)\n  for (long i = 0; i < n; i++) sum += p[i];\n#pragma memlens end\n  return sum;\n}\n"
    )
    for name in "ab":
        (tmp_path / f"{name}.cpp").write_text(
            f'#include "h.hpp"\nlong {name}(const long *p) {{ return work(p, 100); }}\n'
        )
    (tmp_path / "m.cpp").write_text(
        "long a(const long *); long b(const long *);\nlong values[100];\nint main() { return int(a(values) + b(values)); }\n"
    )
    objects = []
    for name in "abm":
        objects.append(tmp_path / f"{name}.o")
        built("-O2", "-c", tmp_path / f"{name}.cpp", "-o", objects[-1], clang=clang, name="c++")
    for flags in ([], ["-fuse-ld=lld"]):
        if flags and shutil.which("ld.lld") is None:
            continue
        built(*flags, *objects, "-o", tmp_path / "program", clang=clang, name="c++")
        assert counted_functions(tmp_path / "program") == sum(map(counted_functions, objects)) - 1
        process, _ = counted_run(tmp_path / "program")
        assert process.sum("/work", "counted") == 2


# ---- shared libraries ------------------------------------------------------------------------


@each_clang_at_length
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-Wl,-Bsymbolic"],
        ["-Wl,-z,defs"],
        ["-fvisibility=hidden"],
        ["-flto"],
        ["-fuse-ld=lld"],
        ["script", "bfd"],
        ["script", "lld"],
        ["named script", "bfd"],
        ["named script", "lld"],
    ],
    ids=lambda flags: "-".join(flags) or "plain",
)
def test_a_library_counts_for_the_region_of_its_caller(tmp_path: Path, clang: str, flags: list[str]) -> None:
    if flags in (["-flto"], ["-fuse-ld=lld"]):
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    if "script" in flags[:1] or "named script" in flags:
        version = "V_1 " if "named script" in flags else ""
        (tmp_path / "script").write_text(f"{version}{{ global: summed; local: *; }};\n")
        flags = [f"-Wl,--version-script={tmp_path / 'script'}", f"-fuse-ld={flags[1]}"]
    (tmp_path / "lib.c").write_text(
        '__attribute__((visibility("default"))) long summed(const long *v, long n) {\n'
        "  long s = 0;\n  for (long i = 0; i < n; i++) if (v[i] & 1) s += v[v[i]];\n  return s;\n}\n"
    )
    (tmp_path / "m.c").write_text(
        "long summed(const long *, long);\nstatic long v[64];\n"
        "int main(void) {\n#pragma memlens begin(caller)\n  long s = summed(v, 64);\n#pragma memlens end\n  return (int)s;\n}\n"
    )
    built("-O2", *PLAIN_LOOPS, "-fPIC", "-shared", *flags, tmp_path / "lib.c", "-o", tmp_path / "libs.so", clang=clang)
    built("-O2", tmp_path / "m.c", "-L", tmp_path, "-ls", f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "m", clang=clang)
    process, _ = counted_run(tmp_path / "m")
    assert {Path(module.path).name for module in process.modules} == {"m", "libs.so"}
    inside = [int(place.counters["libs.so"].max()) for place in process.places if place.path == "/caller"]
    outside = [int(place.counters["libs.so"].sum()) for place in process.places if place.path == ""]
    assert sum(inside) == 64 and sum(outside) == 0


@each_clang_at_length
def test_dlopen_and_a_host_that_was_not_built_by_us(tmp_path: Path, clang: str) -> None:
    (tmp_path / "lib.c").write_text(
        "long table[8];\nlong plugin(long n) {\n  long s = 0;\n#pragma memlens begin(plugin)\n"
        "  for (long i = 0; i < n; i++) s += ((volatile long *)table)[i & 7];\n#pragma memlens end\n  return s;\n}\n"
    )
    (tmp_path / "m.c").write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\nint main(int argc, char **argv) {\n"
        "  for (int i = 0; i < 3; i++) {\n    void *h = dlopen(argv[1], RTLD_NOW);\n"
        "    if (!h) { puts(dlerror()); return 1; }\n"
        '    long (*f)(long) = (long (*)(long))dlsym(h, "plugin");\n    f(100);\n    dlclose(h);\n  }\n  return 0;\n}\n'
    )
    built("-O2", *PLAIN_LOOPS, "-fPIC", "-shared", tmp_path / "lib.c", "-o", tmp_path / "libp.so", clang=clang)
    built("-O2", tmp_path / "m.c", "-o", tmp_path / "ours", clang=clang)
    built("-O2", "--memlens=none", tmp_path / "m.c", "-o", tmp_path / "theirs", clang=clang)
    for host in ("ours", "theirs"):
        # Without a counted host the runtime comes and goes with the library: one image each time.
        arena = Arena()
        arena.run(tmp_path / host, tmp_path / "libp.so")
        images = arena.processes()
        arena.close()
        assert sum(image.sum("/plugin", "counted") for image in images) == 3
        most = [max(int(p.counters["libp.so"].max()) for p in i.places if p.path == "/plugin") for i in images]
        assert sum(most) == 300 and len(images) == (1 if host == "ours" else 3)
    arena = Arena()
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'libp.so')!r}).plugin(10)"
    arena.run(sys.executable, "-c", code)
    assert arena.process().sum("/plugin", "counted") == 1
    arena.close()


# ---- build systems ---------------------------------------------------------------------------------


@each_clang_at_length
def test_parallel_make(sources: Path, clang: str) -> None:
    needs("make", "make")
    names = [f"part{i}" for i in range(12)]
    for name in names:
        (sources / f"{name}.c").write_text(f"long {name}(const long *v) {{ return v[0] + v[1]; }}\n")
    (sources / "Makefile").write_text(
        f"OBJECTS = main.o total.o other.o {' '.join(name + '.o' for name in names)}\nCFLAGS = -O2\n"
        "program: $(OBJECTS)\n\t$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)\n"
    )
    done = subprocess.run(
        ["make", "-j4", "CC=memlens cc"], cwd=sources, env=environment(clang), capture_output=True, text=True
    )
    if shutil.which("memlens", path=environment()["PATH"]) is None:
        pytest.skip("the package is not installed with its scripts: make build")
    assert done.returncode == 0 and not done.stderr, done.stderr
    check(sources / "program")


@each_clang_at_length
def test_cmake(sources: Path, clang: str) -> None:
    needs("cmake", "cmake")
    (sources / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(p C CXX)\nset(CMAKE_BUILD_TYPE Release)\n"
        "include(CheckIPOSupported)\ncheck_ipo_supported(RESULT ipo)\n"
        "find_package(Threads REQUIRED)\nadd_library(t SHARED total.c)\nadd_library(o STATIC other.c)\n"
        "add_executable(program main.c)\ntarget_link_libraries(program t o Threads::Threads)\n"
    )
    build = sources / "build"
    for command in (
        ["cmake", "-S", sources, "-B", build, "-DCMAKE_C_COMPILER=memlens-cc", "-DCMAKE_CXX_COMPILER=memlens-c++"],
        ["cmake", "--build", build],
    ):
        done = subprocess.run(command, env=environment(clang), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr
    check(build / "program")


@each_clang_at_length
def test_cplusplus_with_everything_from_the_standard_library(tmp_path: Path, clang: str) -> None:
    (tmp_path / "a.cpp").write_text(
        "#include <iostream>\n#include <thread>\n#include <vector>\n#include <numeric>\n#include <memory.h>\n"
        "int main() {\n  std::vector<long> v(1000);\n  std::iota(v.begin(), v.end(), 0);\n  long s = 0;\n"
        "#pragma memlens begin(total)\n  std::thread t([&] { for (long x : v) s += x; });\n  t.join();\n#pragma memlens end\n"
        "#pragma memlens begin(other)\n  s = std::accumulate(v.begin(), v.end(), 0L);\n#pragma memlens end\n"
        "  try { throw 1; } catch (int) { std::cout << s << '\\n'; }\n}\n"
    )
    for flags in (["-O0"], ["-O2"], ["-O2", "-static"], ["-O2", "-flto", "-fuse-ld=lld"]):
        if "-flto" in flags:
            needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
        built(*flags, tmp_path / "a.cpp", "-o", tmp_path / "a", clang=clang, name="c++")
        check(tmp_path / "a", printed=f"{SUMMED}\n")


@each_clang_at_length
def test_openmp_threads_count_for_the_region_that_gave_them_work(tmp_path: Path, clang: str) -> None:
    major = clang.rpartition("-")[2]
    if not Path(f"/usr/lib/llvm-{major}/lib/libomp.so").exists():
        pytest.skip(f"no OpenMP runtime of LLVM {major}: sudo apt-get install libomp-{major}-dev")
    (tmp_path / "a.c").write_text(
        "long a[1 << 16];\nint main(void) {\n  long s = 0;\n#pragma memlens begin(reduce)\n"
        "#pragma omp parallel for reduction(+ : s) schedule(static)\n"
        "  for (long i = 0; i < 1 << 16; i++) if (!(a[i] & 1)) s += a[a[i] & 1023];\n#pragma memlens end\n  return (int)s;\n}\n"
    )
    built("-O2", *PLAIN_LOOPS, "-fopenmp", tmp_path / "a.c", "-o", tmp_path / "a", clang=clang)
    process, _ = counted_run(tmp_path / "a", OMP_NUM_THREADS="3")
    places = [place for place in process.places if place.path == "/reduce"]
    assert sorted(int(place.counters["a"].max()) for place in places) == [21845, 21845, 21846]


@each_clang_at_length
@pytest.mark.parametrize("flag", ["-fsanitize=address", "-fsanitize=undefined", "-fsanitize=thread"])
def test_sanitizers(sources: Path, clang: str, flag: str) -> None:
    probe = sources / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    major = clang.rpartition("-")[2]
    if compile_with("--memlens=none", flag, probe, "-o", sources / "probe", clang=clang).returncode:
        pytest.skip(f"no sanitizer runtime: sudo apt-get install libclang-rt-{major}-dev")
    if subprocess.run([sources / "probe"], capture_output=True).returncode:
        pytest.skip(f"{flag} does not run on this machine")
    check(two_steps(sources, "-O1", flag, clang=clang))


# ---- versions --------------------------------------------------------------------------------------


@each_clang_at_length
@pytest.mark.parametrize("linker", ["bfd", "lld"])
def test_objects_of_another_version_do_not_link_and_the_linker_says_why(sources: Path, clang: str, linker: str) -> None:
    if linker == "lld":
        needs("ld.lld", "lld")
    two_steps(sources, "-O2", clang=clang)
    symbol = "memlens_count_abi_{}__all_objects_must_be_built_by_one_memlens_version"
    subprocess.run(
        ["objcopy", f"--redefine-sym={symbol.format(2)}={symbol.format(99)}", sources / "other.o"], check=True
    )
    objects = [sources / f"{name}.o" for name in ("main", "total", "other")]
    done = compile_with(f"-fuse-ld={linker}", *objects, "-o", sources / "program", clang=clang)
    assert done.returncode != 0
    assert symbol.format(99) in done.stderr


@needs_any_clang
def test_objects_of_two_clangs_link(sources: Path) -> None:
    if len(VERSIONS) < 2:
        pytest.skip("needs two versions of LLVM: sudo apt-get install clang-16 llvm-16-dev")
    for name, major in (("main", VERSIONS[0]), ("total", VERSIONS[-1]), ("other", VERSIONS[0])):
        built("-O2", "-c", sources / f"{name}.c", "-o", sources / f"{name}.o", clang=f"clang-{major}")
    objects = [sources / f"{name}.o" for name in ("main", "total", "other")]
    built(*objects, "-o", sources / "program", clang=f"clang-{VERSIONS[0]}")
    check(sources / "program")


# ---- other machines -----------------------------------------------------------------------------------

MACHINES = {
    "aarch64": ("aarch64-linux-gnu", "arm64"),
    "riscv64": ("riscv64-linux-gnu", "riscv64"),
    "ppc64le": ("powerpc64le-linux-gnu", "ppc64el"),
}


@each_clang_at_length
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("flags", [[], ["-static"]], ids=["dynamic", "static"])
def test_cross_compiled_programs_run_under_qemu(sources: Path, clang: str, machine: str, flags: list[str]) -> None:
    triple, debian = MACHINES[machine]
    if os.uname().machine == machine:
        pytest.skip("this machine")
    if machine not in HAVE.archives:
        pytest.skip(
            f"no library for {machine}: sudo apt-get install gcc-{triple} libc6-dev-{debian}-cross; then: make build"
        )
    needs(f"qemu-{machine}", "qemu-user")
    names = [sources / f"{name}.c" for name in ("main", "total", "other")]
    built("-O2", f"--target={triple}", *flags, *names, "-o", sources / "program", clang=clang)
    arena = Arena(file_bytes=1 << 34)
    done = arena.run(
        f"qemu-{machine}", "-L", f"/usr/{triple}", sources / "program", environment={"QEMU_LD_PREFIX": f"/usr/{triple}"}
    )
    assert done.stdout == PRINTED
    process = arena.process()
    arena.close()
    assert process.sum("/total", "counted") == 1 and process.total("/total") > 0


@needs_any_clang
def test_the_contract_names_what_the_driver_exports() -> None:
    text = (ROOT / "format" / "memlens_count.h").read_text()
    assert "__memlens_count_base" in text and "memlens_count_abi_2__all_objects" in text
