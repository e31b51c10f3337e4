"""The noise of rows that are brought up to date when they are read: its law.

A row of a table that no example touches still gets noise in every step. Its state `x` (its
weights, their velocity under momentum, and what the mechanism remembers of earlier
normals) is a linear system, the same for all rows and columns,

    x[t+1] = F[t] x[t] + G[t] z[t] + H[t] s[t],

with fresh standard normals `z[t]` and the row's sum `s[t]` of clipped gradients. As long as
`s` is zero, the state at `t` is, given that at `l`,

    x[t] = P(l, t) x[l] + L(l, t) g,      P(l, t) = F[t-1] ... F[l],
    L L^T = Q(l, t) = sum over l <= i < t of  P(i+1, t) G[i] G[i]^T P(i+1, t)^T,

with `g` fresh standard normals, as many as `x` has entries. That is the exact law: `x` is
a Markov process, so that drawing it at the times at which it is looked at, each time from
its law given the time before, is the same as having drawn all of it. The times may depend
on everything that was drawn before. `docs/lazy-noise.md` has the proof, and what follows
for what is released.

`P` and `Q` are the same for all rows. `Jumps` (in `lazy_tables`) keeps them for each `l`
since the last release, and takes them from `t` to `t+1` by

    P(l, t+1) = F[t] P(l, t),      Q(l, t+1) = F[t] Q(l, t) F[t]^T + G[t] G[t]^T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tf_bandmf import matrices

# Entries of a state: each is as large as the table, and a jump draws as many normals.
MOST_ENTRIES = 9


class NoiseSystem(NamedTuple):
    """`y[t] = direct[t] z[t] + past[t] m[t]`, `m[t+1] = carry[t] m[t] + enter[t] z[t]`.

    Float64; the first axis is the step, or has length 1 if all steps are alike. `m[0] = 0`.

    Attributes:
      direct: shape [n or 1].
      past: shape [n or 1, k].
      carry: shape [n or 1, k, k].
      enter: shape [n or 1, k].
    """

    direct: np.ndarray
    past: np.ndarray
    carry: np.ndarray
    enter: np.ndarray


class LinearUpdate(NamedTuple):
    """What SGD does with a mean gradient `g` at the learning rate `eta`.

    `theta -= eta weight_decay theta`; without momentum `theta -= eta g`; with it
    `v = momentum v - eta g`, then `theta += v`, or with Nesterov's look-ahead
    `theta += momentum v - eta g`. As `keras.optimizers.SGD`.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class RowSystem(NamedTuple):
    """`F = F0 + eta F1`, `G = G0 + eta G1`, `H = eta H1` of the module, by step.

    Float64; the first axis is the step, or has length 1. The first entry of a state is
    the weight.

    Attributes:
      transition: F0, shape [n or 1, m, m].
      transition_rate: F1, the same shape.
      noise: G0, shape [n or 1, m].
      noise_rate: G1, the same shape.
      gradient_rate: H1, shape [m].
    """

    transition: np.ndarray
    transition_rate: np.ndarray
    noise: np.ndarray
    noise_rate: np.ndarray
    gradient_rate: np.ndarray

    @property
    def entries(self) -> int:
        """m, of a state."""
        return int(self.gradient_rate.size)


def noise_system(matrix: matrices.LowerTriangular) -> NoiseSystem:
    """The rows of `C^-1 Z` as a linear system.

    Args:
      matrix: C.

    Raises:
      ValueError: if it remembers too much for states to be kept for each row.
    """
    streaming = matrix.streaming()
    if isinstance(streaming, matrices.GeometricSums):
        memory = int(streaming.decays.size)
    elif isinstance(streaming, (matrices.Regeneration, matrices.ForwardSubstitution)):
        memory = streaming.terms - 1
    else:
        raise ValueError(f"No linear system for {type(streaming).__name__}.")
    if memory + 1 > MOST_ENTRIES:
        raise ValueError(
            f"Each row of a table would keep {memory} numbers for each of its weights: "
            f"at most {MOST_ENTRIES - 1} are kept. Use at most {MOST_ENTRIES} bands, as in "
            f"'bisr:{MOST_ENTRIES}', or 'lambda_cgd'."
        )
    if isinstance(streaming, matrices.GeometricSums):
        direct, past = np.ones(1), streaming.scales[None]
        carry, enter = np.diag(streaming.decays)[None], np.ones([1, memory])
    else:
        rows = np.asarray(streaming.rows(), np.float64)
        count = len(rows)
        carry = np.zeros([count, memory, memory])
        carry[:, range(1, memory), range(memory - 1)] = 1.0
        enter = np.zeros([count, memory])
        if isinstance(streaming, matrices.Regeneration):
            # m = (z[t-1], ..., z[t-p+1])
            direct, past = rows[:, 0], rows[:, 1:]
            enter[:, :1] = 1.0
        else:
            # m = (y[t-1], ..., y[t-b+1])
            direct, past = 1.0 / rows[:, 0], -rows[:, 1:] / rows[:, :1]
            carry[:, :1] = past[:, None]
            enter[:, :1] = direct[:, None]
    if streaming.row_scale is not None:
        scale = np.asarray(streaming.row_scale, np.float64)
        direct, past = scale * direct, scale[:, None] * past
        carry = np.broadcast_to(carry, [len(scale), memory, memory])
        enter = np.broadcast_to(enter, [len(scale), memory])
    return NoiseSystem(direct, past, carry, enter)


def row_system(
    noise: NoiseSystem, update: LinearUpdate, stddev: float, batch_size: float
) -> RowSystem:
    """The state of a row under noisy SGD, `g = (s + stddev y) / batch_size`.

    Args:
      noise: of the strategy.
      update: of the optimizer.
      stddev: of the noise, `Plan.noise_stddev`.
      batch_size: the public constant.

    Raises:
      ValueError: if a state has too many entries.
    """
    count, memory = noise.past.shape
    first = 1 if update.momentum == 0.0 else 2
    m = first + memory
    if m > MOST_ENTRIES:
        raise ValueError(f"A state has at most {MOST_ENTRIES} entries, found {m}.")
    transition, transition_rate = np.zeros([2, count, m, m])
    entering, entering_rate = np.zeros([2, count, m])
    gradient_rate = np.zeros([m])
    # What `-eta g` and the old velocity count in weight and velocity.
    of_gradient = np.ones([first])
    if update.momentum != 0.0:
        beta = update.momentum
        if update.nesterov:
            of_gradient[0] = 1.0 + beta
        transition[:, 0, 1] = beta * beta if update.nesterov else beta
        transition[:, 1, 1] = beta
    transition[:, 0, 0] = 1.0
    transition_rate[:, 0, 0] = -update.weight_decay
    size = stddev / batch_size
    for entry in range(first):
        weight = of_gradient[entry]
        transition_rate[:, entry, first:] = -size * weight * noise.past
        entering_rate[:, entry] = -size * weight * noise.direct
        gradient_rate[entry] = -weight / batch_size
    transition[:, first:, first:] = noise.carry
    entering[:, first:] = noise.enter
    return RowSystem(
        transition, transition_rate, entering, entering_rate, gradient_rate
    )
