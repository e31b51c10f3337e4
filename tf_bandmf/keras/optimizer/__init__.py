"""The private optimizer: what users configure, and the optimizer of Keras inside it."""
