"""What recording costs Debian's programs: each natively, recorded by default, with --exact, and beside perf and heaptrack.

Seven programs are those on which an outside check found the cost; five more were never used to tune anything. All variants of a
program take turns in one session; the least of all rounds counts. Two times are taken: that of the program alone (`runtime_of`, inside
the recorded command), and that of the whole command. What the whole command adds beyond the program is start-up and finishing.

Exit status: 0, with ``--check`` 1 when a verdict fails; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _common import (
    BenchmarkError,
    Verdict,
    describe_machine,
    first_line,
    geometric_mean,
    head,
    row,
    say,
    verdict_lines,
    write_page,
)

NATIVE, CONTROL, DEFAULT, EXACT, PERF, HEAPTRACK = "native", "control", "default", "exact", "perf", "heaptrack"
MOST_MEAN, MOST, MOST_EXTRA_S = 1.03, 1.08, 0.1
MINIMUM_ROUNDS = 5


@dataclass(frozen=True)
class Program:
    name: str
    shell: str
    """With {data}, the folder of inputs, and {out}, one that is gone after the run."""
    was_tuned_to: bool = True


PROGRAMS = (
    Program("python, a dictionary", "/usr/bin/python3 -c 'd = {{i: str(i) for i in range(5000000)}}'"),
    Program("sort", "sort --parallel=1 -S 400M -o {out}/sorted {data}/text {data}/text"),
    Program("perl, a hash", "perl -e 'my %h; $h{{\"k$_\"}} = $_ for 1..1200000; my $s = 0; $s += $h{{$_}} for keys %h; print $s'"),
    Program("mawk", "mawk '{{for (i = 1; i <= NF; i++) c[$i]++}} END {{print length(c)}}' {data}/text"),
    Program("gzip", "gzip -c {data}/text"),
    Program("xz", "xz -T1 -0 -c {data}/text"),
    Program("sha256sum", "sha256sum {data}/text {data}/text {data}/text {data}/text {data}/text {data}/text"),
    Program("sqlite3", "sqlite3 :memory: \"CREATE TABLE t (w TEXT); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000) "
            "INSERT INTO t SELECT hex(i * 7919 % 1000003) FROM n; CREATE INDEX x ON t (w); SELECT count(DISTINCT w) FROM t\"", False),
    Program("gcc", "gcc -O2 -c -o {out}/o.o {data}/functions.c", False),
    Program("bzip2", "bzip2 -c {data}/part", False),
    Program("git", "git -c gc.auto=0 clone -q --no-local {data}/repository {out}/clone", False),
    Program("grep", "grep -c -E '(ab|cd|ef)[a-m]+x .*(zz|yy)' {data}/text", False),
)  # fmt: skip


def make_inputs(folder: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(20_000)]
    with open(folder / "text", "w") as file:
        for _ in range(900_000):
            file.write(" ".join(draw.choices(words, k=6)) + "\n")
    with open(folder / "text", "rb") as source:
        (folder / "part").write_bytes(source.read(8 << 20))
    with open(folder / "functions.c", "w") as file:
        for i in range(700):
            file.write(
                f"int f{i}(int *a, int n) {{ int s = {i}; for (int i = 0; i < n; i++) {{ if (a[i] > {i}) s += a[i] * {i + 3}; "
                f"else a[i] ^= s; switch (a[i] & 7) {{ case 1: s++; break; case 3: s -= a[i]; break; case 6: a[i] = s / {i + 1}; }} }} return s; }}\n"
            )
    repository = folder / "repository"
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", str(repository)], check=True)
    for commit in range(12):
        for number in range(250):
            (repository / f"f{number}").write_text("\n".join(draw.choices(words, k=200)))
        subprocess.run([*git, "-C", str(repository), "add", "-A"], check=True)
        subprocess.run([*git, "-C", str(repository), "commit", "-q", "-m", str(commit)], check=True)


@dataclass
class Run:
    program_s: float
    extra_s: float
    cpu_s: float
    """User and system time of the program and its children: less disturbed by others than the wall time, but blind to waiting."""


def wrap(variant: str, memlens: str, out: Path) -> list[str]:
    capture = str(out / "run.memlens")
    return {
        NATIVE: [],
        CONTROL: [],
        DEFAULT: [memlens, "record", "-o", capture, "--"],
        EXACT: [memlens, "record", "--exact", "-o", capture, "--"],
        PERF: ["perf", "record", "-q", "--no-bpf-event", "-e", "page-faults", "-c", "1", "-d", "-o", str(out / "perf.data"), "--"],
        HEAPTRACK: [],
    }[variant]  # fmt: skip


def run_once(program: Program, variant: str, *, memlens: str, runtime_of: Path, data: Path) -> Run:
    with tempfile.TemporaryDirectory(prefix="memlens-real-") as name:
        out = Path(name)
        command = ["/bin/sh", "-c", "exec " + program.shell.format(data=data, out=out)]
        if (
            variant == HEAPTRACK
        ):  # it follows no child: the timer is around it, and its start counts as the program's time
            command[-1] = f"exec heaptrack --raw -o {out}/heaptrack " + command[-1].removeprefix("exec ")
        timer = [str(runtime_of), "-o", str(out / "runtime"), "--"]
        timed = [*wrap(variant, memlens, out), *timer, *command]
        begin = time.monotonic()
        done = subprocess.run(timed, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        total_s = time.monotonic() - begin
        if done.returncode != 0 or not (out / "runtime").exists():
            raise BenchmarkError(
                f"{program.name}, {variant}: status {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}"
            )
        values = dict(line.split("=") for line in (out / "runtime").read_text().split())
        program_s = int(values["wall_ns"]) / 1e9
        return Run(program_s, total_s - program_s, (int(values["user_ns"]) + int(values["system_ns"])) / 1e9)


def measure(program: Program, variants: list[str], rounds: int, **how: object) -> dict[str, Run]:
    """The least of both times of each variant; the first round fills caches and does not count."""
    best: dict[str, Run] = {}
    for number in range(-1, rounds):
        shift = number % len(variants)
        for variant in variants[shift:] + variants[:shift]:
            run = run_once(program, variant, **how)  # type: ignore[arg-type]
            if number < 0:
                continue
            least = best.setdefault(variant, run)
            best[variant] = Run(
                min(least.program_s, run.program_s), min(least.extra_s, run.extra_s), min(least.cpu_s, run.cpu_s)
            )
    ratios = ", ".join(f"{v} {best[v].program_s / best[NATIVE].program_s:.3f}" for v in variants[1:])
    by_cpu = ", ".join(f"{v} {best[v].cpu_s / best[NATIVE].cpu_s:.3f}" for v in variants[1:])
    say(
        f"  {program.name:22} native {best[NATIVE].program_s:.3f} s, {ratios}; by CPU time {best[NATIVE].cpu_s:.3f} s, {by_cpu}; "
        f"the command adds {best[DEFAULT].extra_s:.3f} s"
    )
    return best


def page(
    found: dict[Program, dict[str, Run]], variants: list[str], facts: dict[str, str], rounds: int
) -> tuple[str, list[Verdict]]:
    def ratio(program: Program, variant: str) -> float:
        return found[program][variant].program_s / found[program][NATIVE].program_s

    def mean(variant: str, programs: list[Program]) -> float:
        return geometric_mean([ratio(p, variant) for p in programs])

    def cpu_ratio(program: Program) -> float:
        return found[program][DEFAULT].cpu_s / found[program][NATIVE].cpu_s

    every = list(found)
    worst = max(every, key=lambda p: ratio(p, DEFAULT))
    extra = {p: found[p][DEFAULT].extra_s - found[p][NATIVE].extra_s for p in every}
    slowest = max(every, key=lambda p: extra[p])
    verdicts = [
        Verdict(f"geometric mean at most {MOST_MEAN}", f"{mean(DEFAULT, every):.3f}", mean(DEFAULT, every) <= MOST_MEAN),
        Verdict(f"no program above {MOST}", f"{ratio(worst, DEFAULT):.3f} ({worst.name})", ratio(worst, DEFAULT) <= MOST),
        Verdict(
            f"the whole command adds at most {MOST_EXTRA_S} s", f"{extra[slowest]:.3f} s ({slowest.name})", extra[slowest] <= MOST_EXTRA_S
        ),
    ]  # fmt: skip
    shown = variants[1:]
    names = {DEFAULT: "memlens", EXACT: "memlens --exact"}
    lines = [
        "# Cost of recording real programs", "",
        f"Written by `make bench-real`: {rounds} rounds in which all variants take turns, the least of each.", "",
        *head(["fact", "value"]), *(row([k, v]) for k, v in facts.items()), "",
        "Ratios are the program's own time over its native time in the same rounds; `control` is a second native series. "
        "CPU time: the same ratio of user and system time, which other work on the machine disturbs less. Added: what the whole command takes beyond the program, summary included. heaptrack (raw) records allocations only; its own start is in its time. Programs after the line were never used to tune anything.", "",
        *head(["program", "native s", *(names.get(v, v) for v in shown), "memlens, CPU time", "memlens adds s", "perf adds s"]),
    ]  # fmt: skip
    for tuned in (True, False):
        mine = [p for p in every if p.was_tuned_to == tuned]
        for p in mine:
            runs = found[p]
            perf_s = f"{runs[PERF].extra_s - runs[NATIVE].extra_s:.3f}" if PERF in runs else "–"
            lines.append(
                row(
                    [
                        p.name,
                        f"{runs[NATIVE].program_s:.3f}",
                        *(f"{ratio(p, v):.3f}" for v in shown),
                        f"{cpu_ratio(p):.3f}",
                        f"{extra[p]:.3f}",
                        perf_s,
                    ]
                )
            )
        if mine:
            label = "geometric mean" if tuned else "geometric mean, not tuned to"
            lines.append(
                row(
                    [
                        f"**{label}**",
                        "",
                        *(f"**{mean(v, mine):.3f}**" for v in shown),
                        f"**{geometric_mean([cpu_ratio(p) for p in mine]):.3f}**",
                        "",
                        "",
                    ]
                )
            )
    lines.append(
        row(
            [
                "**geometric mean of all**",
                "",
                *(f"**{mean(v, every):.3f}**" for v in shown),
                f"**{geometric_mean([cpu_ratio(p) for p in every]):.3f}**",
                "",
                "",
            ]
        )
    )
    return "\n".join([*lines, "", *verdict_lines(verdicts)]) + "\n", verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memlens", default="memlens")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="names of programs that contain this")
    parser.add_argument("--variants", help=f"these beside {NATIVE}, with commas between (all): {DEFAULT} is needed")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    variants = [NATIVE, DEFAULT, CONTROL, EXACT, *(name for name in (PERF, HEAPTRACK) if shutil.which(name))]
    if options.variants:
        chosen = options.variants.split(",")
        variants = [v for v in variants if v in (NATIVE, DEFAULT) or v in chosen]
    programs = [p for p in PROGRAMS if not options.only or options.only in p.name]
    try:
        with tempfile.TemporaryDirectory(prefix="memlens-real-") as name:
            folder = Path(name)
            runtime_of = folder / "runtime_of"
            source = Path(__file__).parent / "runtime_of.c"
            subprocess.run(["gcc", "-O2", "-o", str(runtime_of), str(source)], check=True)
            make_inputs(folder)
            found = {
                p: measure(p, variants, options.rounds, memlens=options.memlens, runtime_of=runtime_of, data=folder) for p in programs
            }  # fmt: skip
    except (BenchmarkError, OSError, subprocess.CalledProcessError) as error:
        say(f"benchmarks/real.py: {error}")
        return 2
    facts = describe_machine(memory=True, memlens=first_line([options.memlens, "--version"]))
    text, verdicts = page(found, variants, facts, options.rounds)
    if options.rounds < MINIMUM_ROUNDS:
        verdicts = []
    write_page(text, options.output)
    return 1 if options.check and not all(v.holds for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
