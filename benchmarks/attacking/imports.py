"""Attack `imports`: mutants of the traces of other tools through `memlens import`, and a report of what was imported."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from . import seeds
from .forked import failure_of, forked, memlens_command, warm
from .model import Attempt
from .values import HOSTILE
from .workplace import kept, workplace

BOMB_BYTES = 3 << 30
"""More than a command may take; as zeros it is 3 MiB of gzip."""


def mutate(folder: Path, draw: random.Random) -> str:
    """One change of one file; what it is."""
    path = draw.choice(sorted(folder.iterdir()))
    content = bytearray(path.read_bytes())
    how = draw.choice(
        (
            "bytes",
            "bytes",
            "bytes",
            "number",
            "number",
            "number",
            "cut",
            "insert",
            "remove",
            "double",
            "line",
            "special",
        )
    )
    if how == "special":
        return _special(path, draw)
    at = draw.randrange(len(content))
    if how == "bytes":
        for _ in range(draw.choice((1, 2, 4, 16))):
            content[draw.randrange(len(content))] = draw.choice((0, 0xFF, 0x7F, 0x80, draw.randrange(256)))
    elif how == "number":  # a field of 1 to 8 bytes at its natural place, also in the header
        size = draw.choice((1, 2, 4, 8, 8))
        at = draw.randrange(0, min(len(content), draw.choice((64, 512, len(content)))), size)
        top = 1 << (8 * size)
        value = draw.choice(
            (0, 1, top - 1, top >> 1, (top >> 1) - 1, draw.getrandbits(8 * size), 1 << draw.randrange(8 * size))
        )
        content[at : at + size] = (value % top).to_bytes(size, "little")
    elif how == "cut":
        del content[at:]
    elif how == "insert":
        content[at:at] = draw.randbytes(draw.randrange(1, 64))
    elif how == "remove":
        del content[at : at + draw.randrange(1, 64)]
    elif how == "double":
        content[at:at] = content[max(0, at - 500) : at]
    else:
        lines = bytes(content).split(b"\n")
        lines[draw.randrange(len(lines))] = draw.choice(
            (*HOSTILE, "9" * 400, "I  " + "f" * 30 + ",8", " L 0,99999999999999999999")
        ).encode("utf-8", "surrogatepass")
        content = bytearray(b"\n".join(lines))
    path.write_bytes(content)
    return f"{path.name}: {how} at byte {at}"


def _special(path: Path, draw: random.Random) -> str:
    how = draw.choice(("fifo", "directory", "gone", "dangling", "gzip bomb", "zip bomb", "twice compressed", "empty"))
    content = path.read_bytes()
    path.unlink()
    if how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    elif how == "dangling":
        path.symlink_to("/nowhere")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gzip bomb":  # members one after the other are one stream
        path.write_bytes(gzip.compress(content) + gzip.compress(b"\0" * (1 << 26)) * (BOMB_BYTES >> 26))
    elif how == "zip bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a", content)
            archive.writestr("b", b"\n" * (1 << 28))
    elif how == "twice compressed":
        path.write_bytes(gzip.compress(gzip.compress(content)))
    return f"{path.name}: {how}"


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Mutants of all traces until the time is over."""
    warm()
    with workplace() as place:

        def write_seeds() -> int:
            seeds.traces(place / "seeds")
            return 0

        made = forked(write_seeds, place)
        if made.status:
            raise RuntimeError(made.err.decode())
        whole = sorted(path for path in (place / "seeds").iterdir())
        until = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > until:
                return
            draw = random.Random(f"imports {seed} {number}")
            origin, folder = whole[number % len(whole)], place / str(number)
            shutil.copytree(origin, folder / "trace")
            said = [mutate(folder / "trace", draw)]
            main = sorted(path.name for path in origin.iterdir())[-1 if origin.name == "memgaze" else 0]
            arguments = ["import", str(folder / "trace" / main), "-o", str(folder / "made.memlens")]
            if draw.random() < 0.3:
                arguments += ["--format", origin.name.split("-")[0]]
            if draw.random() < 0.3 and not origin.name.startswith(("drmemtrace", "ptwrite")):
                arguments.append("--skip-malformed")
            steps = [arguments]
            if draw.random() < 0.25:
                steps.append(["report", str(folder / "made.memlens")])
            for step in steps:
                if step[0] == "report" and not (folder / "made.memlens").exists():
                    break
                outcome = forked(memlens_command(step), folder)
                failure = failure_of(outcome)
                shown = tuple(["memlens", *step])
                again = kept("imports", f"{seed}-{number}", folder / "trace", shown) if failure else ""
                figures = {"seconds": outcome.seconds, "rss_bytes": float(outcome.peak_rss_bytes)}
                yield Attempt(
                    "imports", f"mutant {number}: {origin.name}: {'; '.join(said)}", shown, failure, again, figures
                )
            shutil.rmtree(folder)
