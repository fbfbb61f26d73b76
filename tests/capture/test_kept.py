"""What is kept beside a capture: used when it still holds, ignored when anybody else may have written it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import CaptureBuilder
from conftest import run_memlens

from memlens import analyses
from memlens.analyses import _kept_report
from memlens.capture.reader import open_capture
from memlens.capture.store import kept as kept_module
from memlens.capture.store.directory import CaptureDirectory
from memlens.capture.store.kept import KeptResults, cache_directory
from memlens.results import Finding, Note, Quality, Reference, Report, Result


def some_capture(path: Path, *, pages: int = 9, **meta: Any) -> Path:
    made = CaptureBuilder()
    made.meta.update(meta)
    made.mapping(1, 0x100, 64, path="//anon").event(1, "exec", name="prog")
    for page in range(pages):
        made.fault(10 + page, 0x100 + page)
    made.write(path)
    path.chmod(0o700)
    return path


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever a report is computed."""
    seen: list[str] = []
    original = analyses.run_all

    def run_all(*arguments: Any, **options: Any) -> Any:
        seen.append("once")
        return original(*arguments, **options)

    monkeypatch.setattr(analyses, "run_all", run_all)
    return seen


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("derived-*.cache"))


def report_of(path: Path, **options: Any) -> Report:
    return analyses.report(open_capture(path), cache=True, **options)


def test_the_second_report_is_the_first_and_is_not_computed(tmp_path: Path, computed: list[str]) -> None:
    path = some_capture(tmp_path / "c.memlens")
    first, second = report_of(path), report_of(path)
    assert computed == ["once"]
    assert first.to_json() == second.to_json()
    assert all(second.results[name].tables[t].schema == table.schema for name in first.results for t, table in first.results[name].tables.items())  # fmt: skip
    (entry,) = entries(path)
    assert entry.stat().st_mode & 0o777 == 0o600


def test_the_page_after_the_terminal_is_not_computed(tmp_path: Path) -> None:
    path = some_capture(tmp_path / "c.memlens")
    plain = run_memlens("report", path)
    assert plain.returncode == 0 and len(entries(path)) == 1
    (before,) = [entry.stat().st_mtime_ns for entry in entries(path)]
    assert run_memlens("report", path, "--html", tmp_path / "page.html").returncode == 0
    assert run_memlens("report", path).stdout == plain.stdout
    assert [entry.stat().st_mtime_ns for entry in entries(path)] == [before]
    assert run_memlens("report", path, "--no-cache").stdout == plain.stdout


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    path = some_capture(tmp_path / "c.memlens")
    assert run_memlens("report", path, "--no-cache").returncode == 0
    assert entries(path) == [] and not cache_directory().exists()


def test_other_options_another_capture_and_another_memlens_are_computed(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_capture(tmp_path / "c.memlens")
    report_of(path)
    report_of(path, machine="zen4")
    report_of(path, skip_frames="^main$")
    assert len(computed) == 3
    monkeypatch.setattr(kept_module, "__version__", "0.0.0")
    report_of(path)
    assert len(computed) == 4
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_changed_capture_is_computed(tmp_path: Path, computed: list[str]) -> None:
    path = some_capture(tmp_path / "c.memlens")
    report_of(path)
    records = path / "records-recorder.mlc"
    content = records.read_bytes()
    records.write_bytes(content)  # the same bytes: nobody has compared them
    os.utime(records, ns=(1, 1))
    report_of(path)
    assert len(computed) == 2
    shutil.copytree(path, tmp_path / "copy.memlens")
    report_of(tmp_path / "copy.memlens")
    assert len(computed) == 3


@pytest.mark.parametrize("meta", [{"state": "recording"}, {"finishing": True}])
def test_a_capture_that_may_still_grow_has_no_entry(tmp_path: Path, meta: dict[str, Any], computed: list[str]) -> None:
    path = some_capture(tmp_path / "c.memlens")
    file = path / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **meta}))
    report_of(path)
    report_of(path)
    assert len(computed) == 2 and entries(path) == []


