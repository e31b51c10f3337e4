"""Per-example losses, computed from the compiled losses of Keras."""
