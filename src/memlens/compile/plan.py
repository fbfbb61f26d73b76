"""The clang command line that counts, from the one that the user gave.

Reads nothing of the machine but files that the command line names.

What is added, and where:

    clang [what compiling needs] USER'S ARGUMENTS [what linking needs]

Compiling comes first so that whatever the user says about the same thing wins; linking comes last so that the
library follows the objects that need it.
"""

from __future__ import annotations

import os

from ..errors import ToolchainError, UsageError
from . import cache_marks, version_script
from .commandline import Job, understand
from .options import Options
from .toolchain import Clang, Installed, machine_of, packages

EXPORTED = ("__memlens_count_*", "__memlens_trace*", "pthread_create", "thrd_create", "ompt_start_tool")
"""What other modules of the process must find in the program: one definition for all of them."""


def plan(
    arguments: list[str],
    *,
    plus_plus: bool,
    options: Options,
    clang: Clang,
    have: Installed,
    environment: dict[str, str],
) -> tuple[list[str], str]:
    """(argv for execv, value of MEMLENS_PASS or "")."""
    program = _program(clang, plus_plus)
    job = understand(arguments)
    if job.query or not job.inputs:
        return [*program, *arguments], ""
    if _is_left_alone(job, options):
        return [*program, *_unused_or_not(_include(job, have)), *arguments], ""
    machine = _machine(job, clang, have)
    before, after = _for_compiling(job, clang, have), list[str]()
    before += _for_caches(job, options, environment)
    if job.links:
        after = _for_linking(job, clang, have, machine)
        for script in job.version_scripts:
            instead = version_script.adapted(script, environment)
            if instead:
                arguments = version_script.replaced(arguments, script, instead)
            elif instead == "" and have.version_script not in "".join(after):
                after.append("-Wl,--version-script=" + have.version_script)
    before = _unused_or_not(before)
    if "--" in arguments and after:
        # Only files may follow it, but our library has to come after the objects.
        split = arguments.index("--")
        files = [f"./{name}" if name.startswith("-") else name for name in arguments[split + 1 :]]
        arguments = [*arguments[:split], *files]
    return [*program, *before, *arguments, *after], options.for_pass()


def _program(clang: Clang, plus_plus: bool) -> list[str]:
    if not plus_plus:
        return [clang.path]
    folder, name = os.path.split(clang.path)
    if "++" in name:
        return [clang.path]
    sibling = os.path.join(folder, name.replace("clang", "clang++", 1))
    return [sibling] if os.path.exists(sibling) else [clang.path, "--driver-mode=g++"]


def _is_left_alone(job: Job, options: Options) -> bool:
    """What cannot hold our library is not counted unless it is asked for: kernels, and programs without a C library."""
    if options.mode:
        return options.mode == "none"
    return job.freestanding or (job.links and job.bare and not job.has_libc and not job.shared and job.compiles)


def _unused_or_not(arguments: list[str]) -> list[str]:
    """No warning when clang has no use for them in this run."""
    return ["--start-no-unused-arguments", *arguments, "--end-no-unused-arguments"] if arguments else []


def _include(job: Job, have: Installed) -> list[str]:
    """memlens.h is found wherever `memlens cc` compiles; a copy that the program brings comes first."""
    compiles = any(kind != "object" for kind in job.inputs)
    return ["-idirafter", have.include] if compiles and have.include else []


def _machine(job: Job, clang: Clang, have: Installed) -> str:
    target = job.target or clang.target
    machine = machine_of(target) if target else machine_of(have.machine)
    if job.machine_bits:
        machine += f" with {job.machine_bits}"
    if machine not in have.archives or (target and "linux" not in target):
        known = ", ".join(sorted(have.archives)) or "none"
        raise ToolchainError(
            f"memlens has no counting library for {target or machine}; it has: {known}",
            hint="leave this part out with --memlens=none; libraries for other machines are built where their "
            "cross compiler is installed (memlens doctor)",
        )
    return machine


