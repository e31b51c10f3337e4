"""Keras tests run as if alone in their process."""

import pathlib
import sys

import keras
import pytest

from tf_bandmf.keras.run import admission

# Makes `hub_models`, `largest_contribution` and `same_weights` importable.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

# The seed is for layers that test files make when they are imported.
keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def as_if_alone():
    """Forgets earlier runs, since tests share a process and data, and fixes the seed.

    With random weights and masks, a rectifier's input could be so near to 0 that
    rounding would decide its gradient.
    """
    admission.forget()
    keras.utils.set_random_seed(0)
