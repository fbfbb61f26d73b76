"""Which allocator and which managed runtime a process really uses, from the files that it maps: remedies must fit them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...capture.reader import Capture

RUNTIMES = (
    ("java", re.compile(r"libjvm\.so|libj9vm\d*\.so")),
    ("node", re.compile(r"(?:node|nodejs|deno|bun|electron|chrom(?:e|ium))$|libnode\.so|libv8\.so")),
    ("dotnet", re.compile(r"libcoreclr\.so|libmono.*\.so")),
    ("erlang", re.compile(r"beam(?:\.smp)?$")),
    ("ruby", re.compile(r"ruby[\d.]*$|libruby")),
    ("php", re.compile(r"php[\d.]*$|libphp")),
    ("python", re.compile(r"python[\d.]*$|libpython")),
    ("perl", re.compile(r"perl[\d.]*$|libperl\.so")),
)
OWN_HEAP = ("java", "node", "dotnet", "erlang")
"""Runtimes whose data does not come from malloc."""
ALLOCATORS = (
    ("jemalloc", re.compile(r"libjemalloc\.so")),
    ("tcmalloc", re.compile(r"libtcmalloc")),
    ("mimalloc", re.compile(r"libmimalloc")),
    ("musl", re.compile(r"ld-musl|libc\.musl")),
    ("glibc", re.compile(r"libc\.so\.6$|libc-2\.\d+\.so$")),
)


def _files(capture: Capture, process: int) -> list[str]:
    from ...capture.tables.run import executable_mappings

    made = capture.derived.get("code_files")
    if made is None:
        made = capture.derived["code_files"] = {}
        for row in executable_mappings(capture):
            made.setdefault(row["process"], {})[row["path"]] = None
    parents = {row["process"]: row["parent"] for row in capture.table("processes").to_pylist()}
    while process and process not in made:  # a forked process has its parent's mappings
        process = parents.get(process) or 0
    return [os.path.basename(path) for path in made.get(process, {})]


def runtime_of(capture: Capture, process: int) -> str | None:
    """`java`, `node`, `python`, …; None for a plain native program."""
    files = _files(capture, process)
    return next((name for name, pattern in RUNTIMES if any(pattern.match(file) for file in files)), None)


def allocator_of(capture: Capture, process: int) -> str | None:
    """The library whose malloc the process calls; None when it is not known (statically linked)."""
    from ..objects import OTHER_MALLOC

    files = _files(capture, process)
    for row in capture.table("runtime_status").to_pylist() if "runtime_status" in capture.kinds() else []:
        if row["process"] == process and row["flags"] & OTHER_MALLOC:
            return None
    return next((name for name, pattern in ALLOCATORS if any(pattern.match(file) for file in files)), None)


def keep_pages_remedy(capture: Capture, process: int) -> str:
    """How to make this process's allocator keep what it frees."""
    runtime, allocator = runtime_of(capture, process), allocator_of(capture, process)
    if runtime == "java":
        return "Fix the size of the Java heap: -Xms equal to -Xmx, with -XX:+AlwaysPreTouch."
    if runtime == "node":
        return "Give the young generation more room: node --max-semi-space-size=64."
    if runtime in OWN_HEAP:
        return f"Raise the initial heap size of the {runtime} runtime."
    return {
        "glibc": "If malloc returns it to the kernel: GLIBC_TUNABLES=glibc.malloc.trim_threshold=4294967296:"
        "glibc.malloc.mmap_threshold=4294967296.",
        "jemalloc": "If the allocator returns it to the kernel: MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1.",
        "tcmalloc": "If the allocator returns it to the kernel: TCMALLOC_RELEASE_RATE=0.",
        "mimalloc": "If the allocator returns it to the kernel: MIMALLOC_PURGE_DELAY=-1.",
    }.get(allocator or "", "Use an allocator that keeps pages.")


def huge_pages_remedy(capture: Capture, process: int) -> str:
    """How to get huge pages in this process on this machine."""
    runtime, allocator = runtime_of(capture, process), allocator_of(capture, process)
    thp = capture.meta.get("machine", {}).get("transparent_hugepages")
    allow = "sudo sh -c 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled', then " if thp == "never" else ""
    if runtime == "java":
        return allow + "java -XX:+UseTransparentHugePages"
    if runtime == "node":
        return "typed arrays that are kept and reused: V8 has no option for huge pages in its heap"
    if runtime in OWN_HEAP:
        return allow + f"the huge-page option of the {runtime} runtime"
    if thp == "always":
        return "align the buffer to 2 MiB so that the kernel can use huge pages"
    own = "madvise(MADV_HUGEPAGE) on a 2 MiB-aligned buffer"
    tunable = {
        "glibc": "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
        "jemalloc": "MALLOC_CONF=thp:always",
        "mimalloc": "MIMALLOC_ALLOW_LARGE_OS_PAGES=1",
    }.get(allocator or "")
    return allow + (f"{own}, or {tunable}" if tunable else own)
