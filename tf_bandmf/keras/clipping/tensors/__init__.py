"""Helpers for tensors with a batch axis, and for privacy units of several rows."""
