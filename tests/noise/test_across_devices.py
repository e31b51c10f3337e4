"""Noise is computed only by operations that round the same way on every device."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import weighted_normals

# Operations that are exact or rounded according to IEEE 754. Compilers may still fuse a
# multiplication and an addition.
ROUNDED = {"add", "multiply", "subtract", "sqrt", "convert"}
# Operations that move or select floats, or create them from bits.
MOVED = {
    "bitcast-convert", "broadcast", "concatenate", "constant", "copy", "gather",
    "get-tuple-element", "parameter", "reduce", "reshape", "select", "slice", "transpose",
    "tuple", "while", "call", "dynamic-update-slice", "dynamic-slice", "custom-call",
    "iota", "real", "imag",
}  # fmt: skip


def float_operations(function, *arguments):
    """Returns the names of XLA's operations with float results, before optimization."""
    compiled = tf.function(function, jit_compile=True, autograph=False)
    ir = compiled.experimental_get_compiler_ir(*arguments)
    text = ir(stage="hlo", device_name="/device:CPU:0")
    return set(re.findall(r"= \(?f(?:32|64)\[.*?\)? ([a-z][\w\-]*)\(", text))


@pytest.mark.parametrize("generator", ["philox", "chacha20"])
@pytest.mark.slow_cases("chacha20*")
def test_no_device_has_a_function_of_its_own_in_the_noise(generator):
    keys = tf.constant(NoiseKey.for_testing(0).step_keys(2, generator))
    operations = float_operations(
        lambda keys, weights: weighted_normals(keys, weights, 5000), keys, tf.ones([2])
    )
    assert {"multiply", "sqrt"} <= operations <= ROUNDED | MOVED


def test_a_device_has_functions_of_its_own_in_the_normals_of_tensorflow():
    # As a control, the check rejects TensorFlow's own normal random numbers: they use
    # logarithms, which each type of device approximates differently.
    operations = float_operations(lambda: tf.random.stateless_normal([100], [1, 2]))
    assert not operations <= ROUNDED | MOVED


def test_noise_drawn_again_by_another_compiler_is_the_same_to_rounding():
    # If a run is resumed on another type of device, a different compiler regenerates
    # the normals of earlier steps.
    keys = tf.constant(NoiseKey.for_testing(1).step_keys(1)[0])
    here = noise.standard_normals(keys, 50_000, jit_compile=True).numpy()
    there = noise.standard_normals(keys, 50_000, jit_compile=False).numpy()
    assert np.max(np.abs(here - there)) < 4e-6
    assert np.corrcoef(here, there)[0, 1] > 1.0 - 1e-12
