"""Collector `emulate`: every access of an unmodified program, under qemu-user with a plugin of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....registry import Asked, CollectorDescriptor, Option
from ...facts import Availability
from ...function_pattern import function_pattern
from ...protocol import ChannelPlan, Collector, Launch, SessionPlan
from . import emulator
from .emulator import EmulateOptions

if TYPE_CHECKING:
    from ...facts import Facts

WAIT_MS = 10_000
"""How long an emulated thread waits for a recorder that makes no progress."""


def probe(facts: Facts) -> Availability:
    if not facts["qemu_user"]:
        return Availability(
            False,
            "not usable",
            ((f"qemu-user for {os.uname().machine} is not installed", "sudo apt-get install qemu-user"),),
        )
    own = emulator.find(os.uname().machine)
    if isinstance(own, tuple):
        return Availability(False, "not usable", (own,))
    others = [name for name in emulator.MACHINES.values() if not isinstance(emulator.find(name), tuple)]
    return Availability(True, f"qemu {own.version}, plugin interface {own.plugin_api}; programs of {', '.join(others)}")


def settings(values: Mapping[str, Any], asked: Asked) -> EmulateOptions:
    return replace(emulator.parse(values["emulate"] or ""), functions=function_pattern(values["functions"] or ""))


class Emulate(Collector[EmulateOptions]):
    """The plugin writes windows, stacks and modules through the channel. Exact counts are in the *arena*, a memory file of the
    recorder that outlives every process; they become records when the program has ended."""

    processes = "events"
    holds_records = True

    def plan_channel(self, plan: ChannelPlan) -> None:
        plan.users.append(self.name)
        plan.wait_at_least(WAIT_MS)
        plan.ring_bytes, plan.slot_max = emulator.RING_BYTES, 256
        plan.budget_share = 0.0

    def launch(self, program: str, command: list[str]) -> Launch:
        """Those that use the channel beside it load the library into the emulated program."""
        channel = self.recording.channel
        assert channel is not None
        self._arena = emulator.Arena(channel.value)
        others = [name for name in self.recording.channel_users if name != self.name]
        self._launch = emulator.launch(
            self.settings, program, command, channel.value, self._arena, loads_library=bool(others)
        )
        for reason, remedy in self._launch.notes:
            for name in others:
                self.recording.unsupported(name, reason, remedy)
        return Launch(self._launch.command, self._launch.environment)

    def plan_session(self, plan: SessionPlan) -> None:
        plan.emulated = True

    def describe(self) -> dict[str, object]:
        return {
            **self.settings.settings,
            "qemu": self._launch.emulator.version,
            "plugin_api": self._launch.emulator.plugin_api,
            "machine": self._launch.guest.machine,
        }

    def end(self, counts: Mapping[str, int], status: int | None) -> list[str]:
        if status is None or not os.WIFSIGNALED(status):
            return []
        return emulator.why_it_ended(self._launch, os.WTERMSIG(status))

    def finish(self) -> list[str]:
        """What the emulated processes counted, from the memory that they left."""
        from ....capture.reader import Capture
        from .counts import code_counts

        writer = self.recording.writer
        pids = {row["pid"]: row["process"] for row in Capture(writer.root).table("processes").to_pylist()}
        totals = code_counts(writer, self._arena.extents(), pids)
        self.recording.ledger(self.name, {**totals, "refused_blocks": self._arena.refused})
        self._arena.close()
        return []


def words(options: Mapping[str, object]) -> list[str]:
    said = [f"{options.get('machine')} under qemu {options.get('qemu')}"]
    if "window" in options:
        said.append(f"windows of {options['window']:,} in {options['period']:,} accesses")
    elif options.get("full"):
        said.append("every address")
    if options.get("pages"):
        said.append("pages")
    return said


DESCRIPTOR = CollectorDescriptor(
    name="emulate",
    question="How many bytes does each instruction read and write, exactly, and where?",
    needs=("qemu-user 7.0 to 10.2 with plugins",),
    gives=("code_count", "window", "page_count", "unseen", "emulator_status", "mapping", "stack"),
    options=(
        Option(
            "--emulate",
            "run the program under qemu and count every access; WHAT, after =, joined by commas: counts (nothing else), "
            "window=N,period=N (addresses of windows of N accesses, one in each period; default 1000 in 100000), full (all addresses), "
            "pages (accesses by page and thread), stack (separate stack and other memory at every access), frames (the same, "
            "with only the running function's own frame as stack; x86-64), cpu=NAME, stacks=off, wait=off, seed=N",
            metavar="WHAT", bare="", shown="window=1000,period=100000",
        ),
        Option("--functions", "with --emulate: functions that are regions, callees included", metavar="REGEX", shown="–", only_with="--emulate"),
    ),
    order=60,
    main="--emulate",
    wraps=True,
    needs_start=("--emulate starts a program; it cannot watch a running one", "start the program with memlens record"),
    probe=probe,
    settings=settings,
    make=Emulate,
    words=words,
)  # fmt: skip
