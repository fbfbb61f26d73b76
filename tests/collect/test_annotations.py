"""memlens.h and memlens.region: a program runs unchanged without a runtime, and a runtime that is there hears every call.

The runtime here is a fake one (tests/native/annotations_fake_runtime.c) that writes a line a call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import ROOT

HEADER = ROOT / "native" / "include"
NATIVE = ROOT / "tests" / "native"
COMPILERS = {"gcc": ("gcc", "g++"), "clang": ("clang", "clang++")}
PACKAGES = {"gcc": "gcc", "g++": "g++", "clang": "clang", "clang++": "clang"}
CROSS = {"aarch64": "aarch64", "riscv64": "riscv64", "powerpc64le": "ppc64le"}

C_CALLS = [
    "begin start",
    "end start",
    "phase assembly",
    "tag matrix 512",
    "begin solve-1",
    "begin nested",
    "begin scoped",
    "begin inner",
    "end inner",
    "end scoped",
    "begin scoped",
    "end scoped",
    "end nested",
    "end solve-1",
    "untag matrix",
    "begin second",
    "end second",
    "phase done",
]
C_OUTPUT = "second 5\nresult 13\n"
CPP_CALLS = [
    "begin static object",
    "end static object",
    "tag matrix 128",
    *["begin template", "end template"] * 3,
    "begin inline",
    "end inline",
    "untag matrix",
    "begin outer",
    "begin inline",
    "end inline",
    "end outer",
]
CPP_OUTPUT = "caught negative\nresult 15\n"


@dataclass
class Variant:
    """A way to build: what the compiler gets, what the linker gets."""

    compile: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    takes_preload: bool = True


VARIANTS = {
    "pie-O0": Variant(["-O0", "-fPIE"], ["-pie"]),
    "pie-O2": Variant(["-O2", "-fPIE"], ["-pie"]),
    "no-pie": Variant(["-O2", "-fno-pie"], ["-no-pie"]),
    "no-pie-O0": Variant(["-O0", "-fno-pie"], ["-no-pie"]),
    "gc-sections": Variant(["-O2", "-ffunction-sections", "-fdata-sections"], ["-Wl,--gc-sections"]),
    "lto": Variant(["-O2", "-flto"], ["-O2", "-flto"]),
    "lld-gc-sections": Variant(["-O2", "-ffunction-sections"], ["-fuse-ld=lld", "-Wl,--gc-sections"]),
    "static": Variant(["-O2"], ["-static"], takes_preload=False),
    "static-pie": Variant(["-O2", "-fPIE"], ["-static-pie"], takes_preload=False),
}


def need(tool: str, package: str) -> str:
    path = shutil.which(tool)
    if not path:
        pytest.skip(f"{tool} is not installed: sudo apt-get install {package}")
    return path


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    options.setdefault("timeout", 60)
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def build(compiler: str, output: Path, variant: Variant, *sources: str, options: tuple[str, ...] = ()) -> Path:
    """Compiles each file by itself and links them; warnings are errors, as strict as a careful project has them."""
    need(compiler, PACKAGES.get(compiler, compiler))
    link = list(variant.link)
    if "-fuse-ld=lld" in link or ("clang" in compiler and "-flto" in link):
        need("ld.lld", "lld")
        link += [] if "-fuse-ld=lld" in link else ["-fuse-ld=lld"]
    language = ["-std=c++11"] if sources[0].endswith(".cpp") else ["-std=c99"]
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    objects = []
    for source in sources:
        compiled = output.parent / f"{output.name}-{Path(source).stem}.o"
        done = run(
            compiler,
            *language,
            *strict,
            *variant.compile,
            *options,
            f"-I{HEADER}",
            "-c",
            NATIVE / source,
            "-o",
            compiled,
        )
        assert done.returncode == 0, done.stderr
        objects.append(compiled)
    done = run(
        compiler, *objects, *link, *[o for o in options if o.startswith(("-L", "-l", "-Wl", "-pthread"))], "-o", output
    )
    assert done.returncode == 0, done.stderr
    return output


def build_runtime(directory: Path, compiler: str = "gcc", *options: str) -> Path:
    library = directory / "libfake.so"
    source = NATIVE / "annotations_fake_runtime.c"
    flags = ["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", f"-I{HEADER}", *options]
    done = run(compiler, *flags, "-shared", "-Wl,-z,text", source, "-o", library)
    assert done.returncode == 0, done.stderr
    return library


def build_runtime_archive(directory: Path, compiler: str = "gcc") -> Path:
    compiled, archive = directory / "fake.o", directory / "libfake.a"
    source = NATIVE / "annotations_fake_runtime.c"
    assert run(compiler, "-O2", "-fPIE", f"-I{HEADER}", "-c", source, "-o", compiled).returncode == 0
    assert run("ar", "rcs", archive, compiled).returncode == 0
    return archive


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("gcc", "gcc")
    return build_runtime(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("gcc", "gcc")
    return build_runtime_archive(tmp_path_factory.mktemp("archive"))


def calls_of(log: str) -> dict[int, list[str]]:
    """Calls by thread, main thread first. Addresses become the name that they were tagged with, untag checks them."""
    calls: dict[int, list[str]] = {}
    names: dict[str, str] = {}
    for line in log.splitlines():
        thread, operation, rest = line.split(" ", 2)
        if operation == "tag":
            name, address, size = rest.rsplit(" ", 2)
            names[address] = name
            rest = f"{name} {size}"
        elif operation == "untag":
            rest = names.get(rest, rest)
        calls.setdefault(int(thread), []).append(f"{operation} {rest}")
    return calls


def heard(program: list[str | Path], log: Path, *, preload: Path | None = None, output: str) -> dict[int, list[str]]:
    """Runs a program, checks what it prints, returns what the runtime heard ({} without one)."""
    log.unlink(missing_ok=True)
    variables = {**os.environ, "MEMLENS_FAKE_LOG": str(log)}
    if preload:
        variables["LD_PRELOAD"] = str(preload)
    done = run(*program, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    return calls_of(log.read_text()) if log.exists() else {}


@dataclass(frozen=True)
class Note:
    probe: str
    address: int
    arguments: str


def notes_of(binary: Path, readelf: str = "readelf") -> list[Note]:
    """The SDT notes of a file, as binutils reads them."""
    done = run(readelf, "-n", binary)
    assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stderr
    found = re.findall(
        r"Provider: memlens\s+Name: (\S+)\s+Location: (\w+), Base: (\w+), Semaphore: (\w+)\s+Arguments: ([^\n]*)",
        done.stdout,
    )
    sections = run(readelf, "-S", "-W", binary).stdout
    base = re.search(r"\.stapsdt\.base\s+PROGBITS\s+(\w+)", sections)
    assert len(found) == done.stdout.count("Provider: memlens")  # a static libc has probes of its own
    for _, _, note_base, semaphore, _ in found:
        assert int(semaphore, 16) == 0
        if binary.suffix != ".o":
            assert base and int(note_base, 16) == int(base[1], 16)
    return [Note(probe, int(address, 16), arguments.strip()) for probe, address, _, _, arguments in found]


X86_ARGUMENT = re.compile(r"8@(%r\w+|-?\d*\(%r\w+\)|\$\d+)")
ARGUMENTS = {"region_begin": 1, "region_end": 1, "phase": 1, "tag": 3, "untag": 1}


def check_notes(binary: Path, minimum: dict[str, int], *, may_be_dropped: bool = False) -> None:
    """Each site has a note, each note names a nop and operands that tools can read."""
    notes = notes_of(binary)
    counts = Counter(note.probe for note in notes)
    assert set(counts) == set(minimum)
    for probe, least in minimum.items():
        assert counts[probe] >= least, (probe, counts)
    # A function that two files have is there once, and so are its notes.
    assert may_be_dropped or len({note.address for note in notes}) == len(notes)
    listing = run("objdump", "-d", "--no-show-raw-insn", binary).stdout
    nops = {int(address, 16) for address in re.findall(r"^\s*([0-9a-f]+):\s+nop\s*$", listing, re.MULTILINE)}
    for note in notes:
        # lld may drop a function and keep its note, whose address then is its place in the dropped section.
        assert note.address in nops or (may_be_dropped and note.address < 0x100), note
        arguments = note.arguments.split(" ")
        assert len(arguments) == ARGUMENTS[note.probe], note
        for argument in arguments:
            assert X86_ARGUMENT.fullmatch(argument), note


def check_links_nothing(binary: Path) -> None:
    """No memlens symbol is needed from elsewhere, none is offered to others."""
    for options in (["-u"], ["-D", "-u"], ["-D", "--defined-only"]):
        assert "memlens" not in run("nm", *options, binary).stdout


C_NOTES = {"region_begin": 6, "region_end": 6, "phase": 2, "tag": 1, "untag": 1}
CPP_NOTES = {"region_begin": 5, "region_end": 5, "tag": 1, "untag": 1}


def check_cpp(calls: dict[int, list[str]]) -> None:
    main_thread, *others = calls.values()
    assert main_thread == CPP_CALLS
    expected = [
        [f"begin worker-{n}-{depth}" for depth in range(4)] + [f"end worker-{n}-{depth}" for depth in (3, 2, 1, 0)]
        for n in range(4)
    ]
    assert sorted(others) == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", COMPILERS)
def test_c_program_runs_alone_and_is_heard(
    tmp_path: Path, runtime: Path, archive: Path, family: str, variant: str
) -> None:
    how = VARIANTS[variant]
    sources = ("annotated.c", "annotated_second.c")
    program = build(COMPILERS[family][0], tmp_path / "program", how, *sources, options=("-DWITH_SECOND_FILE",))
    log = tmp_path / "log"
    assert heard([program], log, output=C_OUTPUT) == {}
    check_notes(program, C_NOTES, may_be_dropped=variant == "lld-gc-sections")
    check_links_nothing(program)
    if how.takes_preload:
        calls = heard([program], log, preload=runtime, output=C_OUTPUT)
    else:
        # Nothing refers to the runtime, so an archive has to be taken whole (or with -u memlens_hooks).
        whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
        with_runtime = Variant(how.compile, [*how.link, *whole])
        recorded = build(
            COMPILERS[family][0], tmp_path / "recorded", with_runtime, *sources, options=("-DWITH_SECOND_FILE",)
        )
        calls = heard([recorded], log, output=C_OUTPUT)
    assert list(calls.values()) == [C_CALLS]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", COMPILERS)
def test_cpp_program_runs_alone_and_is_heard(
    tmp_path: Path, runtime: Path, archive: Path, family: str, variant: str
) -> None:
    how = VARIANTS[variant]
    sources = ("annotated.cpp", "annotated_second.cpp")
    program = build(COMPILERS[family][1], tmp_path / "program", how, *sources, options=("-pthread",))
    log = tmp_path / "log"
    assert heard([program], log, output=CPP_OUTPUT) == {}
    check_notes(program, CPP_NOTES)
    check_links_nothing(program)
    if how.takes_preload:
        check_cpp(heard([program], log, preload=runtime, output=CPP_OUTPUT))
    else:
        with_runtime = Variant(how.compile, [*how.link, "-Wl,-u,memlens_hooks", str(archive)])
        recorded = build(COMPILERS[family][1], tmp_path / "recorded", with_runtime, *sources, options=("-pthread",))
        check_cpp(heard([recorded], log, output=CPP_OUTPUT))


@pytest.mark.parametrize("how", ["linked", "opened"])
@pytest.mark.parametrize("family", COMPILERS)
def test_shared_library_is_heard(tmp_path: Path, runtime: Path, family: str, how: str) -> None:
    """Each module looks for the runtime itself: the program and a library, also one that is opened later."""
    compiler = COMPILERS[family][0]
    shared = Variant(["-O2", "-fPIC"], ["-shared", "-Wl,-z,text", "-Wl,-z,defs"])
    library = build(compiler, tmp_path / "libsecond.so", shared, "annotated_second.c")
    check_notes(library, {"region_begin": 1, "region_end": 1})
    check_links_nothing(library)
    if how == "linked":
        link = Variant(["-O2"], [f"-L{tmp_path}", "-lsecond", f"-Wl,-rpath,{tmp_path}"])
        program = build(compiler, tmp_path / "program", link, "annotated.c", options=("-DWITH_SECOND_FILE",))
    else:
        link = Variant(["-O2", "-Wno-pedantic"], ["-ldl"])
        program = build(compiler, tmp_path / "program", link, "annotated.c", options=(f'-DWITH_DLOPEN="{library}"',))
    log = tmp_path / "log"
    assert heard([program], log, output=C_OUTPUT) == {}
    assert list(heard([program], log, preload=runtime, output=C_OUTPUT).values()) == [C_CALLS]


def test_one_set_of_hooks_a_module(tmp_path: Path) -> None:
    """However many files include the header, the linker keeps one variable and one search."""
    program = build("gcc", tmp_path / "program", VARIANTS["pie-O2"], "annotated.c", "annotated_second.c",
                    options=("-DWITH_SECOND_FILE",))  # fmt: skip
    symbols = run("nm", program).stdout
    for name in ("memlens_private_hooks", "memlens_private_resolve"):
        assert len(re.findall(rf" {name}$", symbols, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("option", "is_accepted"),
    [("-DFAKE_BYTES=4096", True), ("-DFAKE_BYTES=16", False), ("-DFAKE_VERSION=2", False), ("-DFAKE_VERSION=0", False)],
)
def test_only_a_table_that_the_module_understands_is_used(tmp_path: Path, option: str, is_accepted: bool) -> None:
    program = build("gcc", tmp_path / "program", VARIANTS["pie-O2"], "annotated.c", "annotated_second.c",
                    options=("-DWITH_SECOND_FILE",))  # fmt: skip
    other = build_runtime(tmp_path, "gcc", option)
    calls = heard([program], tmp_path / "log", preload=other, output=C_OUTPUT)
    assert list(calls.values()) == ([C_CALLS] if is_accepted else [])


@pytest.mark.parametrize("source", ["annotated.c", "annotated.cpp"])
@pytest.mark.parametrize("family", COMPILERS)
def test_disabled_annotations_compile_to_nothing(tmp_path: Path, runtime: Path, family: str, source: str) -> None:
    second = source.replace(".", "_second.")
    compiler = COMPILERS[family][source.endswith("cpp")]
    options = ("-DMEMLENS_DISABLE", "-DWITH_SECOND_FILE", "-pthread")
    program = build(compiler, tmp_path / "program", VARIANTS["pie-O2"], source, second, options=options)
    assert "stapsdt" not in run("readelf", "-S", "-W", program).stdout
    assert not re.search(r"memlens_private|dl_iterate_phdr", run("nm", program).stdout)
    output = CPP_OUTPUT if source.endswith("cpp") else C_OUTPUT
    assert heard([program], tmp_path / "log", preload=runtime, output=output) == {}


STANDARDS = {"c": ["c99", "c11", "gnu17"], "c++": ["c++11", "c++14", "c++17", "c++20", "gnu++20"]}


@pytest.mark.parametrize("family", COMPILERS)
def test_the_header_compiles_under_every_standard(tmp_path: Path, family: str) -> None:
    source = tmp_path / "use"
    source.write_text(
        '#include "memlens.h"\n#include "memlens.h"\n'
        "void use(const char *name, void *p);\n"
        'void use(const char *name, void *p) { MEMLENS_SCOPE(name); MEMLENS_REGION("b");\n'
        "memlens_phase(name); memlens_tag(name, p, 1); memlens_untag(p); }\n"
    )
    for language, standards in STANDARDS.items():
        compiler = need(COMPILERS[family][language == "c++"], PACKAGES[COMPILERS[family][language == "c++"]])
        for standard in standards:
            for extra in ([], ["-DMEMLENS_DISABLE"], ["-ffreestanding"], ["-fsanitize=address,undefined"]):
                warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *extra]
                flags = ["-x", language, f"-std={standard}", *warnings, "-O1", f"-I{HEADER}"]
                done = run(compiler, *flags, "-c", source, "-o", tmp_path / "use.o")
                assert done.returncode == 0, (standard, extra, done.stderr)


def test_notes_equal_those_of_sys_sdt_h(tmp_path: Path) -> None:
    """Byte for byte, for the same arguments in the same places."""
    if not any(Path(p).exists() for p in ("/usr/include/sys/sdt.h", "/usr/include/x86_64-linux-gnu/sys/sdt.h")):
        pytest.skip("sys/sdt.h is not installed: sudo apt-get install systemtap-sdt-dev")
    need("gcc", "gcc")
    template = """
    #include <stddef.h>
    %s
    void sites(const char *name, const volatile void *address, size_t bytes) {
      BEGIN(name); END(name); PHASE(name); TAG(name, address, bytes); TAG(name, address, (size_t)4096); UNTAG(address);
    }
    """
    # -ffreestanding leaves our call of the hook out, so that both have the same registers to choose from.
    ours = """#include "memlens.h"
    #define BEGIN memlens_begin
    #define END memlens_end
    #define PHASE memlens_phase
    #define TAG memlens_tag
    #define UNTAG memlens_untag
    """
    theirs = """#include <sys/sdt.h>
    #define BEGIN(x) STAP_PROBE1(memlens, region_begin, x)
    #define END(x) STAP_PROBE1(memlens, region_end, x)
    #define PHASE(x) STAP_PROBE1(memlens, phase, x)
    #define TAG(x, y, z) STAP_PROBE3(memlens, tag, x, y, z)
    #define UNTAG(x) STAP_PROBE1(memlens, untag, x)
    """
    contents = []
    for which, text in (("ours", ours), ("theirs", theirs)):
        source, compiled = tmp_path / f"{which}.c", tmp_path / f"{which}.o"
        source.write_text(template % text)
        done = run("gcc", "-O2", "-ffreestanding", f"-I{HEADER}", "-c", source, "-o", compiled)
        assert done.returncode == 0, done.stderr
        assert len(notes_of(compiled)) == 6
        dumped = tmp_path / f"{which}.bin"
        run(
            "objcopy",
            "-O",
            "binary",
            "--set-section-flags",
            ".note.stapsdt=alloc",
            "-j",
            ".note.stapsdt",
            compiled,
            dumped,
        )
        contents.append(dumped.read_bytes())
    assert contents[0] and contents[0] == contents[1]


def test_gdb_finds_the_sites_and_their_arguments(tmp_path: Path) -> None:
    need("gdb", "gdb")
    program = build("gcc", tmp_path / "program", VARIANTS["pie-O2"], "annotated.c", "annotated_second.c",
                    options=("-DWITH_SECOND_FILE",))  # fmt: skip
    commands = ["break -probe-stap memlens:phase", "run", "x/s $_probe_arg0", "continue", "x/s $_probe_arg0", "kill"]
    arguments = [part for command in commands for part in ("-ex", command)]
    done = run("gdb", "-nx", "-batch", *arguments, program)
    if "ptrace" in done.stderr.lower() and "not permitted" in done.stderr.lower():
        pytest.skip("gdb may not trace a process here")
    assert '"assembly"' in done.stdout and '"done"' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["pie", "static"])
@pytest.mark.parametrize("machine", CROSS)
def test_other_machines(tmp_path: Path, machine: str, kind: str) -> None:
    triple = f"{machine}-linux-gnu"
    compiler = need(f"{triple}-gcc", f"gcc-{triple}")
    emulator = need(f"qemu-{CROSS[machine]}", "qemu-user")
    how = Variant(["-O2", "-fPIE"], ["-pie"]) if kind == "pie" else Variant(["-O2"], ["-static"])
    sources = ("annotated.c", "annotated_second.c")
    program = build(compiler, tmp_path / "program", how, *sources, options=("-DWITH_SECOND_FILE",))
    notes = notes_of(program, f"{triple}-readelf")
    assert Counter(note.probe for note in notes).keys() == C_NOTES.keys()
    register = {"aarch64": r"x\d+|sp", "riscv64": r"[astg]\w+", "powerpc64le": r"\d+"}[machine]
    constant = {"powerpc64le": r"i\d+"}.get(machine, r"\d+")
    argument = rf"8@(({register})|{constant}|\[({register})(, \d+)?\]|-?\d+\(({register})\))"
    for note in notes:
        assert re.fullmatch(" ".join([argument] * ARGUMENTS[note.probe]), note.arguments), note
    log = tmp_path / "log"
    command: list[str | Path] = [emulator, "-L", f"/usr/{triple}", program]
    assert heard(command, log, output=C_OUTPUT) == {}
    if kind == "pie":
        library = build_runtime(tmp_path, compiler)
        command = [emulator, "-L", f"/usr/{triple}", "-E", f"LD_PRELOAD={library}", program]
        calls = heard(command, log, output=C_OUTPUT)
    else:
        archive = build_runtime_archive(tmp_path, compiler)
        whole = Variant(how.compile, [*how.link, "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"])
        recorded = build(compiler, tmp_path / "recorded", whole, *sources, options=("-DWITH_SECOND_FILE",))
        calls = heard([emulator, recorded], log, output=C_OUTPUT)
    assert list(calls.values()) == [C_CALLS]


@pytest.mark.parametrize("kind", ["shared", "static", "static-pie"])
def test_musl(tmp_path: Path, kind: str) -> None:
    need("musl-gcc", "musl-tools")
    how = {"shared": Variant(["-O2"]), "static": VARIANTS["static"], "static-pie": VARIANTS["static-pie"]}[kind]
    sources = ("annotated.c", "annotated_second.c")
    program = build("musl-gcc", tmp_path / "program", how, *sources, options=("-DWITH_SECOND_FILE",))
    log = tmp_path / "log"
    assert heard([program], log, output=C_OUTPUT) == {}
    if kind == "shared":
        calls = heard([program], log, preload=build_runtime(tmp_path, "musl-gcc"), output=C_OUTPUT)
    else:
        whole = Variant(
            how.compile, [*how.link, "-Wl,-u,memlens_hooks", str(build_runtime_archive(tmp_path, "musl-gcc"))]
        )
        recorded = build("musl-gcc", tmp_path / "recorded", whole, *sources, options=("-DWITH_SECOND_FILE",))
        calls = heard([recorded], log, output=C_OUTPUT)
    assert list(calls.values()) == [C_CALLS]


EXAMPLE_CALLS = {
    "c": Counter({"begin row": 1000, "end row": 1000, "begin solve": 1, "end solve": 1, "tag matrix 8000": 1})
    + Counter({"untag matrix": 1, "phase solving": 1, "phase cleaning up": 1}),
    "cpp": Counter({"tag matrix 8000": 1, "begin solve": 1, "end solve": 1, "untag matrix": 1}),
    "python": Counter({"tag matrix 8000": 1, "phase solving": 1, "begin solve": 1, "end solve": 1})
    + Counter({"begin check": 1, "end check": 1, "untag matrix": 1}),
}


@pytest.mark.parametrize("language", EXAMPLE_CALLS)
def test_examples_of_the_documentation_do_what_they_say(tmp_path: Path, runtime: Path, language: str) -> None:
    page = (ROOT / "docs" / "annotations.md").read_text()
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    source = tmp_path / f"example.{language}"
    source.write_text(code)
    command: list[str | Path] = [sys.executable, source]
    if language != "python":
        compiler = {"c": "gcc", "cpp": "g++"}[language]
        program = tmp_path / "example"
        done = run(compiler, "-Wall", "-Wextra", "-Werror", "-O2", f"-I{HEADER}", source, "-o", program)
        assert done.returncode == 0, done.stderr
        command = [program]
    assert heard(command, tmp_path / "log", output="") == {}
    (calls,) = heard(command, tmp_path / "log", preload=runtime, output="").values()
    assert Counter(calls) == EXAMPLE_CALLS[language]


# ---- Python ---------------------------------------------------------------------------

PYTHON = """
import array, gc, sys
import memlens
assert memlens.is_recording() == (sys.argv[1] == "recorded")
assert not {"numpy", "pyarrow", "memlens.capture"} & set(sys.modules)

