"""Exporting: tables as files of other formats, one file a format. Knows Arrow; not captures, analyses or the command line."""
