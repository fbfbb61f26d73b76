"""What compile-time tracing costs and gives: graph kernels and workloads, beside the same clang without it and valgrind's lackey.

The rules are those of ``count.py``: one clang, several code layouts, interleaved rounds, the minimum of each variant, the median over the
layouts, kernels timed by the programs themselves, traced programs run under ``memlens record``.

Parts: ``speed`` (windows of 1,000 accesses in 100,000, and compiled in but not recorded), ``full`` (every access to disk), ``sizes`` (bytes on
disk, sampled and full), ``classes`` (what constants save), ``compile`` (seconds and bytes of the compiler's output).

Exit status: 0, with ``--check`` 1 when a verdict fails; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import BenchmarkError, Verdict, geometric_mean, head, row, say, verdict_lines, write_page
from count import CONTROL, NATIVE, PROGRAMS, Bench, Program, machine

TRACE, IDLE = "window 1,000 of 100,000", "compiled in, not recorded"
WINDOWS = "window=1000,period=100000"
SMALL = {  # for runs in which every access is written: some ten million of them
    "bfs": "--scale 14 --iterations 8", "bc": "--scale 13 --iterations 6", "cc": "--scale 14 --iterations 8",
    "cc_sv": "--scale 13 --iterations 2", "pr": "--scale 14 --iterations 8", "pr_spmv": "--scale 14 --iterations 8",
    "sssp": "--scale 13 --iterations 4", "tc": "--scale 12 --iterations 1", "stream": "--mib 4 --iterations 4",
    "stencil": "--mib 4 --iterations 4", "matmul": "--mib 1 --iterations 1", "hash map": "--mib 4 --iterations 2",
    "pointer chase": "--mib 4 --iterations 20",
}  # fmt: skip


class TraceBench(Bench):
    """Traced builds instead of counted ones."""

    def build(
        self, program: Program, variant: str, layout: list[str], tag: str, extra: list[str] | None = None
    ) -> Path:
        if variant not in (NATIVE, CONTROL):
            extra = ["--memlens=trace", *(extra or [])] if not any("--memlens=" in e for e in extra or []) else extra
        return super().build(program, variant, layout, tag, extra)

    def run(self, executable: Path, options: str, recorded: str | None) -> tuple[list[float], bytes, Path]:
        """The kernel as one lap: windows and the recorder disturb now one lap and now another, which is part of what they cost."""
        capture = self.folder / "run.memlens"
        program = [str(executable), *options.split(), "--time"]
        if recorded is not None:
            collectors = "trace,count" if recorded.startswith("count+") else "trace"
            program = [
                *self.memlens, "record", "-q", "--force", "--collectors", collectors,
                f"--trace={recorded.removeprefix('count+')}", "-o", str(capture), "--", *program,
            ]  # fmt: skip
        done = subprocess.run(program, capture_output=True)
        if done.returncode != 0:
            raise BenchmarkError(f"{shlex.join(program)}\n  status {done.returncode}: {done.stderr.decode()[-500:]}")
        found = dict(re.findall(r"(\w*seconds)=([0-9.]+)", done.stderr.decode()))
        return [float(found.get("kernel_seconds", found.get("seconds", "nan")))], done.stdout, capture


def windows_size(capture: Path) -> int:
    """Bytes of the files that hold the windows: records, not the tables of names beside them."""
    return sum(path.stat().st_size for path in capture.rglob("*") if path.suffix == ".mlc")


def speed(bench: TraceBench, programs: list[Program], count: int) -> tuple[list[str], list[Verdict]]:
    lines: list[str] = []
    variants: dict[str, tuple[list[str], str | None]] = {
        CONTROL: ([], None), TRACE: ([], WINDOWS), IDLE: ([], None),
    }  # fmt: skip
    chosen = [p for p in programs if p.threads or count == 1]
    results = {p.name: bench.ratios(p, count, variants, bench.layouts, bench.rounds) for p in chosen}
    text = f"{count} thread{'s' if count > 1 else ''}"
    lines += [f"{text}, ratio to native:", "", *head(["kernel", "native s", *variants])]
    for p in chosen:
        found = results[p.name]
        lines.append(row([p.name, f"{found[NATIVE]:.3f}", *(f"{found[n]:.3f}" for n in variants)]))
    for group, label in (("graph", "graph kernels"), ("workload", "other workloads"), ("", "all")):
        members = [p for p in chosen if not group or p.group == group]
        if members:
            means = [geometric_mean(results[p.name][n] for p in members) for n in variants]
            lines.append(row([f"**geometric mean, {label}**", "", *(f"**{mean:.3f}**" for mean in means)]))
    lines.append("")
    mean = geometric_mean(r[TRACE] for r in results.values())
    worst = max(results, key=lambda name: results[name][TRACE])
    control = max(abs(r[CONTROL] - 1) for r in results.values())
    verdicts = [
        Verdict(f"{text}: geometric mean at most 1.20", f"{mean:.3f}", mean <= 1.20),
        Verdict(f"{text}: geometric mean at most 1.12 (aim)", f"{mean:.3f}", mean <= 1.12),
        Verdict(f"{text}: none above 1.40", f"{results[worst][TRACE]:.3f} ({worst})", results[worst][TRACE] <= 1.40),
        Verdict(f"{text}: native against native within 1 %", f"{control * 100:.1f} %", control <= 0.01),
    ]
    return lines, verdicts


def totals(bench: TraceBench, capture: Path) -> dict[str, float]:
    sql = (
        "SELECT CAST(SUM(recorded) AS BIGINT) AS recorded, CAST(SUM(dropped) AS BIGINT) AS dropped, "
        "CAST(SUM(stream_bytes) AS BIGINT) AS stream_bytes, CAST(SUM(implied_constant) AS BIGINT) AS implied, "
        "COUNT(*) FILTER (recorded > 0) AS windows FROM windows"
    )
    return {name: float(str(value or 0)) for name, value in bench.table(capture, sql)[0].items()}


def full(bench: TraceBench, programs: list[Program]) -> tuple[list[str], list[Verdict]]:
    """Every access to disk; lackey prints every access as text, here to /dev/null."""
    lackey = shutil.which("valgrind")
    lines = [
        "## Every access to disk", "",
        "One thread, small inputs. `lackey` is `valgrind --tool=lackey --trace-mem=yes`, its text thrown away. For drmemtrace, which is not "
        "run here, its authors give about 33 times native.", "",
        *head(["kernel", "native s", "ratio", "accesses", "million accesses a second", "bytes an access", "dropped", "lackey ratio"]),
    ]  # fmt: skip
    worst, ratios = 0.0, []
    for p in programs:
        options = f"{SMALL[p.name]} --threads 1" if p.threads else SMALL[p.name]
        native, traced = bench.build(p, NATIVE, [], "full-native"), bench.build(p, TRACE, [], "full-trace")
        base = min(sum(bench.run(native, options, None)[0]) for _ in range(bench.rounds))
        best, capture = math.inf, Path()
        for _ in range(max(3, bench.rounds // 2)):
            seconds, _, capture = bench.run(traced, options, "full,on-full=wait")
            best = min(best, sum(seconds))
        found = totals(bench, capture)
        bytes_an_access = windows_size(capture) / max(found["recorded"], 1)
        worst = max(worst, bytes_an_access)
        ratios.append(best / base)
        beside = "–"
        if lackey and p.name in ("bfs", "pr"):  # it takes a thousand times as long
            command = [
                lackey,
                "--tool=lackey",
                "--trace-mem=yes",
                "--log-file=/dev/null",
                str(native),
                *options.split(),
                "--time",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            told = dict(re.findall(r"(\w*seconds)=([0-9.]+)", done.stderr))
            beside = f"{float(told.get('kernel_seconds', told.get('seconds', 'nan'))) / base:.0f}"
        lines.append(
            row([p.name, f"{base:.4f}", f"{best / base:.1f}", f"{int(found['recorded']):,}",
                 f"{found['recorded'] / best / 1e6:.0f}", f"{bytes_an_access:.2f}", f"{int(found['dropped']):,}", beside])
        )  # fmt: skip
        say(lines[-1])
    lines += ["", f"Geometric mean of the ratios: {geometric_mean(ratios):.1f}.", ""]
    return lines, [Verdict("every access: at most 2 bytes an access on disk", f"{worst:.2f} (largest)", worst <= 2)]


def sizes(bench: TraceBench, programs: list[Program]) -> tuple[list[str], list[Verdict]]:
    lines = [
        "## Size on disk",
        "",
        "Windows of 1,000 in 100,000 against every access, one thread, the small inputs.",
        "",
    ]
    lines += head(
        ["kernel", "executed", "sampled: accesses", "bytes", "bytes an access", "full: bytes", "sampled / full"]
    )
    worst = 0.0
    for p in programs:
        options = f"{SMALL[p.name]} --threads 1" if p.threads else SMALL[p.name]
        traced = bench.build(p, TRACE, [], "full-trace")
        whole = windows_size(bench.run(traced, options, "full,on-full=wait")[2])
        capture = bench.run(traced, options, WINDOWS)[2]
        found = totals(bench, capture)
        part = windows_size(capture)
        executed = bench.table(capture, "SELECT CAST(SUM(executed) AS BIGINT) AS n FROM windows")[0]["n"]
        each = part / max(found["recorded"], 1)
        worst = max(worst, each)
        lines.append(
            row([p.name, f"{int(str(executed or 0)):,}", f"{int(found['recorded']):,}", f"{part:,}", f"{each:.2f}", f"{whole:,}",
                 f"{part / whole:.4f}"])
        )  # fmt: skip
    return [*lines, ""], [Verdict("sampled: at most 2 bytes an access on disk", f"{worst:.2f} (largest)", worst <= 2)]


def compile_cost(bench: TraceBench, programs: list[Program]) -> list[str]:
    lines = [
        "## Compiling",
        "",
        "One translation unit and its link, -O2, the least of three; bytes of code (.text) and of the file.",
        "",
    ]
    lines += head(["program", "clang s", "with tracing s", "code bytes", "with tracing", "file bytes", "with tracing"])

    def measure(p: Program, variant: str) -> tuple[float, int, int]:
        best = math.inf
        for _ in range(3):
            begin = time.perf_counter()
            made = bench.build(p, variant, [], f"compile-{'native' if variant == NATIVE else 'trace'}")
            best = min(best, time.perf_counter() - begin)
        listed = subprocess.run(["readelf", "-SW", str(made)], capture_output=True, text=True, check=True).stdout
        text = re.search(r" \.text\s+PROGBITS\s+[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+)", listed)
        return best, int(text[1], 16) if text else 0, made.stat().st_size

    for p in programs:
        plain, traced = measure(p, NATIVE), measure(p, TRACE)
        lines.append(
            row(
                [
                    p.name,
                    f"{plain[0]:.2f}",
                    f"{traced[0]:.2f}",
                    f"{plain[1]:,}",
                    f"{traced[1]:,}",
                    f"{plain[2]:,}",
                    f"{traced[2]:,}",
                ]
            )
        )
    return [*lines, ""]


def classes(bench: TraceBench, programs: list[Program]) -> list[str]:
    """What constants save: executed loads over recorded ones."""
    lines = [
        "## Constants",
        "",
        "Executed accesses over recorded ones: what leaving constants out saves. The paper has 2 at -O0 and 1.2 at -O3.",
        "",
    ]
    lines += head(["kernel", "-O0", "-O3"])
    means: dict[str, list[float]] = {"-O0": [], "-O3": []}
    for p in programs:
        cells = []
        for level in means:
            options = f"{SMALL[p.name]} --threads 1" if p.threads else SMALL[p.name]
            built = bench.build(p, TRACE, [level], f"classes{level}")
            # Everything, not windows: these reach further where there are constants.
            found = totals(bench, bench.run(built, options, "full,on-full=wait")[2])
            ratio = (found["recorded"] + found["implied"]) / max(found["recorded"], 1)
            means[level].append(ratio)
            cells.append(f"{ratio:.2f}")
        lines.append(row([p.name, *cells]))
    lines.append(row(["**geometric mean**", *(f"**{geometric_mean(values):.2f}**" for values in means.values())]))
    return [*lines, ""]


PARTS = ("speed", "full", "sizes", "classes", "compile")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memlens", default="memlens", help="the command")
    parser.add_argument("--output", type=Path, help="page to write (default: standard output)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layouts", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", help="names of programs, joined by commas")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--check", action="store_true", help="status 1 when a verdict fails")
    options = parser.parse_args()
    programs = [p for p in PROGRAMS if not options.only or p.name in options.only.split(",")]
    parts = options.parts.split(",")
    verdicts: list[Verdict] = []
    try:
        with tempfile.TemporaryDirectory(prefix="memlens-trace-") as folder:
            bench = TraceBench(shlex.split(options.memlens), Path(folder), options.rounds, options.layouts)
            shown = " ".join(word for word in sys.argv[1:] if "/" not in word)
            lines = [
                "# Overhead of compile-time tracing",
                "",
                f"Written by `python benchmarks/trace.py {shown}`.",
                "",
                *machine(bench),
            ]
            lines += [
                f"{options.layouts} code layouts, minimum of {options.rounds} interleaved rounds in each, median over the layouts. "
                "Kernels are timed by the programs themselves; traced ones run under `memlens record`.",
                "",
            ]

            def keep() -> None:
                """After each part: what was measured for half an hour is not lost with the next one."""
                if options.output:
                    write_page("\n".join([*lines, *verdict_lines(verdicts)]), options.output)

            if "speed" in parts:
                lines += ["## Speed", ""]
                for count in options.threads.split(","):
                    more, found = speed(bench, programs, int(count))
                    lines += more
                    verdicts += found
                    keep()
            for part, function in (("full", full), ("sizes", sizes)):
                if part in parts:
                    say(part)
                    more, found = function(bench, programs)
                    lines += more
                    verdicts += found
                    keep()
            for part, simple in (("classes", classes), ("compile", compile_cost)):
                if part in parts:
                    say(part)
                    lines += simple(bench, programs)
                    keep()
    except BenchmarkError as error:
        say(f"error: {error}")
        return 2
    write_page("\n".join([*lines, *verdict_lines(verdicts)]), options.output)
    return 1 if options.check and not all(v.holds for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
