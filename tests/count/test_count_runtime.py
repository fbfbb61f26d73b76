"""The runtime inside counted programs (native/runtime/compiled): totals are exact, and belong to the region that did the work.

The programs do by hand what the compiler plugin does (tests/native/count_by_hand.h), so nothing here needs the plugin.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from count_arena import (
    ALL,
    BUDGET,
    ENDED,
    EVERY,
    MAX_OF_FUNCTION,
    RANDOM,
    UNATTRIBUTED,
    Arena,
    Process,
)

SOURCES = ROOT / "native" / "runtime" / "compiled"
NATIVE = ROOT / "tests" / "native"
INCLUDES = [f"-I{ROOT / part}" for part in ("format", "native/include", "native/runtime/compiled", "tests/native")]
FLAGS = [
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-O2",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-fno-stack-protector",
]
EXPORTED = [
    *(
        f"__memlens_count_{name}"
        for name in ("base", "enter", "enter_sampled", "leave", "unwound", "mark", "returned", "begin", "end")
    ),
    *(f"__memlens_count_{name}" for name in ("register", "unregister", "pthread_create", "thrd_create")),
    *("pthread_create", "thrd_create", "ompt_start_tool"),
]
EXPORTS = [f"-Wl,--export-dynamic-symbol={name}" for name in EXPORTED]
STATIC = ["-static", "-Wl,--wrap=pthread_create", "-Wl,--wrap=thrd_create"]
CROSS = {"aarch64": "aarch64", "riscv64": "riscv64", "powerpc64le": "ppc64le"}


class Builder:
    """Builds the runtime for one machine, and programs with it."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder, self.compiler = folder, f"{prefix}gcc"
        sources = sorted(SOURCES.glob("*.c"))
        subprocess.run([self.compiler, *FLAGS, *INCLUDES, "-c", *sources], check=True, cwd=folder)
        objects = [f"{source.stem}.o" for source in sources if source.stem != "dynamic"]
        subprocess.run([f"{prefix}ar", "rcs", "libmemlens_count.a", *objects], check=True, cwd=folder)

    def build(self, name: str, *arguments: str | Path, compiler: str | None = None, static: bool = False) -> Path:
        """A program: flags and sources, then the runtime as the driver adds it."""
        output = self.folder / name
        added = STATIC if static else [self.folder / "dynamic.o", *EXPORTS]
        command = [compiler or self.compiler, "-O2", "-g", "-Wall", *INCLUDES, "-o", output, *arguments]
        subprocess.run(
            [*command, *added, self.folder / "libmemlens_count.a", "-Wl,--build-id", "-pthread"],
            check=True,
            timeout=120,
        )
        return output

    def library(self, name: str, *arguments: str | Path) -> Path:
        return self.build(name, "-shared", "-fPIC", "-Wl,--wrap=pthread_create", *arguments, NATIVE / "count_library.c")


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("count"))


@pytest.fixture(scope="session", params=["gcc", "sanitized", "static"])
def program(request: pytest.FixtureRequest, builder: Builder) -> Path:
    source = NATIVE / "count_program.c"
    if request.param == "sanitized":
        return builder.build("sanitized", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", source)
    return builder.build(request.param, source, static=request.param == "static")


@pytest.fixture(scope="session")
def plain(builder: Builder) -> Path:
    return builder.build("plain", NATIVE / "count_program.c")


def count(program: Path, *arguments: object, status: int = 0, **settings: int) -> Process:
    arena = Arena(**settings)
    try:
        arena.run(program, *map(str, arguments), status=status)
        return arena.process()
    finally:
        arena.close()


# ---- totals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 4])
def test_totals_are_exact(program: Path, threads: int) -> None:
    process = count(program, "threads", threads, 100_000)
    assert process.totals() == {"": threads * 100_001}
    own = [p for p in process.places if p.thread != process.pid]
    assert [int(p.counters[program.name].sum()) for p in own] == [100_001] * threads
    assert all(p.flags & ENDED for p in own)
    assert process.content.threads_started == threads + 1


def test_a_module_is_named_by_path_and_build_id(plain: Path) -> None:
    process = count(plain, "flat", 9)
    (module,) = process.modules
    assert module.path == str(plain)
    assert module.content.first_counter >= MAX_OF_FUNCTION, "words that belong to nobody come first"
    assert (module.content.counters, module.content.functions) == (3, 1)
    listed = subprocess.run(["readelf", "-n", plain], capture_output=True, text=True, check=True).stdout
    assert bytes(module.content.build_id[: module.content.build_id_bytes]).hex() in listed


def test_the_archive_defines_no_name_that_a_program_could_have(builder: Builder) -> None:
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", "libmemlens_count.a", "dynamic.o"],
        cwd=builder.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[2] for line in listed.splitlines() if len(line.split()) == 3}
    prefixes = ("__memlens_count_", "__memlens_trace", "__wrap_", "memlens_count_abi_", "memlens_region_events_")
    others = {name for name in names if not name.startswith(prefixes)}
    assert others == {"pthread_create", "thrd_create", "ompt_start_tool"}


