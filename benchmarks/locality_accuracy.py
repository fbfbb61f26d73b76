"""How far sampled traces are from whole ones, and inferred classes from static ones: python benchmarks/locality_accuracy.py --output docs/locality-accuracy.md

Each workload is built with ``memlens cc --memlens=trace`` and recorded with every access, once; sampled traces of 1 % are drawn from that
(``memlens validate``), and the same workload is recorded in windows once more, so that what the recorder draws is judged too.

Exit status: 0, with ``--check`` 1 when a limit is missed; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _common import BenchmarkError

from memlens.analyses._agreement import Agreement, class_agreement
from memlens.analyses.data_locality import locality
from memlens.analyses.validation import validate
from memlens.capture.model.drawing import DrawnAccesses
from memlens.capture.model.locality import ThreadAccesses
from memlens.capture.reader import open_capture
from memlens.capture.store.machine import cpu_model
from memlens.results import Result

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "bfs": ("graph_bfs.c", "--scale 13 --iterations 6", "--scale 16 --iterations 100"),
    "cc": ("graph_cc.c", "--scale 13 --iterations 3", "--scale 16 --iterations 6"),
    "pr": ("graph_pr.c", "--scale 13 --iterations 4", "--scale 16 --iterations 4"),
    "sssp": ("graph_sssp.c", "--scale 12 --iterations 2", "--scale 16 --iterations 2"),
    "tc": ("graph_tc.c", "--scale 11 --iterations 1", "--scale 14 --iterations 1"),
    "stream": ("stream.c", "--mib 2 --iterations 3", "--mib 16 --iterations 3"),
    "stencil": ("stencil.c", "--mib 2 --iterations 4", "--mib 24 --iterations 4"),
    "hash map": ("hash_map.cpp", "--mib 2 --iterations 2", "--mib 16 --iterations 2"),
    "pointer chase": ("pointer_chase.c", "--mib 2 --iterations 20", "--mib 24 --iterations 60"),
}
"""Source, options of a short run (about two million accesses) and of a long one: the same functions and phases with more windows each, so that every
judged function has `ENOUGH` of them."""
ENOUGH = 100
"""Windows of the smallest judged function in a sample of a long trace."""
WINDOW, PERIOD = 128, 12_800
MANY = 100
LEAST_HELD = 0.9
"""Of intervals that are said to hold in 95 %."""
WINDOW_LIMIT, FUNCTION_LIMIT = 10.0, 3.0
"""Mean absolute percentage errors that are wanted."""
KINDS = {"footprint": "F", "footprint_strided": "F_str", "footprint_irregular": "F_irr"}
CODE = {"window_growth": "F", "window_growth_strided": "F_str", "window_growth_irregular": "F_irr"}


@dataclass
class Judged:
    name: str
    options: str
    windows: int
    """Of one drawn trace."""
    result: Result
    recorded: dict[str, float | None]
    """Errors of the recorder's own windows, by kind."""
    agreement: Agreement
    biases: list[list[str]]
    phases: list[list[str]]
    """Of functions whose intervals hold too seldom: short loops of them, and intervals by how many of these a sample met."""


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchmarkError(f"{shlex.join(command)}\n  status {done.returncode}: {done.stderr[-500:]}")


def judge(name: str, options: str, memlens: list[str], folder: Path, seeds: int) -> Judged:
    source = PROGRAMS[name][0]
    program, full, sampled = folder / "program", folder / "full.memlens", folder / "sampled.memlens"
    driver = "c++" if source.endswith(".cpp") else "cc"
    run(
        [
            *memlens,
            driver,
            "--memlens=trace",
            "-O2",
            "-g",
            str(REPOSITORY / "workloads" / source),
            "-o",
            str(program),
            "-pthread",
            "-lm",
        ]
    )
    record = [*memlens, "record", "-q", "--force", "--collectors", "trace"]
    run([*record, "--trace=full,on-full=wait", "-o", str(full), "--", str(program), *options.split()])
    run(
        [
            *record,
            f"--trace=window={WINDOW},period={PERIOD},on-full=wait",
            "-o",
            str(sampled),
            "--",
            str(program),
            *options.split(),
        ]
    )
    capture = open_capture(full)
    result = validate(capture, window=WINDOW, period=PERIOD, seeds=seeds)
    windows = result.figures["executed_accesses"] // PERIOD
    return Judged(
        name,
        options,
        windows,
        result,
        recorded_errors(capture, open_capture(sampled)),
        class_agreement(capture),
        [],
        [],
    )


