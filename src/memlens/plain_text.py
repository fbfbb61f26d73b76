"""Text that reaches a terminal: names from programs and captures can neither steer it nor be missing in its encoding.

`main` of the command line puts `PlainStream` around standard output and error, so all text passes one place. What memlens itself sends
to steer a terminal (colours of rich, the progress sign) goes to `PlainStream.trusted`, after `plain` or `PlainConsole` has
escaped the names in it.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

from .errors import OutputError, os_reason

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

T = TypeVar("T")
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
"""C0 but line feed and tab, DEL, C1, and marks that change the direction of text or end lines."""


def plain(text: str) -> str:
    r"""The text with control characters and bidirectional marks as escapes.

    >>> plain("a\x1b]52;c;eA==\x07b"), plain("\u202egnp"), plain("é\n")
    ('a\\x1b]52;c;eA==\\x07b', '\\u202egnp', 'é\n')
    """
    return _STEERING.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """What a stream cannot encode: a byte of a name that was no text as ``\\xff``, anything else as Python escapes it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start : error.end]
    text = (
        f"\\x{ord(c) & 0xFF:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c.encode("ascii", "backslashreplace").decode()
        for c in bad
    )
    return "".join(text), error.end


codecs.register_error("memlens-escape", escape_unencodable)


class PlainStream:
    """A text stream that escapes what could steer a terminal and what its encoding cannot express.

    A failed write is an OutputError with its reason; a closed pipe stays a BrokenPipeError.
    """

    def __init__(self, trusted: IO[str], name: str) -> None:
        self.trusted = trusted
        """The stream below, for sequences of our own."""
        self._name = name
        reconfigure = getattr(trusted, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="memlens-escape")

    def write(self, text: str) -> int:
        return self._guarded(lambda: self.trusted.write(plain(text)))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._guarded(self.trusted.flush)

    def _guarded(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except BrokenPipeError:
            raise
        except OSError as error:
            self.discard()
            raise OutputError(
                f"cannot write to {self._name}: {os_reason(error)}", hint="write to a place with room"
            ) from error

    def discard(self) -> None:
        """What is still buffered goes nowhere: the interpreter would try, and complain, once more at its end."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.trusted.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trusted, name)


def trusted(stream: IO[str] | PlainStream) -> IO[str]:
    """The stream below a PlainStream; any other stream as it is."""
    return stream.trusted if isinstance(stream, PlainStream) else stream


class TextFile(Protocol):
    """What a console needs of a file."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...
    def isatty(self) -> bool: ...


def plain_console(file: TextFile, **options: Any) -> Console:
    """A rich console whose text is escaped before it is laid out: only rich itself steers the terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not _STEERING.search(segment.text):
                    yield segment
                else:
                    yield Segment(plain(segment.text), segment.style)

    return PlainConsole(file=cast("IO[str]", file), **options)
