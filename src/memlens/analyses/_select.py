"""Makes a selected capture: checks that what a selection names is there, and helps where it is not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import UsageError
from . import _matching
from ._selected import Makers, SelectedCapture
from ._selected_counts import SelectedCounts
from ._selected_tables import table_of
from ._selected_windows import SelectedWindows, selected_chunks

if TYPE_CHECKING:
    from ..capture.reader import Capture
    from ..selection import Selection

LISTED = 8
"""Names that an error lists."""


def select(capture: Capture, selection: Selection) -> Capture:
    """The selected part of a capture; the capture itself if that is all of it.

    Raises
    ------
    UsageError
        Something is selected that the capture does not have.
    """
    selection = _without_whole(capture, selection)
    return part_of(capture, selection) if selection else capture


def part_of(capture: Capture, selection: Selection) -> SelectedCapture:
    return SelectedCapture(capture, selection, Makers(table_of, SelectedWindows, selected_chunks, SelectedCounts))


def _without_whole(capture: Capture, selection: Selection) -> Selection:
    """The selection without conditions that everything meets."""
    begin, end = 0.0, (capture.end_ns - capture.begin_ns) / 1e9
    if selection.time_s is not None:
        first, last = selection.time_s
        if not first < last:
            raise UsageError(
                f"invalid value {first:g}:{last:g} for --time: the range is empty",
                hint="FROM:TO in seconds, as in --time 1.5:2",
            )
        if first > end or last < begin:
            raise UsageError(
                f"nothing was recorded from {first:g} to {last:g} s", hint=f"the recording lasts {end:.3g} s"
            )
        # An end that is not said: with the last event, which may be at the very end.
        selection = replace(selection, time_s=None if first <= begin and last > end else (first, min(last, end + 1e-9)))
    if selection.processes:
        rows = capture.table("processes").to_pylist()
        known = {row["process"] for row in rows}
        for number in selection.processes:
            if number not in known:
                of_pid = [row["process"] for row in rows if row["pid"] == number]
                raise UsageError(
                    f"no process has the number {number}",
                    hint=f"process id {number} is --process {of_pid[0]}"
                    if of_pid
                    else f"processes: {_listed(sorted(known))}",
                )
        if known <= set(selection.processes):
            selection = replace(selection, processes=())
    if selection.threads:
        threads = _threads(capture)
        for number in selection.threads:
            if number not in threads:
                raise UsageError(f"no thread has the id {number}", hint=f"threads: {_listed(sorted(threads))}")
        if threads <= set(selection.threads):
            selection = replace(selection, threads=())
    _check_names(capture, selection)
    return selection


def _threads(capture: Capture) -> set[int]:
    kinds = capture.kinds()
    found = set(capture.table("threads").column("thread").to_pylist())
    if kinds.get("block_count") or kinds.get("region_time"):
        found |= set(capture.table("region_time_records").column("thread").to_pylist())
        found |= set(capture.counts.places().thread.tolist())
    if kinds.get("window"):
        found |= set(capture.windows.raw["thread"].tolist())
    if kinds.get("code_count"):
        found |= set(capture.table("code_counts").column("thread").unique().to_pylist())
    return found


def _check_names(capture: Capture, selection: Selection) -> None:
    if selection.region:
        regions = _matching.region_names(capture)
        if not regions:
            raise UsageError(
                "this capture has no regions", hint="name them with memlens.h or #pragma memlens, and record again"
            )
        _require(selection.region, regions, "region")
    if selection.object:
        _require(selection.object, _matching.object_names(capture), "object")
    if selection.code:
        places = _matching.code_places(capture)
        matcher = _matching.CodeMatcher(selection.code)
        if not any(matcher.is_match(*place) for place in zip(*places, strict=True)):
            names = [name for name in dict.fromkeys(places[0]) if name]
            if _matching.PLACE.fullmatch(selection.code):
                pairs = {
                    (file.rpartition("/")[2], line)
                    for file, line in zip(places[1], places[2], strict=True)
                    if file and line
                }
                names = [f"{file}:{line}" for file, line in sorted(pairs)]
            raise _unknown(selection.code, names, "code", "function or line")


def _require(name: str, names: Sequence[str], option: str) -> None:
    if name not in names:
        raise _unknown(name, names, option, option)


def _unknown(name: str, names: Sequence[str], option: str, what: str) -> UsageError:
    close = difflib.get_close_matches(name, names, n=3)
    if not close:  # a part of a long name
        close = [one for one in names if name.lower() in one.lower()][:3]
    if not close:  # one of its words is not as it should be
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{what}s of this capture: {_listed(names)}"
    return UsageError(f"invalid value {name!r} for --{option}: the capture has no such {what}", hint=hint)


def _listed(names: Sequence[object]) -> str:
    return ", ".join(str(name) for name in names[:LISTED]) + (", …" if len(names) > LISTED else "")
