"""This machine's peaks: kernels that do what they say, sizes that stay in a level, a file that knows whose it is."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import MEMLENS, ROOT, run_memlens
from hypothesis import given
from hypothesis import strategies as st

from memlens import _recorder
from memlens.capture.store import calibration, machine
from memlens.capture.store.calibration import KINDS, Peaks
from memlens.collect import calibration as measuring
from memlens.collect.calibration import PAGE, Level, dram_bytes, footprint_bytes, latency_bytes

KIB, MIB = 1 << 10, 1 << 20


# ---- kernels ----------------------------------------------------------------------------------------------------------
def test_every_kernel_moves_what_it_should_and_the_walk_meets_every_line_once() -> None:
    names = _recorder.peak_kernels()
    assert names
    assert [_recorder.check_peak_kernels(number) for number in range(len(names))] == [0] * len(names)
    assert _recorder.check_peak_kernels(len(names)) == -1


def test_what_cannot_be_measured_is_an_error_that_says_what() -> None:
    with pytest.raises(OSError, match="pinning a thread"):
        _recorder.measure_peaks(cpus=[100_000], kinds=["read"], bytes=PAGE, time_ns=1000)
    with pytest.raises(OSError, match="binding memory"):
        _recorder.measure_peaks(cpus=[0], kinds=["read"], bytes=PAGE, node=900, time_ns=1000)


# ---- sizes --------------------------------------------------------------------------------------------------------------
def levels_of(sizes: list[int], shared: list[int], cores: int) -> list[Level]:
    made = []
    for number, (size, sharing) in enumerate(zip(sizes, shared, strict=True)):
        groups = tuple(tuple(range(at, min(at + sharing, cores))) for at in range(0, cores, sharing))
        made.append(Level(f"L{number + 1}", size, groups))
    return made


@given(
    first=st.sampled_from([32 * KIB, 48 * KIB, 64 * KIB]),
    second=st.sampled_from([256 * KIB, 512 * KIB, MIB, 2 * MIB]),
    third_of_core=st.sampled_from([1408 * KIB, 2 * MIB, 4 * MIB, 16 * MIB]),
    cores=st.integers(1, 16),
)
def test_memory_of_a_level_is_beyond_the_one_before_and_within_this_one(
    first: int, second: int, third_of_core: int, cores: int
) -> None:
    levels = levels_of([first, second, third_of_core * cores], [1, 1, cores], cores)
    everyone = list(range(cores))
    for index in range(3):
        before = levels[index - 1].bytes if index else 0
        for active in ([0], everyone):
            share = levels[index].bytes // (len(active) if index == 2 else 1)
            size = footprint_bytes(levels, index, 0, active)
            assert before < size <= before + share and size % PAGE == 0
        assert before < latency_bytes(levels, index, 0) <= footprint_bytes(levels, index, 0, [0])


def test_memory_is_four_times_the_last_caches_unless_it_is_not_there() -> None:
    levels = levels_of([32 * KIB, MIB, 32 * MIB], [1, 1, 4], 8)
    assert dram_bytes(levels, [0], 1 << 40) == (128 * MIB, 4.0)
    assert dram_bytes(levels, list(range(8)), 1 << 40) == (32 * MIB, 4.0)  # two caches of 32 MiB
    assert dram_bytes(levels, [0], 48 * MIB) == (48 * MIB, 1.5)


# ---- the command ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """(state directory, what `memlens calibrate --json` printed)"""
    state = tmp_path_factory.mktemp("state")
    done = calibrate(state, "--seconds", "6", "--json")
    assert done.returncode == 0, done.stderr
    return state, json.loads(done.stdout)


def calibrate(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    import os

    return run_memlens("calibrate", *arguments, env={**os.environ, "XDG_STATE_HOME": str(state)})


def test_a_calibration_is_complete_and_every_number_is_positive(measured: tuple[Path, dict[str, Any]]) -> None:
    content = measured[1]
    names = [level["level"] for level in content["levels"]]
    caches = sorted({f"L{cache['level']}" for cache in machine.caches() if cache["type"] != "instruction"})
    assert names == [*(caches or ["L1", "L2", "L3"]), "DRAM"]
    for level in content["levels"]:
        for who in ("one", "all"):
            for kind in KINDS:
                figure = level[who][kind]
                assert 0 < figure["median_bytes_per_second"] <= figure["bytes_per_second"]
                assert 0 <= figure["spread"] <= 1 and figure["windows"] >= 1
        assert 0 < level["latency"]["ns"] <= level["latency"]["median_ns"]
    assert content["levels"][-1]["latency_small_pages"]["ns"] > 0
    for who in ("one", "all"):
        assert 0 < content["float"][who]["double"]["per_second"] <= 1.1 * content["float"][who]["single"]["per_second"]
    nodes = machine.numa_nodes()
    wanted = {(a["node"], b["node"]) for a in nodes if a["cpus"] for b in nodes if b["bytes"]} or {(0, 0)}
    assert {(pair["cpu_node"], pair["memory_node"]) for pair in content["pairs"]} == wanted


def test_caches_are_faster_than_memory(measured: tuple[Path, dict[str, Any]]) -> None:
    """Of one core, and only what differs manifold: a busy machine may slow any one figure down by a half."""
    first, last = measured[1]["levels"][0], measured[1]["levels"][-1]
    assert last["latency"]["ns"] > 2 * first["latency"]["ns"]
    assert last["one"]["read"]["bytes_per_second"] < first["one"]["read"]["bytes_per_second"]


@pytest.mark.slow
def test_levels_are_in_order(tmp_path: Path) -> None:
    """The best of five calibrations: neighbours on the machine come and go."""
    runs = [json.loads(calibrate(tmp_path / str(run), "--seconds", "6", "--json").stdout)["levels"] for run in range(5)]
    speeds = [
        [max(run[level]["one"][kind]["bytes_per_second"] for run in runs) for kind in KINDS]
        for level in range(len(runs[0]))
    ]
    waits = [min(run[level]["latency"]["ns"] for run in runs) for level in range(len(runs[0]))]
    for before, after in itertools.pairwise(speeds):
        assert all(later <= 1.15 * earlier for earlier, later in zip(before, after, strict=True))
    assert waits == sorted(waits) and waits[-1] > 5 * waits[0]
    assert speeds[-1][KINDS.index("read")] < 0.7 * speeds[0][KINDS.index("read")]


def test_the_file_is_shown_as_it_was_measured(measured: tuple[Path, dict[str, Any]]) -> None:
    state, content = measured
    shown = calibrate(state, "--show", "--json")
    assert json.loads(shown.stdout) == content
    assert list(content) == [
        "version", "memlens", "measured", "seconds", "fingerprint", "machine", "vector_widths", "cores", "assumed_caches",
        "levels", "pairs", "float", "warnings",
    ]  # fmt: skip
    assert list(content["levels"][0]) == ["level", "bytes", "instances", "shared_by_cores", "one", "all", "latency"]
    assert list(content["levels"][0]["one"]["read"]) == [
        "bytes_per_second", "median_bytes_per_second", "spread", "windows", "vectors",
    ]  # fmt: skip
    words = calibrate(state, "--show").stdout
    assert "DRAM" in words and "TLB" in words and f"calibration-{content['fingerprint']}.json" in words


def test_it_takes_about_as_long_as_was_asked_for(measured: tuple[Path, dict[str, Any]]) -> None:
    assert measured[1]["seconds"] < 30  # 6; a busy machine takes a while to fill memory and to have all threads run


def test_doctor_says_whether_peaks_are_known(measured: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    import os

    known = run_memlens("doctor", "--json", env={**os.environ, "XDG_STATE_HOME": str(measured[0])})
    state = json.loads(known.stdout)["calibration"]
    assert state["exists"] and state["age_days"] < 1 and state["measured"] == measured[1]["measured"]
    unknown = run_memlens("doctor", env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    assert "not known" in unknown.stdout and "memlens calibrate" in unknown.stdout


def test_mistakes_are_told(tmp_path: Path) -> None:
    none = calibrate(tmp_path, "--show")
    assert (
        none.returncode == 68 and "no calibration of this machine" in none.stderr and "memlens calibrate" in none.stderr
    )
    for arguments in (("--seconds", "0"), ("--seconds", "1e9"), ("--show", "--seconds", "3")):
        assert calibrate(tmp_path, *arguments).returncode == 64
    (tmp_path / "memlens").write_text("in the way")
    refused = calibrate(tmp_path, "--seconds", "1")
    assert refused.returncode == 73 and "XDG_STATE_HOME" in refused.stderr


# ---- whose file it is --------------------------------------------------------------------------------------------------------
def test_a_copied_home_directory_does_not_mislead(
    measured: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = measured[1]
    name = content["fingerprint"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    calibration.directory().mkdir()
    assert calibration.load(name).problem == "none yet"
    (calibration.directory() / "calibration-feedfeedfeedfeed.json").write_text(json.dumps(content))
    assert calibration.load(name).problem == "of other machines only"
    assert calibration.load("feedfeedfeedfeed").problem == "of another machine"  # renamed by hand
    path = calibration.path_of(name)
    for change, problem in (
        ({"machine": {**content["machine"], "cpu": "another"}}, "of another machine"),
        ({"version": 99}, "of another version of memlens"),
        ({"levels": content["levels"][:-1]}, "damaged"),
        ({"levels": "?"}, "damaged"),
    ):
        path.write_text(json.dumps({**content, **change}))
        assert calibration.load(name) == calibration.Found(path, None, problem)
    path.write_text("{")
    assert "cannot be read" in (calibration.load(name).problem or "")
    path.write_text(json.dumps(content))
    assert calibration.load(name).content == content


def test_another_host_name_or_processor_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = calibration.fingerprint(calibration.identity())
    assert calibration.fingerprint(calibration.identity()) == here
    with monkeypatch.context() as patch:
        patch.setattr("platform.node", lambda: "elsewhere")
        assert calibration.fingerprint(calibration.identity()) != here
    with monkeypatch.context() as patch:
        patch.setattr(machine, "microcode", lambda: "0xffff")
        assert calibration.fingerprint(calibration.identity()) != here


def test_a_relative_state_directory_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    assert calibration.directory() == tmp_path / ".local" / "state" / "memlens"


# ---- machines that hide things --------------------------------------------------------------------------------------------------
def test_without_caches_in_sysfs_usual_sizes_are_taken_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "caches", lambda: [])
    content = measuring.Measurement(seconds=1).run()
    assert content["assumed_caches"] and [level["level"] for level in content["levels"]] == ["L1", "L2", "L3", "DRAM"]
    assert any("shows no caches" in warning for warning in content["warnings"])


def test_noise_and_disorder_are_doubted(measured: tuple[Path, dict[str, Any]]) -> None:
    measurement = measuring.Measurement(seconds=1)
    levels = json.loads(json.dumps(measured[1]["levels"]))
    levels[1]["one"]["read"]["bytes_per_second"] = 2 * levels[0]["one"]["read"]["bytes_per_second"]
    levels[-1]["latency"] |= {"ns": 0.1, "huge_page_share": 0.0}
    levels[0]["one"]["copy"]["spread"] = 0.5
    levels[0]["all"]["read"]["bytes_per_second"] = (
        0.6 * len(measurement.at.cores) * levels[0]["one"]["read"]["bytes_per_second"]
    )
    measurement._doubt(levels)
    said = "\n".join(measurement.warnings)
    assert f"{levels[1]['level']} was faster than {levels[0]['level']} (read" in said
    assert "took less than one from" in said and "Huge pages were requested and not granted" in said
    assert f"{levels[0]['level']} copy" in said and "running at the same time" in said


# ---- what a peak is --------------------------------------------------------------------------------------------------------------
def peaks_of(one: float, everyone: float) -> Peaks:
    figures = {
        who: {kind: {"bytes_per_second": rate} for kind in KINDS} for who, rate in (("one", one), ("all", everyone))
    }
    rates = {who: {"double": {"per_second": rate}} for who, rate in (("one", one), ("all", everyone))}
    return Peaks({"levels": [{"level": "DRAM", **figures}], "cores": [0, 1, 2, 3], "float": rates})


@pytest.mark.parametrize(("threads", "peak"), [(0, 10), (1, 10), (2, 20), (3, 25), (100, 25)])
def test_threads_have_as_many_peaks_of_a_core_as_all_cores_allow(threads: int, peak: float) -> None:
    assert peaks_of(10, 25).bandwidth("DRAM", "read", threads=threads) == peak
    assert peaks_of(10, 25).results_per_second(threads=threads) == peak


def test_all_cores_are_never_slower_than_one() -> None:
    assert peaks_of(10, 7).bandwidth("DRAM", "copy", threads=4) == 10


# ---- several nodes ---------------------------------------------------------------------------------------------------------------
@pytest.mark.numa
@pytest.mark.slow  # a guest of its own, beside the one of test_numa, disturbs what that measures
def test_every_pair_of_nodes_is_measured(tmp_path: Path) -> None:
    """A guest with four nodes and a fifth that has memory only: 4 × 5 pairs. Its figures are an emulator's and mean nothing."""
    guest = ROOT / "tools" / "numa-guest"
    ready = subprocess.run([guest, "--check"], capture_output=True, text=True, timeout=300)
    if ready.returncode != 0:
        pytest.skip(ready.stderr.strip())
    if ROOT.is_relative_to("/tmp") or ROOT.is_relative_to("/run"):
        pytest.skip("the guest has its own /tmp and /run: clone memlens elsewhere for the NUMA tests")
    command = shlex.join([*MEMLENS, "calibrate", "--seconds", "5", "--json"])
    lines = f"set -e\nexport XDG_STATE_HOME={shlex.quote(str(tmp_path))}\n{command} >calibration.json"
    run = [guest, "-n", "4", "-x", "1", "-w", tmp_path, "-t", "400", "--", lines]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "calibration.json").read_text())
    pairs = {(pair["cpu_node"], pair["memory_node"]): pair for pair in content["pairs"]}
    assert set(pairs) == {(cpus, memory) for cpus in range(4) for memory in range(5)}
    assert pairs[0, 0]["distance"] == 10 and pairs[0, 1]["distance"] == 16 and pairs[2, 4]["distance"] == 31
    for pair in pairs.values():
        assert all(pair[kind]["bytes_per_second"] > 0 for kind in KINDS) and pair["latency"]["ns"] > 0
    assert calibration.fingerprint(content["machine"]) == content["fingerprint"]
    kept = list((tmp_path / "memlens").glob("calibration-*.json"))
    assert len(kept) == 1 and json.loads(kept[0].read_text()) == content
