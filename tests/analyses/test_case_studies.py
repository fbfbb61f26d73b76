"""The orderings of the MemGaze paper's case studies, on sizes that take seconds: benchmarks/case_studies.py writes the whole page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import MEMLENS, ROOT
from count_tools import compile_counted


@pytest.fixture(scope="module")
def studies() -> ModuleType:
    path = ROOT / "benchmarks" / "case_studies.py"
    spec = importlib.util.spec_from_file_location("case_studies", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case_studies"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorder(studies: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("studies")
    compile_counted(ROOT / "workloads" / "near_limit.c", folder / "probe")  # skips where there is no compiler
    return studies.Recorder(folder, list(MEMLENS))


@pytest.mark.parametrize(
    "name", ["hash", *(pytest.param(name, marks=pytest.mark.slow) for name in ("network", "graph"))]
)
def test_orderings_of_the_paper(studies: ModuleType, recorder: object, name: str) -> None:
    """Of an ordering that does not hold the page gives a reason, and the figures of this run have what it says."""
    study = studies.STUDIES[name](recorder, studies.SIZES["small"][name])
    judged = [one for one in study.orderings if not one.text.startswith("run time")]  # a busy machine decides that one
    broken = [
        f"{one.text}: {one.figures}" for one in judged if not one.holds and (not one.fact or one.verdict.endswith(": "))
    ]
    assert not broken
    assert sum(one.holds for one in judged) >= len(judged) / 2
    for _, heads, rows in study.tables:
        assert rows and all(len(row) == len(heads) for row in rows)
        assert not any("nan" in text for row in rows for text in row)


def test_the_page_explains_what_does_not_hold(studies: ModuleType) -> None:
    known = studies.Study(
        "S",
        "intro",
        [("T", ["a"], [["1"]])],
        [
            studies.Ordering("x", False, "1, 2", "because", True),
            studies.Ordering("y", True, "3"),
            studies.Ordering("z", False, "4", "because", False),
        ],
    )
    page = studies.render([known], 1.0, "")
    assert "| x | does not hold: because | 1, 2 |" in page and "| y | holds | 3 |" in page
    assert "| z | does not hold: not explained | 4 |" in page, "the figures do not have what the reason says"


@pytest.mark.parametrize("table", ["standard", "open", "sized"])
def test_all_hash_tables_find_the_same_communities(tmp_path: Path, table: str) -> None:
    program = ROOT / "build" / "workloads" / "hash_tables"
    if not program.exists():
        pytest.skip("workload hash_tables is not built: make build/workloads/.stamp")
    import subprocess

    lines = {subprocess.run([program, "--table", one, "--vertices", "1024", "--iterations", "1"], capture_output=True, text=True,
                            check=True).stdout.split(" ", 2)[2] for one in ("chained", table)}  # fmt: skip
    assert len(lines) == 1
