"""Samplers, which choose each step's examples as a pure function of seed and step.

Formal guarantees, if the random 64-bit words are independent and uniform:

- The sampled examples have the distribution that the participation defines. Samplers
  use integer arithmetic without logarithms, so a resumed run draws the same examples on
  every machine.
- If examples are sampled independently, then the probability that an example is
  sampled, conditional on all other examples, is at most the nominal probability (see
  `Trials`). A smaller probability is equivalent to sampling at the nominal probability
  and then randomly dropping examples, so the accountant's bound holds.
- The cost of a step grows with the batch size, not with the data set size.
"""

from __future__ import annotations

import abc
import hashlib
import math
import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from tf_bandmf.files.hidden import HiddenBytes

SEED_BYTES = 32
# A function `words(step, count)` that returns independent uniform random words, uint64,
# shape [count]. With a larger count, the same words come first. Every step has separate
# words. With `WHOLE_RUN` as the step, the function returns the words of the whole run.
Words = Callable[[int, int], np.ndarray]
WHOLE_RUN = -1
# `Trials` multiplies its success probability by `1 - 2^-26`; see its docstring.
_LOWERED = 26
# The number of past steps that a `RestSampler` stores, because steps are not always
# requested in order.
_KEPT = 4


def random_words(seed: bytes, step: int, count: int) -> np.ndarray:
    """Returns independent uniform numbers in [0, 2^64), from SHAKE-256 (FIPS 202).

    Args:
      seed: the secret, 32 bytes.
      step: the step that uses the numbers; every step gets different numbers.
      count: how many numbers to return, from the start of the step's sequence.

    Returns:
      uint64, shape [count].

    Raises:
      ValueError: if the seed does not have 32 bytes.
    """
    seed = HiddenBytes(seed)
    if len(seed) != SEED_BYTES:
        raise ValueError(f"The seed must have {SEED_BYTES} bytes, found {len(seed)}.")
    place = int(step).to_bytes(8, "little", signed=True)
    message = HiddenBytes(b"tf-bandmf sampler" + seed + place)
    stream = hashlib.shake_256(message).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def uniform_numbers(words: Words, step: int, count: int, bound: int) -> np.ndarray:
    """Returns independent and exactly uniform integers in [0, bound).

    Words at or above `2^64 // bound * bound` are skipped, to make the result uniform.

    Args:
      words: source of the random words.
      step: the step that uses the integers.
      count: how many integers to return.
      bound: upper bound, not included, > 0.

    Returns:
      int64, shape [count]. With a larger count, the same integers come first.
    """
    limit, more = (1 << 64) // bound * bound, 0
    while True:
        drawn = words(step, count + more)
        if limit < 1 << 64:
            drawn = drawn[drawn < np.uint64(limit)]
        if drawn.size >= count:
            return (drawn[:count] % np.uint64(bound)).astype(np.int64)
        more = 2 * more + 16


