"""Presenters: render a Report; they compute nothing. One file a format, each with a DESCRIPTOR."""
