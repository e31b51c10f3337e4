"""The sum of clipped gradients, and a self-check before the first step."""
