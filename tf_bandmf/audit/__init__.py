"""Audits: lower bounds on the epsilon of a mechanism, computed from its outputs.

An audit adds canaries (special examples) to a run. For each canary, a fair coin decides
whether it takes part. From the outputs of the run, the audit guesses which canaries
took part. If many guesses are right, the lower bound on epsilon is large. A bound above
the claimed epsilon shows that the mechanism does not have the claimed privacy. A bound
below the claimed epsilon does not prove the claim. The closer the bound is to the
claimed epsilon, the smaller the faults that the audit can detect.

    canaries = audit.GradientCanaries.for_plan(plan, num_parameters=4096, seed=0)
    released = ...  # noisy sums of `canaries.sums()`, as the mechanism releases them
    print(canaries.audit(released))

`tf_bandmf.keras.audit.audit_run` audits your own Keras run. The package
`tf_bandmf.audit` does not need TensorFlow.
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
