"""Shared by all tests: run memlens as a person would, find workloads and their marked lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import memlens

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ROOT / "build" / "workloads"
MEMLENS = [sys.executable, "-m", "memlens"]
LONGEST_FIRST = (
    "test_numa", "test_count_exact", "test_findings", "test_guest_library", "test_trace_exact", "test_count_hard", "test_count_builds",
    "test_emulate_survival", "test_count_runtime", "test_emulate_exact", "test_annotations", "test_alloc_stacks", "test_emulate_programs",
    "test_emulate", "test_recording", "test_alloc", "test_trace_runtime", "test_alloc_survival", "test_alloc_matrix", "test_count_cross",
)  # fmt: skip
"""Files that take long. A worker takes whole files: begun late, one of these would leave the other worker idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def no_peaks_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reports must not depend on whether somebody has run `memlens calibrate` here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def run_memlens(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line; returns the finished process with text output.

    `record` gets --exact unless the test says how much it may cost: what tests compare with closed forms must not depend on
    how fast this machine is. The default budget has tests of its own (test_budget.py).
    """
    options.setdefault("timeout", 120)
    if arguments[:1] == ("record",) and not any(str(word).startswith(("--budget", "--exact")) for word in arguments):
        arguments = ("record", "--exact", *arguments[1:])
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*MEMLENS, *map(str, arguments)], capture_output=True, text=True, **options
    )


def workload_path(name: str) -> Path:
    path = WORKLOADS / name
    if not path.exists():
        pytest.skip(f"workload {name} is not built: make build/workloads/.stamp")
    return path


def marked_line(source: str, mark: str = "touch: here") -> int:
    """The number of the line of a workload that carries a mark."""
    text = (ROOT / "workloads" / source).read_text().splitlines()
    found = [number for number, line in enumerate(text, 1) if re.search(rf"// {mark}\s*$", line)]
    assert len(found) == 1, f"{source} has {len(found)} lines marked {mark!r}"
    return found[0]


@pytest.fixture
def workload() -> Callable[[str], str]:
    return lambda name: str(workload_path(name))


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., memlens.Capture]:
    """Records a command and opens the capture; the program must end with `status`."""

    def run(*command: str | Path, options: tuple[str, ...] = (), status: int = 0, **more: object) -> memlens.Capture:
        output = tmp_path / f"run{len(list(tmp_path.glob('*.memlens')))}.memlens"
        done = run_memlens("record", "-q", "-o", output, *options, "--", *command, **more)
        assert done.returncode == status, done.stderr
        return memlens.open(output)

    return run


def can_observe_faults() -> bool:
    from memlens import _recorder

    return _recorder.probe()["fault_event_errno"] == 0


needs_faults = pytest.mark.skipif(
    not can_observe_faults(), reason="perf page-fault events are refused here; see: memlens doctor"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test")


def recordings(name: str) -> Path:
    """A folder of real recordings that others made (MEMLENS_FIXTURES); skips where it is absent."""
    folder = Path(os.environ.get("MEMLENS_FIXTURES") or ROOT.parent / "shared" / "fixtures") / name
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}: set MEMLENS_FIXTURES")
    return folder
