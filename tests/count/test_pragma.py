"""`#pragma memlens begin(name)` / `end`: every way out of a region closes it, and mistakes are told with their line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from count_runs import HAVE, VERSIONS, built, compile_with, counted_run, each_clang_at_length, needs

from memlens.compile import toolchain

# A runtime that prints: the order of begins and ends is what these tests are about.
STUB = r"""
#include <stdio.h>
#include <stdint.h>
struct ml_count_region { const char *name; uint64_t number; };
static uint64_t words[1 << 15];
__thread uint64_t *__memlens_count_base = words, *__memlens_count_dump;
const char memlens_count_abi_2__all_objects_must_be_built_by_one_memlens_version = 1;
int __memlens_count_enter(struct ml_count_region *r) { printf("%s{ ", r->name); return 1; }
int __memlens_count_enter_sampled(struct ml_count_region *r) { return __memlens_count_enter(r); }
void __memlens_count_leave(struct ml_count_region *r) { printf("}%s ", r->name); }
void __memlens_count_unwound(void) {}
unsigned long __memlens_count_mark(void) { return 0; }
void __memlens_count_returned(unsigned long mark, int keep) { (void)mark, (void)keep; }
"""
pytestmark = pytest.mark.skipif(
    not HAVE.pragmas, reason=f"no pragma plugin: sudo apt-get install {toolchain.packages(19)}; then: make build"
)


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("gcc", "gcc")
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.c").write_text(STUB)
    subprocess.run(["gcc", "-O2", "-c", folder / "stub.c", "-o", folder / "stub.o"], check=True)
    return folder / "stub.o"


def output(tmp_path: Path, stub: Path, text: str, *flags: str, clang: str, name: str = "cc") -> str:
    """Compiles without a word, links with the runtime that prints, and runs."""
    source = tmp_path / ("a.c" if name == "cc" else "a.cpp")
    source.write_text(text)
    built(*flags, "-c", source, "-o", tmp_path / "a.o", clang=clang, name=name)
    flags = tuple(flag for flag in flags if not flag.startswith(("-W", "-std")))
    built("--memlens=none", *flags, tmp_path / "a.o", stub, "-o", tmp_path / "a", clang=clang, name=name)
    return subprocess.run([tmp_path / "a"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def diagnosed(tmp_path: Path, text: str, *flags: str, clang: str, name: str = "cc") -> tuple[int, str]:
    source = tmp_path / ("bad.c" if name == "cc" else "bad.cpp")
    source.write_text(text)
    done = compile_with(*flags, "-c", source, "-o", tmp_path / "bad.o", clang=clang, name=name)
    return done.returncode, done.stderr


EXITS = r"""
#include <stdio.h>
#include <stdlib.h>
int early(int x) {
#pragma memlens begin(early)
  if (x) return 1;
  x += 3;
#pragma memlens end
  return x;
}
int fail_label(int x) {
  char *p = malloc(10);
  if (x) goto fail;
#pragma memlens begin("a name with blanks")
  int sum = 0;
  for (int i = 0; i < 3; i++) sum += i;
  p[0] = (char)sum;
#pragma memlens end("a name with blanks")
  free(p);
  return 0;
fail:
  free(p);
  return -1;
}
void goto_out(int x) {
  {
#pragma memlens begin(goto_out)
    if (x) goto out;
#pragma memlens end(goto_out)
  }
out:
  printf("out ");
}
void cases(int x) {
  switch (x) {
  case 1:
#pragma memlens begin(one)
    printf("1 ");
#pragma memlens end
    break;
  case 2:
#pragma memlens begin(two)
    printf("2 ");
    break;
#pragma memlens end
  default:
    printf("other ");
  }
}
int loops(int n) {
#pragma memlens begin(outer)
  for (int i = 0; i < n; i++) {
#pragma memlens begin(inner)
    if (i == 1) continue;
    if (i == 2) break;
#pragma memlens end(inner)
  }
  int used_later = 5;
#pragma memlens end(outer)
  return used_later;
}
int same_block(void) {
#pragma memlens begin(a)
#pragma memlens begin(b)
  printf("x ");
#pragma memlens end(b)
#pragma memlens end(a)
  return 0;
}
int recursive(int n) {
#pragma memlens begin(recursive)
  int below = n > 1 ? recursive(n - 1) : 0;
#pragma memlens end
  return below + 1;
}
#define REGION(text) _Pragma("memlens begin(macro)") printf(text); _Pragma("memlens end")
int main(void) {
  early(1); early(0); printf("\n");
  fail_label(0); fail_label(1); printf("\n");
  goto_out(0); goto_out(1); printf("\n");
  cases(1); cases(2); cases(3); printf("\n");
  printf("%d\n", loops(5));
  same_block(); printf("\n");
  printf("%d\n", recursive(3));
  REGION("m ") REGION("n ")
  printf("\n");
label:
#pragma memlens begin(labelled)
  printf("l ");
out:
#pragma memlens end
  (void)&&label; (void)&&out;
  return 0;
}
"""
EXITS_PRINTED = """\
early{ }early early{ }early
a name with blanks{ }a name with blanks
goto_out{ }goto_out out goto_out{ }goto_out out
one{ 1 }one two{ 2 }two other
outer{ inner{ }inner inner{ }inner inner{ }inner }outer 5
a{ b{ x }b }a
recursive{ recursive{ recursive{ }recursive }recursive }recursive 3
macro{ m }macro macro{ n }macro
labelled{ l }labelled"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@each_clang_at_length
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_every_way_out_of_a_block_closes_its_region_in_c(tmp_path: Path, stub: Path, clang: str, level: str) -> None:
    text = EXITS.replace("(void)&&label; (void)&&out;", "goto end; end:")
    text = text.replace("label:\n#pragma", "#pragma").replace(
        "out:\n#pragma memlens end\n  goto", "#pragma memlens end\n  goto"
    )
    assert lines(output(tmp_path, stub, text, level, clang=clang)) == lines(EXITS_PRINTED)