def test_a_binary_that_has_changed_makes_the_entry_void(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, binary = some_capture(tmp_path / "c.memlens"), tmp_path / "prog"
    binary.write_text("one")
    monkeypatch.setattr(_kept_report, "files_read", lambda capture: [str(binary), str(tmp_path / "missing")])
    report_of(path)
    report_of(path)
    assert len(computed) == 1
    (tmp_path / "missing").write_text("there now")
    report_of(path)
    assert len(computed) == 2
    binary.write_text("other")
    report_of(path)
    assert len(computed) == 3


def made_entry(path: Path) -> Path:
    report_of(path)
    (entry,) = entries(path)
    return entry


def change_a_byte(entry: Path) -> None:
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)


def cut(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-3])


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def foreign_secret(entry: Path) -> None:
    """As somebody else's memlens would have written it: all is right but the MAC's key."""
    content = entry.read_bytes()
    start = len(kept_module.MAGIC) + kept_module.MAC_BYTES
    entry.write_bytes(
        content[: len(kept_module.MAGIC)] + kept_module._mac(b"x" * 32, content[start:]) + content[start:]
    )


def readable_by_all(entry: Path) -> None:
    entry.chmod(0o644)


def a_link(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(entry.with_name("elsewhere").absolute())
    os.rename(entry.with_name("elsewhere"), entry.parent.parent / "elsewhere")
    entry.unlink()
    entry.symlink_to(entry.parent.parent / "elsewhere")


def a_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry, 0o600)


def of_another_user(entry: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(entry, 65534, 65534)


@pytest.mark.parametrize(
    "attack", [change_a_byte, cut, empty, foreign_secret, readable_by_all, a_link, a_pipe, of_another_user]
)
def test_an_entry_that_somebody_else_may_have_written_is_ignored(
    tmp_path: Path, computed: list[str], attack: Any
) -> None:
    path = some_capture(tmp_path / "c.memlens")
    entry = made_entry(path)
    attack(entry)
    wanted = analyses.report(open_capture(path))
    computed.clear()
    assert report_of(path).to_json() == wanted.to_json()
    assert computed == ["once"]


def test_an_entry_of_another_capture_is_ignored(tmp_path: Path, computed: list[str]) -> None:
    """Signed by this user, but for something else: moved to where it would be looked for."""
    one, other = some_capture(tmp_path / "one.memlens"), some_capture(tmp_path / "other.memlens", pages=3)
    entry = made_entry(one)
    theirs = made_entry(other)
    shutil.copy(entry, theirs)
    theirs.chmod(0o600)
    computed.clear()
    assert report_of(other).to_json() == analyses.report(open_capture(other)).to_json()
    assert len(computed) == 2


def test_a_secret_that_others_could_read_is_replaced(tmp_path: Path, computed: list[str]) -> None:
    path = some_capture(tmp_path / "c.memlens")
    report_of(path)
    secret = tmp_path / "state" / "memlens" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600 and len(secret.read_bytes()) == 32
    before = secret.read_bytes()
    secret.chmod(0o644)
    report_of(path)
    assert len(computed) == 2 and secret.read_bytes() != before and secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("mode", "meta"),
    [(0o777, {}), (0o700, {"redacted": True}), (0o700, {"machine": {"host": "redacted"}})],
    ids=["writable by others", "redacted", "redacted by an old version"],
)
def test_what_should_not_lie_beside_the_capture_lies_in_the_users_cache(
    tmp_path: Path, computed: list[str], mode: int, meta: dict[str, Any]
) -> None:
    path = some_capture(tmp_path / "c.memlens", **meta)
    path.chmod(mode)
    report_of(path)
    report_of(path)
    assert computed == ["once"] and entries(path) == [] and len(entries(cache_directory())) == 1


