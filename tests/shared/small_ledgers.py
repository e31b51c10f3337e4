"""Plans that are bound to a ledger, and the budget that a data set has spent."""

import hashlib

from small_plans import small_plan


def bound_plan(ledger=None, mechanism="lambda_cgd:0.9", dataset="patients", **changes):
    """Makes a plan, and binds it to a data set if a ledger is given."""
    budget = {"epsilon": 1.0, "delta": 1e-6}
    plan = small_plan(mechanism, 1200, 40, 2, **{**budget, **changes})
    return plan if ledger is None else ledger.bind(plan, dataset)


def run_name(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def spent(ledger, dataset="patients"):
    """Returns the epsilon or rho that was spent on a data set."""
    return ledger.balance(dataset).spent
