"""Each transformation of the compiler plugin, by FileCheck on small functions (tests/count/pass)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CASES = sorted((Path(__file__).parent / "pass").glob("*.ll"))
VERSIONS = [version for version in range(16, 30) if shutil.which(f"opt-{version}")]


def plugin(version: int) -> Path:
    import memlens

    found = sorted(path for root in memlens.__path__ for path in Path(root).glob(f"runtime/memlens_pass-{version}.so"))
    if not found:
        from importlib.metadata import files

        found = [
            Path(str(entry.locate()))
            for entry in files("memlens") or []
            if entry.name == f"memlens_pass-{version}.so" and Path(str(entry.locate())).exists()
        ]
    if not found:
        pytest.skip(f"no plugin for LLVM {version} was built: sudo apt-get install llvm-{version}-dev, then make build")
    return found[0]


@pytest.mark.parametrize("version", VERSIONS or [19])
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_transformation(case: Path, version: int) -> None:
    checker = shutil.which(f"FileCheck-{version}")
    if not shutil.which(f"opt-{version}") or checker is None:
        pytest.skip(f"sudo apt-get install llvm-{version}-tools llvm-{version}")
    text = case.read_text()
    options = re.search(r"^; MEMLENS_PASS: (.*)$", text, re.MULTILINE)
    runs = re.search(r"^; RUNS: (\d+)$", text, re.MULTILINE)
    passes = ",".join(["memlens-count"] * (int(runs[1]) if runs else 1))
    made = subprocess.run(
        [f"opt-{version}", f"-load-pass-plugin={plugin(version)}", f"-passes={passes},verify", "-S", str(case)],
        env={**os.environ, "MEMLENS_PASS": options[1] if options else ""},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    checked = subprocess.run([checker, str(case)], input=made.stdout, capture_output=True, text=True)
    assert checked.returncode == 0, f"{checked.stderr}\n{made.stdout}"
