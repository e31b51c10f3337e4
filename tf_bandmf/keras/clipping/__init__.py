"""Exact per-example gradient clipping for Keras 3 models on TensorFlow."""
