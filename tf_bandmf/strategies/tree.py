"""The baseline OPTIMAL TREEAGG: binary-tree aggregation with the optimal decoder."""

from __future__ import annotations

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.matrices import dyadic_tree
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, register

# The maximum number of steps. A limit is necessary because the strategy and its Gram
# matrix are stored as dense matrices.
_LARGEST_NUM_STEPS = 20_000


def binary_tree(num_steps: int) -> Strategy:
    """Returns the strategy of binary-tree aggregation with the optimal decoder.

    Tree aggregation releases noisy sums over complete dyadic intervals of steps (Dwork
    et al., 2010; Chan et al., 2011). The 'full' estimator of Honaker, 2015, decodes
    them by the pseudo-inverse, which is the best linear decoder. The module
    `matrices.dyadic_tree` explains why the square matrix of this strategy has the same
    sensitivity and error as the rectangular matrix of the tree. The strategy has no
    parameters, and does not depend on the workload.

    Args:
      num_steps: n, not necessarily a power of two.

    Raises:
      ValueError: if num_steps is not an int from 1 to 20,000.
    """
    whole_number("num_steps of the binary tree", num_steps, most=_LARGEST_NUM_STEPS)
    return Strategy("tree", dyadic_tree.DyadicTree(num_steps))


register(
    Family("tree", lambda workload, participation: binary_tree(workload.num_steps))
)
