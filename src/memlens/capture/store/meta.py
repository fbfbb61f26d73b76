"""meta.json, read and checked once: types, ranges and bounds of every field that readers use.

Whatever reads ``capture.meta`` afterwards may rely on these types. Fields that are not named here are kept as they are: a newer
version may have written them. A field that is named and wrong is an error with its place, not a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, cast

from ...errors import CaptureError
from .files import read_whole

if TYPE_CHECKING:
    from .machine import Machine

MOST_BYTES = 64 << 20
"""Of the file; the largest part are ranges of shared memory, some 30 bytes each."""
MOST_LEVELS = 48
"""Of nesting: what we write has 6."""
TIME_TOP = (1 << 63) - 1
BYTES_TOP = 1 << 62
REMEDY = "the file was damaged or changed: restore it from a copy, or record again"

Check = Callable[[object], "str | tuple[str, str] | None"]
"""What was expected where a value is wrong: the text, or (place below it, text); None when it is right."""


class SharedSegment(TypedDict):
    """A segment of shared memory that was there before the recording."""

    device: list[int]
    inode: int
    placed: list[list[int]]


class QualityMeta(TypedDict, total=False):
    """What the recorder knows of the quality of a capture."""

    notes: list[str]
    stack: str
    incomplete: bool


class UnnamedModule(TypedDict):
    """A module with code addresses that have no name."""

    module: str
    addresses: int
    build_id: str
    remedy: str


class FileEntry(TypedDict, total=False):
    """A file of a capture: chunks of record files, digests of others."""

    bytes: int
    chunks: int
    sha256: str


class Rusage(TypedDict, total=False):
    """What the kernel counted of the whole tree."""

    minor_faults: int
    major_faults: int
    peak_rss_bytes: int | None
    peak_rss_floor_bytes: int
    user_s: float
    system_s: float


Meta = TypedDict(
    "Meta",
    {
        "format_version": int,
        "memlens_version": str,
        "state": str,
        "finishing": bool,
        "redacted": bool,
        "command": list[str] | None,
        "pid": int | None,
        "working_directory": str,
        "started": str,
        "started_unix_ns": int,
        "begin_ns": int,
        "end_ns": int,
        "wall_s": float,
        "wait_status": int | None,
        "cgroup": str | None,
        "machine": "Machine",
        "calibration": dict[str, Any] | None,
        "collectors": dict[str, dict[str, Any]],
        "session": dict[str, object],
        "channel": dict[str, object],
        "slow": dict[str, object],
        "count": dict[str, object],
        "trace": dict[str, object],
        "quality": QualityMeta,
        "rusage": Rusage,
        "files": dict[str, FileEntry],
        "shared_memory_before": list[SharedSegment],
        "unnamed_modules": list[UnnamedModule],
        "unsupported": list[dict[str, str]],
        "fault_recording_ns": float | None,
        "import": dict[str, object],
        "emulate": dict[str, object],
    },
    total=False,
)
"""The content of meta.json, once checked (`check_meta`): what memlens reads of it. A part of the recorder may keep more."""


# ---- what a value may be ---------------------------------------------------------------


def integer(low: int, high: int) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return None
        return f"an integer from {low} to {high}"

    return check


def number(low: float = 0.0, high: float = 1e18) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return None
        return f"a number from {low:g} to {high:g}"

    return check


def page_size(value: object) -> str | None:
    right = (
        isinstance(value, int) and not isinstance(value, bool) and 512 <= value <= 1 << 24 and not value & (value - 1)
    )
    return None if right else "a power of two from 512 to 16777216"


def text(value: object) -> str | None:
    return None if isinstance(value, str) else "a text"


def flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def scalar(value: object) -> str | tuple[str, str] | None:
    if isinstance(value, (str, bool)) or value is None:
        return None
    return number(-1e19, 1e20)(value)


def one_of(*names: str) -> Check:
    return lambda value: None if isinstance(value, str) and value in names else f"one of {', '.join(names)}"


def or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def either(*checks: Check) -> Check:
    def check(value: object) -> str | tuple[str, str] | None:
        wrong = [one(value) for one in checks]
        return None if None in wrong else wrong[0]

    return check


def anything(_: object) -> None:
    return None


def list_of(each: Check, *, most: int = 1 << 20) -> Check:
    def check(value: object) -> str | tuple[str, str] | None:
        if not isinstance(value, list) or len(value) > most:
            return f"a list of at most {most}"
        for index, one in enumerate(value):
            wrong = each(one)
            if wrong is not None:
                return _below(f"[{index}]", wrong)
        return None

    return check


def record_of(fields: dict[str, Check], *, needed: tuple[str, ...] = (), others: Check = anything) -> Check:
    """An object: the checks of its fields, which must be there, and what others may be."""

    def check(value: object) -> str | tuple[str, str] | None:
        if not isinstance(value, dict):
            return "an object"
        for name in needed:
            if name not in value:
                return name, f"{fields[name](None) or 'a value'}; it is missing"
        for name, one in value.items():
            wrong = fields.get(name, others)(one)
            if wrong is not None:
                return _below(f".{name}", wrong)
        return None

    return check


def _below(place: str, wrong: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(wrong, str):
        return place, wrong
    deeper = wrong[0] if wrong[0][:1] in ".[" else f".{wrong[0]}"
    return place + deeper, wrong[1]


# ---- what a capture's fields are ---------------------------------------------------------

_TIME = integer(0, TIME_TOP)
_BYTES = integer(0, BYTES_TOP)
_COUNT = integer(0, (1 << 64) - 1)
_SMALL = integer(0, 1 << 20)
_LEDGER = record_of({}, others=either(number(-1e19, 1e20), flag, text, list_of(scalar, most=1 << 16)))
"""Counts of a part of the recorder."""

_MACHINE = record_of(
    {
        "host": or_null(text),
        "kernel": or_null(text),
        "architecture": or_null(text),
        "cpu": or_null(text),
        "cpus": integer(1, 1 << 20),
        "cpu_max_mhz": or_null(number()),
        "caches": list_of(
            record_of(
                {"level": integer(0, 16), "type": text, "bytes": integer(0, 1 << 40), "line_bytes": integer(0, 1 << 16),
                 "ways": integer(0, 1 << 20), "sets": integer(0, 1 << 32), "shared_by_cpus": _SMALL},
                needed=("level", "type", "bytes", "line_bytes", "ways", "sets", "shared_by_cpus"),
            ),
            most=256,
        ),
        "numa_nodes": list_of(
            record_of(
                {"node": integer(0, 1 << 16), "cpus": list_of(_SMALL, most=1 << 16), "bytes": _BYTES,
                 "distances": list_of(_SMALL, most=1 << 16)},
                needed=("node", "bytes"),
            ),
            most=1 << 12,
        ),
        "memory_bytes": or_null(_BYTES),
        "page_bytes": page_size,
        "transparent_hugepages": or_null(text),
        "numa_balancing": or_null(flag),
        "fingerprint": or_null(text),
    }
)  # fmt: skip

_SETTINGS = record_of(
    {
        "stacks": or_null(either(text, flag)), "single": flag, "budget_share": or_null(number(0, 1)), "rate_hz": number(0, 1e6),
        "sample_bytes": _COUNT, "large_bytes": _COUNT, "sampling": text, "events": list_of(either(text, scalar), most=64),
        "add_ps": or_null(number()), "window": _COUNT, "period": _COUNT, "seed": or_null(_COUNT), "loads_only": flag,
        "regions": list_of(text), "functions": text, "on_full": text, "counts": flag, "pages": flag, "full": flag,
        "qemu": or_null(text), "plugin_api": or_null(integer(0, 1000)), "machine": or_null(text),
    }
)  # fmt: skip
"""Of any collector: a setting means the same wherever it is kept."""
_COLLECTORS = record_of({}, others=_SETTINGS)

_FIELDS: dict[str, Check] = {
    "format_version": integer(0, 1 << 31),
    "memlens_version": or_null(text),
    "state": one_of("recording", "complete", "standalone"),
    "command": or_null(list_of(text)),
    "pid": or_null(integer(0, (1 << 32) - 1)),
    "working_directory": or_null(text),
    "started": or_null(text),
    "started_unix_ns": or_null(integer(0, 253402300799 * 10**9)),
    "begin_ns": or_null(_TIME),
    "end_ns": or_null(_TIME),
    "wall_s": or_null(number(0, 1e11)),
    "wait_status": or_null(integer(-(1 << 31), (1 << 31) - 1)),
    "redacted": flag,
    "machine": _MACHINE,
    "collectors": _COLLECTORS,
    "calibration": or_null(record_of({})),
    "unsupported": list_of(record_of({}, others=or_null(text)), most=1 << 12),
    "quality": record_of({"notes": list_of(text), "incomplete": flag, "stack": or_null(text)}),
    "rusage": record_of({}, others=or_null(number(0, 1e19))),
    "session": _LEDGER,
    "channel": _LEDGER,
    "slow": _LEDGER,
    "count": _LEDGER,
    "trace": _LEDGER,
    "emulate": _LEDGER,
    "fault_recording_ns": or_null(number(0, 1e9)),
    "unnamed_modules": list_of(
        record_of({"module": text, "addresses": _COUNT, "build_id": or_null(text), "remedy": or_null(text)},
                  needed=("module", "addresses"))
    ),
    "shared_memory_before": or_null(
        list_of(
            record_of(
                {"placed": list_of(list_of(integer(0, 1 << 62), most=2)), "device": list_of(integer(0, (1 << 32) - 1), most=2),
                 "inode": _COUNT},
                needed=("placed", "device", "inode"),
            )
        )
    ),
    "import": record_of(
        {"format": text, "sources": list_of(text), "settings": record_of({}), "figures": record_of({}), "accesses": _COUNT,
         "windows": _COUNT}
    ),
    "cgroup": or_null(text),
}  # fmt: skip
_META = record_of(_FIELDS, needed=("format_version",))


def why_not_field(name: str, value: object) -> str | None:
    """Why a reader would refuse a field that somebody wants to write; None: it is right."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"{name} is no JSON: {error}"
    wrong = _META({"format_version": 1, name: value})
    if wrong is None:
        return None
    place, expected = _below("", wrong)
    return f"{place.lstrip('.')} is to be {expected}"


