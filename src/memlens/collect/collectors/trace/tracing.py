"""What is asked of traced programs, and what they report at the end.

The programs write windows through the channel of `alloc` (native/runtime/services.c); their sites are numbered in the arena
of `count`, which also keeps what could not be recorded.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .... import _core
from ....capture.store import counted_modules
from ....capture.store.layouts import listed
from ....errors import UsageError
from ...compiled.built import sums

if TYPE_CHECKING:
    import pyarrow as pa

VARIABLE = "MEMLENS_TRACE"
RING_BYTES = 4 << 20
CALL_PLACE = re.compile(r" \([^()]*:\d+\)$")
"""Behind the names of functions that another was inlined into."""
LARGEST_PERIOD = 1 << 40
STATES = listed("trace_state")
HINT = "use window=N, period=N, full, loads, regions=A+B, seed=N, stacks=off or on-full=drop|wait, joined by commas"


@dataclass(frozen=True)
class TraceOptions:
    """What `--trace` asks for."""

    window: int = 1000
    """Accesses that a window records."""
    period: int = 100_000
    """Executed accesses from window to window, on average."""
    full: bool = False
    loads: bool = False
    """Stores are executed, but not recorded."""
    regions: tuple[str, ...] = ()
    """Only inside these."""
    functions: str = ""
    """Only accesses of the code of functions that this regular expression finds."""
    seed: int | None = None
    """Of the places of windows; None: another one each time."""
    stacks: bool = True
    wait: bool = False
    """A full ring is waited for; else the window is dropped and counted."""

    def drawn(self) -> TraceOptions:
        """With a seed: the same options give the same windows."""
        return self if self.seed is not None else replace(self, seed=secrets.randbelow(1 << 32))

    @property
    def variable(self) -> str:
        """For the program's environment."""
        window = self.window
        words = [f"window={window}", f"period={window if self.full else self.period}", f"seed={self.seed or 0}"]
        words += [f"loads={int(self.loads)}", f"wait={int(self.wait)}", f"stacks={int(self.stacks)}"]
        if self.functions:
            words.append("functions=1")
        if self.regions:
            words.append("regions=" + "\x1f".join(self.regions))
        return f"{VARIABLE}={','.join(words)}"

    @property
    def settings(self) -> dict[str, object]:
        """What a reader must know."""
        described: dict[str, object] = {"window": self.window, "period": self.period, "seed": self.seed}
        if self.full:
            described = {"full": True}
        return {
            **described,
            "loads_only": self.loads,
            "regions": list(self.regions),
            "functions": self.functions,
            "stacks": self.stacks,
            "on_full": "wait" if self.wait else "drop",
        }


def parse(text: str) -> TraceOptions:
    """`window=N`, `period=N`, `full`, `loads`, `regions=A+B`, `seed=N`, `stacks=off`, `on-full=wait`, joined by commas.

    >>> parse("window=500,period=50_000,loads").period
    50000
    """
    options = TraceOptions()
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        changed: dict[str, Any]
        if name in ("full", "loads") and not equals:
            changed = {name: True}
        elif name in ("window", "period", "seed") and equals:
            digits = value.replace("_", "")
            if not digits.isdecimal() or int(digits) < (0 if name == "seed" else 1) or int(digits) >= 1 << 63:
                expected = "an integer of at least 0" if name == "seed" else "a positive integer"
                raise UsageError(f"--trace: invalid value {value!r} for {name}; expected {expected}", hint=HINT)
            changed = {name: int(digits)}
        elif name == "regions" and value:
            changed = {"regions": tuple(part for part in value.split("+") if part)}
        elif name == "stacks" and value in ("on", "off"):
            changed = {"stacks": value == "on"}
        elif name == "on-full" and value in ("drop", "wait"):
            changed = {"wait": value == "wait"}
        else:
            raise UsageError(f"--trace: unknown option {word!r}", hint=HINT)
        options = replace(options, **changed)
    if options.window >= options.period and not options.full:
        raise UsageError(
            f"--trace: a window of {options.window:,} accesses does not fit a period of {options.period:,}",
            hint="give a longer period, or full for a trace of everything",
        )
    if options.period > LARGEST_PERIOD:
        raise UsageError(
            f"--trace: invalid value {options.period:,} for period; expected at most {LARGEST_PERIOD:,}", hint=HINT
        )
    if len(options.regions) > 64 or sum(len(name.encode()) + 1 for name in options.regions) > 8000:
        raise UsageError(
            f"--trace: {len(options.regions)} regions; expected at most 64, with 8000 characters in total", hint=HINT
        )
    return options


# ---- functions ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Selection:
    """Sites of the functions that are asked for, as the arena takes them (format/memlens_trace.h)."""

    content: bytes
    functions: frozenset[str]
    modules: frozenset[str]
    """Build-ids of the files that were looked at."""


