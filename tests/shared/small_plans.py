"""Plans of few examples, as most tests need them."""

import tf_bandmf


def small_plan(mechanism, num_examples, batch_size, epochs, **more):
    """A plan for so many examples; of epsilon 4 at delta 1e-5 unless told otherwise."""
    sizes = {"num_examples": num_examples, "batch_size": batch_size, "epochs": epochs}
    if "noise_multiplier" not in more:
        sizes["epsilon"] = 4.0
    return tf_bandmf.plan(mechanism, **{"delta": 1e-5, **sizes, **more})
