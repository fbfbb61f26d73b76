"""Analysis `validation`: how far figures of a sampled trace are from those of everything.

Sampled traces are drawn from a capture that has every access, several times, and analysed as if they had been recorded. Two kinds of truth:

    whole     the figure of the whole trace: footprints, shares, classes
    windows   the figure that all windows of this length would give (at every place of a loop): what is new within a window,
              reuse within it. A sample of windows estimates this, not the figure of the whole trace.

A capture that was sampled at least ten times denser can serve in place of everything; truth is then what its own windows say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NoDataError, UsageError
from ..registry import AnalysisDescriptor, Option
from ._confidence import CONFIDENCE
from ._judge import LEAST_SHARE, Judge, percent_error

if TYPE_CHECKING:
    import pyarrow as pa

    from ..capture.model.locality import AccessBatch, ThreadAccesses
    from ..capture.model.window_classes import Classed
    from ..capture.reader import Capture
    from ..results import Result

WINDOW, PERIOD = 1000, 100_000
FEWEST_WINDOWS = 50
LEAST_WINDOW = 64
SEEDS = 5
THINNER = 10
HELD_ACCESSES = 30_000_000
"""So many are decoded once and kept; longer captures are read again for each sample."""


def fitting(length: int, window: int | None, period: int | None) -> tuple[int, int]:
    """(window, period): as asked, else 1,000 of 100,000, or shorter ones of the same ratio so that there are enough.

    >>> fitting(10**8, None, None), fitting(10**6, None, None), fitting(10**8, 500, None), fitting(10**5, None, None)
    ((1000, 100000), (200, 20000), (500, 50000), (64, 6400))
    """
    if period is None:
        ratio = PERIOD // WINDOW
        if window is None:
            window = max(LEAST_WINDOW, min(WINDOW, length // (FEWEST_WINDOWS * ratio)))
        period = window * ratio
    return (window if window is not None else max(1, period * WINDOW // PERIOD)), period


def validate(
    capture: Capture,
    *,
    window: int | None = None,
    period: int | None = None,
    seeds: int = SEEDS,
    line_bytes: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Errors of every figure of the locality analysis, and how often the stated intervals hold.

    Parameters
    ----------
    window, period
        Of the sampled traces, in executed accesses, constants included. Of a sampled capture, `period` says how many of its periods become one.
    seeds
        Number of sampled traces.
    progress
        Called with (steps done, steps in all).

    Returns
    -------
    Result
        Tables ``metrics`` (each figure, over the program and over functions), ``functions``, ``window_sizes`` and ``miss_ratios``.
        Errors are percentages of the truth, absolute values averaged over samples (MAPE), ``bias_percent`` with their sign.
    """
    from .data_locality import locality

    if seeds < 1:
        raise UsageError(f"invalid value '{seeds}' for seeds; expected 1 or more", hint="--seeds 5")
    source = _source(capture, window, period)
    steps, total = 0, 2 + seeds

    def step() -> None:
        nonlocal steps
        steps += 1
        if progress is not None:
            progress(steps, total)

    by = {"by": "function", "line_bytes": line_bytes, "heat_columns": 0}
    whole = locality(capture, accesses=source.everything(), **by)  # type: ignore[arg-type]
    step()
    tiles = locality(capture, accesses=source.all_windows(), **by) if source.is_whole else whole  # type: ignore[arg-type]
    truth_sizes = source.sizes(source.all_windows())
    truth_caches = _caches(capture, source.everything())
    step()
    judge = Judge(whole, tiles)
    sizes: list[dict[Any, float]] = []
    spans: list[dict[int, float]] = []
    for seed in range(seeds):
        drawn = source.sample(seed)
        judge.add(locality(capture, accesses=drawn, **by), _caches(capture, drawn))  # type: ignore[arg-type]
        sizes.append(source.sizes(drawn))
        if source.is_whole:
            spans.append(source.spans(drawn))
        step()
    judge.caches(truth_caches)
    tables = {
        "metrics": judge.metrics(),
        "functions": judge.functions(),
        "window_sizes": _size_rows(truth_sizes, sizes, source.true_spans(spans), spans),
        "miss_ratios": judge.miss_ratios(),
    }
    return _result(capture, source, whole, tables, seeds)


