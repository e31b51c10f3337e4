"""Privacy accountants, one per sampler.

An accountant computes (epsilon, delta) from the noise, and the noise from (epsilon,
delta).

Every accountant takes and returns `noise_stddev`, the standard deviation of the noise
on the raw strategy `C`, which is not scaled to sensitivity 1. A `Plan` uses the
accountant that belongs to the sampler of its participation.
"""
