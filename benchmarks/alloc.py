"""What recording allocations costs, beside heaptrack, in one session.

Every round runs each variant once, in turn; the minimum over the rounds counts, because noise only
adds time. The program's own time is compared: memlens's start-up and finishing are given apart.

- a tight malloc/free loop: nanoseconds a pair natively, behind an interposer that does nothing,
  with memlens (sampling), with memlens (every object), with heaptrack;
- programs that use what they allocate, sampled: time over native;
- ten million live objects, all recorded: time, capture size and memory, memlens and heaptrack.

Exit status: 0; with ``--check`` 1 when a verdict fails; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _common import geometric_mean

from memlens.capture.store.machine import cpu_model

HERE = Path(__file__).resolve().parent
MAXIMUM_ADDED_NS = 5.0
MAXIMUM_MEAN_RATIO = 1.10


@dataclass
class Run:
    """One run of one variant."""

    output: str
    wall_s: float
    """Of the whole command."""
    program_s: float
    """Of the program alone."""
    file_bytes: int


def run(
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    capture: Path | None = None,
    keep_output: bool = True,
) -> Run:
    """Runs a command to its end."""
    begin = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE if keep_output else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    wall_s = time.monotonic() - begin
    output = (done.stdout or b"").decode(errors="replace")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}): {done.stderr[-500:]!r}")
    program_s = wall_s
    file_bytes = 0
    if capture is not None and capture.is_dir():
        program_s = json.loads((capture / "meta.json").read_text())["wall_s"]
        file_bytes = sum(file.stat().st_size for file in capture.iterdir())
    return Run(output, wall_s, program_s, file_bytes)


def peak_of(command: list[str]) -> int:
    """Largest resident memory of the command's largest process, in bytes; a run of its own."""
    script = (
        "import resource,subprocess,sys;subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    return int(done.stdout) << 10


class Session:
    """Where things are."""

    def __init__(self, memlens: str, heaptrack: str | None, folder: Path) -> None:
        self.memlens = memlens
        self.heaptrack = heaptrack
        self.folder = folder
        for source in (HERE / "programs").iterdir():
            target = folder / source.stem
            compiler = os.environ.get("CXX", "g++") if source.suffix == ".cpp" else os.environ.get("CC", "gcc")
            flags = ["-shared", "-fPIC", "-fno-builtin"] if source.stem == "do_nothing" else ["-fno-builtin-malloc"]
            subprocess.run([compiler, "-O2", "-g", *flags, "-o", str(target), str(source), "-ldl"], check=True)

    def recorded(self, command: list[str], *options: str, keep_output: bool = True) -> Run:
        capture = self.folder / "run.memlens"
        return run(
            [self.memlens, "record", "-q", "--force", "-o", str(capture), *options, "--", *command],
            capture=capture,
            keep_output=keep_output,
        )

    def tracked(self, command: list[str], *, keep_output: bool = True) -> Run:
        assert self.heaptrack is not None
        target = self.folder / "heaptrack"
        for old in self.folder.glob("heaptrack.*"):
            old.unlink()
        done = run([self.heaptrack, "-o", str(target), *command], keep_output=keep_output)
        done.file_bytes = sum(file.stat().st_size for file in self.folder.glob("heaptrack.*"))
        return done


def number_in(text: str) -> float:
    """The program's own figure: the first line that is a number (heaptrack prints around it)."""
    for line in text.splitlines():
        try:
            return float(line)
        except ValueError:
            continue
    raise SystemExit(f"no number in {text!r}")


# ---- the tight loop ------------------------------------------------------------------------
def tight_loop(session: Session, rounds: int) -> dict[str, float]:
    program = str(session.folder / "malloc_loop")
    nothing = {"LD_PRELOAD": str(session.folder / "do_nothing")}
    best: dict[str, float] = {}

    def take(name: str, output: str) -> None:
        best[name] = min(best.get(name, math.inf), number_in(output))

    for _ in range(rounds):
        take("native", run([program]).output)
        take("interposer that does nothing", run([program], environment=nothing).output)
        take("memlens, sampling (default)", session.recorded([program]).output)
        take("memlens, sampling, alloc alone", session.recorded([program], "--collectors", "alloc").output)
        take(
            "memlens, every object",
            session.recorded([program, "300000"], "--collectors", "alloc", "--sample-bytes", "0").output,
        )
        if session.heaptrack:
            take("heaptrack", session.tracked([program, "300000"]).output)
        take("native again (control)", run([program]).output)
    return best


# ---- programs that use what they allocate ---------------------------------------------------
def real_programs(folder: Path) -> dict[str, list[str]]:
    lines = folder / "lines.txt"
    with lines.open("w") as file:
        state = 1
        for _ in range(400_000):
            state = (state * 1664525 + 1013904223) % 2**32
            file.write(f"{state:010d} line of text\n")
    document = folder / "document.json"
    document.write_text(
        json.dumps([{"id": i, "name": f"name {i}", "values": list(range(i % 20))} for i in range(60_000)])
    )
    return {
        "C++ containers": [str(folder / "containers")],
        "sort": ["sort", "--parallel=1", str(lines)],
        "awk, associative array": ["awk", "{ c[$1] += length($0) } END { for (k in c) n += c[k]; print n }", str(lines)],
        "perl, hash": ["perl", "-ne", "$c{substr($_, 0, 7)} .= $_; END { print scalar(keys %c), \"\\n\" }", str(lines)],
        "Python, json": [
            "/usr/bin/python3", "-c",
            f"import json\nfor _ in range(3): d = json.load(open({str(document)!r}))\nprint(len(json.dumps(d)))",
        ],
        "xz": ["xz", "-1", "-k", "-c", str(lines)],
    }  # fmt: skip


def use(session: Session, rounds: int) -> list[tuple[str, float, float, float, float | None]]:
    rows = []
    for name, command in real_programs(session.folder).items():
        if shutil.which(command[0]) is None:
            continue
        native = control = memlens = tracked = math.inf
        for _ in range(rounds):
            native = min(native, run(command, keep_output=False).program_s)
            memlens = min(memlens, session.recorded(command, "--collectors", "alloc", keep_output=False).program_s)
            control = min(control, run(command, keep_output=False).program_s)
            if session.heaptrack:
                tracked = min(tracked, session.tracked(command, keep_output=False).wall_s)
        rows.append((name, native, memlens / native, control / native, tracked / native if session.heaptrack else None))
    return rows


# ---- ten million live objects -----------------------------------------------------------------
def live_objects(session: Session, rounds: int, objects: int) -> dict[str, dict[str, float]]:
    command = [str(session.folder / "live_objects"), str(objects)]
    found: dict[str, dict[str, float]] = {}
    every = ("--collectors", "alloc", "--sample-bytes", "0")

    def take(name: str, done: Run, whole: float) -> None:
        entry = found.setdefault(name, {"program_s": math.inf, "whole_s": math.inf, "file_bytes": 0})
        entry["program_s"] = min(entry["program_s"], number_in(done.output))
        entry["whole_s"] = min(entry["whole_s"], whole)
        entry["file_bytes"] = done.file_bytes

    for _ in range(rounds):
        done = run(command)
        take("native", done, done.wall_s)
        done = session.recorded(command, *every)
        take("memlens, every object", done, done.wall_s)
        done = session.recorded(command, "--collectors", "alloc")
        take("memlens, sampling", done, done.wall_s)
        if session.heaptrack:
            done = session.tracked(command)
            take("heaptrack", done, done.wall_s)
    capture = str(session.folder / "run.memlens")
    found["native"]["peak_bytes"] = peak_of(command)
    found["memlens, every object"]["peak_bytes"] = peak_of(
        [session.memlens, "record", "-q", "--force", "-o", capture, *every, "--", *command]
    )
    found["memlens, sampling"]["peak_bytes"] = peak_of(
        [session.memlens, "record", "-q", "--force", "-o", capture, "--collectors", "alloc", "--", *command]
    )
    if session.heaptrack:
        found["heaptrack"]["peak_bytes"] = peak_of(
            [session.heaptrack, "-o", str(session.folder / "heaptrack"), *command]
        )
    return found


# ---- the page -----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memlens", default="memlens")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    heaptrack = shutil.which("heaptrack")
    with tempfile.TemporaryDirectory(prefix="memlens-bench-") as folder:
        session = Session(options.memlens, heaptrack, Path(folder))
        loop = tight_loop(session, options.runs)
        programs = use(session, options.runs)
        live = live_objects(session, max(1, options.runs // 3), options.objects)
    native = loop["native"]
    added = {name: value - native for name, value in loop.items()}
    mean = geometric_mean([row[2] for row in programs])
    control = geometric_mean([row[3] for row in programs])
    sampled = added["memlens, sampling, alloc alone"]
    verdicts = [
        (
            f"at most {MAXIMUM_ADDED_NS:g} ns added a pair with sampling",
            f"{sampled:+.1f} ns",
            sampled <= MAXIMUM_ADDED_NS,
        ),
        (f"geometric mean of programs at most {MAXIMUM_MEAN_RATIO:.2f}", f"{mean:.3f}", mean <= MAXIMUM_MEAN_RATIO),
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = [
        "# Overhead of recording allocations",
        "",
        f"Written by `python benchmarks/alloc.py --runs {options.runs}`.",
        "",
        "| machine |  |",
        "| --- | --- |",
        f"| processor | {cpu_model()} |",
        f"| cores | {os.cpu_count()} |",
        f"| memory | {memory:.0f} GiB |",
        f"| kernel | {platform.release()} |",
        f"| date | {datetime.date.today().isoformat()} |",
        "",
        "## A tight loop of malloc and free",
        "",
        f"Minimum of {options.runs} interleaved runs of 5 series each; nanoseconds a pair.",
        "",
        "| variant | ns a pair | added | ratio |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {value:.1f} | {added[name]:+.1f} | {value / native:.2f} |" for name, value in loop.items()),
        "",
        "## Programs that use what they allocate",
        "",
        f"Minimum of {options.runs} interleaved runs, the program's own time over native; memlens samples (collector alloc). "
        "heaptrack's time is that of its whole command, because it finishes with the program.",
        "",
        "| program | native s | memlens | control | heaptrack |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {seconds:.3f} | {ratio:.3f} | {again:.3f} | {'' if peer is None else f'{peer:.2f}'} |"
            for name, seconds, ratio, again, peer in programs
        ),
        "",
        f"Geometric mean: memlens {mean:.3f}, control {control:.3f}"
        + (f", heaptrack {geometric_mean([row[4] for row in programs if row[4]]):.2f}." if heaptrack else "."),
        "",
        f"## {options.objects:,} live objects, each recorded",
        "",
        "Whole is the command with its start-up and analysis. Memory is the largest process of the command: the program itself "
        "natively, the analysis for memlens.",
        "",
        "| variant | program s | whole s | file | largest process |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {entry['program_s']:.2f} | {entry['whole_s']:.2f} | {entry['file_bytes'] / 2**20:.1f} MiB | "
            f"{entry['peak_bytes'] / 2**20:.0f} MiB |"
            for name, entry in live.items()
        ),
        "",
        "heaptrack keeps sums for each call stack; memlens keeps every object with its times, threads and addresses.",
        "",
        "| verdict | measured |  |",
        "| --- | --- | --- |",
        *(f"| {name} | {measured} | {'holds' if holds else '**fails**'} |" for name, measured, holds in verdicts),
        "",
    ]
    page = "\n".join(lines)
    if options.output:
        options.output.write_text(page)
    print(page)
    return 1 if options.check and not all(holds for _, _, holds in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
