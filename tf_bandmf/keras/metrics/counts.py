"""Private counts: noisy shares of clipped, zero and bad examples, released by each step.

An example adds two vectors to a step: its clipped gradient and its count. The norm of
the gradient is at most the clip norm C. The count is zero, or has a weight w at one of
three coordinates. Concatenated, both have a norm of at most sqrt(C^2 + w^2), for which
the plan's noise is calibrated. So counts get the same correlated noise as gradients,
and the accounting of the steps covers the counts, whatever the sampling. Andrew et al.,
2021, arXiv:1905.03871, also release private counts during private training.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf import workloads
from tf_bandmf.keras.clipping.tensors.batches import OUTCOMES
from tf_bandmf.planning.plan import Plan

# The outcomes that are counted. The first outcome, "used", is not counted: all examples
# without another outcome have it.
COUNTED = OUTCOMES[1:]
# `sentence` mentions a share only if it is at least `_CLEARLY` times its noise, and at
# least `_WORTH_SAYING`.
_CLEARLY, _WORTH_SAYING = 4.0, 0.05


@dataclasses.dataclass(frozen=True)
class PrivateCounts:
    """The noisy shares that a run releases, over the examples of all steps so far.

    Attributes:
      clipped: share of examples whose gradient was longer than the clip norm.
      zero: share of examples without a gradient: they had weight 0, `map` or `parse`
        failed on them, or their loss does not depend on the weights.
      bad: share of examples whose loss, label or gradient was not finite or valid.
      noise: standard deviation of the noise of a share, equal for all three shares.
      steps: number of steps so far.
    """

    clipped: float
    zero: float
    bad: float
    noise: float
    steps: int

    def sentence(self) -> str:
        """Returns a warning if many examples contributed nothing; otherwise, ""."""
        without = self.zero + self.bad
        noise = math.sqrt(2.0) * self.noise
        if without < max(_CLEARLY * noise, _WORTH_SAYING):
            return ""
        bad, zero = max(self.bad, 0.0), max(self.zero, 0.0)
        return (
            f"About {min(without, 1.0):.0%} of the examples (noise {noise:.1%}) "
            f"contributed nothing to the {self.steps} steps so far: {bad:.0%} had a loss, "
            f"label or gradient that was not finite or valid, and {zero:.0%} had weight "
            f"0, a failed map, or a loss without a gradient."
        )


class Counts:
    """Counts the examples of a run by outcome, if the plan reserves budget for that.

    Args:
      plan: plan of the run.

    Attributes:
      size: number of coordinates that the counts add to a step's release.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        share = plan.measurements.counts
        self.size = len(COUNTED) if share else 0
        self._variable: Any = None
        if share:
            weight = np.float32(plan.l2_norm_clip * math.sqrt(share / (1.0 - share)))
            # The weight is rounded down, so that the norm of an example's contribution
            # never exceeds the bound for which the noise is calibrated.
            self._weight = float(np.nextafter(weight, np.float32(0.0)))

    def keep_in(self, optimizer: Any) -> None:
        """Adds a variable for the running sums of noisy counts to a Keras optimizer.

        The counts are noisy, so checkpoints may contain them.
        """
        if self.size:
            self._variable = optimizer.add_variable(
                [self.size],
                dtype="float32",
                aggregation="only_first_replica",
                name="private_counts",
            )

    def coordinates(self, outcomes: tf.Tensor) -> list[tf.Tensor]:
        """Returns a batch's weighted counts, to append to its sums of gradients.

        Args:
          outcomes: for each example, the index of its outcome in `OUTCOMES`.

        Returns:
          A list of one float32 tensor of shape [size]; empty if the plan has no counts.
        """
        if not self.size:
            return []
        each = tf.one_hot(outcomes - 1, self.size, self._weight, 0.0)
        return [tf.reduce_sum(each, axis=0)]

    def add(self, noisy: tf.Tensor) -> None:
        """Adds the noisy counts of a step to the running sums."""
        if self.size:
            self._variable.assign_add(noisy / self._weight)

    def value(self, steps: int) -> PrivateCounts | None:
        """Returns the noisy shares after `steps` steps.

        Returns None if the plan has no counts, or `steps` is 0.
        """
        if not self.size or not steps or self._variable is None:
            return None
        plan = self._plan
        assert plan.expected_batch_size is not None
        sums = np.asarray(tf.convert_to_tensor(self._variable.value), np.float64)
        prefix = workloads.prefix_sum(plan.num_steps)
        # The squared errors of the running sums of counts, for noise of variance 1.
        errors = plan.strategy.per_step_squared_error(prefix)
        unit = math.sqrt(float(errors[steps - 1]))
        noise = plan.noise_stddev * unit / self._weight
        noise /= plan.expected_batch_size * steps
        clipped, zero, bad = (float(share) for share in sums / steps)
        return PrivateCounts(clipped, zero, bad, noise, steps)

    def warn(self, steps: int) -> None:
        """Warns about examples that contributed nothing, if the counts show many."""
        counts = self.value(steps)
        if counts is not None and counts.sentence():
            warnings.warn(counts.sentence(), stacklevel=3)
