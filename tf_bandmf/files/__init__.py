"""Reads and writes configurations with arrays, and private files with secrets."""