def is_known_field(name: str) -> bool:
    """A field that memlens itself writes and reads."""
    return name in _FIELDS


# ---- reading ------------------------------------------------------------------------------


def read_meta(path: Path) -> Meta:
    """The content of a capture's meta.json, checked.

    Raises
    ------
    OSError
        It cannot be opened or read.
    CaptureError
        It is no JSON, or a field is wrong: the message names the file and the field.
    """
    raw = read_whole(path, most_bytes=MOST_BYTES)
    try:
        meta = json.loads(raw.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant)
    except RecursionError:
        raise CaptureError(f"{path} is damaged: its values are nested too deeply", hint=REMEDY) from None
    except ValueError as error:
        raise CaptureError(f"{path} is damaged: {error}", hint=REMEDY) from error
    if not isinstance(meta, dict) or not isinstance(meta.get("format_version"), int):
        raise CaptureError(f"{path} is not a memlens capture's", hint="give the directory that memlens record wrote")
    return cast("Meta", meta)


def check_meta(path: Path, meta: Meta) -> None:
    """Raises CaptureError for the first field that is wrong."""
    _check_plain(path, meta)
    wrong = _META(meta)
    if wrong is None:
        wrong = _check_pairs(meta)
    if wrong is None:
        return
    place, expected = _below("", wrong)
    raise CaptureError(
        f"{path}: the field {place.lstrip('.')} is {_shown(_at(meta, place))}; expected {expected}", hint=REMEDY
    )


