"""Programs with random control flow, to try counting on: loops of every kind, continue, break, goto, switch, exceptions,
longjmp and exit in the middle. Every one ends: calls and endless-looking loops use up fuel."""

from __future__ import annotations

import random

PRELUDE = """\
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
typedef unsigned long u64; typedef unsigned u32; typedef unsigned short u16; typedef unsigned char u8;
extern {volatile} u8 A1[256]; extern {volatile} u16 A2[256]; extern {volatile} u32 A4[256]; extern {volatile} u64 A8[256];
extern {volatile} float F4[256]; extern {volatile} double F8[256];
struct node {{ node *{volatile} next; {volatile} u64 value; }}; extern node *{volatile} list; extern char copy_from[4096], copy_to[4096];
extern {volatile} long fuel; extern {volatile} int exit_at; extern jmp_buf *{volatile} escape; extern {volatile} u64 checksum;
extern "C" void opaque(u32 x);
struct restore {{ jmp_buf *old = escape; ~restore() {{ escape = old; }} }};
#define NOINLINE __attribute__((noinline))
#ifdef REGIONS
#include <memlens.h>
#define REGION(name) MEMLENS_SCOPE(name)
#else
#define REGION(name) (void)0
#endif
"""

MAIN = """\
{volatile} u8 A1[256]; {volatile} u16 A2[256]; {volatile} u32 A4[256]; {volatile} u64 A8[256];
{volatile} float F4[256]; {volatile} double F8[256];
node *{volatile} list; char copy_from[4096], copy_to[4096]; {volatile} long fuel; {volatile} int exit_at = -1; jmp_buf *{volatile} escape; {volatile} u64 checksum;
static node nodes[40];
/* May end the program, throw, jump away or return. */
extern "C" NOINLINE void opaque(u32 x) {{
  if (exit_at-- == 0) {{ printf("%lu\\n", checksum); fflush(stdout); exit(7); }}
  if (--fuel < 0) return;
  if (x % 13 == 5) throw (int)x;
  if (x % 17 == 3 && escape) longjmp(*escape, 1 + x % 3);
  checksum = checksum * 31 + x;
}}
{declarations}
typedef u32 (*function)(u32, u32, u32);
static function functions[] = {{ {names} }};
int main(int argc, char **argv) {{
  u32 seed = argc > 1 ? atoi(argv[1]) : 1;
  exit_at = argc > 2 ? atoi(argv[2]) : -1;
  for (int i = 0; i < 40; i++) {{ nodes[i].next = i < 39 ? &nodes[i + 1] : nullptr; nodes[i].value = i * 7; }}
  list = nodes;
  for (u32 i = 0; i < sizeof functions / sizeof *functions; i++) {{
    for (u32 k = 0; k < 3; k++) {{
      fuel = 300;
      seed = seed * 1664525u + 1013904223u;
      jmp_buf here; escape = &here;
      if (setjmp(here) == 0) {{
        try {{ checksum += functions[i](seed >> 8, seed >> 20, k); }} catch (int x) {{ checksum ^= x; }}
      }}
      escape = nullptr;
    }}
  }}
  printf("%lu\\n", checksum);
  return 0;
}}
"""


