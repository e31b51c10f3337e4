"""Privacy accountants, one per sampler: (epsilon, delta) from noise, and vice versa.

Every accountant takes and returns `noise_stddev`, the standard deviation of the noise
on the raw strategy `C` (not scaled to sensitivity 1). `Plan` uses the accountant for
the sampler of its participation.
"""
