"""How exact compiled-in counts are: bytes of each region beside the emulator's count of a plain build.

Each workload is built twice by one clang at -O2: plain, and with ``memlens cc --memlens-functions=REGEX``. ``memlens verify`` runs
the plain one under the emulator and the other natively, with the same functions as regions, and compares bytes read and
written outside the stack; for the graph kernels also the bandwidth. Differences are what a compiler adds after counters are placed (spills, address tables, constants)
and library code. Counts do not vary from run to run, so there are no rounds.

Exit status: 0, with ``--check`` 1 when the mean |error| is above 1 % or the largest above 5 %; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import BenchmarkError, say

REPOSITORY = Path(__file__).resolve().parent.parent
WORKLOADS = REPOSITORY / "workloads"
MEAN_LIMIT_PERCENT, MAX_LIMIT_PERCENT = 1.0, 5.0
BANDWIDTH_LIMIT_PERCENT = 3.0
BANDWIDTH_ROUNDS = 7
MIN_BYTES = 100_000
"""A region with less is named, not judged: the few words that entering it costs weigh more than what it does."""
BAR_CELLS = 40

PROGRAMS: dict[str, tuple[str, str]] = {
    # workload → (arguments, functions that are regions)
    **{f"graph_{name}": ("--scale 14 --iterations 2 --threads 1", "^kernel_") for name in ("bfs", "bc", "cc_sv", "pr", "pr_spmv", "sssp", "tc")},
    "graph_cc": ("--scale 17 --iterations 2 --threads 1", "^kernel_"),  # sorts a fixed number of samples in the C library
    "stream": ("--mib 3 --iterations 2 --threads 1", "^(fill|copy|triad)_part$"),
    "stencil": ("--mib 2 --iterations 2 --threads 1", "^(fill|sweep)_rows$"),
    "matmul": ("--mib 1 --iterations 1 --threads 1", "^(multiply_block|fill_matrix)$"),
    "pointer_chase": ("--mib 1 --iterations 4", "^(chase|number_nodes|shuffle_into_one_cycle)$"),
    "graph_search": ("--mib 1 --iterations 1", "^(build_graph|search)$"),
    "region_counts": ("--n 100000 --iterations 2", "^kernel_"),
    "uneven_threads": ("--n 2000 --iterations 2", "^sum_row$"),
    "scalar_floats": ("--iterations 10", "^dot_in_"),
}  # fmt: skip


BANDWIDTH: dict[str, str] = {
    # kernel → arguments that make it run some tenths of a second
    "bfs": "--scale 16 --iterations 100", "bc": "--scale 16 --iterations 16", "cc": "--scale 16 --iterations 80",
    "cc_sv": "--scale 16 --iterations 8", "pr": "--scale 16 --iterations 100", "pr_spmv": "--scale 16 --iterations 100",
    "sssp": "--scale 16 --iterations 16", "tc": "--scale 16 --iterations 2",
}  # fmt: skip


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise BenchmarkError(f"{shlex.join(command)}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return done


def regions_of(memlens: list[str], compiler: list[str], workload: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of (region, exact bytes, claimed bytes)."""
    arguments, functions = PROGRAMS[workload]
    source = next(path for path in WORKLOADS.glob(f"{workload}.c*") if path.suffix in (".c", ".cpp"))
    plain, counted = folder / f"{workload}-plain", folder / f"{workload}-counted"
    flags = ["-O2", "-g", str(source), "-lpthread", "-lm", "-o"]
    run([*compiler, "--memlens=none", *flags, str(plain)])
    run([*compiler, f"--memlens-functions={functions}", *flags, str(counted)])
    done = run(
        [
            *memlens,
            "verify",
            "--json",
            "--functions",
            functions,
            str(plain),
            str(counted),
            "--",
            *shlex.split(arguments),
        ]
    )
    (claim,) = json.loads(done.stdout)["claims"]
    if claim["how"] != "counted by itself":
        raise BenchmarkError(f"{workload}: the claim was {claim['how']}")
    sums: dict[str, dict[str, Any]] = {}
    for row in claim["tables"]["by_region"]:
        if row["quantity"] in ("read_bytes", "written_bytes"):
            empty = dict.fromkeys(("exact", "claimed", "exact_all", "claimed_all"), 0)
            region = sums.setdefault(row["region"], {"workload": workload, "region": row["region"], **empty})
            suffix = "_all" if row["scope"] == "all" else ""
            region[f"exact{suffix}"] += row["exact"] or 0
            region[f"claimed{suffix}"] += row["claimed"] or 0
    for row in claim["tables"]["explained"]:
        if row["category"] == "library" and row["region"] in sums:
            region = sums[row["region"]]
            region["library"] = region.get("library", 0) + row["read_bytes"] + row["written_bytes"]
    for region in sums.values():
        for suffix in ("", "_all"):
            exact, claimed = region[f"exact{suffix}"], region[f"claimed{suffix}"]
            region[f"error_percent{suffix}"] = (claimed - exact) * 100 / exact if exact else None
    return list(sums.values())