@memlens.region("decorated")
def double(value):
    "doubles"
    return 2 * value

memlens.phase("assembly")
with memlens.region("outer"):
    with memlens.region("größe"):
        print(double(4), double.__name__, double.__doc__)
try:
    with memlens.region("raises"):
        raise KeyError("kept")
except KeyError as error:
    print(error)
numbers = array.array("d", range(8))
with memlens.tag("block", numbers):
    memlens.phase("in block")
handle = memlens.tag("handle", memoryview(numbers)[2:4])
handle.remove()
handle.remove()
memlens.tag("dies", numbers)
del numbers
gc.collect()
memlens.tag("bytes", data := bytearray(100))
data_address = memlens.tag("replaced by", data)
memlens.untag(data)
memlens.untag(data_address)
memlens.tag("pair", (4096, 10))
memlens.untag((4096, 10))
memlens.tag("number", (8192, 10))
memlens.untag(8192)
"""
PYTHON_OUTPUT = "8 double doubles\n'kept'\n"
PYTHON_CALLS = [
    "phase assembly",
    "begin outer",
    "begin größe",
    "begin decorated",
    "end decorated",
    "end größe",
    "end outer",
    "begin raises",
    "end raises",
    "tag block 64",
    "phase in block",
    "untag block",
    "tag handle 16",
    "untag handle",
    "tag dies 64",
    "untag dies",
    "tag bytes 100",
    "tag replaced by 100",
    "untag replaced by",
    "tag pair 10",
    "untag pair",
    "tag number 10",
    "untag number",
]


def test_python_program_runs_alone_and_is_heard(tmp_path: Path, runtime: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PYTHON)
    log = tmp_path / "log"
    assert heard([sys.executable, script, "alone"], log, output=PYTHON_OUTPUT) == {}
    calls = heard([sys.executable, script, "recorded"], log, preload=runtime, output=PYTHON_OUTPUT)
    assert list(calls.values()) == [PYTHON_CALLS]


NUMPY = """
import gc, os, pathlib, warnings
import numpy as np
import memlens
warnings.simplefilter("error")

