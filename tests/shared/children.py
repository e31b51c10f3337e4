"""Runs programs, and forks child processes that send lines and may be killed."""

import gc
import os
import signal
import subprocess
import sys
import traceback


def printed(*arguments, **options):
    """Runs Python with these arguments; returns its output, or fails if Python fails."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def fork():
    """Forks this process. In the child, garbage collection is off.

    Collecting garbage may need TensorFlow's threads, which the child does not have.
    """
    child = os.fork()
    if child == 0:
        gc.disable()
    return child


def start(function):
    """Forks a child that calls `function(say)`; returns its id and its output pipe."""
    read_end, write_end = os.pipe()
    child = fork()
    if child == 0:
        os.close(read_end)
        say = lambda text: os.write(write_end, f"{text}\n".encode())  # noqa: E731
        try:
            function(say)
        except BaseException:
            say(f"! {traceback.format_exc()[-3000:]}")
            os._exit(1)
        os._exit(0)
    os.close(write_end)
    return child, read_end


def finish(child, read_end):
    """Waits for a child to end; returns its exit code, its lines and its traceback.

    The exit code is negative if a signal ended the child. An incomplete last line, from
    a child that was killed while it wrote, is left out.
    """
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said, _, error = text.partition("! ")
    return code, said[: said.rfind("\n") + 1].splitlines(), error


def killer(moment):
    """Returns a decorator that kills the process at the `moment`-th call (from 1)."""
    left = [moment]

    def counted(real):
        def count(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return count

    return counted
