"""Compiled-in counts beside the emulator; estimates of sampled traces beside full ones. On Debian's source packages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import programs
from .model import Missing, Row
from .programs import Program
from .running import RunError, checked, folder_for, missing_tool, record
from .sources import PROJECTS, compiled

MIN_BYTES = 100_000
"""Regions with less are not judged: the words that entering one takes weigh more than what it does."""
SEEDS = 40
CLAIMED = 0.9
"""Intervals of nominally 95 % are to hold at least so often."""
CHANCE = 0.05
TOLERANCE = 0.01
"""Counts are exact for the optimised IR; instruction selection narrows and folds some loads after that."""


def least_that_hold(intervals: int) -> int:
    """Fewer that hold show, but for one chance in twenty, that intervals hold less often than CLAIMED.

    >>> least_that_hold(20), least_that_hold(40), least_that_hold(200)
    (16, 33, 173)
    """
    below = 0.0
    for held in range(intervals + 1):
        below += math.comb(intervals, held) * CLAIMED**held * (1 - CLAIMED) ** (intervals - held)
        if below > CHANCE:
            return held
    return intervals


def inputs(folder: Path) -> None:
    """What the projects of both kinds read."""
    programs.text(folder)
    (folder / "text").write_text((folder / "text").read_text()[:400_000])
    (folder / "run.lua").write_text(programs.LUA.replace("150000", "20000").replace("20000 do s", "2000 do s"))


def judge_counts(memlens: list[str], root: Path, *, quick: bool) -> Iterator[Row | Missing]:
    """Bytes of each region without the stack, as `memlens verify` compares them."""
    why = missing_tool("qemu-x86_64", "clang-19")
    for project in PROJECTS[:1] if quick else PROJECTS:
        made = Program(project.name, "", ("./plain", *project.arguments), inputs)
        if why:
            yield Missing(project.name, "compiled-in counts", why)
            continue
        with folder_for(made, root) as folder:
            try:
                plain = compiled(memlens, project, folder, "plain", "--memlens=none")
                counted = compiled(memlens, project, folder, "counted", f"--memlens-functions={project.functions}")
                verified = json.loads(
                    checked(
                        [
                            *memlens,
                            "verify",
                            "--json",
                            "--functions",
                            project.functions,
                            str(plain),
                            str(counted),
                            "--",
                            *project.arguments,
                        ],
                        folder,
                    )
                )
            except RunError as error:
                yield Missing(project.name, "compiled-in counts", str(error))
                continue
        yield from _regions(project.name, verified["claims"][0]["tables"])


def _regions(name: str, tables: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    """Counts beside the emulator's, with and without what libraries do inside the region: the copies of realloc, for example, are in no compiled code,
    while calls with a known size are counted."""
    for row in tables["by_region"]:
        quantity = row["quantity"]
        if row["scope"] != "heap_and_global" or not quantity.endswith("bytes"):
            continue
        parts: dict[str, float] = {}
        for one in tables["explained"]:
            if one["region"] == row["region"]:
                bytes_ = (one[quantity] or 0) + 2 * (one["standard_error_bytes"] or 0)
                parts[one["category"]] = parts.get(one["category"], 0.0) + bytes_
        low = row["exact"] - parts.get("library", 0.0)
        if low < MIN_BYTES:
            continue
        made = sum(parts.get(category, 0.0) for category in ("constant pool", "address tables"))
        reason = ""
        if 0 < low - row["claimed"] <= made:
            reason = (
                f"jump tables and constants that the back end makes, {made / 1024:,.0f} KiB here, are not in the IR"
            )
        metric = f"{row['region']}: {quantity.replace('_', ' ')}"
        oracle = "emulator, without and with library code" if low < row["exact"] else "emulator"
        yield Row(name, "count", metric, row["claimed"], low, row["exact"], oracle, TOLERANCE, 0, "bytes", reason)


def judge_estimates(memlens: list[str], root: Path, *, quick: bool) -> Iterator[Row | Missing]:
    """How often 95 % intervals of sampled traces hold, by draws from a full trace of the same run."""
    why = missing_tool("clang-19")
    seeds = 5 if quick else SEEDS
    for project in PROJECTS[:1] if quick else PROJECTS:
        made = Program(project.name, "", ("./traced", *project.arguments), inputs)
        if why:
            yield Missing(project.name, "estimates", why)
            continue
        with folder_for(made, root) as folder:
            try:
                compiled(memlens, project, folder, "traced", "--memlens=trace")
                full = record(memlens, made, folder, "--trace=full,on-full=wait", report=False)
                judged = json.loads(
                    checked([*memlens, "validate", "--json", "--seeds", str(seeds), str(full.capture)], folder)
                )
            except RunError as error:
                yield Missing(project.name, "estimates", str(error))
                continue
        for row in judged["tables"]["metrics"]:
            if row["intervals"]:
                metric = f"{row['scope']}: 95 % intervals of {row['metric']} that hold, of {row['intervals']}"
                yield Row(
                    project.name,
                    "trace",
                    metric,
                    row["covered_percent"] / 100,
                    least_that_hold(row["intervals"]) / row["intervals"],
                    1.0,
                    f"full trace; fewer show that they hold in less than {CLAIMED:.0%}",
                    1e-9,
                    0.0,
                    "share",
                )
