"""The forward pass, which records the tensors that the rules need."""