def test_a_capture_that_cannot_be_written_to(
    tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_capture(tmp_path / "c.memlens")
    access = os.access
    monkeypatch.setattr(os, "access", lambda where, mode: access(where, mode) and Path(where) != path)
    report_of(path)
    report_of(path)
    assert computed == ["once"] and entries(path) == [] and len(entries(cache_directory())) == 1


def test_the_users_cache_is_bounded_and_loses_what_was_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "MOST_CACHE_BYTES", 3500)
    monkeypatch.setattr(kept_module, "MOST_ENTRY_BYTES", 500 * 2)
    path = some_capture(tmp_path / "c.memlens", redacted=True)
    meta = open_capture(path).meta
    made = [KeptResults(path, meta, {"number": number}) for number in range(9)]
    for at, one in enumerate(made):
        assert one.save(b"x" * 400, read=[])
        os.utime(cache_directory() / f"derived-{one.key}.cache", ns=(at + 1, at + 1))
        if at >= 3:
            assert made[0].load() is not None  # used: now the newest
    left = entries(cache_directory())
    assert 2 <= len(left) < 9 and sum(entry.stat().st_size for entry in left) <= 3500
    assert made[0].load() is not None and made[1].load() is None


def test_entries_beside_a_capture_are_few(tmp_path: Path) -> None:
    path = some_capture(tmp_path / "c.memlens")
    for number in range(20):
        assert KeptResults(path, open_capture(path).meta, {"number": number}).save(b"x", read=[])
    assert len(entries(path)) == kept_module.MOST_BESIDE


def test_what_was_changed_while_it_was_read_is_not_kept(tmp_path: Path) -> None:
    path = some_capture(tmp_path / "c.memlens")
    kept = KeptResults(path, open_capture(path).meta, {})
    os.utime(path / "records-recorder.mlc")
    assert not kept.save(b"x", read=[])


def test_force_replaces_a_capture_with_entries(tmp_path: Path) -> None:
    path = some_capture(tmp_path / "c.memlens")
    made_entry(path)
    directory = CaptureDirectory(path, force=True)
    directory.settle()
    assert entries(path) == [] and [p.name for p in tmp_path.iterdir() if "replaced" in p.name] == []
    directory.give_up()


def test_values_of_all_types_come_back_as_they_were() -> None:
    import pyarrow as pa

    nan = float("nan")
    result = Result("one", {"a": (1, 2.5, None), 3: {"x": [True, "y"]}, "inf": float("inf")}, {"t": pa.table({"c": [1, None]})},
                    Quality(notes=(Note("a.code", "A sentence.", n=(1,)), "plain")))  # fmt: skip
    finding = Finding(
        "f", "high", "claim", {"rows": ((1, 2),)}, "remedy", references=(Reference(kind="code", name="main"),)
    )
    report = Report("title", {}, {"one": result}, [finding], Quality(), {}, ())
    parts = _kept_report.from_bytes(_kept_report.to_bytes(report))
    assert parts["results"] == {"one": result} and parts["findings"] == [finding] and parts["quality"] == Quality()
    note = parts["results"]["one"].quality.notes[0]
    assert note.code == "a.code" and note.values == {"n": (1,)}
    odd = Result("one", {"nan": nan}, {}, Quality())
    again = _kept_report.from_bytes(_kept_report.to_bytes(Report("t", {}, {"one": odd}, [], Quality())))
    assert again["results"]["one"].figures["nan"] != again["results"]["one"].figures["nan"]
    strange = Result("one", {"of another package": object()}, {}, Quality())
    with pytest.raises(_kept_report.NotKept):
        _kept_report.to_bytes(Report("t", {}, {"one": strange}, [], Quality()))


def test_a_table_that_takes_long_is_kept_and_one_that_does_not_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memlens.capture.tables import kept as tables

    path = some_capture(tmp_path / "c.memlens")
    wanted = open_capture(path).table("faults")

    def opened() -> Any:
        capture = open_capture(path)
        capture.keeps_tables = True
        return capture

    assert opened().table("faults").equals(wanted) and entries(path) == []
    monkeypatch.setattr(tables, "LEAST_S", 0.0)
    assert opened().table("faults").equals(wanted)
    assert len(entries(path)) == 1
    with monkeypatch.context() as patch:
        patch.setattr("memlens.capture.reader.Capture.replay", property(lambda self: pytest.fail("replayed again")))
        again = opened().table("faults")
    assert again.equals(wanted) and again.schema == wanted.schema
    open_capture(path).table("processes")  # keeps nothing by itself
    assert len(entries(path)) == 1
    done = run_memlens("query", path, "SELECT count(*) FROM faults", "--no-cache")
    assert done.returncode == 0 and len(entries(path)) == 1
