"""Attack `programs`: nasty programs natively and under `memlens record` in several modes.

Both runs must agree in standard output, standard error, exit status or signal, and the files written: name, mode and content.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .model import Attempt
from .program_sources import HEAD, SOURCES, THIRTY_TWO_BITS
from .workplace import kept, workplace

SECONDS = 120.0
"""A run takes a second or two; the machine may be shared."""
NATIVE_RUNS = 4
"""A program that does not agree with itself in so many runs says nothing about us."""
OUTPUT_BYTES = 4 << 20

MODES: dict[str, tuple[str, ...]] = {
    "default": (),
    "every object": ("--sample-bytes", "0"),
    "frame pointers": ("--stacks", "fp"),
    "no stacks": ("--stacks", "none"),
    "single": ("--single",),
    "faults": ("--collectors", "faults"),
    "timeline": ("--collectors", "timeline", "--rate", "1000"),
    "alloc": ("--collectors", "alloc"),
    "all small": ("--sample-bytes", "1", "--large-bytes", "1", "--rate", "1000"),
    "redact": ("--redact",),
    "emulate": ("--emulate=counts",),
}


@dataclass(frozen=True)
class Case:
    name: str
    command: tuple[str | bytes, ...]
    needs: tuple[str, ...] = ()
    """Programs it runs."""
    emulates: bool = False
    """qemu-user runs it as the kernel does."""
    as_root: bool = False
    environment: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What a run left behind."""

    status: int
    out: bytes
    err: bytes
    files: tuple[tuple[str, str], ...]
    seconds: float = field(compare=False, default=0.0)

    def difference(self, other: Seen) -> str:
        if self.status != other.status:
            return f"ended with {_status(other.status)} instead of {_status(self.status)}; it said {other.err[-300:]!r}"
        for name, mine, theirs in (("output", self.out, other.out), ("error", self.err, other.err)):
            if mine != theirs:
                at = next(
                    (i for i, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]),
                    min(len(mine), len(theirs)),
                )
                return f"standard {name} differs at byte {at}: {theirs[at : at + 100]!r} instead of {mine[at : at + 100]!r}"
        changed = sorted({name for name, _ in set(self.files) ^ set(other.files)})
        return f"files differ: {', '.join(changed[:10])}"


