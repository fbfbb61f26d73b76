"""What is installed: clang, lld, our plugins for them, our library for each machine."""

from __future__ import annotations

import os

from ..errors import ToolchainError

OLDEST, NEWEST = 16, 22
MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "powerpc64le": "ppc64le", "ppc64el": "ppc64le"}
REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir memlens (in its repository: make build)"


class Installed:
    """Our own files, by LLVM version and machine."""

    __slots__ = ("archives", "dynamic", "include", "machine", "passes", "pragmas", "version_script")

    def __init__(
        self,
        *,
        passes: dict[int, str],
        pragmas: dict[int, str],
        archives: dict[str, str],
        dynamic: dict[str, str],
        include: str,
        version_script: str = "",
        machine: str = "",
    ) -> None:
        self.passes, self.pragmas, self.include = passes, pragmas, include
        self.version_script = version_script
        self.archives = archives  # the runtime
        self.dynamic = dynamic  # an object that dynamically linked modules have on top of it
        self.machine = machine or os.uname().machine


class Clang:
    """A compiler that was chosen; `target` is that of its name (aarch64-linux-gnu-clang), else ""."""

    __slots__ = ("lld", "major", "path", "target")

    def __init__(self, path: str, major: int, *, target: str = "", lld: str = "") -> None:
        self.path, self.major, self.target, self.lld = path, major, target, lld


def installed() -> Installed:
    """Looks into the package's own folders; an editable installation has several."""
    import memlens

    passes: dict[int, str] = {}
    pragmas: dict[int, str] = {}
    archives: dict[str, str] = {}
    dynamic: dict[str, str] = {}
    include, version_script, host = "", "", os.uname().machine
    for folder in memlens.__path__:
        runtime = os.path.join(folder, "runtime")
        try:
            names = os.listdir(runtime)
        except OSError:
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")
            base, _, tail = stem.partition("-")
            path = os.path.join(runtime, name)
            if base in ("memlens_pass", "memlens_pragma") and suffix == "so" and tail.isdecimal():
                (passes if base == "memlens_pass" else pragmas)[int(tail)] = path
            elif base == "libmemlens_count" and suffix == "a":
                archives[tail or host] = path
            elif base == "memlens_count_dynamic" and suffix == "o":
                dynamic[tail or host] = path
            elif name == "memlens_count.map":
                version_script = path
        if os.path.isfile(os.path.join(folder, "include", "memlens.h")):
            include = os.path.join(folder, "include")
    return Installed(
        passes=passes,
        pragmas=pragmas,
        archives=archives,
        dynamic=dynamic,
        include=include,
        version_script=version_script,
    )


def machine_of(target: str) -> str:
    """The machine of a target triple, as our libraries are named.

    >>> machine_of("powerpc64le-linux-gnu"), machine_of("arm64-unknown-linux-gnu")
    ('ppc64le', 'aarch64')
    """
    machine = target.partition("-")[0]
    return MACHINES.get(machine, machine)


def which(name: str, environment: dict[str, str]) -> str:
    """shutil.which, whose import would cost more than all of this module."""
    if "/" in name:
        return name if os.access(name, os.X_OK) and not os.path.isdir(name) else ""
    for folder in environment.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def _number_of_name(path: str) -> int:
    """16 of clang-16, clang++-16 and llvm-16/bin/clang; 0 = the name does not tell."""
    name = os.path.basename(path)
    if "clang" not in name:
        return 0
    tail = name.rpartition("-")[2]
    if tail.isdecimal():
        return int(tail)
    for part in reversed(path.split("/")):
        if part.startswith("llvm-") and part[5:].isdecimal():
            return int(part[5:])
    return 0


