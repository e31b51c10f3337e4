"""Reads speeches from a file such as tiny Shakespeare, or generates them."""

from __future__ import annotations

import random
import string

import numpy as np

ALPHABET = " " + string.ascii_lowercase + ".,'\n"
# The model predicts a character from this many characters before it.
CONTEXT = 4
_WORDS = (
    "the king and queen of night come to our house with love and fear my lord will "
    "speak no more but hear this word that men shall keep in heart and hand"
).split()


def examples(path: str, speaker: int, limit: int = 600) -> tuple[np.ndarray, ...]:
    """Returns one speaker's examples: contexts, and the character after each context.

    Args:
      path: path of a file with speeches ("NAME:", lines, an empty line), or "" to
        generate random text.
      speaker: number of the speaker. For testing, -1 selects text that no device has.
      limit: maximum number of examples.

    Returns:
      The contexts, shape [examples, CONTEXT], and the characters after them, shape
      [examples], both as the symbols' numbers, int64.
    """
    text = _said(path, speaker) if path else _made_up(speaker, limit)
    numbers = {symbol: number for number, symbol in enumerate(ALPHABET)}
    codes = [numbers[symbol] for symbol in text.lower() if symbol in numbers]
    codes = np.array(codes[: limit + CONTEXT])
    windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
    return windows[:, :-1], windows[:, -1]


def _made_up(speaker: int, limit: int) -> str:
    rng = random.Random(speaker)
    weights = [rng.expovariate(1.0) for _ in _WORDS]
    said = []
    while sum(map(len, said)) < 2 * limit:
        words = rng.choices(_WORDS, weights, k=rng.randint(3, 8))
        said.append(" ".join(words) + rng.choice([".\n", ", "]))
    return "".join(said)


def _said(path: str, speaker: int) -> str:
    with open(path, encoding="utf-8") as file:
        speeches = file.read().split("\n\n")
    lines: dict[str, list[str]] = {}
    for speech in speeches:
        name, colon, text = speech.partition(":\n")
        if colon:
            lines.setdefault(name, []).append(text)
    ranked = sorted(lines, key=lambda name: (-sum(map(len, lines[name])), name))
    if speaker < 0:
        return "\n".join("\n".join(lines[name]) for name in ranked[100:])
    return "\n".join(lines[ranked[speaker]])
