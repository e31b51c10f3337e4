"""Tests `Plan.memory`, which returns the memory that the noise needs."""

import pytest
from small_plans import planned

import tf_bandmf
from tf_bandmf.participation import MinSep


def plan_of(mechanism, num_steps=100):
    return planned(mechanism, num_steps=num_steps, sampling=MinSep(num_steps))


@pytest.mark.parametrize(
    ("parameters", "devices", "vectors"),
    [(4_000_000, 1, 64), (128_000_000, 64, 128), (4_000_000, 64, 4096)],
    ids=["example 3.1", "example 3.2", "example 3.3"],
)
def test_scaling_up_examples(parameters, devices, vectors):
    # The numbers of arXiv:2405.15913 are rounded: 64 vectors of 16 MB count as 1 GB.
    gigabyte = 64 * 16_000_000
    actual = tf_bandmf.bands_that_fit(gigabyte, parameters // devices)
    assert actual == vectors + 1
    needed = plan_of(f"bsr:{actual}", 5000).memory(parameters // devices)
    assert needed.buffer_bytes == gigabyte
