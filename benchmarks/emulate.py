"""What exact counting under the emulator costs: eight graph kernels, beside the emulator alone and valgrind's tools.

Every round runs each variant of a kernel once; the minimum over the rounds counts, because noise only adds time. What is
timed is the program, from its start to its end: natively, under ``qemu`` without a plugin, under ``memlens record
--emulate`` (there by the recorder, so that start-up and finishing of memlens stay apart), and under valgrind's tools. All of it
in one session, at one thread and at two. Valgrind's tools are an order of magnitude slower and run fewer rounds; the
slowest, lackey with addresses, runs on a small graph and is compared with the native time on that graph.

It knows memlens only as a command. Where ``memlens record --emulate`` cannot run, its columns are left out.
README.md beside this file says how to read the page.

Exit status: 0, with ``--check`` 1 when a verdict fails or none could be given; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import BenchmarkError, Verdict, describe_machine, first_line, geometric_mean, row, say, write_page

REPOSITORY = Path(__file__).resolve().parent.parent
MINIMUM_ROUNDS = 5  # fewer and the minimum is not settled; no verdict is given

KERNELS = ("bfs", "bc", "cc", "cc_sv", "pr", "pr_spmv", "sssp", "tc")
THREADS = (1, 2)
FIRST_ITERATIONS = 4  # of the runs that tell how many are needed

NATIVE, CONTROL, QEMU = "native", "native again", "qemu"
COUNTS, WINDOWS, FULL = "memlens counts", "memlens windows 1 %", "memlens full"
TRACE = "lackey, addresses"

MEMLENS_MODES = {
    COUNTS: "counts",
    WINDOWS: "window=1000000,period=100000000",
    FULL: "pages",
}
VALGRIND_TOOLS = {
    "valgrind none": ("--tool=none",),
    "cachegrind": ("--tool=cachegrind", "--cachegrind-out-file=/dev/null"),
    "DHAT": ("--tool=dhat", "--dhat-out-file=/dev/null"),
    "lackey": ("--tool=lackey", "--basic-counts=yes"),
    "lackey, detailed": ("--tool=lackey", "--basic-counts=no", "--detailed-counts=yes"),
    TRACE: ("--tool=lackey", "--basic-counts=no", "--trace-mem=yes"),
}
ON_SMALL_GRAPH = frozenset({TRACE})

# Limits of the geometric means, over qemu alone. With API version 1 there are no counters for each virtual CPU.
LIMITS = {
    1: {COUNTS: 1.2, WINDOWS: 1.3, FULL: 1.8},
    2: {COUNTS: 1.2},
}
LIMIT_COUNTS_2_THREADS_API_1 = 1.8


# ---- results: plain data, rendered below ------------------------------------------------------


@dataclasses.dataclass
class Run:
    """One run of one variant."""

    program_s: float
    command_s: float  # with the start-up and finishing of memlens; else the same


@dataclasses.dataclass
class Measurement:
    """All runs of one kernel with one number of threads."""

    kernel: str
    n_threads: int
    arguments: str
    small_arguments: str
    runs: dict[str, list[Run]]
    small_native: list[Run]

    def has(self, variant: str) -> bool:
        return bool(self.runs.get(variant))

    def program_s(self, variant: str) -> float:
        return min(run.program_s for run in self.runs[variant])

    def command_s(self, variant: str) -> float:
        return min(run.command_s for run in self.runs[variant])

    def over_native(self, variant: str) -> float:
        if variant in ON_SMALL_GRAPH:
            return self.program_s(variant) / min(run.program_s for run in self.small_native)
        return self.program_s(variant) / self.program_s(NATIVE)

    def over_qemu(self, variant: str) -> float:
        return self.program_s(variant) / self.program_s(QEMU)


def judge(measurements: list[Measurement], *, plugin_api: int | None) -> list[Verdict]:
    verdicts = []
    for n_threads, limits in LIMITS.items():
        of_threads = [m for m in measurements if m.n_threads == n_threads]
        for variant, limit in limits.items():
            if not of_threads or not all(m.has(variant) for m in of_threads):
                continue
            if n_threads == 2 and plugin_api == 1:
                limit = LIMIT_COUNTS_2_THREADS_API_1
            ratios = {m.kernel: m.over_qemu(variant) for m in of_threads}
            mean = geometric_mean(list(ratios.values()))
            worst = max(ratios, key=lambda kernel: ratios[kernel])
            claim = f"{n_threads} thread{'s' if n_threads > 1 else ''}: {variant} at most {limit:.1f} × qemu alone"
            measured = f"{mean:.3f} (worst {ratios[worst]:.3f}, {worst})"
            verdicts.append(Verdict(claim, measured, mean <= limit))
    return verdicts


# ---- measuring ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Session:
    """What a run needs: where the programs are and how each variant starts them."""

    build: Path
    memlens: list[str] | None
    qemu: str
    valgrind: str | None
    n_rounds: int
    n_peer_rounds: int
    scale: int
    small_scale: int
    seconds: float
    small_seconds: float
    environment: dict[str, str]
    modes: tuple[str, ...]

    def variants(self) -> list[str]:
        modes = list(self.modes) if self.memlens else []
        return [NATIVE, QEMU, *modes, CONTROL]

    def peers(self) -> list[str]:
        return list(VALGRIND_TOOLS) if self.valgrind else []

    def run(self, variant: str, program: list[str], *, folder: Path) -> tuple[Run, bytes]:
        capture = folder / "run.memlens"
        shutil.rmtree(capture, ignore_errors=True)
        command = program
        if variant == QEMU:
            command = [self.qemu, *program]
        elif variant in MEMLENS_MODES:
            assert self.memlens is not None
            mode = f"--emulate={MEMLENS_MODES[variant]}"
            command = [*self.memlens, "record", "-q", "--force", "-o", str(capture), mode, "--", *program]
        elif variant in VALGRIND_TOOLS:
            assert self.valgrind is not None
            command = [self.valgrind, *VALGRIND_TOOLS[variant], "--log-file=/dev/null", *program]
        begin_s = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=self.environment)
        command_s = time.monotonic() - begin_s
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()
            raise BenchmarkError(f"{shlex.join(command)}\n  ended with status {done.returncode}: {message[-500:]}")
        program_s = command_s
        if variant in MEMLENS_MODES:
            program_s = float(json.loads((capture / "meta.json").read_text())["wall_s"])
        return Run(program_s, command_s), done.stdout


def iterations_for(session: Session, kernel: str, *, scale: int, seconds: float) -> int:
    """How many iterations make the native program run about this long, by its own times of a short run."""
    program = [str(session.build / f"graph_{kernel}"), "--scale", str(scale), "--time"]
    best: tuple[float, float] = (math.inf, math.inf)
    for _ in range(5):
        done = subprocess.run(
            [*program, "--iterations", str(FIRST_ITERATIONS)], capture_output=True, text=True, check=True
        )
        times = {name: float(value) for name, value in re.findall(r"(\w+)=([0-9.]+)", done.stderr)}
        best = min(best, (times["seconds"], times["kernel_seconds"]))
    total_s, kernel_s = best
    iteration_s = kernel_s / FIRST_ITERATIONS
    return max(1, round((seconds - (total_s - kernel_s)) / iteration_s))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Options of one kernel, the same for each number of threads."""

    full: str
    small: str


