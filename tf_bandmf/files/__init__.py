"""File handling: configurations with arrays, and files that hold secrets."""
