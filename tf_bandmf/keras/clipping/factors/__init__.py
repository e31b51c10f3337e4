"""Gradients of examples as products that are never multiplied out, and their norms."""