class _Source:
    """Where truth and samples come from."""

    def __init__(self, capture: Capture, window: int, period: int, is_whole: bool, keep: int) -> None:
        self.capture, self.window, self.period, self.is_whole, self.keep = capture, window, period, is_whole, keep
        self._held: list[AccessBatch] | None = None

    def everything(self) -> ThreadAccesses:
        from ..capture.model.locality import ThreadAccesses

        accesses = ThreadAccesses(self.capture)
        if self._held is None and accesses.recorded <= HELD_ACCESSES:
            self._held = list(accesses.batches(constants=True))
        return accesses

    def all_windows(self) -> ThreadAccesses:
        from ..capture.model.drawing import DrawnAccesses

        return DrawnAccesses.tiled(self.capture, self.window, source=self._held) if self.is_whole else self.everything()

    def sample(self, seed: int) -> ThreadAccesses:
        from ..capture.model.drawing import DrawnAccesses, ThinnedAccesses

        if self.is_whole:
            return DrawnAccesses.drawn(self.capture, self.window, self.period, seed=seed, source=self._held)
        return ThinnedAccesses(self.capture, self.keep, seed=seed, source=self._held)

    def _classed(self, accesses: ThreadAccesses) -> Iterator[Classed]:
        from ..capture.model.locality import Classifier

        classes = Classifier(accesses, by_window=not accesses.is_whole)
        return ((batch, classes(batch)) for batch in accesses)

    def sizes(self, accesses: ThreadAccesses) -> dict[tuple[int, str], float]:
        from ._window_sizes import footprint_within

        return footprint_within(self._classed(accesses), self.window)

    def spans(self, accesses: ThreadAccesses) -> dict[int, float]:
        from ._window_sizes import footprint_across

        return footprint_across(self._classed(accesses), self.period, self.window)

    def true_spans(self, found: list[dict[int, float]]) -> dict[int, float]:
        from ..capture.model.drawing import stream_lengths
        from ..capture.model.locality import Classifier
        from ._window_sizes import footprint_of_spans

        wanted = sorted({size for one in found for size in one})
        if not wanted:
            return {}
        accesses = self.everything()
        classes = Classifier(accesses)
        batches = ((batch, classes(batch)) for batch in accesses.batches(constants=True) if len(batch))
        return footprint_of_spans(batches, wanted, stream_lengths(self.capture))


def _source(capture: Capture, window: int | None, period: int | None) -> _Source:
    """Whether a capture can serve, and how; says why not."""
    from ..capture.model.locality import ThreadAccesses

    again = "record one with every access: memlens record --trace=full,on-full=wait -- PROGRAM (built with memlens cc --memlens=trace)"
    if "window" not in capture.kinds():
        raise NoDataError(f"{capture.path} holds no accesses", hint=again)
    accesses = ThreadAccesses(capture)
    recorded = accesses.recorded
    if not recorded:
        raise NoDataError(f"the windows of {capture.path} hold no accesses", hint=again)
    dropped = int(capture.windows.columns["dropped"].sum())
    if dropped:
        raise NoDataError(
            f"{dropped:,} windows were dropped while {capture.path} was recorded: it cannot serve as truth", hint=again
        )
    for name, value in (("window", window), ("period", period)):
        if value is not None and value < 1:
            raise UsageError(
                f"invalid value '{value}' for {name}; expected 1 access or more",
                hint=f"--{name} {WINDOW if name == 'window' else PERIOD}",
            )
    if accesses.is_whole:
        executed = sum(accesses.lengths)
        window, period = fitting(executed, window, period)
        if period < 2 * window:
            raise UsageError(
                f"windows of {window:,} in periods of {period:,} accesses leave almost nothing out",
                hint="--window 1000 --period 100000",
            )
        if executed < 10 * period:
            raise NoDataError(
                f"{capture.path} has {executed:,} accesses: fewer than ten periods of {period:,}",
                hint="give a shorter --window and --period, or record a longer run",
            )
        return _Source(capture, window, period, True, 1)
    return _denser(capture, accesses, window, period)


