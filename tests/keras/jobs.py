"""How tests train what users bring: at epsilon = 8, with known noise."""

import keras
import numpy as np
import tensorflow as tf
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras


def _rows(x):
    return len(tf.nest.flatten(x)[0]) if not isinstance(x, tf.data.Dataset) else None


def trained(
    model,
    x,
    y,
    loss,
    optimizer,
    epochs=10,
    batch_size=64,
    plan=None,
    batches=None,
    fit=None,
    clipping="flat",
    **options,
):
    """A private model, with what a user would hear of its records.

    Args:
      optimizer: of Keras, or the rate of SGD.
      plan, batches, fit: further arguments of these functions.
      **options: of `compile`.
    """
    batches = batches or {}
    settings = {"epsilon": 8, "delta": 1e-4, "epochs": epochs, "test_seed": 0}
    settings |= {"batch_size": batch_size, "num_examples": _rows(x)}
    if "users" in batches:
        users = len(np.unique(batches["users"]))
        settings |= {"num_examples": users, "unit": "one user"}
    settings |= plan or {}
    plan = planned("bisr:8", **settings).reserve(counts=0.01)
    tf_bandmf.keras.make_private(model)
    if isinstance(optimizer, float):
        optimizer = keras.optimizers.SGD(optimizer)
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        optimizer, plan, clipping=clipping, additional_run=True
    )
    model.compile(optimizer, loss, **options)
    model.fit(plan.batches(x, y, **batches), epochs=epochs, verbose=0, **(fit or {}))
    counts = model.private_counts()
    assert abs(counts.bad) < 6 * counts.noise
    return model
