"""Where counting was silent: plug-ins of an uncounted host, expressions that match nothing, caches, empty functions, counters of clang's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import run_memlens
from count_runs import built, compile_with, environment, needs, needs_clang
from test_count_exact import ask, build, counted, record

from memlens.capture.reader import open_capture

pytestmark = needs_clang

HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  void *plugin = dlopen(argv[1], RTLD_NOW);
  if (!plugin) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
  ((void (*)(void))dlsym(plugin, "fill"))();
  puts("done");
  return 0;
}
"""
PLUGIN = """
static volatile long words[1000];
void fill(void) {
#pragma memlens begin(fill)
  for (int i = 0; i < 1000; i++) words[i] = i;
#pragma memlens end
}
"""


def test_a_counted_plugin_counts_in_a_host_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "host.c").write_text(HOST)
    (tmp_path / "plugin.c").write_text(PLUGIN)
    built("--memlens=none", tmp_path / "host.c", "-o", tmp_path / "host", "-ldl")
    built("-O2", "-fPIC", "-shared", tmp_path / "plugin.c", "-o", tmp_path / "plugin.so")
    capture = tmp_path / "run.memlens"
    for options in ((), ("--collectors", "count")):
        done = record(capture, [str(tmp_path / "host"), str(tmp_path / "plugin.so")], *options)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        rows = ask(capture, "SELECT sum(written_bytes)::BIGINT w FROM site_counts WHERE region = 'fill'")
        assert rows == [{"w": 8000}]
    built("--memlens=none", "-fPIC", "-shared", "-w", tmp_path / "plugin.c", "-o", tmp_path / "plain.so")
    done = record(capture, [str(tmp_path / "host"), str(tmp_path / "plain.so")], "--count")
    assert done.returncode == 0
    assert any("Nothing counted" in note for note in open_capture(capture).quality.notes)


def test_an_expression_that_matches_no_function_is_named(tmp_path: Path) -> None:
    for name, text in (
        ("a.c", "void b(void); volatile int x; int main(void) { b(); x = 1; return 0; }"),
        ("b.c", "volatile int y; void b(void) { y = 2; }"),
    ):
        (tmp_path / name).write_text(text)
    for name in ("a", "b"):
        built(
            "-c", "-O1", "--memlens-functions=^b$", "--memlens-functions=^nothing_of_this_name$", tmp_path / f"{name}.c",
            "-o", tmp_path / f"{name}.o",
        )  # fmt: skip
    built(tmp_path / "a.o", tmp_path / "b.o", "-o", tmp_path / "program", "-Wl,--gc-sections")
    _, _, capture = counted(tmp_path, "run", [str(tmp_path / "program")])
    told = [note for note in open_capture(capture).quality.notes if "--memlens-functions" in note]
    assert len(told) == 1 and "^nothing_of_this_name$ matched no function" in told[0]
    alone = tmp_path / "alone.memlens"
    subprocess.run([tmp_path / "program"], env=environment(MEMLENS_OUTPUT=str(alone)), check=True, timeout=60)
    assert any("^nothing_of_this_name$ matched no function" in note for note in open_capture(alone).quality.notes)


def test_ccache_notices_a_changed_file_of_expressions(tmp_path: Path) -> None:
    needs("ccache", "ccache")
    (tmp_path / "a.c").write_text("volatile int x; void first(void) { x = 1; } void second(void) { x = 2; }")
    wanted = tmp_path / "wanted"
    cache = {"CCACHE_DIR": str(tmp_path / "cache"), "XDG_CACHE_HOME": str(tmp_path / "xdg"), "CCACHE_NOCOMPRESS": "1"}
    for mode in ({}, {"CCACHE_NODIRECT": "1"}):
        found = []
        for name in ("first", "second", "first"):
            wanted.write_text(f"^{name}$\n")
            command = ["ccache", "memlens-cc", "-O1", f"--memlens-functions=@{wanted}", "-c", "a.c", "-o", "a.o"]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment(**cache, **mode), capture_output=True, text=True, timeout=120
            )
            assert (done.returncode, done.stderr) == (0, "")
            listed = subprocess.run(["strings", "-a", "a.o"], cwd=tmp_path, capture_output=True, text=True, check=True)
            found.append([text for text in listed.stdout.splitlines() if text in ("^first$", "^second$")])
        assert found == [["^first$"], ["^second$"], ["^first$"]], mode
    done = subprocess.run(
        ["memlens-cc", "-O1", f"--memlens-functions=@{wanted}", "-MD", "-c", "a.c"],
        cwd=tmp_path, env=environment(), check=True, timeout=120,
    )  # fmt: skip
    assert str(wanted) in (tmp_path / "a.d").read_text() and shutil.which("ccache")


