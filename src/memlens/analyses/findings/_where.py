"""Places in the program, in words."""

from __future__ import annotations

from typing import Any


def place(site: dict[str, Any]) -> str:
    """``solve (solver.c:42)``, as much of it as is known."""
    function = site.get("function") or f"unnamed code in {(site.get('module') or '?').rpartition('/')[2]}"
    if not site.get("file") or not site.get("line"):
        return str(function)
    return f"{function} ({site['file'].rpartition('/')[2]}:{site['line']})"


def counted(value: float, error: float | None) -> str:
    """A number in words: two significant digits where it is estimated.

    >>> counted(12345, 0), counted(12345, 800.0)
    ('12,345', 'about 12,000')
    """
    return f"about {float(f'{value:.2g}'):,.0f}" if error else f"{value:,.0f}"
