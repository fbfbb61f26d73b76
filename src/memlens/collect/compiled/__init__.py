"""Programs that were built with `memlens cc`: what they are built for, and the memory that they share with the recorder.

Several collectors use them: counters and sites of traces have their numbers from one arena.
"""
