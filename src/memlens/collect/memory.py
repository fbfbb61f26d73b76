"""How much memory can be had."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_bytes() -> int:
    """Memory that can be had now, in this control group too."""
    found = [1 << 62]
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(errors="replace").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root, limit, used = (
                ("/sys/fs/cgroup", "memory.max", "memory.current")
                if not controllers
                else ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            )
            for folder in (Path(f"{root}{group}"), *Path(f"{root}{group}").parents):
                with contextlib.suppress(OSError, ValueError):
                    found.append(int((folder / limit).read_text()) - int((folder / used).read_text()))
    return max(0, min(found))
