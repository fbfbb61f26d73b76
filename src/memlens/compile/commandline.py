"""What a clang command line asks for: stages, inputs, target, kind of link.

Reads only as much of clang's language as the driver's decisions need; what it does not know
is clang's business. It must know which options take the next argument as their value, or a value
that looks like an option or a file would be taken for one.
"""

from __future__ import annotations

import os

WITH_VALUE = frozenset(
    [
        "-o",
        "-x",
        "-I",
        "-L",
        "-l",
        "-D",
        "-U",
        "-F",
        "-T",
        "-u",
        "-z",
        "-e",
        "-A",
        "-G",
        "-B",
        "-b",
        "-MF",
        "-MT",
        "-MQ",
        "-MJ",
        "-include",
        "-include-pch",
        "-imacros",
        "-iprefix",
        "-iwithprefix",
        "-iwithprefixbefore",
        "-iwithsysroot",
        "-iquote",
        "-isystem",
        "-isystem-after",
        "-idirafter",
        "-isysroot",
        "-ivfsoverlay",
        "-cxx-isystem",
        "-stdlib++-isystem",
        "-working-directory",
        "-target",
        "-arch",
        "-Xclang",
        "-Xlinker",
        "-Xassembler",
        "-Xpreprocessor",
        "-Xanalyzer",
        "-Xopenmp-target",
        "-Xcuda-ptxas",
        "-Xcuda-fatbinary",
        "-Xoffload-linker",
        "-mllvm",
        "-mmlir",
        "-mthread-model",
        "-rpath",
        "-gcc-toolchain",
        "-resource-dir",
        "-ccc-gcc-name",
        "-ccc-install-dir",
        "-wrapper",
        "-specs",
        "-serialize-diagnostics",
        "-dumpbase",
        "-dumpdir",
        "-aux-info",
        "--param",
        "--sysroot",
        "--output",
        "--include",
        "--imacros",
        "--define-macro",
        "--undefine-macro",
        "--config",
        "--include-directory",
        "--include-directory-after",
        "--include-prefix",
        "--include-with-prefix",
        "--library-directory",
        "--language",
        "--assert",
        "--force-link",
        "--for-linker",
        "--for-assembler",
        "--prefix",
        "--serialize-diagnostics",
        "--analyzer-output",
        "-framework",
        "-weak_framework",
        "-filelist",
        "-index-store-path",
        "-fmodules-user-build-path",
    ]
)
VALUE_PREFIXES = ("-Xarch_", "-Xopenmp-target=")
SOURCES = frozenset(
    [
        "c",
        "i",
        "cc",
        "cp",
        "cxx",
        "cpp",
        "c++",
        "C",
        "CPP",
        "CXX",
        "c++m",
        "cppm",
        "cxxm",
        "ixx",
        "ii",
        "m",
        "mi",
        "mm",
        "mii",
        "M",
        "cu",
        "cui",
        "hip",
        "hipi",
        "cl",
        "clcpp",
    ]
)
IR = frozenset(("ll", "bc"))
ASSEMBLY = frozenset(("s", "S", "sx", "asm"))
HEADERS = frozenset(["h", "H", "hh", "hp", "hpp", "hxx", "h++", "HPP", "hm", "tcc"])
LAST_STAGE_IS_NOT_LINK = frozenset(
    [
        "-c",
        "-S",
        "-E",
        "-M",
        "-MM",
        "-fsyntax-only",
        "--analyze",
        "--compile",
        "--assemble",
        "--preprocess",
        "--precompile",
        "--dependencies",
        "--user-dependencies",
        "-emit-ast",
        "-emit-pch",
        "-emit-interface-stubs",
        "--emit-static-lib",
        "-verify-pch",
        "-module-file-info",
        "-rewrite-objc",
        "-extract-api",
        "--extract-api",
        "-migrate",
    ]
)
PREPROCESS = frozenset(["-E", "-M", "-MM", "--preprocess", "--dependencies", "--user-dependencies"])
QUERIES = frozenset(
    ["--version", "--help", "-help", "--help-hidden", "-dumpversion", "-dumpmachine", "-dumpspecs", "-cc1", "-cc1as"]
)
QUERY_PREFIXES = ("-print-", "--print-", "--autocomplete=", "-dumpfullversion", "-ccc-print")


