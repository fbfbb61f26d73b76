"""Compiled-in counts on programs of others: functions of Debian source packages beside the emulator's count of a plain build.

Each package (judging/sources.py fetches it) is built twice by one clang at -O2, plain and with ``memlens cc``, and run on the same input: natively,
counting for itself, and under the emulator. Bytes outside the function's own frame are compared function by function, what is inlined into a function
included. Work of the C library is a function of its own under the emulator: copies and fills that call it, and comparisons, are left out of both sides.

The emulator's stack is the whole stack of a thread; the compiler's is the frame of the function. An access that reaches the stack through a register other than
the stack pointer, on a source line where the compiler counted no bytes of the frame (or fewer), goes to another frame: it is outside on both sides.

Loads that only the machine code has are found by disassembly (x86-64): jump tables of ``switch``, and constants that have no symbol.

Writes docs/accuracy-count-packages.md with ``--write``. Exit status: 0; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from _common import say
from judging.compiled import inputs
from judging.running import RunError, checked
from judging.sources import LARGE_PROJECTS, PROJECTS, Project, compiled

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "accuracy-count-packages.md"
MIN_BYTES = 100_000
"""Functions below are in the sum only."""
INLINED_BYTES = 128
"""Copies and fills of one size up to this are expanded in place on x86-64: part of the function on both sides."""
ALL = (*PROJECTS, *LARGE_PROJECTS)
SQL = """CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5000)
  INSERT INTO t SELECT n, (n * 7919) % 10007, printf('row %d of %s', n, hex(n * n)) FROM c;
CREATE INDEX ta ON t(a);
SELECT count(*), sum(length(b)) FROM t WHERE a BETWEEN 100 AND 5000;
SELECT a % 10, count(*), avg(id), max(b) FROM t GROUP BY a % 10 ORDER BY 2 DESC;
SELECT count(*) FROM t x JOIN t y ON x.a = y.id WHERE x.b LIKE '%7%';
UPDATE t SET b = upper(b) || 'x' WHERE id % 3 = 0;
DELETE FROM t WHERE a < 1000;
"""
LUA = """local t = {} for i = 1, 20000 do t[i] = (i * 7919) % 10007 end table.sort(t)
local s = {} for i = 1, 2000 do s[#s + 1] = string.format('%d:%s', t[i], tostring(i)) end
local joined = table.concat(s, ',') local n = 0 for word in joined:gmatch('%d+') do n = n + tonumber(word) end print(n)
"""
REASONS = {
    "compress_block": "loads of constant tables that the back end moves into a branch",
    "createObject": "bit fields: the back end writes and reads the bytes that change",
    "createEmbeddedStringObject": "bit fields: the back end writes and reads the bytes that change",
    "lookupKey": "bit fields: the back end reads the byte that is tested",
    "luaH_getshortstr": "hash seed, another in each run",
    "dictFind": "hash seed, another in each run",
    "zslInsert": "random levels, others in each run",
    "zslUpdateScore": "random levels, others in each run",
}
"""Found by hand in the disassembly; jump tables and constants are measured."""


class Measured(NamedTuple):
    exact: Counter[str]
    claimed: Counter[str]
    tables: Counter[str]
    constants: Counter[str]
    added: Counter[str]
    """Of `exact`: stack accesses that were taken for another frame's."""
    kept: Counter[str]
    """Stack accesses through other registers that were taken for the own frame's."""


def commands_of_redis(folder: Path) -> None:
    """A log of commands that the server reads when it starts: the same work in each run, without a client."""
    draw, out = random.Random(1), []

    def add(*words: Any) -> None:
        texts = [str(word).encode() for word in words]
        out.append(b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts))

    add("SELECT", 0)
    for n in range(4000):
        add("SET", f"key:{n}", f"value {n * n} of {n}")
        add("HSET", f"hash:{n % 40}", f"field:{n}", n * 7919 % 10007)
        add("ZADD", "board", draw.randrange(100_000), f"member:{n % 1500}")
        add("RPUSH", f"list:{n % 8}", f"element {n}")
        add("SADD", f"set:{n % 16}", n)
        add("APPEND", f"log:{n % 32}", f"entry {n};")
        if n % 3 == 0:
            add("LPOP", f"list:{n % 8}")
            add("DEL", f"key:{n // 2}")
        if n % 50 == 0:
            add("SUNIONSTORE", "union", *(f"set:{k}" for k in range(16)))
            add("ZUNIONSTORE", "copy", 1, "board")
            add("SORT", "union", "LIMIT", 0, 100, "DESC", "STORE", "sorted")
            add("PFADD", "hll", *range(n, n + 50))
    (folder / "appendonly.aof").write_bytes(b"".join(out))


def end_redis(address: str, ended: threading.Event) -> None:
    """Ends the server when it has read its commands."""
    while not ended.wait(0.1):
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(60)
                server.connect(address)
                server.sendall(b"PING\r\n")
                if server.recv(100).startswith(b"+PONG"):
                    server.sendall(b"SHUTDOWN NOSAVE\r\n")
                    server.recv(100)
                    return
        except OSError:
            time.sleep(0.1)


