"""Accounting: from noise to (epsilon, delta) and back; one file per mechanism."""
