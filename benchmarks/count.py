"""What compile-time counting costs: graph kernels and workloads, beside the same clang, its profilers and its coverage.

Every program is built by one clang in several code layouts (the order and alignment of functions alone moves a kernel by
several percent); every round runs each variant once, in an order that rotates; a variant's time is the minimum over
the rounds, its ratio to native the median over the layouts. What is timed is the kernel, by the program itself, each of its
laps apart (a run of the kernel, or a sweep): the minimum of each lap over the rounds, and their sum, since no run as a whole
is undisturbed on a machine that others share. What the counting code costs is the same in every round; what the recorder takes
from a program that has a thread for every processor is not, and the minimum leaves that out.
Counted programs run under ``memlens record``, so what is timed is counting that is really recorded.

Parts: ``speed`` (exact, and one execution in a hundred, at each number of threads, and the peers), ``ablation`` (each
placement step off), ``hard`` (short regions, calls through pointers, library code), ``sampling`` (bytes captured at
each rate), ``events`` (cost of a region, and of reading events at its ends).

Exit status: 0, with ``--check`` 1 when a verdict fails; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
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

REPOSITORY = Path(__file__).resolve().parent.parent
NATIVE, CONTROL, COUNT, SAMPLED = "native", "native again", "count", "count 1 in 100"
PEERS = {
    "-fprofile-generate": ["-fprofile-generate"],
    "-fprofile-instr-generate": ["-fprofile-instr-generate"],
    "-fsanitize-coverage": ["-fsanitize-coverage=func,trace-loads,trace-stores"],
}
COVERAGE_STUBS = "".join(
    f"void __sanitizer_cov_{kind}{size}(void *address) {{ (void)address; }}\n"
    for kind in ("load", "store")
    for size in (1, 2, 4, 8, 16)
)
# Function order (the linker shuffles sections) and alignment of functions and loops.
LAYOUTS = (
    [],
    ["-falign-functions=64", "-falign-loops=32", "-Wl,--shuffle-sections=.text*=11"],
    ["-falign-loops=16", "-Wl,--shuffle-sections=.text*=23"],
    ["-falign-functions=32", "-Wl,--shuffle-sections=.text*=37"],
    ["-falign-loops=64", "-Wl,--shuffle-sections=.text*=41"],
)
ABLATIONS = (
    "no-sets",
    "no-constants",
    "no-trips",
    "no-exits",
    "no-keep",
    "no-publish",
    "no-callees",
    "no-tallies",
    "no-flow",
)


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    source: str
    options: str  # that make the kernel run about a second
    regions: str = ""  # functions that run often: the regions of which one execution in a hundred is counted
    threads: bool = True  # takes --threads and keeps its counts with several
    group: str = "graph"


# Fixed iteration counts: kernels that converge would race otherwise. Random accesses stay in a cache of the core's own: beyond it
# the same program differs by 10 % and more from run to run on a machine that others share, and memory hides what counting costs.
LEAST_S = 0.5
PROGRAMS = (
    Program("bfs", "graph_bfs.c", "--scale 17 --iterations 240", "step_down|step_up"),
    Program("bc", "graph_bc.c", "--scale 17 --iterations 40", "count_paths|add_dependencies"),
    Program("cc", "graph_cc.c", "--scale 17 --iterations 150", "link_one_edge|link_other_edges|compress"),
    Program("cc_sv", "graph_cc_sv.c", "--scale 17 --iterations 22", "hook|shorten"),
    Program("pr", "graph_pr.c", "--scale 17 --iterations 220", "pull"),
    Program("pr_spmv", "graph_pr_spmv.c", "--scale 17 --iterations 200", "share_out|multiply"),
    Program("sssp", "graph_sssp.c", "--scale 17 --iterations 45", "relax"),
    Program("tc", "graph_tc.c", "--scale 14 --iterations 15", "intersect_rows"),
    Program("stream", "stream.c", "--mib 16 --iterations 200", "copy_part|triad_part", group="workload"),
    Program("stencil", "stencil.c", "--mib 16 --iterations 900", "sweep_rows", group="workload"),
    Program("matmul", "matmul.c", "--mib 4 --iterations 10", "multiply_block", group="workload"),
    Program("hash map", "hash_map.cpp", "--mib 1 --iterations 640", threads=False, group="workload"),
    Program("pointer chase", "pointer_chase.c", "--mib 1 --iterations 1600", "chase", threads=False, group="workload"),
)
HARD = (
    Program("short branchy region", "hard_arcs.c", "--iterations 400", threads=False, group="hard"),
    Program("tiny region", "hard_rays.c", "--rays 200000", threads=False, group="hard"),
    Program("calls through pointers", "hard_tree.c", "--iterations 12000", threads=False, group="hard"),
    Program("library code", "hard_libm.c", "--iterations 120", threads=False, group="hard"),
    Program("one loop nest", "hard_lattice.c", "--iterations 1200", threads=False, group="hard"),
)


class Bench:
    """Builds and runs; knows memlens only as a command."""

    def __init__(self, memlens: list[str], folder: Path, rounds: int, layouts: int) -> None:
        self.memlens, self.folder, self.rounds, self.layouts = memlens, folder, rounds, layouts
        shown = subprocess.run(
            [*memlens, "cc", "--memlens-verbose", "-E", "-x", "c", "/dev/null"], capture_output=True, text=True
        )
        if shown.returncode != 0:
            raise BenchmarkError(f"memlens cc does not work here: {shown.stderr.strip()[-300:]}")
        words = shlex.split(shown.stderr.strip().splitlines()[0])
        self.clang = next(word for word in words if "clang" in Path(word).name)
        self.clangxx = re.sub(r"clang(?=[-\d]*$)", "clang++", self.clang)
        version = re.search(r"(\d+)$", self.clang)
        self.linker = [f"-fuse-ld={shutil.which(f'ld.lld-{version[1]}')}"] if version else ["-fuse-ld=lld"]

    def build(
        self, program: Program, variant: str, layout: list[str], tag: str, extra: list[str] | None = None
    ) -> Path:
        source = REPOSITORY / "workloads" / program.source
        out = self.folder / f"{Path(program.source).stem}-{tag}"
        is_cxx = source.suffix == ".cpp"
        flags = [
            "-O2",
            "-g",
            "-w",
            "-ffunction-sections",
            *layout,
            *self.linker,
            str(source),
            "-o",
            str(out),
            "-pthread",
            "-lm",
        ]
        if variant in (NATIVE, CONTROL):
            command = [self.clangxx if is_cxx else self.clang, *flags]
        elif variant in PEERS:
            if variant == "-fsanitize-coverage":
                stubs = self.folder / "stubs.o"
                if not stubs.exists():
                    text = self.folder / "stubs.c"
                    text.write_text(COVERAGE_STUBS)
                    subprocess.run([self.clang, "-O2", "-c", str(text), "-o", str(stubs)], check=True)
                flags.append(str(stubs))
            command = [self.clangxx if is_cxx else self.clang, *PEERS[variant], *flags]
        else:
            command = [*self.memlens, "c++" if is_cxx else "cc", *(extra or []), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchmarkError(f"{shlex.join(command)}\n{done.stderr[-800:]}")
        return out

    def run(self, executable: Path, options: str, recorded: str | None) -> tuple[list[float], bytes, Path]:
        """Seconds of each lap (of the kernel or the program, where it tells no laps), its output, and the capture."""
        capture = self.folder / "run.memlens"
        program = [str(executable), *options.split(), "--time", "--laps"]
        if recorded is not None:
            count = f"--count={recorded}" if recorded else "--count"
            program = [
                *self.memlens, "record", "-q", "--force", "--collectors", "count", count, "-o", str(capture), "--", *program,
            ]  # fmt: skip
        environment = {**os.environ, "LLVM_PROFILE_FILE": "/dev/null"}
        done = subprocess.run(program, capture_output=True, env=environment)
        if done.returncode != 0:
            raise BenchmarkError(f"{shlex.join(program)}\n  status {done.returncode}: {done.stderr.decode()[-500:]}")
        found = dict(re.findall(r"(\w*seconds|laps)=([0-9.,]+)", done.stderr.decode()))
        times = found.get("laps", found.get("kernel_seconds", found.get("seconds", "nan")))
        return [float(each) for each in times.split(",")], done.stdout, capture

    def long_enough(self, program: Program, threads: int) -> str:
        """Options with which the kernel takes LEAST_S on this machine: what a run pays once must not count for much."""
        native = self.build(program, NATIVE, [], "length")
        end = f" --threads {threads}" if program.threads else ""
        options = program.options + end
        seconds = min(sum(self.run(native, options, None)[0]) for _ in range(4)) / 1.25  # other runs may be faster
        if seconds >= LEAST_S:
            return options
        return re.sub(r"(?<=--iterations )\d+", lambda n: str(math.ceil(int(n[0]) * LEAST_S / seconds)), options)

    def ratios(
        self,
        program: Program,
        threads: int,
        variants: dict[str, tuple[list[str], str | None]],
        layouts: int,
        rounds: int,
    ) -> dict[str, float]:
        """Ratio to native of each variant: compiler options and recording settings (None = not recorded)."""
        options = self.long_enough(program, threads)
        of_layout: dict[str, list[float]] = {name: [] for name in variants}
        native_s = []
        for number, layout in enumerate(LAYOUTS[:layouts]):
            built = {NATIVE: self.build(program, NATIVE, layout, f"native{number}")}
            for name, (extra, _) in variants.items():
                kind = name if name in PEERS or name == CONTROL else COUNT
                built[name] = self.build(program, kind, layout, f"{len(built)}-{number}", extra)
            laps: dict[str, list[float]] = {}
            output = None
            order = list(built)
            for turn in range(rounds):
                for name in order[turn % len(order) :] + order[: turn % len(order)]:
                    recorded = variants[name][1] if name in variants else None
                    seconds, text, _ = self.run(built[name], options, recorded)
                    if output is not None and text != output:
                        raise BenchmarkError(f"{program.name}: {name} changed the output: {text!r} was {output!r}")
                    output = text
                    laps[name] = [min(pair) for pair in zip(laps.get(name, seconds), seconds, strict=True)]
            best = {name: sum(least) for name, least in laps.items()}
            native_s.append(best[NATIVE])
            for name in variants:
                of_layout[name].append(best[name] / best[NATIVE])
        result = {name: statistics.median(values) for name, values in of_layout.items()}
        result[NATIVE] = min(native_s)
        say(f"  {program.name}, {threads} thread(s), native {min(native_s):.3f} s: " + ", ".join(
            f"{name} {value:.3f}" for name, value in result.items() if name != NATIVE))  # fmt: skip
        return result

    def table(self, capture: Path, sql: str) -> list[dict[str, object]]:
        done = subprocess.run(
            [*self.memlens, "query", "--json", str(capture), sql], capture_output=True, text=True, check=True
        )
        return (
            [json.loads(line) for line in done.stdout.splitlines()]
            if done.stdout.startswith("{")
            else json.loads(done.stdout)
        )


def ratio_text(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.3f}"


def variants_of(program: Program) -> dict[str, tuple[list[str], str | None]]:
    """Compiler options and settings of the recording. Whole kernels run too seldom to count one in a hundred of them: the
    functions that do their work are the regions then."""
    variants: dict[str, tuple[list[str], str | None]] = {CONTROL: ([], None), COUNT: ([], "")}
    if program.regions:
        variants[SAMPLED] = ([f"--memlens-functions=^({program.regions})$"], "every=100")
    return variants


def never_in_pieces(program: Program) -> dict[str, float]:
    return {} if program.regions else {SAMPLED: math.nan}


def speed(bench: Bench, programs: list[Program], threads: list[int], peers: bool) -> tuple[list[str], list[Verdict]]:
    lines, verdicts = ["## Speed", ""], []
    for count in threads:
        chosen = [p for p in programs if p.threads or count == 1]
        results = {
            p.name: bench.ratios(p, count, variants_of(p), bench.layouts, bench.rounds) | never_in_pieces(p)
            for p in chosen
        }
        if peers:
            for p in chosen:
                more = bench.ratios(p, count, {name: ([], None) for name in PEERS}, 1, max(3, bench.rounds // 2))
                results[p.name] |= {name: value for name, value in more.items() if name != NATIVE}
        names = [CONTROL, COUNT, SAMPLED, *(PEERS if peers else ())]
        lines += [f"{count} thread{'s' if count > 1 else ''}, ratio to native:", ""]
        lines += head(["kernel", "native s", *names])
        for p in chosen:
            lines.append(
                row([p.name, f"{results[p.name][NATIVE]:.3f}", *(ratio_text(results[p.name][n]) for n in names)])
            )
        for group, label in (("graph", "graph kernels"), ("workload", "other workloads"), ("", "all")):
            members = [p for p in chosen if not group or p.group == group]
            if members:
                means = [geometric_mean(results[p.name][n] for p in members) for n in names]
                lines.append(row([f"**geometric mean, {label}**", "", *(f"**{mean:.3f}**" for mean in means)]))
        lines.append("")
        text = f"{count} thread{'s' if count > 1 else ''}"
        mean = geometric_mean(r[COUNT] for r in results.values())
        worst = max(results, key=lambda name: results[name][COUNT])
        control = max(abs(r[CONTROL] - 1) for r in results.values())
        sampled = geometric_mean(r[SAMPLED] for r in results.values())
        verdicts += [
            Verdict(f"{text}: exact counting, geometric mean at most 1.03", f"{mean:.3f}", mean <= 1.03),
            Verdict(
                f"{text}: none above 1.15", f"{results[worst][COUNT]:.3f} ({worst})", results[worst][COUNT] <= 1.15
            ),
            Verdict(f"{text}: one in a hundred at most 1.01", f"{sampled:.3f}", sampled <= 1.01),
            Verdict(f"{text}: native against native within 1 %", f"{control * 100:.1f} %", control <= 0.01),
        ]
    return lines, verdicts


def counters_of(bench: Bench, executable: Path) -> int:
    done = subprocess.run(["readelf", "-SW", str(executable)], capture_output=True, text=True, check=True)
    found = re.search(r"memlens_functions\s+\S+\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", done.stdout)
    if found is None:
        return 0
    data = executable.read_bytes()[int(found[1], 16) : int(found[1], 16) + int(found[2], 16)]
    return sum(int.from_bytes(data[at + 16 : at + 20], "little") for at in range(0, len(data), 40))


def ablation(bench: Bench, programs: list[Program]) -> list[str]:
    variants: dict[str, tuple[list[str], str | None]] = {"all steps": ([], "")}
    variants |= {step: ([f"--memlens-placement={step}"], "") for step in ABLATIONS}
    variants["none of them"] = ([f"--memlens-placement={','.join(ABLATIONS)}"], "")
    variants["a counter for each access"] = (["--memlens-naive"], "")
    chosen = [p for p in programs if p.group == "graph"]
    results = {p.name: bench.ratios(p, 1, variants, 1, max(3, bench.rounds // 2)) for p in chosen}
    lines = [
        "## Ablation",
        "",
        "Eight graph kernels, one thread, one layout: counters in all eight programs, and ratio to native.",
        "",
    ]
    lines += head(["placement", "counters", "geometric mean", "worst"])
    for number, (name, (extra, _)) in enumerate(variants.items()):
        counters = sum(counters_of(bench, bench.build(p, COUNT, [], f"ablation{number}", extra)) for p in chosen)
        ratios = {p.name: results[p.name][name] for p in chosen}
        worst = max(ratios, key=lambda kernel: ratios[kernel])
        lines.append(
            row([name, f"{counters:,}", f"{geometric_mean(ratios.values()):.3f}", f"{ratios[worst]:.3f} ({worst})"])
        )
    return [*lines, ""]


def hard(bench: Bench) -> list[str]:
    variants: dict[str, tuple[list[str], str | None]] = {
        CONTROL: ([], None), COUNT: ([], ""), SAMPLED: ([], "every=100"),
    }  # fmt: skip
    lines = [
        "## Hard cases",
        "",
        "One thread, ratio to native; a region's own cost (see below) is most of it where regions are short.",
        "",
    ]
    lines += head(["program", "native s", *variants])
    for p in HARD:
        found = bench.ratios(p, 1, variants, bench.layouts, max(3, bench.rounds // 2))
        lines.append(row([p.name, f"{found[NATIVE]:.3f}", *(f"{found[name]:.3f}" for name in variants)]))
    return [*lines, ""]


def sampling(bench: Bench) -> list[str]:
    """Bytes captured in proportion to the rate, also of a region that is executed once."""
    lines = [
        "## Sampling efficacy",
        "",
        "Bytes of a region that were counted, as a share of all of them, by the rate asked for.",
        "",
    ]
    lines += head(["region", "executions", "every", "counted executions", "share of bytes", "share asked for"])
    cases = [
        (HARD[0], "price", "--iterations 40"),
        (HARD[4], "stream", "--iterations 1"),
        (HARD[4], "stream", "--iterations 400"),
    ]
    sql = (
        "SELECT CAST(SUM(counted) AS BIGINT) AS counted, CAST(SUM(counted + untouched) AS BIGINT) AS executions "
        "FROM region_times WHERE region = '{}'"
    )
    size = "SELECT CAST(SUM(read_bytes + written_bytes) AS BIGINT) AS bytes FROM site_counts WHERE region = '{}'"
    for program, region, options in cases:
        executable = bench.build(program, COUNT, [], "sampling")
        whole = 0
        for every in (1, 10, 100, 1000):
            _, _, capture = bench.run(executable, options, f"every={every}")
            times = bench.table(capture, sql.format(region))[0]
            moved = int(str(bench.table(capture, size.format(region))[0]["bytes"] or 0))
            whole = whole or moved
            lines.append(row([f"{region} ({program.name})", f"{times['executions']:,}", f"{every:,}", f"{times['counted']:,}",
                              f"{moved / whole:.5f}", f"{1 / every:.5f}"]))  # fmt: skip
    return [*lines, ""]


def events(bench: Bench) -> list[str]:
    lines = ["## Cost of a region, and of reading events at its ends", ""]
    lines += ["A region with almost nothing in it, entered and left; software events stand in for those of a PMU.", ""]
    lines += head(["read at both ends", "ns a region"])
    program = HARD[1]
    native = bench.build(program, NATIVE, [], "events-native")
    counted = bench.build(program, COUNT, [], "events-count")
    rays = 8000  # a system call for each event and end takes a microsecond
    executions, arguments = 64 * rays, f"--rays {rays}"
    base = min(sum(bench.run(native, arguments, None)[0]) for _ in range(5))
    for label, settings in (("time alone", ""), ("1 event", "events=page-faults"),
                            ("2 events", "events=page-faults+context-switches"), ("3 events", "events=page-faults+context-switches+task-clock")):  # fmt: skip
        best = min(sum(bench.run(counted, arguments, settings)[0]) for _ in range(3))
        lines.append(row([label, f"{(best - base) / executions * 1e9:.1f}"]))
    return [*lines, ""]


def machine(bench: Bench) -> list[str]:
    facts = describe_machine(compiler=first_line([bench.clang, "--version"]))
    return [*head(["machine", ""]), *(row([key, value]) for key, value in facts.items()), ""]


PARTS = ("speed", "ablation", "hard", "sampling", "events")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memlens", default="memlens", help="the command")
    parser.add_argument("--output", type=Path, help="page to write (default: standard output)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layouts", type=int, default=3, choices=range(1, len(LAYOUTS) + 1))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", help="names of programs, joined by commas")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--check", action="store_true", help="status 1 when a verdict fails")
    options = parser.parse_args()
    programs = [p for p in PROGRAMS if not options.only or p.name in options.only.split(",")]
    parts = options.parts.split(",")
    try:
        with tempfile.TemporaryDirectory(prefix="memlens-count-") as folder:
            bench = Bench(shlex.split(options.memlens), Path(folder), options.rounds, options.layouts)
            lines = ["# Overhead of compile-time counting", ""]
            shown = " ".join(word for word in sys.argv[1:] if "/" not in word)
            lines += [f"Written by `python benchmarks/count.py {shown}`.", "", *machine(bench)]
            lines += [
                f"{options.layouts} code layouts, {options.rounds} interleaved rounds in each, median over the layouts. Kernels are timed by the "
                "programs themselves, lap by lap (a run of the kernel or a sweep): the sum of each lap's minimum. Counted ones run under "
                "`memlens record`.",
                "",
            ]
            verdicts: list[Verdict] = []

            def write() -> None:
                write_page("\n".join([*lines, *verdict_lines(verdicts)]), options.output)

            if "speed" in parts:
                more, verdicts = speed(
                    bench, programs, [int(n) for n in options.threads.split(",")], not options.no_peers
                )
                lines += more
                if options.output is not None:  # after each part: all of them take an hour
                    write()
            for part, function in (("ablation", lambda: ablation(bench, programs)), ("hard", lambda: hard(bench)),
                                   ("sampling", lambda: sampling(bench)), ("events", lambda: events(bench))):  # fmt: skip
                if part in parts:
                    say(part)
                    lines += function()
                    if options.output is not None:
                        write()
            if options.output is None:
                write()
    except BenchmarkError as error:
        say(f"error: {error}")
        return 2
    return 1 if options.check and not all(v.holds for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
