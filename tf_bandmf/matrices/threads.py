"""One BLAS thread where products are small."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import threadpoolctl

# Finding the libraries takes milliseconds.
_controller = functools.cache(threadpoolctl.ThreadpoolController)


def one_blas_thread() -> AbstractContextManager[object]:
    """A context in which BLAS uses one thread.

    OpenBLAS gives each dot product of more than 10,000 numbers to all processors. Where
    processors are shared, that takes up to a hundred times as long as one thread, and the
    last bits of the result depend on the number of processors.
    """
    return _controller().limit(limits=1, user_api="blas")