def bandwidth_of(memlens: list[str], compiler: list[str], kernel: str, folder: Path) -> dict[str, Any]:
    """Access bandwidth that memlens reports, beside the emulator's bytes over the kernel's time in a plain build."""
    source, arguments = WORKLOADS / f"graph_{kernel}.c", shlex.split(BANDWIDTH[kernel])
    plain, counted, capture = folder / "plain", folder / "counted", folder / "c.memlens"
    flags = ["-O2", "-g", str(source), "-lpthread", "-lm", "-o"]
    run([*compiler, "--memlens=none", *flags, str(plain)])
    run([*compiler, *flags, str(counted)])
    judged = json.loads(run([*memlens, "verify", "--json", str(plain), str(counted), "--", *arguments]).stdout)[
        "claims"
    ][0]
    exact = sum(
        row["exact"]
        for row in judged["tables"]["by_region"]
        if row["region"] == kernel
        and row["scope"] == "heap_and_global"
        and row["quantity"] in ("read_bytes", "written_bytes")
    )
    native_s, best = float("inf"), None
    for _ in range(BANDWIDTH_ROUNDS):
        done = run([str(plain), *arguments, "--time"])
        native_s = min(native_s, float(re.search(r"kernel_seconds=([0-9.]+)", done.stderr)[1]))  # type: ignore[index]
        run(
            [
                *memlens,
                "record",
                "-q",
                "--force",
                "--collectors",
                "count",
                "--count=every=2",
                "-o",
                str(capture),
                "--",
                str(counted),
                *arguments,
            ]
        )
        found = json.loads(run([*memlens, "report", "--json", str(capture)]).stdout)["results"]["bandwidth"]
        row = next(row for row in found["tables"]["by_region"] if row["region"] == kernel and not row["exclusive"])
        if best is None or row["wall_ns"] < best["wall_ns"]:
            best = row
    assert best is not None
    judge = exact / native_s
    heap = 1 - best["stack_share"]
    return {
        "kernel": kernel, "native_s": native_s, "region_s": best["wall_ns"] * 1e-9, "judge": judge,
        "raw": best["bytes_per_second"] * heap, "corrected": best["corrected_bytes_per_second"] * heap,
    }  # fmt: skip


def bar(percent: float, top: float) -> str:
    cells = round(BAR_CELLS * min(abs(percent) / top, 1.0)) if top else 0
    return "█" * cells or "▏"


