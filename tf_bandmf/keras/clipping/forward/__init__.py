"""One forward pass that records the tensors that the rules need."""
