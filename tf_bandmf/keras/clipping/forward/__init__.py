"""One forward pass that records what the rules need of each layer."""
