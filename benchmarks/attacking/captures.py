"""Attack `captures`: mutants of captures through every command that reads one."""

from __future__ import annotations

import itertools
import random
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from . import seeds
from .capture_mutants import mutate
from .forked import failure_of, forked, memlens_command, warm
from .model import Attempt
from .workplace import kept, workplace

COMMANDS_A_MUTANT = 2
TABLES = ("faults", "placed", "accesses", "sites", "objects", "variables", "regions", "processes", "windows", "site_counts",
          "block_counts", "region_times", "trace_sites", "strings", "stacks", "timeline", "count_sites")  # fmt: skip


def commands(folder: Path, whole: Path, draw: random.Random) -> list[tuple[list[str], bool]]:
    """Command lines on a capture, each with whether its output is text for a terminal."""
    capture, table = str(folder / "mutant.memlens"), draw.choice(TABLES)
    every = [
        (["report", capture], True),
        (["report", capture, "--json"], False),
        (["report", capture, "--html", str(folder / "page.html")], True),
        (["query", capture, f"SELECT * FROM {table}"], True),
        (["query", capture, "--tables"], True),
        (["query", capture, "--json", f"SELECT count(*) FROM {table}"], False),
        (["export", capture, "-o", str(folder / "out"), "--format", draw.choice(("csv", "json", "parquet"))], True),
        (["export", capture, "-o", "-", "--tables", table], False),
        (["diff", capture, str(whole)], True),
        (["diff", str(whole), capture, "--json"], False),
        (["zoom", capture], True),
        (["zoom", capture, "--by", "time"], True),
        (["zoom", capture, "--levels"], True),
        (["suggest", capture], True),
        (["verify", capture], True),
    ]
    weights = [8, 6, 6, 4, 2, 1, 3, 2, 3, 1, 2, 1, 1, 1, 1]
    chosen: list[tuple[list[str], bool]] = []
    while len(chosen) < COMMANDS_A_MUTANT:
        one = draw.choices(every, weights)[0]
        if one not in chosen:
            chosen.append(one)
    return chosen


def remove(folder: Path) -> None:
    """Also what a mutation made unreadable."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(folder)


def make(number: int, *, seed: int, whole: list[Path], folder: Path) -> tuple[str, Path, random.Random]:
    """Mutant `number`: the same for the same seed and captures."""
    draw = random.Random(f"captures {seed} {number}")
    origin = whole[number % len(whole)]
    shutil.copytree(origin, folder / "mutant.memlens")

    def change() -> int:
        print(mutate(folder / "mutant.memlens", draw))
        return 0

    made = forked(change, folder)
    if made.status:
        ended = made.stopped or f"status {made.status}"
        raise RuntimeError(
            f"mutant {number} of {origin} could not be made: {ended}: {made.err.decode(errors='replace')}"
        )
    return f"{origin.name}: {made.out.decode().strip()}", origin, random.Random(f"commands {seed} {number}")


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Mutants of all captures until the time is over."""
    warm()
    with workplace() as place:
        whole = seeds.captures(place / "seeds", fresh=fresh)
        until = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > until:
                return
            folder = place / str(number)
            folder.mkdir()
            what, origin, draw = make(number, seed=seed, whole=whole, folder=folder)
            for arguments, is_text in commands(folder, origin, draw):
                outcome = forked(memlens_command(arguments), folder)
                failure = failure_of(outcome, is_text=is_text)
                shown = tuple(["memlens", *arguments])
                figures = {"seconds": outcome.seconds, "rss_bytes": float(outcome.peak_rss_bytes)}
                again = kept("captures", f"{seed}-{number}", folder / "mutant.memlens", shown) if failure else ""
                yield Attempt("captures", f"mutant {number}: {what}", shown, failure, again, figures)
            remove(folder)
