"""Analysis of a strategy: its sensitivity, and its error on a workload."""
