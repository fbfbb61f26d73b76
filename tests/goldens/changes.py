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
    (r"^selection$", "the part of the run that was asked for; null: all of it"),
    (r"^results\.\w+\.scope(_reason)?$", "how far a result obeyed the selection"),
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

REWORDED: tuple[tuple[str, str], ...] = (
    (
        "Bandwidth is compared with no peak: a program that writes its counters itself does not tell which machine it ran on.",
        "Bandwidth is not compared with a peak: a program that writes its counters itself does not record its machine.",
    ),
    (
        "Peaks of this machine are not known, so bandwidth is compared with nothing:",
        "The peaks of this machine are not known, so bandwidth is not compared with a peak:",
    ),
    (" in all but never holds more than ", " in total but never holds more than "),
    ("memory is given back and touched again", "memory is returned to the kernel and touched again"),
    (
        r"What (\d+%) of the accesses find in the caches of the model is unknown: they are their window's first to a line. "
        "Misses are at least those of the others, and at most these as well.",
        r"Whether \1 of the accesses hit in the modelled caches is unknown: each is the first of its window to a line. "
        "Misses are between those of the other accesses and those with all of these.",
    ),
    (
        "The trace says how many constants it leaves out, but not of which code:",
        "The trace records how many constants it leaves out, but not their code:",
    ),
    ("of the whole run they are not known.", "those of the whole run are not known."),
    ("which is too much where windows use the same data.", "which overestimates where windows share data."),
    (
        "Sharing is seen in windows only: hand-overs are at least those that are listed. How often a line changes hands needs every access:",
        "Sharing is observed within windows only: the listed hand-overs are a lower bound. Counting all of them needs every access:",
    ),
    ("heap objects are not told apart.", "heap objects are not distinguished."),
)
"""(old wording, new one) of sentences in plain English: patterns, so that the numbers in them are compared."""
TIES: tuple[tuple[str, str, str], ...] = (
    (
        "results.faults.tables.by_function",
        "faults",
        "rows of equal counts come in the order of their first fault; it was any order",
    ),
)
"""(table, column it is sorted by, reason): rows with equal values of that column are compared in any order."""
