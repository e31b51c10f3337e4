"""Numerical optimization of strategies, by L-BFGS with certificates.

The modules below this one import TensorFlow, but for `toeplitz`, `descent`,
`toeplitz_sensitivity`, `options` and `result`; this one does not.
"""

from tf_bandmf.optimize.result import OptimizationResult

__all__ = ["OptimizationResult"]
