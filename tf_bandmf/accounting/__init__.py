"""Accounting: from noise to (epsilon, delta) and back; one file per sampler.

Every accountant takes and gives `noise_stddev`, the standard deviation on the raw
strategy `C`. `Plan` asks the accountant of its participation.
"""
