"""Measurements of a private model: the audit of a run, and private metrics."""
