"""The binary-tree baseline with the optimal decoder (OPTIMAL TREEAGG)."""

from __future__ import annotations

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.matrices import dyadic_tree
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.strategies.registry import Family, register
from tf_bandmf.workloads import Workload

# The maximum of num_steps. There is a limit because the dense factor and its Gram
# matrix are materialized.
_LARGEST_NUM_STEPS = 20_000


def binary_tree(num_steps: int) -> Strategy:
    """Returns noisy sums over complete dyadic intervals, decoded by the pseudo-inverse.

    This is the mechanism of Dwork et al., 2010, and Chan et al., 2011, with the 'full'
    estimator of Honaker, 2015, which is the best linear decoder. The module
    `matrices.dyadic_tree` explains why the square matrix of this strategy has the
    sensitivity and the error of the rectangular matrix of the tree. The strategy has no
    parameters, and does not depend on the workload.

    Args:
      num_steps: n, not necessarily a power of two.

    Raises:
      ValueError: if num_steps is not an int from 1 to 20,000.
    """
    whole_number("num_steps of the binary tree", num_steps, most=_LARGEST_NUM_STEPS)
    return Strategy("tree", dyadic_tree.DyadicTree(num_steps))


def _build(workload: Workload, participation: Participation) -> Strategy:
    return binary_tree(workload.num_steps)


register(Family("tree", _build))
