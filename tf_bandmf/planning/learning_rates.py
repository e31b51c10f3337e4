"""Learning rates of SGD, from the noise that the models hold."""

from __future__ import annotations

import math

# Noise in a weight, in units of 1 / sqrt(fan_in), at the advised rate; range around it.
WEIGHT_NOISE = 2.5
RANGE = 2.0
# Of learning rate / (1 - momentum), per unit of clip norm.
LARGEST = 10.0


def per_clip_unit(
    rmse: float, batch_size: float, fan_in: float, momentum: float
) -> tuple[float, bool]:
    """Learning rate for gradients that are divided by the clip norm.

    The noise that the models hold in a weight has the standard deviation
    `rate * RMSE / B`. Weights of layers whose inputs have variance one work on the scale
    1 / sqrt(fan_in). At the best rates that were measured here the noise was 1.2 to 5 of
    these units, less with larger clip norms: linear model on 3969 features, momentum 0.9,
    40 epochs, epsilon 3, DP-SGD and BISR, sampled or not, RMSE / B from 0.05 to 0.25
    (benchmarks/utility/results/fashion-mnist.csv and results/advised/ablation.csv); MLP
    on 784 pixels without momentum, 10 epochs, epsilon 4 (examples/fashion_mnist.py:
    DP-SGD 2.3 at rate 0.5, BISR 3.3 at rate 4, where RMSE differs by a factor of 5.6).
    2.5 is advised, with a factor of 2 to both sides. So a tenth of the noise allows ten
    times the rate, and rates go with 1 / clip norm, as updates of clipped gradients do
    (De et al., 2022, arXiv:2204.13650).

    Where there is little noise, curvature limits the rate, which no noise predicts: above
    10 (divided by 1 - momentum) none of these measurements was best. A run that is
    limited so has too few steps to use how little noise it has.

    Args:
      rmse: of the noisy models per coordinate and unit of clip norm, on sums.
      batch_size: B, by which sums are divided.
      fan_in: inputs of a unit.
      momentum: of SGD.

    Returns:
      The rate, and whether it is limited by 10 (1 - momentum) instead of the noise.
    """
    rate = WEIGHT_NOISE * batch_size / (rmse * math.sqrt(fan_in))
    largest = (1.0 - momentum) * LARGEST
    return min(rate, largest), rate > largest
