"""The recorder's side of compile-time counting, with programs that write the arena by the contract."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import run_memlens
from count_tools import CALL, LOAD, STORE, Function, Site, build_program

import memlens
from memlens.capture.store import counted_modules
from memlens.collect.collectors.count import options as counting
from memlens.errors import UsageError

Record = Callable[..., memlens.Capture]
KERNEL = Function("kernel", sites=[Site(LOAD, 1), Site(STORE, 1, bytes=4), Site(CALL, 1, bytes=0, callee="sin")])
FIRST = 32768
"""Words that the runtime keeps free for code that is not registered yet."""


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    def build(body: str, functions: list[Function] | None = None) -> Path:
        return build_program(tmp_path / f"program{len(list(tmp_path.glob('*.c')))}", functions or [KERNEL], body)

    return build


ONE_PLACE = f"""
add_module({FIRST});
add_node(1, 0, "solve");
struct ml_count_place *place = add_place((uint32_t)getpid(), 1, 0);
place->entered = place->counted = 3;
place->counted_ticks = place->counted_self_ticks = 6000;
counters(place)[{FIRST}] = 1000;
"""


def test_a_counted_program_is_counted_without_being_asked(record: Record, program: Callable[..., Path]) -> None:
    capture = record(program(ONE_PLACE))
    assert "count" in capture.meta["collectors"]
    rows = {row["kind"]: row for row in capture.table("site_counts").to_pylist()}
    assert rows["load"]["executions"] == 1000 and rows["load"]["read_bytes"] == 8000
    assert rows["store"]["written_bytes"] == 4000 and rows["store"]["region"] == "solve"
    assert rows["call"]["callee"] == "sin" and rows["call"]["executions"] == 1000
    times = capture.table("region_times").to_pylist()
    assert [(row["region"], row["counted"], row["counted_ns"]) for row in times] == [("solve", 3, 6000)]
    assert capture.table("processes").num_rows == 1


def test_alone_and_with_other_collectors(record: Record, program: Callable[..., Path]) -> None:
    path = program(ONE_PLACE)
    for options in (("--collectors", "count"), ("--count",), ("--collectors", "count,timeline,alloc"), ("--redact",)):
        capture = record(path, options=options)
        assert sum(capture.table("site_counts").column("read_bytes").to_pylist()) == 8000, options
    assert "count" not in record(path, options=("--collectors", "timeline")).meta["collectors"]


def test_redacted_captures_keep_no_paths(record: Record, program: Callable[..., Path]) -> None:
    kernel = Function("kernel", sites=[Site(LOAD, 1, file="/home/me/secret/kernel.c")], file="/home/me/secret/kernel.c")
    capture = record(program(ONE_PLACE, [kernel]), options=("--redact",))
    assert capture.table("site_counts").column("file").to_pylist() == ["kernel.c"]
    for file in capture.path.iterdir():
        assert b"secret" not in file.read_bytes(), file


def test_a_program_without_counters_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = run_memlens("record", "--count", "-o", tmp_path / "x.memlens", "--", "/bin/true")
    assert done.returncode == 69
    assert "true has no counters" in done.stderr and "memlens cc" in done.stderr
    assert len(done.stderr.splitlines()) == 2 and not (tmp_path / "x.memlens").exists()


def test_what_a_script_starts_is_counted(record: Record, program: Callable[..., Path], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{program(ONE_PLACE)}\n{program(ONE_PLACE)}\n")
    script.chmod(0o755)
    for command, options in ((script, ()), ("sh", ("--count=children",))):
        capture = record(command, *([script] if command == "sh" else []), options=options)
        assert capture.table("count_status").num_rows == 2
        assert sum(capture.table("site_counts").column("executions").to_pylist()) == 6000
    empty = tmp_path / "empty"
    empty.write_text("#!/bin/sh\ntrue\n")
    empty.chmod(0o755)
    assert "count" not in record(empty).meta["collectors"]


def test_a_killed_program_loses_nothing(record: Record, program: Callable[..., Path]) -> None:
    body = ONE_PLACE + "place->entered = 4; place->open_ticks = now_ns(); usleep(50000); kill(getpid(), SIGKILL);"
    capture = record(program(body), status=-9)
    assert sum(capture.table("site_counts").column("read_bytes").to_pylist()) == 8000
    (row,) = capture.table("region_times").to_pylist()
    assert row["open_ns"] >= 50_000_000 and row["entered"] == 4
    (status,) = capture.table("count_status").to_pylist()
    assert status["flags"] == 0


def test_forks_and_execs_are_images_of_their_own(record: Record, program: Callable[..., Path]) -> None:
    body = (
        ONE_PLACE
        + f"""
    if (getenv("AGAIN") == NULL) {{
      if (fork() == 0) {{
        new_image();
        add_module({FIRST});
        struct ml_count_place *mine = add_place((uint32_t)getpid(), 0, 0);
        counters(mine)[{FIRST}] = 7;
        _exit(0);
      }}
      wait(NULL);
      setenv("AGAIN", "1", 1);
      execv(argv[0], argv);
    }}"""
    )
    capture = record(program(body))
    rows = capture.table("site_counts").to_pylist()
    loads = sorted((row["image"], row["process"], row["executions"]) for row in rows if row["kind"] == "load")
    assert sorted(executions for _, _, executions in loads) == [7, 1000, 1000]
    processes = {executions: process for _, process, executions in loads}
    assert len({image for image, _, _ in loads}) == 3 and len({process for _, process, _ in loads}) == 2
    assert processes[7] != processes[1000]
    assert capture.table("count_sites").num_rows == 3  # one module, however many images ran it


def test_thousands_of_threads(record: Record, program: Callable[..., Path]) -> None:
    body = f"""
    add_module({FIRST});
    add_node(1, 0, "solve");
    for (uint32_t thread = 1; thread <= 3000; thread++) {{
      struct ml_count_place *place = add_place(thread, 1, ML_COUNT_ENDED | (thread % 2 ? 0 : ML_COUNT_UNATTRIBUTED));
      place->entered = place->counted = 1;
      counters(place)[{FIRST}] = thread;
      munmap(place, ML_COUNT_PLACE_COUNTERS + 8 * arena->counters_max);
    }}"""
    capture = record(program(body))
    rows = capture.table("site_counts").to_pylist()
    assert sum(row["executions"] for row in rows if row["kind"] == "load") == 3000 * 3001 // 2
    assert capture.table("count_status").to_pylist()[0]["threads_unattributed"] == 1500
    assert any("1500 threads" in note for note in capture.quality.notes)


def test_epochs_add_up_to_the_totals(record: Record, program: Callable[..., Path]) -> None:
    body = f"""
    add_module({FIRST});
    add_node(1, 0, "solve");
    struct ml_count_place *place = add_place((uint32_t)getpid(), 1, 0);
    for (int turn = 0; turn < 10; turn++) {{
      place->entered++;
      counters(place)[{FIRST}] += 100;
      usleep(50000);
      place->counted++;
      place->counted_ticks += 50000000;
    }}"""
    capture = record(program(body), options=("--count=epoch=100ms",))
    records = capture.table("block_count_records").to_pylist()
    total = [row["value"] for row in records if row["epoch"] == 0]
    assert total == [1000]
    epochs = {row["epoch"]: row["value"] for row in records if row["epoch"]}
    assert len(epochs) >= 4 and sum(epochs.values()) == 1000
    times = capture.table("region_times").to_pylist()
    assert sum(row["counted_ns"] for row in times if row["epoch"]) == 500_000_000
    spans = capture.table("count_epochs").to_pylist()
    assert all(a["end_ns"] == b["begin_ns"] for a, b in itertools.pairwise(spans))
    assert sum(capture.table("site_counts").column("read_bytes").to_pylist()) == 8000  # not twice


def test_losses_and_damage_are_told(record: Record, program: Callable[..., Path]) -> None:
    body = (
        ONE_PLACE
        + """
    process->functions_refused = 5;
    arena->refused = 2;
    counters(place)[17] = 1; /* before its module was registered */
    struct ml_count_entry *bad = &directory[__atomic_fetch_add(&arena->entries, 3, __ATOMIC_RELAXED)];
    bad[0].offset = UINT64_MAX - 5; bad[0].bytes = 10; bad[0].pid = (uint32_t)getpid(); bad[0].born_ns = born_ns; bad[0].kind = 4;
    bad[1].offset = 70000000 & ~4095u; bad[1].bytes = 8; bad[1].pid = (uint32_t)getpid(); bad[1].born_ns = born_ns; bad[1].kind = 2;
    """
    )
    capture = record(program(body))
    notes = " ".join(capture.quality.notes)
    for text in ("5 functions found no room", "2 places for counters", "1 counters were used by code", "2 entries"):
        assert text in notes, notes
    assert sum(capture.table("site_counts").column("read_bytes").to_pylist()) == 8000


def test_a_module_that_was_replaced_while_it_ran_is_reported(record: Record, program: Callable[..., Path]) -> None:
    body = ONE_PLACE + 'usleep(10000); remove(argv[0]); FILE *f = fopen(argv[0], "w"); fputs("other", f); fclose(f);'
    capture = record(program(body + "kill(getpid(), SIGKILL);"), status=-9)
    status = capture.table("counted_modules").column("status").to_pylist()
    if status == ["read"]:
        pytest.skip("the recorder was faster than the program")
    assert any("could not be read" in note for note in capture.quality.notes)
    assert capture.table("site_counts").num_rows == 0


def test_only_pages_with_data_are_read(tmp_path: Path) -> None:
    from memlens.capture.store.count_arena import CountArena, Place

    arena = CountArena()
    try:
        place = Place(0, 1, 0, 0, 1 << 40, arena.counters_max)
        import os

        os.pwrite(arena.fd, (5).to_bytes(8, "little"), place.offset + 4096 + 8 * 900_000)
        os.pwrite(arena.fd, (6).to_bytes(8, "little"), place.offset + 4096 + 8 * 7)
        numbers, values = arena.counters_of(place, arena.counters_max)
        assert numbers.tolist() == [7, 900_000] and values.tolist() == [6, 5]
        assert os.fstat(arena.fd).st_blocks * 512 < 1 << 20
    finally:
        arena.close()


def test_settings() -> None:
    options = counting.parse("every=100,first=5,random,seed=7,epoch=200ms,events=page-faults,task-clock,threads=9")
    assert options == counting.CountOptions(
        every=100, first=5, random=True, seed=7, epoch_s=0.2, events=("page-faults", "task-clock"), threads=9
    )
    assert counting.parse("budget=1%").budget_ppm == 10_000
    for bad in (
        "every=0",
        "every=x",
        "budget=0",
        "epoch=1",
        "epoch=1ms",
        "random",
        "nonsense",
        "events=cycle",
        "budget=200%",
    ):
        with pytest.raises(UsageError):
            counting.parse(bad)
    with pytest.raises(UsageError, match="invalid value 'x' for every; expected a positive integer"):
        counting.parse("every=x")


def test_libraries_of_a_program_are_looked_at(tmp_path: Path) -> None:
    library, program = tmp_path / "libcounted.so", tmp_path / "main"
    (tmp_path / "l.c").write_text(
        '__attribute__((section("memlens_functions"))) long f[3]; int twice(int x) { return 2 * x; }'
    )
    (tmp_path / "m.c").write_text("int twice(int); int main(void) { return twice(0); }")
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "l.c", "-o", library], check=True)
    subprocess.run(
        ["gcc", tmp_path / "m.c", "-o", program, f"-L{tmp_path}", "-lcounted", "-Wl,-rpath,$ORIGIN"], check=True
    )
    assert counted_modules.first_counted(str(program)) == str(library)
    assert counted_modules.first_counted("/bin/true") is None
