"""Programs that are hard on a compiler pass or on the runtime: they do what they did, and few counters tell what many tell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from count_arena import Arena, Process
from count_runs import VERSIONS, compile_with, counted_functions, each_clang_at_length, needs, needs_clang
from count_sites import LOAD, STORE, per_site, rows

pytestmark = needs_clang
SOURCES = Path(__file__).resolve().parent / "hard"
NEWEST = f"clang-{VERSIONS[-1]}" if VERSIONS else ""
REGIONS = "--memlens-functions=."
VECTOR, MASKED, GATHER = 4, 8, 256


def make(out: Path, *arguments: str | Path, clang: str, cxx: bool = False, check: bool = True) -> Path:
    done = compile_with(
        "--memlens-verify", "-w", *(["-std=c++20"] if cxx else []), *arguments, "-o", out, "-pthread",
        clang=clang, name="c++" if cxx else "cc",
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stderr
    return out


def run(program: Path, *arguments: str, **settings: int) -> tuple[list[Process], str]:
    arena = Arena(**settings)
    try:
        done = arena.run(program, *arguments)
        return arena.processes(), done.stdout
    finally:
        arena.close()


def loads(process: Process, region: str, function: str) -> int:
    """Executions of the loads of a function that are not of its own frame."""
    return sum(
        row.executions
        for row in rows(process)
        if row.region == region and row.function == function and row.site.kind == LOAD and not row.site.flags & 3
    )


# ---- the languages -------------------------------------------------------------------------

QUICK = [("language.c", "-O2"), ("language.cpp", "-O2")]
MORE = [(source, level) for source in ("language.c", "language.cpp") for level in ("-O0", "-O1", "-O3", "-Os")]


def same_in_all_builds(tmp_path: Path, source: str, clang: str, *flags: str, mix: bool = True) -> None:
    cxx = source.endswith("cpp")
    plain = make(tmp_path / "plain", "--memlens=none", *flags, SOURCES / source, clang=clang, cxx=cxx)
    want = subprocess.run([plain], capture_output=True, text=True, check=True, timeout=60).stdout
    for judge, builds in {
        ("--memlens-naive",): [(), ("--memlens-versions",), *([("--memlens-mix",)] if mix else [])],
        ("--memlens-naive", REGIONS): [(REGIONS, "--memlens-versions")],
    }.items():
        expected = None
        for options in (judge, *builds):
            program = make(tmp_path / "program", *options, *flags, SOURCES / source, clang=clang, cxx=cxx)
            (process,), text = run(program)
            assert text == want, options
            found = per_site(process)
            assert len(found) > 150 and process.content.switches_ignored == 0
            if expected is None:
                expected = found
            differing = {key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)}
            assert not differing, options
    # The last build has untouched copies of everything: now they run.
    for every in (2, 1_000_000):
        _, text = run(tmp_path / "program", sampling=1, sample_every=every)
        assert text == want


@each_clang_at_length
@pytest.mark.parametrize(
    "source, level", [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)], ids=str
)
def test_everything_in_the_language(tmp_path: Path, clang: str, source: str, level: str) -> None:
    same_in_all_builds(tmp_path, source, clang, level)


@pytest.mark.slow
@each_clang_at_length
@pytest.mark.parametrize("source", ["language.c", "language.cpp"])
@pytest.mark.parametrize(
    "flags",
    [
        ["-flto"], ["-flto=thin"], ["-static"], ["-static-pie", "-fPIE"], ["-no-pie", "-fno-pie"], ["-march=x86-64-v3"], ["-fno-omit-frame-pointer"],
        ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all", "-g"], ["-fstack-protector-all", "-fcf-protection=full"],
        ["-ffunction-sections", "-Wl,--gc-sections"], ["-fno-inline"], ["-funroll-loops", "-O3"], ["-finstrument-functions-after-inlining"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_everything_in_every_kind_of_build(tmp_path: Path, clang: str, source: str, flags: list[str]) -> None:
    if "-flto" in flags[0]:
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    if "v3" in flags[0] and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    # -fsanitize=vptr is left out: its cache is looked up by addresses, which differ from run to run.
    same_in_all_builds(tmp_path, source, clang, "-O2", *flags, mix=False)


@each_clang_at_length
@pytest.mark.parametrize("flags", [["-flto"], ["-flto=thin"], ["-fsanitize=address,undefined"]], ids=" ".join)
def test_link_time_optimisation_and_sanitizers(tmp_path: Path, clang: str, flags: list[str]) -> None:
    """With regions everywhere and untouched copies, both languages in one program."""
    if "-flto" in flags[0]:
        needs(f"ld.lld-{clang.rpartition('-')[2]}", f"lld-{clang.rpartition('-')[2]}")
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if compile_with("--memlens=none", *flags, probe, "-o", tmp_path / "probe", clang=clang).returncode:
        pytest.skip(f"no sanitizer runtime: sudo apt-get install libclang-rt-{clang.rpartition('-')[2]}-dev")
    source = SOURCES / "language.cpp"
    plain = make(tmp_path / "plain", "--memlens=none", "-O2", *flags, source, clang=clang, cxx=True)
    want = subprocess.run([plain], capture_output=True, text=True, check=True, timeout=60).stdout
    program = make(tmp_path / "program", REGIONS, "--memlens-versions", "-O2", *flags, source, clang=clang, cxx=True)
    (process,), text = run(program)
    assert text == want and len(per_site(process)) > 150
    _, text = run(program, sampling=1, sample_every=3)
    assert text == want


RECURSIVE = """
#include <cstdio>
// Writes no memory, as far as LLVM knows: but counters are memory.
__attribute__((noinline)) long walk(long n, long k) {
  long a[8];
  for (long i = 0; i < 8; i++) a[(i * k) & 7] = n * i;
  long s = 0;
  for (long i = 0; i < n; i++) s += walk(i, k) + a[(i * k) & 7];
  return s + a[k & 7];
}
int main() { std::printf("%ld\\n", walk(8, 3)); }
"""


@each_clang_at_length
@pytest.mark.parametrize("target", ["", "powerpc64le-linux-gnu"])
def test_functions_that_write_no_memory_count(tmp_path: Path, clang: str, target: str) -> None:
    """At -O3 LLVM moves loads and stores out of loops once more for POWER, after us."""
    (tmp_path / "a.cpp").write_text(RECURSIVE)
    launcher = []
    if target:
        needs("qemu-ppc64le", "qemu-user")
        needs(f"{target}-g++", f"g++-{target}")
        launcher = ["qemu-ppc64le", "-L", f"/usr/{target}"]
    for option in ("--memlens-naive", "--memlens-mix", "--memlens-placement=no-trips,no-exits,no-keep"):
        flags = ["-O3", option, *([f"--target={target}"] if target else [])]
        make(tmp_path / "a", *flags, tmp_path / "a.cpp", clang=clang, cxx=True)
        arena = Arena(file_bytes=1 << 34)
        arena.run(tmp_path / "a", launcher=launcher)
        lines = {key[2]: row for key, row in per_site(arena.process()).items() if key[1] == "_Z4walkll"}
        arena.close()
        assert {row[2] for row in lines.values() if row[1] == 8} == {255}, option
        assert {row[2] for row in lines.values() if row[1] == 9} == {256}, option


IFUNC = """
#include <stdio.h>
static long data[16] = {1, 2, 3};
__attribute__((noinline)) static int deeper(int x) { return x + (int)data[0]; }
__attribute__((noinline)) static int level(int x) {
  volatile int t[4] = {0};
  for (int i = 0; i < 4; i++) t[i] += deeper(x + (int)data[i]);
  return t[0];
}
static long fast(long n) { return data[n & 15]; }
static long slow(long n) { return data[n & 15] * 2; }
static void *pick(void) { return level(0) == 2 ? (void *)fast : (void *)slow; }
long chosen(long n) __attribute__((ifunc("pick")));
int main(void) {
  long s = 0;
  for (long i = 0; i < 10; i++) s += chosen(i);
  printf("%ld %d\\n", s, level(1));
  return 0;
}
"""


@each_clang_at_length
@pytest.mark.parametrize("flags", [[], ["-static"], ["-fPIE", "-static-pie"], ["-Wl,-z,now"]], ids=" ".join)
def test_resolvers_run_before_anything_can_count(tmp_path: Path, clang: str, flags: list[str]) -> None:
    (tmp_path / "a.c").write_text(IFUNC)
    for level in ("-O0", "-O2"):
        make(tmp_path / "a", level, *flags, tmp_path / "a.c", clang=clang)
        (process,), text = run(tmp_path / "a")
        assert text == "6 3\n"
        assert {row.function for row in rows(process)} >= {"fast", "main"}


# ---- threads, forks, signals ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def process_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("process") / "program", "-O2", SOURCES / "process.c", clang=NEWEST)


def test_a_thousand_threads(process_program: Path) -> None:
    (process,), text = run(process_program, "threads", "1000")
    assert text == "done\n"
    assert loads(process, "/all", "work") == 100_000
    assert loads(process, "/all/own", "work") == 7_000
    assert process.sum("/all/own", "counted") == 1000 and process.content.threads_started == 1001


def test_regions_that_recurse_through_each_other(process_program: Path) -> None:
    (process,), _ = run(process_program, "recursion", "20000")
    total = {region: loads(process, region, "work") for region in process.paths.values()}
    # Entered again while open, both count for the node that is open; beyond the depth that is kept, for the one at the limit.
    assert sum(total.values()) == 20001 * 3 + 20000 * 2 + 20001
    assert total[""] == 1 and total["/even"] > 3 and total["/even/odd"] > 2
    assert process.sum("/even", "counted") == process.sum("/even/odd", "counted") == 1


def test_forks_in_a_region(process_program: Path) -> None:
    processes, _ = run(process_program, "forks")
    assert len(processes) == 3
    found = sorted(
        tuple(sorted((region, n) for region in p.paths.values() if (n := loads(p, region, "work")))) for p in processes
    )
    assert found == [
        (("/forked", 56), ("/forked/child", 5)),
        (("/forked", 1030),),
        (("/forked/child", 3),),
    ]


def test_signals_between_counters(process_program: Path) -> None:
    (process,), text = run(process_program, "signals", "60000")
    handled = int(text.split()[1])
    assert handled > 3
    total: dict[str, int] = {"work": 0, "work_of_handler": 0}
    for region in set(process.paths.values()):
        for name in total:
            total[name] += loads(process, region, name)
    assert total == {"work": 30 * 60000, "work_of_handler": 10 * handled}
    assert loads(process, "/outer", "work") == 10 * 60000 and loads(process, "/outer/inner", "work") == 20 * 60000
    if process.content.switches_ignored == 0:
        assert process.sum("/outer", "counted") == 60000


def test_threads_cancelled_in_a_region(process_program: Path) -> None:
    (process,), text = run(process_program, "cancellation", "20")
    assert text == "done\n"
    assert loads(process, "/cancelled/deeper", "work") == 220 and loads(process, "/leaves", "work") == 260
    assert loads(process, "", "work") == 1
    for region in ("/cancelled", "/cancelled/deeper", "/leaves"):
        assert process.sum(region, "counted") == 20 and process.sum(region, "open_ticks") == 0


# ---- exceptions through libraries, some counted, some not -------------------------------------------

DEEP = """
volatile long data[64];
extern "C" __attribute__((noinline)) long read_some(long n) { long s = 0; for (long i = 0; i < n; i++) s += data[i & 63]; return s; }
extern "C" long deep(long n) {
#pragma memlens begin(deep)
  long s = read_some(5);
#pragma memlens begin(deepest)
  s += read_some(3);
  if (n % 3 == 0) throw n;
  if (n % 3 == 1) throw "text";
#pragma memlens end
#pragma memlens end
  return s;
}
"""
MIDDLE = """
extern "C" long deep(long n); extern "C" long read_some(long n);
struct Cleanup { ~Cleanup() { read_some(2); } };
extern "C" long middle(long n) {
  Cleanup cleanup;
  try { return deep(n); } catch (const char *) { return read_some(4); }
}
"""
OUTER = """
#include <cstdio>
extern "C" long middle(long n); extern "C" long read_some(long n);
struct Cleanup { ~Cleanup() { read_some(1); } };
int main() {
  long caught = 0;
  for (long i = 0; i < 300; i++) {
    try {
#pragma memlens begin(outer)
      Cleanup cleanup;
      middle(i);
      read_some(6);
#pragma memlens end
    } catch (long) { caught++; read_some(7); }
    read_some(8);
  }
  std::printf("%ld\\n", caught);
}
"""


@each_clang_at_length
@pytest.mark.parametrize("middle_counts", [True, False], ids=["counted", "plain"])
@pytest.mark.parametrize("versions", [[], ["--memlens-versions"]], ids=["", "versions"])
def test_exceptions_through_libraries(tmp_path: Path, clang: str, middle_counts: bool, versions: list[str]) -> None:
    for name, text in (("deep", DEEP), ("middle", MIDDLE), ("outer", OUTER)):
        (tmp_path / f"{name}.cpp").write_text(text)
    link = ["-L", tmp_path, f"-Wl,-rpath,{tmp_path}"]
    shared = ["-O2", "-fPIC", "-shared", *versions]
    make(tmp_path / "libdeep.so", *shared, tmp_path / "deep.cpp", clang=clang, cxx=True)
    how = [] if middle_counts else ["--memlens=none"]
    make(tmp_path / "libmiddle.so", *shared, *how, tmp_path / "middle.cpp", *link, "-ldeep", clang=clang, cxx=True)
    make(
        tmp_path / "outer", "-O2", *versions, tmp_path / "outer.cpp", *link, "-lmiddle", "-ldeep", clang=clang, cxx=True
    )
    (process,), text = run(tmp_path / "outer")
    assert text == "100\n"
    total = {region: loads(process, region, "read_some") for region in process.paths.values()}
    assert total == {
        # The variable that was declared in the region lives on after its end, but for the 100 that throw.
        "": 100 * 7 + 300 * 8 + 200 * 1,
        "/outer": 100 * 1 + 300 * 2 + 100 * 4 + 200 * 6,
        "/outer/deep": 300 * 5,
        "/outer/deep/deepest": 300 * 3,
    }
    assert process.sum("/outer", "counted") == process.sum("/outer/deep", "counted") == 300


GATHERED = """
#include <immintrin.h>
#include <stdio.h>
static int p[64];
__attribute__((target("avx2"), noinline)) static void moves(int n) {
  __m256i s = _mm256_setzero_si256();
  for (int i = 0; i + 8 <= n; i += 8) {
    __m256i v = _mm256_maskload_epi32(p + i, _mm256_set_epi32(0, 0, 0, -1, 0, -1, -(i & 8), -1));
    s = _mm256_add_epi32(s, _mm256_i32gather_epi32(p, _mm256_and_si256(v, _mm256_set1_epi32(15)), 4));
    _mm256_maskstore_epi32(p + i, _mm256_set_epi32(0, 0, 0, 0, 0, -1, -1, i - 8), s);
  }
}
int main(void) { moves(40); puts("done"); return 0; }
"""


@pytest.mark.skipif(" avx2 " not in Path("/proc/cpuinfo").read_text(), reason="this processor has no AVX2")
@each_clang_at_length
def test_vector_accesses_of_one_machine(tmp_path: Path, clang: str) -> None:
    """By intrinsics that LLVM leaves to the machine. A lane moves if the sign of its mask is set."""
    (tmp_path / "a.c").write_text(GATHERED)
    for option in ("--memlens-naive", "--memlens-mix"):
        make(tmp_path / "a", "-O1", option, tmp_path / "a.c", clang=clang)
        (process,), _ = run(tmp_path / "a")
        moved = {(row.site.kind, row.site.flags): row.moved for row in rows(process) if row.function == "moves"}
        assert moved == {
            (LOAD, VECTOR | MASKED): 4 * (5 * 3 + 2),
            (LOAD, VECTOR | GATHER): 4 * 8 * 5,
            (STORE, VECTOR | MASKED): 4 * (5 * 2 + 1),
        }, option


def test_masked_vectors_are_compiled(tmp_path: Path) -> None:
    """AVX-512: not every machine can run it. Loops that the compiler masks itself, SVE and RISC-V's V."""
    (tmp_path / "a.c").write_text(
        "void f(int *restrict a, const int *restrict b, const int *restrict i, long n) {\n"
        "  for (long k = 0; k < n; k++) if (b[k] > 3) a[i[k]] += b[k] * a[k];\n}\n"
        "double g(const double *p, const int *i, long n) { double s = 0; for (long k = 0; k < n; k++) if (i[k]) s += p[i[k]]; return s; }\n"
    )
    for flags in (
        ["-march=skylake-avx512", "-mprefer-vector-width=512"],
        ["-march=skylake-avx512", "-mllvm", "-prefer-predicate-over-epilogue=predicate-dont-vectorize"],
        ["--target=aarch64-linux-gnu", "-march=armv8-a+sve"],
        ["--target=riscv64-linux-gnu", "-march=rv64gcv"],
        ["--target=powerpc64le-linux-gnu", "-mcpu=power10"],
    ):
        for option in ("--memlens-naive", "--memlens-mix", "--memlens-versions"):
            for clang in (f"clang-{major}" for major in VERSIONS):
                done = compile_with(
                    "--memlens-verify", option, "-O3", "-ffast-math", *flags, "-c", tmp_path / "a.c", "-o", tmp_path / "a.o",
                    clang=clang,
                )  # fmt: skip
                if "no counting library" in done.stderr:
                    continue
                assert done.returncode == 0, done.stderr
                assert counted_functions(tmp_path / "a.o") == 2
