"""Options of collectors on a command line, and the settings that come of them. Knows options, not collectors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import registry
from ..errors import UsageError
from ..registry import Asked, CollectorDescriptor, Option
from .choice import in_order


def usable_collectors() -> list[CollectorDescriptor]:
    """Collectors that can be asked for; one of another package whose options are taken is left out."""
    found = []
    taken: dict[str, Option] = {}
    for descriptor in in_order():
        if not descriptor.available or descriptor.make is None:
            continue
        clash = next((one.name for one in descriptor.options if not _is_free(one, taken)), None)
        if clash is not None and descriptor.package:
            registry.left_out("collector", descriptor, f"its option {clash} is taken, or is not written --like-this")
            continue
        taken.update({one.name: one for one in descriptor.options})
        found.append(descriptor)
    return found


RESERVED = frozenset(
    ("--help", "--output", "--force", "--pid", "--duration", "--collectors", "--budget", "--exact", "--ptwrite", "--redact", "--quiet")
)  # fmt: skip
"""Of the recording itself."""


def _is_free(option: Option, taken: Mapping[str, Option]) -> bool:
    """Collectors may share an option that is the same but for its help."""
    if not option.name.startswith("--") or option.name in RESERVED:
        return False
    known = taken.get(option.name)
    return known is None or replace(known, help="", only_with="") == replace(option, help="", only_with="")


def add_options(parser: argparse.ArgumentParser, collectors: Sequence[CollectorDescriptor]) -> None:
    """One group of options a collector; an option that several have stands once, behind theirs."""
    owners: dict[str, list[Option]] = {}
    for descriptor in collectors:
        for option in descriptor.options:
            owners.setdefault(option.name, []).append(option)
    for descriptor in collectors:
        group = parser.add_argument_group(_title(descriptor), descriptor.question)
        for option in descriptor.options:
            if len(owners[option.name]) == 1:
                add_option(group, option)
    several = [options for options in owners.values() if len(options) > 1]
    if several:
        group = parser.add_argument_group("several collectors")
        for options in several:
            add_option(group, replace(options[0], help="; ".join(one.help for one in options)))


def _title(descriptor: CollectorDescriptor) -> str:
    return f"collector {descriptor.name}" + (f" (package {descriptor.package})" if descriptor.package else "")


def add_option(group: Any, option: Option) -> None:
    """`group`: an argparse parser or group of one."""
    described = option.help.replace("%", "%%")
    if option.flag:
        group.add_argument(option.name, dest=option.key, action="store_true", help=described)
        return
    group.add_argument(
        option.name,
        dest=option.key,
        default=option.default,
        help=described,
        **({"type": option.parse} if option.parse is not None else {}),
        **({"metavar": option.metavar} if option.metavar is not None else {}),
        **({"choices": option.choices} if option.choices else {}),
        **({"nargs": "?", "const": option.bare} if option.bare is not None else {}),
    )


def with_values(options: Sequence[Option]) -> frozenset[str]:
    """Options whose value is the next word."""
    return frozenset(one.name for one in options if not one.flag and one.bare is None)


def check(collectors: Sequence[CollectorDescriptor], values: Mapping[str, object], *, pid: int | None) -> None:
    """Raises UsageError for options that mean nothing together."""
    needed: dict[str, list[Option]] = {}
    for option in (one for descriptor in collectors for one in descriptor.options if one.only_with):
        needed.setdefault(option.name, []).append(option)
    for name, options in needed.items():
        wanted = [one.only_with for one in options]
        if values[options[0].key] is not None and all(values[_key(other)] is None for other in wanted):
            wanted = sorted(wanted)
            raise UsageError(
                f"{name} needs {' or '.join(wanted)}",
                hint=f"memlens record {wanted[0]} {name} {options[0].metavar} -- PROGRAM",
            )
    given = list(_given(collectors, values))
    wrappers = [descriptor for descriptor in collectors if descriptor.wraps and descriptor.main]
    for descriptor in given:
        if descriptor.wraps and pid is not None:
            raise UsageError(f"{descriptor.main} starts a program; it cannot watch a running one")
        wrapped = any(other in wrappers for other in given)
        if not descriptor.wraps and descriptor.needs_start and (pid is not None or wrapped):
            foes = " and ".join(["--pid", *(other.main for other in wrappers)])
            raise UsageError(f"{descriptor.main} starts a program natively; it excludes {foes}")


def _key(option: str) -> str:
    return Option(option, "").key


def _given(collectors: Sequence[CollectorDescriptor], values: Mapping[str, object]) -> Iterator[CollectorDescriptor]:
    """Collectors whose main option is given."""
    for descriptor in collectors:
        if descriptor.main and values[_key(descriptor.main)] not in (None, False):
            yield descriptor


def mains(collectors: Sequence[CollectorDescriptor]) -> list[str]:
    return [descriptor.main for descriptor in collectors if descriptor.main]


def is_any_given(collectors: Sequence[CollectorDescriptor], values: Mapping[str, object]) -> bool:
    return any(True for _ in _given(collectors, values))


def names_of(text: str, collectors: Sequence[CollectorDescriptor]) -> tuple[str, ...]:
    """The collectors of `--collectors A,B`."""
    known = [descriptor.name for descriptor in collectors]
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(
            f"there is no collector {', '.join(unknown) or '(none named)'} in this version",
            hint=f"collectors: {', '.join(known)}; see memlens doctor",
        )
    return tuple(dict.fromkeys(names))


def settings_of(
    collectors: Sequence[CollectorDescriptor], values: Mapping[str, object], asked: Asked
) -> dict[str, object]:
    """Settings by collector. One with a main option has some only where it is given: they ask for it."""
    given = {descriptor.name for descriptor in _given(collectors, values)}
    found = {}
    for descriptor in collectors:
        if descriptor.settings is None or (descriptor.main and descriptor.name not in given):
            continue
        own = {option.key: values[option.key] for option in descriptor.options}
        try:
            found[descriptor.name] = descriptor.settings(own, asked)
        except UsageError:
            raise
        except Exception as error:
            if not descriptor.package:
                raise
            registry.left_out("collector", descriptor, f"its settings failed: {type(error).__name__}: {error}")
    return found
