"""Widths of x86-64 memory operands under emulation: those of the instruction set, for every form that qemu-user runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from emulate_oracle import ISAS, Functions, lackey
from emulate_tools import build, by_pc, emulate, needs_emulation, needs_x86, rows, windows
from x86_forms import Form, forms

PARTS, WHOLE, ALL_LANES, NONE, UNKNOWN = range(5)  # enum operand_shape

DECODE = """
#include "emulator.h"
#include <stdio.h>
int main(void) {
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    unsigned char code[16];
    size_t size = 0;
    unsigned byte;
    for (int at = 0, used; size < 16 && sscanf(line + at, "%2x%n", &byte, &used) == 1; at += used) code[size++] = (unsigned char)byte;
    const struct operand operand = ml_x86_operand(code, size);
    printf("%d %d\\n", operand.shape, operand.bytes);
  }
}
"""
# As objdump reads them and the instruction set does not: far pointers with REX.W have 10 bytes; 66 does not shorten near branches.
OTHERWISE = re.compile(r"^(l[fgs]s|jmp|call) ")
# Of other processors than qemu's, without an access, or not for user programs.
NOT_RUN = re.compile(
    r"^(a(add|and|or|xor)|cmpn?\w+xadd|cldemote|clflush(opt)?|clwb|clrssbsy|rstorssp|inv\w+|ins|kmov\w|nop|prefetch\w*|ud[01]"
    r"|v?bcstne\w+|vbcst\w+|vcvtne\w+|vfn?m(add|sub)(sub|add)?[ps][sd]|vm(clear|ptrld|ptrst|read|write|xon)|vpermil2p[sd]|\{vex\}) "
)
ELEMENTS = re.compile(r"^(cmps|call|v?p?gather\w+|vp?gather\w+|vp?maskmov\w+) ")
PREFIX = re.compile(r"^((data16|rex\.W|repn?z|rep|lock|xacquire|xrelease|bnd|cs|ds|es|ss) )+")


@pytest.fixture(scope="module")
def all_forms(tmp_path_factory: pytest.TempPathFactory) -> list[Form]:
    return forms(tmp_path_factory.mktemp("forms"))


def test_operand_widths_are_those_that_objdump_prints(all_forms: list[Form], tmp_path: Path) -> None:
    """Every opcode, prefix, W and L of the legacy and VEX maps: the decoder agrees, or makes no claim."""
    folders = [f"-I{ROOT / 'native' / 'emulator'}", f"-I{ROOT / 'format'}"]
    source = str(ROOT / "native" / "emulator" / "x86_operands.c")
    decode = build(tmp_path, "decode", DECODE, "-DML_PLUGIN_API=1", *folders, source)
    text = "".join(form.code.hex() + "\n" for form in all_forms)
    done = subprocess.run([decode], input=text, capture_output=True, text=True, check=True)
    n_agreed, wrong, unknown = 0, [], []
    for form, line in zip(all_forms, done.stdout.splitlines(), strict=True):
        shape, width = map(int, line.split())
        name = PREFIX.sub("", form.text)
        if shape == WHOLE and width != form.width and not OTHERWISE.match(name):
            wrong.append((form.code.hex(), form.text, width))
        elif shape in (PARTS, ALL_LANES) and not ELEMENTS.match(name):
            wrong.append((form.code.hex(), form.text, shape))
        elif shape in (NONE, UNKNOWN) and not NOT_RUN.match(name):
            unknown.append((form.code.hex(), form.text))
        n_agreed += shape == WHOLE and width == form.width
    assert not wrong, "\n" + "\n".join(f"{text}: {what}" for text, what in wrong.items())
    assert not unknown
    assert n_agreed > 15_000


# ---- every form, executed --------------------------------------------------------------------------
STORE = re.compile(
    r"(v?mov|set|fs?t|fist|fn?st|fbstp|v?pextr|v?extractps|vextract|stos|vcvtps2ph|sgdt|sidt|sldt|str|smsw|v?stmxcsr)"
)
LOAD = re.compile(
    r"(cmp(?!xchg)|test|bt |push|mul|imul|div|idiv|f(i?(ld|add|sub|mul|div|com)|ld|bld)|v?ldmxcsr|ver[rw]|lldt|scas|lods)"
)
SKIPPED = re.compile(
    r"^(jmp|call|l[fgs]s|ins|cmps|outs|mov [c-gs]s,|mov \?|v?p?gather|vp?gather|vp?maskmov|ptwrite|l[gil]dt|ltr|lmsw)"
    r"|\b[re]?spl?\b|\b[re]?dil?,"
)
LOCKABLE = re.compile(r"(adc|add|and|bt[crs]|cmpxchg\w*|dec|inc|neg|not|or|sbb|sub|xadd|xchg|xor) \w+ PTR")
SETUP = """\
  mov %r15, %rsp
  mov %r14, %rdi
  mov %r13, %rsi
  mov %r14, %rbx
  mov $1, %eax
  mov $2, %ecx
  xor %edx, %edx
  vmovdqa %ymm15, (%r14)
  vmovdqa %ymm15, 32(%r14)
  fninit
