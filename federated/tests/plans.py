"""Plans for tests of federated runs."""

from small_plans import planned

import tf_bandmf


def min_sep_plan(mechanism, num_steps, b, k, **options):
    """Makes a plan with b-min-separation, k participations and delta 1e-5."""
    if "epsilon" not in options:
        options.setdefault("noise_multiplier", 1.0)
    options.setdefault("sampling", tf_bandmf.MinSep(b, k))
    return planned(mechanism, num_steps=num_steps, **options)
