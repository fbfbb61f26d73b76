"""`--functions`: a regular expression, or a file of them."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError


def function_pattern(text: str) -> str:
    """A regular expression, or `@FILE` with one a line (as `memlens suggest` writes them), as one expression."""
    if not text.startswith("@"):
        return text
    try:
        lines = Path(text[1:]).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UsageError(f"--functions {text}: cannot read the file: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise UsageError(f"--functions {text}: the file names no function", hint="write one expression a line")
    return "|".join(f"(?:{line})" for line in found)
