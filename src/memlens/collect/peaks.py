"""A calibration as `memlens calibrate` measures, keeps and shows it: the shape of the file, its figures and tables, and their view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from ..capture.store.calibration import KINDS
from ..view import Column, Figure, Table, View, key, measure

if TYPE_CHECKING:
    from ..results import Result

NOTABLE_SPREAD = 0.05
"""The median is shown beside the best where it differs by more than this part of it."""
MOSTLY = 0.5
"""Of a walk's memory, in huge pages: below it the walk misses the TLB."""


# ---- the file ------------------------------------------------------------
class Rate(TypedDict):
    bytes_per_second: int
    median_bytes_per_second: int
    spread: float
    windows: int
    vectors: str


class Latency(TypedDict):
    ns: float
    median_ns: float
    spread: float
    windows: int
    footprint_bytes: int
    huge_page_share: float | None


class Results(TypedDict):
    """Floating-point results."""

    per_second: int
    spread: float
    windows: int


class Arithmetic(TypedDict):
    cores: int
    double: Results
    single: Results


class _Kinds(TypedDict):
    cores: int
    footprint_bytes: int
    read: Rate
    write: Rate
    copy: Rate


class Rates(_Kinds, total=False):
    stream_write: Rate
    """Of memory, where the processor has such stores."""


class _LevelPeaks(TypedDict):
    level: str
    bytes: int | None
    instances: int
    shared_by_cores: int
    one: Rates
    all: Rates
    latency: Latency


class LevelPeaks(_LevelPeaks, total=False):
    latency_small_pages: Latency
    """Of memory."""


class PairPeaks(_Kinds):
    """Cores of one node, memory of one node."""

    cpu_node: int
    memory_node: int
    distance: int | None
    latency: Latency


class _Calibration(TypedDict):
    version: int
    memlens: str
    measured: str
    seconds: float
    fingerprint: str
    machine: dict[str, object]
    vector_widths: list[str]
    cores: list[int]
    assumed_caches: bool
    levels: list[LevelPeaks]
    pairs: list[PairPeaks]
    warnings: list[str]


class Calibration(_Calibration):
    float: dict[str, Arithmetic]


def by_kind(found: Rates | PairPeaks) -> dict[str, Rate]:
    return {"read": found["read"], "write": found["write"], "copy": found["copy"]}


# ---- what is shown ------------------------------------------------------------
def _spread(sign: str, spread: float) -> str | None:
    """The median beside the best: rates are below it, latencies above.

    >>> _spread("−", 0.9), _spread("−", 0.9976), _spread("+", 3.527), _spread("+", 0.05)
    ('(−90 %)', '(−99.8 %)', '(+353 %)', None)
    """
    digits = 1 if 0.99 < spread < 1 else 0
    return f"({sign}{100 * spread:,.{digits}f} %)" if spread > NOTABLE_SPREAD else None


def _rates(found: Rates | PairPeaks, prefix: str = "") -> dict[str, float | str | None]:
    row: dict[str, float | str | None] = {}
    for kind, rate in by_kind(found).items():
        row[f"{prefix}{kind}_bytes_per_second"] = float(rate["bytes_per_second"])
        row[f"{prefix}{kind}_spread"] = _spread("−", rate["spread"])
    return row


def _latency(found: Latency) -> dict[str, float | str | None]:
    return {"latency_ns": found["ns"], "latency_spread": _spread("+", found["spread"])}


