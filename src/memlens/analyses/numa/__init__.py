"""NUMA: which accesses are remote, which pages were placed by whom, and on which nodes threads run. One file an analysis."""
