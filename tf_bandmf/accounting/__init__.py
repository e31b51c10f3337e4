"""Accounting: from noise to (epsilon, delta) and back; one file per sampler.

Every accountant takes and returns `noise_stddev`, the standard deviation of the noise on
the raw strategy `C`. `Plan` uses the accountant of its participation.
"""