TEMPLATES = """
#include <vector>
#include <cstdio>
template <class T> struct box { T value; };
volatile long sink;
template <class T> __attribute__((noinline)) void walk(const std::vector<box<std::vector<T>>> &all) {
  for (const auto &one : all)
    for (const T &x : one.value) sink = x;
}
int main() {
  std::vector<box<std::vector<long>>> all(100, box<std::vector<long>>{std::vector<long>(100, 1)});
  for (int i = 0; i < 10; i++) walk(all);
  std::puts("done");
}
"""


def test_verify_joins_regions_of_nested_templates(tmp_path: Path) -> None:
    needs("qemu-x86_64", "qemu-user")
    (tmp_path / "t.cpp").write_text(TEMPLATES)
    plain = build([tmp_path / "t.cpp"], tmp_path / "plain", "-O2", "--memlens=none")
    made = build([tmp_path / "t.cpp"], tmp_path / "made", "-O2", "--memlens-functions=walk")
    done = run_memlens("verify", "--json", "--fail-above", "1", "--functions", "walk", plain, made, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout
    (claim,) = json.loads(done.stdout)["claims"]
    statuses = {row["region"]: row["status"] for row in claim["tables"]["by_region"]}
    assert len(statuses) == 1 and ">>" in next(iter(statuses)) and set(statuses.values()) == {"both"}


def test_empty_functions_are_not_unseen(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        "void e(void); int s(int); int main(void) { int x = 0; for (int i = 0; i < 1000; i++) e(), x += s(i); return x == 1; }"
    )
    (tmp_path / "b.c").write_text("void e(void) {} int s(int x) { return x + 1; }")
    built("-O2", tmp_path / "a.c", tmp_path / "b.c", "-o", tmp_path / "program")
    capture = counted(tmp_path, "run", [str(tmp_path / "program")])[2]
    document = json.loads(run_memlens("report", "--json", capture).stdout)
    unseen = document["results"]["bandwidth"]["tables"]["unseen"]
    assert [row["callee"] for row in unseen if row["callee"] in ("e", "s")] == []


def test_counters_of_clang_itself_are_not_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLVM_PROFILE_FILE", str(tmp_path / "profile"))
    (tmp_path / "a.c").write_text(
        "volatile int x[100]; __attribute__((noinline)) void f(int n) { for (int i = 0; i < n; i++) if (i & 1) x[i] = i; }"
        "int main(void) { f(100); return 0; }"
    )
    found = []
    for flags in (
        (),
        ("-fprofile-instr-generate",),
        ("-fprofile-instr-generate", "-fprofile-update=atomic"),
        ("--coverage",),
    ):
        done = compile_with("-O1", "-g", *flags, tmp_path / "a.c", "-o", tmp_path / "program", cwd=tmp_path)
        if done.returncode and "libclang_rt" in done.stderr:
            continue  # clang's own library is another package
        assert done.returncode == 0, done.stderr
        capture = counted(tmp_path, "run", [str(tmp_path / "program")])[2]
        rows = ask(
            capture,
            "SELECT sum(read_bytes)::BIGINT r, sum(written_bytes)::BIGINT w FROM site_counts WHERE function = 'f'",
        )
        found.append((rows[0]["r"], rows[0]["w"]))
    assert set(found) == {(0, 200)}
