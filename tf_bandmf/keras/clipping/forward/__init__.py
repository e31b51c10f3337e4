"""The forward pass, which records the tensors for per-example gradients."""
