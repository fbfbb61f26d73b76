"""Debian's programs that the judge runs: how each is prepared and started, and what it needs.

A program runs in a folder of its own, with the C locale and no network. Its input is made here and is the same each time. Programs with
`exact=True` execute the same instructions on the same input, so that counts of two runs can be compared to the last access.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    packages: str
    command: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    exact: bool = False
    """One process, one thread, same input, same instructions."""
    one_process: bool = True
    quick: bool = False
    """Part of `make test`."""
    healthy: bool = True
    """Uses memory as a person would: no finding is expected."""
    language: str = "C"

    def missing(self) -> str | None:
        """Why it cannot run here, with the command that installs it."""
        first = self.command[0]
        if shutil.which(first) is None and not Path(first).exists():
            return f"{first} is not installed: sudo apt-get install {self.packages}"
        return None


def numbers(folder: Path, count: int = 200_000) -> None:
    values = list(range(count))
    random.Random(1).shuffle(values)
    (folder / "numbers").write_text("".join(f"{value}\n" for value in values))


def text(folder: Path) -> None:
    """Prose-like lines: compressible, with repeated words."""
    draw = random.Random(2)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(3000)]
    lines = (" ".join(draw.choices(words, k=12)) for _ in range(20_000))
    (folder / "text").write_text("\n".join(lines))


def text_tree(folder: Path) -> None:
    text(folder)
    lines = (folder / "text").read_text().splitlines()
    (folder / "tree").mkdir()
    for at in range(8):
        (folder / "tree" / f"part{at}").write_text("\n".join(lines[at::8]))


def sql(folder: Path) -> None:
    (folder / "script.sql").write_text(
        "create table t(a integer primary key, b, c text);\n"
        "with recursive n(x) as (select 1 union all select x + 1 from n where x < 30000)\n"
        "insert into t select x, x * 7919 % 30011, 'row ' || x from n;\n"
        "create index by_b on t(b);\n"
        "select count(*), sum(a * b) from t where b between 100 and 20000;\n"
        "select c from t order by b desc limit 5;\n"
    )


def c_source(folder: Path) -> None:
    body = "".join(
        f"int f{i}(int *a, int n) {{ int s = {i}; for (int i = 0; i < n; i++) s += a[i] * (i ^ {i}); return s; }}\n"
        for i in range(400)
    )
    (folder / "many.c").write_text(body + "int main(void) { return 0; }\n")


def java_source(folder: Path) -> None:
    methods = "".join(
        f"  static int f{i}(int[] a) {{ int s = {i}; for (int v : a) s += v ^ {i}; return s; }}\n" for i in range(300)
    )
    (folder / "Many.java").write_text(f"class Many {{\n{methods}}}\n")


def git_repository(folder: Path) -> None:
    import subprocess

    quiet = {"cwd": folder, "check": True, "capture_output": True}
    text(folder)
    subprocess.run(["git", "init", "-q", "."], **quiet)  # type: ignore[call-overload]
    lines = (folder / "text").read_text().splitlines()
    for at in range(8):
        (folder / f"file{at}").write_text("\n".join(lines[at * 500 : at * 500 + 4000]))
        subprocess.run(["git", "add", f"file{at}"], **quiet)  # type: ignore[call-overload]
        who = ["-c", "user.name=judge", "-c", "user.email=judge@localhost"]
        subprocess.run(["git", *who, "commit", "-q", "-m", f"commit {at}"], **quiet)  # type: ignore[call-overload]


def sequences(folder: Path) -> None:
    draw = random.Random(3)
    base = draw.choices("ACDEFGHIKLMNPQRSTVWY", k=250)
    with (folder / "seqs.fa").open("w") as file:
        for at in range(60):
            mutated = [draw.choice("ACDEFGHIKLMNPQRSTVWY") if draw.random() < 0.2 else letter for letter in base]
            file.write(f">s{at}\n{''.join(mutated)}\n")


def blas_input(folder: Path) -> None:
    found = next(iter(Path("/usr/lib").glob("*/blas/dblat3.in")), None)
    if found is not None:
        shutil.copy(found, folder / "dblat3.in")
        (folder / "run.sh").write_text(f"exec {found.parent}/xblat3d < dblat3.in\n")


def redis_script(folder: Path) -> None:
    (folder / "run.sh").write_text(
        textwrap.dedent("""\
        redis-server --port 0 --unixsocket redis.sock --save "" --appendonly no --daemonize no >/dev/null &
        n=0; until redis-cli -s redis.sock ping >/dev/null 2>&1 || [ $n -ge 200 ]; do n=$((n + 1)); sleep 0.05; done
        redis-benchmark -s redis.sock -n 20000 -t set,get,lpush -q >/dev/null
        redis-cli -s redis.sock shutdown nosave >/dev/null 2>&1
        wait
        """)
    )


def postgres_script(folder: Path) -> None:
    # Not in the folder itself: postgres refuses to run as root, and other users may not enter temporary folders.
    (folder / "run.sh").write_text(
        textwrap.dedent("""\
        bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
        data=$(mktemp -d /tmp/judge-postgres.XXXXXX) && chown postgres "$data"
        runuser -u postgres -- "$bin/initdb" -D "$data/db" -N >/dev/null 2>&1
        echo "create table t as select x, x * 7 % 1001 as y from generate_series(1, 50000) x;
        select y, count(*) from t group by y order by y limit 3;" | runuser -u postgres -- "$bin/postgres" --single -D "$data/db" postgres >/dev/null 2>&1
        status=$?
        rm -rf "$data"
        exit $status
        """)
    )


def hpcc_input(folder: Path) -> None:
    example = next(iter(Path("/usr/share/doc/hpcc/examples").glob("*")), None)
    lines = example.read_text().splitlines() if example is not None else []
    for at, line in enumerate(lines):
        for name, value in (("Ns", "200"), ("Ps", "1"), ("Qs", "2")):
            if line.split()[1:2] == [name]:
                lines[at] = f"{value}            {name}"
    (folder / "hpccinf.txt").write_text("\n".join(lines) + "\n")


def script(name: str, body: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(textwrap.dedent(body)) and None


PERL = """\
my %count; srand(1);
for my $i (1 .. 120000) { $count{int(rand(5000)) . "k"} += $i; push @{$list[$i % 97]}, $i; }
my @keys = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print scalar(@keys), "\\n";
"""
PYTHON = """\
words = {}
for i in range(60000):
    words.setdefault(str(i * 7919 % 10007), []).append(i)
