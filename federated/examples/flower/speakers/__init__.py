"""A Flower app: a server and devices that each have one speaker's lines."""