def test_a_program_that_brings_its_own_pthread_create_links(builder: Builder) -> None:
    own = builder.folder / "own_create.c"
    own.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <pthread.h>\n"
        "int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*s)(void *), void *p) {\n"
        '  return ((int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create"))(t, a, s, p); }\n'
    )
    program = builder.build("own_create", NATIVE / "count_program.c", own, "-Wl,--wrap=pthread_create")
    assert count(program, "threads", 4, 99).totals() == {"": 400}


# ---- regions ------------------------------------------------------------------------------------------------------
def test_nested_regions_count_for_their_path(program: Path) -> None:
    process = count(program, "nested")
    assert process.totals() == {"": 2, "/a": 30, "/a/b": 300, "/b": 5}
    assert [process.sum(path, "entered") for path in ("/a", "/a/b", "/b")] == [3, 3, 1]
    assert [process.sum(path, "counted") for path in ("/a", "/a/b", "/b")] == [3, 3, 1]
    outer, inner = (process.sum(path, "counted_ticks") for path in ("/a", "/a/b"))
    assert process.sum("/a", "counted_self_ticks") == outer - inner
    assert process.sum("/a/b", "least_ticks") * 3 <= inner <= process.sum("/a/b", "most_ticks") * 3


@pytest.mark.parametrize("depth", [4, 100])
def test_a_region_entered_again_while_open_is_one_execution(program: Path, depth: int) -> None:
    process = count(program, "recursive", depth)
    assert process.totals() == {"/a": (depth + 1) * 10}
    assert (process.sum("/a", "entered"), process.sum("/a", "counted")) == (1, 1)
    assert process.sum("/a", "recursions") + process.content.regions_too_deep == depth


def test_a_return_before_the_end_closes_the_region_at_the_next_switch(program: Path) -> None:
    process = count(program, "early")
    assert process.totals() == {"/a": 40, "/b": 300, "": 5}
    assert (process.sum("/a", "counted"), process.sum("/a", "abandoned")) == (4, 3)


def test_a_loop_that_leaves_out_the_end_does_not_pile_up(program: Path) -> None:
    process = count(program, "loop_without_end")
    assert process.totals() == {"/a": 2000}
    assert (process.sum("/a", "entered"), process.sum("/a", "abandoned")) == (200, 100)


def test_longjmp_past_the_end_of_two_regions_closes_both(program: Path) -> None:
    process = count(program, "jump")
    assert process.totals() == {"": 5, "/a": 100, "/a/b": 10, "/a/b/c": 10}
    assert [process.sum(path, "abandoned") for path in ("/a", "/a/b", "/a/b/c")] == [0, 1, 1]


def test_an_end_closes_what_is_open_above_it_and_one_without_a_begin_is_ignored(program: Path) -> None:
    process = count(program, "unmatched")
    assert process.totals() == {"": 5, "/a/b/c": 10}
    assert process.content.switches_ignored == 2


def test_regions_beyond_the_depth_that_is_kept_count_for_the_one_at_the_limit(program: Path) -> None:
    process = count(program, "deep")
    totals = process.totals()
    assert totals.pop("") == 5
    assert sorted(totals.values()) == [10] * 63 + [170]
    assert process.content.regions_too_deep == 16


def test_names_beyond_those_that_are_kept_count_for_what_is_around_them(plain: Path) -> None:
    process = count(plain, "many_names", 17_000)
    assert process.content.regions_refused == 17_000 - 16_383
    assert process.total("") == process.content.regions_refused * 10
    assert process.total() == 170_000


