"""Lazy tables: their noise is drawn when their rows are read."""
