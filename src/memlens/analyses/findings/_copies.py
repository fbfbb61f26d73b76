"""Code that only moves or fills memory: by its name, or by what it does where libc has no names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...capture.model.call_stacks import Frame
    from ...capture.reader import Capture
    from ...results import Key

COPY_NAMES = re.compile(
    r"^(?:__(?:GI_)?|_)?(?:mem(?:cpy|move|set|pcpy|ccpy)|b(?:copy|zero)|(?:st[rp]|wcs|wmem)n?(?:cpy|move|set)|explicit_bzero"
    r"|(?:forward|backward)_copy)(?:$|_|@)|^(?:core|std)::(?:ptr|intrinsics)::copy|^std::__copy_move|^_(?:fast)?memcpy"
)
"""memcpy, __memmove_avx_unaligned_erms, __memset_generic, bzero, …"""
LIBC = re.compile(r"(?:^|/)(?:libc[.-]|ld-musl)")
NEAR_BYTES = 512
"""Unnamed code of libc belongs together when it is nearer than this."""
WIDE_BYTES = 12


def is_copy_name(function: str | None) -> bool:
    """
    >>> [is_copy_name(n) for n in ("memcpy", "__memmove_avx_unaligned_erms", "memcpy_s_checked", "copy_rows", "memset@plt")]
    [True, True, True, False, True]
    """
    return function is not None and COPY_NAMES.match(function) is not None


def copying_codes(capture: Capture) -> dict[int, str]:
    """Codes (rows of ``sites``) of functions that copy or fill memory, with a name for each.

    A distribution's libc is stripped, and the variant of memcpy that it picked has no symbol. Its unnamed
    code counts as a copy when neighbouring instructions together load and store the same bytes (or only
    store) in accesses of vector width.
    """
    import numpy as np

    sites = capture.replay.code_sites
    functions, modules = sites.column("function").to_pylist(), sites.column("module").to_pylist()
    found = {code: str(name) for code, name in enumerate(functions) if is_copy_name(name)}
    table = capture.table("code_counts")
    code = table.column("code").fill_null(len(functions)).to_numpy().astype(np.int64)
    sums = {name: np.zeros(len(functions) + 1) for name in ("loads", "stores", "load_bytes", "store_bytes")}
    for name, total in sums.items():
        np.add.at(total, code, table.column(name).to_numpy().astype(float))
    offsets = sites.column("file_offset").to_pylist()
    unnamed: dict[str, list[int]] = {}
    for number in np.unique(code).tolist():
        if number < len(functions) and functions[number] is None and LIBC.search(modules[number] or ""):
            unnamed.setdefault(modules[number], []).append(number)
    for module, numbers in unnamed.items():
        numbers.sort(key=lambda number: offsets[number])
        cluster: list[int] = []
        for number in [*numbers, None]:
            if cluster and (number is None or offsets[number] - offsets[cluster[-1]] > NEAR_BYTES):
                kind = _kind({name: float(total[cluster].sum()) for name, total in sums.items()})
                if kind:
                    label = f"{kind} in {module.rpartition('/')[2]} (no symbol)"
                    found.update(dict.fromkeys(cluster, label))
                cluster = []
            if number is not None:
                cluster.append(number)
    return found


def _kind(sums: dict[str, float]) -> str | None:
    accesses = sums["loads"] + sums["stores"]
    if not accesses or (sums["load_bytes"] + sums["store_bytes"]) / accesses < WIDE_BYTES:
        return None
    if sums["load_bytes"] < 0.05 * sums["store_bytes"]:
        return "fill"
    return "copy" if 0.8 <= sums["load_bytes"] / max(sums["store_bytes"], 1.0) <= 1.25 else None


def callers(capture: Capture, copying: dict[int, str]) -> list[tuple[Frame, float]]:
    """Who calls copies, from the call stacks at windows' starts: (frame, executed accesses that they stand for)."""
    from ...capture.model.call_stacks import call_stacks

    stacks = call_stacks(capture)
    weights: dict[Key, float] = {}
    frames: dict[Key, Frame] = {}
    windows = capture.windows
    units = windows.units
    first_of_unit: set[int] = set()
    for unit, stack in zip(units.of_window.tolist(), windows.columns["stack"].tolist(), strict=True):
        if unit in first_of_unit or stack == 0:
            continue
        first_of_unit.add(unit)
        codes = stacks.codes.get(stack, [])
        depth = 0
        while depth < len(codes) and codes[depth] in copying:
            depth += 1
        if depth == 0 or depth == len(codes):
            continue
        frame = stacks.frames_of_code(codes[depth])[0]
        key = (frame["function"], frame["module"], frame["file"], frame["line"])
        frames[key] = frame
        weights[key] = weights.get(key, 0.0) + float(units.executed[unit])
    return sorted(((frames[key], weight) for key, weight in weights.items()), key=lambda pair: -pair[1])
