"""The collector emulate with other people's programs and other instruction sets, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import MEMLENS, run_memlens
from emulate_oracle import ISAS
from emulate_tools import (
    accesses,
    build,
    by_thread,
    bytes_by,
    emulate,
    named,
    needs_emulation,
    needs_x86,
    rows,
    windows,
)

import memlens

pytestmark = needs_emulation

# ---- other instruction sets ----------------------------------------------------------------------------
USAGE, UNAVAILABLE = 64, 69  # memlens help exit-status
OTHERS = [name for name in ISAS if name != os.uname().machine]
WORKS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) long sum_all(const volatile long *numbers, long n) {
  long sum = 0;
  for (long i = 0; i < n; i++) sum += numbers[i];
  return sum;
}
static void *run(void *unused) {
  long *numbers = malloc(800000);
  for (long i = 0; i < 100000; i++) numbers[i] = i;
  printf("%ld\n", sum_all(numbers, 100000));
  free(numbers);
  return unused;
}
int main(int argc, char **argv) {
  (void)argc;
  run(NULL);
  pthread_t id;
  pthread_create(&id, NULL, run, NULL);
  pthread_join(id, NULL);
  fflush(stdout);
  if (fork() == 0) { run(NULL); exit(3); }
  int status;
  wait(&status);
  printf("%d %s\n", WEXITSTATUS(status), strrchr(argv[0], '/'));
  return 7;
}
"""


def cross_compiler(isa: str) -> str:
    compiler = ISAS[isa].compiler()
    if compiler is None or shutil.which(ISAS[isa].emulator) is None:
        pytest.skip(f"no compiler or no emulator for {isa}")
    return compiler


@pytest.mark.parametrize("isa", ISAS)
def test_a_dynamic_program_of_any_instruction_set_just_works(isa: str, tmp_path: Path) -> None:
    program = build(tmp_path, "works", WORKS, compiler=cross_compiler(isa))
    capture, done = emulate(tmp_path / "c.memlens", program, status=7)
    assert done.stdout == "4999950000\n" * 3 + "3 /works\n"
    assert capture.meta["collectors"]["emulate"]["machine"] == isa
    summed = [row for row in named(capture) if row["function"] == "sum_all" and row["load_width"] == 8]
    assert max(row["loads"] for row in summed) == 100_000
    assert sum(row["loads"] for row in summed if row["loads"] == 100_000) == 300_000
    assert len({row["process"] for row in summed}) == 2 and len({row["thread"] for row in summed}) == 3
    sizes = [row["bytes"] for row in rows(capture, "allocations") if row["operation"] == "malloc"]
    assert sizes.count(800_000) == 3
    assert {row["name"] for row in rows(capture, "processes")} == {"works"}


@pytest.mark.parametrize("isa", ISAS)
def test_code_that_counted_for_one_thread_counts_for_the_next_ones_too(isa: str, tmp_path: Path) -> None:
    """The first thread runs it long enough to count by itself; then another thread and a forked process run it."""
    source = WORKS.replace("100000", "1000000").replace("800000", "8000000")
    program = build(tmp_path, "works", source, compiler=cross_compiler(isa))
    output = tmp_path / "c.memlens"
    done = run_memlens("record", "-q", "-o", output, "--emulate=counts", "--", program, timeout=300)
    assert done.returncode == 7, done.stderr
    summed: dict[tuple[int, int], int] = {}
    for row in named(memlens.open(output)):
        if row["function"] == "sum_all" and row["load_width"] == 8 and row["loads"] > 1:
            place = (row["process"], row["thread"])
            summed[place] = summed.get(place, 0) + row["loads"]
    assert sorted(summed.values()) == [1_000_000] * 3


