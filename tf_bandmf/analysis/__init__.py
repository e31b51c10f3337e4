"""Analysis of strategies: their sensitivity, and their error on a workload."""
