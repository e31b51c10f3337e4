"""`ahead` starts new threads in a forked process, and returns results in order."""

import os
import signal
import threading

from children import finish, start

from tf_bandmf_federated import large_vectors
from tf_bandmf_federated.large_vectors import ahead


def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(large_vectors, "_THREADS", 2)
    here = set(ahead(lambda _: threading.get_ident(), range(9)))
    assert threading.get_ident() not in here

    def child(say):
        # Without the alarm, a child process without threads would wait forever.
        signal.alarm(20)
        if list(ahead(lambda item: item + 1, range(9))) != list(range(1, 10)):
            os._exit(1)

    code, _, error = finish(*start(child))
    assert code == 0, error
