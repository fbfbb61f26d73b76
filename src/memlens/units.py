"""Amounts of memory and rates as people read them: one convention for findings, notes, terminal and page.

Amounts of bytes, sizes and traffic alike, are binary: KiB, MiB, GiB. Bandwidth is decimal, as STREAM and vendors give it: 1 GB/s is 10^9
bytes a second, and never another unit.
"""

from __future__ import annotations


def human_bytes(value: float | None) -> str:
    """Bytes with a binary unit.

    >>> human_bytes(0), human_bytes(1536), human_bytes(134291456), human_bytes(-2048)
    ('0 B', '1.5 KiB', '128 MiB', '-2.0 KiB')
    """
    if value is None:
        return "–"
    size, unit = _scaled(value)
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


def human_moved(value: float | None) -> str:
    """Bytes moved, which are counted: three significant digits.

    >>> human_moved(1_280_000_000), human_moved(999), human_moved(16 << 10), human_moved(1023.9 * 1024), human_moved(None)
    ('1.19 GiB', '999 B', '16 KiB', '1,024 KiB', '–')
    """
    if value is None:
        return "–"
    size, unit = _scaled(value)
    return f"{size:.3g} {unit}" if abs(size) < 999.5 and unit != "B" else f"{size:,.0f} {unit}"


def human_rate(value: float | None) -> str:
    """Bandwidth.

    >>> human_rate(12_345_678_901.0), human_rate(2.5e6), human_rate(1.2345e12), human_rate(400), human_rate(None)
    ('12.3 GB/s', '0.0025 GB/s', '1,234 GB/s', 'below 0.0001 GB/s', '–')
    """
    if value is None:
        return "–"
    if 0 < value < 1e5:
        return "below 0.0001 GB/s"
    return f"{value / 1e9:.3g} GB/s" if value < 999.5e9 else f"{value / 1e9:,.0f} GB/s"


def two_digits(value: float) -> float:
    """Rounded to two significant digits, as an estimate deserves.

    >>> two_digits(97849), two_digits(0.0123), two_digits(0)
    (98000.0, 0.012, 0.0)
    """
    return float(f"{value:.1e}")


def plus_minus(value: float | None, error: float | None) -> str:
    """Two standard errors as a share of the value; empty where the value is exact.

    >>> plus_minus(1000, 25), plus_minus(10, 0), plus_minus(100, 100)
    (' ±5 %', '', ' ±200 %')
    """
    if not value or not error:
        return ""
    return f" ±{max(1, round(200 * error / abs(value)))} %"


def estimated_bytes(value: float | None, error: float | None) -> str:
    """Bytes with their error: two significant digits where they are estimated.

    >>> estimated_bytes(146600000, 3e6), estimated_bytes(4096, 0)
    ('about 140 MiB ±4 %', '4.0 KiB')
    """
    if value is None or not error:
        return human_bytes(value)
    size, unit = _scaled(value)
    return f"about {two_digits(size):g} {unit}{plus_minus(value, error)}"


def _scaled(value: float) -> tuple[float, str]:
    """A number of bytes and its binary unit.

    >>> _scaled(1536), _scaled(-5 << 50)
    ((1.5, 'KiB'), (-5120.0, 'TiB'))
    """
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return size, units[0]
