"""Collectors: observe a program and write records; they know nothing of analyses.

This package imports errors, registry, capture and the sampling binding only.
"""
