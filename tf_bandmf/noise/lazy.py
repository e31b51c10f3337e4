"""Lazy updates of embedding tables that preserve the exact distribution of the noise.

A row is updated only when it is read, but DP adds noise to it in every step. Each weight
of the row has a state `x`: a vector of the weight, its velocity under momentum, and the
earlier numbers that the mechanism needs for its noise. The state follows a linear
system, which is the same for all rows and columns,

    x[t+1] = F[t] x[t] + G[t] z[t] + H[t] s[t],

with a matrix `F[t]`, vectors `G[t]` and `H[t]`, a fresh standard normal `z[t]`, and the
weight's sum `s[t]` of clipped gradients. If `s` is zero from step `l` to step `t - 1`,
the state at `t`, given the state at `l`, is

    x[t] = P(l, t) x[l] + L(l, t) g,      P(l, t) = F[t-1] ... F[l],
    L L^T = Q(l, t) = sum over l <= i < t of  P(i+1, t) G[i] G[i]^T P(i+1, t)^T,

with a vector `g` of fresh standard normals of the same length as `x`. This distribution
is exact: `x` is a Markov process, so sampling it only when it is read, each time
conditioned on the last sampled state, gives the same distribution as sampling it at all
times. The sampling times may depend on all earlier samples. `docs/proofs.md` contains
the proof and the consequences for released values.

`P` and `Q` are the same for all rows. `Jumps` (in `lazy_tables`) stores them for each
`l` since the last release, and advances them from `t` to `t+1` by

    P(l, t+1) = F[t] P(l, t),      Q(l, t+1) = F[t] Q(l, t) F[t]^T + G[t] G[t]^T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tf_bandmf import matrices

# The maximum number m of entries in the state of a weight. The states take m times as
# much memory as the table, and an update of a row draws m normals for each weight.
MOST_ENTRIES = 9


class LinearUpdate(NamedTuple):
    """Hyperparameters of an SGD update, as in `keras.optimizers.SGD`.

    For weights `theta`, a mean gradient `g` and a learning rate `eta`, the update is
    `theta -= eta weight_decay theta`, followed by `theta -= eta g` if there is no
    momentum. With momentum, the velocity becomes `v = momentum v - eta g`, followed by
    `theta += v` or, with Nesterov's look-ahead, `theta += momentum v - eta g`.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class RowSystem(NamedTuple):
    """The matrices F, G and H of all steps, as functions of the learning rate.

    The state `x` of a weight has m entries; the first is the weight itself. A step
    replaces `x` by `F x + G z + H s`, where `z` is a standard normal and `s` is the sum
    of clipped gradients. With learning rate `eta`, `[F G H] = constant + eta rate`.

    Attributes:
      constant, rate: float64, shape [n or 1, m, m + 2], for n steps. The first axis is
        the step, or has length 1 if all steps have the same matrices.
    """

    constant: np.ndarray
    rate: np.ndarray

    @property
    def entries(self) -> int:
        """The number m of entries in the state of a weight."""
        return int(self.rate.shape[1])


def noise_system(matrix: matrices.LowerTriangular) -> np.ndarray:
    """Returns matrices `N` with `(y[t], m[t+1]) = N[t] (m[t], z[t])`.

    Here, `y[t]` is the noise of step t, row t of `C^-1 Z`; `z[t]` is row t of `Z`, the
    matrix of standard normals; and `m[t]` are the k vectors that the mechanism stores
    before step t, with `m[0] = 0`.

    Args:
      matrix: the strategy matrix C.

    Returns:
      N, float64, shape [n or 1, 1 + k, k + 1]. The first axis is the step, or has
      length 1 if N is the same for all n steps.

    Raises:
      ValueError: if C needs too much memory per row, or its noise has no such matrices.
    """
    streaming = matrix.streaming()
    # Normals that the mechanism would regenerate must be stored in the rows' states.
    memory = streaming.memory_vectors + streaming.regenerations
    if memory + 1 > MOST_ENTRIES:
        raise ValueError(
            f"tables='lazy' stores at most {MOST_ENTRIES - 1} noise values per weight, "
            f"but the strategy needs {memory}. Use at most {MOST_ENTRIES} bands "
            f"({MOST_ENTRIES - 1} with momentum): 'bisr:{MOST_ENTRIES}' or 'lambda_cgd'."
        )
    if isinstance(streaming, matrices.GeometricSums):
        system = np.ones([1, 1 + memory, memory + 1])
        system[0, :, :memory] = [streaming.scales, *np.diag(streaming.decays)]
    elif isinstance(streaming, (matrices.Regeneration, matrices.ForwardSubstitution)):
        rows = np.asarray(streaming.rows(), np.float64)
        system = np.zeros([len(rows), 1 + memory, memory + 1])
        # The memory m[t] is (z[t-1], ..., z[t-p+1]) for a C^-1 with p bands, or
        # (y[t-1], ..., y[t-b+1]) for a C with b bands.
        system[:, range(2, 1 + memory), range(memory - 1)] = 1.0
        if isinstance(streaming, matrices.Regeneration):
            system[:, 0] = np.roll(rows, -1, axis=1)
            system[:, 1:2, memory] = 1.0
        else:
            system[:, 0, :memory] = -rows[:, 1:] / rows[:, :1]
            system[:, 0, memory] = 1.0 / rows[:, 0]
            system[:, 1:2] = system[:, :1]
    else:
        raise ValueError(f"With {type(streaming).__name__} noise, use tables='dense'.")
    if streaming.row_scale is not None:
        scale = np.asarray(streaming.row_scale, np.float64)
        system = np.repeat(system, len(scale) // len(system), axis=0)
        system[:, 0] *= scale[:, None]
    return system


def row_system(
    noise: np.ndarray, update: LinearUpdate, stddev: float, batch_size: float
) -> RowSystem:
    """Returns the linear system of a weight under SGD with noisy mean gradients.

    The mean gradient is `g = (s + stddev y) / batch_size`, where `s` is the weight's sum
    of clipped gradients, and `y` is its entry in a row of `C^-1 Z`.

    Args:
      noise: the matrices of the strategy's noise, from `noise_system`.
      update: the optimizer's update.
      stddev: standard deviation of the noise, from `Plan.noise_stddev`.
      batch_size: the public constant that noisy sums are divided by.

    Raises:
      ValueError: if a state has too many entries.
    """
    beta = update.momentum
    # A step with learning rate `eta` adds `-eta g` times these factors to the weight
    # and, with momentum, to the velocity.
    of_gradient = np.ones([1 if beta == 0.0 else 2])
    first = of_gradient.size
    m = first + noise.shape[1] - 1
    if m > MOST_ENTRIES:
        raise ValueError(f"With momentum, use at most {MOST_ENTRIES - 1} bands.")
    constant, rate = np.zeros([2, len(noise), m, m + 2])
    constant[:, 0, 0], rate[:, 0, 0] = 1.0, -update.weight_decay
    if beta != 0.0:
        of_gradient[0] = 1.0 + beta if update.nesterov else 1.0
        # A step adds the old velocity times these factors to the weight and to the new
        # velocity.
        constant[:, 0, 1] = beta * beta if update.nesterov else beta
        constant[:, 1, 1] = beta
    of_noise = -(stddev / batch_size) * of_gradient[:, None]
    rate[:, :first, first : m + 1] = of_noise * noise[:, :1]
    rate[:, :first, m + 1] = -of_gradient / batch_size
    constant[:, first:, first : m + 1] = noise[:, 1:]
    return RowSystem(constant, rate)
