"""Graphs of TensorFlow: what operations do, and walks through them and what they call."""
