"""Captures: the one format between collectors and analyses.

Owns reading and writing of ``NAME.memlens/`` directories, their side tables,
symbols and the replay that classes faults. Knows nothing of collectors' means and
nothing of analyses.
"""