def page(rows: list[dict[str, Any]], bandwidths: list[dict[str, Any]], machine: str) -> str:
    judged = [row for row in rows if row["exact"] >= MIN_BYTES and row["error_percent"] is not None]
    errors = [abs(row["error_percent"]) for row in judged]
    top = max(errors, default=0.0)
    lines = [
        "# Accuracy of compiled-in counts",
        "",
        "<!-- written by make bench-accuracy (benchmarks/count_accuracy.py); do not edit -->",
        "",
        "Bytes that each region reads and writes outside the stack: counted by the program itself (`memlens cc`), beside the emulator's",
        "exact count of a plain build by the same compiler at -O2. Negative: fewer were counted than moved. Stack is the thread's",
        "under the emulator, the running function's own frame in counts; with it, the emulator also has spilled registers and return addresses. Bytes in libraries are part of the",
        "exact count; the program counts those of copies and fills of known size, and lists the other calls as unseen.",
        "Counts are IR-exact ([bandwidth.md](bandwidth.md)). These are memlens's own workloads; [accuracy-count-packages.md](accuracy-count-packages.md)",
        "has programs of others, whose functions differ by more where instruction selection changes loads.",
        "",
        f"Mean |error| over {len(judged)} regions: **{sum(errors) / len(errors):.3f} %**, largest **{top:.3f} %**."
        if errors
        else "Nothing was measured.",
        f"Measured {datetime.date.today().isoformat()} on {machine}.",
        "",
        "```text",
    ]
    for row in judged:
        label = f"{row['workload']} {row['region']}"
        lines.append(f"{label:<44} {row['error_percent']:+8.3f} % {bar(row['error_percent'], max(top, 0.1))}")
    lines += [
        "```",
        "",
        "| workload | region | exact bytes | of them in libraries | counted bytes | error | with the stack |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = "–" if row["error_percent"] is None else f"{row['error_percent']:+.3f} %"
        whole = "–" if row["error_percent_all"] is None else f"{row['error_percent_all']:+.3f} %"
        small = "" if row["exact"] >= MIN_BYTES else " (too small to judge)"
        lines.append(
            f"| {row['workload']} | `{row['region']}` | {row['exact']:,} | {row.get('library', 0):,} | {row['claimed']:,} | {shown}{small} | {whole} |"
        )
    if bandwidths:
        lines += [
            "",
            "## Bandwidth",
            "",
            f"Access bandwidth of the region that memlens reports, outside the stack, beside the emulator's bytes over the kernel's own time in a plain build. Every other execution of the region is counted, the others run untouched and give the time (PageRank's region is executed once: calibrated); least time of {BANDWIDTH_ROUNDS} interleaved runs each.",
            f"Mean |error|: **{mean_error(bandwidths, 'corrected'):.2f} %** (without the correction for the cost of counting {mean_error(bandwidths, 'raw'):.2f} %).",
            "",
            "| kernel | native s | region s | exact GB/s | reported GB/s | error | uncorrected |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in bandwidths:
            lines.append(
                f"| {row['kernel']} | {row['native_s']:.3f} | {row['region_s']:.3f} | {row['judge'] / 1e9:.3f} | {row['corrected'] / 1e9:.3f} | "
                f"{(row['corrected'] / row['judge'] - 1) * 100:+.2f} % | {(row['raw'] / row['judge'] - 1) * 100:+.2f} % |"
            )
    return "\n".join(lines) + "\n"


def mean_error(rows: list[dict[str, Any]], which: str) -> float:
    return sum(abs(row[which] / row["judge"] - 1) for row in rows) / len(rows) * 100


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compares compiled-in counts with the emulator's.")
    parser.add_argument("--memlens", default="memlens", help="command to run")
    parser.add_argument("--compiler", help="command that compiles (default: MEMLENS cc)")
    parser.add_argument("--output", help="page to write")
    parser.add_argument("--check", action="store_true", help="exit 1 when errors are above the limits")
    parser.add_argument("--only", metavar="A,B", help="only these workloads")
    options = parser.parse_args(arguments)
    memlens = shlex.split(options.memlens)
    compiler = shlex.split(options.compiler) if options.compiler else [*memlens, "cc"]
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for workload in options.only.split(",") if options.only else PROGRAMS:
        say(workload)
        with tempfile.TemporaryDirectory(prefix="memlens-") as folder:
            try:
                rows += regions_of(memlens, compiler, workload, Path(folder))
            except (BenchmarkError, OSError, subprocess.TimeoutExpired) as error:
                failed.append(workload)
                say(f"  left out: {error}")
    judged = [
        abs(row["error_percent"]) for row in rows if row["exact"] >= MIN_BYTES and row["error_percent"] is not None
    ]
    if not judged:
        say("nothing could be measured: is memlens cc there, and qemu-user?")
        return 2
    bandwidths = []
    if not options.only:
        for kernel in BANDWIDTH:
            say(f"bandwidth of {kernel}")
            with tempfile.TemporaryDirectory(prefix="memlens-") as folder:
                bandwidths.append(bandwidth_of(memlens, compiler, kernel, Path(folder)))
    text = page(rows, bandwidths, f"{platform.machine()}, Linux {platform.release()}")
    if options.output:
        Path(options.output).write_text(text)
        say(f"wrote {options.output}")
    else:
        sys.stdout.write(text)
    mean, largest = sum(judged) / len(judged), max(judged)
    bad = mean > MEAN_LIMIT_PERCENT or largest > MAX_LIMIT_PERCENT or bool(failed)
    if bandwidths:
        bad |= mean_error(bandwidths, "corrected") > BANDWIDTH_LIMIT_PERCENT
        say(f"bandwidth: mean |error| {mean_error(bandwidths, 'corrected'):.2f} % (limit {BANDWIDTH_LIMIT_PERCENT} %)")
    say(
        f"mean |error| {mean:.3f} % (limit {MEAN_LIMIT_PERCENT} %), largest {largest:.3f} % (limit {MAX_LIMIT_PERCENT} %)"
    )
    return 1 if options.check and bad else 0


if __name__ == "__main__":
    sys.exit(main())
