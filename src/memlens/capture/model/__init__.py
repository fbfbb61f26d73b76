"""What records mean: address spaces and their replay, code, objects, variables, counts, windows and accesses.

Owns conclusions from the records of `capture.store`. Knows nothing of files' layout and of the tables that queries offer
(`capture.tables`).
"""
