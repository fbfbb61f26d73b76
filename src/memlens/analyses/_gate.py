"""Which figures of a region are withheld because they cannot be right, and why.

Owns the conditions and the reasons. Terminal, page and JSON show the same: the figure is null, and `withheld` (bandwidth) or `bytes_withheld` has the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..units import human_rate
from ._region_rows import without
from ._samples import TOO_FEW

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..capture.store.calibration import Peaks
    from ._region_rows import BandwidthRow
    from ._region_sums import Regions

LEAST_CLOCK_READS = 10
"""An execution shorter than so many readings of the clock cannot be timed."""
MOST_COST_SHARE = 1.0
"""Our own cost by the time without it: more than half of the time was ours."""
UNLIKE = 2.0
"""Counted executions that last three times as long as untouched ones, where chance did not choose them."""
UNLIKE_SHORTER = -0.25
MOST_COST_ERROR = 0.1
"""Standard error of the mean time of counted executions, by that mean, from which on our cost cannot be measured with them."""
ABOVE_PEAK = 1.25
BYTES_A_CYCLE = 192
"""Of one core: two loads and a store of 64 bytes."""
FASTEST_MHZ = 6000.0

BANDWIDTH = (
    "bytes_per_second", "bytes_per_second_low", "bytes_per_second_high", "corrected_bytes_per_second",
    "bytes_per_thread_second", "correction", "counting_cost_share",
)  # fmt: skip
BYTES = (
    "loads", "stores", "read_bytes", "written_bytes", "stack_loads", "stack_stores", "stack_read_bytes", "stack_written_bytes",
    "bytes", "bytes_error", "bytes_low", "bytes_high", "share", "stack_share", "counted_share", "byte_imbalance",
    "float_results_per_byte",
)  # fmt: skip


class Gate:
    """What this machine and this recording make believable."""

    def __init__(self, capture: Capture, regions: Regions, peaks: Peaks | None, read_cost_ns: float | None) -> None:
        self.regions = regions
        self.read_cost_ns = read_cost_ns
        self.peaks = peaks
        machine = capture.meta.get("machine") or {}
        self.cpus = int(machine.get("cpus") or 0) or 1 << 16
        self.core_bytes = (machine.get("cpu_max_mhz") or FASTEST_MHZ) * 1e6 * BYTES_A_CYCLE

    def most_bytes_per_second(self, threads: int) -> tuple[float, str]:
        """(bound, where it comes from) of so many threads."""
        if self.peaks is not None:
            first = self.peaks.levels[0]
            peak = max(self.peaks.bandwidth(first, kind, threads=threads) for kind in ("read", "write", "copy"))
            return ABOVE_PEAK * peak, f"{first} peak {human_rate(peak)}"
        bound = min(max(threads, 1), self.cpus) * self.core_bytes
        return bound, f"{BYTES_A_CYCLE} bytes a cycle, {human_rate(bound)}"

    def apply(self, row: BandwidthRow) -> None:
        """Withholds what cannot be right of a region's row."""
        row["withheld"] = row["bytes_withheld"] = None
        if row["counting_cost_share"] is not None and row["correction"] == "untouched":
            self._check_cost(row)
        unlike = self._uncounted(row) or self._unlike(row)
        if unlike:
            row["bytes_withheld"] = row["withheld"] = unlike
            without(row, (*BYTES, *BANDWIDTH))
            return
        why = self._short(row) or self._cost(row) or self._too_fast(row) or self._too_few(row)
        if why:
            row["withheld"] = why
            without(row, BANDWIDTH)

    def spread(self, rows: list[BandwidthRow]) -> None:
        """A sum that holds bytes which are withheld is withheld too."""
        reasons = {row["region"]: row["bytes_withheld"] for row in rows if row["bytes_withheld"]}
        if not reasons:
            return
        for row in rows:
            inside = [
                name
                for name in reasons
                if row["region"] in (name, "(whole program)")
                or (not row["exclusive"] and name.startswith(f"{row['region']} / "))
            ]
            if inside and not row["bytes_withheld"]:
                own = row["region"] in reasons
                why = reasons[inside[0]] if own else f"{inside[0]} is part of it: {reasons[inside[0]]}"
                row["bytes_withheld"] = row["withheld"] = why
                without(row, (*BYTES, *BANDWIDTH))

    def _check_cost(self, row: BandwidthRow) -> None:
        """Our cost is the difference of two means: nothing is corrected with one that chance decides."""
        if self.regions.sampling != "random":
            return
        error = self.regions.samples.of(tuple(row["region"].split(" / "))).time_error()
        if error is None or error > MOST_COST_ERROR:
            row["corrected_bytes_per_second"] = row["correction"] = row["counting_cost_share"] = None

    def _uncounted(self, row: BandwidthRow) -> str | None:
        if row["counted"] or not row["untouched"]:
            return None
        return f"none of its {row['untouched']:,} executions was counted"

    def _unlike(self, row: BandwidthRow) -> str | None:
        share = row["counting_cost_share"]
        if share is None or row["correction"] != "untouched" or self.regions.sampling == "random":
            return None
        if share <= UNLIKE and share >= UNLIKE_SHORTER:
            return None
        return (
            f"counted executions last {1 + share:.2g} times as long as untouched ones: the two groups differ "
            "(use every=N without periodic)"
        )

    def _short(self, row: BandwidthRow) -> str | None:
        executions, read = row["executions"], self.read_cost_ns
        if not executions or not row["thread_ns"] or not read or row["region"] == "(whole program)":
            return None
        mean = row["thread_ns"] / executions
        if mean >= LEAST_CLOCK_READS * read:
            return None
        return f"an execution lasts {mean:.0f} ns and a reading of the clock {read:.0f} ns: too short to be timed"

    def _cost(self, row: BandwidthRow) -> str | None:
        share, switches = row["counting_cost_share"], row["own_cost_ns"]
        if share is not None and share > MOST_COST_SHARE:
            return f"counting took {share / (1 + share):.0%} of the time"
        if switches and row["thread_ns"] and switches > MOST_COST_SHARE * row["thread_ns"]:
            part = switches / (switches + row["thread_ns"])
            return f"entering and leaving regions inside it took {part:.0%} of the time"
        return None

    def _too_fast(self, row: BandwidthRow) -> str | None:
        rate = max(
            row["bytes_per_second"] or 0.0, row["bytes_per_second_low"] or 0.0, row["bytes_per_second_high"] or 0.0,
            row["corrected_bytes_per_second"] or 0.0,
        )  # fmt: skip
        bound, what = self.most_bytes_per_second(row["threads"])
        return f"{human_rate(rate)} is more than this machine can do ({what})" if rate > bound else None

    def _too_few(self, row: BandwidthRow) -> str | None:
        reason = row["bytes_error_reason"]
        return reason if reason and reason.startswith(TOO_FEW) else None
