"""Batches, groups of examples, and variables: the tensors that clipping handles."""