def sizes_of(session: Session, kernel: str) -> Sizes:
    full = iterations_for(session, kernel, scale=session.scale, seconds=session.seconds)
    small = iterations_for(session, kernel, scale=session.small_scale, seconds=session.small_seconds)
    return Sizes(f"--scale {session.scale} --iterations {full}", f"--scale {session.small_scale} --iterations {small}")


def measure(session: Session, kernel: str, n_threads: int, *, sizes: Sizes, folder: Path) -> Measurement:
    """All rounds of one kernel; the order rotates, so that no variant always follows the same other one."""

    def command(size: str) -> list[str]:
        return [str(session.build / f"graph_{kernel}"), *size.split(), "--threads", str(n_threads)]

    program, small_program = command(sizes.full), command(sizes.small)
    runs: dict[str, list[Run]] = {variant: [] for variant in (*session.variants(), *session.peers())}
    small_native: list[Run] = []
    outputs: dict[bool, bytes] = {}

    def take(variant: str, *, is_small: bool = False, is_kept: bool = True) -> None:
        run, output = session.run(variant, small_program if is_small else program, folder=folder)
        if outputs.setdefault(is_small, output) != output:
            raise BenchmarkError(f"graph_{kernel}: {variant} changed the output of the program: {output!r}")
        if is_kept:
            (small_native if is_small and variant == NATIVE else runs[variant]).append(run)

    variants = session.variants()
    for round_number in range(-1, session.n_rounds):  # round -1 warms the caches and is thrown away
        shift = round_number % len(variants)
        for variant in variants[shift:] + variants[:shift]:
            if round_number >= 0 or variant in (NATIVE, QEMU):
                take(variant, is_kept=round_number >= 0)
    for _ in range(session.n_peer_rounds):
        for variant in session.peers():
            take(variant, is_small=variant in ON_SMALL_GRAPH)
    if session.peers():
        for _ in range(max(5, session.n_rounds)):
            take(NATIVE, is_small=True)
    measurement = Measurement(kernel, n_threads, " ".join(program[1:]), " ".join(small_program[1:]), runs, small_native)
    say(
        f"  graph_{kernel}, {n_threads} thread{'s' if n_threads > 1 else ''}: native {measurement.program_s(NATIVE):.3f} s, "
        + ", ".join(f"{v} {measurement.over_native(v):.2f}" for v in runs if v != NATIVE and measurement.has(v))
    )
    return measurement


