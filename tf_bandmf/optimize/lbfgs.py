"""Runs TensorFlow Probability's L-BFGS in float64, with explicit reports of failures.

TFP's line search gives up on badly scaled variables. Therefore the minimized function
is `scale * log(objective / objective at the start)`, where callers choose `scale` such
that second derivatives are of order one. After a failed line search, the optimizer is
restarted at its current position, without the correction pairs of earlier iterations.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from tf_bandmf.optimize.options import SEGMENT, Options
from tf_bandmf.optimize.result import OptimizationResult

# The number of iterations after which graph optimization saves more time than it takes.
_AS_TRACED = 300

# The certified gap is computed only if it is expected to be at most this many times its
# tolerance.
_NEAR = 10.0


def tfp_optimizer() -> Any:
    """Imports TensorFlow Probability lazily, and returns `tfp.optimizer`.

    With TensorFlow 2.16 and later, TensorFlow Probability needs tf-keras, but does not
    install it.

    Raises:
      ImportError: if TensorFlow Probability or a required tf-keras is not installed.
    """
    try:
        import tensorflow_probability as tfp

        # Reading this attribute loads a module, which may raise ImportError.
        return tfp.optimizer
    except ImportError as error:
        raise ImportError(
            f"Optimizing a strategy needs TensorFlow Probability, and tf-keras with "
            f"the same minor version as TensorFlow {tf.__version__}. To install both, "
            f"run pip install tf-bandmf[keras]. Strategies in closed form (identity, "
            f"lambda_cgd, bsr, bisr) need neither of these packages."
        ) from error


class _Certificate:
    """The certified gap of an optimization.

    Computing the gap takes as long as several iterations, so it is computed only if it
    may be near or below its tolerance. The gap decreases approximately like the square
    of the gradient, so the gradient predicts it.

    Args:
      gap: function that computes the gap at a position; None if there is no certificate.
      tolerance: the optimization may end if the gap is at most this value.

    Attributes:
      value: the last computed gap.
    """

    def __init__(
        self, gap: Callable[[np.ndarray], float] | None, tolerance: float
    ) -> None:
        self._gap, self._tolerance = gap, tolerance
        self._norm = math.inf
        self.value: float | None = None

    @property
    def is_met(self) -> bool:
        return self.value is not None and self.value <= self._tolerance

    def look(self, position: tf.Tensor, norm: float, is_last: bool = False) -> None:
        """Computes the gap at a position, unless the gradient predicts a large gap.

        Args:
          position: the position.
          norm: maximum absolute entry of the gradient at the position.
          is_last: True to compute the gap whatever the gradient predicts.
        """
        if self._gap is None or norm == self._norm:
            return
        if self.value is not None and not is_last:
            expected = self.value * (norm / self._norm) ** 2
            if expected > _NEAR * self._tolerance:
                return
        self.value, self._norm = self._gap(position.numpy()), norm


def value_and_gradient(
    loss: Callable[[tf.Tensor], tf.Tensor], size: int, by_xla: bool = False
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a compiled function that computes `loss` and its gradient.

    TFP's optimizer calls this function many times in its graph. Because the function is
    not inlined, it is traced and optimized only once.

    Args:
      loss: function that maps variables, shape [size], float64, to a scalar.
      size: number of variables.
      by_xla: True to compile with XLA, which takes one or two seconds.
    """

    def evaluate(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(position)
            value = loss(position)
        gradient = tape.gradient(
            value, position, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return value, gradient

    function = tf.function(
        evaluate,
        autograph=False,
        jit_compile=by_xla or None,
        experimental_attributes={"_noinline": True},
    )
    # This is a concrete function because TensorFlow warns about retracing if a few
    # calls each trace a `tf.function`.
    concrete: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    concrete = function.get_concrete_function(tf.TensorSpec([size], tf.float64))
    return concrete


@contextlib.contextmanager
def _as_traced() -> Iterator[None]:
    """Returns a context in which functions run without graph optimization.

    Graph optimization of the optimizer's thousands of operations takes a second, but
    saves only half a millisecond per iteration. (The objective is a separate function,
    whose graph is always optimized; see `value_and_gradient`.)
    """
    here = context.context()
    before = here.function_call_options
    config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    here.function_call_options = context.FunctionCallOptions(
        executor_type=before.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        here.function_call_options = before


class Minimizer:
    """Minimizes the log of a positive objective; can be used for several minimizations.

    The first call of `minimize` traces the TensorFlow functions, which takes seconds.
    Later calls reuse the traced functions.

    Args:
      log_loss: differentiable function that maps variables, shape [m], float64, to a
        scalar. It may read `tf.Variable`s that change between minimizations.
      size: number of variables, m.
      by_xla: True to compile `log_loss` with XLA, which is worthwhile for hundreds of
        evaluations that take milliseconds each.
    """

    def __init__(
        self,
        log_loss: Callable[[tf.Tensor], tf.Tensor],
        size: int,
        by_xla: bool = False,
    ) -> None:
        self._optimizer = tfp_optimizer()
        # The number of correction pairs is limited to save memory, because TensorFlow
        # Probability makes several copies of the pairs during an update.
        self._pairs = int(np.clip(50_000_000 // max(size, 1), 3, 10))
        self._evaluate = value_and_gradient(log_loss, size, by_xla)
        # The `tf.function` of `_steps`. Tracing it needs a state of the optimizer, so
        # it is None until `minimize` has the first state.
        self._advance: Callable[..., Any] | None = None

    def _steps(
        self,
        state: Any,
        limit: tf.Tensor,
        factor: tf.Tensor,
        offset: tf.Tensor,
        tolerance: tf.Tensor,
    ) -> Any:
        """Minimizes `factor * (log_loss - offset)`, and returns the optimizer's state.

        Args:
          state: state of the optimizer from which the run continues, or a tensor with
            the initial position.
          limit: the iteration at which the run ends.
          factor: factor that makes second derivatives of order one.
          offset: value of `log_loss` at the initial position.
          tolerance: the run also ends if no absolute entry of the gradient exceeds
            this value.
        """

        def scaled(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            value, gradient = self._evaluate(position)
            return factor * (value - offset), factor * gradient

        at_start = isinstance(state, tf.Tensor)
        return self._optimizer.lbfgs_minimize(
            scaled,
            initial_position=state if at_start else None,
            previous_optimizer_results=None if at_start else state,
            num_correction_pairs=self._pairs,
            tolerance=tolerance,
            max_iterations=limit,
        )

    def minimize(
        self,
        start: np.ndarray,
        scale: float,
        options: Options,
        gap: Callable[[np.ndarray], float] | None = None,
    ) -> OptimizationResult:
        """Minimizes `log_loss`, starting from given variables.

        Args:
          start: initial variables, shape [m].
          scale: factor that makes second derivatives of `log_loss` of order one.
          options: stopping rules.
          gap: function that returns the certified relative gap at given variables, or
            None.

        Returns:
          The result; `value` is `exp(log_loss)`. A failure to converge raises no
          exception: check `converged`.

        Raises:
          ValueError: if the objective is not finite and positive at the start.
        """
        began = time.perf_counter()
        initial = tf.constant(start, tf.float64)
        del start
        offset, gradient = self._evaluate(initial)
        if not (np.isfinite(float(offset)) and np.all(np.isfinite(gradient))):
            raise ValueError(
                f"The objective must be finite and > 0 at the start, and its gradient "
                f"must be finite, but found log(objective) = {float(offset)}."
            )

        scaling = (
            tf.constant(scale, tf.float64),
            offset,
            tf.constant(options.gradient_tolerance, tf.float64),
        )
        state = self._steps(initial, tf.constant(0), *scaling)
        del initial
        # The number of iterations before the last restart, and the value at the last
        # restart.
        earlier, restart_value = 0, math.inf
        certificate = _Certificate(gap, options.gap_tolerance)
        converged, message = False, ""
        last_done, last_value = 0, math.inf
        while True:
            value = float(state.objective_value)
            done = earlier + int(state.num_iterations)
            gradient = state.objective_gradient.numpy()
            norm = float(np.max(np.abs(gradient), initial=0.0))
            certificate.look(state.position, norm)
            objective = math.exp(float(offset) + value / scale)
            if certificate.is_met:
                break
            is_measured = done == last_done + SEGMENT
            decrease = (last_value - value) / scale if is_measured else math.inf
            end = options.judge_progress(norm, decrease, done)
            if end is not None:
                converged, message = end
                break
            last_done, last_value = done, value
            if bool(state.failed) or bool(state.converged):
                # L-BFGS stopped although no stopping rule of `options` is met: its last
                # step failed, or did not change the value. Restart it, unless the value
                # has not decreased since the last restart.
                if not value < restart_value:
                    message = "line search failed: no further decrease"
                    break
                restart_value = value
                earlier = done
                state = self._steps(state.position, tf.constant(0), *scaling)
            limit = min(done + SEGMENT, options.max_iterations) - earlier
            operands = (state, tf.constant(limit, tf.int32), *scaling)
            if self._advance is None:
                traced = tf.function(self._steps, autograph=False)
                self._advance = traced.get_concrete_function(*operands)
            with _as_traced() if done < _AS_TRACED else contextlib.nullcontext():
                state = self._advance(*operands)
        certificate.look(state.position, norm, is_last=True)
        if certificate.is_met:
            converged = True
            message = f"certified gap <= {options.gap_tolerance:g}"
        return OptimizationResult(
            position=state.position.numpy(),
            converged=converged,
            message=message,
            value=objective,
            gradient_norm=norm,
            num_iterations=done,
            seconds=time.perf_counter() - began,
            optimality_gap=certificate.value,
        )
