"""Other tools' traces as captures: `memlens import`.

One file a format, each with a ``FORMAT``: how it is known by its content, and how it is read. Loops over accesses
are native (native/core/importing); here files are opened block by block, and what a trace says of processes, threads
and code becomes records and side tables. Knows captures; not collectors, analyses or presenters.
"""
