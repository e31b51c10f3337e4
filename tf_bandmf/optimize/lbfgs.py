"""L-BFGS of SciPy, with honest outcomes.

SciPy's line search takes an infinite value for the end: where there is no value it is told
of a wall instead, from which it steps back.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import Callable

import numpy as np
import tqdm

from tf_bandmf.accounting.threads import one_thread
from tf_bandmf.optimize.options import Options, unasked_bars
from tf_bandmf.optimize.result import OptimizationResult

# Iterations between two looks at the certificate, and over which the decrease is looked at.
_SEGMENT = 20
# A gap within this many tolerances: from here on each look finds the certificate.
_NEAR = 10.0
# An unasked bar appears after this many seconds.
_QUIET_SECONDS = 2.0
# The most steps of one line search, and a relative decrease that is rounding.
_MOST_TRIALS, _ROUNDING = 60, 1e-13

# Value and gradient at a position, shape [m]; the value is infinite where there is none.
Function = Callable[[np.ndarray], "tuple[float, np.ndarray]"]


class _Ended(Exception):
    """A stopping rule is met."""


class _Run:
    """Where a minimization stands, and whether that is enough."""

    def __init__(
        self,
        function: Function,
        start: np.ndarray,
        options: Options,
        scale: float,
        unit: float,
        gap: Callable[[np.ndarray], float] | None,
    ) -> None:
        self._function, self._options, self._gap = function, options, gap
        self._scale, self._unit = scale, unit
        self.iterations, self.evaluations = 0, 1
        self.converged, self.message = False, ""
        self.found_gap: float | None = None
        self._norm_at_look = math.inf
        self._accept(start, *function(start))
        if not (math.isfinite(self.value) and math.isfinite(self.norm)):
            raise ValueError(
                f"The objective must be finite and > 0 at the start, and so must be its "
                f"gradient; found exp({self.value})."
            )
        self._past = deque([self.value], maxlen=_SEGMENT + 1)
        # By itself a bar appears on a terminal alone.
        unasked = None if unasked_bars.get() else True
        self._bar = tqdm.tqdm(
            total=options.max_iterations,
            desc="L-BFGS",
            file=sys.stderr,
            leave=bool(options.progress),
            delay=0.0 if options.progress else _QUIET_SECONDS,
            disable=unasked if options.progress is None else not options.progress,
        )

    def _accept(self, x: np.ndarray, value: float, gradient: np.ndarray) -> None:
        self.position, self.value = x, float(value)
        self.norm = self._scale * float(np.max(np.abs(gradient), initial=0.0))

    def evaluate(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        """For SciPy, whose first step has length 1: in units of the first step."""
        x = self._unit * y
        value, gradient = self._function(x)
        self.evaluations += 1
        if not (math.isfinite(value) and np.all(np.isfinite(gradient))):
            away = x - self.position
            return self.value + 1.0, 4.0 * self._unit * away / float(away @ away)
        self._last = x, value, gradient
        return value, self._unit * gradient

    def after_iteration(self, y: np.ndarray) -> None:
        """Takes the last position that SciPy asked for, if it does."""
        if np.array_equal(self._unit * y, self._last[0]):
            self._accept(*self._last)
        self.iterations += 1
        self._past.append(self.value)
        self.check()

    def check(self) -> None:
        """Raises _Ended where a rule is met."""
        if self.iterations % _SEGMENT == 0:
            self.look()
        self._bar.set_postfix(
            value=math.exp(self.value), gap=self.found_gap, refresh=False
        )
        self._bar.update(self.iterations - self._bar.n)
        options, decrease = self._options, self._past[0] - self.value
        if self.norm <= options.gradient_tolerance:
            self.end(True, f"gradient norm <= {options.gradient_tolerance:g}")
        if len(self._past) > _SEGMENT and decrease <= options.decrease_tolerance:
            self.end(
                True,
                f"relative decrease <= {options.decrease_tolerance:g} in {_SEGMENT} "
                f"iterations",
            )
        if self.iterations >= options.max_iterations:
            self.end(False, f"stopped after max_iterations = {options.max_iterations}")

    def look(self, is_last: bool = False) -> None:
        """Finds the certified gap, if it may have met its tolerance.

        That takes as long as several iterations, and the gap falls about like the square
        of the gradient.
        """
        if self._gap is None or self.norm == self._norm_at_look:
            return
        tolerance = self._options.gap_tolerance
        if self.found_gap is not None and not is_last:
            expected = self.found_gap * (self.norm / self._norm_at_look) ** 2
            if expected > _NEAR * tolerance:
                return
        self.found_gap, self._norm_at_look = self._gap(self.position), self.norm
        if self.found_gap <= tolerance:
            self.end(True, f"certified gap <= {tolerance:g}")

    def end(self, converged: bool, message: str) -> None:
        self.converged, self.message = converged, message
        raise _Ended

    def close(self) -> None:
        try:
            self.look(is_last=True)
        except _Ended:
            pass
        self._bar.close()


def minimize(
    function: Function,
    start: np.ndarray,
    options: Options,
    scale: float = 1.0,
    first_step: float = 1.0,
    gap: Callable[[np.ndarray], float] | None = None,
) -> OptimizationResult:
    """Minimizes the logarithm of a positive objective.

    Args:
      function: of variables, shape [m], float64.
      start: initial variables, shape [m].
      options: when to stop.
      scale: of the gradient, for its tolerance.
      first_step: length of the first trial step, such that it stays in a region where the
        objective is finite.
      gap: certified relative optimality gap at given variables, if there is one.

    Returns:
      The result; `value` is `exp(function)`. No exception is raised for a lack of
      convergence: look at `converged`.

    Raises:
      ValueError: if the objective is not finite and positive at the start.
    """
    import scipy.optimize  # slow to import

    began = time.perf_counter()
    start = np.array(start, np.float64)
    run = _Run(function, start, options, scale, first_step, gap)
    limits = {
        "maxiter": options.max_iterations + 1,
        "maxfun": 10**9,
        "maxcor": options.pairs(start.size),
        "maxls": _MOST_TRIALS,
        "ftol": 0.0,
        "gtol": 0.0,
    }
    try:
        run.check()
        while True:
            before = run.value
            # Its products are small.
            with one_thread():
                scipy.optimize.minimize(
                    run.evaluate,
                    run.position / first_step,
                    jac=True,
                    method="L-BFGS-B",
                    callback=run.after_iteration,
                    options=limits,
                )
            # No step is lower. Once more without memory, if that may help.
            if not run.value < before - _ROUNDING * abs(before):
                is_small = run.norm <= math.sqrt(options.gradient_tolerance)
                run.end(is_small, "line search failed: no further decrease")
    except _Ended:
        pass
    run.close()
    return OptimizationResult(
        position=run.position,
        converged=run.converged,
        message=run.message,
        value=math.exp(run.value),
        gradient_norm=run.norm,
        num_iterations=run.iterations,
        num_evaluations=run.evaluations,
        seconds=time.perf_counter() - began,
        optimality_gap=run.found_gap,
    )