def biases(name: str, short: Judged, capture: Any) -> tuple[list[list[str]], list[list[str]]]:
    """Functions and classes beyond the limit, drawn many times: whether the mean error differs from zero; and of those whose intervals hold too
    seldom, what short phases have to do with it."""
    beyond = {(r["function"], r["metric"]) for r in short.result.tables["functions"].to_pylist()
              if r["judged"] and r["metric"] in CODE and r["mape_percent"] > FUNCTION_LIMIT}  # fmt: skip
    if not beyond:
        return [], []
    many: dict[tuple[str, str], list[float]] = {}
    held: dict[tuple[str, str], int] = {}
    windows: dict[tuple[str, str], int] = {}
    options: dict[str, Any] = {"by": ["function", "loop"], "heat_columns": 0}
    batches = list(ThreadAccesses(capture).batches(constants=True))
    tiled = locality(capture, accesses=DrawnAccesses.tiled(capture, WINDOW, source=batches), **options)
    truth = {r["function"]: r for r in tiled.tables["by_function"].to_pylist()}
    met: dict[tuple[str, str], list[tuple[int, bool]]] = {}
    for seed in range(MANY):
        drawn = locality(
            capture, accesses=DrawnAccesses.drawn(capture, WINDOW, PERIOD, seed=seed, source=batches), **options
        )
        loops = {(r["function"], r["loop"]) for r in drawn.tables["by_loop"].to_pylist()}
        for row in drawn.tables["by_function"].to_pylist():
            for key in ((row["function"], metric) for metric in CODE):
                if key not in beyond or row[key[1]] is None or row["under_sampled"]:
                    continue
                true, low, high = truth[key[0]][key[1]], row[f"{key[1]}_low"], row[f"{key[1]}_high"]
                many.setdefault(key, []).append(100 * (row[key[1]] / true - 1))
                holds = low is not None and low <= true <= high
                held[key] = held.get(key, 0) + holds
                short_ones = short_loops(tiled, key)
                met.setdefault(key, []).append((sum((key[0], loop) in loops for loop in short_ones), holds))
                windows[key] = windows.get(key, 0) + row["windows"]
    rows = []
    for key, errors in many.items():
        n = len(errors)
        mean, spread = statistics.mean(errors), statistics.stdev(errors)
        rows.append([name, key[0].split("::")[-1], CODE[key[1]], f"{windows[key] / n:.0f}", percent(statistics.mean(map(abs, errors))),
                     f"{mean:+.1f} ± {spread / n**0.5:.1f} %", f"{held[key]} of {n}"])  # fmt: skip
    seldom = [key for key in many if held[key] < LEAST_HELD * len(many[key])]
    return rows, [phase_row(name, key, tiled, met[key], capture, batches, truth[key[0]][key[1]]) for key in seldom]


def short_loops(tiled: Result, key: tuple[str, str]) -> dict[str, float]:
    """Loops of a function that are over in less than a period and all of the class: name → length in periods."""
    function, metric = key
    rows = [row for row in tiled.tables["by_loop"].to_pylist() if row["function"] == function and row["loop"]]
    nests = {row["loop_parent"] for row in rows}  # go on as long as what is inside them
    return {r["loop"]: r["executed"] / PERIOD for r in rows
            if r["loop"] not in nests and r["executed"] < PERIOD and (r[metric] or 0) > 0.9 * r["window_growth"]}  # fmt: skip


