"""One file a collector, each with a DESCRIPTOR (see memlens.registry)."""