@pytest.mark.parametrize("isa", OTHERS)
def test_a_static_program_says_what_is_not_seen(isa: str, tmp_path: Path) -> None:
    program = build(tmp_path, "works", WORKS, "-static", compiler=cross_compiler(isa))
    capture, _ = emulate(tmp_path / "c.memlens", program, status=7)
    assert any("statically linked" in entry["reason"] for entry in capture.meta["unsupported"])
    assert capture.meta["emulate"]["loads"] > 300_000


# ---- what it says when it cannot --------------------------------------------------------------------------
def refused(*arguments: str | Path, status: int, **more: object) -> str:
    done = run_memlens("record", *arguments, **more)
    assert done.returncode == status and done.stdout == "", (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    return done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fake_path(folder: Path, **emulators: str) -> dict[str, str]:
    """An environment in which only these emulators are found: shell scripts, or `real`."""
    tools = folder / "bin"
    tools.mkdir()
    for name, script in emulators.items():
        path = tools / f"qemu-{name}"
        if script == "real":
            path.symlink_to(shutil.which(f"qemu-{name}") or "/nowhere")
        else:
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
    return {**os.environ, "PATH": str(tools)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--emulate=everything"], "unknown option 'everything'"),
        (["--emulate=counts=1"], "unknown option 'counts=1'"),
        (["--emulate=window=many"], "invalid value 'many' for window"),
        (["--emulate=period=0"], "expected a positive integer"),
        (["--emulate=window=10,period=5"], "does not fit a period of 5"),
        (["--emulate=stacks=maybe"], "unknown option 'stacks=maybe'"),
        (["--emulate=cpu="], "unknown option 'cpu='"),
        (["--emulate", "--functions", "("], "is not a regular expression"),
        (["--emulate", "--functions", "no_such_function"], "no function of true or its libraries matches"),
        (["--functions", "main"], "--functions needs --emulate"),
    ],
)
def test_wrong_words(here: Path, words: list[str], says: str) -> None:
    text = refused(*words, "--", "/bin/true", status=USAGE)
    assert says in text
    assert not list(here.glob("*.memlens")), "nothing was recorded"


def test_programs_that_it_cannot_run(here: Path) -> None:
    old = here / "old"
    old.write_bytes(
        b"\x7fELF\x01\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (3).to_bytes(2, "little") + bytes(64)
    )
    text = here / "text"
    text.write_text("neither a program nor a script\n")
    empty = here / "empty"
    empty.write_text("")
    for path in (old, text, empty):
        path.chmod(0o755)
    assert "32-bit" in refused("--emulate", "--", old, status=UNAVAILABLE)
    for path in (text, empty):
        assert "is not a program that qemu can run" in refused("--emulate", "--", path, status=UNAVAILABLE)
    assert "was not found" in refused("--emulate", "--", "./nothing", status=127)
    assert not list(here.glob("*.memlens"))


QEMU_SAYS = 'case "$1" in --version) echo "qemu-x86_64 version {version} (Debian)";; -help) echo "{usage}";; esac'
PLUGINS = "-plugin  QEMU_PLUGIN  [file=]<file>"


@needs_x86
@pytest.mark.parametrize(
    ("script", "reason", "remedy"),
    [
        (None, "qemu-user for x86_64 is not installed", "sudo apt-get install qemu-user"),
        (QEMU_SAYS.format(version="9.1.0", usage="-cpu model"), "was built without plugins", "--enable-plugins"),
        (QEMU_SAYS.format(version="5.2.0", usage=PLUGINS), "is version 5.2.0", "7.0 to 10"),
        (QEMU_SAYS.format(version="99.0.0", usage=PLUGINS), "is version 99.0.0", "7.0 to 10"),
        ("exit 1", "does not report its version", "qemu-user"),
    ],
    ids=["absent", "without plugins", "too old", "too new", "broken"],
)
def test_an_emulator_that_cannot_be_used_is_one_sentence(
    here: Path, script: str | None, reason: str, remedy: str
) -> None:
    environment = fake_path(here, **({"x86_64": script} if script is not None else {}))
    said = refused("--emulate", "--", "/bin/true", status=UNAVAILABLE, env=environment)
    assert "collector emulate cannot run here: " in said and reason in said and remedy in said
    assert len(said.strip().splitlines()) == 2
    doctor = run_memlens("doctor", env=environment)
    flat = " ".join(doctor.stdout.split())
    assert doctor.returncode == 0 and reason in flat
    assert not list(here.glob("*.memlens"))