def phase_row(name: str, key: tuple[str, str], tiled: Result, met: list[tuple[int, bool]], capture: Any, batches: list[Any], true: float) -> list[str]:  # fmt: skip
    """Intervals of one figure by how many of the short loops a sample met, and with windows ten times as dense, which meet each of them."""
    loops = short_loops(tiled, key)
    parts = []
    for count in sorted({count for count, _ in met}):
        mine = [holds for number, holds in met if number == count]
        parts.append(f"{count} of them: {sum(mine)} of {len(mine)}")
    dense = 0
    for seed in range(MANY):
        drawn = DrawnAccesses.drawn(capture, WINDOW, PERIOD // 10, seed=seed, source=batches)
        row = next(r for r in locality(capture, accesses=drawn, by="function", heat_columns=0).tables["by_function"].to_pylist()
                   if r["function"] == key[0])  # fmt: skip
        dense += row[f"{key[1]}_low"] <= true <= row[f"{key[1]}_high"]
    return [name, key[0].split("::")[-1], CODE[key[1]], ", ".join(f"{loop} ({length:.2f})" for loop, length in loops.items()),
            "; ".join(parts), f"{dense} of {MANY}"]  # fmt: skip


def recorded_errors(full: Any, sampled: Any) -> dict[str, float | None]:
    """What the recorder's own sample says of the program, against all windows of the whole trace."""
    options: dict[str, Any] = {"by": "program", "heat_columns": 0}
    truth = locality(full, accesses=DrawnAccesses.tiled(full, WINDOW), **options).tables["by_program"].to_pylist()[0]
    found = locality(sampled, **options).tables["by_program"].to_pylist()[0]
    return {
        metric: 100 * (found[metric] / truth[metric] - 1)
        if truth[metric] and truth[metric] >= 0.01 * truth["window_growth"] and found[metric] is not None else None
        for metric in CODE
    }  # fmt: skip


def percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:+.1f} %" if signed else f"{value:.1f} %"


