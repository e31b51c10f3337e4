"""Helpers for tensors with a batch axis, for units of rows, and for variables."""