@each_clang_at_length
def test_a_label_may_stand_before_a_begin_and_an_end(tmp_path: Path, stub: Path, clang: str) -> None:
    text = """#include <stdio.h>
int main(void) {
  int n = 0;
again:
#pragma memlens begin(again)
  printf("%d ", n);
  if (n > 5) goto done;
done:
#pragma memlens end
  if (++n < 3) goto again;
  return 0;
}
"""
    assert output(tmp_path, stub, text, "-O2", clang=clang) == "again{ 0 }again again{ 1 }again again{ 2 }again"


@each_clang_at_length
@pytest.mark.parametrize("standard", ["-std=c89", "-std=c99", "-std=gnu11", "-std=c2x"])
def test_no_warning_option_judges_injected_code(tmp_path: Path, stub: Path, clang: str, standard: str) -> None:
    text = """
int puts(const char *);
static int shadowed = 3;
static int work(int x);
static int work(int x) {
    x += shadowed;
#pragma memlens begin(x)
    x += 1;
#pragma memlens begin(y)
    x += 1;
#pragma memlens end(y)
#pragma memlens end(x)
    return x;
}
int main(void) {
    switch (work(1)) {
    case 6:
#pragma memlens begin(six)
        puts("six");
        break;
#pragma memlens end
    default:
        break;
    }
    return 0;
}
"""
    pedantic = [
        "-Weverything",
        "-Werror",
        "-pedantic-errors",
        "-Wno-unreachable-code-break",
        "-Wno-declaration-after-statement",
    ]
    # The last is about the program's own statements, not there in C89 without our pragma either.
    printed = output(tmp_path, stub, text, standard, *pedantic[:-1], clang=clang)
    assert printed == "x{ y{ }y }x six{ six\n}six"


