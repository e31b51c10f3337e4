"""Audits a Keras training run in which some of the caller's examples are canaries."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.audit import AuditResult, evaluate
from tf_bandmf.keras.clipping.losses.regularizers import regularization_gradients
from tf_bandmf.keras.optimizer.private import private_optimizer_of

# The audit builds the strategy's dense matrix, so it allows at most this many steps.
_MOST_STEPS = 4096


@dataclasses.dataclass(frozen=True)
class RunAudit:
    """Results of an audited run: how much it revealed about its canaries.

    Attributes:
      black_box: result from the losses of the final model only.
      white_box: result from the noisy gradients of all steps; None if the plan is
        amplified.
    """

    black_box: AuditResult
    white_box: AuditResult | None

    @property
    def contradicts(self) -> bool:
        """True if one of the audits contradicts the plan's epsilon."""
        results = (self.black_box, self.white_box)
        return any(result.contradicts for result in results if result is not None)

    def __str__(self) -> str:
        """Returns a report of several lines with the results of both audits."""
        none = "none: the plan's guarantee assumes that the batches are secret."
        white = self.white_box or none
        return f"Black box: {self.black_box}\nWhite box: {white}"


def audit_run(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    canaries: Any,
    seed: int | None = None,
    confidence: float = 0.95,
) -> RunAudit:
    """Trains a private model for its whole plan, and audits that run.

    Each canary is an example of the training set; a fair coin decides whether it takes
    part. Canaries that do not take part get sample weight 0, as in zero-out adjacency.
    The white-box auditor knows the model, the data and the strategy, and sees the noisy
    gradients of all steps. This auditor subtracts the contributions of the other
    examples, and uses the strategy's matched filter for each canary's clipped gradients
    to guess which canaries took part. The black-box auditor guesses from the losses of
    the canaries under the final model. The bounds are those of one-run audits
    (`audit.evaluate`). They are sharper if there are more canaries, and if the
    canaries' gradients are larger and differ more from one another. Examples with wrong
    labels are good canaries.

    An audit takes about as much time as three runs, and stores the noisy gradients of
    all steps in memory. The run spends its budget like any other run. WARNING: the result
    of the audit is not private, because it is computed from the training data without
    noise.

    Args:
      model: a private model, compiled with a PrivateOptimizer, untrained. Layers that draw
        random numbers weaken the audit, but do not make it wrong.
      x: training inputs: array or nested structure of arrays, as for `plan.batches`.
      y: targets, in the same form as x, or None.
      canaries: indices of the examples that are canaries, integers, shape [m], m >= 2,
        without repetition.
      seed: seed of the coins; None for a seed from the operating system.
      confidence: confidence of each of the two audits.

    Returns:
      The black-box audit; and the white-box audit, unless the plan is amplified by
      sampling. The guarantee of an amplified plan assumes that the steps of an example
      are secret, but the white-box auditor would know them. To audit the mechanism of
      an amplified plan, use `audit.GradientCanaries`.

    Raises:
      TypeError: if the model has no PrivateOptimizer, or its plan makes no batches
        (`MinSep`).
      ValueError: if canaries are not distinct examples, the run has begun, or the plan has
        more than 4096 steps.
    """
    optimizer = private_optimizer_of(model)
    plan = optimizer.plan
    if not plan.participation.has_schedule:
        raise TypeError(
            "A plan with MinSep makes no batches. Use audit.GradientCanaries instead."
        )
    taken, most = optimizer.steps_taken, _MOST_STEPS
    if taken or plan.num_steps > most:
        raise ValueError(
            f"The audit needs a new run of at most {most} steps, but this run has "
            f"{plan.num_steps} steps, and has already taken {taken} of them."
        )
    data = tf.nest.map_structure(np.asarray, (x, y))
    size = len(tf.nest.flatten(data)[0])
    chosen = np.asarray(canaries)
    are_examples = (
        np.issubdtype(chosen.dtype, np.integer)
        and chosen.ndim == 1
        and len(np.intersect1d(chosen, np.arange(size))) == chosen.size >= 2
    )
    if not are_examples:
        raise ValueError(
            f"canaries must be at least two distinct indices of the {size} examples, but "
            f"found {canaries!r}."
        )
    rng = np.random.default_rng(seed)
    included = np.zeros(chosen.size, bool)
    # Fair coins decide which canaries take part. They are tossed again until at least one
    # canary takes part and at least one does not.
    while included.all() or not included.any():
        included = rng.random(chosen.size) < 0.5
    observer = _Observer(model, data, chosen, included)
    observer.train()
    white = None if plan.participation.is_amplified else observer.white_box(confidence)
    return RunAudit(observer.black_box(confidence), white)


