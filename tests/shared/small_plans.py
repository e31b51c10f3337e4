"""Plans for small data sets, which most tests use."""

import dataclasses

import tf_bandmf
from tf_bandmf.sampling import BatchSchedule
from tf_bandmf.sampling.examples import Examples


def small_plan(mechanism, num_examples, batch_size, epochs, **more):
    """Makes a plan for data of this size; `more` are arguments of `planned`."""
    sizes = {"num_examples": num_examples, "batch_size": batch_size, "epochs": epochs}
    return planned(mechanism, **{**sizes, **more})


def planned(
    mechanism="auto", *, test_seed=None, generator="philox", confidence=None, **use
):
    """Makes a plan, by default with epsilon 4 at delta 1e-5.

    Args:
      mechanism: the mechanism for `tf_bandmf.plan`.
      test_seed: the test seed of the finished plan.
      generator: the noise generator of the finished plan.
      confidence: if not None, the finished plan gets a bound with this confidence.
      use: further arguments of `tf_bandmf.plan`.
    """
    budget = {} if "noise_multiplier" in use else {"epsilon": 4.0}
    plan = tf_bandmf.plan(mechanism, **{"delta": 1e-5, **budget, **use})
    plan = plan if confidence is None else plan.bounded(confidence=confidence)
    return dataclasses.replace(plan, test_seed=test_seed, generator=generator)


def schedule_for(participation, num_steps, plan_id, *data, padded=False, **more):
    """Makes a batch schedule for data, from a participation instead of a plan."""
    examples = Examples(participation.num_examples, *data, **more)
    return BatchSchedule(participation, num_steps, plan_id, examples, padded)