CPLUSPLUS = r"""
#include <cstdio>
#include <stdexcept>
#include <vector>
#include <memory>
template <class T> T thrown(T x) {
#pragma memlens begin(thrown)
  if (x > 2) throw std::runtime_error("x");
#pragma memlens end
  return x;
}
struct Noisy { const char *text; ~Noisy() { std::printf("%s ", text); } };
struct S {
  int method(int x) {
#pragma memlens begin(method)
    return x + 1;
#pragma memlens end
  }
  template <class U> int generic(U u) {
#pragma memlens begin(generic)
    auto l = [&](auto v) {
#pragma memlens begin(generic_lambda)
      return v + 1;
#pragma memlens end
    };
    return l(u);
#pragma memlens end
  }
};
namespace n { inline namespace m { inline int in_namespace() {
#pragma memlens begin(in_namespace)
  struct Local { int inside() {
#pragma memlens begin(inside)
    return 1;
#pragma memlens end
  } };
  return Local().inside();
#pragma memlens end
} } }
int cases(int x) {
  switch (x) {
  case 1:
#pragma memlens begin(one)
    std::printf("1 ");
#pragma memlens end
    break;
  default: std::printf("d ");
  }
  return 0;
}
int lives() {
#pragma memlens begin(lives)
  Noisy first{"first"};
  std::unique_ptr<int> p(new int(7));
#pragma memlens end
  std::printf("after ");
  return *p;
}
int jump(int x) {
  if (x) goto fail;
#pragma memlens begin(jump)
  std::printf("in ");
#pragma memlens end
  return 0;
fail:
  std::printf("fail ");
  return 1;
}
int tried() try {
#pragma memlens begin(tried)
  throw 1;
#pragma memlens end
} catch (int) { return 2; }
int main() {
  thrown(1);
  try { thrown(3); } catch (...) { std::printf("caught "); }
  try { thrown(3.0); } catch (...) { std::printf("caught\n"); }
  S s; s.method(1); s.generic(2); std::printf("\n");
  n::in_namespace(); std::printf("\n");
  auto f = [](int x) {
#pragma memlens begin(lambda)
    std::vector<int> v(x);
#pragma memlens end
    return v.size();
  };
  std::printf("%d\n", int(f(3)));
  cases(1); cases(2); std::printf("\n");
  std::printf("%d\n", lives());
  jump(0); jump(1); std::printf("\n");
  std::printf("%d\n", tried());
#pragma omp parallel num_threads(1)
  {
#pragma memlens begin(parallel)
    std::printf("p ");
#pragma memlens end
  }
#pragma omp parallel for num_threads(1)
  for (int i = 0; i < 2; i++) {
#pragma memlens begin(body)
    if (i == 0) continue;
    std::printf("b ");
#pragma memlens end
  }
}
"""
CPLUSPLUS_PRINTED = """\
thrown{ }thrown thrown{ }thrown caught thrown{ }thrown caught
method{ }method generic{ generic_lambda{ }generic_lambda }generic
in_namespace{ inside{ }inside }in_namespace
lambda{ }lambda 3
one{ 1 }one d
lives{ }lives after first 7
jump{ in }jump fail
tried{ }tried 2
parallel{ p }parallel body{ }body body{ b }body"""


@each_clang_at_length
@pytest.mark.parametrize("flags", [["-O0"], ["-O2", "-std=c++20"], ["-O2", "-fopenmp"]])
def test_exceptions_templates_lambdas_and_objects(tmp_path: Path, stub: Path, clang: str, flags: list[str]) -> None:
    major = int(clang.rpartition("-")[2])
    if "-fopenmp" in flags and not Path(f"/usr/lib/llvm-{major}/lib/libomp.so").exists():
        pytest.skip(f"no OpenMP runtime of LLVM {major}: sudo apt-get install libomp-{major}-dev")
    printed = output(tmp_path, stub, CPLUSPLUS, *flags, clang=clang, name="c++")
    assert lines(printed) == lines(CPLUSPLUS_PRINTED)


# ---- mistakes -------------------------------------------------------------------------------

