"""Comparison of lists of arrays, such as the weights of models."""

import numpy as np


def assert_same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
