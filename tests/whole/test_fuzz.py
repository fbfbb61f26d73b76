"""The fuzz targets of tests/fuzz: inputs that are kept run through each, and a second of fuzzing from them.

`make fuzz` fuzzes each for ten minutes; docs/fuzzing.md says what the last runs did.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import fuzz  # noqa: E402

SECONDS = 1
"""Of fuzzing for each target."""


@pytest.fixture(scope="module")
def built() -> None:
    try:
        fuzz.compilers()
    except fuzz.FuzzError as missing:
        pytest.skip(str(missing))
    fuzz.build(quick=True)


@pytest.mark.parametrize("target", fuzz.targets())
def test_kept_inputs_and_a_second_of_fuzzing_find_nothing(built: None, target: str) -> None:
    said = fuzz.check(target, SECONDS)
    assert not said, said


def test_every_folder_of_native_decoders_has_targets() -> None:
    """What reads bytes from outside: a new folder of decoders, a new importer or a new file of perf's decoder needs a target."""
    included, text = set(), ""
    for source in (ROOT / "tests" / "fuzz").glob("*.[ch]*"):
        text += source.read_text()
    included = set(re.findall(r'#include "(?:\.\./\.\./native/)?([a-z_]+/[a-z_0-9]+)\.(?:h|c)"', text))
    folders = {path.name for path in (ROOT / "native" / "core").iterdir() if path.is_dir()}
    assert folders == {name.split("/")[0] for name in included if not name.startswith("recorder/")}
    assert {"recorder/channel", "recorder/drain"} <= included
    importers = {path.stem for path in (ROOT / "native" / "core" / "importing").glob("*.h")}
    helpers = {"code_counts", "line_reader", "number_scan", "window_builder"}
    assert importers - helpers <= {name.split("/")[1] for name in included if name.startswith("importing/")}
    declared = re.findall(r"\b(mp_\w+)\(", (ROOT / "native" / "perf" / "memlens_perf.h").read_text())
    assert len(declared) > 10 and not [name for name in declared if f"{name}(" not in text]


def test_every_target_has_kept_inputs_and_few_bytes() -> None:
    kept = {name: list((fuzz.KEPT / name).iterdir()) for name in fuzz.targets()}
    assert all(kept.values()), [name for name, files in kept.items() if not files]
    assert sum(path.stat().st_size for files in kept.values() for path in files) < 1_100_000
    assert {path.name for path in fuzz.REGRESSIONS.iterdir()} <= set(fuzz.targets())
