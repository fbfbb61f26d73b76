"""What a complete capture consists of: the files that meta.json lists, and whether they are still as they were written.

Chunks carry checksums of their own, but a file that ends at a chunk's end looks whole. So meta.json lists bytes and
chunks of each record file, bytes and SHA-256 of each side table, and ends with the SHA-256 of itself. This finds damage
and partial copies; it is no protection from somebody who wants to deceive.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...errors import CaptureError
from .directory import META_FILE, MOST_META_BYTES
from .files import open_regular
from .side_tables import other_table_name

if TYPE_CHECKING:
    from .meta import FileEntry

SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
"""The end of meta.json; the sum is that of all bytes before it."""


def meta_text(content: Mapping[str, object]) -> bytes:
    """meta.json with its own checksum as the last key.

    >>> SEAL.search(meta_text({"state": "complete"})) is not None
    True
    """
    body = json.dumps({key: value for key, value in content.items() if key != "sha256"}, indent=1).encode()
    head = body.removesuffix(b"\n}")
    return head + f',\n "sha256": "{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()


def digest(descriptor: int) -> str:
    """SHA-256 of a file from its beginning."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Verdict:
    """What differs from the list."""

    notes: list[str] = field(default_factory=list)
    records_missing: bool = False
    changed: set[str] = field(default_factory=set)
    """Files that are not to be trusted."""


def verify(path: Path, chunk_counts: Mapping[str, int]) -> Verdict:
    """Compares a complete capture with its list. `chunk_counts`: sound chunks found in each record file."""
    found = Verdict()
    try:
        with os.fdopen(open_regular(path / META_FILE), "rb") as file:
            content = file.read(MOST_META_BYTES)
        meta = json.loads(content)
    except (OSError, ValueError, RecursionError, CaptureError):
        found.notes.append(f"{META_FILE} can no longer be read: nothing was compared with its list of files.")
        return found
    seal = SEAL.search(content)
    listed = meta.get("files")
    if seal is None and "sha256" not in meta and listed is None:
        found.notes.append(
            "Unverified: this capture has no list of its files (earlier versions wrote none), so that a missing or shortened "
            "file would go unnoticed."
        )
        return found
    if seal is None or hashlib.sha256(content[: seal.start()]).hexdigest().encode() != seal[1]:
        found.changed.add(META_FILE)
        found.notes.append(
            f"{META_FILE} has changed since it was written (its SHA-256 differs): its fields may be wrong."
        )
    if not isinstance(listed, dict):
        found.notes.append(f"{META_FILE} has no list of files: a missing or shortened one would go unnoticed.")
        return found
    for name, entry in listed.items():
        if not isinstance(entry, dict) or "/" in name:
            continue
        _compare(
            found, path, name, cast("FileEntry", entry), chunk_counts.get(name), growing=bool(meta.get("finishing"))
        )
    for name in sorted(chunk_counts.keys() - listed.keys()):
        found.changed.add(name)
        found.notes.append(f"{name} is not in the capture's list of files: it was added later.")
    return found


def _compare(found: Verdict, path: Path, name: str, entry: FileEntry, chunks: int | None, *, growing: bool) -> None:
    is_table = name.endswith(".parquet")
    is_derived = is_table and other_table_name(name) is None
    remedy = "; the table is made from the records" if is_derived else ""
    try:
        descriptor = open_regular(path / name)
    except (OSError, CaptureError):
        found.changed.add(name)
        found.records_missing |= not is_table
        found.notes.append(f"{name} is missing or is not a regular file{remedy}.")
        return
    try:
        size, wanted = os.fstat(descriptor).st_size, entry.get("bytes")
        is_longer = isinstance(wanted, int) and size > wanted
        if size != wanted and not (is_longer and growing):
            found.changed.add(name)
            found.records_missing |= not is_table
            found.notes.append(f"{name} has {size:,} bytes, not {_number(wanted)} as when it was written{remedy}.")
        elif is_table and digest(descriptor) != entry.get("sha256"):
            found.changed.add(name)
            found.notes.append(f"{name} has changed since it was written (its SHA-256 differs){remedy}.")
        wanted_chunks = entry.get("chunks")
        if not is_table and chunks != wanted_chunks and not (growing and (chunks or 0) > (wanted_chunks or 0)):
            found.changed.add(name)
            found.records_missing = True
            found.notes.append(
                f"{name} has {chunks or 0:,} sound chunks, not {_number(wanted_chunks)} as when it was written."
            )
    finally:
        os.close(descriptor)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
