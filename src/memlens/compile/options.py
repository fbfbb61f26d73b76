"""The options that are ours: all begin with --memlens; the rest is clang's, untouched."""

from __future__ import annotations

from ..errors import UsageError

STEPS = ("sets", "constants", "trips", "exits", "keep", "publish", "callees", "tallies", "flow", "rounds", "nests")
"""The steps of counter placement, as the pass names them."""

SEPARATOR = "\x1f"
"""Between expressions in MEMLENS_PASS: each is matched, and counted, on its own."""

HELP = """\
usage: memlens {name} [--memlens-OPTION...] clang's own options and files

Compiles and links as {clang} does, and adds counting or tracing: every run of the program under `memlens record`
counts loads, stores and bytes of each region (exact for the optimised IR), or samples sequences of addresses. All options but these are clang's.

  --memlens=LIST                what to compile in: count (the default), trace (addresses of accesses, for
                                memlens record --trace), ptwrite (the same by an instruction of some
                                Intel processors), count,trace (both), or none (clang as it is)
  --memlens-functions=REGEX     functions whose demangled or linkage name matches are regions;
                                @FILE reads expressions from a file, one a line; may be repeated
  --memlens-mix                 count operations too: integer, floating-point, vector, branches, calls
  --memlens-no-versions         keep no untouched copies of region bodies: smaller, but every execution of a
                                region has the cost of counting, also without a recorder
  --memlens-naive               one counter for each access: slow, for checking memlens itself
  --memlens-placement=LIST      turn steps of counter placement off, for experiments: any of
                                no-{steps}
  --memlens-verify              have LLVM check the code that counting made: for checking memlens itself
  --memlens-clang=PATH          the clang to use; also MEMLENS_CLANG. Else the newest with a plugin
  --memlens-verbose             print the clang command
  --memlens-help                this text; clang's own: memlens {name} -help

The same as a single executable, for build systems that want one: memlens-{name}.

examples:
  make CC="memlens cc" CXX="memlens c++"
  cmake -DCMAKE_C_COMPILER=memlens-cc -DCMAKE_CXX_COMPILER=memlens-c++ ..
  CC=memlens-cc CXX=memlens-c++ ./configure
  memlens {name} -O2 -fopenmp --memlens-functions='^solve' solver.{suffix} -o solver
"""


class Options:
    """What the user asked of memlens on a compiler's command line."""

    __slots__ = (
        "clang", "count", "function_files", "functions", "help", "mix", "mode", "naive", "off", "ptwrite", "trace", "verbose", "verify",
        "versions",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mode = ""  # "" = not said: count, but not a freestanding program; else as given
        self.trace = self.ptwrite = False
        self.count = True
        self.clang = ""
        self.functions: list[str] = []
        self.function_files: list[str] = []  # that expressions came from
        self.off: list[str] = []
        self.mix = self.naive = self.verify = self.verbose = self.help = False
        self.versions = True

    def for_pass(self) -> str:
        """The value of MEMLENS_PASS; the expression is last because it may hold any character."""
        fields = [name for name in ("trace", "ptwrite", "mix", "naive", "versions", "verify") if getattr(self, name)]
        if not self.count:
            fields.append("no-count")
        if self.off:
            fields.append("off=" + ",".join(self.off))
        if self.functions:
            fields.append("functions=" + SEPARATOR.join(self.functions))
        return ";".join(fields)


def help_text(name: str) -> str:
    plus = name == "c++"
    return HELP.format(
        name=name, clang="clang++" if plus else "clang", steps=", no-".join(STEPS), suffix="cpp" if plus else "c"
    )


def take(arguments: list[str]) -> tuple[Options, list[str]]:
    """Splits a command line into our options and clang's arguments, whose order is kept.

    >>> options, rest = take(["-c", "--memlens-mix", "a.c"])
    >>> options.for_pass(), rest
    ('mix;versions', ['-c', 'a.c'])
    """
    options, rest = Options(), []
    options.help = arguments == ["--help"]
    for position, argument in enumerate(arguments):
        # What follows these is a value, whatever it looks like.
        is_value = position > 0 and arguments[position - 1] in ("-Xclang", "-Xlinker", "-o")
        if argument.startswith("--memlens") and not is_value:
            _take_one(options, argument)
        else:
            rest.append(argument)
    return options, rest


def _take_one(options: Options, argument: str) -> None:
    name, equals, value = argument.partition("=")
    if equals and not value:
        raise UsageError(f"missing value for {name}", hint="memlens cc --memlens-help")
    switch = name.removeprefix("--memlens-")
    if switch in ("mix", "naive", "versions", "verify", "verbose", "help") and not equals:
        setattr(options, switch, True)
    elif switch == "no-versions" and not equals:
        options.versions = False
    elif name == "--memlens":
        _take_mode(options, value)
    elif name == "--memlens-clang" and equals:
        options.clang = value
    elif name == "--memlens-functions" and equals:
        options.functions.extend(_expressions(value))
        if value.startswith("@"):
            options.function_files.append(value[1:])
    elif name == "--memlens-placement" and equals:
        for step in value.split(","):
            step = step.removeprefix("no-")
            if step not in STEPS:
                raise UsageError(
                    f"invalid value {step!r} for --memlens-placement", hint="steps: no-" + ", no-".join(STEPS)
                )
            options.off.append(step)
    else:
        raise UsageError(f"unknown option {argument!r}", hint="memlens cc --memlens-help")


def _take_mode(options: Options, value: str) -> None:
    parts = value.split(",")
    if value != "none" and (not set(parts) <= {"count", "trace", "ptwrite"} or {"trace", "ptwrite"} <= set(parts)):
        raise UsageError(
            f"invalid value {value!r} for --memlens; expected count, trace, ptwrite, count with one of the others, or none",
            hint="memlens cc --memlens-help",
        )
    options.mode = value
    if value != "none":
        options.count, options.trace, options.ptwrite = "count" in parts, "trace" in parts, "ptwrite" in parts


def _expressions(value: str) -> list[str]:
    if not value.startswith("@"):
        return [value]
    path = value[1:]
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise UsageError(f"--memlens-functions: cannot read {path}: {error.strerror}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"--memlens-functions: {path} has no expression", hint="one a line; # begins a comment")
    return found
