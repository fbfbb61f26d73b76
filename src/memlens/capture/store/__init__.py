"""What lies on disk: chunks, side tables, meta.json, the writer, and record layouts.

Owns bytes and files. Knows nothing of what records mean (`capture.model`) and of tables made of them (`capture.tables`).
"""