def record(memlens: list[str], project: Project, program: Path, capture: Path, *how: str) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as name:
        folder, ended = Path(name), threading.Event()
        inputs(folder)
        (folder / "run.sql").write_text(SQL)
        (folder / "run.lua").write_text(LUA)
        commands_of_redis(folder)
        client = threading.Thread(target=end_redis, args=(str(folder / "redis.sock"), ended))
        if project.name == "redis":
            client.start()
        try:
            checked(
                [*memlens, "record", "-q", "-o", str(capture), *how, "--", str(program), *project.arguments], folder
            )
        finally:
            ended.set()
            if client.ident:
                client.join()


def rows_of(memlens: list[str], capture: Path, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(checked([*memlens, "query", "--json", str(capture), sql], capture.parent))
    for row in rows:
        row["f"] = row["f"].split("(")[0].strip()
    return rows


def kinds_of_code(program: Path) -> dict[int, str]:
    """Of position-independent x86-64 code by address: "frame" (through the stack pointer), "table" (a jump table's load), "constant" (no symbol)."""
    listed = checked(["objdump", "-d", "--no-show-raw-insn", str(program)], program.parent)
    symbols = sorted(
        (int(words[1], 16), int(words[2], 0))
        for words in map(str.split, checked(["readelf", "-sW", str(program)], program.parent).splitlines())
        if len(words) == 8 and words[3] == "OBJECT"
    )
    named = {at for begin, size in symbols if size < 1 << 20 for at in range(begin, begin + size, 4)}
    (rodata,) = re.findall(
        r"\.rodata\s+PROGBITS\s+(\w+) \w+ (\w+)", checked(["readelf", "-SW", str(program)], program.parent)
    )
    begin, end = int(rodata[0], 16), int(rodata[0], 16) + int(rodata[1], 16)
    found: dict[int, str] = {}
    loads: list[tuple[int, str]] = []  # of the last instructions: address, register
    for line in listed.splitlines():
        match = re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line)
        if not match:
            continue
        at, name, operands = int(match[1], 16), match[2], match[3]
        if name.startswith(("push", "pop", "call", "ret", "leave")) or "(%rsp" in operands:
            found[at] = "frame"
        elif name == "jmp" and operands.startswith("*"):
            for load, register in loads:
                if operands == f"*{register}":
                    found[load] = "table"
        elif "(%rip)" in operands and (target := re.search(r"# ([0-9a-f]+)", operands)):
            where = int(target[1], 16)
            if begin <= where < end and where // 4 * 4 not in named and not name.startswith("lea"):
                found[at] = "constant"
        if name == "movslq" and ",4)," in operands:
            loads.append((at, operands.split(",")[-1]))
        loads = [(load, register) for load, register in loads if at - load < 24]
    return found


def measure(memlens: list[str], project: Project, folder: Path) -> Measured:
    plain = compiled(memlens, project, folder, "plain", "--memlens=none")
    counted = compiled(memlens, project, folder, "counted")
    record(memlens, project, plain, folder / "plain.memlens", "--emulate=counts,stack")
    record(memlens, project, counted, folder / "counted.memlens", "--collectors", "count")
    function = "coalesce(inlined_into[-1], function) AS f"
    machine = rows_of(
        memlens, folder / "plain.memlens",
        f"SELECT {function}, file_offset AS at, file, line, sum(load_bytes + store_bytes)::BIGINT AS b, sum(stack_load_bytes + stack_store_bytes)::BIGINT AS s "
        f"FROM code_counts c JOIN sites s ON c.code = s.id WHERE function IS NOT NULL AND module LIKE '%/plain' GROUP BY ALL",
    )  # fmt: skip
    ir = rows_of(
        memlens, folder / "counted.memlens",
        f"SELECT {function}, file, line, sum(read_bytes + written_bytes)::BIGINT AS b, sum(stack_read_bytes + stack_written_bytes)::BIGINT AS s "
        "FROM site_counts WHERE kind IN ('load', 'store', 'atomic') OR (kind IN ('copy', 'fill') AND executions > 0 "
        f"AND written_bytes % executions = 0 AND written_bytes <= {INLINED_BYTES} * executions) GROUP BY ALL",
    )  # fmt: skip
    kinds, offset = kinds_of_code(plain), text_offset(plain)
    found = Measured(*(Counter() for _ in Measured._fields))
    own: Counter[tuple[str, str, int]] = Counter()
    for row in ir:
        found.claimed[row["f"]] += row["b"] - row["s"]
        own[row["f"], row["file"], row["line"]] += row["s"]
    through: Counter[tuple[str, str, int]] = Counter()
    for row in machine:
        kind = kinds.get(row["at"] + offset, "")
        outside = row["b"] - row["s"]
        found.exact[row["f"]] += outside
        if kind == "table":
            found.tables[row["f"]] += outside
        elif kind == "constant":
            found.constants[row["f"]] += outside
        elif not kind:
            through[row["f"], row["file"], row["line"]] += row["s"]
    for place, size in through.items():
        other = max(0, size - own[place])
        found.exact[place[0]] += other
        found.added[place[0]] += other
        found.kept[place[0]] += size - other
    return found


