"""Isolates Keras tests that share a process."""

import pathlib
import sys

import keras
import pytest

from tf_bandmf.keras.run import admission

# Makes `hub_models`, `largest_contribution` and `same_weights` importable.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

# The seed of layers that test files create at import time.
keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def as_if_alone():
    """Forgets earlier runs on the shared data, and fixes the seed.

    With unseeded weights and masks, the input of a ReLU could be so close to 0 that
    rounding would decide its gradient.
    """
    admission.forget()
    keras.utils.set_random_seed(0)
