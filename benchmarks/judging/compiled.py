"""Compiled-in counts beside the emulator; estimates of sampled traces beside full ones. On Debian's source packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from . import programs
from .model import Missing, Row
from .programs import Program
from .running import RunError, checked, folder_for, missing_tool, record
from .sources import PROJECTS, compiled

MIN_BYTES = 100_000
"""Regions with less are not judged: the words that entering one takes weigh more than what it does."""
TOLERANCE = 0.01
"""Counts are exact for the optimised IR; instruction selection narrows and folds some loads after that."""


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
        for row in verified["claims"][0]["tables"]["by_region"]:
            if row["scope"] == "heap_and_global" and row["quantity"].endswith("bytes") and row["exact"] >= MIN_BYTES:
                metric = f"{row['region']}: {row['quantity'].replace('_', ' ')}"
                yield Row(
                    project.name,
                    "count",
                    metric,
                    row["claimed"],
                    row["exact"],
                    row["exact"],
                    "emulator",
                    TOLERANCE,
                    0,
                    "bytes",
                )


def judge_estimates(memlens: list[str], root: Path, *, quick: bool) -> Iterator[Row | Missing]:
    """How often 95 % intervals of sampled traces hold, by draws from a full trace of the same run."""
    why = missing_tool("clang-19")
    seeds = 5 if quick else 20
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
                    0.9,
                    1.0,
                    "full trace",
                    0.0,
                    0.0,
                    "share",
                )
