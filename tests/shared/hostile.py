"""Invalid arguments of all kinds, and checks of how public functions handle them."""

import contextlib
import functools
import signal
import warnings

import numpy as np

# Hostile values (invalid or extreme arguments), each with a name for test failures.
VALUES = {
    "None": None,
    "True": True,
    "False": False,
    "empty text": "",
    "text": "no such thing",
    "number as text": "1e-5",
    "text of control characters": "\0\n\x1b[31m",
    "long text": "x" * 10_000,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "numpy nan": np.float32("nan"),
    "0": 0,
    "-1": -1,
    "-0.0": -0.0,
    "half": 0.5,
    "1.5": 1.5,
    "tiny": 5e-324,
    "huge float": 1.7e308,
    "2^63": 2**63,
    "10^30": 10**30,
    "10^400": 10**400,
    "complex": 1j,
    "bytes": b"1",
    "list": [],
    "list of one": [1],
    "dictionary": {},
    "array": np.array([1.0, 2.0]),
    "empty array": np.array([]),
    "array of one": np.array([3]),
    "object": object(),
    "function": lambda *arguments: 1.0,
    "class": int,
}
SECONDS = 120


class TooSlow(BaseException):
    """Raised after the time limit; `except Exception` does not catch it."""


@contextlib.contextmanager
def limited():
    """Raises TooSlow if the `with` block takes more than SECONDS."""

    def stop(*_):
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def complaints(function, usual, right, names):
    """Tries each hostile value for each argument; returns one line per wrong response.

    Args:
      function: the function to test; each call replaces one argument of `usual`.
      usual: valid arguments by name.
      right: function of an argument's name and a hostile value's name; returns
        whether this value is valid for the argument.
      names: for an argument, other words that error messages may use for it.
    """
    complaints = []
    for argument, valid in usual.items():
        for kind, value in VALUES.items():
            if value is valid:
                continue
            wrong = complaint(
                functools.partial(function, **{**usual, argument: value}),
                [argument, *names.get(argument, [])],
                lambda _, argument=argument, kind=kind: right(argument, kind),
            )
            if wrong is not None:
                complaints.append(f"{argument} = {kind}: {wrong}")
    return "\n".join(complaints)


def complaint(call, names, is_right):
    """Returns what is wrong with the response to a hostile argument, or None.

    Args:
      call: function without arguments that makes the call.
      names: words, such as the argument's name; an error must contain one of them.
      is_right: function that returns True for a correct result.
    """
    try:
        with limited():
            result = call()
    except (ValueError, TypeError) as error:
        text = str(error)
        if not any(name in text for name in names):
            return f"{type(error).__name__} without any of {names}: {text[:200]}"
        return None
    except TooSlow:
        return f"more than {SECONDS} seconds"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if not is_right(result):
        return f"accepted: {str(result)[:200]}"
    return None