def result_of(content: Calibration) -> Result:
    """Figures and tables of a calibration; its warnings are the notes."""
    import pyarrow as pa

    from ..results import Quality, Result

    dram, arithmetic = content["levels"][-1], content["float"]
    many = len(content["cores"]) > 1
    with_huge, small = dram["latency"], dram["latency_small_pages"]
    is_huge = (with_huge["huge_page_share"] or 0.0) >= MOSTLY
    stream_one, stream_all = (rates.get("stream_write") for rates in (dram["one"], dram["all"]))
    both = stream_one is not None and stream_all is not None
    figures = {
        "cpu": content["machine"]["cpu"],
        "cores": len(content["cores"]),
        "measured": content["measured"],
        "seconds": content["seconds"],
        "dram_read_bytes_per_second": dram["all"]["read"]["bytes_per_second"],
        "dram_latency_ns": with_huge["ns"],
        "dram_small_pages_latency_ns": small["ns"],
        "tlb_ns": small["ns"] - with_huge["ns"] if is_huge else None,
        "tlb_reason": None if is_huge else "no huge pages were granted for comparison",
        "stream_one_bytes_per_second": stream_one["bytes_per_second"] if both and stream_one else None,
        "stream_all_bytes_per_second": stream_all["bytes_per_second"] if both and stream_all and many else None,
        "double_one_per_second": arithmetic["one"]["double"]["per_second"],
        "single_one_per_second": arithmetic["one"]["single"]["per_second"],
        "double_all_per_second": arithmetic["all"]["double"]["per_second"] if many else None,
        "single_all_per_second": arithmetic["all"]["single"]["per_second"] if many else None,
    }
    levels = [
        {"level": level["level"], "bytes": level["bytes"], **_rates(level["one"], "one_"), **_rates(level["all"], "all_"),
         **_latency(level["latency"])}
        for level in content["levels"]
    ]  # fmt: skip
    pairs = [
        {"cpu_node": pair["cpu_node"], "memory_node": pair["memory_node"], "distance": pair["distance"], **_rates(pair),
         **_latency(pair["latency"])}
        for pair in content["pairs"]
    ]  # fmt: skip
    tables = {
        name: pa.Table.from_pylist(rows, schema=pa.schema([(column, _arrow(column)) for column in rows[0]]))
        for name, rows in (("levels", levels), ("pairs", pairs))
    }
    return Result("calibration", figures, tables, Quality(exact=False, notes=tuple(content["warnings"])))


def _arrow(column: str) -> str:
    if column == "level" or column.endswith("_spread"):
        return "string"
    return "double" if column.endswith(("_ns", "_per_second")) else "int64"


def _columns(prefix: str = "", label: str = "") -> tuple[Column, ...]:
    return tuple(
        measure(f"{prefix}{kind}_bytes_per_second", f"{label}{kind} GB/s", "bytes_per_s", beside=(f"{prefix}{kind}_spread",), better="higher")
        for kind in KINDS
    )  # fmt: skip


def view(result: Result) -> View:
    figures: Mapping[str, object] = result.figures
    cores = figures["cores"]
    latency = measure("latency_ns", "latency ns", "number", beside=("latency_spread",), better="lower")
    everyone = _columns("all_", "all ") if cores != 1 else ()
    return View(
        title="Peaks of this machine",
        headline="{cores} core(s) read {dram_read_bytes_per_second} from DRAM, a load from DRAM takes {dram_latency_ns}; {cpu}, measured "
        "{measured} in {seconds}",
        figures=(
            Figure(name="cpu", label="processor", kind="text"),
            Figure(name="cores", label="cores", kind="precise"),
            Figure(name="measured", label="measured", kind="text"),
            Figure(name="seconds", label="duration", kind="s"),
            Figure(name="dram_read_bytes_per_second", label="read from DRAM, all cores", kind="bytes_per_s", better="higher"),
            Figure(name="dram_latency_ns", label="latency of DRAM", kind="ns", better="lower"),
            Figure(name="dram_small_pages_latency_ns", label="latency of DRAM with small pages", kind="ns", better="lower"),
            Figure(
                name="tlb_ns", label="cost of TLB misses with small pages", kind="ns", show="always", reason="tlb_reason",
                help="The latency with small pages less that with huge pages.",
            ),
            Figure(name="stream_one_bytes_per_second", label="writing past the caches, 1 core", kind="bytes_per_s", better="higher"),
            Figure(name="stream_all_bytes_per_second", label=f"writing past the caches, {cores} cores", kind="bytes_per_s", better="higher"),
            *(
                Figure(
                    name=f"{precision}_{who}_per_second", label=f"floating-point results a second, {precision}, {words}", kind="number",
                    help="A product with a sum is two results.", better="higher",
                )
                for who, words in (("one", "1 core"), ("all", f"{cores} cores"))
                for precision in ("double", "single")
            ),
        ),
        tables=(
            Table(name="levels", title="Levels", help=f"peaks of one core, and of all {cores} cores together" if cores != 1 else "peaks of the core", whole=True, columns=(
                key("level", "level"), key("bytes", "size", "bytes"), *_columns("one_"), *everyone, latency,
            )),
            Table(name="pairs", title="Nodes", help="all cores of a node, memory of a node", least_rows=2, whole=True, columns=(
                key("cpu_node", "cores of", "node"), key("memory_node", "memory of", "node"), measure("distance", "distance", "precise"),
                *_columns(), latency,
            )),
        ),
        remarks=(
            "A copy counts what is read and what is written; a product with a sum is two floating-point results. "
            f"In parentheses: the median half millisecond against the best one, where it differs by more than {NOTABLE_SPREAD:.0%}.",
        ),
    )  # fmt: skip