def _names(tables: Mapping[str, pa.Table]) -> Iterator[tuple[int, str, list[str]]]:
    """Number of each recorded site, the function that it is written in, and those that this was inlined into."""
    sites = tables["count_sites"]
    rows = sites.column("name").to_pylist(), sites.column("inlined_into").to_pylist()
    traced = tables["count_traced"]
    for number, site in zip(traced.column("number").to_pylist(), traced.column("site").to_pylist(), strict=True):
        if number is not None:
            yield number, rows[0][site], [CALL_PLACE.sub("", entry) for entry in rows[1][site] or ()]


def select(program: str, pattern: str) -> Selection:
    """Finds the functions in the program and in the libraries that it needs. Raises UsageError where there is none."""
    from ....capture.model.count_tables import decode_modules, static_tables

    try:
        matches = re.compile(pattern).search
    except re.error as error:
        raise UsageError(f"--functions {pattern!r} is not a regular expression: {error}") from None
    parts, found, modules = [], set(), set()
    for path in counted_modules.libraries(program):
        try:
            sections = counted_modules.read_sections(path)
            build_id = bytes.fromhex(_core.read_build_id(path) or "")
        except (OSError, ValueError):
            continue
        if sections is None or not build_id:
            continue
        decoded = decode_modules(
            {path: (sections.functions, sections.functions_address, sections.tables, sections.tables_address)}
        )
        known: dict[str, bool] = {}
        bits = bytearray((sums(path)[1] + 63) // 64 * 8)
        for number, name, outer in _names(static_tables(decoded)):
            for function in (name, *outer):
                if function not in known:
                    known[function] = matches(function) is not None
                if known[function]:
                    found.add(function)
                    bits[number // 8] |= 1 << number % 8
        modules.add(build_id.hex())
        parts.append(struct.pack("<II64s", len(build_id), sums(path)[1], build_id) + bits)
    if not found:
        raise UsageError(
            f"no traced function of {os.path.basename(program)} or its libraries matches --functions {pattern!r}",
            hint="names are as c++filt prints them; code is traced if it was built with memlens cc --memlens=trace",
        )
    return Selection(b"".join(parts), frozenset(found), frozenset(modules))


# ---- programs -------------------------------------------------------------------------------------------------------
def why_not(program: str) -> tuple[str, str]:
    """(what is missing, remedy) of a program without traced code."""
    name = os.path.basename(program)
    return (
        f"{name} records no accesses: neither it nor a library that it needs was built for tracing",
        'build it with CC="memlens cc --memlens=trace" (or --memlens=count,trace), or record every access with --emulate',
    )


# ---- the end ---------------------------------------------------------------------------------------------------------
def totals(processes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sums over program images, by the names of `trace_status`."""
    names = (
        "executed",
        "windows",
        "recorded",
        "implied",
        "dropped_windows",
        "dropped",
        "late",
        "torn",
        "interrupted",
        "unregistered",
    )
    found = {name: sum(process[f"trace_{name}"] for process in processes) for name in names}
    found["images"] = sum(process["trace_state"] == STATES.index("traced") for process in processes)
    found["images_without_library"] = sum(process["trace_state"] == STATES.index("no library") for process in processes)
    return found


def notes(found: Mapping[str, int], *, windows: bool, unseen: Sequence[str] = ()) -> list[str]:
    """Sentences on what is missing.

    Parameters
    ----------
    windows
        Some were drawn, as opposed to a full trace.
    unseen
        Traced files that were not looked at for the functions that are asked for.
    """
    told = []
    if unseen:
        names = ", ".join(sorted(os.path.basename(path) for path in unseen)[:3])
        told.append(
            f"--functions was not applied to {len(unseen)} files that the program loaded while it ran ({names}): none of their accesses are "
            "recorded. Link the program with them to include them."
        )
    if found["images_without_library"]:
        told.append(
            f"Traced programs that recorded no accesses: {found['images_without_library']}; the library that writes them was not loaded "
            "(statically linked programs cannot load it; link them dynamically)."
        )
    if found["dropped_windows"]:
        total = found["recorded"] + found["dropped"]
        told.append(
            f"{found['dropped_windows']:,} window records with {found['dropped']:,} accesses ({100 * found['dropped'] / total:.2g} % of those "
            "recorded) found no room and were dropped: their places in time are in table windows. Record fewer (a longer period), or let "
            "the program wait: --trace=on-full=wait."
        )
    if windows and found["late"] > 0.1 * max(found["windows"], 1):
        told.append(
            f"{found['late']:,} of {found['windows']:,} windows began where the one before ended: most of the period is recorded. Give a longer "
            "period."
        )
    if found["torn"]:
        told.append(f"{found['torn']:,} runs of accesses are missing: a a signal handler interrupted their writing.")
    if found["unregistered"]:
        told.append(
            f"{found['unregistered']:,} recorded accesses have no site: their code ran before it was registered."
        )
    return told
