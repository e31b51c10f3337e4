"""Limits BLAS to one thread for small products."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import threadpoolctl

# The result is cached because finding the BLAS libraries takes milliseconds.
_controller = functools.cache(threadpoolctl.ThreadpoolController)


def one_blas_thread() -> AbstractContextManager[object]:
    """Returns a context in which BLAS uses one thread.

    OpenBLAS splits each dot product of more than 10,000 numbers among all processors.
    If other processes keep the processors busy, such a dot product takes up to a
    hundred times as long as with one thread. Its last bits also depend on the number of
    processors.
    """
    return _controller().limit(limits=1, user_api="blas")