# ---- what there is ---------------------------------------------------------------------------------


def prepare(build: Path) -> None:
    """Build the workloads where they are missing or old."""
    try:
        if not (build / "CMakeCache.txt").exists():
            configure = ["cmake", "-S", str(REPOSITORY / "workloads"), "-B", str(build)]
            subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        targets = [f"graph_{kernel}" for kernel in KERNELS]
        subprocess.run(["cmake", "--build", str(build), "--target", *targets], check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise BenchmarkError(f"{error.filename} is missing: a C compiler and CMake are needed") from error
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"the workloads do not build: {shlex.join(error.cmd)}") from error


def with_emulator(choice: Path | None) -> tuple[str, dict[str, str]]:
    """The emulator for this machine's programs, and the environment in which memlens finds the same one first."""
    name = f"qemu-{platform.machine()}"
    environment = dict(os.environ)
    if choice is not None:
        folder = choice if choice.is_dir() else choice.parent
        if not choice.is_dir() and choice.name != name:
            raise BenchmarkError(f"--qemu {choice}: the emulator of this machine's programs is called {name}")
        environment["PATH"] = f"{folder.resolve()}{os.pathsep}{environment.get('PATH', '')}"
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise BenchmarkError(f"no {name}: sudo apt-get install qemu-user, or --qemu DIR")
    return found, environment


def plugin_api_of(qemu: str, folder: Path) -> int | None:
    """The newest plugin interface that the emulator has, from its own answer to one that asks for too much."""
    source, plugin = folder / "asks_too_much.c", folder / "asks_too_much.so"
    source.write_text("int qemu_plugin_version = 1000000;\nint qemu_plugin_install(void) { return 0; }\n")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(plugin), str(source)], check=True)
    answer = subprocess.run([qemu, "-plugin", str(plugin), "/bin/true"], capture_output=True, text=True, check=False)
    match = re.search(r"only up to version (\d+)", answer.stderr)
    return int(match[1]) if match else None


def why_no_memlens(memlens: list[str], build: Path, capture: Path, environment: dict[str, str]) -> str | None:
    """Why memlens's columns are left out; None when they can be measured. Leaves a capture of a tiny run."""
    if shutil.which(memlens[0]) is None:
        return f"no command {memlens[0]}"
    program = [str(build / "graph_cc"), "--scale", "4", "--iterations", "1"]
    for mode in MEMLENS_MODES.values():
        command = [*memlens, "record", "-q", "--force", "-o", str(capture), f"--emulate={mode}", "--", *program]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
    return None


def this_machine(session: Session, *, plugin_api: int | None) -> dict[str, str]:
    used = " used" if session.memlens else ""
    return describe_machine(
        memory=True,
        emulator=first_line([session.qemu, "--version"]),
        plugin_interface=f"version {plugin_api}{used}" if plugin_api else "none",
        valgrind=first_line([session.valgrind, "--version"]) if session.valgrind else "not part of this run",
        **({"memlens": first_line([*session.memlens, "--version"])} if session.memlens else {}),
    )