def _denser(capture: Capture, accesses: ThreadAccesses, window: int | None, period: int | None) -> _Source:
    import numpy as np

    executed, lengths = int(accesses.unit_executed.sum()), accesses.unit_recorded
    units, own_window = len(lengths), int(np.median(lengths))
    own_period = max(1, executed // max(units, 1))
    if window is not None and window != own_window:
        raise UsageError(
            f"{capture.path} is sampled, in windows of {own_window:,} accesses: windows of another length cannot be taken from it",
            hint="leave out --window, or record every access: memlens record --trace=full,on-full=wait",
        )
    keep = THINNER if period is None else period // own_period
    if keep < THINNER:
        raise UsageError(
            f"{capture.path} has one window in {own_period:,} accesses: only {keep} times denser than one in {period:,}",
            hint=f"--period {own_period * THINNER} or more, or record every access: memlens record --trace=full,on-full=wait",
        )
    if units < keep * FEWEST_WINDOWS:
        raise NoDataError(
            f"{capture.path} is sampled and has {units:,} windows; one in {keep} of them is {units // keep:,}, and "
            f"{FEWEST_WINDOWS} are needed",
            hint="record more windows (--trace=window=N,period=N), a longer run, or every access: --trace=full,on-full=wait",
        )
    return _Source(capture, own_window, own_period * keep, False, keep)


def _caches(capture: Capture, accesses: ThreadAccesses) -> dict[str, tuple[float, float]]:
    """Modelled miss ratios of the program, by level: the least and the most that they can be."""
    from .caches import cache_model

    found = cache_model(capture, by=("program",), accesses=accesses).figures
    return {
        f"{level['name']} of the cache model": (level["miss_ratio"], level["miss_ratio_high"])
        for level in found["levels"]
        if level["miss_ratio"] is not None
    }


def _size_rows(
    truth: dict[tuple[int, str], float], found: Sequence[dict[tuple[int, str], float]], true_spans: dict[int, float],
    spans: Sequence[dict[int, float]],
) -> pa.Table:  # fmt: skip
    import pyarrow as pa

    schema = pa.schema([("where", pa.string()), ("window_accesses", pa.uint64()), ("metric", pa.string()), ("truth", pa.float64()),
                        ("estimate_mean", pa.float64()), ("mape_percent", pa.float64()), ("bias_percent", pa.float64()),
                        ("judged", pa.bool_())])  # fmt: skip
    rows = []

    def add(where: str, size: int, metric: str, true: float, values: list[float], judged: bool) -> None:
        errors = [error for value in values if (error := percent_error(value, true)) is not None]
        if not values:
            return
        rows.append({"where": where, "window_accesses": size, "metric": metric, "truth": true,
                     "estimate_mean": sum(values) / len(values),
                     "mape_percent": sum(map(abs, errors)) / len(errors) if errors else None,
                     "bias_percent": sum(errors) / len(errors) if errors else None, "judged": judged and bool(errors)})  # fmt: skip

    for (size, kind), true in truth.items():
        values = [one[size, kind] for one in found if (size, kind) in one]
        add("within windows", size, kind, true, values, true > 0 and true >= LEAST_SHARE * truth[size, "footprint"])
    for size, true in true_spans.items():
        add("across windows", size, "footprint", true, [one[size] for one in spans if size in one], False)
    return pa.Table.from_pylist(rows, schema=schema)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _result(capture: Capture, source: _Source, whole: Result, tables: dict[str, pa.Table], seeds: int) -> Result:
    from ..results import Quality, Result

    sizes = tables["window_sizes"].to_pylist()
    metrics = tables["metrics"].to_pylist()
    notes = []
    if not source.is_whole:
        notes.append("The capture is itself sampled: the truth is that of its own windows and has an error, too.")
    across = [
        row["mape_percent"] for row in sizes if row["where"] == "across windows" and row["mape_percent"] is not None
    ]
    if across and max(across) > 25:
        notes.append(
            f"Across windows, scaling by rho is off by up to {max(across):,.0f} %: windows use the same data again, and no sample of "
            "windows shows how often. Footprints of more than a window are upper estimates."
        )
    figures: dict[str, object] = {
        "window_accesses": source.window, "period_accesses": source.period, "samples": seeds, "truth_is_whole": source.is_whole,
        "recorded_accesses": whole.figures["recorded_accesses"], "executed_accesses": whole.figures["executed_accesses"],
        **{f"window_mape_percent_{kind}": _mean([r["mape_percent"] for r in sizes if r["metric"] == kind and r["judged"]])
           for kind in ("footprint", "footprint_strided", "footprint_irregular")},
        **{f"function_mape_percent_{row['metric']}": row["mape_percent"] for row in metrics if row["scope"] == "function"},
    }  # fmt: skip
    covered = [(r["covered_percent"] * r["intervals"], r["intervals"]) for r in metrics if r["intervals"]]
    figures["intervals"] = sum(n for _, n in covered)
    figures["covered_percent"] = sum(c for c, _ in covered) / figures["intervals"] if figures["intervals"] else None
    figures["claimed_percent"] = 100 * CONFIDENCE
    return Result("validation", figures, tables, capture.quality.joined(Quality(exact=False, notes=tuple(notes))))


DESCRIPTOR = AnalysisDescriptor(
    name="validation",
    question="How large are the errors of figures from a sampled trace?",
    needs=("window",),
    options=(
        Option("window", "accesses of a sampled window", WINDOW),
        Option("period", "accesses from the start of one window to the next", PERIOD),
        Option("seeds", "number of sampled traces", SEEDS),
    ),
    in_report=False,
    run=validate,
)
