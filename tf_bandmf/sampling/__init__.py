"""Samplers: the batches that the accountant analysed, and no others."""
