"""Tracing inside programs (native/runtime/compiled/trace*.c): every window holds exactly the accesses that were executed there.

The programs do by hand what the compiler plugin does (tests/native/trace_by_hand.h) and write down everything that they execute, so
nothing here needs the plugin or a recorder.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from count_arena import Arena, Process
from test_count_runtime import NATIVE, Builder
from trace_tools import CONSTANT, LOAD, STORE, Trace, Window, expected, read_logs, read_trace

EXPORTS = [
    f"-Wl,--export-dynamic-symbol={name}" for name in ("__memlens_trace", "__memlens_trace_room", "memlens_services")
]


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="session")
def plain(builder: Builder) -> Path:
    return builder.build("traced", *EXPORTS, NATIVE / "trace_program.c", NATIVE / "trace_services.c", "-ldl")


@pytest.fixture(scope="session", params=["gcc", "sanitized", "clang"])
def program(request: pytest.FixtureRequest, builder: Builder) -> Path:
    import shutil

    sources = (*EXPORTS, NATIVE / "trace_program.c", NATIVE / "trace_services.c", "-ldl")
    if request.param == "sanitized":
        return builder.build(
            "traced_sanitized", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", *sources
        )
    if request.param == "clang":
        if shutil.which("clang") is None:
            pytest.skip("no clang: sudo apt-get install clang")
        return builder.build("traced_clang", *sources, compiler="clang")
    return builder.build("traced_gcc", *sources)


class Run:
    def __init__(self, folder: Path, program: Path, *arguments: object, settings: str, log: bool = True, status: int = 0, environment: dict[str, str] | None = None) -> None:  # fmt: skip
        output, log_path = folder / "records", folder / "log"
        variables = {"MEMLENS_TRACE": settings, "TRACE_OUTPUT": str(output), **(environment or {})}
        if log:
            variables["TRACE_LOG"] = str(log_path)
        arena = Arena()
        try:
            self.done = arena.run(program, *map(str, arguments), environment=variables, status=status)
            self.processes = arena.processes()
        finally:
            arena.close()
        self.trace: Trace = read_trace(output)
        self.logs = read_logs(log_path)

    @property
    def process(self) -> Process:
        (found,) = self.processes
        return found

    def status(self, name: str) -> int:
        return sum(getattr(process.content, f"trace_{name}") for process in self.processes)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    def start(program: Path, *arguments: object, **options: Any) -> Run:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Run(folder, program, *arguments, **options)

    return start


def check(run: Run, *, window: int, period: int, loads_only: bool = False) -> None:
    """Windows, their order and the accounts of every thread against the log."""
    assert set(run.trace.totals) == set(run.logs)
    for thread, log in run.logs.items():
        assert run.trace.totals[thread] == len(log)
        own = run.trace.windows[thread]
        assert own == sorted(own, key=lambda one: one.first_executed)
        at = own[0].first_executed if own else 0
        for one in own:
            assert one.first_executed == at, "executed leads to the next record"
            at += one.executed
            assert one.accesses == expected(log, one, loads_only=loads_only)
            assert one.end <= len(log)
        starts = whole_windows(own)
        for parts in starts[:-1]:
            end = parts[-1].end
            if sum(part.recorded for part in parts) < window:  # it gave up in code that has nothing but constants
                tail = log[end - max(period // 4, 2048) : end]["kind"]
                assert not ((tail == LOAD) | (tail == STORE)).any()
                continue
            assert sum(part.recorded for part in parts) == window
            last = log[end - 1]
            assert last["kind"] in (LOAD, STORE), "a window ends with a recorded access"
        assert at >= len(log) or not own or period > len(log)
    assert run.status("executed") == sum(map(len, run.logs.values()))
    records = [one for own in run.trace.windows.values() for one in own]
    assert run.status("windows") == len(records)
    assert run.status("recorded") == sum(one.recorded for one in records)
    assert run.status("implied") == sum(one.implied_constant for one in records)


def whole_windows(records: list[Window]) -> list[list[Window]]:
    """Parts of one window follow each other; late windows too, which `executed` does not tell apart: by the recorded accesses."""
    windows: list[list[Window]] = []
    for one in records:
        if windows and windows[-1][-1].end == one.first_executed and windows[-1][-1].executed == windows[-1][-1].recorded + windows[-1][-1].implied_constant and sum(p.recorded for p in windows[-1]) < 1000:  # fmt: skip
            windows[-1].append(one)
        else:
            windows.append([one])
    return windows


# ---- windows -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["random", "kept"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_hold_exactly_what_was_executed_there(
    program: Path, run: Callable[..., Run], what: str, seed: int
) -> None:
    done = run(program, what, 30_000, seed, settings=f"window=1000,period=10000,seed={seed}")
    check(done, window=1000, period=10_000)
    (windows,) = done.trace.windows.values()
    (log,) = done.logs.values()
    assert abs(len(windows) - len(log) / 10_000) <= 1.5
    assert all(one.module and done.trace.strings[one.module].startswith("image ") for one in windows)
    assert all(one.begin_ns <= one.end_ns and one.stack and one.period == 10_000 for one in windows)


@pytest.mark.parametrize(("window", "period"), [(1, 7), (3, 50), (14, 1000), (100, 101), (5000, 20_000)])
def test_any_window_and_period(plain: Path, run: Callable[..., Run], window: int, period: int) -> None:
    done = run(plain, "random", 20_000, 9, settings=f"window={window},period={period},seed=4")
    assert done.status("executed") == sum(map(len, done.logs.values()))
    (log,) = done.logs.values()
    (windows,) = done.trace.windows.values()
    assert done.trace.totals == {thread: len(log) for thread in done.logs}
    at = windows[0].first_executed
    for one in windows:
        assert one.first_executed == at
        at += one.executed
        assert one.accesses == expected(log, one)
    assert sum(one.recorded for one in windows) >= window * (len(log) // period - 1) or window > period / 2
    if window < 1000:
        assert {one.recorded for one in windows[:-1]} == {window}


def test_loads_only_leaves_stores_out_and_counts_them(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "random", 30_000, 5, settings="window=1000,period=10000,seed=1,loads=1")
    check(done, window=1000, period=10_000, loads_only=True)
    (log,) = done.logs.values()
    assert (log["kind"] == STORE).sum() > 1000


def test_a_full_trace_loses_nothing(program: Path, run: Callable[..., Run]) -> None:
    done = run(program, "random", 60_000, 8, settings="window=1000,period=1000,wait=1")
    (log,) = done.logs.values()
    (records,) = done.trace.windows.values()
    at = 0
    for one in records:
        assert one.first_executed == at and one.executed == one.recorded + one.implied_constant
        assert one.period == one.recorded
        assert one.accesses == expected(log, one)
        at = one.end
    assert at == len(log) == done.status("executed")
    assert len(records) > 10, "long windows are cut into records that a ring takes"
    assert all(80 + one.tail_bytes <= 32768 - 16 for one in records)


def test_the_same_seed_gives_the_same_windows(plain: Path, run: Callable[..., Run]) -> None:
    def starts(seed: int) -> list[int]:
        done = run(plain, "simple", 100_000, settings=f"window=10,period=1000,seed={seed}", log=False)
        return [one.first_executed for own in done.trace.windows.values() for one in own]

    assert starts(1) == starts(1) != starts(2)


# ---- the schedule ------------------------------------------------------------------------------------------------------
def test_starts_are_uniform_in_their_periods_and_as_many_as_there_are_periods(
    plain: Path, run: Callable[..., Run]
) -> None:
    period, total = 1000, 4_000_000
    done = run(plain, "simple", total, settings=f"window=50,period={period},seed=11", log=False)
    (windows,) = done.trace.windows.values()
    # One start in each cell; late ones have moved: where they were drawn is not known, and they are few.
    late = done.status("late")
    assert 0 < late < 0.05 * len(windows)
    assert abs(len(windows) - total / period) <= max(0.01 * total / period, 1)
    places = np.array([one.first_executed % period for one in windows])
    counts = np.bincount(places * 20 // period, minlength=20)
    mean = counts.mean()
    chi_square = float(((counts - mean) ** 2 / mean).sum())
    assert chi_square < 19 + 4 * math.sqrt(2 * 19), counts.tolist()  # 19 degrees of freedom, four standard deviations
    assert sum(one.executed for one in windows) >= total - windows[0].first_executed


def test_a_rhythm_of_the_program_is_not_followed(plain: Path, run: Callable[..., Run]) -> None:
    """Two sites that take turns every 100 accesses, and periods that are multiples of that: each has half of the trace."""
    done = run(plain, "rhythm", 4_000_000, settings="window=20,period=2000,seed=5", log=False)
    (windows,) = done.trace.windows.values()
    shares = [sum(site & 1 for site, _, _ in one.accesses) / one.recorded for one in windows]
    error = float(np.std(shares) / math.sqrt(len(shares)))
    assert abs(float(np.mean(shares)) - 0.5) < 4 * error < 0.05


# ---- losses --------------------------------------------------------------------------------------------------------------
def test_dropped_windows_are_counted_and_placed_in_time(plain: Path, run: Callable[..., Run]) -> None:
    settings = "window=100,period=1000,seed=3"
    everything = run(plain, "random", 30_000, 5, settings=settings)
    done = run(plain, "random", 30_000, 5, settings=settings, environment={"TRACE_ROOM": "3"})
    (whole,) = everything.trace.windows.values()
    (kept,) = done.trace.windows.values()
    (lost,) = done.trace.lost.values()
    dropped = sum(one.dropped for one in lost)
    assert dropped == done.status("dropped") > 0
    assert dropped + sum(one.recorded for one in kept) == sum(one.recorded for one in whole)
    assert sum(one.executed for one in (*kept, *lost)) == sum(one.executed for one in whole), "nothing has no place"
    assert all(one.begin_ns <= one.end_ns and one.recorded == 0 for one in lost)
    assert done.status("dropped_windows") + len(kept) == len(whole)
    (log,) = done.logs.values()
    assert all(one.accesses == expected(log, one) for one in kept)
    assert list(done.trace.totals.values()) == [len(log)]


def test_who_waits_drops_nothing(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "random", 5_000, 5, settings="window=100,period=1000,wait=1", environment={"TRACE_ROOM": "3"})
    assert done.status("dropped") == 0 and not done.trace.lost


# ---- threads, forks, ends --------------------------------------------------------------------------------------------------
def test_sixty_four_threads(program: Path, run: Callable[..., Run]) -> None:
    done = run(program, "threads", 64, 2_000, settings="window=100,period=1000,seed=2")
    assert len(done.logs) == 65 and sum(1 for log in done.logs.values() if len(log)) == 64
    for thread, log in done.logs.items():
        if not len(log):
            continue  # the first one only waits
        assert done.trace.totals[thread] == len(log)
        assert done.trace.windows[thread]
        for one in done.trace.windows[thread]:
            assert one.accesses == expected(log, one)
    firsts = {own[0].first_executed for own in done.trace.windows.values()}
    assert len(firsts) > 40, "threads do not begin in step"


def test_a_fork_traces_for_itself(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "forks", 3_000, 4_000, settings="window=100,period=1000,seed=2")
    assert len(done.processes) == 2 and len(done.logs) == 2
    for thread, log in done.logs.items():
        assert done.trace.totals[thread] == len(log)
        assert done.trace.windows[thread]
        for one in done.trace.windows[thread]:
            assert one.accesses == expected(log, one)
    images = {done.trace.strings[own[0].module] for own in done.trace.windows.values()}
    assert len(images) == 2, "each names its own image"
    assert {process.content.trace_state for process in done.processes} == {1}


def test_a_killed_program_leaves_all_windows_but_the_last(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "killed", 1_000_000, settings="window=100,period=1000", log=False, status=-signal.SIGKILL)
    (windows,) = done.trace.windows.values()
    assert 998 <= len(windows) <= 1001
    assert not done.trace.totals
    assert 0 <= 1_000_000 - done.status("executed") <= 2_000


def test_only_selected_regions_are_traced_and_counted(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "regions", 3_000, settings="window=200,period=2000,seed=3,regions=other\x1fouter")
    (thread,) = done.logs
    log = done.logs[thread]
    assert done.trace.totals[thread] == len(log) == done.status("executed")
    at = done.trace.windows[thread][0].first_executed
    for one in done.trace.windows[thread]:
        assert one.first_executed == at
        at += one.executed
        assert one.accesses == expected(log, one)
        assert done.trace.strings[one.region] == "inner"
    # Leaving a region cuts a record, not the window: every access has the same chance.
    recorded = sum(one.recorded for one in done.trace.windows[thread])
    assert abs(recorded - 200 * len(log) / 2000) <= 400


def test_regions_that_never_come_trace_nothing(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "simple", 100_000, settings="window=100,period=1000,regions=other", log=False)
    assert not done.trace.windows and done.status("executed") == 0


# ---- signals ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "rounds"),
    [("window=100,period=1000", 20), ("window=10,period=20", 5), ("window=100,period=100,wait=1", 5)],
)
def test_signal_handlers_that_record_spoil_nothing(
    program: Path, run: Callable[..., Run], settings: str, rounds: int
) -> None:
    done = run(program, "signals", rounds, 0, settings=settings, log=False)
    handled = int(done.done.stdout)
    assert handled > 10
    (windows,) = done.trace.windows.values()
    handler = 65536 + 39
    for one in windows:
        for site, address, n_bytes in one.accesses:
            assert n_bytes == 0 and (site - 65536 < 8 or (site == handler and address == 0xABCD0)), (site, address)
    (total,) = done.trace.totals.values()
    executed = rounds * 200_000 + 50 * handled
    # A handler that comes while a segment is half done can take the thread variable along: those few accesses are not counted.
    assert abs(total - executed) <= 0.001 * executed + 64 * handled
    assert done.status("torn") <= handled


def test_signals_in_loops_that_hold_the_countdown_in_a_register(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "signals", 20, 1, settings="window=100,period=1000", log=False)
    assert done.trace.windows and done.trace.totals
    for own in done.trace.windows.values():
        for one in own:
            assert all(65536 <= site < 65536 + 64 for site, _, _ in one.accesses)


@pytest.mark.parametrize("settings", ["window=100,period=1000", "window=100,period=100,wait=1"])
def test_exit_in_a_handler(program: Path, run: Callable[..., Run], settings: str) -> None:
    done = run(program, "exit_in_handler", 1000, 0, settings=settings, log=False, status=3)
    assert all(one.accesses is not None for own in done.trace.windows.values() for one in own)


# ---- modules ---------------------------------------------------------------------------------------------------------------------
def test_a_library_that_is_loaded_again_keeps_its_sites(builder: Builder, plain: Path, run: Callable[..., Run]) -> None:
    library = builder.build(
        "libtraced.so", "-shared", "-fPIC", "-Wl,--wrap=pthread_create", *EXPORTS[:2], NATIVE / "trace_library.c"
    )
    done = run(
        plain,
        "reload",
        5,
        100,
        settings="window=10,period=10,wait=1",
        log=False,
        environment={"TRACE_LIBRARY": str(library)},
    )
    first, second = sorted(done.process.modules, key=lambda module: module.content.first_site)
    assert (first.content.first_site, first.content.sites) == (65536, 64)
    assert (second.content.first_site, second.content.sites) == (65600, 3)
    (windows,) = done.trace.windows.values()
    accesses = [access for one in windows for access in one.accesses]
    assert len(accesses) == 5 * (2 * 100 + 10)
    own = [(site, address) for site, address, _ in accesses if site >= 65600]
    assert own == [
        (site, base + 8 * i)
        for _ in range(5)
        for i in range(100)
        for site, base in ((65601, 0x700000), (65602, 0x800000))
    ]


# ---- without a recorder -------------------------------------------------------------------------------------------------------------
def test_without_settings_nothing_is_traced(
    plain: Path, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMLENS")}
    subprocess.run([plain, "random", "10000", "1"], env=environment, check=True)
    arena = Arena()
    try:
        arena.run(plain, "random", 10_000, 1)
        assert arena.process().content.trace_state == 0
    finally:
        arena.close()


@pytest.mark.parametrize(
    "settings", ["", "window=0,period=5", "window=10,period=5", "window=ten,period=50", "windows=1,period=50", "window"]
)
def test_settings_that_make_no_sense_trace_nothing_and_are_told(
    plain: Path, run: Callable[..., Run], settings: str
) -> None:
    done = run(plain, "simple", 10_000, settings=settings, log=False)
    assert not done.trace.windows and done.process.content.trace_state == 3


def test_without_the_library_that_records_nothing_is_traced_and_it_is_told(
    builder: Builder, run: Callable[..., Run]
) -> None:
    for name, static in (("alone", False), ("alone_static", True)):
        program = builder.build(name, *EXPORTS[:2], NATIVE / "trace_program.c", "-ldl", static=static)
        done = run(program, "simple", 10_000, settings="window=10,period=100", log=False)
        assert not done.trace.windows and done.process.content.trace_state == 2


def test_errno_is_kept(plain: Path, run: Callable[..., Run]) -> None:
    run(plain, "errors", 10_000, settings="window=10,period=20", log=False)


def test_constants_alone_make_no_window_longer_than_a_record_can_say(plain: Path, run: Callable[..., Run]) -> None:
    done = run(plain, "random", 2_000, 77, 4, settings="window=1,period=3,seed=1")
    (log,) = done.logs.values()
    (windows,) = done.trace.windows.values()
    assert (log["kind"] == CONSTANT).sum() > len(log) / 2
    assert all(one.accesses == expected(log, one) for one in windows)


def test_the_room_function_keeps_registers(builder: Builder, run: Callable[..., Run]) -> None:
    """preserve_most: compiled code goes on with what it had in registers."""
    program = builder.build("registers", *EXPORTS, NATIVE / "trace_registers.c", NATIVE / "trace_services.c")
    run(program, settings="window=10,period=20", log=False)
