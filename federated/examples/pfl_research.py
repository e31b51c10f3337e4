"""A simulation in pfl-research 0.6 with correlated noise from a plan.

    python federated/examples/pfl_research.py --rounds 60 --cohort 20

pfl-research only simulates devices, and does not count the participations of a user.
Its sampler "minimize_reuse" selects users in turn, so the min separation is the number
of users divided by the cohort size. With another sampler, the plan's epsilon does not
hold. docs/federated.md describes real devices, which enforce the separation themselves.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

import tf_bandmf
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey

USERS, RECORDS, FEATURES = 2000, 10, 20


class PlannedMechanism(GaussianMechanism):
    """Clips updates to the plan's clip norm, and adds the plan's noise to their sum.

    Args:
      plan: plan with one step per round, and with `MinSep` participation that the
        sampler satisfies.
    """

    def __init__(self, plan: tf_bandmf.Plan) -> None:
        super().__init__(plan.l2_norm_clip, plan.noise_stddev / plan.l2_norm_clip)
        self.plan, self.rounds = plan, 0

    def add_noise(self, statistics: Any, *_: Any, **__: Any) -> tuple[Any, Metrics]:
        """Adds the next round's noise; raises ValueError if no round is left."""
        metadata, weights = statistics.get_weights()
        if self.rounds == 0:
            size = int(statistics.num_parameters)
            self._generator = NoiseGenerator(self.plan.strategy, size)
            key = NoiseKey.from_operating_system()
            self._state = self._generator.initial_state(key)
        if self.rounds == self.plan.num_steps:
            raise ValueError(self._generator.past_the_end)
        row, self._state = self._generator.next(self._state, self.rounds)
        self.rounds += 1
        row = self.plan.noise_stddev * row.numpy()
        parts = np.split(row, np.cumsum([one.size for one in weights])[:-1])
        noise = [part.reshape(one.shape) for part, one in zip(parts, weights)]
        return statistics + statistics.from_weights(0 * metadata, noise), Metrics()


class Logistic(StatefulModel):
    """A logistic regression model in NumPy."""

    def __init__(self) -> None:
        self.weights = np.zeros(FEATURES)

    def get_parameters(self, placeholder: Any = None) -> MappedVectorStatistics:
        del placeholder
        return MappedVectorStatistics({"weights": self.weights.copy()})

    def set_parameters(self, w: MappedVectorStatistics) -> None:
        self.weights = w["weights"].copy()

    def get_model_difference(
        self, other_parameters: MappedVectorStatistics, clone: bool = False
    ) -> MappedVectorStatistics:
        del clone
        change = self.weights - other_parameters["weights"]
        return MappedVectorStatistics({"weights": change})

    def apply_model_update(
        self, statistics: MappedVectorStatistics
    ) -> tuple[Logistic, Metrics]:
        self.weights = self.weights + statistics["weights"]
        return self, Metrics()

    def evaluate(self, *_: Any, **__: Any) -> Metrics:
        return Metrics()

    def save(self, dir_path: str) -> None:
        np.save(f"{dir_path}/weights.npy", self.weights)

    def load(self, dir_path: str) -> None:
        self.weights = np.load(f"{dir_path}/weights.npy")


class Averaging(FederatedAveraging):
    """Federated averaging with local training in NumPy."""

    def train_one_user(
        self, initial_model_state: Any, model: Logistic, user_dataset: Any, _: Any
    ) -> tuple[MappedVectorStatistics, Metrics]:
        x, y = user_dataset.raw_data
        for _step in range(3):
            likely = 1.0 / (1.0 + np.exp(-x @ model.weights))
            model.weights = model.weights + x.T @ (y - likely) / len(x)
        return model.get_model_difference(initial_model_state), Metrics()


def main(arguments: list[str] | None = None) -> float:
    """Trains a model, prints its privacy statement, and returns its accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = parser.parse_args(arguments)
    separation = USERS // options.cohort
    devices = tf_bandmf.MinSep(separation, -(-options.rounds // separation))
    plan = tf_bandmf.plan(
        "auto",
        epsilon=options.epsilon,
        delta=1e-5,
        num_steps=options.rounds,
        sampling=devices,
        unit="one user",
    )
    generator = np.random.default_rng(0)
    truth = generator.normal(size=FEATURES)

    def data_of(user: int) -> Dataset:
        rng = np.random.default_rng([1, user])
        x = rng.normal(size=(RECORDS, FEATURES))
        return Dataset((x, (x @ truth + rng.logistic(size=RECORDS) > 0).astype(float)))

    users = FederatedDataset(
        data_of, get_user_sampler("minimize_reuse", list(range(USERS)))
    )
    mechanism = PlannedMechanism(plan)
    backend = SimulatedBackend(
        users, users, [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)]
    )
    rounds = NNAlgorithmParams(options.rounds, options.rounds, options.cohort, None)
    model = Averaging().run(
        rounds, backend, Logistic(), NNTrainHyperParams(1, 1.0, None)
    )
    x = generator.normal(size=(10_000, FEATURES))
    accuracy = float(np.mean((x @ model.weights > 0) == (x @ truth > 0)))
    print(plan.statement())
    print(f"{mechanism.rounds} rounds, accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
