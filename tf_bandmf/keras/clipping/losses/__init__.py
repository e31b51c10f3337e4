"""One loss for each example, from the losses that Keras compiled."""
