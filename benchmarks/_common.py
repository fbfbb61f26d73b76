"""What every benchmark says and writes in the same way: progress, the machine, tables, verdicts, the page."""

from __future__ import annotations

import datetime
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from memlens.capture.store.machine import cpu_model


class BenchmarkError(Exception):
    """Nothing can be measured; the message says why and what to do."""


@dataclass(frozen=True)
class Verdict:
    claim: str
    measured: str
    holds: bool


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of those that there are.

    >>> round(geometric_mean([1.0, 4.0, math.nan]), 6)
    2.0
    """
    logs = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(sum(logs) / len(logs))


# ---- the machine ---------------------------------------------------------------------------------------
def first_line(command: list[str]) -> str:
    """What a program answers to --version; unknown when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout.strip().splitlines() or ["unknown"])[0] if done.returncode == 0 else "unknown"


def describe_machine(*, memory: bool = False, **more: str) -> dict[str, str]:
    """Facts for the head of a page, the date last; names of `more` have spaces for underscores."""
    facts = {"processor": cpu_model(), "cores": str(os.cpu_count())}
    if memory:
        facts["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    facts["kernel"] = platform.release()
    facts |= {name.replace("_", " "): text for name, text in more.items()}
    return facts | {"date": datetime.date.today().isoformat()}


# ---- the page ----------------------------------------------------------------------------------------------
def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def head(cells: list[str]) -> list[str]:
    return [row(cells), row(["---"] + ["---:"] * (len(cells) - 1))]


def verdict_lines(verdicts: list[Verdict]) -> list[str]:
    if not verdicts:
        return []
    table = [row([v.claim, v.measured, "yes" if v.holds else "**no**"]) for v in verdicts]
    return ["## Verdicts", "", *head(["claim", "measured", "holds"]), *table, ""]


def write_page(page: str, output: Path | None) -> None:
    """To a file, or to standard output."""
    if output is None:
        print(page, end="" if page.endswith("\n") else "\n")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page)
