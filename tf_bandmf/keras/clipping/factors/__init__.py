"""Per-example gradients, mostly as products of smaller tensors, and their norms."""
