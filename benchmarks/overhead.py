"""What recording costs: the example workloads with and without ``memlens record``, in one session.

Owns the choice of workloads, the order of runs, the verdicts and the page. It knows memlens only as a
command, so any program with the same command line can be measured in its place.

Every round runs each variant of a workload once: native A, memlens, native B (the same as A: the control),
and perf as a peer. The minimum over all rounds counts, because noise only adds time. Two times are taken:
that of the program alone, inside the recorded command by ``runtime_of``, and that of the whole command; the
difference is what the profiler spends before and after. README.md beside this file says how to read it all.

Exit status: 0, with ``--check`` 1 when a verdict fails; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import BenchmarkError, Verdict, describe_machine, first_line, geometric_mean, row, say, write_page

REPOSITORY = Path(__file__).resolve().parent.parent
MINIMUM_RUNS = 7  # fewer and the minimum is not settled; no verdict is given

MAXIMUM_MEAN_RATIO = 1.05
MAXIMUM_RATIO = 1.20
MAXIMUM_CONTROL_DEVIATION = 0.02

NATIVE, MEMLENS, CONTROL, PERF = "native", "memlens", "control", "perf"

# Without --no-bpf-event perf's side thread sits out a poll of one second at the end: no cost of the events.
PERF_RECORD = ("record", "-q", "--no-bpf-event", "-e", "page-faults", "-c", "1", "-d")


@dataclasses.dataclass(frozen=True)
class Workload:
    """One program and its arguments: 1 to 3 seconds natively, milliseconds with ``smoke``."""

    name: str
    program: str
    arguments: str
    smoke: str
    is_judged: bool = True  # counted in the verdicts; the others are fault-bound or process-bound on purpose

    def command(self, *, build: Path, smoke: bool) -> list[str]:
        return [str(build / self.program), *(self.smoke if smoke else self.arguments).split()]


WORKLOADS = (
    Workload("stream", "stream", "--mib 64 --threads 2 --iterations 200", "--mib 1 --iterations 2"),
    Workload("pointer chase", "pointer_chase", "--mib 64 --iterations 8", "--mib 1 --iterations 1"),
    Workload("stencil", "stencil", "--mib 64 --threads 2 --iterations 360", "--mib 2 --iterations 2"),
    Workload("hash map", "hash_map", "--mib 64 --iterations 8", "--mib 1 --iterations 1"),
    Workload("graph search", "graph_search", "--mib 64 --iterations 9", "--mib 1 --iterations 1"),
    Workload("matrix product", "matmul", "--mib 8 --threads 2 --iterations 16", "--mib 1 --iterations 1"),
    Workload(
        "counters, padded",
        "false_sharing",
        "--padded --threads 2 --iterations 2000",
        "--padded --iterations 1",
    ),
    Workload("first touch", "first_touch", "--mode parallel --mib 128 --iterations 400", "--mib 1 --iterations 1"),
    Workload("fault storm", "fault_storm", "--mib 16 --threads 2 --iterations 120", "--mib 1 --iterations 2", False),
    Workload("200 processes", "fork_tree", "--width 199 --depth 1 --pages 256", "--width 3 --depth 1", False),
)
FAULT_COST = Workload("fault cost", "fault_cost", "--pages 65536 --iterations 8", "--pages 512 --iterations 1", False)


# ---- results: plain data, rendered below ----


@dataclasses.dataclass
class Run:
    """One run of one variant."""

    program_s: float
    cpu_s: float
    total_s: float
    capture_bytes: int
    ns_per_fault: float | None = None

    @property
    def outside_s(self) -> float:
        """Time of the whole command that is not the program's: start-up and finishing."""
        return self.total_s - self.program_s


@dataclasses.dataclass
class Measurement:
    """All runs of one workload, by variant."""

    workload: Workload
    runs: dict[str, list[Run]]

    def has(self, variant: str) -> bool:
        return bool(self.runs.get(variant))

    def program_s(self, variant: str) -> float:
        return min(run.program_s for run in self.runs[variant])

    def outside_s(self, variant: str) -> float:
        return min(run.outside_s for run in self.runs[variant])

    def ns_per_fault(self, variant: str) -> float:
        return min(run.ns_per_fault for run in self.runs[variant] if run.ns_per_fault is not None)

    def capture_bytes(self, variant: str) -> int:
        return max(run.capture_bytes for run in self.runs[variant])

    def ratio(self, variant: str) -> float:
        return self.program_s(variant) / self.program_s(NATIVE)


