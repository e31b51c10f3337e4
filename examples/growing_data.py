"""Compares ways to train a model on growing data every week, at one yearly epsilon.

    python examples/growing_data.py

The program prints the table in docs/several-runs.md. The table contains the standard
deviation of the noise per coordinate of the released models, in units of the mean
gradient at clip norm 1: the root mean square over all releases of the year, and the
value for the last release. The program computes these numbers without training a model.
"""

from __future__ import annotations

import math

import numpy as np

import tf_bandmf
from tf_bandmf.accounting import gaussian

# The privacy budget of the whole year.
EPSILON, DELTA = 4.0, 1e-6
# The number of weeks, and the number of steps per week.
WEEKS, STEPS = 52, 40
# The batch size for 20,000 new records per week, or for new data of 20,000 users.
BATCH = 500
# In some rows of the table, each week trains on the records of this many recent weeks.
WINDOW = 4
# The program chooses the best of these strategies, which are given by formulas. A
# strategy from numerical optimization may be even better.
CANDIDATES = ("identity", "lambda_cgd", "bisr:4", "bisr:32", "bsr:8", "bsr:32")
# The noise multiplier of a mechanism that spends the budget of the whole year.
YEAR = gaussian.calibrate_noise_stddev(EPSILON, DELTA)


def errors(plan: tf_bandmf.Plan) -> np.ndarray:
    """Returns the standard deviation of the model's noise after each step, shape [n]."""
    squared = plan.strategy.per_step_squared_error(plan.workload)
    # `noise_stddev` is the standard deviation of the noise at clip norm 1.
    return plan.noise_stddev * np.sqrt(squared)


def best(num_steps: int, uses: int, separation: int, shares: int) -> tuple:
    """Finds the mechanism with the minimum error over the weekly releases.

    Args:
      num_steps: number of steps of the mechanism.
      uses: number of steps in which the mechanism uses the data of one record or user.
      separation: minimum number of steps between two uses of one record or user.
      shares: number of identical mechanisms that share the yearly budget.

    Returns:
      The root mean square of the errors, the mechanism's name, the error of each weekly
      release, and the plan.
    """
    candidates = []
    for name in CANDIDATES:
        family, _, bands = name.partition(":")
        if bands and int(bands) > separation and family != "bisr":
            # The columns of the strategy matrix for the steps of one record or user
            # would overlap, which would increase the sensitivity.
            continue
        plan = tf_bandmf.plan(
            name,
            noise_multiplier=YEAR * math.sqrt(shares),
            delta=DELTA,
            num_steps=num_steps,
            sampling=tf_bandmf.MinSep(separation, uses),
            batch_size=BATCH,
        )
        released = errors(plan)[STEPS - 1 :: STEPS]
        candidates.append((math.sqrt(np.mean(released**2)), name, released, plan))
    return min(candidates, key=lambda each: each[0])


def weekly(shares: int, batches: np.ndarray, continued: bool) -> tuple:
    """Computes the noise in the released models if each week has its own plan.

    Args:
      shares: number of weekly plans that share the yearly budget.
      batches: batch size in each week, shape [WEEKS].
      continued: if True, a week continues from the model of the week before.

    Returns:
      The standard deviation of the noise in each week's model, the mechanism's name,
      and the plan's epsilon.
    """
    _, name, (last,), plan = best(STEPS, 1, STEPS, shares)
    after = last / batches
    # If training continues, each week starts from the previous week's model, which
    # already contains noise.
    if continued:
        after = np.sqrt(np.cumsum(after**2))
    return after, name, plan.epsilon


def whole_year(uses: int, separation: int, batch: int) -> tuple:
    """Computes the noise in the released models if one run spans all weeks.

    Args:
      uses: number of steps that use the data of one record or user.
      separation: minimum number of steps between two uses of one record or user.
      batch: batch size.

    Returns:
      The standard deviation of the noise in each week's model, the mechanism's name,
      and the plan's epsilon.
    """
    _, name, released, plan = best(WEEKS * STEPS, uses, separation, 1)
    return released / batch, name, plan.epsilon


def main() -> list[tuple[str, str, str, float, float, float, str]]:
    """Prints the table, and returns its rows."""
    same = np.full(WEEKS, float(BATCH))
    growing = BATCH * np.arange(1.0, WEEKS + 1.0)
    year = WEEKS * STEPS
    cases = [
        ("record", "new alone", "weekly plans, continued", weekly(1, same, True)),
        ("record", "new alone", "one mechanism", whole_year(1, year, BATCH)),
        (
            "record",
            f"last {WINDOW} weeks",
            "weekly plans, from scratch",
            weekly(WINDOW, WINDOW * same, False),
        ),
        (
            "record",
            f"last {WINDOW} weeks",
            "weekly plans, continued",
            weekly(WINDOW, WINDOW * same, True),
        ),
        (
            "record",
            f"last {WINDOW} weeks",
            "one mechanism",
            whole_year(WINDOW, STEPS, WINDOW * BATCH),
        ),
        (
            "record",
            "all so far",
            "weekly plans, from scratch",
            weekly(WEEKS, growing, False),
        ),
        ("user", "new alone", "weekly plans, continued", weekly(WEEKS, same, True)),
        ("user", "new alone", "one mechanism", whole_year(WEEKS, STEPS, BATCH)),
    ]
    rows = []
    print(
        f"(epsilon, delta) = ({EPSILON:g}, {DELTA:g}), {WEEKS} weeks of {STEPS} steps"
    )
    for unit, data, how, (after, name, epsilon) in cases:
        rms, last = float(np.sqrt(np.mean(after**2))), float(after[-1])
        rows.append((unit, data, how, epsilon, 1e3 * rms, 1e3 * last, name))
        print(
            f"| {unit} | {data} | {how} | {epsilon:.2f} | {1e3 * rms:.1f} | "
            f"{1e3 * last:.1f} | `{name}` |"
        )
    return rows


if __name__ == "__main__":
    main()
