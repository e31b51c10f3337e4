"""Per-example gradients, mostly stored as products of smaller tensors, and norms."""
