"""Values that break readers: limits of types, wrong types, names that steer terminals."""

from __future__ import annotations

import random
from typing import Any

HOSTILE = (
    "\x1b]52;c;cHduZWQ=\x07",
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x9b2J\x90q\x9c",
    "\u202egnp.exe\u2066\u200f",
    "[bold red]markup[/] [link=http://x]y[/link] [/]",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*2",
    "<script>alert(1)</script>",
    "a\r\nb\tc\x00d\x7f",
    "",
    "x" * 5000,
    "../../etc/passwd",
    "/dev/zero",
    "\ud800",
)


def deep(levels: int = 100) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def wrong_value(draw: random.Random) -> Any:
    """Any value of JSON, mostly of a type that is not expected."""
    return draw.choice(
        (
            *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf")),
            *(1 << 31, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 10**400),
            *(
                "",
                "x",
                "4096",
                "complete",
                "recording",
                "standalone",
                [],
                {},
                [None],
                [[]],
                [{}],
                {"": None},
                {"x": {}},
            ),
            *([0] * 50, deep(), ["x", 1, None], {"node": "x"}, [1, 2, 3], [1.5, -1]),
            *HOSTILE,
        )
    )


def wrong_number(draw: random.Random, bits: int, now: int, others: list[int]) -> int:
    """A value of an unsigned field of so many bits."""
    top = (1 << bits) - 1
    return (
        draw.choice(
            (
                *(
                    0,
                    1,
                    2,
                    3,
                    7,
                    8,
                    63,
                    64,
                    255,
                    256,
                    top,
                    top - 1,
                    top >> 1,
                    (top >> 1) + 1,
                    1 << (bits // 2),
                    now + 1,
                    now - 1,
                ),
                *(
                    now << 1,
                    now >> 1,
                    now ^ (1 << draw.randrange(bits)),
                    now ^ (1 << draw.randrange(bits)),
                    draw.getrandbits(bits),
                ),
                *(
                    1 << draw.randrange(bits),
                    (1 << 31) % (top + 1),
                    (1 << 20) % (top + 1),
                    (1 << 47) % (top + 1),
                    draw.choice(others or [0]),
                ),
            )
        )
        & top
    )