def judge(measurements: list[Measurement]) -> list[Verdict]:
    judged = [m for m in measurements if m.workload.is_judged]
    ratios = {m.workload.name: m.ratio(MEMLENS) for m in judged}
    worst = max(ratios, key=lambda name: ratios[name])
    controls = {m.workload.name: m.ratio(CONTROL) for m in judged}
    loosest = max(controls, key=lambda name: abs(controls[name] - 1))
    mean = geometric_mean(list(ratios.values()))
    deviation = controls[loosest] - 1
    return [
        Verdict(f"geometric mean at most {MAXIMUM_MEAN_RATIO:.2f}", f"{mean:.3f}", mean <= MAXIMUM_MEAN_RATIO),
        Verdict(
            f"no workload above {MAXIMUM_RATIO:.2f}",
            f"{ratios[worst]:.3f} ({worst})",
            ratios[worst] <= MAXIMUM_RATIO,
        ),
        Verdict(
            f"native against native within ±{MAXIMUM_CONTROL_DEVIATION:.0%}",
            f"{deviation:+.1%} ({loosest})",
            abs(deviation) <= MAXIMUM_CONTROL_DEVIATION,
        ),
    ]


# ---- measuring ----


@dataclasses.dataclass(frozen=True)
class Session:
    """What a run needs: where the programs are and how each variant starts them."""

    build: Path
    memlens: list[str]
    perf: str | None
    smoke: bool

    @property
    def variants(self) -> list[str]:
        return [NATIVE, MEMLENS, CONTROL] + ([PERF] if self.perf else [])

    def wrap(self, variant: str, command: list[str], *, folder: Path) -> list[str]:
        if variant == MEMLENS:
            return [*self.memlens, "record", "-q", "-o", str(folder / "run.memlens"), "--", *command]
        if variant == PERF:
            assert self.perf is not None
            return [self.perf, *PERF_RECORD, "-o", str(folder / "perf.data"), "--", *command]
        return command


def bytes_under(path: Path) -> int:
    if path.is_dir():
        return sum(bytes_under(entry) for entry in path.iterdir())
    return path.stat().st_size if path.exists() else 0


def read_values(path: Path) -> dict[str, float]:
    """Lines of ``name=number`` as a dictionary."""
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return {name: float(value) for name, value in pairs}