def text_offset(program: Path) -> int:
    """Address − offset in the file, of code."""
    (found,) = re.findall(r"\.text\s+PROGBITS\s+(\w+) (\w+)", checked(["readelf", "-SW", str(program)], program.parent))
    return int(found[0], 16) - int(found[1], 16)


def percent(part: int, whole: int) -> str:
    return f"{part * 100 / whole:+.2f} %" if whole else "–"


def lines_of(name: str, found: Measured) -> tuple[list[tuple[float, str]], str]:
    """Lines of functions by size of the difference, and the line of all."""
    both = [function for function in found.claimed if found.exact.get(function)]
    lines = []
    for function in both:
        exact, claimed = found.exact[function], found.claimed[function]
        if max(exact, claimed) < MIN_BYTES:
            continue
        tables, constants = found.tables[function], found.constants[function]
        left = claimed - (exact - tables - constants)
        why = [text for text, size in (("jump tables", tables), ("constants", constants)) if size >= 0.0005 * exact]
        if abs(left) >= 0.01 * exact:
            unsure = found.kept[function] if left > 0 else found.added[function]
            why.append(
                REASONS.get(function)
                or ("frames that the line does not separate, or not known" if abs(left) <= unsure else "not known")
            )
        lines.append(
            (
                abs(claimed - exact) / exact,
                f"| {name} | `{function}` | {claimed:,} | {exact:,} | {percent(claimed - exact, exact)} | {-tables:,} | {-constants:,} | "
                f"{percent(left, exact)} | {'; '.join(why)} |",
            )
        )
    exact, claimed, tables, constants = (
        sum(column[function] for function in both)
        for column in (found.exact, found.claimed, found.tables, found.constants)
    )
    return lines, (
        f"| {name} | {len(both)} | {claimed:,} | {exact:,} | {percent(claimed - exact, exact)} | {-tables:,} | {-constants:,} | "
        f"{percent(claimed - exact + tables + constants, exact)} |"
    )


def page(lines: list[tuple[float, str]], sums: list[str]) -> str:
    lines = sorted(lines, key=lambda line: -line[0])
    near = sum(line[0] <= 0.01 for line in lines)
    return "\n".join([
        "# Accuracy of compiled-in counts: Debian packages", "",
        "<!-- written by benchmarks/count_packages.py --write; do not edit -->", "",
        "Bytes that functions read and write outside their own frame, at -O2: *claimed* by the program itself (`memlens cc`), beside the emulator's *exact* count",
        "of a plain build by the same compiler. Counts are IR-exact ([bandwidth.md](bandwidth.md)): the differences are what instruction selection does after the",
        "counters are placed. Copies and fills that call the C library, and comparisons, are left out: under the emulator they are functions of their own.", "",
        "*Jump tables* (of `switch`) and *constants* (vectors and floating-point numbers that the back end keeps in memory) are loads that the IR does not have;",
        "the disassembly shows which instructions they are. *Rest* is the difference without them, in percent of the exact count. The emulator separates the stack of",
        "the thread, the compiler the frame of the function: stack accesses through other registers than the stack pointer, beyond what the compiler counted in the",
        "frame on the same line, count as outside. That line-by-line rule is itself inexact where line numbers are lost.",
        "redis hashes with a random seed, and its timers run by the clock: its two runs differ in lookups and in cron functions.", "",
        f"Measured {datetime.date.today()} on {platform.machine()}. Of {len(lines)} functions with {MIN_BYTES:,} bytes or more, {near} are within 1 %.", "",
        "| program | functions | claimed bytes | exact bytes | difference | jump tables | constants | rest |", "|---|---:|---:|---:|---:|---:|---:|---:|", *sums, "",
        f"Every function with {MIN_BYTES:,} bytes or more, largest difference first:", "",
        "| program | function | claimed bytes | exact bytes | difference | jump tables | constants | rest | reason |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|", *(line for _, line in lines), "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [project.name for project in ALL]
    parser.add_argument("programs", nargs="*", default=names, help=f"of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(REPOSITORY)}")
    arguments = parser.parse_args()
    lines: list[tuple[float, str]] = []
    sums: list[str] = []
    for project in ALL:
        if project.name not in arguments.programs:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = measure([sys.executable, "-m", "memlens"], project, Path(folder))
            except (RunError, subprocess.TimeoutExpired) as error:
                say(f"{project.name}: {error}")
                continue
        some, whole = lines_of(project.name, found)
        lines += some
        sums.append(whole)
    if not lines:
        return 2
    text = page(lines, sums)
    print(text)
    if arguments.write:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