class Job:
    """One run of the compiler, as far as we must know it."""

    __slots__ = (
        "bare", "build_id", "debug", "freestanding", "has_libc", "inputs", "linker", "linker_path", "links", "lto",
        "machine_bits", "preprocess", "query", "relocatable", "shared", "static", "target",
        "version_scripts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.inputs: list[str] = []  # kinds: source, ir, assembly, header, object
        self.query = False  # prints something and ends
        self.preprocess = False
        self.links = True
        self.debug = False  # the user said something about debug information
        self.shared = self.static = self.relocatable = False
        self.bare = False  # -nostdlib, -nodefaultlibs
        self.has_libc = False  # names the C library itself
        self.freestanding = False
        self.build_id = False
        self.version_scripts: list[str] = []
        self.lto = ""  # "", full, thin
        self.linker = ""  # of -fuse-ld=
        self.linker_path = ""  # of --ld-path=
        self.target = ""
        self.machine_bits = ""  # of -m32, -mx32

    @property
    def compiles(self) -> bool:
        return any(kind in ("source", "ir", "header") for kind in self.inputs)


def expand(arguments: list[str], *, depth: int = 0) -> list[str]:
    """The arguments with response files (@file) read, for decisions only: clang reads them itself."""
    if depth > 20 or not any(argument.startswith("@") for argument in arguments):
        return arguments
    import shlex

    found: list[str] = []
    for argument in arguments:
        if argument.startswith("@") and os.path.isfile(argument[1:]):
            try:
                with open(argument[1:], encoding="utf-8", errors="surrogateescape") as file:
                    found.extend(expand(shlex.split(file.read()), depth=depth + 1))
            except (OSError, ValueError):
                found.append(argument)  # clang says what is wrong with it
        else:
            found.append(argument)
    return found


def kind_of_file(name: str, language: str) -> str:
    """What clang takes an input for.

    >>> kind_of_file("a.c", ""), kind_of_file("a.o", ""), kind_of_file("-", "c"), kind_of_file("x.h", "")
    ('source', 'object', 'source', 'header')
    """
    if language and language != "none":
        if language.startswith("assembler"):
            return "assembly"
        if language == "ir":
            return "ir"
        return "header" if "header" in language else "source"
    suffix = name.rpartition(".")[2] if "." in os.path.basename(name) else ""
    for kind, suffixes in (("source", SOURCES), ("assembly", ASSEMBLY), ("ir", IR), ("header", HEADERS)):
        if suffix in suffixes:
            return kind
    return "object"


def understand(arguments: list[str]) -> Job:
    """Reads clang's arguments (without ours)."""
    job, language, to_linker = Job(), "", list[str]()
    iterator = iter(expand(arguments))
    for argument in iterator:
        if not argument.startswith("-") or argument == "-":
            job.inputs.append(kind_of_file(argument, language))
            continue
        if argument == "--":
            job.inputs.extend(kind_of_file(name, language) for name in iterator)
            break
        value = next(iterator, "") if argument in WITH_VALUE or argument.startswith(VALUE_PREFIXES) else None
        if argument in ("-x", "--language"):
            language = value or ""
        elif argument.startswith("-x"):
            language = argument[2:]
        elif argument.startswith("--language="):
            language = argument[11:]
        elif argument == "-Xlinker":
            to_linker.append(value or "")
        elif argument.startswith("-Wl,"):
            to_linker.extend(argument[4:].split(","))
        else:
            _note(job, argument, value)
    _note_linker(job, to_linker)
    if job.inputs and all(kind == "header" for kind in job.inputs):
        job.links = False  # a precompiled header
    return job


def _note(job: Job, argument: str, value: str | None) -> None:
    if argument in LAST_STAGE_IS_NOT_LINK:
        job.links = False
        job.preprocess = job.preprocess or argument in PREPROCESS
    elif argument in QUERIES or argument.startswith(QUERY_PREFIXES):
        job.query = True
    elif argument.startswith("-l"):
        job.inputs.append("object")
        job.has_libc = job.has_libc or (value or argument[2:]) == "c"
    elif argument in ("-shared", "--shared", "-static", "--static", "-static-pie"):
        setattr(job, "shared" if "shared" in argument else "static", True)
    elif argument == "-r":
        job.relocatable = True
    elif argument in ("-nostdlib", "--no-standard-libraries", "-nodefaultlibs", "-nolibc"):
        job.bare = True
    elif argument in ("-ffreestanding", "-mkernel", "-fapple-kext", "-mcmodel=kernel"):
        job.freestanding = True
    elif argument == "-fhosted":
        job.freestanding = False
    elif argument.startswith("-flto") and not argument.startswith("-flto-"):
        job.lto = "thin" if argument == "-flto=thin" else "full"
    elif argument == "-fno-lto":
        job.lto = ""
    elif argument.startswith("-fuse-ld="):
        job.linker = argument[9:]
    elif argument.startswith("--ld-path="):
        job.linker_path = argument[10:]
    elif argument.startswith("--target="):
        job.target = argument[9:]
    elif argument == "-target":
        job.target = value or ""
    elif argument in ("-m32", "-mx32", "-m64"):
        job.machine_bits = "" if argument == "-m64" else argument
    elif argument.startswith("-g") and not argument.startswith(("-gcc", "-gz", "-gno-", "-gpu")):
        job.debug = True


def _note_linker(job: Job, arguments: list[str]) -> None:
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in ("--version-script", "-version-script"):
            job.version_scripts.append(value if equals else "".join(arguments[position + 1 : position + 2]))
        if argument.startswith(("--build-id", "-build-id")):
            job.build_id = True
        elif argument in ("-r", "-i", "--relocatable"):
            job.relocatable = True
        elif argument in ("-shared", "--shared", "-Bshareable"):
            job.shared = True
        elif argument in ("-lc", "--library=c"):
            job.has_libc = True
    if arguments:
        job.inputs.append("object")
