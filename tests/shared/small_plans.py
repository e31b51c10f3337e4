"""Plans of few examples, as most tests need them."""

import dataclasses

import tf_bandmf


def small_plan(mechanism, num_examples, batch_size, epochs, **more):
    """A plan for so many examples; of epsilon 4 at delta 1e-5 unless told otherwise."""
    sizes = {"num_examples": num_examples, "batch_size": batch_size, "epochs": epochs}
    if "noise_multiplier" not in more:
        sizes["epsilon"] = 4.0
    return planned(mechanism, **{"delta": 1e-5, **sizes, **more})


def planned(mechanism="auto", *, confidence=None, **arguments):
    """`tf_bandmf.plan`, and what is changed of a plan once it is made."""
    changes = {
        name: arguments.pop(name)
        for name in ("test_seed", "generator")
        if name in arguments
    }
    plan = tf_bandmf.plan(mechanism, **arguments)
    if confidence is not None:
        plan = plan.bounded(confidence=confidence)
    return dataclasses.replace(plan, **changes) if changes else plan
