"""Audits: lower bounds on the epsilon of a mechanism, from what it released.

An audit puts canaries into a run: a fair coin decides for each canary whether it takes
part. From what the run released, the audit guesses which canaries took part. If too many
guesses are right, the lower bound on epsilon is above the claimed epsilon, which
contradicts the plan. A bound below the claimed epsilon does not prove the claim; the
closer the two are, the sharper the audit was.

    canaries = audit.GradientCanaries.for_plan(plan, num_parameters=4096, seed=0)
    released = ...  # noisy sums of `canaries.sums()`, as the mechanism gives them
    print(canaries.audit(released))

`tf_bandmf.keras.audit.audit_run` audits your own Keras run. This package does not need
TensorFlow.
"""

from tf_bandmf.audit.bounds import epsilon_from_guesses as epsilon_from_guesses
from tf_bandmf.audit.bounds import epsilon_from_rates as epsilon_from_rates
from tf_bandmf.audit.bounds import mu_from_guesses as mu_from_guesses
from tf_bandmf.audit.bounds import mu_from_rates as mu_from_rates
from tf_bandmf.audit.canaries import GradientCanaries as GradientCanaries
from tf_bandmf.audit.canaries import worst_pattern as worst_pattern
from tf_bandmf.audit.evaluation import AuditResult as AuditResult
from tf_bandmf.audit.evaluation import LowerBound as LowerBound
from tf_bandmf.audit.evaluation import evaluate as evaluate