def table(titles: list[str], rows: list[list[str]]) -> str:
    sides = ["---", *(["---:"] * (len(titles) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, sides, *rows))


def function_errors(result: Result) -> dict[str, float | None]:
    """MAPE over judged functions, each function weighed alike."""
    return {kind: result.figures.get(f"function_mape_percent_{metric}") for metric, kind in CODE.items()}


def weighed_errors(result: Result) -> dict[str, float | None]:
    """Errors of judged functions, each by its part of the footprint: how far the footprints are off in all."""
    found: dict[str, float | None] = {}
    for metric, kind in CODE.items():
        rows = [r for r in result.tables["functions"].to_pylist() if r["metric"] == metric and r["judged"]]
        weight = sum(r["share"] * r["truth"] for r in rows)
        found[kind] = sum(r["share"] * r["truth"] * r["mape_percent"] for r in rows) / weight if weight else None
    return found


def stated_rows(short: list[Judged], judged: list[Judged]) -> list[list[str]]:
    """Functions and classes by how wide their stated intervals are: what errors they have."""
    rows = []
    for least, most in pairwise((0.0, 2.0, 5.0, 10.0, 25.0, float("inf"))):
        mine = [[r for one in ones for r in one.result.tables["functions"].to_pylist()
                 if r["judged"] and r["metric"] in CODE and r["stated_percent"] is not None and least <= r["stated_percent"] < most]
                for ones in (short, judged)]  # fmt: skip
        both = mine[0] + mine[1]
        if not both:
            continue
        held = 100 * sum(r["covered"] for r in both) / sum(r["intervals"] for r in both)
        name = f"{least:g} to {most:g} %" if most < float("inf") else f"over {least:g} %"
        rows.append([name, *(f"{len(r)}" for r in mine), percent(statistics.mean(r["stated_percent"] for r in both)),
                     percent(statistics.mean(r["mape_percent"] for r in both)), percent(max(r["mape_percent"] for r in both)), percent(held)])  # fmt: skip
    return rows


def length_rows(short: list[Judged], judged: list[Judged]) -> list[list[str]]:
    """Errors of functions, one class after the other: of the short traces, of the long ones, and what more windows alone would make of the former."""
    rows = []
    for less, more in zip(short, judged, strict=True):
        before, after, root = (
            function_errors(less.result),
            function_errors(more.result),
            (less.windows / more.windows) ** 0.5,
        )
        cells = []
        for kind in CODE.values():
            was, now = before[kind], after[kind]
            cells.append("–" if was is None or now is None else f"{was:.1f} → {now:.1f} % ({was * root:.1f})")
        rows.append([less.name, f"{less.windows:,} → {more.windows:,}", *cells])
    return rows


def page(short: list[Judged], judged: list[Judged], seeds: int, verdicts: list[tuple[str, str, str, bool]]) -> str:
    enough = "" if all(smallest(one)[0] >= ENOUGH for one in judged) else " (not all have)"
    machine = [["processor", cpu_model()], ["cores", str(os.cpu_count())], ["kernel", platform.release()],
               ["date", datetime.date.today().isoformat()]]  # fmt: skip
    windows, functions, recorded, across, held, classes = [], [], [], [], [], []
    phases = [row for one in short for row in one.phases]
    for one in judged:
        figures, result = one.result.figures, one.result
        windows.append([one.name, one.options, f"{figures['recorded_accesses']:,}",
                        *(percent(figures[f"window_mape_percent_{kind}"]) for kind in KINDS)])  # fmt: skip
        count = sum(
            1 for row in result.tables["functions"].to_pylist() if row["metric"] == "window_growth" and row["judged"]
        )
        functions.append([one.name, str(count), f"{smallest(one)[0]:.0f} ({smallest(one)[1]})", *(percent(v) for v in function_errors(result).values()),
                          percent(figures.get("function_mape_percent_window_reuse_distance_mean"))])  # fmt: skip
        recorded.append([one.name, *(percent(one.recorded[metric], signed=True) for metric in CODE)])
        spans = [row for row in result.tables["window_sizes"].to_pylist() if row["where"] == "across windows"]
        across.append(
            [
                one.name,
                *(percent(row["bias_percent"], signed=True) for row in (spans[0], spans[len(spans) // 2], spans[-1])),
            ]
        )
        held.append([one.name, f"{figures['intervals']:,}", percent(figures["covered_percent"])])
        pairs = one.agreement
        stays = sum(s["accesses"] for s in pairs.sites if s["stride_bytes"] == 0 and s["inferred"] == "constant")
        classes.append([one.name, percent(pairs.agreed_percent), percent(100 * stays / pairs.total),
                        percent(pairs.percent("strided", "constant") - 100 * stays / pairs.total),
                        percent(pairs.percent("strided", "irregular")), percent(pairs.percent("irregular", "strided")),
                        percent(pairs.percent("irregular", "constant"))])  # fmt: skip
    return f"""# Accuracy of sampled traces

<!-- written by make bench-locality-accuracy (benchmarks/locality_accuracy.py); do not edit -->

{table(["machine", ""], machine)}

Sampled traces of 1 % ({WINDOW} accesses in {PERIOD:,}), {seeds} of each whole trace by [memlens validate](reference/commands.md). Errors are mean
absolute percentage errors (MAPE). A class with under 1 % of the footprint, and a function with under 1 % of the accesses or too few windows, is not judged (–).

Each program ran twice: with a short trace of about two million accesses, and with a long one, the same functions and phases with more windows.
The long traces are judged. They are as long as it takes for every judged function to have at least {ENOUGH} windows in a sample{enough}; the fewest are in the
table of [functions](#functions). A function counts like any other, however small, unless weighed by its part of the footprint; what makes errors of small ones large is [below](#why-errors-of-functions-are-large).

Before, traces were 10 to 50 million accesses long, and F_irr of functions missed 3 % in one of the programs: 7.6 % in bfs (6 searches, 20 million accesses), by 29 % of `step_down`, which had about 30 windows. Nothing but the length of
the traces of bfs, cc, stencil and pointer chase was changed; with it `number_nodes` of pointer chase (2.3 % of the accesses, 21 windows) fell below 1 % and is judged no more.

{table(["claim", "short traces", "long traces", "holds"], [[a, b, c, "yes" if d else "**no**"] for a, b, c, d in verdicts])}

## Windows

Mean footprint of windows of 16, 32, … {WINDOW} accesses, MAPE over sizes and samples.

{table(["workload", "options", "accesses", *KINDS.values()], windows)}

## Functions

Footprint of a function's accesses within windows, over its accesses; every judged function counts alike. D is the mean reuse distance within windows.

{table(["workload", "functions", "fewest windows", *CODE.values(), "D"], functions)}

Of single functions beyond {FUNCTION_LIMIT:g} %, with the part of the function's footprint that the class has. Where the intervals hold, the error is
within what they state: too few windows.

{table(["workload", "function", "class", "of its F", "error", "bias", "intervals that hold"], missed(judged)) if missed(judged) else "None."}

### Why errors of functions are large

Mostly few windows. Mean error of what is beyond {FUNCTION_LIMIT:g} % in the short traces, over {MANY} sampled traces, with its standard error; samples in which the function is under-sampled are left out. A bias
shows as more than about two standard errors, where chance puts one row of twenty. A ratio of sums has a bias of its own that falls with the number of windows, so rows with few windows may show one:

{table(["workload", "function", "class", "windows", "error", "bias", "intervals that hold"], [row for one in short for row in one.biases])}

Intervals that hold in fewer than {100 * LEAST_HELD:.0f} % of the samples are those of functions with short phases: loops that are over in a part of a period, and have nothing but the class. A sample meets such a loop as a whole or not at all; one
that meets none gives too small a figure without any sign of it. Below, the loops with their length in periods, the intervals that hold among samples that met none, one, … of them, and those of samples with ten times as many windows, which meet all.
By loop (`by="loop"`) a phase that was met is a row of its own, which says that it is under-sampled. Tried, and not enough: an interval by the effective number of differences (Satterthwaite) held in 70 % instead of 67 % in sssp's short trace and in 89 % instead of 82 % in tc's,
because samples that meet no phase have none to go by.

{table(["workload", "function", "class", "loops, in periods", "intervals that hold, by loops met", "ten times as dense"], phases) if phases else "None."}

Errors of functions in the short trace and in the long one; in brackets what the short trace's error becomes if it falls with the square root of the number of
windows. Where the long trace has functions more that are judged, their errors are in it too.

{table(["workload", "windows", *CODE.values()], length_rows(short, judged))}

memlens says which figures these are. Functions and classes by half the width of their stated 95 % interval, short and long traces; an unbiased figure has a mean absolute error of about
0.4 of it. A class that is rare in a small function differs much from window to window. The paper puts whole traces of its graph programs at the order of 1 TB and does not say how many windows its functions have.

{table(["stated", "short", "long", "mean stated", "mean error", "greatest error", "intervals that hold"], stated_rows(short, judged))}

### Recorded in windows

The same of the whole program, from one run that was recorded in windows instead (`memlens record --trace=window={WINDOW},period={PERIOD}`): no samples were taken afterwards.

{table(["workload", *CODE.values()], recorded)}

## More than a window

The paper scales the footprint of windows by rho = executed : recorded accesses. That is right where data is new, and an overestimate where it is reused,
because a sample does not show how often: bias for one period, for the middle size, and for as many periods as fit.

{table(["workload", "one period", "middle", "most"], across)}

So `footprint_estimated` is an upper estimate and `footprint` a lower bound; memlens gives no interval for it. An estimate from how often two windows meet
(capture and recapture) was tried and dropped: data that is used more often than other data made it too small by up to about 90 % on the graph workloads.

## Intervals

How many of the stated 95 % intervals hold the truth (growth, its classes, D and constants; program and functions). One that is off by less than 0.1 % of the truth
counts as holding, and shares of constants are judged from 1 % on.

{table(["workload", "intervals", "hold"], held)}

## Inferred classes

Classes that are inferred from addresses alone, as for emulated and imported traces, against those of the compiler, of all accesses. *Stays* are accesses
whose address stays in the loop around them (strided, step 0) and was the same in the whole run (constant): both are right. Code that the compiler calls irregular because it
sees no loop around it, but that is called with even steps or with one address, is inferred as such: its addresses are.

{table(["workload", "the same", "stays", "strided → constant", "strided → irregular", "irregular → strided", "irregular → constant"], classes)}
"""


def missed(judged: list[Judged]) -> list[list[str]]:
    """Functions and classes beyond the limit: how small they are, and whether their intervals say so."""
    rows = []
    for one in judged:
        found = {(r["function"], r["metric"]): r for r in one.result.tables["functions"].to_pylist() if r["judged"]}
        for (function, metric), row in found.items():
            if metric in CODE and row["mape_percent"] > FUNCTION_LIMIT:
                of = found[function, "window_growth"]["truth"] if (function, "window_growth") in found else row["truth"]
                rows.append([one.name, function.split("::")[-1], CODE[metric], percent(100 * row["truth"] / of), percent(row["mape_percent"]),
                             percent(row["bias_percent"], signed=True), f"{row['covered']} of {row['intervals']}"])  # fmt: skip
    return rows


def judge_limits(short: list[Judged], judged: list[Judged]) -> list[tuple[str, str, str, bool]]:
    """(claim, of the short traces, of the long ones, whether it holds for these)."""
    verdicts = []

    def add(claim: str, measured: list[tuple[str, bool]]) -> None:
        verdicts.append((claim, measured[0][0], measured[1][0], measured[1][1]))

    def worst_window(ones: list[Judged], kind: str) -> tuple[str, bool]:
        known = [
            (error, one.name)
            for one in ones
            if (error := one.result.figures[f"window_mape_percent_{kind}"]) is not None
        ]
        worst = max(known)
        return f"at most {worst[0]:.1f} % ({worst[1]})", worst[0] <= WINDOW_LIMIT

    def worst_function(ones: list[Judged], name: str) -> tuple[str, bool]:
        known = [(error, one.name) for one in ones if (error := function_errors(one.result)[name]) is not None]
        worst, mean = max(known), sum(error for error, _ in known) / len(known)
        return f"mean {mean:.1f} %, at most {worst[0]:.1f} % ({worst[1]})", worst[0] <= FUNCTION_LIMIT

    def worst_weighed(ones: list[Judged], name: str) -> tuple[str, bool]:
        worst = max((error, one.name) for one in ones if (error := weighed_errors(one.result)[name]) is not None)
        return f"at most {worst[0]:.1f} % ({worst[1]})", worst[0] <= FUNCTION_LIMIT

    def held(ones: list[Judged]) -> tuple[str, bool]:
        intervals = sum(one.result.figures["intervals"] for one in ones)
        covered = (
            sum(one.result.figures["covered_percent"] * one.result.figures["intervals"] for one in ones) / intervals
        )
        return f"{covered:.1f} % of {intervals:,}", covered >= 90

    for kind, name in KINDS.items():
        add(f"{name} of windows within {WINDOW_LIMIT:g} %", [worst_window(ones, kind) for ones in (short, judged)])
    for name in CODE.values():
        add(
            f"{name} of functions within {FUNCTION_LIMIT:g} %", [worst_function(ones, name) for ones in (short, judged)]
        )
    for name in CODE.values():
        claim = f"{name} of functions, weighed by footprint, within {FUNCTION_LIMIT:g} %"
        add(claim, [worst_weighed(ones, name) for ones in (short, judged)])
    add("95 % intervals hold in at least 90 %", [held(ones) for ones in (short, judged)])
    return verdicts


def judge_both(name: str, memlens: list[str], seeds: int) -> tuple[Judged, Judged]:
    """The short run and the long one."""
    found = []
    for is_short, arguments in zip((True, False), PROGRAMS[name][1:], strict=True):
        with tempfile.TemporaryDirectory(prefix="memlens-accuracy-") as folder:
            one = judge(name, arguments, memlens, Path(folder), seeds)
            if is_short:
                one.biases, one.phases = biases(name, one, open_capture(Path(folder) / "full.memlens"))
        figures = one.result.figures
        print(name, arguments, *(percent(figures[f"window_mape_percent_{kind}"]) for kind in KINDS),
              *(percent(v) for v in function_errors(one.result).values()), percent(one.agreement.agreed_percent),
              f"{smallest(one)[0]:.0f} windows of {smallest(one)[1]}", file=sys.stderr, flush=True)  # fmt: skip
        found.append(one)
    return found[0], found[1]


def smallest(one: Judged) -> tuple[float, str]:
    """The judged function with fewest windows in a sample."""
    rows = [
        row for row in one.result.tables["functions"].to_pylist() if row["judged"] and row["metric"] == "window_growth"
    ]
    return min((row["windows"], row["function"].split("::")[-1]) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memlens", default=f"{sys.executable} -m memlens")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    names = [name for name in PROGRAMS if not options.only or name in options.only.split(",")]
    count = len(names)
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            pairs = list(pool.map(judge_both, names, [shlex.split(options.memlens)] * count, [options.seeds] * count))
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    short, judged = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    verdicts = judge_limits(short, judged)
    text = page(short, judged, options.seeds, verdicts)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    return 1 if options.check and not all(holds for *_, holds in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
