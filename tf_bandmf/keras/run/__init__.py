"""A private run: its secrets, the conditions of its steps, and checks of its
weights."""
