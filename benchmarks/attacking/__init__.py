"""Attacks on memlens from outside: damaged and hostile inputs, each command under limits.

A module here has ``attacks(seconds, seed)``, which makes attempts until the time is over and yields each; the driver is
benchmarks/attack.py. An attempt that ends as documented (an answer, or an error of memlens.errors) has no failure.
"""
