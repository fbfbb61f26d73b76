"""The case studies of the MemGaze paper (section VII) with programs of ours: its Tables IV to IX, and whether its orderings hold.

Programs are built with ``memlens cc --memlens=trace -O3`` and recorded in windows; tables come from the engines
below `memlens.analyses.locality` (`grouped`), by function, object or interval.

Exit status: 0; 2 when nothing could be built.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import memlens
from memlens.capture.model.locality import Classifier, LocalityStream, ThreadAccesses

ROOT = Path(__file__).resolve().parent.parent
IRREGULAR = 3
INTERVALS = 8
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "hash": {"arguments": ["--vertices", "16384", "--degree", "32", "--iterations", "2"], "period": 10_000, "window": 1000},
        "network": {"depth": "152", "period": 400_000, "window": 500},
        "graph": {"scale": "18", "degree": "16", "runs": "2", "period": 100_000, "window": 1000, "scales": (12, 14, 16, 18, 20)},
    },
    "small": {
        "hash": {"arguments": ["--vertices", "16384", "--degree", "32", "--iterations", "2"], "period": 20_000, "window": 1000},
        "network": {"depth": "50", "period": 400_000, "window": 500},
        "graph": {"scale": "16", "degree": "16", "runs": "2", "period": 20_000, "window": 1000, "scales": (10, 12)},
    },
}  # fmt: skip
"""Windows are short enough that a row of the first layers' products does not fit into one, and one of the later layers' does."""


@dataclass
class Ordering:
    """One thing that the paper says of its tables, and what ours say."""

    text: str
    holds: bool
    figures: str
    why: str = ""
    """Where it does not hold: the reason."""
    fact: bool = False
    """Whether the figures of this run have what the reason says."""

    @property
    def verdict(self) -> str:
        if self.holds:
            return "holds"
        return f"does not hold: {self.why or WHY.get(self.text, '')}" if self.fact else "does not hold: not explained"


@dataclass
class Study:
    name: str
    intro: str
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    orderings: list[Ordering] = field(default_factory=list)


class Recorder:
    """Builds workloads with tracing and records them."""

    def __init__(self, folder: Path, memlens_command: list[str], alone: list[str] | None = None) -> None:
        self.folder = folder
        self.alone = alone or []
        # Where the stack lies decides whether a struct on it takes one line or two, and with it D of loops that read it.
        fixed = ["setarch", "-R"]
        works = shutil.which(fixed[0]) and subprocess.run([*fixed, "true"], capture_output=True).returncode == 0
        self.command = [*fixed, *memlens_command] if works else memlens_command

    def build(self, source: str) -> Path:
        program = self.folder / Path(source).stem
        if not program.exists():
            driver = "c++" if source.endswith(".cpp") else "cc"
            subprocess.run([*self.command, driver, "--memlens=trace", "-O3", "-g", ROOT / "workloads" / source, "-o", program, "-lpthread",
                            "-lm"], check=True)  # fmt: skip
        return program

    def record(
        self, name: str, source: str, *arguments: str, size: dict[str, Any], regions: str, times: int = 3
    ) -> tuple[memlens.Capture, float]:
        """(capture, seconds of the same run without recording)."""
        program = self.build(source)
        capture = self.folder / f"{name}.memlens"
        how = f"loads,window={size['window']},period={size['period']},regions={regions},on-full=wait,seed=1,stacks=off"
        subprocess.run([*self.command, "record", "-q", "--force", "-o", capture, "--collectors", "alloc,trace", f"--trace={how}", "--",
                        program, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        return memlens.open(capture), self.seconds(program, times, *arguments)

    def sweeps(self, source: str, *arguments: str) -> int:
        """That a run says it made."""
        done = subprocess.run([self.build(source), *arguments], check=True, capture_output=True, text=True)
        return int(done.stdout.split("sweeps=")[1].split()[0])

    def seconds(self, program: Path, count: int, *arguments: str) -> float:
        """The shortest of some runs."""
        times = [math.inf]
        for _ in range(count):
            begin = time.perf_counter()
            done = subprocess.run(
                [*self.alone, program, *arguments, "--time"], check=True, capture_output=True, text=True
            )
            told = re.search(r"kernel_seconds=([\d.]+)", done.stderr)
            times.append(float(told[1]) if told else time.perf_counter() - begin)
        return min(times)


def grouped(capture: memlens.Capture, number_of: Callable[[Any, Any], Any]) -> list[dict[str, float]]:
    """Locality of groups of accesses that `number_of(batch, classes)` numbers: one thread, windows, lines of 64 bytes."""
    accesses = ThreadAccesses(capture)
    classes = Classifier(accesses)
    streams = [LocalityStream(block_bytes=64, views=1, has_windows=True) for _ in accesses.streams]
    for batch in accesses:
        kinds = classes(batch)
        streams[batch.stream].add(
            batch.key_address, bytes=np.ascontiguousarray(batch.bytes), classes=kinds,
            windows=np.ascontiguousarray(batch.unit), times_ns=np.ascontiguousarray(batch.time_ns),
            weights=np.ascontiguousarray(batch.weight), groups=[number_of(batch, kinds).astype(np.uint32)],
        )  # fmt: skip
    for stream in streams:
        stream.finish()
    for other in streams[1:]:
        streams[0].merge(other)
    reuse, footprint = streams[0].reuse(0), streams[0].footprint(0)
    rows = []
    for at in range(len(reuse["accesses"])):
        made, reuses, lines = (
            int(footprint["accesses"][at] + footprint["constants"][at]),
            int(reuse["distance_count"][at]),
            int(footprint["lines"][at]),
        )
        irregular, moving = (
            int(footprint["addresses_irregular"][at]),
            int(footprint["addresses_irregular"][at] + footprint["addresses_strided"][at]),
        )
        rows.append({
            "recorded": float(reuse["accesses"][at]), "executed": float(reuse["executed"][at]), "lines": float(lines),
            "footprint": float(footprint["footprint"][at]), "window_growth": float(footprint["window_growth"][at]),
            "growth": footprint["footprint"][at] / made if made else float("nan"),
            "irregular_percent": 100 * irregular / moving if moving else float("nan"),
            "strided_percent": 100 - 100 * irregular / moving if moving else float("nan"),
            "D": reuse["distance_sum"][at] / reuses if reuses else float("nan"),
            "D_max": float(reuse["distance_max"][at]) if reuses else float("nan"),
            "per_line": reuse["accesses"][at] / lines if lines else float("nan"),
        })  # fmt: skip
    return rows


def by_names(capture: memlens.Capture, groups: list[str]) -> Callable[[Any, Any], Any]:
    """Numbers accesses by the first of some patterns that their function, or one it was inlined into, has; the number after the last: none."""
    accesses = ThreadAccesses(capture)
    sites = capture.table("sites")
    chains = zip(sites.column("function").to_pylist(), sites.column("inlined_into").to_pylist(), strict=True)
    texts = [" / ".join(filter(None, [function, *(outer or [])])) for function, outer in chains]
    found = [
        next((at for at, group in enumerate(groups) if re.search(rf"\b({group})\b", text)), len(groups))
        for text in texts
    ]
    number = np.array([*found, len(groups)], dtype=np.uint32)
    return lambda batch, _: number[np.minimum(accesses.codes(batch), np.uint32(len(number) - 1))]


def estimated(row: dict[str, float]) -> float:
    """The paper's F: what was seen, times ρ."""
    return row["footprint"] * row["executed"] / row["recorded"]


