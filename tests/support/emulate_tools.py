"""What tests of the collector emulate share: programs built on the spot, runs under it, windows taken apart."""

from __future__ import annotations

import dataclasses
import functools
import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, run_memlens
from emulate_oracle import Functions

import memlens
from memlens.capture.store.layouts import layouts, records_with_tails

LOAD, STORE = 1, 2  # ml_access_operation
STACK_KNOWN, ANONYMOUS, MODIFIED = 1, 2, 4  # ml_code_flags
EXACT = ("loads", "stores", "load_bytes", "store_bytes")

Access = tuple[int, int, int, int]  # pc, address, bytes, operation


@functools.cache
def why_no_emulation() -> str | None:
    """Why programs of this machine cannot be recorded under an emulator here; None when they can."""
    collectors = json.loads(run_memlens("doctor", "--json").stdout)["collectors"]
    emulate = next(collector for collector in collectors if collector["collector"] == "emulate")
    return None if emulate["state"] == "works" else f"the collector emulate does not work here: {emulate['detail']}"


needs_emulation = pytest.mark.skipif(why_no_emulation() is not None, reason=why_no_emulation() or "")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is written in x86-64 assembly")


def build(folder: Path, name: str, source: str, *flags: str, compiler: str = "gcc") -> Path:
    """A C program (C++ with g++) from its text; skips the test without the compiler. Built once in a folder."""
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"{compiler} is not installed; to run: make test, which installs it")
    program = folder / name
    if not program.exists():
        text = folder / f"{name}.{'cpp' if '++' in compiler else 'c'}"
        text.write_text(source)
        command = [path, "-O1", "-g", "-D_GNU_SOURCE", "-pthread", "-o", str(program), str(text), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return program


def build_fixed(folder: Path, name: str, source: str, *flags: str) -> Path:
    """The same, static and at fixed addresses with a C library that does not look at the processor: every run equal."""
    return build(folder, name, source, "-static", "-no-pie", "-fno-pie", *flags, compiler="musl-gcc")


def emulate(
    output: Path, *command: str | Path, mode: str = "counts", functions: str | None = None, status: int = 0, **more: Any
) -> tuple[memlens.Capture, subprocess.CompletedProcess[str]]:
    """Records a command under the emulator, which must end with `status`."""
    options = [f"--emulate={mode}", *(["--functions", functions] if functions is not None else [])]
    done = run_memlens("record", "-q", "--force", "-o", output, *options, "--", *command, **more)
    assert done.returncode == status, (done.returncode, done.stdout[-1000:], done.stderr[-3000:])
    return memlens.open(output), done


def rows(capture: memlens.Capture, table: str) -> list[dict[str, Any]]:
    return list(capture.table(table).to_pylist())


def by_pc(counted: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    """Loads, stores and bytes of each instruction."""
    found: dict[int, list[int]] = {}
    for row in counted:
        sums = found.setdefault(row["pc"], [0, 0, 0, 0])
        for at, column in enumerate(EXACT):
            sums[at] += row[column]
    return {pc: tuple(sums) for pc, sums in found.items()}


def of_functions(counted: Iterable[Mapping[str, Any]], program: Path, *names: str) -> list[Mapping[str, Any]]:
    """Those rows of a program at fixed addresses that lie in these functions."""
    functions = Functions(program)
    return [row for row in counted if functions.name_of(row["pc"]) in names]


def accesses(counted: Iterable[Mapping[str, Any]]) -> int:
    return sum(row["loads"] + row["stores"] for row in counted)


# ---- windows ----------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Window:
    """One window record."""

    fields: dict[str, int]
    stream: bytes

    @property
    def begin(self) -> int:
        return self.fields["first_executed"]

    @property
    def recorded(self) -> int:
        return self.fields["recorded"]

    def accesses(self) -> list[Access]:
        found: list[Access] = decoder()(self.stream, self.recorded, pc_delta=True)
        return found


@functools.cache
def decoder() -> Any:
    """The decoder that the format's description prints."""
    text = (ROOT / "format" / "FORMAT.md").read_text()
    (code,) = re.findall(r"```python\n(def decode\(.*?)\n```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["decode"]


def windows(capture: memlens.Capture) -> list[Window]:
    layout = layouts()["window"]
    found = [
        Window(record, tail)
        for _, payload in capture.payloads("window")
        for record, tail in records_with_tails(layout, payload)
    ]
    return sorted(found, key=lambda window: (window.fields["thread"], window.begin))


def by_thread(found: Iterable[Window]) -> dict[int, list[Window]]:
    threads: dict[int, list[Window]] = {}
    for window in found:
        threads.setdefault(window.fields["thread"], []).append(window)
    return threads


def whole_stream(found: Iterable[Window]) -> list[Access]:
    """The accesses of windows that continue each other."""
    stream: list[Access] = []
    for window in found:
        assert window.begin == len(stream), "a piece is missing"
        stream += window.accesses()
    return stream


def chi_square(counted: Mapping[Any, int], expected: Mapping[Any, float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; sites that are expected less than five times are taken together."""
    n_counted, n_expected = sum(counted.values()), sum(expected.values())
    cells: Counter[Any] = Counter()
    shares: Counter[Any] = Counter()
    for site, weight in expected.items():
        share = weight / n_expected * n_counted
        cell = site if share >= 5 else "rare"
        shares[cell] += share  # type: ignore[assignment]
        cells[cell] += counted.get(site, 0)
    assert not counted.keys() - expected.keys()
    return sum((cells[cell] - share) ** 2 / share for cell, share in shares.items() if share), len(shares) - 1


# ---- names --------------------------------------------------------------------------------------
def named(capture: memlens.Capture) -> list[dict[str, Any]]:
    """Rows of code_counts with the module and function that their instruction lay in then."""
    import numpy as np

    from memlens.capture.model.symbols import name_codes

    paths = {path: number for number, path in capture.strings().items()}
    mapped: dict[int, list[dict[str, Any]]] = {}
    for row in rows(capture, "mappings"):
        if row["path"] and row["inode"]:
            mapped.setdefault(row["process"], []).append(row)
    found = rows(capture, "code_counts")
    codes: dict[str, list[int]] = {name: [] for name in ("path", "process", "address", "time_ns", "executable")}
    for row in found:
        at = [m for m in mapped.get(row["process"], []) if m["address"] <= row["pc"] < m["address"] + m["bytes"]]
        codes["path"].append(paths[at[-1]["path"]] if at else 0)
        codes["address"].append(row["pc"] - at[-1]["address"] + at[-1]["file_offset"] if at else row["pc"])
        codes["process"].append(row["process"])
        codes["time_ns"].append(row["time_ns"])
        codes["executable"].append(1)
    names = name_codes({name: np.array(values) for name, values in codes.items()}, capture.strings(), {})
    return [
        {**row, "module": name["module"], "function": name["function"]} for row, name in zip(found, names, strict=True)
    ]


def bytes_by(counted: Iterable[Mapping[str, Any]], column: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in counted:
        found[row[column] or ""] += row["load_bytes"] + row["store_bytes"]
    return found
