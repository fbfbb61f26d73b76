"""Numbers as people read them."""

from __future__ import annotations

from typing import Any

from ..units import estimated_bytes as estimated_bytes
from ..units import human_bytes as human_bytes
from ..units import human_moved as human_moved
from ..units import human_rate as human_rate
from ..units import plus_minus as plus_minus
from ..units import two_digits as two_digits


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


def estimated_count(value: float, error: float | None) -> str:
    """A count with its error: two significant digits where it is estimated.

    >>> estimated_count(97849, 2000), estimated_count(37, 0)
    ('about 98,000 ±4 %', '37')
    """
    return f"about {two_digits(value):,.0f}{plus_minus(value, error)}" if error else f"{value:,.0f}"


def human_count(value: float) -> str:
    """A number of events, shortened.

    >>> human_count(999), human_count(123456), human_count(2.5e9)
    ('999', '123 k', '2.50 G')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return (
                f"{scaled:.0f} {unit}"
                if scaled >= 100
                else f"{scaled:.3g} {unit}"
                if unit == "k"
                else f"{scaled:.2f} {unit}"
            )
    return f"{value:.0f}"


def counted_in_words(figures: dict[str, float | None]) -> str:
    """Whether the counts of an emulated run are exact, from the figures of `traffic`.

    >>> counted_in_words({"uncounted_executions": 0, "emulator_width_bytes": 0, "accessed_bytes": 100})
    'exact: every access counted'
    >>> counted_in_words({"uncounted_executions": 1000, "emulator_width_bytes": 0, "accessed_bytes": 100})
    'exact except for 1,000 executions that were not counted'
    >>> counted_in_words({"uncounted_executions": 1, "emulator_width_bytes": 25, "accessed_bytes": 100})
    'exact except for 1 execution that was not counted and 25 % of the bytes, an upper bound'
    """
    missing, upper = int(figures.get("uncounted_executions") or 0), figures.get("emulator_width_bytes") or 0
    parts = []
    if missing:
        parts.append(f"{missing:,} execution{' that was' if missing == 1 else 's that were'} not counted")
    if upper:
        share = 100 * upper / (figures["accessed_bytes"] or upper)
        parts.append(f"{share:.2g} % of the bytes, an upper bound")
    return f"exact except for {' and '.join(parts)}" if parts else "exact: every access counted"


def addresses_in_words(figures: dict[str, float | None]) -> str:
    """How much of an emulated run has its addresses recorded, from the figures of `traffic`.

    >>> addresses_in_words({"recorded_share": 0.0104, "windows": 312})
    'addresses: 1.0 % in 312 windows'
    >>> addresses_in_words({"recorded_share": 1.0, "windows": 1})
    'addresses: all, in 1 window'
    """
    share, windows = figures["recorded_share"], int(figures["windows"] or 0)
    if share is None:
        return "addresses: not recorded"
    counted = f"{windows:,} window{'' if windows == 1 else 's'}"
    if share >= 1:
        return f"addresses: all, in {counted}"
    percent = 100 * share
    return f"addresses: {percent:.1f} % in {counted}" if percent >= 0.1 else f"addresses: {percent:.1g} % in {counted}"


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


def imported_in_words(meta: dict[str, Any]) -> str | None:
    """Where an imported capture comes from; None for one that was recorded.

    >>> imported_in_words({"import": {"format": "lackey", "sources": ["/tmp/a", "/tmp/b"]}})
    'imported from lackey: a and 1 more'
    """
    import os

    origin = meta.get("import")
    if not origin:
        return None
    sources = origin.get("sources") or ["?"]
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"imported from {origin.get('format')}: {os.path.basename(sources[0])}{more}"


def human_span(row: dict[str, Any]) -> str:
    """Wall-clock time of a region, or its bounds.

    >>> human_span({"wall_ns": 2e9, "wall_low_ns": 2e9, "wall_high_ns": 2e9})
    '2.0 s'
    >>> human_span({"wall_ns": None, "wall_low_ns": 1e6, "wall_high_ns": 2e6})
    '1.0 ms to 2.0 ms'
    """
    if row["wall_ns"] is not None:
        return human_duration(row["wall_ns"])
    if row["wall_low_ns"] is None:
        return "–"
    return f"{human_duration(row['wall_low_ns'])} to {human_duration(row['wall_high_ns'])}"


def gigabytes(row: dict[str, Any]) -> str:
    """GB/s of a region: without our own cost where that is known, or its bounds, or nothing.

    >>> gigabytes({"corrected_bytes_per_second": None, "bytes_per_second": 5.1e10})
    '51'
    >>> none = dict.fromkeys(("corrected_bytes_per_second", "bytes_per_second"))
    >>> gigabytes({**none, "bytes_per_second_low": 1e9, "bytes_per_second_high": 2.34e9})
    '1 to 2.34'
    """
    value = row["corrected_bytes_per_second"] or row["bytes_per_second"]
    if value is not None:
        return f"{value / 1e9:.3g}"
    if row["bytes_per_second_low"] is None:
        return "–"
    return f"{row['bytes_per_second_low'] / 1e9:.3g} to {row['bytes_per_second_high'] / 1e9:.3g}"


def error_in_words(row: dict[str, Any]) -> str:
    """Half of the 95 % interval of a region's bytes.

    >>> error_in_words({"bytes": 200, "bytes_high": 210.0, "bytes_error_reason": None})
    '5.0%'
    >>> error_in_words({"bytes": 1, "bytes_high": None, "bytes_error_reason": "too few executions: 3 counted"})
    'too few'
    """
    if row["bytes"] is None:
        return "–"
    if row["bytes_high"] is None:
        return "too few" if (row["bytes_error_reason"] or "").startswith("too few") else "not known"
    share = (row["bytes_high"] - row["bytes"]) / row["bytes"] if row["bytes"] else 0.0
    return f"{share:.1%}" if share else "0"


GIGABYTES = "GB/s: 10^9 bytes a second, bytes by the time during which at least one thread was in the region, as a stopwatch shows it"
SHORT = "a range: executions too short to know how threads overlap"
THREAD_GIGABYTES = "by thread: bytes by the sum of the threads' times"


def correction_in_words(row: dict[str, Any]) -> str:
    """How our own cost was taken off a bandwidth, from a row of `bandwidth`.

    >>> correction_in_words({"correction": "calibrated", "counting_cost_share": 0.02})
    'counting cost 2.0 %, calibrated'
    """
    share = row["counting_cost_share"]
    if row["correction"] is None or share is None:
        return "not corrected"
    if float(share) < 0:
        return "counting cost too small to measure"
    how = "calibrated" if row["correction"] == "calibrated" else "measured"
    return f"counting cost {100 * float(share):.1f} %, {how}"
