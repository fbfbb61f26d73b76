"""The report of each golden capture is what it was: figure by figure, row by row, with a reason for each difference.

`tests/goldens/make.py` made the captures, one of each kind; `NAME.json.gz` is what `memlens report --json` said of them.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "goldens"))

import changes
import make

NAMES = sorted(path.name.removesuffix(".json.gz") for path in make.HERE.glob("*.json.gz"))


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a JSON document with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{at}[{number}]")
    else:
        yield at, value


def same(one: Any, other: Any) -> bool:
    """Floats of sums in another order."""
    if not (isinstance(one, float) and isinstance(other, float)):
        return False
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))


def moved(place: str) -> str:
    for pattern, new, _ in changes.MOVED:
        place = re.sub(pattern, new, place)
    return place


def reworded(value: Any) -> Any:
    if isinstance(value, str):
        for old, new in changes.REWORDED:
            value = re.sub(old, new, value)
    return value


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not as it was, but for what `changes.py` lists with a reason."""
    found = []
    was = {moved(place): reworded(value) for place, value in was.items()}
    for place in was.keys() | now.keys():
        one, other = was.get(place, "nothing"), now.get(place, "nothing")
        if same(one, other) or (one == other and type(one) is type(other)):
            continue
        if place not in was and any(re.search(pattern, place) for pattern, _ in changes.ADDED):
            continue
        if any(re.search(pattern, place) for pattern, _ in changes.CHANGED):
            continue
        found.append(f"{place}: was {one!r}, is {other!r}")
    return sorted(found)


def in_one_order(document: dict[str, Any]) -> dict[str, Any]:
    """The document with rows that may stand in any order put into one."""
    for place, column, _ in changes.TIES:
        *path, name = place.split(".")
        at: Any = document
        for step in path:
            at = at.get(step, {})
        if name in at:
            at[name].sort(key=lambda row: (-row[column], json.dumps(row, sort_keys=True)))
    return document


def test_there_is_a_golden_of_each_kind() -> None:
    assert {*make.GOLDENS, "lackey"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_report_is_what_it_was(name: str, tmp_path: Path) -> None:
    was = json.loads(gzip.decompress((make.HERE / f"{name}.json.gz").read_bytes()))
    now = make.report_of(make.opened(name, tmp_path))
    found = differences(dict(leaves(in_one_order(was))), dict(leaves(in_one_order(now))))
    assert not found, f"{len(found)} of {len(dict(leaves(was)))} values differ:\n" + "\n".join(found[:20])