MISTAKES = [
    ("void f(void) {\n#pragma memlens begin(a)\n}\n", 0, "2:9: warning: region 'a' has no '#pragma memlens end'"),
    ("void f(void) {\n#pragma memlens end\n}\n", 1, "2:9: error: '#pragma memlens end' without a begin"),
    ("void f(void) {\n#pragma memlens begin(a)\n#pragma memlens end(b)\n}\n", 1, "3:9: error: this ends region 'b', but 'a' is open"),
    ("void f(void) {\n#pragma memlens begin(a)\n  {\n#pragma memlens end\n  }\n}\n", 1, "4:9: error: '#pragma memlens end' without"),
    ("void f(void) {\n#pragma memlens begin\n}\n", 1, "a region needs a name"),
    ("void f(void) {\n#pragma memlens begin(1)\n}\n", 1, "an identifier or a string"),
    ("void f(void) {\n#pragma memlens begin(a\n}\n", 1, "expected ')'"),
    ("void f(void) {\n#pragma memlens begin(\"\")\n}\n", 1, "an identifier or a string"),
    ("void f(void) {\n#pragma memlens stop\n}\n", 0, "warning: '#pragma memlens' is followed by"),
    ("void f(void) {\n#pragma memlens begin(a) b\n#pragma memlens end\n}\n", 0, "warning: extra tokens"),
    ("#pragma memlens begin(a)\nint x;\n", 1, "a region of memlens is inside a function"),
    ("int g(void);\nvoid f(int x) {\n  if (x)\n#pragma memlens begin(a)\n    g();\n#pragma memlens end\n}\n", 1, "4:9: error: region 'a' begins where only one statement may stand"),
    ("int g(void);\nvoid f(int x) {\n#pragma memlens begin(a)\n  if (x)\n#pragma memlens end\n    g();\n}\n", 1, "5:9: error: a region ends where only one statement"),
    ("int g(void);\nvoid f(int x) {\n  if (x) goto in;\n#pragma memlens begin(a)\n  g();\nin:\n  g();\n#pragma memlens end\n}\n", 1, "4:9: error: a jump leads into region 'a'"),
    ("int g(int *);\nint f(int x) {\n  if (x) goto out;\n#pragma memlens begin(a)\n  int y = 1;\n  g(&y);\n#pragma memlens end\n  g(&y);\nout:\n  return 0;\n}\n", 1, "4:9: error: a jump leads past the begin of region 'a'"),
]  # fmt: skip


@each_clang_at_length
@pytest.mark.parametrize(("text", "status", "words"), MISTAKES, ids=[words[:60] for _, _, words in MISTAKES])
def test_mistakes_are_told_with_their_line(tmp_path: Path, clang: str, text: str, status: int, words: str) -> None:
    returned, printed = diagnosed(tmp_path, text, clang=clang)
    assert words in printed and returned == status, printed


@each_clang_at_length
def test_a_template_with_a_mistake_is_reported_once(tmp_path: Path, clang: str) -> None:
    text = "template <class T> void f(T) {\n#pragma memlens begin(a)\n}\nint main() { f(1); f(2L); }\n"
    _, printed = diagnosed(tmp_path, text, clang=clang, name="c++")
    assert printed.count("has no '#pragma memlens end'") == 1


# ---- other stages ------------------------------------------------------------------------------


@each_clang_at_length
def test_preprocessing_keeps_the_pragma_and_compiling_its_output_counts(tmp_path: Path, stub: Path, clang: str) -> None:
    text = "int main(void) {\n#pragma memlens begin(a)\n  ;\n#pragma memlens end\n  return 0;\n}\n"
    (tmp_path / "p.c").write_text(text)
    built("-E", tmp_path / "p.c", "-o", tmp_path / "p.i", clang=clang)
    assert (
        "#pragma memlens begin(a)" in (tmp_path / "p.i").read_text() and "guard" not in (tmp_path / "p.i").read_text()
    )
    built("-c", tmp_path / "p.i", "-o", tmp_path / "p.o", clang=clang)
    built("--memlens=none", tmp_path / "p.o", stub, "-o", tmp_path / "p", clang=clang)
    assert subprocess.run([tmp_path / "p"], capture_output=True, text=True).stdout.strip() == "a{ }a"
    built("-save-temps=obj", "-c", tmp_path / "p.c", "-o", tmp_path / "q.o", clang=clang)


