"""Tests that `fit` works with every registered participation that has a schedule."""

import keras
import numpy as np
import pytest
from same_weights import assert_same, flat
from small_models import make_private_model
from small_plans import planned

from tf_bandmf.participation import PARTICIPATIONS

N = 8
SCHEDULED = sorted(kind for kind, cls in PARTICIPATIONS.items() if cls.has_schedule)


@pytest.mark.slow_cases(but=["b_min_sep_sampling"])
@pytest.mark.parametrize("kind", SCHEDULED)
def test_a_run_takes_the_steps_of_its_plan_and_no_other_batches(kind):
    participation = PARTICIPATIONS[kind].example(N)
    arguments = {"delta": 1e-4, "num_steps": N, "sampling": participation}
    plan = planned("identity", noise_multiplier=1.0, **arguments, test_seed=0)
    other = planned("identity", noise_multiplier=1.5, **arguments, test_seed=0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(participation.num_examples, 5)).astype(np.float32)
    y = rng.integers(0, 3, len(x)).astype(np.int32)
    model = make_private_model(plan, inner=keras.optimizers.SGD(0.1))
    before = flat(model)
    with pytest.raises(Exception, match="another plan"):
        model.fit(other.batches(x, y), verbose=0)
    assert_same([before], model)
    model.fit(plan.batches(x, y, padded=True), steps_per_epoch=N, verbose=0)
    assert model.optimizer.steps_taken == N
    assert np.all(np.isfinite(flat(model))) and np.any(flat(model) != before)