@pytest.mark.parametrize("compiler", ["g++", "clang++-19"])
def test_exceptions_close_regions(builder: Builder, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = NATIVE / "count_exceptions.cpp"
    program = builder.build(f"exceptions-{compiler}", "-D__MEMLENS_COUNT__", source, compiler=compiler)
    process = count(program)
    assert process.totals() == {"": 2, "/a": 6 * 5, "/a/b": 6 * 30, "/a/b/guarded": 6 * 100}
    assert process.sum("/a/b", "abandoned") == 6
    assert process.sum("/a/b/guarded", "abandoned") == 0
    assert process.content.threads_started == 2, "std::thread is seen"


def test_coroutines_on_other_stacks_keep_their_regions(plain: Path) -> None:
    process = count(plain, "coroutines")
    assert process.total("/a/b") == 30
    assert process.sum("/a/b", "abandoned") == 0


@pytest.mark.parametrize("other_stack", [0, 1])
def test_regions_in_signal_handlers_corrupt_nothing(program: Path, other_stack: int) -> None:
    arena = Arena()
    handled = int(arena.run(program, "signals", "100000", str(other_stack)).stdout.split()[0])
    process = arena.process()
    arena.close()
    assert process.total() == 100_000 + handled
    assert process.sum("/a", "entered") == process.sum("/a/b", "entered") == 100_000
    assert process.sum("/a", "counted") == process.sum("/a/b", "counted") == 100_000
    assert process.sum("/a", "abandoned") == 0


def test_errno_is_kept(program: Path) -> None:
    count(program, "keeps_errno")


# ---- threads -------------------------------------------------------------------------------------------------------
def test_threads_work_for_the_region_of_their_creator(program: Path) -> None:
    process = count(program, "inherit")
    assert process.totals() == {"": 20, "/a": 400, "/a/b": 50}
    assert (process.sum("/a", "joined"), process.sum("/a/b", "joined")) == (4, 1)
    assert process.sum("/a", "entered") == 1
    assert process.sum("/a", "joined_ticks") > 0
    assert process.sum("/a", "joined_open_ticks") == 0


def test_threads_that_exit_or_are_cancelled_in_a_region(program: Path) -> None:
    process = count(program, "thread_exits")
    assert process.totals() == {"/b": 10, "/c": 10}
    assert [process.sum(path, "abandoned") for path in ("/b", "/c")] == [1, 1]


def test_destructors_of_thread_keys_are_counted(program: Path) -> None:
    assert count(program, "thread_destructors").totals() == {"": 30}


def test_a_thousand_threads_at_once(program: Path) -> None:
    process = count(program, "concurrent", 1000)
    assert process.totals() == {"": 11_000}
    assert process.content.threads_started == 1001
    assert process.content.threads_merged == 1001 - 256


def test_twenty_thousand_threads_one_after_another(plain: Path) -> None:
    process = count(plain, "sequential", 20_000, threads_max=16)
    assert process.totals() == {"/a": 200_000}
    assert process.sum("/a", "joined") == 20_000
    assert process.content.threads_merged == 20_001 - 16
    assert len(process.places) < 40, "arrays are used again"
    merged = [p for p in process.places if p.thread == 0]
    assert [p.path for p in merged] == ["/a"]


def test_threads_that_meet_the_same_new_regions_at_once(plain: Path) -> None:
    process = count(plain, "storm")
    assert process.total() == 8 * 20_000 * 4
    assert len(process.paths) <= 1 + 8 + 8**2 + 8**3 + 8**4
    assert all(p.content.entered == p.content.counted for p in process.places)
    assert sum(p.content.entered for p in process.places) == 8 * 20_000 * 4


# ---- processes -----------------------------------------------------------------------------------------------------
def test_a_fork_counts_for_itself(program: Path) -> None:
    arena = Arena()
    arena.run(program, "forks")
    parent, child, grandchild = arena.processes()
    arena.close()
    assert parent.totals() == {"/a": 20}
    assert child.totals() == {"/a": 100, "/a/b": 1000}
    assert grandchild.totals() == {"": 2, "/a/b": 10}
    assert [p.content.parent_pid for p in (child, grandchild)] == [parent.pid, child.pid]
    assert [p.sum("/a", "counted") for p in (parent, child, grandchild)] == [1, 1, 1]


def test_forks_among_running_threads(program: Path) -> None:
    arena = Arena()
    arena.run(program, "forks_among_threads")
    parent, *children = arena.processes()
    arena.close()
    assert parent.total() == 1500
    assert [child.total() for child in children] == [10] * 20


def test_exec_starts_over(plain: Path) -> None:
    arena = Arena()
    arena.run(plain, "executes")
    before, after = arena.processes()
    arena.close()
    assert before.pid == after.pid
    assert (before.totals(), after.totals()) == ({"/a": 10}, {"": 100})


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_counts_survive_a_crash(plain: Path, signal_number: int) -> None:
    process = count(plain, "dies", signal_number, status=-signal_number)
    assert process.totals() == {"/a": 1000}
    assert (process.sum("/a", "entered"), process.sum("/a", "counted")) == (1, 0)
    assert process.sum("/a", "open_ticks") > 0


def test_exit_in_a_region_keeps_its_time(program: Path) -> None:
    process = count(program, "exits", status=3)
    assert process.totals() == {"/a": 10}
    assert (process.sum("/a", "counted"), process.sum("/a", "abandoned")) == (1, 1)
    seconds = process.sum("/a", "counted_ticks") / process.content.ticks_per_second
    assert 0.03 < seconds < 2
    assert process.content.last_ns > process.content.start_ns


# ---- libraries -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def libraries(builder: Builder) -> list[Path]:
    return [builder.library(f"lib{name}.so", f'-DNAME="{name}"') for name in ("one", "two")]


@pytest.fixture(scope="session")
def host(builder: Builder) -> Path:
    """Knows nothing of counting."""
    output = builder.folder / "host"
    subprocess.run(["gcc", "-O2", NATIVE / "count_host.c", "-o", output, "-pthread"], check=True)
    return output


def test_a_library_that_is_loaded_again_goes_on_in_its_counters(builder: Builder, libraries: list[Path]) -> None:
    host = builder.build("counted_host", "-DCOUNTED_HOST", NATIVE / "count_host.c")
    process = count(host, "again", libraries[0])
    assert process.totals() == {"/host": 5 + 50, "/one": 500}
    assert sorted(Path(m.path).name for m in process.modules) == ["counted_host", "libone.so"]


def test_a_library_in_a_host_that_is_not_counted(host: Path, libraries: list[Path]) -> None:
    arena = Arena()
    arena.run(host, "again", libraries[0])
    processes = arena.processes()
    arena.close()
    assert sum(p.total("") for p in processes) == 50
    assert sum(p.total("/one") for p in processes) == 500


def test_two_copies_in_one_process_work_side_by_side(host: Path, libraries: list[Path]) -> None:
    arena = Arena()
    arena.run(host, "both", *libraries)
    processes = arena.processes()
    arena.close()
    assert len(processes) == 2
    assert len({p.pid for p in processes}) == 1
    for process, name in zip(processes, ("/one", "/two"), strict=True):
        assert process.total(name) == 100 + 50 + 10
        assert process.total("") == 10 + 10, "also what a thread did that only the host knows"
        assert [p.thread for p in process.places if p.flags & UNATTRIBUTED]


def test_a_library_in_python(libraries: list[Path]) -> None:
    script = (
        "import ctypes, sys, threading\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.library_region(ctypes.c_long(99))\n"
        "threads = [threading.Thread(target=library.library_region, args=(ctypes.c_long(9),)) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    process = count(Path(sys.executable), "-c", script, libraries[0])
    assert process.totals() == {"/one": 100 + 80}


def test_a_linked_library_and_its_program_share_one_runtime(builder: Builder, libraries: list[Path]) -> None:
    source = builder.folder / "linked.c"
    source.write_text(
        '#include "count_by_hand.h"\nCOUNTED(main, 1);\nREGION(r, "program");\nvoid library_work(long), library_region(long), library_thread(long);\n'
        "int main(void) { ENTER(r); ADD(main, 0, 1); library_work(9); library_region(9); library_thread(4); LEAVE(r); return 0; }\n"
    )
    program = builder.build("linked", source, libraries[0], f"-Wl,-rpath,{builder.folder}")
    process = count(program)
    assert process.totals() == {"/program": 11, "/program/one": 15}
    assert len(process.modules) == 2
    assert process.content.threads_started == 2


@pytest.mark.parametrize("binding", ["-Bsymbolic-functions", "-Bsymbolic"])
def test_a_library_that_is_bound_to_its_own_functions(builder: Builder, binding: str) -> None:
    library = builder.library(f"lib{binding}.so", '-DNAME="bound"', f"-Wl,{binding}")
    host = builder.build("counted_host2", "-DCOUNTED_HOST", NATIVE / "count_host.c")
    arena = Arena()
    arena.run(host, "again", library)
    processes = arena.processes()
    arena.close()
    total = sum(p.total(path) for p in processes for path in ("/host", ""))
    assert (total, sum(p.total("/bound") for p in processes)) == (5 + 50, 500)
    if binding == "-Bsymbolic-functions":
        assert processes[0].totals() == {"/host": 55, "/bound": 500}, "one runtime serves both"


# ---- OpenMP ----------------------------------------------------------------------------------------------------------
def test_openmp_work_counts_for_the_region_that_handed_it_out(builder: Builder) -> None:
    if shutil.which("clang-19") is None or not list(Path("/usr/lib/llvm-19/lib").glob("libomp.so")):
        pytest.skip("no clang-19 with libomp")
    link = ["-fopenmp", "-Wl,-rpath,/usr/lib/llvm-19/lib"]
    program = builder.build("libomp", *link, NATIVE / "count_openmp.c", compiler="clang-19")
    process = count(program, 100)
    assert process.totals() == {"/a": 3000, "": 3000, "/b": 3000, "/tasks": 1000}
    assert len([p for p in process.places if p.path == "/a" and p.counters["libomp"].sum()]) == 4
    assert process.sum("/a", "joined") == 9, "three workers, three times"
    assert process.sum("/a", "entered") == 3
    assert [process.sum(path, "joined_open_ticks") for path in ("/a", "/tasks")] == [0, 0]
    assert 0 < process.sum("/a", "joined_ticks") < 4 * process.sum("/a", "counted_ticks")
    assert not [p for p in process.places if p.flags & UNATTRIBUTED]


def test_a_program_with_an_openmp_tool_of_its_own_keeps_it(builder: Builder) -> None:
    if shutil.which("clang-19") is None or not list(Path("/usr/lib/llvm-19/lib").glob("libomp.so")):
        pytest.skip("no clang-19 with libomp")
    tool = builder.folder / "tool.c"
    tool.write_text(
        "#include <omp-tools.h>\n#include <stdio.h>\n"
        'static int initialize(ompt_function_lookup_t l, int d, ompt_data_t *t) { puts("tool"); return 1; }\n'
        "static void finalize(ompt_data_t *t) {}\n"
        '__attribute__((visibility("default"))) ompt_start_tool_result_t *ompt_start_tool(unsigned v, const char *r) {\n'
        "  static ompt_start_tool_result_t own = {initialize, finalize, {0}}; return &own; }\n"
    )
    link = ["-fopenmp", "-Wl,-rpath,/usr/lib/llvm-19/lib"]
    arena = Arena()
    linked = builder.build("own_tool", *link, NATIVE / "count_openmp.c", tool, compiler="clang-19")
    assert arena.run(linked).stdout == "tool\ndone\n"
    library = builder.folder / "libtool.so"
    subprocess.run(
        ["clang-19", "-fopenmp", "-shared", "-fPIC", tool, "-o", library, "-Wno-unused-parameter"], check=True
    )
    program = builder.build("libomp2", *link, NATIVE / "count_openmp.c", compiler="clang-19")
    assert arena.run(program, environment={"OMP_TOOL_LIBRARIES": str(library)}).stdout == "tool\ndone\n"
    assert arena.run(program, environment={"LD_PRELOAD": str(library)}).stdout == "tool\ndone\n"
    for process in arena.processes():
        assert process.total() == 10_000
        assert [p for p in process.places if p.flags & UNATTRIBUTED]
    arena.close()


def test_libgomp_threads_are_unattributed(builder: Builder) -> None:
    program = builder.build("libgomp", "-fopenmp", NATIVE / "count_openmp.c")
    process = count(program, 100)
    assert process.total() == 10_000
    pool = [p for p in process.places if p.flags & UNATTRIBUTED]
    assert len({p.thread for p in pool}) == 3
    assert {p.path for p in pool if p.counters["libgomp"].sum()} <= {"", "/tasks"}
    first = [p for p in process.places if p.path == "/a" and not p.flags & UNATTRIBUTED]
    assert sum(int(p.counters["libgomp"].sum()) for p in first) == 3000 // 4


# ---- no recorder, no room --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mode", ["nested", "threads 4 1000", "inherit", "jump", "forks", "concurrent 300", "sampled 10"]
)
def test_without_a_recorder_a_program_just_runs(program: Path, mode: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MEMLENS_COUNT"}
    done = subprocess.run([program, *mode.split()], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    "variable", ["", "1:2:/nowhere", "1:2:/dev/null", "x", "1:2:/etc/hostname", "::", "1:2:" + "x" * 999]
)
def test_a_wrong_variable_is_ignored(plain: Path, variable: str) -> None:
    environment = {**os.environ, "MEMLENS_COUNT": variable}
    done = subprocess.run([plain, "nested"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_wrong_token_is_refused(plain: Path) -> None:
    arena = Arena()
    environment = {"MEMLENS_COUNT": arena.variable.replace(":", "0:", 1)}
    arena.run(plain, "nested", environment=environment)
    assert arena.processes() == []
    arena.close()


@pytest.mark.parametrize("room", [0, 1 << 20, 3 << 20, 8 << 20])
def test_a_full_arena_stops_counting_and_nothing_else(program: Path, room: int) -> None:
    arena = Arena(file_bytes=4096 + (64 << 20) + room)
    for mode in ("nested", "threads 50 99", "forks", "sequential 50"):
        assert arena.run(program, *mode.split()).stdout == "done\n"
    assert arena.header.refused > 0
    for process in arena.processes():
        assert process.total("/a/b") in (0, 300, 1000, 10)
    arena.close()


def test_counters_that_find_no_room_are_refused_and_told(plain: Path) -> None:
    process = count(plain, "nested", counters_max=MAX_OF_FUNCTION + 2)
    assert process.content.functions_refused == 1
    assert process.total() == 0


@pytest.mark.parametrize("mebibytes", [20, 64, 512])
def test_a_limited_address_space_is_left_to_the_program(plain: Path, mebibytes: int) -> None:
    arena = Arena(counters_max=MAX_OF_FUNCTION + 4096)
    limit = mebibytes << 20
    done = subprocess.run(
        [plain, "limited"],
        env=arena.environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    if mebibytes > 20:
        assert arena.process().totals() == {"/a": 40}
    arena.close()


def test_without_a_free_descriptor(plain: Path) -> None:
    process = count(plain, "no_descriptors")
    assert process.total("/a") == 400


# ---- sampling ----------------------------------------------------------------------------------------------------------
def sampled(program: Path, executions: int, *more: object, **settings: int) -> Process:
    process = count(program, "sampled", executions, *more, **settings)
    counted = process.sum("/a", "counted")
    assert counted + process.sum("/a", "untouched") == process.sum("/a", "entered") == executions
    assert process.totals() == ({"/a": counted * 10} if counted else {}), "untouched executions do not count"
    assert process.sum("/a/b", "untouched") == executions - counted
    return process


def test_sampling_all_counts_all(program: Path) -> None:
    assert sampled(program, 1000, sampling=ALL).sum("/a", "counted") == 1000


@pytest.mark.parametrize(("first", "every"), [(0, 10), (5, 100), (1, 1000)])
def test_sampling_the_first_then_every_nth(program: Path, first: int, every: int) -> None:
    process = sampled(program, 10_000, sampling=EVERY, sample_first=first, sample_every=every)
    assert process.sum("/a", "counted") == first + -(-(10_000 - first) // every)
    assert process.sum("/a", "untouched_ticks") > 0


def test_sampling_at_random_has_the_rate_and_the_seed_decides(plain: Path) -> None:
    counts = [
        sampled(plain, 20_000, sampling=RANDOM, sample_first=1, sample_every=50, seed=seed).sum("/a", "counted")
        for seed in (1, 1, 2)
    ]
    assert counts[0] == counts[1] != counts[2]
    assert all(300 < n < 500 for n in counts)


def test_a_region_that_runs_once_is_counted(plain: Path) -> None:
    for sampling in (EVERY, RANDOM, BUDGET):
        assert sampled(plain, 1, sampling=sampling, sample_first=1, sample_every=1000).sum("/a", "counted") == 1


def test_a_budget_keeps_counting_within_it(plain: Path) -> None:
    # Counted executions sleep 200 us: far more than one in a thousand of them costs 1 %.
    process = sampled(plain, 5000, 200, sampling=BUDGET, budget_ppm=10_000)
    assert 4 <= process.sum("/a", "counted") < 100
    # Both cost about the same: mostly counted, some untouched.
    process = sampled(plain, 5000, sampling=BUDGET, budget_ppm=1_000_000)
    assert process.sum("/a", "counted") > 1000
    assert process.sum("/a", "untouched") > 100


# ---- events, time ------------------------------------------------------------------------------------------------------
def test_software_events_at_region_ends(plain: Path) -> None:
    arena = Arena(event_list=((1, 2), (1, 1)))  # type: ignore[arg-type]  # page faults, task clock
    arena.run(plain, "faults")
    process = arena.process()
    arena.close()
    if process.content.events_open != 2:
        pytest.skip(f"perf events are refused here: errno {process.content.event_error}")
    (region,) = [p.content for p in process.places if p.path == "/b"]
    assert 64 <= region.counted_events[0] <= 66
    assert region.counted_events[1] > 0
    assert region.event_enabled_ns == region.event_running_ns > 0
    (empty,) = [p.content for p in process.places if p.path == "/a"]
    assert empty.counted_events[0] <= 3


def test_events_that_cannot_be_opened_are_told(plain: Path) -> None:
    arena = Arena(event_list=((4294967, 0), (1, 2)))  # type: ignore[arg-type]
    arena.run(plain, "faults")
    process = arena.process()
    content = process.content
    arena.close()
    assert content.event_error != 0
    assert content.events_mask in (0, 2)
    assert all(p.content.events_read in (0, content.events_mask) for p in process.places)
    assert any(p.content.events_read for p in process.places) == (content.events_mask != 0)


def test_a_program_can_replace_the_events(builder: Builder) -> None:
    own = builder.folder / "own_events.c"
    own.write_text(
        '#include "region_events.h"\nstruct ml_count_header;\nstatic uint64_t clock;\n'
        "unsigned memlens_region_events_open(uint64_t *s, const struct ml_count_header *h, int *e) { return 1; }\n"
        "void memlens_region_events_begin(uint64_t *s, uint64_t *b) { b[0] = clock += 5; }\n"
        "void memlens_region_events_end(uint64_t *s, const uint64_t *b, uint64_t *t) { t[0] = (clock += 5) - b[0]; }\n"
        "void memlens_region_events_close(uint64_t *s) {}\n"
    )
    process = count(builder.build("own_events", NATIVE / "count_program.c", own), "nested")
    (region,) = [p.content for p in process.places if p.path == "/b"]
    assert region.counted_events[0] == 5
    assert process.content.events_mask == 1


def test_an_execution_in_which_events_were_never_scheduled_adds_no_values(builder: Builder) -> None:
    """Every second execution: enabled, and not running. The recorder scales by the others."""
    own = builder.folder / "unscheduled_events.c"
    own.write_text(
        '#include "region_events.h"\nstruct ml_count_header;\nstatic int calls;\n'
        "unsigned memlens_region_events_open(uint64_t *s, const struct ml_count_header *h, int *e) { return 1; }\n"
        "void memlens_region_events_begin(uint64_t *s, uint64_t *b) {}\n"
        "void memlens_region_events_end(uint64_t *s, const uint64_t *b, uint64_t *t) {\n"
        "  t[0] = 7; t[4] = 10; t[5] = calls++ % 2 ? 0 : 10;\n}\n"
        "void memlens_region_events_close(uint64_t *s) {}\n"
    )
    process = count(builder.build("unscheduled_events", NATIVE / "count_program.c", own), "cost")
    (region,) = [p.content for p in process.places if p.content.counted > 1000]
    assert region.events_read == 1 and region.event_enabled_ns == 10 * region.counted
    assert region.event_unseen_ns == pytest.approx(region.event_enabled_ns / 2, rel=0.01)
    assert region.counted_events[0] == pytest.approx(7 * region.counted / 2, rel=0.01)


def test_the_clock_is_calibrated(plain: Path) -> None:
    content = count(plain, "exits", status=3).content
    seconds = (content.last_ns - content.start_ns) / 1e9
    assert (content.last_ticks - content.start_ticks) / seconds == pytest.approx(content.ticks_per_second, rel=1e-3)
    assert 0 < content.read_cost_ticks < content.switch_cost_ticks * 4


@pytest.mark.slow  # it prints figures, and asserts that they can be had
def test_cost_of_a_region(plain: Path, builder: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    arena = Arena()
    recorded = arena.run(plain, "cost").stdout.split()[0]
    content = arena.process().content
    arena.close()
    alone = subprocess.run([plain, "cost"], capture_output=True, text=True, check=True).stdout.split()[0]
    with_events = Arena(event_list=((1, 2), (1, 3)))  # type: ignore[arg-type]
    events = with_events.run(plain, "cost").stdout.split()[0]
    with_events.close()
    ns = 1e9 / content.ticks_per_second
    with capsys.disabled():
        print(
            f"\nenter and leave: {recorded} ns, without a recorder {alone} ns, with two software events {events} ns;"
            f" reading the clock {content.read_cost_ticks * ns:.1f} ns, measured switch {content.switch_cost_ticks * ns:.1f} ns"
        )


# ---- memlens.h ---------------------------------------------------------------------------------------------------------
ANNOTATED = {
    **{"/constant": 2, "/made0": 3, "/made1": 3, "/made2": 3, "/variable": 4, "/scope": 5, "/scope/variable": 6},
    **{"/helped": 8, "/helped/inner": 7, "/forgotten": 2, "/after": 9, "/other": 10},
}


@pytest.fixture(scope="session")
def annotated(builder: Builder) -> Callable[[str, str], Path]:
    def build(compiler: str, level: str) -> Path:
        other = builder.folder / "annotated_other.o"
        source = NATIVE / "count_annotations.c"
        subprocess.run(["gcc", "-O2", *INCLUDES, "-c", source, "-o", other], check=True)
        return builder.build(
            f"annotated-{compiler}{level}", level, "-D__MEMLENS_COUNT__", source, other, compiler=compiler
        )

    return build


@pytest.mark.parametrize("compiler", ["gcc", "clang-19", "clang"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_annotations_switch_counters(annotated: Callable[[str, str], Path], compiler: str, level: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    process = count(annotated(compiler, level), status=1)  # it returns memlens_is_recording()
    assert process.totals() == ANNOTATED
    assert process.sum("/forgotten", "abandoned") == 1
    assert process.sum("/hot", "counted") == 2000


def test_annotations_reach_the_other_recorder_and_hot_ones_do_not_flood_it(
    annotated: Callable[[str, str], Path], builder: Builder, tmp_path: Path
) -> None:
    fake = builder.folder / "libfake.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", *INCLUDES, NATIVE / "annotations_fake_runtime.c", "-o", fake], check=True
    )
    program = annotated("gcc", "-O2")
    calls = {}
    for recorded in (True, False):
        log = tmp_path / f"log{recorded}"
        environment = {"LD_PRELOAD": str(fake), "MEMLENS_FAKE_LOG": str(log)}
        arena = Arena()
        if not recorded:
            environment["MEMLENS_COUNT"] = ""
        arena.run(program, environment=environment, status=1)
        arena.close()
        calls[recorded] = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    for recorded, hot in ((True, 1000), (False, 2000)):
        assert calls[recorded].count("begin hot") == calls[recorded].count("end hot") == hot
        assert calls[recorded][-1] == "phase late"
        assert calls[recorded].count("begin other") == 1
    assert calls[True][:6] == [
        "begin constant",
        "end constant",
        *[f"{what} made{i}" for i in (0, 1) for what in ("begin", "end")],
    ]
    begins = [c for c in calls[True] if c.startswith("begin")]
    assert len(begins) == len([c for c in calls[True] if c.startswith("end")]), "every begin has an end"


@pytest.mark.parametrize(("compiler", "kind"), [("gcc", "c"), ("clang-19", "c"), ("g++", "cpp"), ("clang++-19", "cpp")])
@pytest.mark.parametrize("recorded", [False, True])
def test_annotated_programs_tell_the_same_when_they_are_counted(
    builder: Builder, compiler: str, kind: str, recorded: bool, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    fake = tmp_path / "libfake.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", *INCLUDES, NATIVE / "annotations_fake_runtime.c", "-o", fake], check=True
    )
    sources = [NATIVE / f"annotated.{kind}", NATIVE / f"annotated_second.{kind}"]
    abi = "-Wl,-u,memlens_count_abi_2__all_objects_must_be_built_by_one_memlens_version"
    program = builder.build(f"annotated-{compiler}", "-D__MEMLENS_COUNT__", abi, *sources, compiler=compiler)
    plain = tmp_path / "plain"
    subprocess.run([compiler, "-O2", *INCLUDES, *sources, "-o", plain, "-pthread"], check=True)
    heard = {}
    for which in (program, plain):
        log = tmp_path / f"log-{which.name}"
        environment = {"LD_PRELOAD": str(fake), "MEMLENS_FAKE_LOG": str(log)}
        arena = Arena()
        done = arena.run(which, environment=environment if recorded else {**environment, "MEMLENS_COUNT": ""})
        assert bool(arena.processes()) == (recorded and which == program)
        arena.close()
        by_thread: dict[str, list[str]] = {}
        for line in log.read_text().splitlines():
            thread, call = line.split(" ", 1)
            by_thread.setdefault(thread, []).append(re.sub("0x[0-9a-f]+", "ADDRESS", call))
        heard[which] = (done.stdout, sorted(by_thread.values()))
    assert heard[program] == heard[plain]


# ---- other C library, other machines ---------------------------------------------------------------------------------------
def test_static_with_musl(builder: Builder) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("no musl-gcc")
    program = builder.build("musl", NATIVE / "count_program.c", compiler="musl-gcc", static=True)
    assert count(program, "nested").totals() == {"": 2, "/a": 30, "/a/b": 300, "/b": 5}
    assert count(program, "inherit").totals() == {"": 20, "/a": 400, "/a/b": 50}
    assert count(program, "sequential", 500, threads_max=4).totals() == {"/a": 5000}
    arena = Arena()
    arena.run(program, "forks")
    assert [p.total() for p in arena.processes()] == [20, 1100, 12]
    arena.close()


@pytest.mark.parametrize("guest", sorted(CROSS))
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_other_machines(guest: str, static: bool, tmp_path: Path) -> None:
    emulator = shutil.which(f"qemu-{CROSS[guest]}")
    if shutil.which(f"{guest}-linux-gnu-gcc") is None or emulator is None:
        pytest.skip(f"no compiler or emulator for {guest}")
    program = Builder(tmp_path, f"{guest}-linux-gnu-").build("guest", NATIVE / "count_program.c", static=static)
    launcher = [emulator, "-L", f"/usr/{guest}-linux-gnu"]
    expected: dict[str, dict[str, int]] = {
        "nested": {"": 2, "/a": 30, "/a/b": 300, "/b": 5},
        "inherit": {"": 20, "/a": 400, "/a/b": 50},
        "jump": {"": 5, "/a": 100, "/a/b": 10, "/a/b/c": 10},
        "early": {"/a": 40, "/b": 300, "": 5},
        "recursive": {"/a": 50},
        "threads 4 1000": {"": 4004},
    }
    for mode, totals in expected.items():
        arena = Arena()
        arena.run(program, *mode.split(), launcher=launcher)
        process = arena.process()
        arena.close()
        assert process.totals() == totals, mode
        assert process.content.clock == {"aarch64": 2, "riscv64": 3, "powerpc64le": 4}[guest]
