"""Names of functions and places that fit a width: the end of a place, its file and line, is never cut; a module gives way to the function."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ._charts import shortened

CLONE = re.compile(r" \[clone [^\]]*\]")
OPERATOR = re.compile(r"(?:-|operator[<>]?)$")
"""Before a `<` or `>` that is no bracket."""
UNSAID = "…"
LEAST_FUNCTION = 20
"""Characters of a function below which what stands behind the place goes."""


def _emptied(text: str, opening: str, closing: str, depth: int) -> str:
    """Bracketed parts of at least this nesting depth replaced by `…`."""
    out: list[str] = []
    level = 0
    for at, character in enumerate(text):
        arrow = character in "<>" and bool(OPERATOR.search(text[max(0, at - 10) : at]))
        if character == opening and not arrow:
            level += 1
            if level <= depth:
                out.append(character)
            if level == depth:
                out.append(UNSAID)
        elif character == closing and not arrow and level:
            if level <= depth:
                out.append(character)
            level -= 1
        elif level < depth:
            out.append(character)
    return "".join(out)


def _depth(text: str, opening: str, closing: str) -> int:
    level = most = 0
    for character in text:
        level += (character == opening) - (character == closing)
        most = max(most, level)
    return most


def _without_result(text: str) -> str:
    """A function without the type of its result, which demangled templates have.

    >>> _without_result("double combine<…>(int, int)"), _without_result("T::operator bool() const"), _without_result("f")
    ('combine<…>(int, int)', 'T::operator bool() const', 'f')
    """
    level = 0
    for at, character in enumerate(text):
        if (character == "(" and level == 0) or text.startswith("operator", at):
            break
        level += (character in "<(") - (character in ">)")
        if character == " " and level == 0:
            return _without_result(text[at + 1 :])
    return text


def short_function(name: str, width: int) -> str:
    """At most `width` characters: template arguments go first, innermost ones before outer ones, then the type of
    the result, parameters, and at last the middle.

    >>> short_function("double combine<double, float>(std::vector<double, std::allocator<double> > const&)", 60)
    'double combine<…>(std::vector<…> const&)'
    >>> short_function("double combine<double, float>(std::vector<double, std::allocator<double> > const&)", 20)
    'combine<…>(…)'
    >>> short_function("Generator<double, std::vector<double> >::make(double) [clone ._omp_fn.0]", 40)
    'Generator<…>::make(…) [clone ._omp_fn.0]'
    >>> short_function("a_function_with_a_long_name", 12), short_function("f(int)", 12)
    ('a_func…_name', 'f(int)')
    """
    if len(name) <= width:
        return name
    clone = "".join(CLONE.findall(name))
    text = CLONE.sub("", name)
    text = re.sub(r"> +(?=>)", ">", text)
    for opening, closing in ("<>", "  ", "()"):
        if opening == " " and len(text) + len(clone) > width:
            text = _without_result(text)
        for depth in range(_depth(text, opening, closing) if opening != " " else 0, 0, -1):
            if len(text) + len(clone) <= width:
                break
            text = _emptied(text, opening, closing, depth)
    for suffix in (clone, clone.replace("[clone ", "[")):
        whole = text + suffix
        if len(whole) <= width:
            return whole
    return shortened(whole, max(width, 2))


def end_of_place(row: Mapping[str, object]) -> str:
    """`file.c:12`, or `[module]` where no line is known."""
    if row.get("file") and row.get("line"):
        return f"{os.path.basename(str(row['file']))}:{row['line']}"
    module = os.path.basename(str(row.get("module") or "")) or "?"
    return module if module.startswith("[") else f"[{module}]"


def place_text(row: Mapping[str, object], *, extra: str = "") -> str:
    """`function  file.c:12` and `extra`, however long; `fit` makes it shorter."""
    return f"{row.get('function') or '(no name)'}  {end_of_place(row)}{extra}"


def end_of(text: str) -> str:
    """File and line in a text of `place_text`; empty where it has none.

    >>> end_of("f  g.cpp:14 via memset"), end_of("f  [a.out]"), end_of("f")
    ('g.cpp:14', '', '')
    """
    _, gap, end = text.rpartition("  ")
    return end.partition(" ")[0] if gap and not end.startswith("[") else ""


def fit(text: str, width: int) -> str:
    """A place as `place_text` writes it in at most `width` characters.

    >>> fit("combine<double, float>(int)  g.cpp:14", 24)
    'combine<…>(…)  g.cpp:14'
    >>> fit("fill_all_of_it  g.cpp:14 via memset", 26)
    'fill_all_of_it  g.cpp:14'
    >>> fit("a_long_name  [a_long_module]", 12)
    'a_long_name'
    >>> fit("no place here", 8)
    'no p…ere'
    >>> fit("    inner part of it", 14)
    '    inner…f it'
    """
    if len(text) <= width:
        return text
    indent = len(text) - len(text.lstrip(" "))
    if 0 < indent < width:
        return text[:indent] + fit(text[indent:], width - indent)
    function, gap, end = text.rpartition("  ")
    if not gap:
        return shortened(text, width)
    place = end.partition(" ")[0]
    is_line = not place.startswith("[")
    for shown, least in ((end, LEAST_FUNCTION if end != place else 8), (place, 4 if is_line else 8)):
        room = width - len(shown) - 2
        if room >= min(len(function), least):
            return f"{short_function(function, room)}  {shown}"
    return shortened(text, width) if is_line else short_function(function, width)
