"""The program that is recorded, seen from outside: its file, its process in /proc, how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from ..capture.store.os_names import shown
from ..errors import ProgramNotExecutable, ProgramNotFound


def find_program(name: str) -> str:
    """The file that exec will run, or the error a shell would give."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(part or ".", name) for part in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    found_file = None
    for candidate in candidates:
        if os.path.isfile(candidate):
            found_file = found_file or candidate
            if os.access(candidate, os.X_OK):
                return candidate
    if found_file:
        raise ProgramNotExecutable(
            f"{found_file} is not executable", hint=f"chmod +x {found_file}, or name its interpreter"
        )
    if "/" in name and os.path.isdir(name):
        raise ProgramNotExecutable(f"{name} is a directory")
    raise ProgramNotFound(f"program '{shown(name)}' was not found", hint="check the name, or give its path after --")


def memory_cgroup(pid: int) -> tuple[str, Path, list[Path]] | None:
    """The control group that counts a process's memory: its path, the file of what it uses, files of its limits."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, current, limit = "/sys/fs/cgroup", "memory.current", "memory.max"
        elif "memory" in controllers.split(","):
            root, current, limit = "/sys/fs/cgroup/memory", "memory.usage_in_bytes", "memory.limit_in_bytes"
        else:
            continue
        directory = Path(root + path)
        if not (directory / current).is_file():
            continue
        limits = [folder / limit for folder in _up_to(directory, Path(root)) if (folder / limit).is_file()]
        return path, directory / current, limits
    return None


def _up_to(directory: Path, root: Path) -> list[Path]:
    """A directory and those above it: the tightest limit on the way up holds."""
    found = []
    while directory != root.parent:
        found.append(directory)
        directory = directory.parent
    return found


def fault_counts(pid: int) -> tuple[int, int]:
    """Minor and major faults so far: the waiting child's own, before the program."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[7]), int(fields[9])
    except (OSError, IndexError, ValueError):
        return 0, 0


def peak_rss_bytes(pid: int) -> int:
    """The high-water mark of a process's memory so far."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def why_not_ours(pid: int) -> str | None:
    """Why the kernel lets us see no more of a process than its size; None: it lets us look inside."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            file.read(1)
    except PermissionError:
        with contextlib.suppress(OSError, KeyError):
            import pwd

            owner = os.stat(f"/proc/{pid}").st_uid
            if owner != os.geteuid():
                return f"it belongs to {pwd.getpwuid(owner).pw_name}, and this user may not inspect it"
        return "the kernel does not let this user inspect it (it is not dumpable, or in another user namespace)"
    except OSError:
        return None  # it has ended: attaching tells
    return None


def exit_like(status: int) -> None:
    """Ends this process as the program ended: same status, or same signal without a core file."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, a closed pipe: the status is passed on all the same
            stream.flush()
    if os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
