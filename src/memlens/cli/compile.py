"""`memlens cc` and `memlens c++` (also `memlens-cc`, `memlens-c++`): clang that counts.

Ends as clang: this process becomes it, so that signals, output and status are clang's own.
"""

from __future__ import annotations

import os
import sys

from ..errors import MemlensError, ToolchainError, os_reason


def main(name: str, arguments: list[str]) -> int:
    """Runs `cc` or `c++`; returns only after printing help, else execs or raises MemlensError."""
    from ..compile import options as our_options
    from ..compile import plan, toolchain

    options, rest = our_options.take(arguments)
    if options.help:
        sys.stdout.write(our_options.help_text(name))
        return 0
    environment = dict(os.environ)
    have = toolchain.installed()
    clang = toolchain.find_clang(options.clang, have, environment)
    command, for_pass = plan.plan(
        rest, plus_plus=name == "c++", options=options, clang=clang, have=have, environment=environment
    )
    environment.pop("MEMLENS_PASS", None)
    if for_pass:
        environment["MEMLENS_PASS"] = for_pass
    if options.verbose:
        import shlex

        shown = [f"MEMLENS_PASS={for_pass}"] if for_pass else []
        sys.stderr.write(shlex.join(["env", *shown, *command] if shown else command) + "\n")
    return _become(command, environment)


def _become(command: list[str], environment: dict[str, str]) -> int:
    import signal

    # The interpreter ignores these, and what is ignored stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.stdout and sys.stdout.flush()
    sys.stderr and sys.stderr.flush()
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        raise ToolchainError(f"cannot run {command[0]}: {os_reason(error)}") from None


def _run(name: str) -> None:
    try:
        sys.exit(main(name, sys.argv[1:]))
    except MemlensError as error:
        sys.stderr.write(f"memlens {name}: {error}\n")
        if error.hint:
            sys.stderr.write(f"         {error.hint}\n")
        sys.exit(error.exit_status)


def cc() -> None:
    """Entry point of `memlens-cc`."""
    _run("cc")


def plus_plus() -> None:
    """Entry point of `memlens-c++`."""
    _run("c++")
