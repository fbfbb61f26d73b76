"""A calibration in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from ._rich import _grid, _print
from ._units import human_bytes, human_count

KINDS = ("read", "write", "copy")


def show(content: Mapping[str, Any], *, file: IO[str]) -> None:
    from rich.markup import escape

    from ._rich import _console

    console = _console(file)
    cores = len(content["cores"])
    console.print(
        f"[bold]Peaks of this machine[/]  {escape(content['machine']['cpu'])}, {cores} core{'s' * (cores > 1)}, "
        f"measured {content['measured']} in {content['seconds']} s"
    )
    heads = [f"{kind} GB/s" for kind in KINDS]
    everyone = [f"{cores} cores: read", "write", "copy"] if cores > 1 else []
    table = _grid(
        ("level", "left"), ("size", "right"), *((head, "right") for head in [*heads, *everyone, "latency ns"])
    )
    for level in content["levels"]:
        table.add_row(
            level["level"],
            human_bytes(level["bytes"]),
            *(_rate(level["one"][kind]) for kind in KINDS),
            *(_rate(level["all"][kind]) for kind in KINDS if cores > 1),
            _latency(level["latency"]),
        )
    _print(console, table)
    dram = content["levels"][-1]
    stream = dram["one"].get("stream_write"), dram["all"].get("stream_write")
    if stream[0] and stream[1]:
        beside = f", {cores} cores {_rate(stream[1])}" if cores > 1 else ""
        console.print(f"  writing past the caches: {_rate(stream[0])} GB/s{beside}", style="dim")
    console.print(f"  {tlb_in_words(dram)}", style="dim")
    if len(content["pairs"]) > 1:
        table = _grid(
            ("cores of node", "left"), ("memory of node", "left"), ("distance", "right"),
            *((head, "right") for head in [*heads, "latency ns"]),
        )  # fmt: skip
        for pair in content["pairs"]:
            table.add_row(
                str(pair["cpu_node"]), str(pair["memory_node"]), "–" if pair["distance"] is None else str(pair["distance"]),
                *(_rate(pair[kind]) for kind in KINDS), _latency(pair["latency"]),
            )  # fmt: skip
        _print(console, table)
    for who, number in (("one", 1), ("all", cores)):
        found = content["float"][who]
        if who == "one" or cores > 1:
            console.print(
                f"  floating point, {number} core{'s' * (number > 1)}: {human_count(found['double']['per_second'])} results/s double, "
                f"{human_count(found['single']['per_second'])} single (a product with a sum is two)",
                style="dim",
            )
    console.print(
        "  ± is the distance of the median half millisecond from the best one, where it is over 5 %", style="dim"
    )
    for warning in content["warnings"]:
        console.print(f"  ! {escape(warning)}", style="yellow")


def tlb_in_words(dram: Mapping[str, Any]) -> str:
    """What the TLB does to the latency of memory.

    >>> tlb_in_words({"latency": {"ns": 80.0, "huge_page_share": 1.0}, "latency_small_pages": {"ns": 100.0}})
    'latency of DRAM with small pages: 100 ns (+20 ns: misses of the TLB)'
    """
    with_huge, small = dram["latency"], dram["latency_small_pages"]["ns"]
    said = f"latency of DRAM with small pages: {small:.0f} ns"
    if with_huge["huge_page_share"] is None or with_huge["huge_page_share"] < 0.5:
        return f"{said}; no huge pages were granted for comparison"
    return f"{said} ({small - with_huge['ns']:+.0f} ns: misses of the TLB)"


def _rate(figure: Mapping[str, Any]) -> str:
    return f"{figure['bytes_per_second'] / 1e9:.3g}{_spread(figure)}"


def _latency(figure: Mapping[str, Any]) -> str:
    return f"{figure['ns']:.3g}{_spread(figure)}"


def _spread(figure: Mapping[str, Any]) -> str:
    return f" ±{figure['spread']:.0%}" if figure["spread"] > 0.05 else ""