"""
PROGRAM = """
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <ucontext.h>
long current;
unsigned char bad[N_FORMS + 1];
extern void *next_of[];
void all(void *, void *, const void *);
static void skip(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  bad[current] = 1;
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] = (long)next_of[current];
}
int main(int count, char **words) {
  static unsigned data[1024] __attribute__((aligned(4096))), more[1024] __attribute__((aligned(4096))), fill[16] __attribute__((aligned(64)));
  for (int i = 0; i < 16; i++) fill[i] = 0x1fbf; /* also a control word that masks all exceptions */
#ifdef PROBE
  static char stack[65536];
  const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
  sigaltstack(&other, NULL);
  struct sigaction action = {.sa_sigaction = skip, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  const int signals[] = {SIGILL, SIGSEGV, SIGFPE, SIGBUS, SIGTRAP};
  for (int i = 0; i < 5; i++) sigaction(signals[i], &action, NULL);
#else
  (void)skip;
#endif
  for (int n = count > 1 ? atoi(words[1]) : 1; n > 0; n--) all(data + 512, more + 512, fill);
#ifdef PROBE
  for (long i = 0; i < N_FORMS; i++)
    if (!bad[i]) printf("%ld\\n", i);
#endif
}
"""


def assembly(chosen: list[Form], *, probe: bool) -> str:
    lines = [".text", ".globl all", "all:", *(f"  push %{name}" for name in ("rbx", "rbp", "r13", "r14", "r15"))]
    lines += [
        "  mov %rdi, %r14",
        "  mov %rsi, %r13",
        "  vmovdqa (%rdx), %ymm15",
        "  sub $4096, %rsp",
        "  mov %rsp, %r15",
    ]
    for i, form in enumerate(chosen):
        lines += [SETUP + (f"  movl ${i}, current(%rip)" if probe else "")]
        lines += [f".globl form_{i}", f"form_{i}:", "  .byte " + ",".join(map(str, form.code)), f"next_{i}:"]
    lines += ["  mov %r15, %rsp", "  add $4096, %rsp", "  cld", "  vzeroupper"]
    lines += [f"  pop %{name}" for name in ("r15", "r14", "r13", "rbp", "rbx")]
    lines += ["  ret", ".data", ".globl next_of", "next_of:", *(f"  .quad next_{i}" for i in range(len(chosen)))]
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def program(folder: Path, name: str, chosen: list[Form], *flags: str) -> Path:
    path = folder / f"{name}.S"
    path.write_text(assembly(chosen, probe="-DPROBE" in flags))
    return build(folder, name, PROGRAM, "-static", "-no-pie", f"-DN_FORMS={len(chosen)}", *flags, str(path))


def expected(form: Form) -> tuple[int, int, int, int]:
    """Loads, stores, bytes of each in one execution."""
    name = PREFIX.sub("", form.text)
    if NOT_RUN.match(name):
        return 0, 0, 0, 0
    is_destination = re.match(r"[\w ]+ PTR ", name.split(" ", 1)[1].split(",")[0] + " ") is not None
    loads, stores = 1, 0
    if is_destination:
        if name.startswith(("push", "pop", "movs ")):
            stores = 1
        elif STORE.match(name):
            loads, stores = 0, 1
        elif not LOAD.match(name):
            stores = 1
    return loads, stores, loads * form.width, stores * form.width


def distinct(all_forms: list[Form]) -> list[Form]:
    """One encoding of each instruction, operand width and kind of registers."""
    found: dict[str, Form] = {}
    for form in all_forms:
        name = form.text.removeprefix("lock ")
        if PREFIX.match(name) or SKIPPED.search(name):
            continue
        if name != form.text and not LOCKABLE.match(name):
            continue
        key = re.sub(r"\b(e|r)?([abcd]x|[sd]i|bp|[abcd][lh])\b", r"\1_", form.text)
        found.setdefault(re.sub(r"\b([xy]?mm)\d", r"\1", key), form)
    return list(found.values())


def symbols(path: Path) -> dict[str, int]:
    text = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    return {words[2]: int(words[0], 16) for words in map(str.split, text.splitlines()) if len(words) == 3}


@pytest.fixture(scope="module")
def running(all_forms: list[Form], tmp_path_factory: pytest.TempPathFactory) -> list[Form]:
    """Those that the emulator runs."""
    folder = tmp_path_factory.mktemp("probe")
    candidates = distinct(all_forms)
    probe = program(folder, "probe", candidates, "-DPROBE")
    done = subprocess.run([ISAS["x86_64"].emulator, "-cpu", "max", probe], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [candidates[int(line)] for line in done.stdout.split()]


@needs_emulation
@needs_x86
def test_every_form_counts_the_bytes_of_the_instruction_set(running: list[Form], tmp_path: Path) -> None:
    n_turns = 300  # long enough to be counted inline, and by executions of blocks
    measured = program(tmp_path, "forms", running)
    capture, _ = emulate(tmp_path / "run.memlens", measured, str(n_turns), mode="counts,cpu=max")
    counted, at = by_pc(rows(capture, "code_counts")), symbols(measured)
    wrong = {}
    for i, form in enumerate(running):
        loads, stores, load_bytes, store_bytes = (n_turns * count for count in expected(form))
        found = counted.get(at[f"form_{i}"], (0, 0, 0, 0))
        if found != (loads, stores, load_bytes, store_bytes):
            wrong[form.text] = (found, (loads, stores, load_bytes, store_bytes))
    assert not wrong, "\n" + "\n".join(f"{text}: {what}" for text, what in wrong.items())
    assert len(running) > 1000


@needs_emulation
@needs_x86
def test_windows_have_the_widths_of_the_instruction_set(running: list[Form], tmp_path: Path) -> None:
    measured = program(tmp_path, "forms", running)
    capture, _ = emulate(tmp_path / "run.memlens", measured, "3", mode="full,cpu=max")
    at = symbols(measured)
    form_at = {at[f"form_{i}"]: form for i, form in enumerate(running)}
    seen: dict[int, set[int]] = {}
    for window in windows(capture):
        for pc, _, width, _ in window.accesses():
            if pc in form_at:
                seen.setdefault(pc, set()).add(width)
    widths = {pc: {form.width} if any(expected(form)) else None for pc, form in form_at.items()}
    wrong = {form.text: seen.get(pc) for pc, form in form_at.items() if seen.get(pc) != widths[pc]}
    assert not wrong, "\n" + "\n".join(f"{text}: {what}" for text, what in wrong.items())


# ---- operands that objdump prints without a size, and instructions of several accesses ---------------------
# Instruction, then loads, stores, bytes of each in one execution. fxsave: of its 512 bytes the last 48 are not touched.
OTHERS = {
    "fxsave (%rdi)": (0, 1, 0, 464),
    "fxrstor (%rdi)": (1, 0, 464, 0),
    "fnstenv (%rdi)": (0, 1, 0, 28),
    "fldenv (%rdi)": (1, 0, 28, 0),
    "fnsave (%rdi)": (0, 1, 0, 108),
    "frstor (%rdi)": (1, 0, 108, 0),
    "xlat": (1, 0, 1, 0),
    "push %rax": (0, 1, 0, 8),
    "pushw %ax": (0, 1, 0, 2),
    "pushq $1": (0, 1, 0, 8),
    "pushfq": (0, 1, 0, 8),
    "pop %rax": (1, 0, 8, 0),
    "popw %ax": (1, 0, 2, 0),
    "enter $64, $0": (0, 1, 0, 8),
    "movabs %al, more": (0, 1, 0, 1),
    "movabs more, %rax": (1, 0, 8, 0),
    "cmpsl": (2, 0, 8, 0),
    "lock cmpxchg16b (%rdi)": (1, 1, 16, 16),
    # Repeated: rcx is 100. One access for each 64 bytes, and one for the rest; cmps and scas one for each element.
    "rep movsb": (2, 2, 100, 100),
    "rep movsl": (7, 7, 400, 400),
    "rep stosb": (0, 2, 0, 100),
    "rep stosq": (0, 13, 0, 800),
    "rep lodsw": (4, 0, 200, 0),
    "repe cmpsb": (200, 0, 200, 0),
    "repne scasb": (100, 0, 100, 0),
    # Masked by ymm1, of whose 8 elements the first 3 are set. A gather's elements are apart.
    "vmaskmovps %ymm2, %ymm1, (%rdi)": (0, 1, 0, 12),
    "vpmaskmovq %xmm2, %xmm1, (%rdi)": (0, 1, 0, 8),
    "vpgatherdd %ymm1, (%rdi, %ymm7, 8), %ymm2": (3, 0, 12, 0),
    "maskmovdqu %xmm1, %xmm2": (0, 1, 0, 12),
}
OTHERS_PROGRAM = """
#include <stdlib.h>
unsigned char data[8192] __attribute__((aligned(4096))), more[8192] __attribute__((aligned(4096)));
void all(void);
int main(int count, char **words) {
  for (int n = atoi(words[count - 1]); n > 0; n--) all();
}
"""
OTHERS_SETUP = """\
  lea data(%rip), %rdi
  lea more(%rip), %rsi
  lea data(%rip), %rbx
  mov $1, %eax
  mov $100, %ecx
  mov %rsp, %r15
  sub $64, %rsp
  vmovdqa masks(%rip), %ymm1
  vmovdqa places(%rip), %ymm7
"""


@needs_emulation
@needs_x86
@pytest.mark.parametrize("mode", ["counts", "full"])
def test_other_operands_and_repeated_instructions_count_what_their_definition_says(mode: str, tmp_path: Path) -> None:
    n_turns = 2000 if mode == "counts" else 20
    lines = [".text", ".globl all", "all:", "  push %rbx", "  push %r15"]
    for i, text in enumerate(OTHERS):
        # What loads a state loads what was saved.
        if "rstor" in text or "ldenv" in text:
            saves = {"fxrstor": "fxsave", "fldenv": "fnstenv", "frstor": "fnsave"}
            lines.append(f"  lea data(%rip), %rdi\n  {saves[text.split()[0]]} (%rdi)")
        elif text in ("repe cmpsb", "repne scasb"):
            lines.append(
                "  lea data(%rip), %rdi\n  lea more(%rip), %rsi\n  mov $100, %ecx\n  xor %eax, %eax\n  rep stosb"
            )
            lines.append("  mov %rsi, %rdi\n  mov $100, %ecx\n  rep stosb")
        lines += [OTHERS_SETUP, f"other_{i}: {text}", "  mov %r15, %rsp"]
    lines += ["  pop %r15", "  pop %rbx", "  ret", ".data", ".balign 32", "masks: .long -1, -1, -1, 0, 0, 0, 0, 0"]
    lines += ["places: .long 0, 3, 6, 9, 12, 15, 18, 21", '.section .note.GNU-stack,"",@progbits', ""]
    path = tmp_path / "others.S"
    path.write_text("\n".join(lines))
    measured = build(tmp_path, "others", OTHERS_PROGRAM, "-static", "-no-pie", str(path))
    capture, _ = emulate(tmp_path / "run.memlens", measured, str(n_turns), mode=f"{mode},cpu=max")
    counted, at = by_pc(rows(capture, "code_counts")), symbols(measured)
    pcs = {at[f"other_{i}"]: text for i, text in enumerate(OTHERS)}
    wrong = {
        text: counted.get(pc)
        for pc, text in pcs.items()
        if counted.get(pc) != tuple(n_turns * count for count in OTHERS[text])
    }
    assert not wrong
    if mode == "full":  # addresses are recorded with the same widths
        recorded: dict[int, list[int]] = {pc: [0, 0, 0, 0] for pc in pcs}
        for window in windows(capture):
            for pc, _, width, operation in window.accesses():
                if pc in pcs:
                    recorded[pc][operation - 1] += 1
                    recorded[pc][operation + 1] += width
        assert {text: tuple(recorded[pc]) for pc, text in pcs.items()} == {
            text: counted[pc] for pc, text in pcs.items()
        }


FLOATING = """
#include <math.h>
#include <stdio.h>
__attribute__((noinline, noclone)) static float dot(const float *a, const float *b, long n) {
  float sum = 0;
  for (long i = 0; i < n; i++) sum = __builtin_fmaf(a[i], b[i], sum);
  return sum;
}
int main(void) {
  static float a[5000], b[5000];
  static int counts[1000];
  double sum = 0;
  for (int i = 0; i < 5000; i++) a[i] = b[i] = (float)(i % 7), counts[i % 1000] = i;
  for (int i = 0; i < 700; i++) sum += exp(i * 1e-3) + sin(i) + log(i + 1) + pow(i, 0.3) + counts[i % 1000];
  return sum + dot(a, b, 5000) > 1e9;
}
"""


@needs_emulation
@needs_x86
def test_bytes_of_floating_point_code_are_those_of_lackey(tmp_path: Path) -> None:
    """The C library's exp, sin, log and pow, and a dot product with fused multiply-adds from memory."""
    program = build(tmp_path, "floating", FLOATING, "-O2", "-mfma", "-static", "-no-pie", "-lm", compiler="musl-gcc")
    expected_by_pc, _ = lackey([program])
    capture, _ = emulate(tmp_path / "run.memlens", program, mode="counts,cpu=max")
    functions = Functions(program)
    mine: dict[str, list[int]] = {}
    for pc, figures in by_pc(rows(capture, "code_counts")).items():
        sums = mine.setdefault(functions.name_of(pc), [0, 0, 0, 0])
        for i, figure in enumerate(figures):
            sums[i] += figure
    theirs = functions.totals(expected_by_pc)
    compared = ("dot", "exp", "sin", "log", "pow", "main")
    assert {name: tuple(mine[name]) for name in compared} == {name: theirs[name].figures for name in compared}
    assert any("vfmadd" in line and "(%" in line for line in disassembly(program, "dot"))


def disassembly(program: Path, function: str) -> list[str]:
    command = ["objdump", "-d", f"--disassemble={function}", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
