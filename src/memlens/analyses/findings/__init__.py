"""One file a finding: predicate, evidence query, remedy, and the workloads that prove it."""