def millions(value: float) -> str:
    return f"{value / 1e6:.3g} M"


# ---- Tables IV and V: three hash tables behind one map ---------------------------------------------------------------
TABLES = {"standard": "v1", "open": "v2", "sized": "v3"}
GROWS = "grow|_M_rehash|_M_rehash_aux"


def hash_tables(recorder: Recorder, size: dict[str, Any]) -> Study:
    study = Study("Three hash tables behind one map (miniVite, Tables IV and V)",
                  "`workloads/hash_tables.cpp`: v1 `std::unordered_map`, v2 open addressing from 16 slots up, v3 open addressing of the right size. `insert` and `heaviest` "
                  "are the paper's map.insert and getMax.")  # fmt: skip
    by_function: dict[str, dict[str, dict[str, float]]] = {}
    objects: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, float] = {}
    growing: dict[str, dict[str, float]] = {}
    for table, variant in TABLES.items():
        capture, seconds[variant] = recorder.record(
            f"hash-{table}", "hash_tables.cpp", "--table", table, *size["arguments"], size=size, regions="communities", times=7
        )  # fmt: skip
        # Growing is part of insertion, also where it is a function of its own.
        rows = grouped(capture, by_names(capture, [f"insert|_M_insert_unique_node|{GROWS}", "heaviest", "build_map"]))
        by_function[variant] = dict(zip(("insert", "heaviest", "build_map"), rows, strict=False))
        objects[variant] = grouped(capture, map_or_graph(capture))
        growing[variant] = grouped(capture, by_names(capture, [GROWS]))[0]
    texts = [[f"`{name}`", variant, millions(estimated(row)), f"{row['growth']:.3f}", f"{row['window_growth']:.3f}",
              f"{row['strided_percent']:.1f}", millions(row["executed"]), f"{seconds[variant] * 1e3:.0f} ms"]
             for name in ("build_map", "insert", "heaviest") for variant, row in ((v, by_function[v][name]) for v in TABLES.values())]  # fmt: skip
    study.tables.append(("Data locality of hot functions (Table IV)",
                         ["function", "variant", "F (estimated)", "ΔF", "ΔF within windows", "F_str %", "A", "run"], texts))  # fmt: skip
    texts = [[thing, variant, f"{row['D']:.2f}", f"{row['lines']:.0f}", millions(row["executed"]), f"{row['per_line']:.1f}"]
            for at, thing in ((1, "map"), (0, "graph")) for variant, row in ((v, objects[v][at]) for v in TABLES.values())]  # fmt: skip
    study.tables.append(
        (
            "Reuse of hot memory, blocks of 64 bytes (Table V)",
            ["object", "variant", "D", "# blocks", "A", "A recorded / block"],
            texts,
        )
    )
    study.orderings = hash_orderings(
        by_function,
        {variant: rows[1] for variant, rows in objects.items()},
        seconds,
        growing,
        maps_of(size["arguments"]),
    )
    return study


