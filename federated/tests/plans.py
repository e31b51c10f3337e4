"""Plans for tests of federated runs."""

import dataclasses

import tf_bandmf


def min_sep_plan(mechanism, num_steps, b, k, *, test_seed=None, **options):
    """Makes a plan with b-min-separation, k participations and delta 1e-5."""
    if "epsilon" not in options:
        options.setdefault("noise_multiplier", 1.0)
    options.setdefault("sampling", tf_bandmf.MinSep(b, k))
    plan = tf_bandmf.plan(mechanism, num_steps=num_steps, **{"delta": 1e-5, **options})
    return dataclasses.replace(plan, test_seed=test_seed)