def _status(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


# ---- the cases -----------------------------------------------------------------------------------------------------------
def _own(name: str, *arguments: str | bytes, **more: object) -> Case:
    return Case(" ".join([name, *(str(a)[:40] for a in arguments)]), (f"@{name}", *arguments), **more)  # type: ignore[arg-type]


def _shell(name: str, script: str, *needs: str, emulates: bool = False, as_root: bool = False) -> Case:
    return Case(name, ("sh", "-c", script), needs=needs, emulates=emulates, as_root=as_root)


def cases() -> list[Case]:
    resource_numbers = {"fsize": 1, "data": 2, "stack": 3, "core": 4, "nproc": 6, "nofile": 7, "memlock": 8, "as": 9}
    limits = [("nofile", "3"), ("nofile", "4"), ("nofile", "8"), ("nofile", "64"), ("fsize", "0"), ("fsize", "4096"), ("core", "0"), ("stack", "65536"),
              ("data", "60000000"), ("as", "400000000"), ("nproc", "0"), ("memlock", "0")]  # fmt: skip
    own = [
        _own("faults", emulates=True),
        *(_own("dies", how, emulates=how in "akt") for how in "saktfixcop"),
        _own("vforks"), _own("clones"), _own("jumps", emulates=True), _own("static"), _own("alarms"),
        *(_own("filters", how, refused) for how in "psam" for refused in "ke"),
        _own("drops", as_root=True), _own("roots", as_root=True),
        *(_own("closed", which) for which in ("0", "1", "2", "01", "02", "12", "012")),
        *(_own("limits", str(resource_numbers[name]), value) for name, value in limits),
        _own("limits", "7", "3", "echo in a shell"), _own("limits", "3", "131072", "echo in a shell; ls /"),
        _own("loads"), _own("threads"), _own("again", "9"), _own("traces"), _own("bomb"),
        *(_own("ends", how) for how in "adtTqghemrx"),
        _own("arguments", b"a\xffb", "é".encode(), b"", b"\x1b]52;c;eA==\x07", environment={b"STRANGE": b"v\xc3\x28w"}),
        _own("arguments", *(f"word {i} {'x' * 90}" for i in range(12000))),
        _own("own_malloc"), _own("empty"), _own("empty", "1"), *(_own("hostile", where) for where in ("header", "slot", "rings")),
    ]  # fmt: skip
    if platform.machine() == "x86_64":
        own += [
            _own("dynamic32"),
            _own("static32"),
            _shell("32 bits in a shell", "$PROGRAMS/dynamic32/dynamic32; $PROGRAMS/static32/static32 | cat"),
        ]
    return [
        *own,
        _shell("pipeline", "seq 1 20000 | sort -R --random-source=/etc/passwd | sort -n | uniq -c | tail -3; false | true; echo $?; exit 42", emulates=True),
        _shell("subshells", "(exit 3); echo $?; $(echo echo nested); trap 'echo trapped; exit 5' TERM; kill -TERM $$; echo never"),
        _shell("jobs", "sleep 0.05 & wait $!; echo $?; (kill -9 $$ 2>/dev/null); echo never"),
        _shell("inherited", "ulimit -a; umask; nice; pwd | wc -c; ls -l /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign|Cgt)|Threads|Seccomp|NoNewPrivs' /proc/self/status"),
        _shell("here document", "cat <<E > out; cat out\n$(seq 100)\nE\nchmod 640 out; ln -s out link; mkfifo pipe; mkdir -m 700 deep"),
        _shell("perl", """perl -e 'my %h; $h{$_ % 977} .= "x" x ($_ % 50) for 1..50000; printf "%d\\n", scalar keys %h; fork or exit 3; wait; print $? >> 8, "\\n"; exec "sh", "-c", "echo \\$0; exit 9"'""", "perl", emulates=True),
        _shell("python", "python3 -c \"import collections,sys,threading,subprocess; d={i:str(i)*3 for i in range(50000)}; t=[threading.Thread(target=lambda: [bytearray(1000) for _ in range(5000)]) for _ in range(4)]; [x.start() for x in t]; [x.join() for x in t]; print(len(d), subprocess.run(['sh','-c','exit 4']).returncode); sys.exit(17)\"", "python3"),
        _shell("python error", "python3 -c 'import multiprocessing as m; p=m.Process(target=exit, args=(3,)); p.start(); p.join(); print(p.exitcode, flush=True); raise SystemError(\"wanted\")'", "python3"),
        _shell("python aborts", "python3 -X faulthandler -c 'import ctypes; ctypes.string_at(0)' 2>/dev/null", "python3"),
        _shell("git", "export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z' GIT_CONFIG_GLOBAL=/dev/null; git init -q -b main . && echo hello > a && git add a && git -c user.name=a -c user.email=a@b commit -qm x && git log --format=%H && git fsck; git gc -q; rm -rf .git", "git"),
        _shell("make", "printf 'all: a b c\\n\\techo all\\na b c:\\n\\t@echo $@ > $@; sleep 0.0\\n' > Makefile; make -s -j2 | sort; make -n; make nowhere; echo $?", "make"),
        _shell("awk", "seq 1 50000 | awk '{s[$1%97]+=$1} END {for (k in s) n+=s[k]; print n; exit 6}'", "awk", emulates=True),
        _shell("xz", "seq 1 60000 > n; xz -T2 -k n; xz -dc n.xz | cmp - n; gzip -nk n; gzip -dc n.gz | sha256sum", "xz", "gzip"),
        _shell("tar", "mkdir d; for i in 1 2 3 4 5; do seq $i 2000 > d/$i; done; tar --sort=name --mtime=@0 --owner=0 --group=0 -cf t.tar d; tar tf t.tar; mkdir e; tar xf t.tar -C e; diff -r d e/d && rm -rf e", "tar"),
        _shell("find", "mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3; find . -type f -exec sh -c 'echo $1' _ {} \\; | sort; find a -delete; find . | sort; find nowhere", "find"),
        _shell("xargs", "seq 1 3000 | xargs -n 100 -P 3 sh -c 'echo $#' | sort | uniq -c; echo x | xargs sh -c 'exit 255'; echo $?", "xargs"),
        _shell("gcc", "echo 'int main(void){return 12;}' > x.c; gcc -O2 -c x.c -o x.o && gcc x.o -o x && ./x; echo $?; gcc -c nowhere.c; rm -f x", "gcc"),
        _shell("sed and dd", "seq 1 10000 | sed -n '/7$/p' | wc -l; dd if=/dev/zero of=z bs=64k count=16 status=none; sha256sum z; truncate -s 1M z; stat -c %s z", emulates=True),
        _shell("sqlite", "sqlite3 x.db 'create table t(a); with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select x from c; select sum(a), count(*) from t;'; rm x.db", "sqlite3"),
        _shell("node", "node -e 'let a=[];for(let i=0;i<200000;i++)a.push({i});console.log(a.length);process.exit(8)'", "node"),
        _shell("timeout", "timeout -s KILL 0.2 sleep 5; echo $?; timeout 0.2 sh -c 'trap \"\" TERM; sleep 0.4'; echo $?", "timeout"),
        _shell("setsid and nohup", "setsid -w sh -c 'echo s; exit 3'; echo $?; nohup echo n 2>/dev/null; env -i /bin/echo empty; nice -n 3 echo nice", "setsid"),
        _shell("user namespace", "unshare -U -r sh -c 'id -u; echo inside'", "unshare"),
        _shell("namespaces", "unshare -m -u -i -n -p -f sh -c 'echo $$; hostname inside; hostname'", "unshare", as_root=True),
        _shell("other user", "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'id -u; perl -e 1; echo fine'", "setpriv", "perl", as_root=True),
    ]  # fmt: skip


# ---- building -------------------------------------------------------------------------------------------------------------
class Programs:
    """Builds programs when they are asked for, each in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.built: dict[str, Path | None] = {}

    def path(self, name: str) -> Path | None:
        """None: it cannot be built here."""
        if name not in self.built:
            self.built[name] = self._build(name)
        return self.built[name]

    def _build(self, name: str) -> Path | None:
        folder = self.place / name
        folder.mkdir(parents=True)
        program = folder / name
        if name.endswith("32"):
            (folder / "source.s").write_text(THIRTY_TWO_BITS)
            pie = ["-pie", "--dynamic-linker=/lib/ld-linux.so.2"] if name == "dynamic32" else []
            steps = [
                ["as", "--32", "source.s", "-o", "source.o"],
                ["ld", "-m", "elf_i386", *pie, "source.o", "-o", name],
            ]
        else:
            (folder / "source.c").write_text(HEAD + SOURCES[name])
            static = ["-static"] if name == "static" else []
            steps = [["gcc", "-O1", "-g", "-w", "-fno-builtin", "-pthread", *static, "source.c", "-o", name, "-ldl"]]
        for step in steps:
            if not shutil.which(step[0]) or subprocess.run(step, cwd=folder, capture_output=True).returncode:
                return None
        return program


# ---- running ----------------------------------------------------------------------------------------------------------------
def _files(folder: Path) -> tuple[tuple[str, str], ...]:
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        what = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
        if stat.S_ISLNK(status.st_mode):
            what += f" → {os.readlink(path)}"
        elif stat.S_ISREG(status.st_mode):
            what += " " + hashlib.sha256(path.read_bytes()).hexdigest()
        found.append((str(path.relative_to(folder)), what))
    return tuple(found)


def _run(command: list[str | bytes], place: Path, environment: dict[bytes, bytes]) -> Seen:
    """Runs it in an empty directory, always of the same name: programs print it."""
    folder = place / "here"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    streams = place / ".out", place / ".err"
    begin = time.monotonic()
    try:
        with open(streams[0], "wb") as out, open(streams[1], "wb") as err:
            process = subprocess.Popen(
                command, cwd=folder, env={**environment, b"HOME": os.fsencode(folder)}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = -signal.SIGXCPU  # shown as that: no case ends so but by a limit
        read = [path.open("rb").read(OUTPUT_BYTES) for path in streams]
        return Seen(status, read[0], read[1], _files(folder), time.monotonic() - begin)
    finally:
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def _attempt(case: Case, mode: str, programs: Programs, place: Path, name: str) -> Attempt | None:
    """None: it says nothing here."""
    first = case.command[0]
    own = programs.path(first[1:]) if isinstance(first, str) and first.startswith("@") else None
    for other in ("dynamic32", "static32") if "32 bits" in case.name else ():
        programs.path(other)
    if isinstance(first, str) and first.startswith("@") and own is None:
        return None
    command: list[str | bytes] = [str(own) if own else first, *case.command[1:]]
    environment = {
        b"PATH": os.environb.get(b"PATH", b"/usr/bin:/bin"),
        b"LC_ALL": b"C",
        b"PROGRAMS": os.fsencode(programs.place),
        **case.environment,
    }
    capture = place / "capture.memlens"
    recorder = [sys.executable, "-m", "memlens", "record", "-q", "--force", "-o", str(capture), *MODES[mode], "--"]
    native = _run(command, place, environment)
    recorded = _run([*recorder, *command], place, environment)
    failure = None
    if recorded != native:
        again = [_run(command, place, environment) for _ in range(NATIVE_RUNS - 1)]
        if all(one == native for one in again):
            failure = native.difference(recorded)
    shown = ("memlens", *recorder[3:], *(os.fsdecode(word) for word in command))
    reproduction = ""
    if failure:
        reproduction = kept("programs", name, own.parent, shown) if own is not None else " ".join(shown)
    figures = {"seconds": recorded.seconds}
    return Attempt(
        "programs", f"{case.name}, {mode}", tuple(word[:200] for word in shown[:40]), failure, reproduction, figures
    )


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Programs × modes in random order until the time is over; all of them once before any twice."""

    is_root = os.geteuid() == 0
    usable = [
        case
        for case in cases()
        if (is_root or not case.as_root) and all(shutil.which(program) for program in case.needs)
    ]
    emulator = shutil.which(f"qemu-{platform.machine()}") is not None
    pairs = [(case, mode) for case in usable for mode in MODES if mode != "emulate" or (case.emulates and emulator)]
    with workplace() as place:
        place.chmod(0o755)
        programs = Programs(place / "programs")
        until = time.monotonic() + seconds
        for turn in itertools.count():
            draw = random.Random(f"programs {seed} {turn}")
            for number, (case, mode) in enumerate(draw.sample(pairs, len(pairs))):
                if time.monotonic() > until:
                    return
                attempt = _attempt(case, mode, programs, place, f"{seed}-{turn}-{number}")
                if attempt is not None:
                    yield attempt