def maps_of(arguments: list[str]) -> int:
    """One for each vertex and iteration."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    return int(given["--vertices"]) * int(given["--iterations"])


def map_or_graph(capture: memlens.Capture) -> Callable[[Any, Any], Any]:
    """0: arrays of the graph, which are mappings; 1: the map, on the heap."""
    objects = capture.objects
    is_mapping = np.concatenate(([False], objects.is_kind("mmap")))
    return lambda batch, _: (
        1 - is_mapping[objects.find(batch.address, batch.time_ns, process=batch.process)].astype(np.uint32)
    )


def hash_orderings(
    by_function: dict[str, dict[str, dict[str, float]]],
    maps: dict[str, dict[str, float]],
    seconds: dict[str, float],
    growing: dict[str, dict[str, float]],
    n_maps: int,
) -> list[Ordering]:
    def each(name: str, column: str) -> dict[str, float]:
        return {variant: rows[name][column] for variant, rows in by_function.items()}

    def told(values: dict[str, float], form: str = ".3g") -> str:
        return ", ".join(f"{variant} {value:{form}}" for variant, value in values.items())

    def first(values: dict[str, float], *order: str) -> bool:
        return all(values[a] > values[b] for a, b in itertools.pairwise(order))

    growth_use, growth_insert = each("heaviest", "growth"), each("insert", "growth")
    strided_use, strided_insert = each("heaviest", "strided_percent"), each("insert", "strided_percent")
    inserted, used = each("insert", "executed"), each("heaviest", "executed")
    distance = {variant: row["D"] for variant, row in maps.items()}
    made = {variant: row["executed"] for variant, row in maps.items()}
    grown = {variant: row["executed"] if row["recorded"] else 0.0 for variant, row in growing.items()}
    lines, fresh = {variant: row["lines"] for variant, row in maps.items()}, each("heaviest", "window_growth")
    footprint = each("insert", "footprint")
    is_reused = max(lines.values()) < n_maps and min(fresh.values()) > 0.99
    searches = {variant: inserted[variant] - grown[variant] for variant in inserted}
    searched = f"without growing {told(searches)}"
    part = grown["v2"] / made["v2"]
    otherwise = (distance["v2"] - part * growing["v2"]["D"]) / (1 - part)
    return [
        Ordering("run time: v1 > v2 > v3", first(seconds, "v1", "v2", "v3"), told(seconds) + " s"),
        Ordering("getMax: ΔF of v1 is highest", growth_use["v1"] > max(growth_use["v2"], growth_use["v3"]),
                 f"{told(growth_use)}; within windows {told(fresh)}; lines of all {n_maps:,} maps together {told(lines, '.0f')}", fact=is_reused),
        Ordering("map.insert: ΔF of v1 above v2", growth_insert["v1"] > growth_insert["v2"],
                 f"{told(growth_insert)}; lines of all {n_maps:,} maps together {told(lines, '.0f')}", fact=is_reused),
        Ordering("map.insert: ΔF of v1 above v3", growth_insert["v1"] > growth_insert["v3"], told(growth_insert),
                 fact=footprint["v1"] < 1.5 * footprint["v3"] and 1.5 * inserted["v3"] < inserted["v1"]),
        Ordering("map.insert: ΔF of v3 above v2 (fewer accesses)", growth_insert["v3"] > growth_insert["v2"], told(growth_insert)),
        Ordering("getMax: F_str % of v1 is lowest, v2 and v3 almost all strided",
                 strided_use["v1"] < 10 and min(strided_use["v2"], strided_use["v3"]) > 90, told(strided_use)),
        Ordering("map.insert: F_str % of v1 is lowest", strided_insert["v1"] < min(strided_insert["v2"], strided_insert["v3"]), told(strided_insert)),
        Ordering("map.insert: A of v2 is highest, v3 far below it", inserted["v2"] > inserted["v1"] and 1.5 * inserted["v3"] < inserted["v2"],
                 f"{told(inserted)}; {searched}", fact=searches["v1"] > 1.5 * searches["v2"] and 1.5 * inserted["v3"] < inserted["v2"]),
        Ordering("getMax: A of v1 is lowest, v2 and v3 alike (within 15 %)", used["v1"] < min(used["v2"], used["v3"])
                 and abs(used["v3"] / used["v2"] - 1) < 0.15, told(used)),
        Ordering("map: A of v2 is highest", made["v2"] > max(made["v1"], made["v3"]), f"{told(made)}; {searched}", fact=searches["v1"] > 1.5 * searches["v2"]),
        Ordering("map: A of v1 below v3", made["v1"] < made["v3"], f"{told(made)}; in growing: {told(grown)}", fact=1.5 * inserted["v3"] < inserted["v1"]),
        Ordering("map: D of v3 below v1", distance["v3"] < distance["v1"], told(distance)),
        Ordering("map: D of v3 below v2", distance["v3"] < distance["v2"], f"{told(distance)}; v2 in growing {growing['v2']['D']:.2f} ({part:.0%} of its A), otherwise {otherwise:.2f}",
                 fact=growing["v2"]["D"] < distance["v2"] < otherwise and 0.95 * distance["v3"] < otherwise),
    ]  # fmt: skip


# ---- Tables VI to VIII: products of convolutional networks --------------------------------------------------------------
def networks(recorder: Recorder, size: dict[str, Any]) -> Study:
    study = Study("gemm and im2col of two networks (Darknet, Tables VI to VIII)",
                  f"`workloads/conv_layers.c`: the layers of AlexNet and of ResNet{size['depth']}. Weights and outputs of all layers stay, columns share a work space. `gemm` "
                  "has both products, that of fully connected layers too. Intervals are eighths of the accesses of gemm.")  # fmt: skip
    by_function, intervals, hot, connected = {}, {}, {}, {}
    for model in ("alexnet", "resnet"):
        capture, _ = recorder.record(
            model,
            "conv_layers.c",
            "--model",
            model,
            "--scale",
            "1",
            "--depth",
            size["depth"],
            size=size,
            times=0,
            regions="network",
        )
        by_function[model] = grouped(capture, gemm_or_im2col(capture))
        intervals[model] = grouped(capture, gemm_intervals(capture))[1:]
        hot[model] = hot_objects(capture)
        connected[model] = grouped(capture, by_names(capture, ["gemm", "gemm_row"]))
    rows = []
    for at, name in ((GEMM, "gemm"), (IM2COL, "im2col")):
        for model, groups in by_function.items():
            row = groups[at]
            rows.append([f"`{name}`", model, millions(estimated(row)), f"{row['growth']:.3f}", f"{row['window_growth']:.3f}",
                         f"{row['strided_percent']:.1f}", millions(row["executed"])])  # fmt: skip
    study.tables.append(("Data locality of hot functions (Table VI)",
                         ["function", "model", "F (estimated)", "ΔF", "ΔF within windows", "F_str %", "A"], rows))  # fmt: skip
    rows = [[row["name"], model, f"{row['D']:.2f}", f"{row['lines']:.0f}", millions(row["executed"]), f"{row['per_line']:.1f}"]
            for model in hot for row in hot[model]]  # fmt: skip
    study.tables.append(
        (
            "Reuse of hot memory, blocks of 64 bytes (Table VII)",
            ["object", "model", "D", "# blocks", "A", "A recorded / block"],
            rows,
        )
    )
    rows = [
        [str(at), *(text for model in ("alexnet", "resnet") for text in interval_texts(intervals[model][at]))]
        for at in range(INTERVALS)
    ]
    names = [f"{name}, {model}" for model in ("alexnet", "resnet") for name in ("F (estimated)", "ΔF", "D", "A")]
    study.tables.append(("gemm over time (Table VIII)", ["interval", *names], rows))
    study.orderings = network_orderings(by_function, intervals, connected["alexnet"])
    return study


def interval_texts(row: dict[str, float]) -> list[str]:
    return [millions(estimated(row)), f"{row['growth']:.3f}", f"{row['D']:.2f}", millions(row["executed"])]


GEMM, IM2COL = 0, 1


def gemm_or_im2col(capture: memlens.Capture) -> Callable[[Any, Any], Any]:
    return by_names(capture, ["gemm|gemm_row", "im2col"])


def gemm_intervals(capture: memlens.Capture) -> Callable[[Any, Any], Any]:
    """0: not gemm; 1 to 8: eighths of gemm's recorded accesses."""
    numbers = gemm_or_im2col(capture)
    total = sum(int((numbers(batch, None) == GEMM).sum()) for batch in ThreadAccesses(capture))
    done = 0

    def number_of(batch: Any, _: Any) -> Any:
        nonlocal done
        is_gemm = numbers(batch, None) == GEMM
        at = done + np.cumsum(is_gemm) - 1
        done += int(is_gemm.sum())
        return np.where(is_gemm, 1 + at * INTERVALS // max(1, total), 0)

    return number_of


def hot_objects(capture: memlens.Capture) -> list[dict[str, Any]]:
    """gemm's three matrices together, and what im2col uses: A, B and C and the image are mappings of their own in each layer."""
    rows = grouped(capture, gemm_or_im2col(capture))
    return [{"name": "gemm's A, B, C", **rows[GEMM]}, {"name": "im2col's image and B", **rows[IM2COL]}]


def network_orderings(
    by_function: dict[str, list[dict[str, float]]],
    intervals: dict[str, list[dict[str, float]]],
    layers: list[dict[str, float]],
) -> list[Ordering]:
    (gemm_a, im2col_a), (gemm_r, im2col_r) = (by_function[m][:2] for m in ("alexnet", "resnet"))

    def both(column: str, a: dict[str, float], b: dict[str, float]) -> str:
        return f"alexnet {a[column]:.3g}, resnet {b[column]:.3g}"

    def part(model: str, column: str, which: slice) -> float:
        return float(np.mean([row[column] for row in intervals[model][which]]))

    early, middle, late = (
        slice(0, INTERVALS // 4),
        slice(INTERVALS // 4, 3 * INTERVALS // 4),
        slice(3 * INTERVALS // 4, None),
    )
    growth = {model: np.array([row["growth"] for row in intervals[model]]) for model in intervals}
    spread = {model: float(values.std() / values.mean()) for model, values in growth.items()}
    trend = float(np.corrcoef(np.arange(INTERVALS), growth["resnet"])[0, 1])
    apart = gemm_a["footprint"] / sum(row["footprint"] for row in intervals["alexnet"])
    steady = {
        model: float(values[early.stop :].std() / values[early.stop :].mean()) for model, values in growth.items()
    }
    dominated = {m: rows[GEMM]["footprint"] / sum(row["footprint"] for row in rows) for m, rows in by_function.items()}
    rising = {m: (part(m, "D", early), part(m, "D", middle), part(m, "D", late)) for m in intervals}
    return [
        Ordering("gemm has most of the footprint", min(dominated.values()) > 0.5, ", ".join(f"{m} {v:.0%}" for m, v in dominated.items())),
        Ordering("gemm is almost all strided", min(100 - gemm_a["irregular_percent"], 100 - gemm_r["irregular_percent"]) > 95,
                 f"alexnet {100 - gemm_a['irregular_percent']:.1f} %, resnet {100 - gemm_r['irregular_percent']:.1f} %"),
        Ordering("im2col is all strided", min(im2col_a["strided_percent"], im2col_r["strided_percent"]) > 95,
                 f"alexnet {im2col_a['strided_percent']:.1f} %, resnet {im2col_r['strided_percent']:.1f} %"),
        Ordering("gemm: A of resnet above alexnet", gemm_r["executed"] > gemm_a["executed"], both("executed", gemm_a, gemm_r)),
        Ordering("gemm: ΔF of resnet above alexnet", gemm_r["growth"] > gemm_a["growth"], f"{both('growth', gemm_a, gemm_r)}; within windows {both('window_growth', gemm_a, gemm_r)}; F of alexnet's intervals together is {1 / apart:.2f} times that of all",
                 fact=gemm_r["window_growth"] < gemm_a["window_growth"] and apart > 0.75),
        Ordering("im2col: ΔF of resnet above alexnet", im2col_r["growth"] > im2col_a["growth"], f"{both('growth', im2col_a, im2col_r)}; within windows {both('window_growth', im2col_a, im2col_r)}",
                 fact=im2col_r["window_growth"] < im2col_a["window_growth"]),
        Ordering("gemm over time: ΔF of alexnet varies more than that of resnet", spread["alexnet"] > spread["resnet"],
                 f"standard deviation over mean: alexnet {spread['alexnet']:.2f}, resnet {spread['resnet']:.2f}; behind the first quarter {steady['alexnet']:.2f} and {steady['resnet']:.2f}; resnet with time: correlation {trend:.2f}",
                 fact=trend < -0.7),
        *(Ordering(f"gemm over time: D of {m} rises from the first quarter to the middle", rising[m][1] > rising[m][0],
                   f"{rising[m][0]:.2f}, {rising[m][1]:.2f}") for m in intervals),
        *(Ordering(f"gemm over time: D of {m} stays so to the end", rising[m][2] > 0.8 * rising[m][1],
                   f"middle {rising[m][1]:.2f}, last quarter {rising[m][2]:.2f}" + (f"; fully connected layers {layers[1]['D']:.2f}" if m == "alexnet" else ""),
                   fact=rising[m][2] < rising[m][1] and (m == "resnet" or layers[1]["D"] < 0.5 * rising[m][1])) for m in intervals),
        Ordering("gemm over time: ΔF of resnet falls", part("resnet", "growth", late) < part("resnet", "growth", early),
                 f"first quarter {part('resnet', 'growth', early):.3f}, last {part('resnet', 'growth', late):.3f}"),
    ]  # fmt: skip


# ---- Table IX: graph kernels ------------------------------------------------------------------------------------------
KERNELS = {"pr": "shares", "pr_spmv": "shares", "cc": "parents", "cc_sv": "parents"}

MOST_SWEEPS = 100
"""They need fewer."""
PARTS = {
    "pr": ["pull_and_compare"],
    "pr_spmv": ["share_out", "multiply_and_compare"],
    "cc": ["link_one_edge", "link_other_edges", "compress"],
    "cc_sv": ["hook", "shorten"],
}


def graphs(recorder: Recorder, size: dict[str, Any]) -> Study:
    study = Study("Two algorithms for the same graph problem (GAP, Table IX)",
                  f"`graph_pr.c`, `graph_pr_spmv.c`, `graph_cc.c`, `graph_cc_sv.c`, 2^{size['scale']} vertices with {size['degree']} random edges for each (the paper: 2^22 and 16), "
                  "one thread, only the kernels; pr and pr-spmv until the ranks change by less than 1e-4 in all, cc-sv until a round hooks nothing. The hot "
                  "object is the array with most irregular accesses: `shares` (the paper's o-score) and `parents` (cc). ΔF is "
                  "that of loads that are not constant: windows of loads count stores among what they leave out.")  # fmt: skip
    hot, whole, seconds, parts_of = {}, {}, {}, {}
    for kernel in KERNELS:
        rounds = [str(MOST_SWEEPS)] if kernel.startswith("pr") else [size["runs"]]
        rounds += [] if kernel == "cc" else ["--converge"]  # cc ends by itself
        capture, seconds[kernel] = recorder.record(kernel, f"graph_{kernel}.c", "--scale", size["scale"], "--degree", size["degree"], "--iterations", *rounds,
                                                   size=size, regions=kernel)  # fmt: skip
        hot[kernel] = hottest(capture)
        rows = grouped(capture, by_names(capture, PARTS[kernel]))
        parts_of[kernel] = dict(zip(PARTS[kernel], rows, strict=False))
        whole[kernel] = grouped(capture, lambda batch, _: np.zeros(len(batch)))[0]
    rows = [[KERNELS[k], f"`{k}`", f"{row['D']:.2f}", f"{row['D_max']:.0f}", millions(row["executed"]), f"{row['per_line']:.2f}",
             f"{whole[k]['window_growth']:.3f}", f"{whole[k]['growth']:.3f}", f"{whole[k]['irregular_percent']:.1f}", f"{seconds[k] * 1e3:.1f} ms"] for k, row in hot.items()]  # fmt: skip
    study.tables.append(("Reuse of hot memory, blocks of 64 bytes (Table IX)",
                         ["object", "kernel", "D", "greatest D", "A", "A recorded / block", "ΔF within windows", "ΔF", "F_irr % of the kernel", "run"], rows))  # fmt: skip
    sweeps = {k: [recorder.sweeps(f"graph_{k}.c", "--scale", str(s), "--degree", size["degree"], "--iterations", str(MOST_SWEEPS), "--converge")
                  for s in size["scales"]] for k in ("pr", "pr_spmv")}  # fmt: skip
    study.tables.append(("Sweeps until converged, by the size of the graph", ["kernel", *(f"2^{s}" for s in size["scales"])],
                         [[f"`{k}`", *map(str, counts)] for k, counts in sweeps.items()]))  # fmt: skip
    study.orderings = graph_orderings(hot, whole, parts_of, seconds)
    return study


def hottest(capture: memlens.Capture) -> dict[str, float]:
    """The object with most irregular accesses: arrays are mappings, one object each."""
    objects = capture.objects
    counts = np.zeros(objects.count + 1)
    accesses = ThreadAccesses(capture)
    classes = Classifier(accesses)
    for batch in accesses:
        found = objects.find(batch.address, batch.time_ns, process=batch.process)
        counts += np.bincount(found[classes(batch) == IRREGULAR], minlength=len(counts))
    which = int(counts[1:].argmax()) + 1
    return grouped(
        capture,
        lambda batch, _: (objects.find(batch.address, batch.time_ns, process=batch.process) == which).astype(np.uint32),
    )[1]


def graph_orderings(
    hot: dict[str, dict[str, float]],
    whole: dict[str, dict[str, Any]],
    parts_of: dict[str, dict[str, dict[str, float]]],
    seconds: dict[str, float],
) -> list[Ordering]:
    def pair(values: dict[str, dict[str, Any]], column: str, a: str, b: str) -> tuple[bool, str]:
        return values[a][column] < values[b][column], f"{a} {values[a][column]:.4g}, {b} {values[b][column]:.4g}"

    def parts(column: str, sign: str, *kernels: str) -> str:
        """Of the functions of kernels: their part of the accesses, and a figure."""
        texts = []
        for kernel in kernels:
            total = sum(row["recorded"] for row in parts_of[kernel].values())
            each = (
                f"{n} {row['recorded'] / total:.0%} with {sign} {row[column]:.2f}"
                for n, row in parts_of[kernel].items()
            )
            texts.append(f"{kernel}: {', '.join(each)}")
        return "; ".join(texts)

    def figure(kernel: str, name: str, column: str) -> float:
        return parts_of[kernel][name][column]

    pulled = figure("pr", "pull_and_compare", "window_growth")
    shared, multiplied = (figure("pr_spmv", name, "window_growth") for name in PARTS["pr_spmv"])
    # Those that most accesses of cc are in.
    most_of_cc = ("link_one_edge", "compress")
    return [
        Ordering("pr: D of o-score below that of pr-spmv", *pair(hot, "D", "pr", "pr_spmv"),
                 "alike: both read shares in the order of the edges, and D does not ask who wrote them", abs(hot["pr"]["D"] / hot["pr_spmv"]["D"] - 1) < 0.05),
        Ordering("pr: ΔF slightly below that of pr-spmv", *pair(whole, "window_growth", "pr", "pr_spmv"),
                 f"pr-spmv has a second loop over the vertices, whose loads find less that is new ({parts('window_growth', 'ΔF', 'pr', 'pr_spmv')})",
                 shared < min(pulled, multiplied) and abs(multiplied / pulled - 1) < 0.05),
        Ordering("pr: fewer accesses than pr-spmv", *pair(whole, "executed", "pr", "pr_spmv"),
                 fact=whole["pr"]["executed"] < 2 * whole["pr_spmv"]["executed"]),
        Ordering("cc: D above that of cc-sv", *pair(hot, "D", "cc_sv", "cc"), f"{SKIPPED} ({parts('D', 'D', 'cc', 'cc_sv')})",
                 figure("cc_sv", "hook", "D") > max(figure("cc", name, "D") for name in most_of_cc)),
        Ordering("cc: ΔF over all windows above that of cc-sv", *pair(whole, "growth", "cc_sv", "cc")),
        Ordering("cc: ΔF within windows above that of cc-sv", *pair(whole, "window_growth", "cc_sv", "cc"),
                 f"{SKIPPED} ({parts('window_growth', 'ΔF', 'cc', 'cc_sv')})",
                 figure("cc_sv", "hook", "window_growth") > min(figure("cc", name, "window_growth") for name in most_of_cc)),
        Ordering("cc: F_irr % above that of cc-sv", *pair(whole, "irregular_percent", "cc_sv", "cc")),
        Ordering("cc: more accesses to the hot object than cc-sv", *pair(hot, "executed", "cc_sv", "cc"), fact=seconds["cc"] < seconds["cc_sv"]),
    ]  # fmt: skip


SKIPPED = (
    "cc follows the other edges only of vertices outside the largest component; "
    "cc-sv's hook reads the parents of all neighbours in each round"
)


# ---- the page ---------------------------------------------------------------------------------------------------------
WHY: dict[str, str] = {
    "getMax: ΔF of v1 is highest": "the heap gives the same memory to each batch of maps (all maps together have fewer lines than there are maps), so F over all windows is that of a batch; within windows every load of getMax finds something new in all three",
    "map.insert: A of v2 is highest, v3 far below it": "v1 searches a chain node by node, key and link of each; our open addressing finds most keys in the first slot, where "
    "the paper's hopscotch table reads the bits of a neighbourhood too. v3 is far below v2, as in the paper",
    "map: A of v2 is highest": "as for map.insert",
    "map.insert: ΔF of v1 above v2": "the heap gives the same memory to each batch of maps, so F over all windows is that of a batch and ΔF falls with A",
    "map.insert: ΔF of v1 above v3": "F is alike, and v3 makes far fewer accesses: the effect that the paper names for v3 against v2",
    "map: A of v1 below v3": "an insertion into v1 reads the bucket, then key and link of each node of the chain, and growing walks all nodes; into v3 it reads mostly one slot (A of insert above)",
    "map: D of v3 below v2": "v2's copies from table to table read slots in order, most of them in the line read just before (D = 0), which lowers its mean; without them it is like v3's",
    "gemm: ΔF of resnet above alexnet": "within windows it is lower too: most of resnet's accesses are in layers with rows of 196 numbers, which a window reads again. The paper's AlexNet has 0.475 to 0.983 in its intervals and 0.113 in all (Tables VIII and VI): its intervals use the same addresses, ours have weights of their own",
    "im2col: ΔF of resnet above alexnet": "within windows it is lower too: of 3 × 3 kernels over small images the same rows are read again within a window, of alexnet's 11 × 11 over a large one they are not",
    "pr: fewer accesses than pr-spmv": "on small graphs pr needs more sweeps, on large ones fewer (see the table of sweeps); the paper's graph has 2^22 vertices",
    "cc: more accesses to the hot object than cc-sv": "executed accesses here; A of the paper are recorded ones, and its run times (2.7 s and 45.5 s) have the order that we "
    "see",
    "gemm over time: ΔF of alexnet varies more than that of resnet": "resnet's falls with its rows, from 12,544 numbers to 49, and by more than alexnet's varies; the paper's falls too, from 0.747 to 0.514",
    "gemm over time: D of alexnet stays so to the end": "the last interval has the fully connected layers, which use each weight once",
    "gemm over time: D of resnet stays so to the end": "rows of the last stage are so short (N = 49) that all of them lie near",
}
"""Why an ordering of the paper does not hold here, by its text."""


def render(studies: list[Study], seconds: float, arguments: str) -> str:
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
               platform.machine())  # fmt: skip
    facts = {"processor": cpu, "cores": os.cpu_count(), "kernel": platform.release(), "date": datetime.date.today().isoformat(),
             "seconds for all of it": f"{seconds:.0f}"}  # fmt: skip
    lines = ["# Case studies", "", f"Written by `python benchmarks/case_studies.py{arguments}` (`make case-studies`).", "",
             "The case studies of the MemGaze paper with programs of the same kind and of a size that takes seconds: the figures differ, the orderings "
             "should agree. Traces of `memlens cc --memlens=trace -O3`: windows of loads, as the paper has. F is the estimated footprint in addresses (a recorded one stands "
             "for ρ), ΔF the growth, A executed accesses, D the mean reuse distance in blocks within windows. Runs are the shortest of several without recording. Addresses are not randomised where the system allows it, so that figures come again.", "",
             "| machine |  |", "| --- | ---: |", *(f"| {key} | {value} |" for key, value in facts.items()), ""]  # fmt: skip
    for study in studies:
        lines += [f"## {study.name}", "", study.intro, ""]
        for title, heads, rows in study.tables:
            lines += [
                f"**{title}**",
                "",
                f"| {' | '.join(heads)} |",
                f"|{' --- |' * len(heads)}",
                *(f"| {' | '.join(row)} |" for row in rows),
                "",
            ]
        lines += ["| the paper's ordering | here | figures |", "| --- | --- | --- |"]
        for one in study.orderings:
            lines.append(f"| {one.text} | {one.verdict} | {one.figures} |")
        lines.append("")
    return "\n".join(lines)


STUDIES: dict[str, Callable[[Recorder, dict[str, Any]], Study]] = {
    "hash": hash_tables,
    "network": networks,
    "graph": graphs,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--memlens", default=f"{sys.executable} -m memlens", help="the command (default: this Python's)"
    )
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument(
        "--alone", default="", help="a command that is put before timed runs: one that keeps the machine quiet"
    )
    parser.add_argument("--only", choices=list(STUDIES), help="one of the studies")
    parser.add_argument("--folder", type=Path, help="where programs and captures go (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="the page to write (default: standard output)")
    options = parser.parse_args()
    import tempfile

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(folder, options.memlens.split(), options.alone.split())
        try:
            studies = [
                make(recorder, SIZES[options.size][name])
                for name, make in STUDIES.items()
                if options.only in (None, name)
            ]
        except subprocess.CalledProcessError as error:
            print(
                f"error: {' '.join(map(str, error.cmd[:6]))} … failed with status {error.returncode}", file=sys.stderr
            )
            return 2
        page = render(studies, time.perf_counter() - begin, f" --size {options.size}" if options.size != "full" else "")
    if options.output:
        options.output.write_text(page)
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
