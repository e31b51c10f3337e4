"""Plans of few examples, as most tests need them."""

import dataclasses

import tf_bandmf
from tf_bandmf.sampling import BatchSchedule
from tf_bandmf.sampling.examples import Examples


def small_plan(mechanism, num_examples, batch_size, epochs, **more):
    """A plan for so many examples; of epsilon 4 at delta 1e-5 unless told otherwise."""
    sizes = {"num_examples": num_examples, "batch_size": batch_size, "epochs": epochs}
    if "noise_multiplier" not in more:
        sizes["epsilon"] = 4.0
    return planned(mechanism, **{"delta": 1e-5, **sizes, **more})


def planned(
    mechanism="auto", *, test_seed=None, generator="philox", confidence=None, **use
):
    """`tf_bandmf.plan`, and what is changed of a plan once it is made."""
    plan = tf_bandmf.plan(mechanism, **use)
    plan = plan if confidence is None else plan.bounded(confidence=confidence)
    return dataclasses.replace(plan, test_seed=test_seed, generator=generator)


def schedule_for(participation, num_steps, plan_id, *data, padded=False, **more):
    """Batches of these data under a participation, without a plan."""
    examples = Examples(participation.num_examples, *data, **more)
    return BatchSchedule(participation, num_steps, plan_id, examples, padded)
