"""How the JSON of reports changed since the goldens were made: the table that test_goldens.py compares through.

docs/report-json.md is written from it (`make docs`). A place is a path in the document (`results.faults.figures.major`).
"""

from __future__ import annotations

MOVED: tuple[tuple[str, str, str], ...] = (
    (
        r"^((?!meta\.).*quality\.notes\[\d+\])$",
        r"\1.text",
        "notes have a code, a text and values; the text is what it was",
    ),
)
"""(pattern of the old place, new place, reason): the value is the same."""

ADDED: tuple[tuple[str, str], ...] = (
    (r"^schema(_version)?$", "name and version of the JSON Schema"),
    (r"^page\.", "which rows of each table the document has"),
    (r"^views\.", "labels, units and roles of figures, columns and charts"),
    (r"^absences\[", "what the capture has no data for, and the command that records it"),
    (r"^results\.\w+\.table_rows\.", "the number of rows of each table, of which a page may hold fewer"),
    (r"quality\.notes\[\d+\]\.(code|values.*)$", "the code of a note"),
    (
        r"^results\.caches\.tables\.levels\[",
        "levels of the cache model as a table, with the miss curve at the same sizes",
    ),
    (r"^results\.traffic\.tables\.\w+\[\d+\]\.stack_share$", "share of a row's bytes that lie on the stack"),
    (
        r"^findings\[\d+\]\.(affected_of|affected_share|group|time_s|view|references.*)",
        "what a finding rests on and affects",
    ),
)
"""(pattern of a place that was not there, reason)."""

CHANGED: tuple[tuple[str, str], ...] = (
    (
        r"^results\.regions\.tables\.by_name\[\d+\]\.(faults|first_touched_bytes)$",
        "null where no faults were recorded; it was 0",
    ),
    (r"^results\.regions\.quality\.notes\[\d+\]\.text$", "the note about faults that were not recorded says so"),
)
"""(pattern of a place whose value differs, reason)."""
