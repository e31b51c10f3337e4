"""The sum of clipped gradients, and a check of it before the first step."""
