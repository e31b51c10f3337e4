"""Correlated noise: generates the rows of `C^-1 Z` with a counter-based generator.

`C` is the strategy matrix. Row `z[i]` of `Z` holds the independent standard normals of
step `i`; each entry is a pure function of the step's key and the entry's index. A
strategy with a banded `C^-1` regenerates the few earlier `z[i-j]` that it needs, and
stores nothing. A strategy with a banded `C` stores its last outputs in a ring buffer. A
buffered Toeplitz strategy stores a few weighted sums.

WARNING: the keys and the buffers are secret. Anyone who knows `y[i]`, the noise of step
`i`, can compute the exact gradient of that step.
"""

from tf_bandmf.noise.generator import NoiseGenerator as NoiseGenerator
from tf_bandmf.noise.generator import NoiseState as NoiseState
from tf_bandmf.noise.normals import standard_normals as standard_normals
