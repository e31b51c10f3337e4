"""Audits: lower bounds on the epsilon of a mechanism, from what it released.

An audit puts canaries into a run, each or not by a fair coin, and guesses from what the
run released which ones took part. If guesses are right too often, they contradict the
plan's statement: the lower bound on epsilon is then above the claimed epsilon. A bound
below it proves nothing by itself; how far below says how sharp the audit was.

    canaries = audit.GradientCanaries.for_plan(plan, num_parameters=4096, seed=0)
    released = ...  # noisy sums of `canaries.sums()`, as the mechanism gives them
    print(canaries.audit(released))

`tf_bandmf.keras.audit_run` audits your own Keras run. Nothing here needs TensorFlow.
"""

from tf_bandmf.audit.bounds import (
    epsilon_from_guesses,
    epsilon_from_rates,
    mu_from_guesses,
    mu_from_rates,
)
from tf_bandmf.audit.canaries import GradientCanaries, worst_pattern
from tf_bandmf.audit.evaluation import AuditResult, LowerBound, evaluate

__all__ = [
    "AuditResult",
    "GradientCanaries",
    "LowerBound",
    "epsilon_from_guesses",
    "epsilon_from_rates",
    "evaluate",
    "mu_from_guesses",
    "mu_from_rates",
    "worst_pattern",
]
