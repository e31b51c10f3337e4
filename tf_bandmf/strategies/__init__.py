"""Strategies: matrices `C` that correlate the noise. Each family has its own module."""

from tf_bandmf.strategies.amplified import optimized_amplified as optimized_amplified
from tf_bandmf.strategies.banded import optimized_banded as optimized_banded
from tf_bandmf.strategies.banded_inverse import (
    optimized_banded_inverse as optimized_banded_inverse,
)
from tf_bandmf.strategies.base import Strategy as Strategy
from tf_bandmf.strategies.buffered import blt as blt
from tf_bandmf.strategies.dp_lambda_cgd import lambda_cgd as lambda_cgd
from tf_bandmf.strategies.dp_lambda_cgd import (
    optimized_lambda_cgd as optimized_lambda_cgd,
)
from tf_bandmf.strategies.dp_sgd import identity as identity
from tf_bandmf.strategies.fractional_root import bifr as bifr
from tf_bandmf.strategies.fractional_root import optimized_bifr as optimized_bifr
from tf_bandmf.strategies.multi_epoch import dense as dense
from tf_bandmf.strategies.registry import FAMILIES as FAMILIES
from tf_bandmf.strategies.registry import Family as Family
from tf_bandmf.strategies.registry import Option as Option
from tf_bandmf.strategies.registry import register as register
from tf_bandmf.strategies.square_root import bisr as bisr
from tf_bandmf.strategies.square_root import bsr as bsr
from tf_bandmf.strategies.toeplitz import optimized_toeplitz as optimized_toeplitz
from tf_bandmf.strategies.tree import binary_tree as binary_tree