def _for_compiling(job: Job, clang: Clang, have: Installed) -> list[str]:
    if not any(kind != "object" for kind in job.inputs):
        return []
    added = ["-D__MEMLENS_COUNT__=1", *_include(job, have)]
    if job.preprocess or not job.compiles:
        return added
    if not job.debug:
        # Version 4: assemblers warn about checksums that version 5 has for some files only, and LLVM 17 and newer write
        # relocations for it on RISC-V that GNU ld before 2.41 crashes on. The last of the two says how much.
        added += ["-gdwarf-4", "-gline-tables-only"]
    if clang.major in have.pragmas:
        added.append("-fplugin=" + have.pragmas[clang.major])
    # With link-time optimisation the pass runs there; here it would see code that is not final, and count twice.
    if not job.lto:
        added.append("-fpass-plugin=" + have.passes[clang.major])
    return added


def _for_caches(job: Job, options: Options, environment: dict[str, str]) -> list[str]:
    """Makes files of expressions part of what the object depends on, for ccache and for make."""
    if not any(kind != "object" for kind in job.inputs):
        return []
    if job.preprocess:
        mark = cache_marks.header(options.function_files, environment)
        return ["-include", mark] if mark else []
    return [word for path in options.function_files for word in ("-Xclang", f"-fdepfile-entry={path}")]


def _for_linking(job: Job, clang: Clang, have: Installed, machine: str) -> list[str]:
    added = _linker_for_lto(job, clang, have)
    if job.relocatable or (job.bare and not job.has_libc and not job.shared):
        return added  # the final link brings the library
    if not job.build_id:
        added.append("-Wl,--build-id")
    if not job.static:
        added += [f"-Wl,--export-dynamic-symbol={name}" for name in EXPORTED]
    # -Xlinker, because a -x of the user would make a source file of a bare name.
    added.append("-Wl,--push-state,--no-whole-archive,--as-needed")
    if job.static:
        # Asked for by name: the C++ library, which comes later, refers to it weakly, and that pulls nothing.
        added += ["-Wl,--wrap=pthread_create,--undefined=__wrap_pthread_create", "-Wl,--wrap=thrd_create"]
    elif machine in have.dynamic:
        added += ["-Xlinker", have.dynamic[machine]]
    added += ["-Xlinker", have.archives[machine]]
    if not job.bare:
        added += ["-lpthread", "-ldl"]
    elif job.has_libc:
        added.append("-lc")
    added.append("-Wl,--pop-state")
    return added


def _linker_for_lto(job: Job, clang: Clang, have: Installed) -> list[str]:
    """lld runs the pass. It gets the plugin even when this link says nothing of -flto: objects may be bitcode."""
    asked = job.linker_path or job.linker
    name = os.path.basename(asked)
    is_lld = name == "lld" or name.startswith("ld.lld")
    if not job.lto and not is_lld:
        return []
    if job.lto and asked and not is_lld:
        raise UsageError(
            f"with -flto memlens counts at link time, which needs lld; this link asks for {asked}",
            hint=f"-fuse-ld=lld (package lld-{clang.major}), or no -flto",
        )
    tail = name.rpartition("-")[2]
    if is_lld and tail.isdecimal() and int(tail) != clang.major:
        if not job.lto:
            return []
        raise ToolchainError(
            f"the linker {asked} is lld {tail}, but the plugin is for LLVM {clang.major}",
            hint=f"-fuse-ld=lld (package lld-{clang.major})",
        )
    if not clang.lld and not asked.startswith("/"):
        if not job.lto:
            return []
        raise ToolchainError(
            f"with -flto memlens counts at link time, which needs lld {clang.major}; it is not installed",
            hint=f"sudo apt-get install {packages(clang.major)}, or compile without -flto",
        )
    added = [] if asked else ["-fuse-ld=lld"]
    if not job.linker_path and not job.linker.startswith("/"):
        added.append("--ld-path=" + clang.lld)
    return [*added, "-Wl,--load-pass-plugin=" + have.passes[clang.major]]
