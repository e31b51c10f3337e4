"""Forks of a process that has loaded TensorFlow; a fork lacks TensorFlow's threads."""

import gc
import os


def fork():
    child = os.fork()
    if child == 0:
        gc.disable()
    return child


def in_a_child(function):
    """Calls a function in a fork, without TensorFlow's threads; returns its status."""
    child = fork()
    if child == 0:
        try:
            function()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