print(len(words), sum(map(len, words.values())))
"""
NUMPY = """\
import numpy as np
a = np.random.default_rng(1).random((1200, 1200))
b = a @ a.T
print(float(np.linalg.norm(np.linalg.solve(b + np.eye(1200), a[:, 0]))) > 0, float(np.sort(a.ravel())[0]) >= 0)
"""
NODE = """\
const m = new Map();
for (let i = 0; i < 200000; i++) { const k = 'k' + (i * 7919 % 10007); m.set(k, (m.get(k) || 0) + i); }
const rows = [...m].sort((a, b) => b[1] - a[1]);
console.log(rows.length, JSON.stringify(rows).length > 0);
"""
LUA = """\
local t = {}
for i = 1, 150000 do t[#t + 1] = (i * 7919) % 100003 end
table.sort(t)
local s = {} for i = 1, 20000 do s[#s + 1] = tostring(t[i]) .. "x" end
print(#t, #table.concat(s))
"""

PROGRAMS: tuple[Program, ...] = (
    Program("sort", "coreutils", ("sort", "-n", "numbers", "-o", "sorted"), numbers, quick=True),
    Program("xz", "xz-utils", ("xz", "-6", "-T1", "-k", "-c", "text"), text, exact=True),
    Program("gzip", "gzip", ("gzip", "-9", "-c", "text"), text, exact=True, quick=True),
    Program("mawk", "mawk", ("mawk", "{ for (i = 1; i <= NF; i++) n[$i]++ } END { for (w in n) s += n[w]; print s }", "text"), text, exact=True, quick=True),
    Program("sqlite3", "sqlite3", ("sqlite3", ":memory:", ".read script.sql"), sql, exact=True, quick=True),
    Program("lua", "lua5.4", ("lua5.4", "run.lua"), script("run.lua", LUA), exact=True),
    Program("perl", "perl", ("perl", "run.pl"), script("run.pl", PERL), exact=True, language="Perl, C"),
    Program("python", "python3", ("/usr/bin/python3", "-S", "run.py"), script("run.py", PYTHON), exact=True, quick=True, language="Python, C"),
    Program("numpy", "python3-numpy", ("/usr/bin/python3", "run.py"), script("run.py", NUMPY), language="Python, C, Fortran"),
    Program("gcc", "gcc", ("gcc", "-O2", "-c", "many.c", "-o", "many.o"), c_source, one_process=False, language="C++"),
    Program("git", "git", ("git", "-c", "pack.threads=1", "repack", "-a", "-d", "-f", "-q"), git_repository, one_process=False),
    Program("node", "nodejs", ("node", "run.js"), script("run.js", NODE), language="JavaScript, C++"),
    Program("javac", "default-jdk-headless", ("javac", "-d", "out", "Many.java"), java_source, language="Java"),
    Program("gofmt", "golang-go", ("gofmt", "-l", "/usr/share/go-1.19/src/strconv"), language="Go"),
    Program("ripgrep", "ripgrep", ("rg", "-c", "--no-ignore", "-j", "2", "qu", "tree"), text_tree, language="Rust"),
    Program("blas", "libblas-test", ("sh", "run.sh"), blas_input, one_process=False, language="Fortran"),
    Program("clustalo", "clustalo", ("clustalo", "-i", "seqs.fa", "-o", "out.fa", "--force", "--threads=2"), sequences, language="C++, OpenMP"),
    Program("redis", "redis-server", ("sh", "run.sh"), redis_script, one_process=False),
    Program("postgres", "postgresql", ("sh", "run.sh"), postgres_script, one_process=False),
    Program("hpcc", "hpcc openmpi-bin", ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "hpcc"), hpcc_input, one_process=False, language="C, MPI"),
)  # fmt: skip


def named(names: str | None, *, quick: bool) -> list[Program]:
    """Those of a comma-separated list, those of the quick part, or all."""
    if names:
        wanted = set(names.split(","))
        unknown = wanted - {program.name for program in PROGRAMS}
        if unknown:
            raise ValueError(
                f"unknown program {', '.join(sorted(unknown))}; known: {', '.join(p.name for p in PROGRAMS)}"
            )
        return [program for program in PROGRAMS if program.name in wanted]
    return [program for program in PROGRAMS if program.quick or not quick]


def of_folder(folder: Path) -> list[Program]:
    """Built programs of other suites: a folder with a `judge.json`, [{"name": …, "command": […]}], run in place."""
    listed = json.loads((folder / "judge.json").read_text())
    made = []
    for entry in listed:
        first, *rest = entry["command"]
        command = (str((folder / first).resolve()), *rest)
        made.append(
            Program(
                entry["name"], "", command, exact=bool(entry.get("exact")), healthy=bool(entry.get("healthy", True))
            )
        )
    return made
