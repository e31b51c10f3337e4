"""The private optimizer, which wraps an optimizer of Keras."""
