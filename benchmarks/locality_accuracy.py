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
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import BenchmarkError

from memlens.analyses._agreement import Agreement, class_agreement
from memlens.analyses.data_locality import locality
from memlens.analyses.validation import validate
from memlens.capture.machine import cpu_model
from memlens.capture.reader import open_capture
from memlens.results import Result

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "bfs": ("graph_bfs.c", "--scale 13 --iterations 6"),
    "cc": ("graph_cc.c", "--scale 13 --iterations 3"),
    "pr": ("graph_pr.c", "--scale 13 --iterations 4"),
    "sssp": ("graph_sssp.c", "--scale 12 --iterations 2"),
    "tc": ("graph_tc.c", "--scale 11 --iterations 1"),
    "stream": ("stream.c", "--mib 2 --iterations 3"),
    "stencil": ("stencil.c", "--mib 2 --iterations 4"),
    "hash map": ("hash_map.cpp", "--mib 2 --iterations 2"),
    "pointer chase": ("pointer_chase.c", "--mib 2 --iterations 20"),
}
"""About two million accesses each: seconds."""
WINDOW, PERIOD = 128, 12_800
WINDOW_LIMIT, FUNCTION_LIMIT = 10.0, 3.0
"""Mean absolute percentage errors that are wanted."""
KINDS = {"footprint": "F", "footprint_strided": "F_str", "footprint_irregular": "F_irr"}
CODE = {"window_growth": "F", "window_growth_strided": "F_str", "window_growth_irregular": "F_irr"}


@dataclass
class Judged:
    name: str
    options: str
    result: Result
    recorded: dict[str, float | None]
    """Errors of the recorder's own windows, by kind."""
    agreement: Agreement


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchmarkError(f"{shlex.join(command)}\n  status {done.returncode}: {done.stderr[-500:]}")


def judge(name: str, memlens: list[str], folder: Path, seeds: int) -> Judged:
    source, options = PROGRAMS[name]
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
    return Judged(name, options, result, recorded_errors(capture, open_capture(sampled)), class_agreement(capture))


def recorded_errors(full: Any, sampled: Any) -> dict[str, float | None]:
    """What the recorder's own sample says of the program, against all windows of the whole trace."""
    from memlens.capture.drawing import DrawnAccesses

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


def page(judged: list[Judged], seeds: int, verdicts: list[tuple[str, str, bool]]) -> str:
    machine = [["processor", cpu_model()], ["cores", str(os.cpu_count())], ["kernel", platform.release()],
               ["date", datetime.date.today().isoformat()]]  # fmt: skip
    windows, functions, recorded, across, held, classes = [], [], [], [], [], []
    for one in judged:
        figures, result = one.result.figures, one.result
        windows.append([one.name, one.options, f"{figures['recorded_accesses']:,}",
                        *(percent(figures[f"window_mape_percent_{kind}"]) for kind in KINDS)])  # fmt: skip
        count = sum(
            1 for row in result.tables["functions"].to_pylist() if row["metric"] == "window_growth" and row["judged"]
        )
        functions.append([one.name, str(count), *(percent(v) for v in function_errors(result).values()),
                          percent(figures.get("function_mape_percent_reuse_distance_mean"))])  # fmt: skip
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

Sampled traces of 1 % ({WINDOW} accesses in {PERIOD:,}), {seeds} drawn from each whole trace by [memlens validate](reference/commands.md). Errors are mean
absolute percentage errors (MAPE). A class with under 1 % of the footprint, and a function with under 1 % of the accesses or too few windows, is not judged (–).

{table(["claim", "measured", "holds"], [[a, b, "yes" if c else "**no**"] for a, b, c in verdicts])}

## Windows

Mean footprint of windows of 16, 32, … {WINDOW} accesses, MAPE over sizes and samples.

{table(["workload", "options", "accesses", *KINDS.values()], windows)}

## Functions

Footprint of a function's accesses within windows, over its accesses; every judged function counts alike. D is the mean reuse distance within windows.

{table(["workload", "functions", *CODE.values(), "D"], functions)}

Beyond {FUNCTION_LIMIT:g} %, with the part of the function's footprint that the class has. Where the intervals hold, the error is
within what they state: too few windows. Where most do not hold, the cause is not known (a bias, or a short phase that most samples miss).

{table(["workload", "function", "class", "of its F", "error", "bias", "intervals that hold"], missed(judged)) if missed(judged) else "None."}

The same of the whole program, from one run that was recorded in windows instead (`memlens record --trace=window={WINDOW},period={PERIOD}`): nothing was drawn afterwards.

{table(["workload", *CODE.values()], recorded)}

## More than a window

The paper scales the footprint of windows by rho = executed : recorded accesses. That is right where data is new, and too much where it is used again,
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


def judge_limits(judged: list[Judged]) -> list[tuple[str, str, bool]]:
    verdicts = []
    for kind, name in KINDS.items():
        errors = [(one.result.figures[f"window_mape_percent_{kind}"], one.name) for one in judged]
        known = [(error, where) for error, where in errors if error is not None]
        worst = max(known)
        verdicts.append(
            (
                f"{name} of windows within {WINDOW_LIMIT:g} %",
                f"at most {worst[0]:.1f} % ({worst[1]})",
                worst[0] <= WINDOW_LIMIT,
            )
        )
    for name in CODE.values():
        known = [(error, one.name) for one in judged if (error := function_errors(one.result)[name]) is not None]
        worst, mean = max(known), sum(error for error, _ in known) / len(known)
        verdicts.append((f"{name} of functions within {FUNCTION_LIMIT:g} %", f"mean {mean:.1f} %, at most {worst[0]:.1f} % ({worst[1]})",
                         worst[0] <= FUNCTION_LIMIT))  # fmt: skip
    intervals = sum(one.result.figures["intervals"] for one in judged)
    covered = sum(one.result.figures["covered_percent"] * one.result.figures["intervals"] for one in judged) / intervals
    verdicts.append(("95 % intervals hold in at least 90 %", f"{covered:.1f} % of {intervals:,}", covered >= 90))
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memlens", default=f"{sys.executable} -m memlens")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    judged = []
    try:
        for name in PROGRAMS:
            if options.only and name not in options.only.split(","):
                continue
            with tempfile.TemporaryDirectory(prefix="memlens-accuracy-") as folder:
                judged.append(judge(name, shlex.split(options.memlens), Path(folder), options.seeds))
            figures = judged[-1].result.figures
            print(name, *(percent(figures[f"window_mape_percent_{kind}"]) for kind in KINDS),
                  *(percent(v) for v in function_errors(judged[-1].result).values()), percent(judged[-1].agreement.agreed_percent),
                  file=sys.stderr, flush=True)  # fmt: skip
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    verdicts = judge_limits(judged)
    text = page(judged, options.seeds, verdicts)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    return 1 if options.check and not all(holds for _, _, holds in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
