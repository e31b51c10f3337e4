"""Measurements of a private model: one run, the largest contribution, gradients."""