# ---- rendering -----------------------------------------------------------------------------------


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def table_over_native(measurements: list[Measurement], variants: list[str]) -> list[str]:
    head = ["kernel", "native s", *variants]
    lines = [row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    for m in measurements:
        ratios = [ratio_text(m.over_native(variant)) for variant in variants]
        lines.append(row([m.kernel, f"{m.program_s(NATIVE):.3f}", *ratios]))
    means = [ratio_text(geometric_mean([m.over_native(variant) for m in measurements])) for variant in variants]
    return [*lines, row(["**geometric mean**", "", *means])]


def table_over_qemu(measurements: list[Measurement], modes: list[str]) -> list[str]:
    head = ["kernel", "qemu s", *modes, *(f"whole command, {mode.removeprefix('memlens ')} s" for mode in modes)]
    lines = [row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    for m in measurements:
        cells = [m.kernel, f"{m.program_s(QEMU):.3f}", *(f"{m.over_qemu(mode):.3f}" for mode in modes)]
        lines.append(row([*cells, *(f"{m.command_s(mode):.2f}" for mode in modes)]))
    means = [f"{geometric_mean([m.over_qemu(mode) for m in measurements]):.3f}" for mode in modes]
    return [*lines, row(["**geometric mean**", "", *means, *("" for _ in modes)])]


def render_page(
    machine: dict[str, str],
    measurements: list[Measurement],
    verdicts: list[Verdict],
    *,
    session: Session,
    arguments: str,
    missing: str | None,
) -> str:
    lines = ["# Overhead of counting under the emulator", ""]
    lines += [f"Written by `python benchmarks/emulate.py{arguments}`.", ""]
    lines += [row(["machine", ""]), row(["---", "---"]), *(row([k, v]) for k, v in machine.items()), ""]
    if session.n_rounds < MINIMUM_ROUNDS:
        lines += [f"**Not a measurement**: fewer than {MINIMUM_ROUNDS} rounds. No verdict.", ""]
    if missing:
        lines += [f"memlens's columns are missing: {missing}.", ""]
    lines += [
        f"Eight graph kernels of `workloads/`, on a graph of 2^{session.scale} vertices, each about {session.seconds:g} s long natively. "
        f"Minimum of {session.n_rounds} interleaved rounds, of {session.n_peer_rounds} for valgrind's tools. Timed is the program from its "
        "start to its end; *whole command* adds start-up and finishing of memlens. *Native again* is a second native series over the "
        f"first. `{TRACE}` prints every access to /dev/null; it runs on a graph of 2^{session.small_scale} vertices, about "
        f"{session.small_seconds * 1000:g} ms long natively, over the native time on that graph.",
        "",
    ]
    for n_threads in sorted({m.n_threads for m in measurements}):
        of_threads = [m for m in measurements if m.n_threads == n_threads]
        variants = [
            v for v in (*session.variants(), *session.peers()) if v != NATIVE and all(m.has(v) for m in of_threads)
        ]
        lines += [f"## {n_threads} thread{'s' if n_threads > 1 else ''}", ""]
        lines += ["Time over native:", "", *table_over_native(of_threads, variants), ""]
        if n_threads > 1 and session.peers():
            lines += ["Valgrind runs one thread at a time; qemu runs them in parallel.", ""]
        modes = [mode for mode in session.modes if all(m.has(mode) for m in of_threads)]
        if modes:
            lines += ["Time over qemu alone in the same rounds:", "", *table_over_qemu(of_threads, modes), ""]
    if verdicts:
        lines += [row(["verdict (geometric mean)", "measured", ""]), row(["---", "---", "---"])]
        lines += [row([v.claim, v.measured, "holds" if v.holds else "**fails**"]) for v in verdicts] + [""]
    return "\n".join(lines)


def to_json(machine: dict[str, str], measurements: list[Measurement], verdicts: list[Verdict]) -> str:
    document = {
        "machine": machine,
        "kernels": [dataclasses.asdict(measurement) for measurement in measurements],
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    return json.dumps(document, indent=1) + "\n"


# ---- command line ----------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7, help="rounds; verdicts need at least 5 (default: 7)")
    parser.add_argument("--peer-repeat", type=int, default=2, help="rounds of valgrind's tools (default: 2)")
    parser.add_argument("--seconds", type=float, default=0.6, help="native time of a kernel (default: 0.6)")
    parser.add_argument("--scale", type=int, default=16, help="2^N vertices (default: 16)")
    parser.add_argument("--small-seconds", type=float, default=0.01, help="native time for lackey with addresses")
    parser.add_argument("--small-scale", type=int, default=10, help="2^N vertices for lackey with addresses")
    parser.add_argument(
        "--threads", type=int, action="append", choices=THREADS, help="only this number; may be repeated"
    )
    parser.add_argument("--only", action="append", choices=KERNELS, help="only this kernel; may be repeated")
    parser.add_argument("--memlens", default="memlens", help="the memlens command (default: from PATH)")
    parser.add_argument("--qemu", type=Path, help="the emulator, or the folder it is in (default: from PATH)")
    parser.add_argument("--no-peers", action="store_true", help="leave out valgrind's tools")
    parser.add_argument("--counts-only", action="store_true", help="leave out windows and full streams")
    parser.add_argument(
        "--build", type=Path, default=REPOSITORY / "build" / "workloads", help="where to build workloads"
    )
    parser.add_argument("--output", type=Path, help="write the page there (default: stdout)")
    parser.add_argument("--json", type=Path, help="write every run there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a verdict fails")
    options = parser.parse_args(arguments)
    if options.repeat < 1 or options.peer_repeat < 1:
        parser.error("--repeat and --peer-repeat must be at least 1")
    if options.check and options.repeat < MINIMUM_ROUNDS:
        parser.error(f"--check needs at least {MINIMUM_ROUNDS} rounds")
    return options


def arguments_that_matter(options: argparse.Namespace) -> str:
    """What belongs to the page's first line: sizes and rounds, not where things are on this machine."""
    text = f" --repeat {options.repeat} --peer-repeat {options.peer_repeat} --seconds {options.seconds:g} --scale {options.scale}"
    text += "".join(f" --only {kernel}" for kernel in options.only or ())
    text += "".join(f" --threads {n}" for n in options.threads or ())
    text += " --qemu DIR" if options.qemu else ""
    text += " --counts-only" if options.counts_only else ""
    return text + (" --no-peers" if options.no_peers else "")


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    memlens = shlex.split(options.memlens)
    try:
        prepare(options.build)
        qemu, environment = with_emulator(options.qemu)
        with tempfile.TemporaryDirectory(prefix="memlens-emulate-") as name:
            folder = Path(name)
            plugin_api = plugin_api_of(qemu, folder)
            missing = why_no_memlens(memlens, options.build, folder / "probe.memlens", environment)
            if missing is None:  # what memlens uses may be older than what the emulator offers
                used = json.loads((folder / "probe.memlens" / "meta.json").read_text())["collectors"]["emulate"]
                plugin_api = int(used["plugin_api"])
            else:
                say(f"without memlens's columns: {missing}")
            session = Session(
                build=options.build,
                memlens=None if missing else memlens,
                qemu=qemu,
                valgrind=None if options.no_peers else shutil.which("valgrind"),
                modes=(COUNTS,) if options.counts_only else tuple(MEMLENS_MODES),
                n_rounds=options.repeat,
                n_peer_rounds=options.peer_repeat,
                scale=options.scale,
                small_scale=options.small_scale,
                seconds=options.seconds,
                small_seconds=options.small_seconds,
                environment=environment,
            )
            say(f"{session.n_rounds} rounds of {', '.join([*session.variants(), *session.peers()])}")
            sizes = {kernel: sizes_of(session, kernel) for kernel in options.only or KERNELS}
            measurements = [
                measure(session, kernel, n_threads, sizes=sizes[kernel], folder=folder)
                for n_threads in options.threads or THREADS
                for kernel in sizes
            ]
    except BenchmarkError as error:
        say(f"error: {error}")
        return 2
    verdicts = judge(measurements, plugin_api=plugin_api) if options.repeat >= MINIMUM_ROUNDS else []
    machine = this_machine(session, plugin_api=plugin_api)
    page = render_page(
        machine,
        measurements,
        verdicts,
        session=session,
        arguments=arguments_that_matter(options),
        missing=missing,
    )
    write_page(page, options.output)
    if options.json:
        options.json.write_text(to_json(machine, measurements, verdicts))
    for verdict in verdicts:
        say(f"{'holds' if verdict.holds else 'FAILS'}: {verdict.claim}: {verdict.measured}")
    # Without verdicts nothing is proved: that must not pass for success.
    return 1 if options.check and not (verdicts and all(verdict.holds for verdict in verdicts)) else 0


if __name__ == "__main__":
    sys.exit(main())
