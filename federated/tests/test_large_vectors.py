"""Work that a few threads share: in order, and nothing goes on behind an error."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
from killing import in_a_child

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

    found = in_chunks(work, numbers, results)
    assert len(found) == sum(-(-size // chunk) for size in sizes)
    assert list(itertools.chain(*found)) == np.concatenate(numbers).tolist()
    for array, result in zip(numbers, results):
        np.testing.assert_array_equal(result[:, 0], -array)


def test_small_vectors_are_put_together(monkeypatch):
    monkeypatch.setattr(large_vectors, "_CHUNK", 10)
    monkeypatch.setattr(large_vectors, "_THREADS", 2)
    begun = []
    monkeypatch.setattr(
        large_vectors,
        "ahead",
        lambda work, items: [
            work(item) for item in items if begun.append(item) is None
        ],
    )
    in_chunks(lambda part: None, [np.zeros(size) for size in (4, 4, 4, 25, 1)])
    sizes = [sum(part.stop - part.start for _, part in some) for some in begun]
    assert sizes == [8, 4, 10, 10, 6]


def test_nothing_goes_on_behind_an_error(monkeypatch):
    monkeypatch.setattr(large_vectors, "_THREADS", 2)
    done = []

    def work(item):
        if item == 0:
            raise KeyError(item)
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(KeyError):
        list(ahead(work, range(40)))
    before = len(done)
    assert before < 39  # what had not begun does not begin
    time.sleep(0.2)
    assert len(done) == before


def test_few_results_are_made_ahead(threads):
    begun = []
    results = ahead(lambda item: begun.append(item) or item, range(20))
    assert begun == []
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(begun) <= 3 + threads
    results.close()
    assert list(ahead(lambda item: -item, range(5))) == [0, -1, -2, -3, -4]


def test_an_error_comes_where_its_result_would(threads):
    results = ahead(lambda item: 1 // (2 - item), range(9))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(large_vectors, "_THREADS", 2)
    here = set(ahead(lambda _: threading.get_ident(), range(9)))
    assert threading.get_ident() not in here

    def child():
        signal.alarm(20)  # threads that are not there would be waited for
        if list(ahead(lambda item: item + 1, range(9))) != list(range(1, 10)):
            os._exit(1)

    assert in_a_child(child) == 0