def test_an_emulator_of_another_machine_is_missing(here: Path) -> None:
    for isa in OTHERS:
        if ISAS[isa].compiler() is not None:
            break
    else:
        pytest.skip("no cross compiler")
    program = build(here, "works", WORKS, compiler=cross_compiler(isa))
    environment = fake_path(here, **{os.uname().machine: "real"})
    said = refused("--emulate", "--", program, status=UNAVAILABLE, env=environment)
    assert f"qemu-user for {isa} is not installed" in said and "sudo apt-get install qemu-user" in said


@pytest.mark.parametrize("isa", OTHERS)
def test_libraries_of_another_machine_are_missing(isa: str, here: Path) -> None:
    program = build(here, "lost", WORKS, "-Wl,--dynamic-linker=/lib/ld-nowhere.so.1", compiler=cross_compiler(isa))
    said = refused("--emulate", "--", program, status=UNAVAILABLE)
    assert f"the {isa} program needs /lib/ld-nowhere.so.1, which is neither here nor under" in said
    assert "sudo apt-get install libc6-" in said


@needs_x86
def test_an_instruction_that_the_emulator_lacks_is_told(tmp_path: Path) -> None:
    source = '#include <stdio.h>\nint main(int c, char **v) { (void)v; puts("begin"); fflush(stdout); if (c > 1) %s; puts("end"); return 0; }'
    avx512 = build(tmp_path, "avx512", source % '__asm__ volatile("vpaddd %zmm0, %zmm1, %zmm2")')
    for options, hint in (("counts", "--emulate=cpu=max"), ("counts,cpu=max", "build it for an older processor")):
        done = run_memlens(
            "record", "--force", "-o", tmp_path / "c.memlens", f"--emulate={options}", "--", avx512, "now"
        )
        assert (done.returncode, done.stdout) == (-4, "begin\n")
        said = " ".join(done.stderr.split())
        assert "ended at an illegal instruction" in said and hint in said and "qemu" in said
        assert any("illegal instruction" in note for note in memlens.open(tmp_path / "c.memlens").quality.notes)
    done = run_memlens("record", "--force", "-o", tmp_path / "c.memlens", "--emulate=counts", "--", avx512)
    assert (done.returncode, done.stdout) == (0, "begin\nend\n") and "illegal" not in done.stderr
    avx2 = build(tmp_path, "avx2", source % '__asm__ volatile("vpaddd %ymm0, %ymm1, %ymm2")')
    _, done = emulate(tmp_path / "c.memlens", avx2, "now", mode="cpu=max")
    assert done.stdout == "begin\nend\n"


def test_a_processor_that_the_emulator_does_not_know(tmp_path: Path) -> None:
    done = run_memlens("record", "-o", tmp_path / "c.memlens", "--emulate=cpu=abacus", "--", "/bin/true")
    assert done.returncode != 0 and "abacus" in done.stderr


# ---- programs nobody here wrote ----------------------------------------------------------------------------
def text_file(folder: Path) -> Path:
    path = folder / "numbers"
    path.write_text("".join(f"{i * 7919 % 10007} line {i}\n" for i in range(3000)))
    return path


