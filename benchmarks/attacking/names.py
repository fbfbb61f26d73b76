"""Attack `names`: hostile names of everything that a program can name, through every output.

A program is recorded whose file, folder, arguments, threads, functions, source file, mapped file, tags and regions have names that steer
terminals, run in pages and spreadsheets, or are no text. No output may pass one on where it is dangerous.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from . import seeds
from .forked import Outcome, failure_of, forked, memlens_command, warm
from .model import Attempt
from .recordings import Attempted, recorder
from .values import HOSTILE
from .workplace import kept, workplace

ROOM = 180
"""Bytes of a name in the program's file."""
FUNCTION, FILE = "hostile_function_" + "Q" * (ROOM - 17), "hostile_file_" + "Z" * (ROOM - 13)
PROGRAM = rf"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "memlens.h"
#line 1 "{FILE}"
__attribute__((noinline)) void {FUNCTION}(char *p, size_t n) {{ memset(p, 1, n); }}
#line 14 "names.c"
static char *thread, *tag, *region, *mapped;
static void *run(void *unused) {{
  prctl(PR_SET_NAME, thread, 0, 0, 0);
  char *p = malloc(1 << 20);
  {FUNCTION}(p, 1 << 20);
  memlens_tag(tag, p, 1 << 20);
  return p;
}}
int main(int argc, char **argv) {{
  if (argc < 5) return 2;
  thread = argv[1], tag = argv[2], region = argv[3], mapped = argv[4];
  memlens_begin(region);
  pthread_t t;
  pthread_create(&t, NULL, run, NULL);
  pthread_join(t, NULL);
  const int file = open(mapped, O_RDWR);
  char *map = file < 0 ? MAP_FAILED : mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (map != MAP_FAILED) {FUNCTION}(map, 1 << 16);
  char *kept = malloc(300000);
  {FUNCTION}(kept, 300000);
  memlens_end(region);
  prctl(PR_SET_NAME, thread, 0, 0, 0);
  usleep(120000);
  return 0;
}}
"""
PIECES = (
    *(name.encode("utf-8", "surrogatepass") for name in HOSTILE if name),
    *(bytes([code]) for code in (1, 7, 8, 9, 10, 11, 12, 13, 27, 31, 127, 128, 155, 157, 255)),
    *(chr(code).encode() for code in (0x85, 0x9B, 0x9D, 0x61C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0x202D, 0x202E, 0x2066, 0x2069, 0xFEFF, 0xFFFE, 0xE0041)),
    *(b"'", b'"', b"`", b"\\", b"&lt;", b"&#0;", b"]]>", b"<!--", b"--><script>alert(2)</script>", b"</title>", b"</script>", b"</style>", b"</svg>"),
    *(b"'onmouseover='alert(3)", b'" onload="alert(4)', b"javascript:alert(5)", b"<img src=x onerror=alert(6)>", b"<svg/onload=alert(7)>"),
    *(b"=1+1", b"+1", b"-1+1", b"@A1", b"\t=2", b"\r=3", b",=4", b'","=5', b"\n=6", b";=7", b"%s%n", b"{0}", b"$HOME", b"$(id)", b"--help", b"-o"),
    *(b"[red]", b"[/]", b"[link=x]", b"\\x41", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"NUL", b"name", b"x" * 60),
)  # fmt: skip
OWN_TAGS_ONLY = frozenset({"script", "style"})
FORBIDDEN = frozenset(
    {
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "input",
        "link",
        "audio",
        "video",
        "frame",
        "foreignobject",
        "animate",
        "use",
        "image",
    }
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def hostile_name(draw: random.Random, *, most_bytes: int = ROOM - 1, is_file: bool = False) -> bytes:
    """A name of one to six pieces, without a zero byte; `is_file`: that a file can have."""
    name = b"".join(draw.choice(PIECES) for _ in range(draw.choice((1, 1, 2, 3, 6)))).replace(b"\0", b"")
    name = name[: min(most_bytes, 120 if is_file else most_bytes)]
    if is_file:
        name = name.replace(b"/", b"\xe2\x88\x95")[:120]
        if name in (b"", b".", b".."):
            name = b"\x1b[1m"
    return name or b"\x1b"


def page_failure(page: str, script: str) -> str | None:
    """Why a page is dangerous: anything that runs or loads, but our own script."""
    found: list[str] = []

    class Strict(HTMLParser):
        inside = ""
        scripts = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.inside = tag if tag in OWN_TAGS_ONLY else self.inside
            self.scripts += tag == "script"
            kinds = [value for name, value in attrs if name == "type"]
            is_choice = tag == "input" and kinds in (["radio"], ["checkbox"])  # which heat map, which columns
            if (tag in FORBIDDEN and not is_choice) or (tag == "script" and (attrs or self.scripts > 1)):
                found.append(f"<{tag}>")
            for name, value in attrs:
                text = (value or "").strip().lower()
                if name.startswith("on") or name in ("src", "srcdoc", "formaction", "action", "background"):
                    found.append(f"the attribute {name}")
                if name.endswith("href") and not text.startswith("#"):
                    found.append(f"a link to {value!r}")
                if name == "style" and ("url(" in text or "expression" in text or "@import" in text):
                    found.append(f"the style {value!r}")
                if name == "http-equiv" and text != "content-security-policy":
                    found.append(f"the header {value!r}")

        def handle_endtag(self, tag: str) -> None:
            self.inside = "" if tag == self.inside else self.inside

        def handle_data(self, data: str) -> None:
            if self.inside == "script" and data.strip() != script.strip():
                found.append("a script that is not ours")
            if self.inside == "style" and ("url(" in data.replace("url(#", "") or "@import" in data):
                found.append("a style that loads")

        def handle_comment(self, data: str) -> None:
            found.append(f"a comment {data[:40]!r}")

        def handle_pi(self, data: str) -> None:
            found.append(f"an instruction {data[:40]!r}")

    Strict(convert_charrefs=True).feed(page)
    return f"the page holds {found[0]}" if found else None


def csv_failure(text: str) -> str | None:
    """Why a CSV text is dangerous: a cell that a spreadsheet would calculate."""
    csv.field_size_limit(1 << 28)
    rows = list(csv.reader(io.StringIO(text, newline="")))
    for row in rows[1:]:
        if len(row) != len(rows[0]):
            return f"a row has {len(row)} cells, not {len(rows[0])}: {row!r}"[:300]
        for cell in row:
            if cell.startswith(FORMULA) and not _is_number(cell):
                return f"a cell that a spreadsheet calculates: {cell[:60]!r}"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def output_failure(arguments: list[str], outcome: Outcome, folder: Path, script: str) -> str | None:
    """Why the output of a command is a failure."""
    is_json = "--json" in arguments
    is_data = is_json or (arguments[0] == "export" and "-" in arguments)
    failure = failure_of(outcome, is_text=not is_data)
    if failure is not None:
        return failure
    if outcome.status not in (0, 68):
        return (
            f"exit status {outcome.status}: {outcome.err[:200].decode('utf-8', 'replace')}"
            if outcome.status != 64
            else None
        )
    if is_json and outcome.status == 0:
        try:
            json.loads(outcome.out.decode())
        except ValueError as error:
            return f"the JSON is none: {error}"
    if is_data and not is_json and outcome.status == 0 and (why := csv_failure(outcome.out.decode())) is not None:
        return why
    page = folder / "page.html"
    if "--html" in arguments and page.exists():
        why = page_failure(page.read_text(encoding="utf-8"), script)
        page.unlink()
        if why is not None:
            return why
    out = folder / "out"
    if arguments[0] == "export" and out.is_dir():
        for file in sorted(out.iterdir()):
            if file.suffix == ".csv" and (why := csv_failure(file.read_text(encoding="utf-8"))) is not None:
                return f"{file.name}: {why}"
            if file.suffix in (".json", ".ndjson", ".jsonl"):
                try:
                    _parse_json_file(file.read_text(encoding="utf-8"))
                except ValueError as error:
                    return f"{file.name}: the JSON is none: {error}"
        shutil.rmtree(out)
    return None


def _parse_json_file(text: str) -> None:
    """One value, or one a line."""
    try:
        json.loads(text)
    except ValueError:
        for line in text.split("\n"):
            if line:
                json.loads(line)


def outputs(capture: str, folder: Path, other: str, draw: random.Random) -> tuple[list[list[str]], list[list[str]]]:
    """Every output of a capture; and command lines that are refused with a sentence that holds a hostile name."""
    table = draw.choice(
        ("sites", "strings", "threads", "processes", "objects", "regions", "modules", "faults", "variables")
    )
    name = os.fsdecode(hostile_name(draw))
    return [
        ["report", capture],
        ["report", capture, "--json"],
        ["report", capture, "--html", str(folder / "page.html")],
        ["query", capture, f"SELECT * FROM {table}"],
        ["query", capture, "--json", f"SELECT * FROM {table}"],
        ["export", capture, "-o", "-", "--tables", table],
        ["export", capture, "-o", str(folder / "out"), "--format", draw.choice(("csv", "json", "parquet"))],
        ["diff", capture, other],
        ["diff", other, capture, "--json"],
        ["zoom", capture],
        ["suggest", capture],
        ["verify", capture],
    ], [
        ["query", capture, f'SELECT "{name}" FROM {table}'],
        ["export", capture, "-o", "-", "--tables", name],
        ["diff", capture, other, "--fail-if", name],
        ["report", f"{capture}{name}"],
        ["record", "--collectors", name, "--", "true"],
        ["record", "-o", str(folder / "none.memlens"), "--", f"{name}/no such program"],
        [name.replace("/", "") or "-"],
    ]  # fmt: skip


def attacks(seconds: float, seed: int, *, fresh: bool = True) -> Iterator[Attempt]:
    """Programs, captures and traces with hostile names until the time is over."""
    warm()
    from memlens.present.html import resource

    script = resource("_html_script.js")
    with workplace() as place:
        template = _build(place)
        other = str(seeds.KEPT / "objects.memlens")
        until = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > until:
                return
            draw = random.Random(f"names {seed} {number}")
            folder = place / str(number)
            folder.mkdir()
            steps = _imported(folder, draw) if number % 4 == 3 else _recorded(folder, draw, template, fresh=fresh)
            made = next(steps)
            yield Attempt("names", f"{number}: {made[0]}", made[1], made[2], made[3])
            capture = os.fsdecode(made[4])
            given, refused = outputs(capture, folder, other, draw) if os.path.isdir(capture) else ([], [])
            for arguments in (*given, *refused):
                if time.monotonic() > until + 5:
                    return
                outcome = forked(memlens_command(arguments), folder)
                if arguments in refused:
                    failure = failure_of(outcome)
                else:
                    failure = output_failure(arguments, outcome, folder, script)
                words = tuple(["memlens", *arguments])
                again = kept("names", f"{seed}-{number}", Path(capture), words) if failure else ""
                yield Attempt("names", f"{number}: {arguments[0]}", words, failure, again, {"seconds": outcome.seconds})
            shutil.rmtree(folder, ignore_errors=True)


def _build(place: Path) -> bytes:
    source = place / "names.c"
    source.write_text(PROGRAM)
    include = str(seeds.ROOT / "native" / "include")
    command = [
        "cc",
        "-O1",
        "-g",
        "-w",
        "-fno-builtin",
        "-pthread",
        "-I",
        include,
        str(source),
        "-o",
        str(place / "names"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return (place / "names").read_bytes()


def _with_names(content: bytes, draw: random.Random) -> bytes:
    for placeholder in (FUNCTION, FILE):
        name = hostile_name(draw)
        content = content.replace(placeholder.encode(), name + b"\0" * (len(placeholder) - len(name)))
    return content


Made = tuple[str, tuple[str, ...], "str | None", str, bytes]


def _recorded(folder: Path, draw: random.Random, template: bytes, *, fresh: bool) -> Iterator[Made]:
    """Records the program; what was made, the command, why it is a failure, how to see it again, the capture."""
    attempt = Attempted(folder / "attempt")
    home = os.fsencode(folder) + b"/" + hostile_name(draw, is_file=True)
    os.makedirs(home, exist_ok=True)
    program = home + b"/" + hostile_name(draw, is_file=True) + b"p"
    mapped = home + b"/" + hostile_name(draw, is_file=True) + b"m"
    with open(program, "wb") as file:
        file.write(_with_names(template, draw))
    os.chmod(program, 0o755)
    with open(mapped, "wb") as file:
        file.write(bytes(1 << 16))
    attempt.capture = Path(os.fsdecode(home + b"/" + hostile_name(draw, is_file=True) + b".memlens"))
    options = draw.choice(
        (
            ("-q",),
            (),
            ("--sample-bytes", "0"),
            ("--stacks", "fp"),
            ("--redact",),
            ("--emulate=window=200,period=20000", "-q") if fresh else (),
        )
    )
    names = [hostile_name(draw), hostile_name(draw), hostile_name(draw), mapped]
    command = recorder(attempt.capture, [os.fsdecode(program), *map(os.fsdecode, names)], *options)
    ended = attempt.end(attempt.start(command))
    outcome = Outcome(ended.status, ended.seconds, 0, None, ended.out, ended.err)
    failure = attempt.what_is_left(ended)
    if failure is None and ended.status != 0:
        failure = f"recording ended with {ended.status}: {ended.err[-200:]!r}"
    if failure is None:
        failure = failure_of(outcome)
    words = tuple(command)
    yield (
        f"recorded {' '.join(options)} {names!r}"[:300],
        words,
        failure,
        repr(words) if failure else "",
        os.fsencode(attempt.capture),
    )


def _imported(folder: Path, draw: random.Random) -> Iterator[Made]:
    """Imports a trace whose text holds hostile names."""
    trace = folder / "trace"
    trace.mkdir()
    lines = [hostile_name(draw).replace(b"\n", b" ").replace(b"\r", b" ") for _ in range(6)]
    if draw.random() < 0.5:
        content = seeds._lackey().replace(b"./prog 1", lines[0]).replace(b"an example", lines[1])
        main = os.fsencode(trace) + b"/" + hostile_name(draw, is_file=True) + b".log"
        files = {main: content}
        form = "lackey"
    else:
        parts = seeds._memgaze()
        function, module = (line.replace(b" ", b"_") for line in lines[2:4])
        quoted = module.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b'"', b"&quot;")
        quoted = bytes(byte for byte in quoted if byte >= 32)
        files = {
            os.fsencode(trace) + b"/m.trace": parts["m.trace"],
            os.fsencode(trace) + b"/m.binanlys": parts["m.binanlys"].replace(b" f3\n", b" " + function + b"\n"),
            os.fsencode(trace) + b"/m.hpcstruct": parts["m.hpcstruct"]
            .replace(b"/bin/x", quoted)
            .replace(b"x.c", quoted),
        }
        main, form = os.fsencode(trace) + b"/m.trace", "memgaze"
    for path, content in files.items():
        with open(path, "wb") as file:
            file.write(content)
    capture = os.fsencode(folder) + b"/" + hostile_name(draw, is_file=True) + b".memlens"
    arguments = ["import", os.fsdecode(main), "--format", form, "-o", os.fsdecode(capture)]
    outcome = forked(memlens_command(arguments), folder)
    words = tuple(["memlens", *arguments])
    failure = failure_of(outcome)
    yield (
        f"imported {form}",
        words,
        failure,
        kept("names", f"import-{os.getpid()}-{draw.random()}", trace, words) if failure else "",
        capture,
    )
