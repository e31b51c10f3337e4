"""Lazy tables: embedding tables whose rows get their noise only when they are read."""
