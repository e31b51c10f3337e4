"""Keras models that train privately, and the private training step."""
