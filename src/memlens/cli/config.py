"""`memlens config`: where the parts are that other programs use."""

from __future__ import annotations

import sys

from .main import new_parser

EXAMPLES = """\
  cc $(memlens config --cflags) solver.c                  a program with annotations (memlens.h)
  cc -static $(memlens config --cflags) solver.c $(memlens config --static-libs)
                                                          the same, static, and still recorded
  LD_PRELOAD=$(memlens config --preload) MEMLENS_OUTPUT=$PWD/run.memlens mpirun ./solver
                                                          without a recorder: each process writes for itself
"""


def main(arguments: list[str]) -> int:
    parser = new_parser(
        "config", description="Prints where the header and the libraries of memlens are.", examples=EXAMPLES
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--cflags", action="store_true", help="compiler options that find memlens.h")
    group.add_argument(
        "--static-libs", action="store_true", help="linker options for regions and tags in a static program"
    )
    group.add_argument("--preload", action="store_true", help="the library for LD_PRELOAD, for launchers")
    options = parser.parse_args(arguments)
    from ..collect import preload

    cflags = f"-I{preload.include_directory()}"
    static = f"-Wl,-u,memlens_hooks {preload.runtime_directory() / 'libmemlens.a'}"
    library = str(preload.library())
    if options.cflags or options.static_libs or options.preload:
        sys.stdout.write(f"{cflags if options.cflags else static if options.static_libs else library}\n")
        return 0
    sys.stdout.write(f"header   {cflags}\nstatic   {static}\npreload  {library}\n")
    return 0
