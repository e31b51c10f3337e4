"""Resuming a run: its private file, and what must be equal."""