def _check_pairs(meta: Meta) -> tuple[str, str] | None:
    """What only several values together can be wrong in."""
    for index, segment in enumerate(meta.get("shared_memory_before") or []):
        place = f".shared_memory_before[{index}]"
        if len(segment["device"]) != 2:
            return f"{place}.device", "two numbers"
        for number_of, pair in enumerate(segment["placed"]):
            if len(pair) != 2:
                return f"{place}.placed[{number_of}]", "an offset and a length"
    begin, end = meta.get("begin_ns") or 0, meta.get("end_ns")
    if end and end < begin:
        return ".end_ns", f"at least begin_ns, {begin}"
    return None


def _check_plain(path: Path, meta: Meta) -> None:
    """Bounds of everything, also of fields that are not known: depth, numbers that fit, texts that can be written."""
    waiting: list[tuple[object, int, str]] = [(meta, 0, "")]
    while waiting:
        value, level, place = waiting.pop()
        if level > MOST_LEVELS:
            raise CaptureError(
                f"{path} is damaged: {place[:60].lstrip('.')}… is nested more than {MOST_LEVELS} levels deep",
                hint=REMEDY,
            )
        if isinstance(value, dict):
            waiting.extend((one, level + 1, f"{place}.{name}") for name, one in value.items())
        elif isinstance(value, list):
            waiting.extend((one, level + 1, place) for one in value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise CaptureError(
                f"{path}: the field {place.lstrip('.')} is {value}; expected a finite number", hint=REMEDY
            )
        elif isinstance(value, int) and abs(value) >= 1 << 128:
            raise CaptureError(f"{path}: the field {place.lstrip('.')} has more than 38 digits", hint=REMEDY)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _at(value: Any, place: str) -> object:
    """The value at a place, None where there is none."""
    import re

    for name, index in re.findall(r"\.([^.\[]*)|\[([0-9]+)\]", place):
        try:
            value = value[int(index)] if index else value[name]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
