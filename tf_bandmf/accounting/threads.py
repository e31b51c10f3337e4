"""One thread for products of small matrices.

Accounting multiplies thousands of matrices of a hundred rows. BLAS starts its threads for
each of them and waits for all; where processors are shared with other work that takes ten
times as long as one thread does. Results do not depend on it but in their last bits.
"""

from __future__ import annotations

import functools
from typing import Any

import threadpoolctl


def one_thread() -> Any:
    """A context in which BLAS has one thread, in the whole process."""
    return _controller().limit(limits=1, user_api="blas")


# To find the libraries takes milliseconds.
@functools.cache
def _controller() -> Any:
    return threadpoolctl.ThreadpoolController()
