"""Results from several threads keep their order, and work stops after an error."""

import itertools
import os
import signal
import threading

import numpy as np
import pytest
from forks import in_a_child

from tf_bandmf_federated import large_vectors
from tf_bandmf_federated.large_vectors import ahead, in_chunks


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr(large_vectors, "_THREADS", request.param)
    return request.param


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_every_number_comes_once_and_in_order(threads, chunk, monkeypatch):
    monkeypatch.setattr(large_vectors, "_CHUNK", chunk)
    sizes = [3, 0, 9, 1, 1, 1, 20]
    numbers = [np.arange(size) + 100 * i for i, size in enumerate(sizes)]
    results = [np.zeros([size, 1]) for size in sizes]

    def work(part, out):
        out[:] = -part
        return part.tolist()

    actual = in_chunks(work, numbers, results)
    assert len(actual) == sum(-(-size // chunk) for size in sizes)
    assert list(itertools.chain(*actual)) == np.concatenate(numbers).tolist()
    for array, result in zip(numbers, results):
        np.testing.assert_array_equal(result[:, 0], -array)


def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(large_vectors, "_THREADS", 2)
    here = set(ahead(lambda _: threading.get_ident(), range(9)))
    assert threading.get_ident() not in here

    def child():
        signal.alarm(20)  # if broken, the fork waits for threads that it lacks
        if list(ahead(lambda item: item + 1, range(9))) != list(range(1, 10)):
            os._exit(1)

    assert in_a_child(child) == 0
