"""The short part of `make attack` (benchmarks/attack.py): mutants of captures and traces, programs natively and recorded, recordings
that are disturbed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from attacking import captures, faults, imports, names, programs, signals, workplace
from attacking.model import Attempt

SECONDS = 7
SECONDS_RECORDING = 5
SEED = 20261118
"""The same mutants each time, as far as the time allows; `make attack` draws new ones."""


@pytest.fixture(autouse=True)
def keep_failures_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workplace, "KEPT", tmp_path / "attack")


MOST = 100
"""Attempts of one kind: a faster machine must not be the first that tries others."""


def assert_held(attempts: Iterator[Attempt]) -> None:
    found = list(islice(attempts, MOST))
    assert found
    failed = [attempt for attempt in found if attempt.failure]
    assert not failed, "\n".join(f"{a.what}\n  {a.failure}\n  {a.reproduction}" for a in failed)


def test_mutants_of_captures_end_as_documented() -> None:
    assert_held(captures.attacks(SECONDS, SEED, fresh=False))


def test_mutants_of_traces_end_as_documented() -> None:
    assert_held(imports.attacks(SECONDS, SEED))


def test_programs_end_as_they_end_natively() -> None:
    assert_held(programs.attacks(SECONDS, SEED))


def test_signals_to_the_recorder_end_no_program() -> None:
    assert_held(signals.attacks(SECONDS_RECORDING, SEED, fresh=False))


def test_failing_calls_of_the_recorder_change_no_program() -> None:
    assert_held(faults.attacks(SECONDS_RECORDING, SEED))


def test_hostile_names_steer_nothing() -> None:
    assert_held(names.attacks(SECONDS_RECORDING, SEED, fresh=False))
