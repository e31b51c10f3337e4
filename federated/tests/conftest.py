"""TFF's worker processes must not outlive the tests: they keep stdout open."""

import atexit

import psutil


def _end_workers() -> None:
    for child in psutil.Process().children(recursive=True):
        if "worker_binary" in child.name():
            child.terminate()


atexit.register(_end_workers)
