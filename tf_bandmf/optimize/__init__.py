"""Numerical optimization of strategies with L-BFGS, and certificates of optimality.

The modules of this package import TensorFlow, except for `toeplitz`, `descent`,
`toeplitz_sensitivity`, `options` and `result`; importing the package itself does not
import TensorFlow.
"""

from tf_bandmf.optimize.result import OptimizationResult as OptimizationResult
