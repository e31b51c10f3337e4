"""The proof, on the traced graph, that each loss depends on one example only."""
