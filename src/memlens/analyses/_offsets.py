"""Sets of byte offsets as texts: ``0-7, 16``."""

from __future__ import annotations

from collections.abc import Iterable


def in_words(offsets: Iterable[int]) -> str:
    """Bytes as ranges.

    >>> in_words([0, 1, 2, 3, 8])
    '0-3, 8'
    """
    found: list[list[int]] = []
    for offset in sorted(set(offsets)):
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def of_words(text: str) -> list[int]:
    """The offsets that such a text names.

    >>> of_words("0-3, 8")
    [0, 1, 2, 3, 8]
    """
    found: list[int] = []
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
