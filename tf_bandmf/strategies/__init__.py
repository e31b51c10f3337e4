"""Strategies, with one file per family."""

from tf_bandmf.strategies.amplified import optimized_amplified
from tf_bandmf.strategies.banded import optimized_banded
from tf_bandmf.strategies.banded_inverse import optimized_banded_inverse
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.buffered import blt
from tf_bandmf.strategies.dp_lambda_cgd import lambda_cgd, optimized_lambda_cgd
from tf_bandmf.strategies.dp_sgd import identity
from tf_bandmf.strategies.fractional_root import bifr, optimized_bifr
from tf_bandmf.strategies.multi_epoch import dense
from tf_bandmf.strategies.registry import FAMILIES, Family, Option, register
from tf_bandmf.strategies.square_root import bisr, bsr
from tf_bandmf.strategies.toeplitz import optimized_toeplitz
from tf_bandmf.strategies.tree import binary_tree

__all__ = [
    "FAMILIES",
    "Family",
    "Option",
    "Strategy",
    "bifr",
    "binary_tree",
    "bisr",
    "blt",
    "bsr",
    "dense",
    "identity",
    "lambda_cgd",
    "optimized_amplified",
    "optimized_banded",
    "optimized_banded_inverse",
    "optimized_bifr",
    "optimized_lambda_cgd",
    "optimized_toeplitz",
    "register",
]