def run_once(session: Session, workload: Workload, variant: str) -> tuple[Run, bytes]:
    """Run one variant once, in a folder of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="memlens-overhead-") as name:
        folder = Path(name)
        program = workload.command(build=session.build, smoke=session.smoke)
        if workload is FAULT_COST:
            program += ["--output", str(folder / "fault_cost")]
        timed = [str(session.build / "runtime_of"), "-o", str(folder / "runtime"), "--", *program]
        command = session.wrap(variant, timed, folder=folder)
        begin_s = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        total_s = time.monotonic() - begin_s
        if done.returncode != 0 or not (folder / "runtime").exists():
            message = done.stderr.decode(errors="replace").strip()
            raise BenchmarkError(f"{shlex.join(command)}\n  ended with status {done.returncode}: {message}")
        times = read_values(folder / "runtime")
        run = Run(
            program_s=times["wall_ns"] / 1e9,
            cpu_s=(times["user_ns"] + times["system_ns"]) / 1e9,
            total_s=total_s,
            capture_bytes=bytes_under(folder / "run.memlens") + bytes_under(folder / "perf.data"),
        )
        if workload is FAULT_COST:
            run.ns_per_fault = read_values(folder / "fault_cost")["ns_per_fault"]
        return run, done.stdout


def measure(session: Session, workload: Workload, *, n_runs: int) -> Measurement:
    """All rounds of one workload; the order rotates, so that no variant always follows the same other one."""
    runs: dict[str, list[Run]] = {variant: [] for variant in session.variants}
    expected_output: bytes | None = None
    for round_number in range(-1, n_runs):  # round -1 warms the caches and is thrown away
        shift = round_number % len(session.variants)
        for variant in session.variants[shift:] + session.variants[:shift]:
            run, output = run_once(session, workload, variant)
            expected_output = output if expected_output is None else expected_output
            if output != expected_output:
                raise BenchmarkError(f"{workload.name}: {variant} changed the output of the program: {output!r}")
            if round_number >= 0:
                runs[variant].append(run)
    measurement = Measurement(workload, runs)
    say(
        f"  {workload.name:18} native {measurement.program_s(NATIVE):.3f} s, "
        + ", ".join(f"{variant} {measurement.ratio(variant):.3f}" for variant in session.variants[1:])
    )
    return measurement


def prepare(build: Path) -> None:
    """Build the workloads and ``runtime_of`` where they are missing or old."""
    try:
        configure = ["cmake", "-S", str(REPOSITORY / "workloads"), "-B", str(build)]
        if not (build / "CMakeCache.txt").exists():
            subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", str(build), "--parallel"], check=True, stdout=subprocess.DEVNULL)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        source = REPOSITORY / "benchmarks" / "runtime_of.c"
        subprocess.run([*compiler, "-O2", "-Wall", "-Wextra", "-o", str(build / "runtime_of"), str(source)], check=True)
    except FileNotFoundError as error:
        raise BenchmarkError(f"{error.filename} is missing: a C compiler and CMake are needed") from error
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"the workloads do not build: {shlex.join(error.cmd)}") from error


# ---- rendering ----


def this_machine(session: Session) -> dict[str, str]:
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = policy.read_text().split("[")[-1].split("]")[0] if policy.exists() else "none"
    return describe_machine(
        memory=True, transparent_huge_pages=chosen, memlens=first_line([*session.memlens, "--version"])
    )


def workload_table(measurements: list[Measurement], *, has_perf: bool) -> list[str]:
    head = ["workload", "native s", "memlens s", "ratio", "control", "fixed cost ms", "capture KiB"]
    head += ["perf ratio", "perf fixed ms"] if has_perf else []
    lines = [row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    for m in measurements:
        fixed_ms = (m.outside_s(MEMLENS) - m.outside_s(NATIVE)) * 1e3
        cells = [m.workload.name, f"{m.program_s(NATIVE):.3f}", f"{m.program_s(MEMLENS):.3f}"]
        cells += [f"{m.ratio(MEMLENS):.3f}", f"{m.ratio(CONTROL):.3f}", f"{fixed_ms:.0f}"]
        cells += [f"{m.capture_bytes(MEMLENS) / 1024:.0f}"]
        if has_perf:
            perf_fixed_ms = (m.outside_s(PERF) - m.outside_s(NATIVE)) * 1e3
            cells += [f"{m.ratio(PERF):.3f}", f"{perf_fixed_ms:.0f}"]
        lines.append(row(cells))
    return lines


def mean_line(measurements: list[Measurement], *, has_perf: bool) -> str:
    means = {v: geometric_mean([m.ratio(v) for m in measurements]) for v in (MEMLENS, CONTROL)}
    text = f"Geometric mean: memlens {means[MEMLENS]:.3f}, control {means[CONTROL]:.3f}"
    if has_perf:
        text += f", perf {geometric_mean([m.ratio(PERF) for m in measurements]):.3f}"
    return text + "."


def render_page(
    machine: dict[str, str],
    measurements: list[Measurement],
    fault_cost: Measurement | None,
    verdicts: list[Verdict],
    *,
    n_runs: int,
    smoke: bool,
) -> str:
    has_perf = all(m.has(PERF) for m in measurements)
    judged = [m for m in measurements if m.workload.is_judged]
    apart = [m for m in measurements if not m.workload.is_judged]
    lines = ["# Overhead of recording", ""]
    lines += [f"Written by `python benchmarks/overhead.py --runs {n_runs}{' --smoke' if smoke else ''}`.", ""]
    lines += [row(["machine", ""]), row(["---", "---"]), *(row([k, v]) for k, v in machine.items()), ""]
    if smoke or n_runs < MINIMUM_RUNS:
        lines += [
            f"**Not a measurement**: sizes for a test, or fewer than {MINIMUM_RUNS} runs. No verdict.",
            "",
        ]
    lines += ["## The program's own time", ""]
    lines += [
        f"Minimum of {n_runs} interleaved runs. Ratio is the program's time under `memlens record -q` over",
        "its native time; control is a second native series over the first. Fixed cost is what the whole",
        "command takes beyond the program: start-up and finishing."
        + (" perf is `perf record -e page-faults -c 1 -d`." if has_perf else ""),
        "",
    ]
    if judged:
        lines += [*workload_table(judged, has_perf=has_perf), "", mean_line(judged, has_perf=has_perf), ""]
    if verdicts:
        lines += [row(["verdict", "measured", ""]), row(["---", "---", "---"])]
        lines += [row([v.claim, v.measured, "holds" if v.holds else "**fails**"]) for v in verdicts] + [""]
    if apart:
        lines += ["## Made of faults, made of processes", ""]
        lines += [
            "Worst cases, outside the verdicts: nothing but page faults, and 200 processes in a moment.",
            "",
        ]
        lines += [*workload_table(apart, has_perf=has_perf), ""]
    if fault_cost:
        native_ns = fault_cost.ns_per_fault(NATIVE)
        lines += [
            "## One page fault",
            "",
            row(["variant", "ns a fault", "added ns"]),
            row(["---", "---:", "---:"]),
        ]
        for variant in (v for v in (NATIVE, CONTROL, MEMLENS, PERF) if fault_cost.has(v)):
            ns = fault_cost.ns_per_fault(variant)
            lines.append(row([variant, f"{ns:.0f}", "" if variant == NATIVE else f"{ns - native_ns:+.0f}"]))
        lines += ["", "First touches of fresh base pages by one thread, nothing else in the loop.", ""]
    return "\n".join(lines)


def to_json(
    machine: dict[str, str],
    measurements: list[Measurement],
    verdicts: list[Verdict],
    *,
    n_runs: int,
    smoke: bool,
) -> str:
    document = {
        "machine": machine,
        "runs": n_runs,
        "workloads": [
            {
                "name": m.workload.name,
                "command": f"{m.workload.program} {m.workload.smoke if smoke else m.workload.arguments}",
                "is_judged": m.workload.is_judged,
                "ratio": {v: m.ratio(v) for v in m.runs if v != NATIVE},
                "runs": {v: [dataclasses.asdict(run) for run in runs] for v, runs in m.runs.items()},
            }
            for m in measurements
        ],
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    return json.dumps(document, indent=1) + "\n"


# ---- command line ----


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=9, help="rounds; verdicts need at least 7 (default: 9)")
    parser.add_argument("--memlens", default="memlens", help="the memlens command (default: from PATH)")
    parser.add_argument(
        "--build", type=Path, default=REPOSITORY / "build" / "workloads", help="where to build workloads"
    )
    parser.add_argument("--output", type=Path, help="write the page there, e.g. docs/overhead.md (default: stdout)")
    parser.add_argument("--json", type=Path, help="write every run there")
    parser.add_argument("--only", action="append", metavar="PROGRAM", help="only this program; may be repeated")
    parser.add_argument("--no-perf", action="store_true", help="leave out the peer")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to test the benchmark itself; no verdicts")
    parser.add_argument("--check", action="store_true", help="exit 1 when a verdict fails")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    if options.check and (options.smoke or options.runs < MINIMUM_RUNS):
        parser.error(f"--check needs full sizes and at least {MINIMUM_RUNS} runs")
    names = {w.program for w in (*WORKLOADS, FAULT_COST)}
    if unknown := set(options.only or ()) - names:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    return options


def find_perf() -> str | None:
    """The perf command, if it can record page faults here."""
    perf = shutil.which("perf")
    if perf is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        probe = [perf, *PERF_RECORD, "-o", f"{folder}/perf.data", "--", "true"]
        return perf if subprocess.run(probe, capture_output=True, check=False).returncode == 0 else None


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    memlens = shlex.split(options.memlens)
    if not memlens or shutil.which(memlens[0]) is None:
        say(f"error: no command {options.memlens!r}; install memlens or give --memlens PATH")
        return 2
    chosen = [w for w in (*WORKLOADS, FAULT_COST) if not options.only or w.program in options.only]
    try:
        prepare(options.build)
        perf = None if options.no_perf else find_perf()
        session = Session(build=options.build, memlens=memlens, perf=perf, smoke=options.smoke)
        say(f"{options.runs} rounds of {', '.join(session.variants)} for each of {len(chosen)} workloads")
        measured = [measure(session, workload, n_runs=options.runs) for workload in chosen]
    except BenchmarkError as error:
        say(f"error: {error}")
        return 2
    measurements = [m for m in measured if m.workload is not FAULT_COST]
    fault_cost = next((m for m in measured if m.workload is FAULT_COST), None)
    gives_verdict = (
        not options.smoke and options.runs >= MINIMUM_RUNS and any(m.workload.is_judged for m in measurements)
    )
    verdicts = judge(measurements) if gives_verdict else []
    machine = this_machine(session)
    page = render_page(machine, measurements, fault_cost, verdicts, n_runs=options.runs, smoke=options.smoke)
    write_page(page, options.output)
    if options.json:
        options.json.write_text(to_json(machine, measured, verdicts, n_runs=options.runs, smoke=options.smoke))
    for verdict in verdicts:
        say(f"{'holds' if verdict.holds else 'FAILS'}: {verdict.claim}: {verdict.measured}")
    return 1 if options.check and not all(verdict.holds for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