PROGRAMS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "sort": (["sort", "-n", "{file}"], ("sort", "libc")),
    "gzip": (["gzip", "-9", "-n", "-c", "{file}"], ("gzip", "libc")),
    "python3": (["/usr/bin/python3", "-S", "-c", "print(sum(len(str(i * i)) for i in range(3000)))"], ("python3",)),
    "sqlite3": (
        ["sqlite3", ":memory:", "create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c limit 2000) "
         "insert into t select x*7919%1009, x from c; select a, count(*), sum(b) from t group by a order by 3 desc limit 5;"],
        ("sqlite3", "libsqlite3"),
    ),
    "gawk": (["gawk", "{{ n[$1 % 97] += $3 }} END {{ for (i = 0; i < 97; i++) print i, n[i] }}", "{file}"], ("gawk",)),
    "mawk": (["mawk", "{{ n[$1 % 97] += $3 }} END {{ for (i = 0; i < 97; i++) print i, n[i] }}", "{file}"], ("mawk",)),
    "perl": (["perl", "-ne", "$n{{$1 % 97}} += length if /(\\d+)/; END {{ print map {{ \"$_ $n{{$_}}\\n\" }} sort keys %n }}", "{file}"], ("perl",)),
    "xz": (["xz", "-0", "-c", "{file}"], ("xz", "liblzma")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_straight_from_the_distribution(name: str, tmp_path: Path) -> None:
    words, modules = PROGRAMS[name]
    file = text_file(tmp_path)
    command = [word.format(file=file) for word in words]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    native = subprocess.run(command, capture_output=True, check=True)
    output = tmp_path / "c.memlens"
    with open(tmp_path / "output", "wb") as stream:
        arguments = ["record", "-q", "-o", str(output), "--emulate", "--", *command]
        done = subprocess.run([*MEMLENS, *arguments], stdout=stream, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_bytes() == native.stdout and done.stderr == native.stderr
    capture = memlens.open(output)
    counted = named(capture)
    assert capture.meta["emulate"]["loads"] > 100_000 and capture.meta["emulate"]["stores"] > 10_000
    traffic = bytes_by(counted, "module")
    assert traffic[""] < 0.001 * traffic.total(), "code without a module"
    (busiest, _), *_ = traffic.most_common(1)
    assert os.path.basename(busiest).startswith(modules), traffic.most_common(3)
    functions = bytes_by(counted, "function")
    assert len(functions) > 50
    assert not rows(capture, "unseen")
    for thread, found in by_thread(windows(capture)).items():
        expected = accesses(row for row in counted if row["thread"] == thread) / 100_000
        assert abs(len(found) - expected) <= max(1.0, 0.01 * expected), (len(found), expected)
    assert all("libmemlens" not in module for module in traffic)
    report = run_memlens("report", output)
    assert report.returncode == 0 and "Traceback" not in report.stderr


def test_findings_of_programs_nobody_here_wrote(tmp_path: Path) -> None:
    """Sorting by the rules of a language is known to be slow: the finding names the function, with its figure. Compressing
    and counting have nothing that memlens would object to."""
    file = tmp_path / "numbers"
    file.write_text("".join(f"{i * 7919 % 100003 / 100003}\n" for i in range(20_000)))
    found = {}
    for name, command, locale in (
        ("sort", ["sort", str(file)], "C.UTF-8"),
        ("gzip", ["gzip", "-c", str(file)], "C"),
        ("gawk", ["gawk", "{ s += $1 } END { print s }", str(file)], "C"),
    ):
        if shutil.which(name) is None:
            continue
        output = tmp_path / f"{name}.memlens"
        arguments = [*MEMLENS, "record", "-q", "-o", str(output), "--emulate", "--", *command]
        environment = {**os.environ, "LC_ALL": locale}
        subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True, timeout=120, env=environment)
        report = memlens.analyses.report(memlens.open(output))
        found[name] = report.findings
        assert all(finding.remedy and finding.evidence for finding in found[name])
        assert all(finding.severity != "high" for finding in found[name]), found[name]
    assert [finding.name for finding in found.get("gzip", [])] == []
    assert [finding.name for finding in found["sort"]] == ["stack_traffic"]
    assert "strcoll" in found["sort"][0].claim