def major_version(path: str, environment: dict[str, str]) -> int:
    """The LLVM version of a clang: from its name and the file behind it where they agree, else asked once."""
    real = os.path.realpath(path)
    told, behind = _number_of_name(path), _number_of_name(real)
    if behind and told in (0, behind):
        return behind
    try:
        status = os.stat(real)
    except OSError:
        return 0
    key = f"{real}\t{status.st_mtime_ns}\t{status.st_size}"
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    cache = os.path.join(cache, "memlens", "clang-versions")
    try:
        with open(cache, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.startswith(key + "\t"):
                    return int(line.rpartition("\t")[2])
    except (OSError, ValueError):
        pass
    major = _ask_version(path)
    if major:
        try:
            os.makedirs(os.path.dirname(cache), exist_ok=True)
            # One write of one short line: several compilers of a parallel build do not mix theirs.
            with open(cache, "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{key}\t{major}\n")
        except OSError:
            pass  # asked again next time
    return major


def _ask_version(path: str) -> int:
    import subprocess

    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return 0
    number = text.partition("clang version ")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def target_of_name(path: str) -> str:
    """clang takes its target from its own name, as cross compilers do."""
    prefix, found, _ = os.path.basename(path).rpartition("-clang")
    return prefix if found and "-" in prefix else ""


def find_lld(clang: str, major: int, environment: dict[str, str]) -> str:
    """The linker of the same LLVM: a plugin for one version cannot be loaded by another."""
    beside = os.path.join(os.path.dirname(os.path.realpath(clang)), "ld.lld")
    if os.access(beside, os.X_OK):
        return beside
    return which(f"ld.lld-{major}", environment)


def find_clang(wanted: str, have: Installed, environment: dict[str, str]) -> Clang:
    """The clang that was asked for, or the newest one that a plugin was built for."""
    wanted = wanted or environment.get("MEMLENS_CLANG", "")
    if wanted:
        path = which(wanted, environment)
        if not path:
            raise ToolchainError(f"compiler {wanted} was not found", hint="MEMLENS_CLANG or --memlens-clang names it")
        major = major_version(path, environment)
        if not major:
            raise ToolchainError(f"{path} does not say which clang it is", hint="memlens cc needs clang, not gcc")
        _require_plugin(path, major, have)
        return Clang(path, major, target=target_of_name(wanted), lld=find_lld(path, major, environment))
    for major in sorted(have.passes, reverse=True):
        path = which(f"clang-{major}", environment) or which(f"/usr/lib/llvm-{major}/bin/clang", environment)
        if path:
            return Clang(path, major, lld=find_lld(path, major, environment))
    path = which("clang", environment)
    if path:
        major = major_version(path, environment)
        _require_plugin(path, major, have)
        return Clang(path, major, lld=find_lld(path, major, environment))
    for major in range(NEWEST, OLDEST - 1, -1):
        path = which(f"clang-{major}", environment)
        if path:
            _require_plugin(path, major, have)
    built = versions_text(have)
    raise ToolchainError(
        f"no installed clang matches a plugin of this memlens (plugins: {built})",
        hint=f"sudo apt-get install {packages(max(have.passes, default=19))}"
        + ("" if have.passes else f"; then build memlens again: {REBUILD}"),
    )


def versions_text(have: Installed) -> str:
    return ", ".join(map(str, sorted(have.passes))) or "none"


def packages(major: int) -> str:
    """What to install for one version, on Debian and Ubuntu."""
    return f"clang-{major} llvm-{major}-dev libclang-{major}-dev lld-{major}"


def _require_plugin(path: str, major: int, have: Installed) -> None:
    if major in have.passes:
        return
    built = versions_text(have)
    if not OLDEST <= major <= NEWEST:
        newest = max(have.passes, default=19)
        raise ToolchainError(
            f"{path} is clang {major}; memlens counts with clang {OLDEST} to {NEWEST} (plugins built here: {built})",
            hint=f"sudo apt-get install {packages(newest)}, or MEMLENS_CLANG=clang-{newest}",
        )
    raise ToolchainError(
        f"{path} is clang {major}; this memlens has plugins for clang {built}",
        hint=f"sudo apt-get install {packages(major)}, then build memlens again: {REBUILD}"
        + (f"; or MEMLENS_CLANG=clang-{max(have.passes)}" if have.passes else ""),
    )
