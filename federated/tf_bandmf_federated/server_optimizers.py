"""Server optimizers in NumPy: SGD, Adam and Yogi.

They follow Reddi et al., 2021, arXiv:2003.00295, Algorithm 2. Each step's direction is
the noisy mean of the updates, so everything that an optimizer computes from it is
post-processing. The noise of different rounds cancels as planned only if the weights
are a linear function of the directions, as with SGD and momentum. With Adam and Yogi,
correlated noise is a heuristic.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tf_bandmf.accounting.checks import check_nonnegative, check_positive

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class ServerOptimizer(abc.ABC):
    """Base class of server optimizers, which turn the clients' updates into a step.

    A step is a pure function of the weights, the optimizer's state and the direction,
    which is the noisy mean of the updates.

    Args:
      learning_rate: factor > 0 by which steps are multiplied.
    """

    learning_rate: float = 1.0
    slots: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            check_nonnegative(field.name, value)
            if field.name.startswith(("beta", "momentum")) and value >= 1.0:
                raise ValueError(f"{field.name} must be below 1, found {value}.")
        check_positive("learning_rate", self.learning_rate)

    def initial_state(self, weights: Sequence[np.ndarray]) -> list[Arrays]:
        """Returns `self.slots` lists of zero arrays with the shapes of the weights."""
        return [[np.zeros_like(w) for w in weights] for _ in range(self.slots)]

    @abc.abstractmethod
    def apply(
        self, weights: Arrays, direction: Arrays, state: list[Arrays]
    ) -> tuple[Arrays, list[Arrays]]:
        """Returns the weights and the optimizer's state after a step in `direction`.

        All arrays are float32. `weights` and `state` stay unchanged, but the results may
        overwrite `direction`.
        """

    def get_config(self) -> dict[str, Any]:
        """Returns the name and hyperparameters, which a restart must not change."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """SGD, or FedAvgM, which is SGD with momentum.

    The updates of the moment m and the weights w are `m <- momentum m + direction` and
    `w <- w + learning_rate m`.

    Args:
      learning_rate: factor > 0 by which steps are multiplied.
      momentum: decay rate of m, in [0, 1). With 0, the default, this is plain SGD.
    """

    momentum: float = 0.0
    slots: ClassVar[int] = 1

    def initial_state(self, weights: Sequence[np.ndarray]) -> list[Arrays]:
        """Returns one list of zero arrays, or an empty list if there is no momentum."""
        return super().initial_state(weights) if self.momentum else []

    def apply(
        self, weights: Arrays, direction: Arrays, state: list[Arrays]
    ) -> tuple[Arrays, list[Arrays]]:
        rate, moments = np.float32(self.learning_rate), direction
        if self.momentum:
            beta = np.float32(self.momentum)
            moments = [beta * m + g for m, g in zip(state[0], direction)]
        # The results overwrite `direction`, because a large model may leave no memory
        # for further arrays.
        for weight, moment, after in zip(weights, moments, direction):
            np.add(weight, np.multiply(rate, moment, after), after)
        return direction, [moments] if self.momentum else []


@dataclasses.dataclass(frozen=True)
class ServerAdam(ServerOptimizer):
    """FedAdam as published, without bias correction.

    Args:
      learning_rate: factor > 0 by which steps are multiplied.
      beta_1: decay rate of the first moment, in [0, 1).
      beta_2: decay rate of the second moment, in [0, 1).
      epsilon: tau in arXiv:2003.00295, which is added to the square root of the second
        moment.
    """

    learning_rate: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    epsilon: float = 1e-3
    slots: ClassVar[int] = 2

    def apply(
        self, weights: Arrays, direction: Arrays, state: list[Arrays]
    ) -> tuple[Arrays, list[Arrays]]:
        first = [
            np.float32(self.beta_1) * m + np.float32(1.0 - self.beta_1) * g
            for m, g in zip(state[0], direction)
        ]
        second = [self._second(v, g * g) for v, g in zip(state[1], direction)]
        rate, tau = np.float32(self.learning_rate), np.float32(self.epsilon)
        after = [
            w + rate * m / (np.sqrt(v) + tau) for w, m, v in zip(weights, first, second)
        ]
        return after, [first, second]

    def _second(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        return np.float32(self.beta_2) * v + np.float32(1.0 - self.beta_2) * square


@dataclasses.dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi, which is FedAdam with another rule for the second moment v.

    With the direction g, the rule is `v <- v - (1 - beta_2) g^2 sign(v - g^2)`.
    """

    def _second(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        return v - np.float32(1.0 - self.beta_2) * square * np.sign(v - square)
