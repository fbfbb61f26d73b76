"""Which functions, lines and objects a selection names, as tables name them.

A function is matched by its whole name, by its name without parameters, or without template arguments too; an inlined function is one
like others. ``FILE:LINE`` is a line of a file whose path ends so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..capture.model.call_stacks import plain_name

if TYPE_CHECKING:
    from ..arrays import Bools
    from ..capture.reader import Capture

PlaceLists = tuple[Sequence[str | None], Sequence[str | None], Sequence[int | None]]
"""(function, file, line) of each row."""
PLACE = re.compile(r"(?P<file>[^:].*):(?P<line>[0-9]+)")


class CodeMatcher:
    """Whether a place is in the selected code.

    >>> matcher = CodeMatcher("solve")
    >>> [matcher.is_match(name, None, None) for name in ("solve", "solve(int)", "solve<int>(X<3>)", "solver", None)]
    [True, True, True, False, False]
    >>> matcher = CodeMatcher("solve.c:42")
    >>> [matcher.is_match("f", file, line) for file, line in (("/src/solve.c", 42), ("/src/solve.c", 4), ("resolve.c", 42))]
    [True, False, False]
    """

    def __init__(self, code: str) -> None:
        self.code = code
        found = PLACE.fullmatch(code)
        # A::B is a function; a file may be called anything else.
        self._file, self._line = (found["file"], int(found["line"])) if found else ("", 0)

    @cached_property
    def _names(self) -> dict[str, bool]:
        return {}

    def is_match(self, function: str | None, file: str | None, line: int | None) -> bool:
        if self._file:
            return line == self._line and file is not None and (file == self._file or file.endswith(f"/{self._file}"))
        if function is None:
            return False
        known = self._names.get(function)
        if known is None:
            known = function == self.code or self.code in (function.partition("(")[0], plain_name(function))
            self._names[function] = known
        return known

    def mask(self, function: Iterable[str | None], file: Iterable[str | None], line: Iterable[int | None]) -> Bools:
        import numpy as np

        return np.fromiter((self.is_match(*place) for place in zip(function, file, line, strict=True)), dtype=bool)


def codes_selected(capture: Capture, code: str) -> Bools:
    """Which codes (rows of ``sites``) are selected, as a mask; one entry more, for code that is not known."""
    from .traffic import CodeNames

    names = CodeNames(capture)
    return CodeMatcher(code).mask(names.function, names.file, names.line)


def objects_selected(capture: Capture, name: str) -> Bools:
    """Which objects are selected, by object id; entry 0 is no object. Objects are named as tables name them."""
    import numpy as np

    from ._object_groups import ObjectGroups

    groups = ObjectGroups(capture)
    wanted = np.array([row["object"] == name for row in groups.rows], dtype=bool)
    return wanted[groups.of_object]


# ---- names that exist, for errors that help ----------------------------------------------------
def object_names(capture: Capture) -> list[str]:
    from ._object_groups import ObjectGroups

    return list(dict.fromkeys(row["object"] for row in ObjectGroups(capture).rows))


def region_names(capture: Capture) -> list[str]:
    kinds = capture.kinds()
    names: list[str | None] = []
    if kinds.get("region_event"):
        names += capture.table("regions").column("name").to_pylist()
    if kinds.get("region_node"):
        names += capture.table("region_nodes").column("name").to_pylist()
    if kinds.get("code_count"):
        names += capture.table("code_counts").column("region").unique().to_pylist()
    if kinds.get("window"):
        strings = capture.strings()
        names += [strings.get(int(number)) for number in set(capture.windows.raw["region"].tolist()) if number]
    return [name for name in dict.fromkeys(names) if name]


def code_places(capture: Capture) -> PlaceLists:
    """(function, file, line) of everything that tables may name."""
    from .traffic import CodeNames

    function: list[str | None] = []
    file: list[str | None] = []
    line: list[int | None] = []
    kinds = capture.kinds()
    if kinds.get("fault") or kinds.get("window") or kinds.get("code_count") or kinds.get("allocation"):
        names = CodeNames(capture)
        function, file, line = [*names.function], [*names.file], [*names.line]
        from ..capture.model.call_stacks import call_stacks

        stacks = call_stacks(capture)
        for code in range(capture.replay.code_sites.num_rows):  # functions that others were inlined into
            for frame in stacks.frames_of_code(code)[1:]:
                function.append(frame["function"])
                file.append(frame["file"])
                line.append(frame["line"])
    if kinds.get("block_count") or kinds.get("count_epoch"):
        for table in (capture.table("count_sites"), capture.table("count_functions")):
            function += table.column("name").to_pylist()
            file += table.column("file").to_pylist()
            line += table.column("line").to_pylist()
    return function, file, line
