"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(value: float | None) -> str:
    """Bytes with a binary unit.

    >>> human_bytes(0), human_bytes(1536), human_bytes(134291456), human_bytes(-2048)
    ('0 B', '1.5 KiB', '128 MiB', '-2.0 KiB')
    """
    if value is None:
        return "–"
    size = abs(float(value))
    sign = "-" if value < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{sign}{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{sign}{size:.1f} {unit}"
        size /= 1024
    return ""


def human_figure(name: str, value: float | None) -> str:
    """A figure with the unit that its name carries.

    >>> human_figure("peak_rss_bytes", 2 << 20), human_figure("faults", 12345), human_figure("duration_s", 1.5)
    ('2.0 MiB', '12,345', '1.50 s')
    """
    if value is None:
        return "–"
    if name.endswith("_bytes"):
        return human_bytes(value)
    if name.endswith("_per_s"):
        return f"{value:,.0f}/s"
    if name.endswith("_s"):
        return f"{value:.2f} s"
    if name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def human_duration(ns: float) -> str:
    """A time in the unit that fits.

    >>> human_duration(1234.0), human_duration(2.5e9)
    ('1.2 µs', '2.5 s')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.1f} {unit}"
    return f"{ns:.0f} ns"


def exit_in_words(wait_status: int | None) -> str:
    """How a program ended.

    >>> exit_in_words(0), exit_in_words(3 << 8), exit_in_words(11)
    ('exit 0', 'exit 3', 'killed by signal 11 (SIGSEGV)')
    """
    import os
    import signal

    if wait_status is None:
        return "still running"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        try:
            name = f" ({signal.Signals(number).name})"
        except ValueError:
            name = ""
        return f"killed by signal {number}{name}"
    return f"exit {os.WEXITSTATUS(wait_status)}"