class _Function:
    """One function; `calls` are names of functions that it may call."""

    def __init__(self, rng: random.Random, name: str, calls: list[str]) -> None:
        self.rng, self.name, self.calls = rng, name, calls
        self.lines: list[str] = []
        self.fresh = 0
        self.labels: list[str] = []

    def variable(self) -> str:
        self.fresh += 1
        return f"v{self.fresh}"

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("  " * (depth + 1) + text)

    def index(self) -> str:
        return self.rng.choice(["x & 255", "y & 255", "(x + y) & 255", "(x >> 3) & 255", "n & 255"])

    def access(self, depth: int) -> None:
        array = self.rng.choice(["A1", "A2", "A4", "A8", "F4", "F8"])
        if self.rng.random() < 0.5:
            self.emit(depth, f"x += (u32){array}[{self.index()}];")
        else:
            self.emit(depth, f"{array}[{self.index()}] = x + {self.rng.randrange(100)};")

    def block(self, depth: int, loops: int, count: int | None = None) -> None:
        for _ in range(count if count is not None else self.rng.randrange(1, 4)):
            self.statement(depth, loops)

    def statement(self, depth: int, loops: int) -> None:
        rng = self.rng
        simple = ["access", "access", "access", "step", "opaque", "call", "copy"]
        if loops:
            simple += ["continue", "break"]
        nested = [
            "if", "ifelse", "const_for", "for", "while", "do", "switch", "try", "list", "goto", "triangle", "setjmp", "return", "region",
        ]  # fmt: skip
        kind = rng.choice(simple + nested * 2) if depth < 4 else rng.choice(simple)
        getattr(self, f"_{kind}")(depth, loops)

    def _access(self, depth: int, loops: int) -> None:
        self.access(depth)

    def _step(self, depth: int, loops: int) -> None:
        self.emit(depth, f"x = x * {self.rng.randrange(3, 99, 2)}u + y; y ^= x >> {self.rng.randrange(1, 9)};")

    def _opaque(self, depth: int, loops: int) -> None:
        self.emit(depth, "opaque(x);")

    def _call(self, depth: int, loops: int) -> None:
        if self.calls:
            self.emit(depth, f"if (--fuel > 0) x += {self.rng.choice(self.calls)}(x, y, n + 1);")

    def _copy(self, depth: int, loops: int) -> None:
        self.emit(depth, self.rng.choice([
            "memcpy(copy_to, copy_from, x & 1023);", "memset(copy_to, (int)x, y & 511);",
            "memmove(copy_to + 8, copy_to, n & 255);", "memcpy(copy_to, copy_from, 256);",
        ]))  # fmt: skip

    def _continue(self, depth: int, loops: int) -> None:
        self.emit(depth, f"if ((x & {self.rng.choice([1, 3, 7])}) == 1) continue;")

    def _break(self, depth: int, loops: int) -> None:
        self.emit(depth, f"if ((y & {self.rng.choice([3, 7, 15])}) == 2) break;")

    def _return(self, depth: int, loops: int) -> None:
        self.emit(depth, f"if ((x & {self.rng.choice([7, 15, 31])}) == 6) return x;")

    def _if(self, depth: int, loops: int) -> None:
        self.emit(depth, f"if (x & {self.rng.choice([1, 2, 4, 5])}) {{")
        self.block(depth + 1, loops)
        self.emit(depth, "}")

    def _ifelse(self, depth: int, loops: int) -> None:
        self._if(depth, loops)
        self.lines[-1] = self.lines[-1].replace("}", "} else {")
        self.block(depth + 1, loops)
        self.emit(depth, "}")

    def _loop(self, depth: int, head: str, tail: str = "}") -> None:
        self.emit(depth, head)
        self.block(depth + 1, 1)
        self.emit(depth, tail)

    def _const_for(self, depth: int, loops: int) -> None:
        i = self.variable()
        self._loop(depth, f"for (int {i} = 0; {i} < {self.rng.choice([1, 2, 3, 8, 17])}; {i}++) {{ x += {i};")

    def _for(self, depth: int, loops: int) -> None:
        i, step = self.variable(), self.rng.choice([1, 1, 2, 3])
        kind = self.rng.choice(["int", "u32", "u64", "long"])
        limit = self.rng.choice(["x & 15", "y & 7", "n & 3", "x % 21"])
        bound = self.variable()
        self.emit(depth, f"const {kind} {bound} = {limit};")
        if self.rng.random() < 0.3:
            self._loop(depth, f"for ({kind} {i} = {bound}; {i} > 0; {i}--) {{ x ^= (u32){i};")
        else:
            self._loop(depth, f"for ({kind} {i} = 0; {i} < {bound}; {i} += {step}) {{ y += (u32){i};")

    def _triangle(self, depth: int, loops: int) -> None:
        i, j, bound = self.variable(), self.variable(), self.variable()
        self.emit(depth, f"const int {bound} = y & 7;")
        self.emit(depth, f"for (int {i} = 0; {i} < {bound}; {i}++) {{")
        self.emit(depth + 1, f"A4[{i}] += x;")
        self.emit(depth + 1, f"for (int {j} = {self.rng.choice(['0', i])}; {j} < {bound}; {j}++) {{")
        self.emit(depth + 2, f"A8[({i} * 16 + {j}) & 255] += {j};")
        self.emit(depth + 1, "}")
        self.emit(depth, "}")

    def _while(self, depth: int, loops: int) -> None:
        i = self.variable()
        self.emit(depth, f"u32 {i} = 0;")
        self._loop(depth, f"while (fuel > 0 && (A1[{i} & 255] + x) % 7 != 3 && {i} < 20) {{ {i}++; x += {i};")

    def _do(self, depth: int, loops: int) -> None:
        self._loop(depth, "do { fuel--; x = x * 5 + 3;", "} while (fuel > 0 && (x & 6));")

    def _region(self, depth: int, loops: int) -> None:
        name = f"r{self.rng.randrange(4)}"
        for _ in range(self.rng.randrange(1, 4)):
            self.emit(depth, f'{{ REGION("{name}");')
            self.block(depth + 1, loops)
            self.emit(depth, "}")

    def _switch(self, depth: int, loops: int) -> None:
        self.emit(depth, f"switch (x % {self.rng.randrange(3, 7)}) {{")
        for case in range(self.rng.randrange(2, 5)):
            self.emit(depth, f"case {case}: {{")
            self.block(depth + 1, 0)
            self.emit(depth, "}" + self.rng.choice([" break;", " [[fallthrough]];"]))
        self.emit(depth, "default: y++;")
        self.emit(depth, "}")

    def _try(self, depth: int, loops: int) -> None:
        self.emit(depth, "try {")
        self.block(depth + 1, loops)
        self.emit(depth + 1, "opaque(x + y);")
        self.emit(depth, "} catch (int thrown) { x += thrown;")
        self.block(depth + 1, loops)
        self.emit(depth, "}")

    def _list(self, depth: int, loops: int) -> None:
        at = self.variable()
        end = self.rng.choice(["", f" && {at}->value != (x & 127)"])
        self._loop(depth, f"for (node *{at} = list; {at}{end}; {at} = {at}->next) {{ y += {at}->value;")

    def _goto(self, depth: int, loops: int) -> None:
        label = f"again{self.variable()}"
        self.emit(depth, f"{label}: fuel--;")
        self.emit(depth, "{")
        self.block(depth + 1, 0)
        self.emit(depth, "}")
        self.emit(depth, f"x = x * 7 + 1; if (fuel > 0 && (x & 3) == 1) goto {label};")

    def _setjmp(self, depth: int, loops: int) -> None:
        here = self.variable()
        self.emit(depth, f"{{ jmp_buf {here}; restore guard_{here};")
        self.emit(depth, f"if (setjmp({here}) == 0) {{ escape = &{here};")
        self.emit(depth + 1, "opaque(x);")
        self.block(depth + 1, 0)
        self.emit(depth, "} else { fuel--; x = (u32)fuel * 3u; y = (u32)checksum; A4[n & 255] = y; } }")

    def text(self, static: bool) -> str:
        self.block(0, 0, self.rng.randrange(3, 7))
        linkage = "static " if static else ""
        return (
            f"{linkage}NOINLINE u32 {self.name}(u32 x, u32 y, u32 n) {{\n"
            "  if (n > 6 || --fuel < 0) return x;\n" + "\n".join(self.lines) + "\n  return x ^ y;\n}\n"
        )


def program(seed: int, units: int = 1, functions: int = 200, volatile: bool = False) -> list[str]:
    """Sources of one program; the first holds main. (Locals that longjmp leaves undefined are set anew after it.)"""
    rng = random.Random(seed)
    word = "volatile" if volatile else ""
    names: list[str] = []
    sources = []
    for unit in range(units):
        parts = [PRELUDE.format(volatile=word)]
        parts += [f"u32 {name}(u32, u32, u32);\n" for name in names]
        for number in range(functions):
            name = f"f{unit}_{number}"
            calls = rng.sample(names, min(len(names), 3))
            parts.append(_Function(rng, name, calls).text(static=False))
            names.append(name)
        sources.append("".join(parts))
    declarations = "\n".join(f"u32 {name}(u32, u32, u32);" for name in names)
    main = PRELUDE.format(volatile=word) + MAIN.format(volatile=word, declarations=declarations, names=", ".join(names))
    return [main, *sources]
