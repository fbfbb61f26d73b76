"""The same figure in JSON, Python, terminal and page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from .model import Missing, Row
from .programs import Program
from .running import checked, folder_for, record

HEADLINES = (
    # analysis, figure, how a person reads it: a count, or bytes
    ("faults", "faults", "count"),
    ("first_touch", "first_touched_bytes", "bytes"),
    ("capacity", "peak_rss_bytes", "bytes"),
)
MOST_PROGRAMS = 3
FROM_PYTHON = (
    "import sys,json,memlens;c=memlens.open(sys.argv[1]);"
    "print(json.dumps({n: memlens.analyses.run(n, c).figures for n in sys.argv[2:]}, default=str))"
)


def spellings(value: float, kind: str) -> list[str]:
    """How a report may print it.

    >>> spellings(3 << 20, "bytes")
    ['3 MiB', '3.0 MiB', '3.00 MiB']
    """
    if kind == "count":
        return [f"{value:,.0f}"]
    for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return [f"{value / size:.{digits}f} {name}" for digits in (0, 1, 2)]
    return [f"{value:.0f} B"]


def judge(memlens: list[str], python: str, programs: list[Program], root: Path) -> Iterator[Row | Missing]:
    for program in [p for p in programs if p.missing() is None][:MOST_PROGRAMS]:
        with folder_for(program, root) as folder:
            recorded = record(memlens, program, folder)
            capture = str(recorded.capture)
            names = list(recorded.report["results"])
            computed = json.loads(checked([python, "-c", FROM_PYTHON, capture, *names], folder))
            terminal = checked([*memlens, "report", capture], folder)
            checked([*memlens, "report", "--html", str(folder / "judge.html"), capture], folder)
            page = html.unescape(re.sub(r"<[^>]+>", " ", (folder / "judge.html").read_text()))
        different = [
            f"{name}.{figure}"
            for name in names
            for figure, value in recorded.report["results"][name]["figures"].items()
            if json.loads(json.dumps(computed[name].get(figure), default=str)) != value
        ]
        total = sum(len(recorded.report["results"][name]["figures"]) for name in names)
        metric = f"figures of Python that are JSON's, of {total}" + (
            f" (not: {', '.join(different[:5])})" if different else ""
        )
        yield Row(program.name, "outputs", metric, total - len(different), total, total, "report --json", 0.0)
        for output, text in (("terminal", terminal), ("page", page)):
            squeezed = " ".join(text.replace("\u202f", " ").replace("\u00a0", " ").split())
            for analysis, figure, kind in HEADLINES:
                value = recorded.figure(analysis, figure)
                if value is None:
                    continue
                shown = float(any(spelling in squeezed for spelling in spellings(value, kind)))
                yield Row(
                    program.name,
                    "outputs",
                    f"{analysis}.{figure} = {spellings(value, kind)[-1]} in the {output}",
                    shown,
                    1,
                    1,
                    "report --json",
                    0.0,
                )
