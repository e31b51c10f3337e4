"""Splits "tiny Shakespeare" among devices: each device has one speaker's lines."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# The alphabet is fixed and public; it does not depend on the data. One additional
# symbol represents all other characters.
ALPHABET = "\n !',-.:;?" + string.ascii_letters
NUM_SYMBOLS = len(ALPHABET) + 1
# The model predicts this many characters of a sequence.
LENGTH = 40
BATCH = 32
# One of every `_TEST_EVERY` sequences of a speaker is used for testing.
_TEST_EVERY = 10

_NUMBERS = {symbol: number for number, symbol in enumerate(ALPHABET)}


@dataclasses.dataclass(frozen=True)
class Speakers:
    """The character sequences of all devices, for training and testing.

    Attributes:
      train: each speaker's training sequences, int32, shape [sequences, LENGTH + 1].
      test: test sequences of all speakers, which no device trains on.
    """

    train: dict[str, np.ndarray]
    test: np.ndarray

    def datasets(self, limit: int) -> dict[str, Callable[[], tf.data.Dataset]]:
        """Returns functions that make each speaker's batches (inputs, next characters).

        Args:
          limit: maximum number of sequences that a device trains on in a round.
        """

        def make(sequences: np.ndarray) -> Callable[[], tf.data.Dataset]:
            pairs = (sequences[:limit, :-1], sequences[:limit, 1:])
            return lambda: tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH)

        return {name: make(sequences) for name, sequences in self.train.items()}


def load(path: str) -> Speakers:
    """Reads the speeches in a text file.

    A speech is a line "NAME:", lines of text and an empty line. Speakers with fewer
    than two sequences are omitted.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if no speaker has two sequences.
    """
    with open(path, encoding="utf-8") as file:
        speeches = file.read().split("\n\n")
    said: dict[str, list[str]] = {}
    for speech in speeches:
        head, _, lines = speech.strip().partition("\n")
        if head.endswith(":") and lines:
            said.setdefault(head[:-1], []).append(lines)
    train: dict[str, np.ndarray] = {}
    test = []
    for name, parts in said.items():
        sequences = _sequences("\n".join(parts))
        if len(sequences) < 2:
            continue
        is_test = np.arange(len(sequences)) % _TEST_EVERY == 1
        test.append(sequences[is_test])
        train[name] = sequences[~is_test]
    if not train:
        raise ValueError(
            f"{path} has no speaker with two sequences of {LENGTH + 1} characters. The "
            f'text must have speeches: a line "NAME:", lines of text, an empty line.'
        )
    return Speakers(train, np.concatenate(test))


def _sequences(text: str) -> np.ndarray:
    """Splits a text into sequences of LENGTH + 1 symbols that overlap by one symbol.

    Returns:
      The symbols' numbers, int32, shape [sequences, LENGTH + 1].
    """
    numbers = [_NUMBERS.get(symbol, len(ALPHABET)) for symbol in text]
    starts = range(0, len(numbers) - LENGTH, LENGTH)
    pieces = [numbers[start : start + LENGTH + 1] for start in starts]
    return np.array(pieces, np.int32).reshape(-1, LENGTH + 1)
