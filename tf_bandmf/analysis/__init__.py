"""Analysis of strategies: sensitivity, and error on a workload."""
