"""Learning rates of SGD, from the noise that the models hold; and averaged weights."""

from __future__ import annotations

import math

# Noise in a weight, in units of 1 / sqrt(fan_in), at the advised rate; range around it.
WEIGHT_NOISE = 3.0
RANGE = 2.0
# Bounds of learning rate / (1 - momentum), per unit of clip norm.
LARGEST = 10.0
# The moving average of the weights remembers this part of the steps.
_REMEMBERED = 0.1


def per_clip_unit(
    rmse: float, batch_size: float, fan_in: float, momentum: float
) -> tuple[float, bool]:
    """Learning rate for gradients that are divided by the clip norm.

    The noise that the models hold in a weight has the standard deviation
    `rate * RMSE / B`. Weights of layers whose inputs have variance one work on the scale
    1 / sqrt(inputs of a unit): noise of that size in one layer changes its outputs as
    much as they are. Layers add up, squared, so that the unit of noise is
    1 / sqrt(fan_in), where fan_in is the sum over the layers. At the best rates that were
    measured here the noise was 2 to 6 of these units:

    - networks with 4 layers from pixels, momentum 0.9, moving average of the weights,
      epsilon 0.5 to 9, five mechanisms, sampled or not: 1.9 to 5.5 in 19 rows, whose best
      rates per unit of clip norm differ by a factor of 224; geometric mean 3.2
      (benchmarks/utility/weight_noise.py);
    - linear model on 3969 features, momentum 0.9, 40 epochs, epsilon 3, DP-SGD and BISR,
      sampled or not, less with larger clip norms (results/advised/ablation.csv there);
    - MLP on 784 pixels without momentum, 10 epochs, epsilon 4 (examples/fashion_mnist.py:
      DP-SGD 2.5 at rate 0.5, BISR 3.6 at rate 4).

    3 is advised, with a factor of 2 to both sides. So a tenth of the noise allows ten
    times the rate, and rates go with 1 / clip norm, as updates of clipped gradients do
    (De et al., 2022, arXiv:2204.13650).

    Where there is little noise, curvature limits the rate, which no noise predicts: above
    10 (divided by 1 - momentum) none of these measurements was best. A run that is
    limited so has too few steps to use how little noise it has.

    Args:
      rmse: of the noisy models per coordinate and unit of clip norm, on sums.
      batch_size: B, by which sums are divided.
      fan_in: inputs of a unit, added up over the layers.
      momentum: of SGD.

    Returns:
      The rate, and whether it is limited by 10 (1 - momentum) instead of the noise.
    """
    rate = WEIGHT_NOISE * batch_size / (rmse * math.sqrt(fan_in))
    largest = (1.0 - momentum) * LARGEST
    return min(rate, largest), rate > largest


def ema_momentum(num_steps: int) -> float:
    """Momentum of the exponential moving average of weights that a run releases.

    It remembers a tenth of the steps, 0.99 for 1000 of them. At the best rates of the
    networks above the average was 0 to 4.6 points better than the last weights
    (benchmarks/utility/weight_noise.py). It is computed from what is released anyhow, so
    it costs no privacy (De et al., 2022, arXiv:2204.13650).

    Args:
      num_steps: n, of the run.

    Returns:
      The momentum, in [0, 1): `use_ema=True, ema_momentum=...` of Keras' optimizers.
    """
    return max(0.0, 1.0 - 1.0 / (_REMEMBERED * num_steps))