class _Observer:
    """Trains the model, and records the data that the auditor sees."""

    def __init__(self, model: Any, data: Any, canaries: Any, included: Any) -> None:
        self._model, self._plan, self._data = model, model.optimizer.plan, data
        self._canaries, self._included = canaries, included
        # `_released` contains the noisy sum of each step minus its expected sum.
        # `_gradients` maps each canary to pairs: a step in which the canary occurs, and
        # the canary's clipped gradient at this step.
        self._released: list[np.ndarray] = []
        self._gradients: dict[int, list[tuple[int, np.ndarray]]] = {
            int(example): [] for example in canaries
        }
        self._clipped = tf.function(self._clip, autograph=False, reduce_retracing=True)

    def train(self) -> None:
        """Takes all steps of the plan."""
        model, plan = self._model, self._plan
        x, y = self._data
        size = len(tf.nest.flatten(x)[0])
        weights = np.ones(size, np.float32)
        weights[self._canaries[~self._included]] = 0.0
        schedule = model.begin_run(plan.batches(x, y, weights))
        for step, batch in enumerate(schedule.dataset()):
            if plan.participation.is_amplified:
                model.optimizer.apply_noisy(model.private_gradients(batch))
                continue
            # The scales multiply the coordinates of gradients before clipping.
            scales = model.optimizer.scales()
            factors = plan.expected_batch_size * (
                1.0 if scales is None else _flat(scales)
            )
            expected = self._expected(step, schedule.example_indices(step))
            expected += factors * _flat(regularization_gradients(model))
            noisy = model.private_gradients(batch)
            self._released.append(factors * _flat(noisy.gradients) - expected)
            model.optimizer.apply_noisy(noisy)

    def _expected(self, step: int, indices: np.ndarray) -> np.ndarray:
        """Records a step's canary gradients; returns the expected sum of all gradients.

        The auditor does not know which canaries took part. Therefore the expected sum
        contains all gradients of other examples, and half of each canary's gradient.
        """
        is_canary = np.isin(indices, self._canaries)
        expected = self._sum(indices, (~is_canary).astype(np.float32))
        for example in indices[is_canary]:
            gradient = self._sum(np.array([example]), np.ones(1, np.float32))
            self._gradients[int(example)].append((step, gradient.astype(np.float32)))
            expected += 0.5 * gradient
        return expected

    def _sum(self, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
        rows = tf.nest.map_structure(lambda part: part[indices], self._data)
        return _flat(self._clipped(*rows, weights)[0])

    def _clip(self, x: Any, y: Any, weights: Any) -> tuple[Any, tf.Tensor]:
        # Clips gradients as the training step does.
        scales = self._model.optimizer.scales()
        clipped = self._model._programs().clipped((x, y, weights), scales)
        return clipped.sums, clipped.losses

    def white_box(self, confidence: float) -> AuditResult:
        """Returns the white-box audit, from the scores of the matched filter.

        Let `C` be the strategy's matrix. For one canary, let `g` be its clipped
        gradients, and `y` the noisy sums minus the expected contributions of all other
        examples. If the canary takes part, it adds the signal `S = C g / noise_stddev`
        to `W = C y / noise_stddev`, whose noise is white. The score of the canary is
        its log-likelihood ratio `<S, W - S / 2>`.
        """
        dense = self._plan.strategy.matrix.to_dense()
        gram = dense.T @ dense / self._plan.noise_stddev**2
        filtered = gram @ np.stack(self._released)
        scores = np.zeros(len(self._canaries))
        squares = np.zeros(len(self._canaries))
        for number, noted in enumerate(self._gradients.values()):
            if not noted:
                continue
            steps = [step for step, _ in noted]
            added = np.stack([gradient for _, gradient in noted]).astype(np.float64)
            scores[number] = np.sum(added * filtered[steps])
            squares[number] = np.sum(gram[np.ix_(steps, steps)] * (added @ added.T))
        return self._evaluated(scores, confidence, float(np.sqrt(squares.mean())))

    def black_box(self, confidence: float) -> AuditResult:
        """Returns the black-box audit, from the canaries' losses under the final model.

        The losses of included canaries are likely smaller than those of the others.
        """
        rows = tf.nest.map_structure(lambda part: part[self._canaries], self._data)
        ones = np.ones(len(self._canaries), np.float32)
        losses = self._clipped(*rows, ones)[1].numpy().astype(np.float64)
        scores = -np.nan_to_num(losses, nan=np.inf, posinf=np.finfo("f8").max)
        return self._evaluated(scores, confidence, None)

    def _evaluated(
        self, scores: np.ndarray, confidence: float, signal: float | None
    ) -> AuditResult:
        return evaluate(
            scores,
            self._included,
            delta=self._plan.delta,
            confidence=confidence,
            signal=signal,
            is_gaussian=not self._plan.participation.is_amplified,
            claimed_epsilon=self._plan.epsilon,
        )


def _flat(gradients: Any) -> np.ndarray:
    parts = [np.ravel(gradient).astype(np.float64) for gradient in gradients]
    return np.concatenate(parts)
