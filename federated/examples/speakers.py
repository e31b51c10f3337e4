"""Divides the text "tiny Shakespeare" into devices: one for each speaker's lines."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# The alphabet is fixed and public; it does not depend on the data. All other characters
# become an additional last symbol.
ALPHABET = "\n !',-.:;?" + string.ascii_letters
NUM_SYMBOLS = len(ALPHABET) + 1
LENGTH = 40  # number of predicted characters per sequence
BATCH = 32
# One in this many sequences of each speaker is used for testing.
_TEST_EVERY = 10

_NUMBERS = {symbol: number for number, symbol in enumerate(ALPHABET)}


@dataclasses.dataclass(frozen=True)
class Speakers:
    """The character sequences of all devices, for training and testing.

    Attributes:
      train: sequences of each speaker, int32, shape [sequences, LENGTH + 1].
      test: sequences of all speakers, for testing; no device trains on them.
    """

    train: dict[str, np.ndarray]
    test: np.ndarray

    def datasets(self, limit: int) -> dict[str, Callable[[], tf.data.Dataset]]:
        """Returns functions that make a speaker's batches (characters, next characters).

        Args:
          limit: maximum number of sequences that a device trains on each time.
        """

        def make(sequences: np.ndarray) -> Callable[[], tf.data.Dataset]:
            pairs = (sequences[:limit, :-1], sequences[:limit, 1:])
            return lambda: tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH)

        return {name: make(sequences) for name, sequences in self.train.items()}


def load(path: str) -> Speakers:
    """Reads speeches from a text: each is a line "NAME:", lines and an empty line.

    Speakers with fewer than two sequences are omitted.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if the file has no such speeches.
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
    """Returns sequences of a text that overlap by one character, int32 [N, LENGTH + 1]."""
    numbers = [_NUMBERS.get(symbol, len(ALPHABET)) for symbol in text]
    starts = range(0, len(numbers) - LENGTH, LENGTH)
    pieces = [numbers[start : start + LENGTH + 1] for start in starts]
    return np.array(pieces, np.int32).reshape(-1, LENGTH + 1)
