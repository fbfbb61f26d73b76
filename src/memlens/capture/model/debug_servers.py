"""Debug information from debuginfod servers, through elfutils' own client.

Only when the user has set DEBUGINFOD_URLS and `debuginfod-find` is installed. The client keeps what it downloads in its own cache and
obeys its own settings (DEBUGINFOD_CACHE_PATH, DEBUGINFOD_TIMEOUT, …); here only the time that all downloads may take is bounded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from ..store.swept import SweptDirectory

CLIENT = "debuginfod-find"
BUDGET_S = 120.0
"""For all modules of a capture."""
SYSTEM_DIRECTORY = "/usr/lib/debug"
BUILD_ID = re.compile(r"(?:[0-9a-f]{2}){4,64}")


class DebugServers:
    """Asks for the debug files of modules by build-id; a context whose links go with it."""

    def __init__(self) -> None:
        self._client = shutil.which(CLIENT) if os.environ.get("DEBUGINFOD_URLS", "").strip() else None
        self._until = time.monotonic() + BUDGET_S
        self._directory: SweptDirectory | None = None
        self.found: list[str] = []
        self.missing: list[str] = []

    @property
    def enabled(self) -> bool:
        return self._client is not None

    def __enter__(self) -> DebugServers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def directories(self, build_id: str) -> list[str] | None:
        """Directories to search that have this module's debug file, None when no server has it."""
        left_s = self._until - time.monotonic()
        if self._client is None or not BUILD_ID.fullmatch(build_id) or left_s <= 0:
            return None
        try:
            answer = subprocess.run(
                [self._client, "debuginfo", build_id],
                capture_output=True, text=True, timeout=left_s, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            self.missing.append(build_id)
            return None
        path = Path(answer.stdout.strip())
        if answer.returncode != 0 or not path.is_file():
            self.missing.append(build_id)
            return None
        if self._directory is None:
            self._directory = SweptDirectory("debug")
        link = self._directory.path / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(path)
        self.found.append(build_id)
        return [str(self._directory.path), SYSTEM_DIRECTORY]


MERGED = re.compile(r"(/usr)?(/(?:bin|sbin|lib\w*)/.*)")
"""Directories that are links into /usr on most systems; a package's list may have either name."""


def _dpkg_names(path: str) -> tuple[str, ...]:
    if re.search(r"[*?\[\\\n]", path):  # a pattern to dpkg
        return ()
    merged = MERGED.fullmatch(path)
    return (merged[2], f"/usr{merged[2]}") if merged else (path,)


def packages_of(paths: list[str]) -> dict[str, str]:
    """The Debian or RPM package of each installed file that has one."""
    if not paths:
        return {}
    found: dict[str, str] = {}
    if shutil.which("dpkg-query"):
        names = {path: _dpkg_names(path) for path in paths}
        every = sorted({name for some in names.values() for name in some})
        owners = dpkg_owners(every)
        found = {path: owners[name] for path, some in names.items() for name in some if name in owners}
    if shutil.which("rpm"):
        for path in paths:
            match = re.match(r"([^\s:]+):", _output(["rpm", "-qf", "--qf", "%{NAME}:", path]))
            if path not in found and match:
                found[path] = match[1]
    return found


DPKG_LISTS = "/var/lib/dpkg/info"


def dpkg_owners(names: list[str], lists: str = DPKG_LISTS) -> dict[str, str]:
    """File → package, from the lists of files that dpkg keeps: dpkg-query takes four times as long, for it parses them all.

    Packages named like a file come first; most searches end there.
    """
    wanted = {name: b"\n" + os.fsencode(name) + b"\n" for name in names}
    alike = tuple({os.path.basename(name)[:4] for name in names})
    try:
        files = [entry for entry in os.listdir(lists) if entry.endswith(".list")]
    except OSError:
        return {}
    found: dict[str, str] = {}
    for entry in sorted(files, key=lambda entry: (not entry.startswith(alike), entry)):
        if len(found) == len(wanted):
            break
        try:
            with open(os.path.join(lists, entry), "rb") as file:
                content = file.read()
        except OSError:
            continue
        for name, line in wanted.items():
            if name not in found and line in content:
                found[name] = entry.removesuffix(".list").partition(":")[0]
    return found


def _output(command: list[str]) -> str:
    """What it prints; dpkg-query also names packages when other files have none (status 1)."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=5, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def symbols_remedy(build_id: str, package: str | None) -> str:
    """Where the symbols of a stripped file are: its package, or a server, by its build-id."""
    ways = []
    if package:
        ways.append(f"install {package}-dbgsym" if shutil.which("dpkg-query") else f"debuginfo-install {package}")
    if build_id:
        server = " (this run has no DEBUGINFOD_URLS)" if not os.environ.get("DEBUGINFOD_URLS") else ""
        ways.append(f"{CLIENT} debuginfo {build_id}{server}")
    return " or ".join(ways) or "build it with -g, or keep its symbols"
