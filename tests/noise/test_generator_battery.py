"""Statistical tests of the generators' bits, and of normals computed from them.

PractRand and TestU01 are not available in Python, so `generator_battery` implements
those tests of NIST SP 800-22 and TestU01 that simple generators fail. Seeds are fixed.
The probability of a false alarm in any test of any stream is below 1e-6.
"""

import generator_battery as battery
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.philox import philox

KEYS = NoiseKey.for_testing(11).step_keys(256)
QUARTER = battery.SIZE // 4


def counters(first, count):
    return tf.constant(np.arange(first, first + count, dtype=np.uint64))


def one_step():
    """Returns the random words of one step, in the order of their counters."""
    return np.stack(philox(tf.constant(KEYS[0]), counters(0, QUARTER)), 1).ravel()


def many_steps():
    """Returns random words of 256 steps, with the same counters but different keys."""
    each = QUARTER // 256
    parts = [np.stack(philox(tf.constant(key), counters(0, each)), 1) for key in KEYS]
    return np.stack(parts, 1).ravel()


def far_counters():
    """Returns random words in a range of counters whose lower 32 bits overflow."""
    first = 2**32 - QUARTER // 2
    return np.stack(philox(tf.constant(KEYS[1]), counters(first, QUARTER)), 1).ravel()


def of_normals():
    """Returns the leading bits of the uniform numbers Phi(z) for float32 normals z."""
    z = noise.standard_normals(
        tf.constant(KEYS[2]), 2 * battery.SIZE, jit_compile=False
    )
    uniform = special.ndtr(np.asarray(z, np.float64))
    high = (uniform * 2.0**16).astype(np.uint32)
    return (high[0::2] << np.uint32(16)) | high[1::2]


def step_keys():
    """Returns the 32-bit words of many steps' keys, which BLAKE2b derives."""
    keys = NoiseKey.for_testing(12).step_keys(QUARTER)
    return np.ascontiguousarray(keys).view(np.uint32).ravel()


STREAMS = {
    f.__name__: f for f in (one_step, many_steps, far_counters, of_normals, step_keys)
}
ALPHA = 1e-6 / (len(STREAMS) * len(battery.ALL))


@pytest.mark.attack(
    "The generator's bits and normals",
    tried="Eleven tests of NIST SP 800-22 and TestU01: on words of one step, of 256 "
    "steps and of large counters, on step keys, and on quantiles of the normals.",
    area="noise",
)
@pytest.mark.invariant(8)
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.slow_cases("one_step", "many_steps", "far_counters")
def test_what_is_drawn_passes_the_battery(stream):
    words = STREAMS[stream]().astype(np.uint32)
    assert words.shape == (battery.SIZE,)
    p_values = {name: test(words) for name, test in battery.ALL.items()}
    assert min(p_values.values()) >= ALPHA, p_values
