"""What `--count` asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....capture.store import count_arena
from ....errors import UsageError
from ...compiled.arena import EVENTS, CountOptions, event_code

HINT = (
    "use every=N, first=K, periodic, seed=N, budget=1%, epoch=100ms, events=A+B, threads=N, counters=N or children, "
    "joined by commas"
)


def duration_s(text: str) -> float:
    """100ms, 2s, 500us.

    >>> duration_s("100ms"), duration_s("2s")
    (0.1, 2.0)
    """
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    raise ValueError(text)


def _check_event(name: str) -> None:
    try:
        event_code(name)
    except ValueError:
        import difflib

        close = difflib.get_close_matches(name, EVENTS, n=1)
        raise UsageError(
            f"--count: unknown event {name!r}",
            hint=f"did you mean {close[0]}?" if close else f"events: {', '.join(EVENTS)}",
        ) from None


EXPECTED = {
    "seed": "an integer of at least 0",
    "first": "an integer of at least 0",
    "budget": "a percentage above 0 and below 100, as in 1%",
    "epoch": "a duration of at least 10 ms, as in 100ms",
}


def parse(text: str) -> CountOptions:
    """`every=N`, `first=K`, `periodic`, `seed=N`, `budget=1%`, `epoch=100ms`, `events=A+B`, `threads=N`, joined by commas."""
    options = CountOptions()
    words = [word for word in text.split(",") if word]
    names = ("every", "first", "seed", "threads", "counters")
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        at += 1
        try:
            changed: dict[str, Any]
            if name in ("random", "periodic", "children") and not equals:
                changed = {name: True}
            elif name in names and equals:
                number = int(value.replace("_", ""))
                if number < (0 if name in ("seed", "first") else 1):
                    raise ValueError(value)
                changed = {name: number}
            elif name == "budget" and equals:
                percent = float(value.removesuffix("%"))
                if not 0 < percent < 100:
                    raise ValueError(value)
                changed = {"budget_ppm": round(percent * 10_000)}
            elif name == "epoch" and equals:
                seconds = duration_s(value)
                if seconds < 0.01:
                    raise ValueError(value)
                changed = {"epoch_s": seconds}
            elif name == "events":
                # Events may be joined by commas too: words that follow belong here as far as they are names of events.
                listed = [part for part in value.split("+") if part and part != "none"]
                while at < len(words) and words[at] in EVENTS:
                    listed.append(words[at])
                    at += 1
                for event in listed:
                    _check_event(event)
                if len(listed) > count_arena.EVENTS:
                    raise UsageError(
                        f"--count: invalid value for events; expected at most {count_arena.EVENTS} events, not {len(listed)}",
                        hint=HINT,
                    )
                changed = {"events": tuple(listed)}
            else:
                raise UsageError(f"--count: unknown option {word!r}", hint=HINT)
        except ValueError:
            raise UsageError(
                f"--count: invalid value {value!r} for {name}; expected {EXPECTED.get(name, 'a positive integer')}",
                hint=HINT,
            ) from None
        options = replace(options, **changed)
    if options.random and options.periodic:
        raise UsageError("--count: random and periodic exclude each other", hint="random is the default of every=N")
    for name in ("random", "periodic"):
        if getattr(options, name) and options.every <= 1:
            raise UsageError(
                f"--count: {name} needs every=N", hint=f"memlens record --count={name},every=100 -- PROGRAM"
            )
    return options
