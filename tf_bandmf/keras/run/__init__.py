"""A private run: its secrets, the checks of its steps, and digests of its weights."""