class Trials:
    """Independent trials with a common success probability q, in integer arithmetic.

    If q <= 1/2, the number of failures before the next success (the gap) is drawn as
    `a L + b`, for blocks of L trials. Here a is the number of blocks without a success,
    so that `P(a >= i) = (1 - q)^(L i)`. The number b < L is independent of a, and has a
    truncated geometric distribution. Tables of 64-bit cut points, computed with 128
    bits, map random words to a and b. The tables contain gaps up to about `5 / q`. A
    longer gap is drawn in several pieces, which is correct because geometric gaps are
    memoryless.

    Because cut points are rounded, q is multiplied by 1 - 2^-26. Conditional on the
    earlier trials, a trial then succeeds with probability q (1 - 2^-26), up to a
    relative error of 2^-36. Conditional on all other trials, including later ones, a
    trial succeeds with probability at most q, unless a gap is longer than 511 / q,
    which happens with probability exp(-511).

    If q > 1/2, each trial uses a separate random word.

    Args:
      numerator, denominator: numerator and denominator of q, which is in (0, 1].
    """

    def __init__(self, numerator: int, denominator: int) -> None:
        self._q = numerator / denominator
        self._limit = (numerator << 64) // denominator
        one = 1 << 128
        if 2 * self._limit > 1 << 64:
            return
        q = (one * numerator // denominator) * ((1 << _LOWERED) - 1) >> _LOWERED
        self._length = math.isqrt(5 * denominator // numerator) + 1
        powers = [one]
        for _ in range(self._length):
            powers.append(powers[-1] * (one - q) >> 128)
        last = powers[-1]
        blocks = [last]
        # `blocks` ends where P(a >= i) falls below 1 / 150, about exp(-5). The class
        # docstring explains a and b.
        while blocks[-1] * 150 > one:
            blocks.append(blocks[-1] * last >> 128)
        # The cut points are P(a >= i) * 2^64 and P(b >= i) * 2^64 for i = 1, 2, ..., in
        # reverse order.
        within = [((power - last) << 64) // (one - last) for power in powers[-2:0:-1]]
        self._blocks = np.array([block >> 64 for block in blocks[::-1]], np.uint64)
        self._within = np.array(within, np.uint64)

    def successes(self, words: Words, step: int, size: int) -> np.ndarray:
        """Returns the indices of the successes among `size` trials, ascending, int64.

        Args:
          words: source of the random words.
          step: the step that uses the words.
          size: number of trials.
        """
        if 2 * self._limit > 1 << 64:
            return np.flatnonzero(words(step, size) <= np.uint64(self._limit - 1))
        count = math.ceil(1.01 * size * self._q) + 16
        count += math.ceil(8.0 * math.sqrt(count))
        while True:
            drawn = words(step, 2 * count)
            a = _cuts_above(self._blocks, drawn[::2])
            b = _cuts_above(self._within, drawn[1::2])
            ends = a < self._blocks.size
            places = np.cumsum(a * self._length + np.where(ends, b + 1, 0)) - 1
            if places[-1] >= size - 1:
                return places[ends & (places < size)]
            count *= 2


def _cuts_above(cuts: np.ndarray, words: np.ndarray) -> np.ndarray:
    return cuts.size - np.searchsorted(cuts, words, side="right")


class Sampler(abc.ABC):
    """Draws the examples of each step of a run, as the accountant assumes.

    A resumed run draws exactly the examples of the uninterrupted run.

    Attributes:
      spans_run: True if the examples of a step depend on random draws that were made
        for earlier steps or for the whole run. Such a run cannot continue with another
        seed: the earlier draws would be different ones.
    """

    spans_run: ClassVar[bool] = False

    @abc.abstractmethod
    def example_indices(self, step: int) -> np.ndarray:
        """Returns the indices of a step's examples, int64, shape [batch size]."""


class PoissonSampler(Sampler):
    """Draws each example of one part of the data independently with probability q.

    The data has m examples and b parts. Step i draws from the examples j with
    `j mod b = i mod b`. For mean batch size B, the probability q is `B b / m`.
    """

    def __init__(self, words: Words, total: int, batch: int, parts: int = 1) -> None:
        self._words, self._total, self._parts = words, total, parts
        self._trials = Trials(batch * parts, total)

    def example_indices(self, step: int) -> np.ndarray:
        part = step % self._parts
        size = -(-(self._total - part) // self._parts)
        return part + self._parts * self._trials.successes(self._words, step, size)


class FixedSizeSampler(Sampler):
    """Draws B examples without replacement, at each step from one part of the data.

    The data has m examples and b parts. Step i draws from the first `floor(m / b)`
    examples j with `j mod b = i mod b`. All subsets of B of these examples are equally
    probable.
    """

    def __init__(self, words: Words, total: int, batch: int, parts: int = 1) -> None:
        self._words, self._parts = words, parts
        self._size, self._batch = total // parts, batch

    def example_indices(self, step: int) -> np.ndarray:
        # The subset consists of the first distinct numbers among independent draws. If
        # B is more than half of the examples, the draws determine the examples to leave
        # out.
        leaves_out = self._batch > self._size // 2
        wanted = self._size - self._batch if leaves_out else self._batch
        count, chosen = wanted, np.empty(0, np.int64)
        while chosen.size < wanted:
            count = 2 * count + 16
            drawn = uniform_numbers(self._words, step, count, self._size)
            _, first = np.unique(drawn, return_index=True)
            chosen = np.sort(drawn[np.sort(first)[:wanted]])
        if leaves_out:
            chosen = np.delete(np.arange(self._size), chosen)
        return step % self._parts + self._parts * chosen


class OrderSampler(Sampler):
    """Uses the same order of the examples, cut into batches, in every epoch.

    Args:
      order: order of the examples, int64, shape [m].
      steps_per_epoch: number of batches in an epoch.
      ends: end position of each batch within the order, int64, shape [steps_per_epoch];
        None if batch sizes differ by at most one.
    """

    spans_run: ClassVar[bool] = True

    def __init__(
        self, order: np.ndarray, steps_per_epoch: int, ends: np.ndarray | None = None
    ) -> None:
        if ends is None:
            ends = order.size * np.arange(1, steps_per_epoch + 1) // steps_per_epoch
        self._order, self._cuts = order, np.append(0, ends)

    def example_indices(self, step: int) -> np.ndarray:
        position = step % (self._cuts.size - 1)
        return self._order[self._cuts[position] : self._cuts[position + 1]]


class BinsSampler(OrderSampler):
    """Puts each example into one of b bins at random; the bins are an epoch's batches."""

    def __init__(self, words: Words, total: int, bins: int) -> None:
        # NumPy sorts 16-bit numbers by radix, which is fast.
        kind = np.uint16 if bins < 1 << 16 else np.uint32
        drawn = uniform_numbers(words, WHOLE_RUN, total, bins).astype(kind)
        ends = np.cumsum(np.bincount(drawn, minlength=bins))
        super().__init__(np.argsort(drawn, kind="stable"), bins, ends)


class RestSampler(Sampler):
    """Draws, with probability p, each example that was not in the last b - 1 steps.

    The probability p is `B / (m - B (b - 1))`, for m examples, mean batch size B and
    minimum separation b. After each draw, an example rests for b - 1 steps, that is, it
    cannot be drawn. At the start, an example rests for i steps with probability B / m,
    for each i from 1 to b - 1, as if the sampling had always been running.

    If steps are drawn in order, the cost of a step is proportional to its batch size. A
    resumed run redraws all earlier steps, because they determine which examples rest.
    """

    spans_run: ClassVar[bool] = True

    def __init__(self, words: Words, total: int, batch: int, separation: int) -> None:
        self._words, self._total, self._batch = words, total, batch
        self._separation = separation
        self._trials = Trials(batch, total - batch * (separation - 1))
        self._recent: dict[int, np.ndarray] = {}
        self._next = -1
        # tf.data may draw several steps at the same time.
        self._lock = threading.Lock()

    def example_indices(self, step: int) -> np.ndarray:
        with self._lock:
            if self._next < 0 or (step < self._next and step not in self._recent):
                # `_free` contains the first step at which each example can be drawn.
                self._free, self._next, self._recent = self._first_free(), 0, {}
            while (now := self._next) <= step:
                tried = self._trials.successes(self._words, now, self._total)
                chosen = tried[self._free[tried] <= now]
                self._free[chosen] = now + self._separation
                self._next, self._recent[now] = now + 1, chosen
                self._recent.pop(now - _KEPT, None)
            return self._recent[step]

    def _first_free(self) -> np.ndarray:
        drawn, b = self._words(WHOLE_RUN, self._total), self._separation
        edges = [(self._batch * j << 64) // self._total for j in range(1, b)]
        # An entry 2^64 of `edges` is lowered by 1, because uint64 cannot represent it.
        limits = np.array([min(edge, (1 << 64) - 1) for edge in edges], np.uint64)
        cells = np.searchsorted(limits, drawn, side="right")
        return ((cells + 1) % b).astype(np.int32)
