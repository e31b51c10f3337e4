"""Strategies: one file per family."""

from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.identity import identity
from tf_bandmf.strategies.lambda_cgd import lambda_cgd, optimized_lambda_cgd
from tf_bandmf.strategies.square_root import bisr, bsr

__all__ = [
    "Strategy",
    "bisr",
    "bsr",
    "identity",
    "lambda_cgd",
    "optimized_lambda_cgd",
]
