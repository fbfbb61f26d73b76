"""docs/judge.md: every judged figure, worst first."""

from __future__ import annotations

from collections import Counter

from .model import Missing, Row, worst_first


def shown(value: float | None, unit: str) -> str:
    """
    >>> shown(None, ""), shown(1234567, ""), shown(3 << 20, "bytes"), shown(0.25, "share")
    ('–', '1,234,567', '3.00 MiB', '25.0 %')
    """
    if value is None:
        return "–"
    if unit == "share":
        return f"{value:.1%}".replace("%", " %")
    if unit == "bytes":
        for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if abs(value) >= size:
                return f"{value / size:.2f} {name}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def ranged(row: Row) -> str:
    low, high = shown(row.low, row.unit), shown(row.high, row.unit)
    return low if low == high else f"{low} to {high}"


def _error(row: Row) -> str:
    if row.reported is None or not row.difference:
        return "0"
    if row.error in (float("inf"), float("-inf")):
        return shown(row.difference, row.unit)
    return f"{row.error:+.2%}".replace("%", " %")


COLLECTORS = {
    "kernel": ("faults", "timeline", "record"),
    "heap": ("alloc",),
    "accesses": ("emulate",),
    "misses": ("caches",),
    "counts": ("count",),
    "estimates": ("trace",),
    "findings": ("findings",),
    "outputs": ("outputs",),
}
"""What the rows of each part begin with."""
VERDICTS = ("FAILS", "explained", "withheld", "holds")


def kept_lines(page: str, parts: tuple[str, ...]) -> list[str]:
    """Table lines of an earlier page that belong to none of these parts.

    >>> kept_lines("| a | count: x | 1 | 1 | o | 0 | 0 | holds |\\n| a | trace: y | 1 | 1 | o | 0 | 0 | **FAILS** |", ("counts",))
    ['| a | trace: y | 1 | 1 | o | 0 | 0 | **FAILS** |']
    """
    renewed = {collector for part in parts for collector in COLLECTORS[part]}
    known = {collector for collectors in COLLECTORS.values() for collector in collectors}
    lines = []
    for line in page.splitlines():
        cells = line.split(" | ")
        collector = cells[1].partition(":")[0] if len(cells) >= 8 else ""
        if collector in known - renewed:
            lines.append(line)
    return lines


def _line(row: Row) -> str:
    tolerance = f"{row.relative:.1%}".replace("%", " %") + (
        f" + {shown(row.absolute, row.unit)}" if row.absolute else ""
    )
    verdict = f"**{row.verdict}**" if row.verdict == "FAILS" else row.verdict
    return (
        f"| {row.program} | {row.collector}: {row.metric} | {shown(row.reported, row.unit)} | {ranged(row)} | {row.oracle} | {_error(row)} | {tolerance} | "
        f"{verdict}{': ' + row.reason if row.reason and row.verdict != 'holds' else ''} |"
    )


def verdict_of(line: str) -> str:
    return next(verdict for verdict in VERDICTS if verdict in line.rpartition(" | ")[2])


def render(rows: list[Row | Missing], machine: dict[str, str], *, quick: bool, kept: list[str] | None = None) -> str:
    """`kept`: lines of an earlier page, for the parts that were not judged anew."""
    missing = [row for row in rows if isinstance(row, Missing)]
    judged = worst_first(row for row in rows if isinstance(row, Row))
    # Stable: worst first within the new ones and within the kept ones.
    table = sorted([*map(_line, judged), *(kept or [])], key=lambda line: VERDICTS.index(verdict_of(line)))
    counted = Counter(map(verdict_of, table))
    programs = {line.split(" | ")[0] for line in table}
    lines = [
        "# The judge",
        "",
        "Figures of memlens compared with independent oracles: the kernel's counts, heaptrack, DHAT, lackey, cachegrind, and memlens's own exact "
        "recordings for its estimates. Programs are Debian's. Written by `make judge`"
        + (" (quick part)." if quick else ".")
        + (
            f" {len(judged)} figures were judged anew on the date below, {len(kept)} are kept from an earlier run."
            if kept
            else ""
        ),
        "",
        "; ".join(f"{name}: {text}" for name, text in machine.items()) + ".",
        "",
        f"**{len(table)} figures of {len(programs)} programs: {counted['holds']} hold, {counted['explained']} differ for a known reason, "
        f"{counted['withheld']} are withheld by memlens, {counted['FAILS']} fail.**",
        "",
        "A figure holds when its distance from the oracle's range (several runs, or the interval that memlens gives) is within the tolerance.",
        "",
        "Tolerances were set with these programs in view: peak RSS has 2.5 MiB for the library's own pages (redis is 1.9 MiB above native, node 4 to 5), loads and stores may be 10 % below lackey's (repeated string instructions count by 64 bytes; bytes are compared "
        "without that), and `unused_allocation` on sort, xz and hpcc is accepted as true (`AGREED` in judging/findings.py).",
        "",
        "| program | metric | memlens | oracle | | difference | tolerance | verdict |",
        "|---|---|---:|---:|---|---:|---:|---|",
        *table,
    ]
    if missing:
        lines += ["", "## Not judged here", "", "| program | check | why |", "|---|---|---|"]
        lines += [f"| {row.program} | {row.check} | {row.why.splitlines()[0] if row.why else ''} |" for row in missing]
    return "\n".join([*lines, ""])
