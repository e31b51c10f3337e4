"""Batch sizes, samplings and mechanisms, by the predicted noise-to-signal ratio.

Closed forms, and noise up to a percent: enough to compare runs, not to plan one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Callable

import numpy as np

from tf_bandmf import workloads
from tf_bandmf.analysis import error
from tf_bandmf.participation import NAMED
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import calibration, learning_rates
from tf_bandmf.strategies import registry
from tf_bandmf.workloads import Workload

# Closed forms that stand for their samplings: of the fractions of a percent that a
# search gains, the choice of a batch size depends on none.
_MECHANISMS = {
    "fixed-order": ("identity", "bisr:4", "bisr:16", "bisr:32"),
    "shuffled": ("identity", "bisr:4", "bisr:16", "bisr:32"),
    "poisson": ("identity",),
    "cyclic-poisson": ("identity", "bsr:4", "bsr:16"),
    "cyclic-fixed-size": ("identity", "bsr:4", "bsr:16"),
    "balls-in-bins": ("identity", "lambda_cgd:0.9", "bisr:4"),
}
# The search for a batch size goes down from the largest one, and ends where the least
# noise so far is exceeded by this factor, or the run has more steps than that.
_HOPELESS = 1.5
_MOST_STEPS = 20_000
_MOST_SIZES = 30
# Steps of the run with the largest batches.
_LARGEST_RUN = 200_000
# Smaller batches gain nothing without privacy either: Masters and Luschi, 2018,
# arXiv:1804.07612.
_SMALLEST_BATCH = 32


@dataclasses.dataclass(frozen=True)
class RunSetting:
    """One way to use the data, and the noise that it has for a budget.

    Attributes:
      sampling, mechanism: by name, as `tf_bandmf.plan` takes them.
      batch_size, epochs, num_steps: of the run.
      expected_batch_size: B, by which the noisy sums are divided.
      rmse: of the noisy models per coordinate and unit of clip norm, up to a percent: as
        `Plan.rmse`, on sums of gradients.
      noise_batch_ratio: noise standard deviation in a mean gradient, per unit of clip
        norm, of a DP-SGD run with the same RMSE ("noise-batch ratio", McKenna et al.,
        2025, arXiv:2501.18914).
      noise_to_signal: see `noise_to_signal`, at alignment 1.
      learning_rate: per unit of clip norm; see `learning_rates.per_clip_unit`.
      has_few_steps: whether the learning rate is limited by something else than noise:
        the run has too few steps to use how little noise it has.
    """

    sampling: str
    mechanism: str
    batch_size: int
    epochs: int
    num_steps: int
    expected_batch_size: float
    rmse: float
    noise_batch_ratio: float
    noise_to_signal: float
    learning_rate: float
    has_few_steps: bool


def known_samplings() -> tuple[str, ...]:
    """The names of the samplings that can be compared in seconds."""
    return tuple(_MECHANISMS)


def noise_to_signal(
    workload: Workload, rmse: float, batch_size: float, num_parameters: int
) -> float:
    """Norm of the noise in the models, as a part of what they learned.

    sqrt(d) RMSE / (B r): the root mean square norm of a model's noise, divided by that of
    its signal if the mean of the clipped gradients had norm 1 (the clip norm) and one
    direction all the time; r is the root mean square of the row sums of A. Divided by
    the real mean norm ("alignment") it is that of a real run. It falls with the batch
    size until noise is that of all steps together and saturates (Sander, Stock and
    Sablayrolles, 2023, arXiv:2210.03403; De et al., 2022, arXiv:2204.13650); that the
    accumulated noise is what decides between batch sizes at a fixed number of epochs is
    measured by Rehn et al., 2025, arXiv:2510.20616.

    Args:
      workload: A, Toeplitz.
      rmse: per coordinate and unit of clip norm, on sums of gradients.
      batch_size: B, by which sums are divided.
      num_parameters: d.
    """
    rows = np.cumsum(workload.first_column())
    signal = math.sqrt(float(np.mean(np.square(rows))))
    return math.sqrt(num_parameters) * rmse / (batch_size * signal)


def noise_batch_ratio(workload: Workload, rmse: float, batch_size: float) -> float:
    """That of the DP-SGD run with the same RMSE; see `RunSetting`."""
    squares = np.cumsum(np.square(workload.first_column()))
    return rmse / (batch_size * math.sqrt(float(np.mean(squares))))


@dataclasses.dataclass(frozen=True)
class Scan:
    """Compares settings for one data set and budget.

    Attributes:
      num_examples, num_parameters: m and d.
      epsilon, delta: the budget.
      momentum: of SGD.
      fan_in: inputs of a unit, added up over the layers.
    """

    num_examples: int
    num_parameters: int
    epsilon: float
    delta: float
    momentum: float
    fan_in: float

    def batch_sizes(
        self,
        sampling: str,
        epochs: int,
        largest: int,
        tell: Callable[[str], None],
        names: Sequence[str] | None = None,
    ) -> list[RunSetting]:
        """The best mechanism for the largest batch, and for powers of two below it.

        With `names` of these; by default of those that stand for the sampling.

        Raises:
          ValueError: if even the run with the largest batches has too many steps.
        """
        found: list[RunSetting] = []
        size, least = largest, min(_SMALLEST_BATCH, largest)
        while size >= least and len(found) < _MOST_SIZES:
            steps = epochs * -(-self.num_examples // size)
            if found and steps > _MOST_STEPS:
                break
            if steps > _LARGEST_RUN:
                raise ValueError(
                    f"Runs of at most {_LARGEST_RUN:,} steps can be compared, found "
                    f"{float(min(steps, 10**300)):g} for epochs = "
                    f"{float(min(epochs, 10**300)):g}, num_examples = "
                    f"{float(self.num_examples):g} and max_batch_size = {size}. Use "
                    f"larger batches or fewer epochs."
                )
            tell(f"{sampling}, batches of {size}")
            tried = list(self.mechanisms(sampling, size, epochs, names))
            if tried:
                found.append(min(tried, key=lambda one: one.noise_to_signal))
                last = found[-1].noise_to_signal
                enough = [one for one in found if not one.has_few_steps]
                if any(last > _HOPELESS * one.noise_to_signal for one in enough):
                    break
            size = 2 ** (math.ceil(math.log2(size)) - 1) if size > 1 else 0
        return found

    def mechanisms(
        self,
        sampling: str,
        batch_size: int,
        epochs: int,
        names: Sequence[str] | None = None,
    ) -> Iterator[RunSetting]:
        """Mechanisms that fit a sampling."""
        scheme = Scheme(sampling, self.num_examples, batch_size, epochs)
        workload = workloads.momentum_sgd(scheme.num_steps, self.momentum)
        for name in _MECHANISMS[sampling] if names is None else names:
            family, options = registry.parse(name)
            bands = options.get("bands", 1)
            if bands > scheme.num_steps:
                continue
            if scheme.is_cyclic and bands > scheme.largest_cycle:
                continue
            participation = scheme.participation(bands if scheme.is_cyclic else None)
            strategy = registry.build_strategy(
                family, workload, participation, **options
            )
            try:
                accountant = calibration.accountant_for(strategy, participation)
                noise = accountant.rough_noise_stddev(self.epsilon, self.delta)
            except ValueError:
                # Few draws see nothing; what was named may not fit the sampling.
                if NAMED[sampling].is_simulated or names is not None:
                    continue
                raise
            per_step = strategy.per_step_squared_error(workload)
            rmse = error.root_mean_squared_error(per_step) * noise
            divisor = participation.expected_batch_size() or float(batch_size)
            yield self.setting(scheme, name, workload, rmse, divisor)

    def setting(
        self,
        scheme: Scheme,
        mechanism: str,
        workload: Workload,
        rmse: float,
        divisor: float,
    ) -> RunSetting:
        """The setting of a run with an RMSE, whose sums are divided by `divisor`."""
        rate, is_limited = learning_rates.per_clip_unit(
            rmse, divisor, self.fan_in, self.momentum
        )
        return RunSetting(
            sampling=scheme.sampling,
            mechanism=mechanism,
            batch_size=scheme.batch_size,
            epochs=scheme.epochs,
            num_steps=scheme.num_steps,
            expected_batch_size=divisor,
            rmse=rmse,
            noise_batch_ratio=noise_batch_ratio(workload, rmse, divisor),
            noise_to_signal=noise_to_signal(
                workload, rmse, divisor, self.num_parameters
            ),
            learning_rate=rate,
            has_few_steps=is_limited,
        )