def check(array):
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    memlens.tag("view", array)
    line = pathlib.Path(os.environ["MEMLENS_FAKE_LOG"]).read_text().splitlines()[-1].split()
    assert (int(line[3], 16), int(line[4])) == (low, high - low), (line, low, high)
    memlens.untag(array)

base = np.arange(720, dtype=np.float64).reshape(6, 10, 12)
frozen = base.copy()
frozen.flags.writeable = False
for view in (base, base[:, 2:5, 3], base[::-1, ::2, ::-3], base.T, base[3], base[1:2, 1:2, 1:2], frozen,
             np.broadcast_to(base[0, 0], (5, 12)), np.zeros(3, dtype="U7"), np.zeros(3, dtype="i1,f8"), np.array(1.0),
             np.zeros(2, dtype="M8[ns]"), np.zeros(2, dtype=complex)[1:], np.zeros(2, dtype=bool)):
    check(view)
memlens.tag("empty", np.zeros(0))
memlens.phase("temporary view")
memlens.tag("rows", base[2:4])
memlens.phase("still tagged")
del base, view
gc.collect()
memlens.phase("gone")
warnings.simplefilter("ignore")
memlens.tag("nothing", object())
memlens.untag("text")
print("done")
"""


def test_numpy_views_are_tagged_from_lowest_to_highest_byte(tmp_path: Path, runtime: Path) -> None:
    pytest.importorskip("numpy")
    calls = heard([sys.executable, "-c", NUMPY], tmp_path / "log", preload=runtime, output="done\n")
    (listed,) = calls.values()
    after = listed[listed.index("phase temporary view") :]
    assert after == ["phase temporary view", "tag rows 1920", "phase still tagged", "untag rows", "phase gone"]


def test_a_region_around_a_function_that_waits_is_refused() -> None:
    import memlens

    async def waits() -> None: ...

    def yields() -> Iterator[int]:
        yield 1

    for function in (waits, yields):
        with pytest.raises(TypeError, match="waits inside"):
            memlens.region("x")(function)


def test_importing_annotations_stays_light() -> None:
    script = "import sys, memlens; memlens.region; print(sorted(m for m in sys.modules if m.startswith('memlens')))"
    done = run(sys.executable, "-c", script)
    assert done.stdout.strip() == "['memlens', 'memlens.annotations', 'memlens.version']"


def test_the_module_is_not_hidden_by_the_line_from_future() -> None:
    script = "from memlens import annotations; import memlens; print(annotations.region is memlens.region)"
    assert run(sys.executable, "-c", script).stdout == "True\n"


def test_python_examples_of_annotations_run() -> None:
    import doctest

    from memlens import annotations

    assert doctest.testmod(annotations).failed == 0
