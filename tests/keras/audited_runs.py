"""Trains and audits a linear model on canaries whose gradients are orthogonal."""

import keras
import numpy as np
from small_models import make_private_model
from small_plans import planned

import tf_bandmf.keras

NUM, WIDTH = 300, 256


def problem():
    """Returns 300 examples; the first 256 are canaries with orthogonal gradients."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM, WIDTH)).astype(np.float32)
    x[:WIDTH] = 3.0 * np.eye(WIDTH)
    return x, np.ones((NUM, 1), np.float32)


def plan_of(mechanism="bsr:4", **changes):
    arguments = {"epsilon": 8.0, "delta": 1e-5, "num_examples": NUM, "batch_size": 75}
    return planned(mechanism, epochs=3, **{**arguments, **changes}, test_seed=1)


def linear(plan, inner=None, clipping="flat", **changes):
    changes = {"use_bias": False, "kernel_initializer": "zeros", **changes}
    dense = keras.layers.Dense(1, **changes)
    return make_private_model(
        plan,
        inner or keras.optimizers.SGD(0.5),
        model=[keras.Input((WIDTH,)), dense],
        clipping=clipping,
        loss="mse",
    )


def audited(plan, confidence=0.95, **changes):
    """Trains the linear model for the whole plan, and returns an audit of the run."""
    model, canaries = linear(plan, **changes), np.arange(WIDTH)
    options = {"canaries": canaries, "seed": 0, "confidence": confidence}
    actual = tf_bandmf.keras.audit.audit_run(model, *problem(), **options)
    assert model.optimizer.steps_taken == plan.num_steps
    return actual
