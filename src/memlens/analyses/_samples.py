"""Estimates from executions that were counted by chance: totals of a region and their 95 % intervals.

Owns the design-based error. Each execution of a region is counted with the same probability; those counted are drawn into random groups
(format/memlens_count.h), whose sums are known for every quantity. Executions inside a counted one and work of other threads belong to its group, so clusters
are whole. With N executions of which n0 are counted in any case, and groups of n_g executions with b_g bytes:

    R = Σ b_g / Σ n_g        total = b0 + (N − n0) · R        d_g = b_g − R · n_g
    error = (N − n0) / n · sqrt(1 − n / (N − n0)) · sqrt(k / (k − 1) · Σ d_g²)        n = Σ n_g, k groups
    interval = total ± t(k − 1) · error

It holds as often as it claims only if the sum of a group is not dominated by a few executions. Then there is no interval but a reason (`TOO_FEW`): where there are few
executions, where the groups' sums are skewed (Cochran's rule at the level of groups: k > 25 · skewness²), and where much of the time is in executions longer than any counted one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._confidence import student_quantile

if TYPE_CHECKING:
    from ..capture.model.counting import Counts
    from ..capture.reader import Capture

Path = tuple[str, ...]
Cell = tuple[int, int]
"""(program image, group)"""

LEAST_EXECUTIONS = 50
LEAST_GROUPS = 16
MOST_SKEWNESS = 1.0
MOST_UNSEEN_TIME = 0.2
"""Share of the time in executions longer than any counted one, below which the interval is widened by it instead of withheld."""
TOO_FEW = "too few executions"


@dataclass
class Group:
    counted: int = 0
    bytes: int = 0
    counted_ns: int = 0


@dataclass
class Sampled:
    """What is known of one region from its groups."""

    groups: dict[Cell, Group] = field(default_factory=dict)
    durations: list[tuple[int, int, int]] = field(default_factory=list)
    """(least_ns of the class, executions counted, nanoseconds untouched)"""

    @property
    def counted(self) -> int:
        return sum(group.counted for group in self.groups.values())

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups.values())

    def time_error(self) -> float | None:
        """Standard error of the mean time of executions counted by chance, by that mean."""
        groups = [group for group in self.groups.values() if group.counted]
        n, total = self.counted, sum(group.counted_ns for group in groups)
        if len(groups) < LEAST_GROUPS or n < LEAST_EXECUTIONS or not total:
            return None
        mean, k = total / n, len(groups)
        squares = sum((group.counted_ns - mean * group.counted) ** 2 for group in groups)
        return float((k / (k - 1) * squares) ** 0.5 / total)

    def unseen_share(self) -> float:
        """Of the time of untouched executions: those of a longer class than any counted one. They did more, or were interrupted."""
        longest = max((least for least, counted, _ in self.durations if counted), default=0)
        total = sum(ns for *_, ns in self.durations)
        return sum(ns for least, _, ns in self.durations if least > longest) / total if total else 0.0


@dataclass(frozen=True)
class Error:
    """Of an estimated total, in the total's unit; `reason` where there is none."""

    standard: float | None
    reach: float | None
    """Half of the 95 % interval."""
    reason: str | None = None


EXACT = Error(0.0, 0.0)


class Samples:
    """Groups of all regions of a capture."""

    def __init__(self, capture: Capture, counts: Counts) -> None:
        self.regions: dict[Path, Sampled] = defaultdict(Sampled)
        if capture.selection:  # groups are drawn over the whole run
            return
        if not capture.kinds().get("sample_group"):
            self._add_durations(capture, counts)
            return
        for row in capture.table("sample_groups").to_pylist():
            group = self._group(counts, row["image"], row["node"], row["group"])
            group.counted += row["counted"]
            group.counted_ns += row["counted_ns"]
        from ..capture.model.counting import Counts as GroupCounts

        by_group = GroupCounts(capture, kind="sample_count")
        places, sums = by_group.places(epochs=True), by_group.place_sums(epochs=True)
        moved = sums["read_bytes"] + sums["written_bytes"]
        for number in range(len(places)):
            group = self._group(counts, int(places.image[number]), int(places.node[number]), int(places.epoch[number]))
            group.bytes += int(moved[number])
        self._add_durations(capture, counts)

    def _group(self, counts: Counts, image: int, node: int, group: int) -> Group:
        return self.regions[counts.path_of(image, node)].groups.setdefault((image, group), Group())

    def _add_durations(self, capture: Capture, counts: Counts) -> None:
        for row in capture.table("region_durations").to_pylist():
            path = counts.path_of(row["image"], row["node"])
            self.regions[path].durations.append((row["least_ns"], row["counted"], row["untouched_ns"]))

    def of(self, path: Path) -> Sampled:
        return self.regions.get(path) or Sampled()

    def factor(self, path: Path, executions: int, counted: int, counted_bytes: int) -> float | None:
        """What all counted bytes of a region are multiplied with; None: none was counted."""
        if not counted:
            return None if executions else 1.0
        sampled = self.of(path)
        by_chance = sampled.counted
        if not by_chance or not counted_bytes:
            return executions / counted
        certain = counted - by_chance
        total = counted_bytes - sampled.bytes + (executions - certain) * sampled.bytes / by_chance
        return total / counted_bytes

    def error(self, parts: list[tuple[Path, int, int]], total: float, sampling: str) -> Error:
        """Of the sum over regions (path, executions, counted) of what was sampled; `total`: the sum itself."""
        if sampling == "every":
            return Error(None, None, "periodic sampling has no error: use every=N without periodic")
        if sampling == "budget":
            return Error(None, None, "sampling by budget has no error: use every=N")
        residuals: dict[Cell, float] = defaultdict(float)
        unseen = 0.0
        for path, executions, counted in parts:
            sampled = self.of(path)
            n = sampled.counted
            rest = executions - (counted - n)
            if rest <= n:
                continue
            if n < LEAST_EXECUTIONS:
                return Error(None, None, f"{TOO_FEW}: {n} counted by chance, {LEAST_EXECUTIONS} are needed")
            ratio, scale = sampled.bytes / n, rest / n * (1 - n / rest) ** 0.5
            for cell, group in sampled.groups.items():
                if group.counted:
                    residuals[cell] += scale * (group.bytes - ratio * group.counted)
            unseen = max(unseen, sampled.unseen_share())
        if not residuals:
            return EXACT
        k = len(residuals)
        if k < LEAST_GROUPS:
            return Error(None, None, f"{TOO_FEW}: in {k} groups, {LEAST_GROUPS} are needed")
        squares = sum(value**2 for value in residuals.values())
        standard = (k / (k - 1) * squares) ** 0.5
        deviation = (squares / k) ** 0.5
        skewness = sum(value**3 for value in residuals.values()) / k / deviation**3 if deviation > 1e-9 * total else 0.0
        if skewness > MOST_SKEWNESS:
            return Error(None, None, f"{TOO_FEW}: a few large ones decide the sum")
        reach = student_quantile(k - 1) * standard
        if unseen > max(MOST_UNSEEN_TIME, reach / total if total else 0.0):
            return Error(
                None, None, f"{TOO_FEW}: {unseen:.0%} of the time is in executions longer than any counted one"
            )
        return Error(standard, reach + unseen * total)
