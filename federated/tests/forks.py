"""Forks of a process that has TensorFlow, whose threads are not in the fork."""

import gc
import os


def fork():
    child = os.fork()
    if child == 0:
        gc.disable()
    return child


def in_a_child(function):
    """The wait status of a forked process; it must not use what TensorFlow had begun."""
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
