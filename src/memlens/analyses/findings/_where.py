"""Places in the program, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...results import Reference


def place(site: Mapping[str, object]) -> str:
    """``solve (solver.c:42)``, as much of it as is known."""
    function = _function_of(site)
    if not site.get("file") or not site.get("line"):
        return function
    return f"{function} ({str(site['file']).rpartition('/')[2]}:{site['line']})"


def _function_of(row: Mapping[str, object]) -> str:
    return str(row.get("function") or f"unnamed code in {str(row.get('module') or '?').rpartition('/')[2]}")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def counted(value: float, error: float | None) -> str:
    """A number in words: two significant digits where it is estimated.

    >>> counted(12345, 0), counted(12345, 800.0)
    ('12,345', 'about 12,000')
    """
    return f"about {float(f'{value:.2g}'):,.0f}" if error else f"{value:,.0f}"


# ---- references -------------------------------------------------------
def code(row: Mapping[str, object]) -> Reference:
    """A function or line, from a row with function, module, file and line."""
    from ...results import Reference

    line = row.get("line")
    return Reference(
        kind="code", name=_function_of(row), module=_text(row.get("module")), file=_text(row.get("file")),
        line=line if isinstance(line, int) and line else None,
    )  # fmt: skip


def thing(name: str, *, file: str | None = None, line: int | None = None) -> Reference:
    """An object, as tables name it."""
    from ...results import Reference

    return Reference(kind="object", name=name, file=file, line=line)


def thread(number: int) -> Reference:
    from ...results import Reference

    return Reference(kind="thread", name=str(number))


def process(number: int) -> Reference:
    from ...results import Reference

    return Reference(kind="process", name=str(number))


def region(name: str) -> Reference:
    from ...results import Reference

    return Reference(kind="region", name=name)


def cache_line(address: int) -> Reference:
    from ...results import Reference

    return Reference(kind="line", name=f"{address:#x}")


def node(number: int) -> Reference:
    from ...results import Reference

    return Reference(kind="node", name=str(number))


def share_of(part: float, whole: float) -> float | None:
    """A share of the run, at most all of it; None where the whole is not known.

    >>> share_of(1, 4), share_of(5, 4), share_of(1, 0)
    (0.25, 1.0, None)
    """
    return min(1.0, max(0.0, part / whole)) if whole and whole > 0 else None
