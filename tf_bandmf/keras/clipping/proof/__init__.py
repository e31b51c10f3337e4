"""The proof, on the traced graph, that each example's loss is its own."""
