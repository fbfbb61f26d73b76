"""Signals that the recorder waits for, with a timeout.

`signal.sigtimedwait` would do, but for one case: where it is interrupted (the recorder was stopped and goes on, as by Ctrl-Z and `fg`) and
its time is over by then, it returns a siginfo that nobody filled in."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterable
from signal import Signals
from typing import NamedTuple

_SIGSET_BYTES = 128
_INFO = struct.Struct("=IiiI112x")
"""struct signalfd_siginfo: ssi_signo, ssi_errno, ssi_code, ssi_pid."""


class Received(NamedTuple):
    number: int
    code: int
    pid: int


class SignalQueue:
    """The signals must be blocked already."""

    def __init__(self, signals: Iterable[Signals]) -> None:
        mask = sum(1 << (number - 1) for number in signals).to_bytes(_SIGSET_BYTES, "little")
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "signalfd")

    def wait(self, seconds: float) -> Received | None:
        ready, _, _ = select.select([self.descriptor], [], [], max(0.0, seconds))
        if not ready:
            return None
        try:
            number, _, code, pid = _INFO.unpack(os.read(self.descriptor, _INFO.size))
        except BlockingIOError:
            return None
        return Received(number, code, pid)

    def forget(self) -> None:
        """Drops what has come until now."""
        while self.wait(0) is not None:
            pass

    def close(self) -> None:
        os.close(self.descriptor)
