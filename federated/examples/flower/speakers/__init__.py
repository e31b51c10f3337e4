"""A Flower app with a server, and devices that each have one speaker's lines."""
