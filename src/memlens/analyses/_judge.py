"""Samples against the truth, figure by figure: what is compared, and errors and intervals over all samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._confidence import CONFIDENCE

if TYPE_CHECKING:
    import pyarrow as pa

    from ..results import Result

LEAST_SHARE = 0.01
"""Functions with less of the accesses, and classes with less of the footprint, are shown but not judged."""
SAME = 0.001
"""Intervals that are off by less than this part of the truth hold."""


@dataclass(frozen=True)
class Metric:
    name: str
    truth: str
    has_interval: bool = False
    part_of: str = ""
    """The footprint of a class: judged where it is a part of this one that matters."""
    least: float = 0.0
    """Judged from this value of the truth on."""


METRICS = (
    Metric("executed", "whole"),
    Metric("share", "whole"),
    Metric("constant_percent", "whole", True, least=1.0),
    Metric("window_constant_percent", "windows", True, least=1.0),
    Metric("kappa", "whole"),
    Metric("footprint_estimated", "whole"),
    Metric("footprint_strided_estimated", "whole", part_of="footprint_estimated"),
    Metric("footprint_irregular_estimated", "whole", part_of="footprint_estimated"),
    Metric("window_footprint", "windows"),
    Metric("window_growth", "windows", True),
    Metric("window_growth_strided", "windows", True, "window_growth"),
    Metric("window_growth_irregular", "windows", True, "window_growth"),
    Metric("window_irregular_percent", "windows", True, least=1.0),
    Metric("window_reuse_distance_mean", "windows", True),
    Metric("window_reuse_interval_mean", "windows"),
    Metric("unobservable_percent", "windows"),
    Metric("blocks_of_window", "windows"),
)
INTERVALS = {"window_reuse_distance_mean": "window_reuse_distance"}
"""Where the columns of an interval are named otherwise."""


def percent_error(estimate: float, truth: float) -> float | None:
    if truth == 0:
        return 0.0 if estimate == 0 else None
    return 100 * (estimate - truth) / truth


@dataclass
class _Errors:
    """One figure of one row over all samples."""

    truth: float
    judged: bool
    estimates: list[float]
    errors: list[float]
    covered: int = 0
    intervals: int = 0
    reach: float = 0.0
    """Sum of half the widths of the intervals."""
    windows: int = 0
    """Of all samples, those with accesses of the row."""

    @property
    def mape(self) -> float | None:
        return sum(map(abs, self.errors)) / len(self.errors) if self.errors else None

    @property
    def bias(self) -> float | None:
        return sum(self.errors) / len(self.errors) if self.errors else None


class Judge:
    """Compares samples with the truth, figure by figure."""

    def __init__(self, whole: Result, tiles: Result) -> None:
        self._truth = {"whole": whole, "windows": tiles}
        self._rows: dict[tuple[str, str | None, str], _Errors] = {}
        self._under = 0
        self._ratios: dict[str, list[tuple[float, float]]] = {}
        self._curve: dict[int, list[tuple[float, float]]] = {}
        self._true_caches: dict[str, tuple[float, float]] = {}

    @staticmethod
    def _by_key(result: Result, table: str) -> dict[str | None, dict[str, Any]]:
        return {row.get("function"): row for row in result.tables[table].to_pylist()}

    def add(self, drawn: Result, caches: dict[str, tuple[float, float]]) -> None:
        for scope in ("program", "function"):
            truths = {kind: self._by_key(result, f"by_{scope}") for kind, result in self._truth.items()}
            for key, row in self._by_key(drawn, f"by_{scope}").items():
                small = scope == "function" and truths["whole"].get(key, {"share": 0.0})["share"] < LEAST_SHARE
                if row["under_sampled"] and not small:
                    self._under += 1
                for metric in METRICS:
                    if metric.truth == "whole" and metric.name == "share" and scope == "program":
                        continue
                    self._compare(scope, key, metric, row, truths[metric.truth].get(key), small or row["under_sampled"])
        for name, value in caches.items():
            self._ratios.setdefault(name, []).append(value)
        for point in drawn.tables["miss_curve"].to_pylist():
            self._curve.setdefault(point["cache_bytes"], []).append((point["miss_ratio_low"], point["miss_ratio"]))

    def _compare(
        self,
        scope: str,
        key: str | None,
        metric: Metric,
        row: dict[str, Any],
        truth: dict[str, Any] | None,
        left_out: bool,
    ) -> None:
        if truth is None or truth.get(metric.name) is None or row.get(metric.name) is None:
            return
        true, estimate = float(truth[metric.name]), float(row[metric.name])
        matters = not metric.part_of or true >= LEAST_SHARE * float(truth[metric.part_of] or 0)
        matters &= true >= metric.least
        error = percent_error(estimate, true)
        have = self._rows.setdefault((scope, key, metric.name), _Errors(true, True, [], []))
        have.judged &= matters and error is not None and not left_out
        have.estimates.append(estimate)
        have.windows += row["windows"]
        if error is not None:
            have.errors.append(error)
        low, high = (row.get(f"{INTERVALS.get(metric.name, metric.name)}_{end}") for end in ("low", "high"))
        if metric.has_interval and low is not None and high is not None:
            have.intervals += 1
            have.reach += (high - low) / 2
            # Windows that do not differ have an interval without width; what is as good as right is no miss.
            slack = SAME * abs(true)
            have.covered += low - slack <= true <= high + slack

    def caches(self, truth: dict[str, tuple[float, float]]) -> None:
        self._true_caches = truth

    def metrics(self) -> pa.Table:
        import pyarrow as pa

        schema = pa.schema([("scope", pa.string()), ("metric", pa.string()), ("truth_is", pa.string()), ("rows", pa.uint32()),
                            ("mape_percent", pa.float64()), ("bias_percent", pa.float64()), ("worst_percent", pa.float64()),
                            ("worst_at", pa.string()), ("intervals", pa.uint32()), ("covered_percent", pa.float64()),
                            ("claimed_percent", pa.float64())])  # fmt: skip
        rows = []
        for scope in ("program", "function"):
            for metric in METRICS:
                mine = [(key, have) for (s, key, name), have in self._rows.items()
                        if s == scope and name == metric.name and have.judged and have.errors]  # fmt: skip
                if not mine:
                    continue
                errors = [error for _, have in mine for error in have.errors]
                worst = max(mine, key=lambda pair: max(map(abs, pair[1].errors)))
                intervals, covered = sum(h.intervals for _, h in mine), sum(h.covered for _, h in mine)
                rows.append({
                    "scope": scope, "metric": metric.name, "truth_is": metric.truth, "rows": len(mine),
                    "mape_percent": sum(map(abs, errors)) / len(errors), "bias_percent": sum(errors) / len(errors),
                    "worst_percent": max(worst[1].errors, key=abs), "worst_at": worst[0], "intervals": intervals or None,
                    "covered_percent": 100 * covered / intervals if intervals else None,
                    "claimed_percent": 100 * CONFIDENCE if intervals else None,
                })  # fmt: skip
        return pa.Table.from_pylist(rows, schema=schema)

    def functions(self) -> pa.Table:
        """``stated_percent``: half the width of the stated intervals, in the mean; ``share``: of all accesses; ``windows``: of a sample
        that have accesses of the function, in the mean."""
        import pyarrow as pa

        schema = pa.schema([("function", pa.string()), ("metric", pa.string()), ("truth_is", pa.string()), ("truth", pa.float64()),
                            ("estimate_mean", pa.float64()), ("mape_percent", pa.float64()), ("bias_percent", pa.float64()),
                            ("samples", pa.uint32()), ("intervals", pa.uint32()), ("covered", pa.uint32()),
                            ("stated_percent", pa.float64()), ("share", pa.float64()), ("windows", pa.float64()),
                            ("judged", pa.bool_())])  # fmt: skip
        shares = {key: row["share"] for key, row in self._by_key(self._truth["whole"], "by_function").items()}
        kinds = {metric.name: metric.truth for metric in METRICS}
        rows = [
            {"function": key, "metric": name, "truth_is": kinds[name], "truth": have.truth,
             "estimate_mean": sum(have.estimates) / len(have.estimates), "mape_percent": have.mape, "bias_percent": have.bias,
             "samples": len(have.estimates), "intervals": have.intervals, "covered": have.covered,
             "stated_percent": 100 * have.reach / have.intervals / abs(have.truth) if have.intervals and have.truth else None,
             "share": shares.get(key), "windows": have.windows / len(have.estimates), "judged": have.judged}
            for (scope, key, name), have in self._rows.items() if scope == "function"
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, schema=schema)

    def miss_ratios(self) -> pa.Table:
        """Caches of every size: whether the truth lies within what windows allow; and the cache model's levels."""
        import pyarrow as pa

        schema = pa.schema([("what", pa.string()), ("cache_bytes", pa.uint64()), ("truth", pa.float64()), ("low_mean", pa.float64()),
                            ("high_mean", pa.float64()), ("mape_percent", pa.float64()), ("within_percent", pa.float64())])  # fmt: skip
        true = {p["cache_bytes"]: p["miss_ratio"] for p in self._truth["whole"].tables["miss_curve"].to_pylist()}
        rows: list[dict[str, object]] = []

        def add(what: str, size: int | None, truth: float, bounds: list[tuple[float, float]]) -> None:
            slack = (
                0.005  # of the ratio itself: the bounds are those of the drawn windows, without their sampling error
            )
            inside = sum(low - slack <= truth <= high + slack for low, high in bounds)
            rows.append({"what": what, "cache_bytes": size, "truth": truth,
                         "low_mean": sum(low for low, _ in bounds) / len(bounds), "high_mean": sum(high for _, high in bounds) / len(bounds),
                         "mape_percent": None, "within_percent": 100 * inside / len(bounds)})  # fmt: skip

        for size, bounds in sorted(self._curve.items()):
            if size in true and not size & (size - 1):
                add("fully associative", size, true[size], bounds)
        for name, (truth, most) in self._true_caches.items():
            # Of a source that is sampled itself the truth is not known to the last access.
            if truth == most and self._ratios.get(name):
                add(name, None, truth, self._ratios[name])
        return pa.Table.from_pylist(rows, schema=schema)

    @property
    def under_sampled(self) -> int:
        return self._under