@each_clang_at_length
def test_precompiled_headers_hold_regions(tmp_path: Path, stub: Path, clang: str) -> None:
    (tmp_path / "h.h").write_text(
        "#pragma once\ntemplate <class T> T f(T x) {\n#pragma memlens begin(header)\n  return x;\n#pragma memlens end\n}\n"
    )
    built("-x", "c++-header", tmp_path / "h.h", "-o", tmp_path / "h.h.pch", clang=clang, name="c++")
    text = "int main() {\n#pragma memlens begin(a)\n  return f(0);\n#pragma memlens end\n}\n"

    (tmp_path / "m.cpp").write_text(text)
    built(
        "-include-pch", tmp_path / "h.h.pch", "-c", tmp_path / "m.cpp", "-o", tmp_path / "m.o", clang=clang, name="c++"
    )
    built("--memlens=none", tmp_path / "m.o", stub, "-o", tmp_path / "m", clang=clang, name="c++")
    printed = subprocess.run([tmp_path / "m"], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == "a{ header{ }header }a"


@each_clang_at_length
def test_module_units_compile_and_say_that_the_pragma_is_not_possible_there(tmp_path: Path, clang: str) -> None:
    (tmp_path / "m.cppm").write_text(
        "export module m;\nexport int f() {\n#pragma memlens begin(a)\n  return 1;\n#pragma memlens end\n}\n"
    )
    done = compile_with(
        "-std=c++20", "--precompile", tmp_path / "m.cppm", "-o", tmp_path / "m.pcm", clang=clang, name="c++"
    )
    assert done.returncode == 0 and "not possible in a unit of a named module" in done.stderr, done.stderr


def test_other_compilers_ignore_the_pragma(tmp_path: Path) -> None:
    needs("gcc", "gcc")
    text = (
        EXITS.replace("(void)&&label; (void)&&out;", "goto end; end:")
        .replace("label:\n", "")
        .replace("out:\n#pragma", "#pragma")
    )
    (tmp_path / "a.c").write_text(
        text.replace('_Pragma("memlens begin(macro)") ', "").replace('_Pragma("memlens end")', "")
    )
    subprocess.run(["gcc", "-Werror", "-o", tmp_path / "a", tmp_path / "a.c"], check=True)
    subprocess.run(
        ["gcc", "-Wall", "-Wno-unknown-pragmas", "-Werror", "-o", tmp_path / "a", tmp_path / "a.c"], check=True
    )


# ---- with the real runtime --------------------------------------------------------------------


@each_clang_at_length
@pytest.mark.parametrize("flags", [["-O0"], ["-O2"], ["-O2", "-flto"], ["-O2", "-flto=thin"], ["-O2", "-static"]])
def test_regions_are_counted(tmp_path: Path, clang: str, flags: list[str]) -> None:
    source = tmp_path / "r.c"
    source.write_text(
        """#include <stdlib.h>
static volatile long sink;
static void inner(volatile long *p, long n) {
#pragma memlens begin(inner)
  for (long i = 0; i < n; i++) sink += p[i];
#pragma memlens end
}
int main(void) {
  volatile long *p = malloc(800);
  for (int k = 0; k < 7; k++) {
#pragma memlens begin(outer)
    inner(p, 100);
    if (k == 3) continue;
#pragma memlens end
  }
  free((void *)p);
  return 0;
}
"""
    )
    built("-Wno-unused-command-line-argument", *flags, source, "-o", tmp_path / "r", clang=clang)
    process, _ = counted_run(tmp_path / "r")
    assert process.sum("/outer", "entered") == 7 and process.sum("/outer/inner", "entered") == 7
    assert process.sum("/outer", "counted") == 7 and process.sum("/outer", "abandoned") == 0
    assert process.total("/outer/inner") > 0


def test_the_plugin_is_there_for_every_pass() -> None:
    assert set(VERSIONS) <= set(HAVE.pragmas)
