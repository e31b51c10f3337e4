"""The mechanisms that `shakespeare.py` compares at the same (epsilon, delta)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import language_model
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
import tf_bandmf_federated

TITLES = {
    "none": "clipped, without noise",
    "identity": "DP-FedAvg",
    "tree": "TFF's tree aggregation",
    "lambda_cgd": "λCGD",
    "bisr": "BISR",
    "banded": "banded MF",
}
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings that all compared mechanisms share.

    Attributes:
      epsilon, delta: privacy guarantee for all contributions of a device.
      rounds: number of rounds.
      clients_per_round: number of devices per round.
      min_separation: minimum number of rounds from one participation of a device to its
        next one.
      l2_norm_clip: maximum l2 norm of a device's update.
      client_learning_rate: learning rate of the devices' SGD.
      server_learning_rate: learning rate of the server's SGD with momentum.
    """

    epsilon: float
    delta: float
    rounds: int
    clients_per_round: int
    min_separation: int
    l2_norm_clip: float
    client_learning_rate: float
    server_learning_rate: float

    # Caching a method keeps every `Setting` in memory until the program ends. This is
    # harmless here.
    @functools.cache  # noqa: B019
    def plan(
        self, mechanism: str | tf_bandmf.Strategy, epsilon: float | None = None
    ) -> tf_bandmf.Plan:
        """Returns a mechanism's plan, by default for the epsilon of this setting."""
        if mechanism == "banded":
            mechanism = f"banded:{self.min_separation}"
        return tf_bandmf.plan(
            mechanism,
            epsilon=self.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            num_steps=self.rounds,
            sampling=tf_bandmf.MinSep(self.min_separation),
            batch_size=self.clients_per_round,
            workload=f"sgd:momentum={MOMENTUM}",
            l2_norm_clip=self.l2_norm_clip,
        )

    def client_optimizer(self) -> tff.learning.optimizers.Optimizer:
        return tff.learning.optimizers.build_sgdm(self.client_learning_rate)

    def server_optimizer(self) -> tff.learning.optimizers.Optimizer:
        return tff.learning.optimizers.build_sgdm(
            self.server_learning_rate, momentum=MOMENTUM
        )


@dataclasses.dataclass(frozen=True)
class Contender:
    """A mechanism in the comparison, with its plan and its learning process.

    Attributes:
      name: the mechanism's key in `TITLES`.
      plan: the plan that gives the privacy guarantee. The mechanism "none" has no
        guarantee, and its plan only determines which devices take part.
      process: TFF's learning process, which trains with this mechanism.
      data: function that converts a device's tagged data set to the process's input.
      rmse: RMSE of the noise in each model weight if the server learning rate is 1:
        the square root of the noise variance, averaged over all rounds.
    """

    name: str
    plan: tf_bandmf.Plan
    process: tff.learning.templates.LearningProcess
    data: Callable[[tf.data.Dataset], tf.data.Dataset]
    rmse: float


def build(name: str, setting: Setting) -> Contender:
    """Builds the contender for the mechanism `name`, which is a key of `TITLES`."""
    if name in ("none", "tree"):
        return _of_tff(name, setting)
    plan = setting.plan(name)
    process = tf_bandmf_federated.build_fed_avg(
        language_model.model_fn,
        plan,
        setting.client_optimizer(),
        setting.server_optimizer(),
    )
    rmse = plan.rmse() * plan.l2_norm_clip / setting.clients_per_round
    return Contender(name, plan, process, lambda d: d, rmse)


def _of_tff(name: str, setting: Setting) -> Contender:
    """Builds a contender from TFF's own process, which does not check participation."""
    plan = setting.plan("tree" if name == "tree" else "identity")
    if name == "tree":
        aggregator = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
            node_noise_multiplier(plan),
            setting.clients_per_round,
            setting.l2_norm_clip,
            [tf.TensorSpec(w.shape) for w in language_model.build().trainable_weights],
        )
        rmse = tree_noise(plan) / setting.clients_per_round
    else:
        aggregator, rmse = (
            tff.aggregators.clipping_factory(
                setting.l2_norm_clip, tff.aggregators.UnweightedMeanFactory()
            ),
            0.0,
        )
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        language_model.model_fn,
        setting.client_optimizer(),
        setting.server_optimizer(),
        model_aggregator=aggregator,
    )
    return Contender(
        name,
        plan,
        process,
        lambda dataset: dataset.map(lambda element: element["example"]),
        rmse,
    )


def node_noise_multiplier(plan: tf_bandmf.Plan) -> float:
    """Returns TFF's noise multiplier for the same (epsilon, delta) as a "tree" plan.

    TFF's tree has one node for each complete dyadic interval of rounds. A node releases
    the sum over its interval with independent noise, and TFF's estimators use only
    these sums. The l2 norm of the change that one device makes to all sums is the
    sensitivity of the strategy "tree" under the plan's participation
    (`tf_bandmf.matrices.dyadic_tree`). Therefore a node's noise needs the standard
    deviation that the plan's noise has before it is correlated. This holds for both of
    TFF's estimators.
    """
    return plan.noise_stddev / plan.l2_norm_clip


def tree_noise(plan: tf_bandmf.Plan) -> float:
    """Returns the RMS noise in the models under TFF's bottom-up Honaker estimator.

    The estimator averages the noisy sum of a node of level l with the sums of the nodes
    below it. The variance of this estimate is 2^l / (2^(l+1) - 1) times the variance of
    one node's noise. The estimate for the first t rounds adds the estimates of several
    nodes, one for each 1 in the binary representation of t. The models apply momentum
    to the differences of these estimates.
    """
    n = plan.num_steps
    # Entry [t, j] is the weight of node j's noise in the estimate for rounds 0 to t.
    estimates = np.zeros((n, 2 * n))
    numbers: dict[tuple[int, int], int] = {}

    def add(row: np.ndarray, level: int, start: int, weight: float) -> None:
        """Adds a node's estimate to `row`: an average of the node and its children."""
        share = 2.0**level / (2.0 ** (level + 1) - 1.0)
        row[numbers.setdefault((level, start), len(numbers))] += weight * share
        if level:
            half = 2 ** (level - 1)
            for child in (start, start + half):
                add(row, level - 1, child, weight * (1.0 - share))

    for prefix in range(1, n + 1):
        start = 0
        for level in reversed(range(prefix.bit_length())):
            if prefix >> level & 1:
                add(estimates[prefix - 1], level, start, 1.0)
                start += 2**level
    residuals = np.diff(estimates, axis=0, prepend=0.0)
    models = plan.workload.to_dense() @ residuals
    return plan.noise_stddev * float(np.sqrt(np.mean(np.sum(models**2, axis=1))))
