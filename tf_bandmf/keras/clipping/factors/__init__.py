"""Per-example gradients and their norms; most are stored as products of factors."""
