"""Tests of 64-bit words that a TensorFlow graph reads from the operating system."""

import numpy as np
import tensorflow as tf
from scipy import stats

from tf_bandmf_federated.tff.secret_words import fresh_words


def test_every_run_of_one_graph_draws_anew():
    traced = tf.function(lambda: fresh_words([1000, 2]))
    words = np.concatenate([traced().numpy() for _ in range(5)])
    assert len(np.unique(words)) == 10_000


def test_bytes_are_uniform_and_positions_independent():
    # The bytes differ in every run, so each check allows a false alarm rate of 1e-9.
    words = fresh_words([40_000]).numpy()
    octets = words.view(np.uint8).reshape(-1, 8)
    counts = np.bincount(octets.ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-9
    bits = np.unpackbits(octets, axis=1).astype(np.float64) - 0.5
    correlations = 4 * bits.T @ bits / len(bits)
    largest = np.abs(correlations[np.triu_indices(64, 1)]).max()
    # Each of the 2016 correlations is approximately normal with variance 1 / 40,000.
    assert largest < stats.norm.isf(1e-9 / 2 / 2016) / np.sqrt(40_000)
    # As a control, bytes without line feeds and carriage returns must fail the check.
    plain = octets[~np.isin(octets, (10, 13))]
    lacking = np.bincount(plain, minlength=256)
    assert stats.chisquare(lacking).pvalue < 1e-9
