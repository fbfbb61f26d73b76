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

from .swept import SweptDirectory

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


def package_of(path: str) -> str | None:
    """The Debian or RPM package of an installed file, None where there is none."""
    for command, pattern in (
        (["dpkg-query", "-S", path], r"([^\s:,]+)[:,]"),
        (["rpm", "-qf", "--qf", "%{NAME}:", path], r"([^\s:]+):"),
    ):
        if shutil.which(command[0]) is None:
            continue
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            continue
        match = re.match(pattern, answer.stdout) if answer.returncode == 0 else None
        if match:
            return match[1]
    return None


def symbols_remedy(path: str, build_id: str) -> str:
    """Where the symbols of a stripped file are: its package, or a server, by its build-id."""
    package = package_of(path)
    if (package is None and path.startswith("/usr/lib/")) or (package is None and path.startswith("/lib/")):
        package = package_of(path.removeprefix("/usr") if path.startswith("/usr/") else f"/usr{path}")
    ways = []
    if package:
        ways.append(f"install {package}-dbgsym" if shutil.which("dpkg-query") else f"debuginfo-install {package}")
    if build_id:
        server = " (this run has no DEBUGINFOD_URLS)" if not os.environ.get("DEBUGINFOD_URLS") else ""
        ways.append(f"{CLIENT} debuginfo {build_id}{server}")
    return " or ".join(ways) or "build it with -g, or keep its symbols"
