"""Debian's source packages, unpacked and compiled twice: plain, and by `memlens cc`. For the judge and for count_packages.py.

Source packages are asked for with a configuration of our own, so that nothing under /etc changes. They are kept in the user's cache
directory, never in this repository. MEMLENS_PROJECTS=DIR takes DIR/NAME instead.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from .running import ENVIRONMENT, RunError, checked

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memlens" / "projects"


@dataclasses.dataclass(frozen=True)
class Project:
    """One source package, built by one command line of a compiler, or by its own makefile."""

    name: str
    package: str
    files: tuple[str, ...]
    """Patterns of sources."""
    leave_out: tuple[str, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    arguments: tuple[str, ...]
    functions: str
    """Regions: a regular expression of functions."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names and text of headers that Debian's own build writes."""
    generate: tuple[tuple[str, ...], ...] = ()
    """Commands that write the sources into the folder of the build; SOURCE is the unpacked package."""
    make: tuple[str, ...] = ()
    """Built by this command in a copy of the package instead; the compiler is added as CC=…"""
    program: str = ""
    """What `make` writes."""


PROJECTS = (
    Project(
        "minigzip", "zlib", ("*.c", "test/minigzip.c"), (), ("-I.", "-DHAVE_UNISTD_H", "-DHAVE_STDARG_H"), (), ("-9", "-c", "text"),
        "^(longest_match|fill_window|deflate_slow|compress_block|crc32_z|build_tree)$",
    ),
    Project(
        "lua", "lua5.4", ("src/*.c",), ("luac.c",), ("-Isrc", "-DLUA_USE_POSIX"), ("-lm",), ("run.lua",),
        "^(luaV_execute|auxsort|luaH_resize|luaS_hash|internshrstr|propagatemark|sweeplist)$",
        headers=(("lua5.4-deb-multiarch.h", '#define DEB_HOST_MULTIARCH "linux-gnu"\n'),),
    ),
)  # fmt: skip
LARGE_PROJECTS = (
    Project(
        "sqlite", "sqlite3", ("sqlite3.c", "shell.c"), (), ("-I.", "-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION"), ("-lm",),
        (":memory:", ".read run.sql"), "^sqlite3VdbeExec$",
        generate=(("SOURCE/configure", "--disable-tcl", "--disable-readline"), ("make", "sqlite3.c", "shell.c")),
    ),
    Project(
        "redis", "redis", (), (), (), (),
        ("--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "yes", "--daemonize", "no", "--dir", "."), "^processCommand$",
        make=("make", "-C", "src", "redis-server", "MALLOC=libc", "USE_SYSTEMD=no", "OPTIMIZATION=-O2"), program="src/redis-server",
    ),
)  # fmt: skip
"""Built in a minute each: not part of the judge. The sources of sqlite need tclsh."""


def unpacked(project: Project) -> Path:
    """The sources of a project; RunError where they cannot be had."""
    given = os.environ.get("MEMLENS_PROJECTS")
    if given and (Path(given) / project.name).is_dir():
        return Path(given) / project.name
    place = CACHE / f"judge-{project.package}"
    if place.is_dir():
        return place
    if shutil.which("apt-get") is None or shutil.which("dpkg-source") is None:
        raise RunError(
            f"no sources of {project.package}: sudo apt-get install dpkg-dev, or MEMLENS_PROJECTS=DIR with them in DIR/{project.name}"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        options = _source_lists(Path(folder))
        for command in (["update"], ["source", "--only-source", project.package]):
            done = subprocess.run(
                ["apt-get", "-q", *options, *command],
                cwd=folder,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                timeout=600,
            )
            if done.returncode and command != ["update"]:
                raise RunError(f"apt-get source {project.package}: {done.stderr.strip()[-200:]}")
        found = [path for path in Path(folder).iterdir() if path.is_dir() and path.name != "apt"]
        if not found:
            raise RunError(f"apt-get source {project.package} unpacked nothing")
        found[0].rename(place)
    return place


def _source_lists(folder: Path) -> list[str]:
    """Options of apt-get for the sources of the packages that this machine has."""
    parts = folder / "apt" / "parts"
    (folder / "apt" / "lists" / "partial").mkdir(parents=True)
    parts.mkdir()
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if not path.is_file():
            continue
        lines = path.read_text(errors="replace").splitlines()
        if path.suffix == ".sources":
            lines = ["Types: deb-src" if line.startswith("Types:") else line for line in lines]
        else:
            lines = ["deb-src" + line[3:] for line in lines if line.startswith("deb ")]
        (parts / path.name).write_text("\n".join(lines) + "\n")
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": folder / "apt" / "lists",
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def compiled(memlens: list[str], project: Project, folder: Path, output: str, *how: str) -> Path:
    """A program built by `memlens cc` with these options of its own."""
    source = unpacked(project)
    if project.make:
        tree = folder / f"{output}-tree"
        shutil.copytree(source, tree, symlinks=True)
        checked([*project.make, f"CC={shlex.join([*memlens, 'cc', *how])}"], tree)
        shutil.copy2(tree / project.program, folder / output)
        return folder / output
    if project.generate:
        generated = folder / f"{project.name}-generated"
        if not generated.is_dir():
            generated.mkdir()
            for command in project.generate:
                checked([word.replace("SOURCE", str(source)) for word in command], generated)
        source = generated
    files = [
        str(path)
        for pattern in project.files
        for path in sorted(source.glob(pattern))
        if path.name not in project.leave_out
    ]
    for name, text in project.headers:
        (folder / name).write_text(text)
    flags = [f"-I{source / flag[2:]}" if flag.startswith("-I") else flag for flag in project.flags]
    checked(
        [
            *memlens,
            "cc",
            *how,
            "-O2",
            "-g",
            "-w",
            f"-I{folder}",
            *flags,
            *files,
            *project.libraries,
            "-o",
            str(folder / output),
        ],
        folder,
    )
    return folder / output
