"""The forward pass: it records calls of layers, and refuses to mix examples."""
