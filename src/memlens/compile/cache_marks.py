"""Compiler caches and `--memlens-functions=@FILE`.

ccache decides by the command line, the preprocessed source and the files that its line markers name. The content of FILE is in none of
them, so an object that was compiled with another content would be returned. A header that only holds a line marker of FILE puts it there. It
is included where the source is preprocessed, which is how caches look at it, and nowhere else.
"""

from __future__ import annotations

import os


def header(paths: list[str], environment: dict[str, str]) -> str:
    """A header whose preprocessed text names these files and changes with their content; "" = there is nothing to mark, or no place for it."""
    if not paths:
        return ""
    import hashlib

    digest = hashlib.sha256()
    lines = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                digest.update(file.read() + b"\0")
        except OSError:
            return ""
        name = os.path.abspath(path).replace("\\", "\\\\").replace('"', '\\"')
        digest.update(name.encode("utf-8", "surrogateescape"))
        lines.append(f'# 1 "{name}" 1\n')
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    place = os.path.join(cache, "memlens", "functions", digest.hexdigest()[:24] + ".h")
    if os.path.exists(place):
        return place
    content = "".join(f'{line}# 1 "{place}" 2\n' for line in lines)
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        part = f"{place}.{os.getpid()}"
        with open(part, "w", encoding="utf-8", errors="surrogateescape") as output:
            output.write(content)
        os.replace(part, place)  # whole or not at all: another compilation may read it now
    except OSError:
        return ""
    return place
