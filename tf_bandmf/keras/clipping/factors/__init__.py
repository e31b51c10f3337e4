"""Per-example gradients, in most cases as products of smaller tensors, and their norms."""
