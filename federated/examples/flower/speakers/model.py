"""A next-character model in NumPy, so a device's app can import it quickly.

The model is softmax(tanh(E A + a) B + b), where E is the concatenation of the
embeddings of the previous characters.
"""

from __future__ import annotations

import numpy as np

from speakers.text import ALPHABET, CONTEXT

_EMBEDDING, _BATCH = 8, 50
NAMES = ("embedding", "A", "a", "B", "b")


def initial_weights(seed: int = 0, hidden: int = 32) -> list[np.ndarray]:
    """Returns the initial weights: 279 + 64 * hidden numbers, by default 2,327."""
    rng, size = np.random.default_rng(seed), len(ALPHABET)
    shapes = ((size, _EMBEDDING), (CONTEXT * _EMBEDDING, hidden), (hidden, size))
    embedding, a, b = (
        rng.normal(0, s[0] ** -0.5, s).astype(np.float32) for s in shapes
    )
    return [embedding, a, np.zeros(hidden, "f4"), b, np.zeros(size, "f4")]


def _forward(weights: list[np.ndarray], contexts: np.ndarray) -> tuple[np.ndarray, ...]:
    embedding, a, a0, b, b0 = weights
    inputs = embedding[contexts].reshape(len(contexts), -1)
    hidden = np.tanh(inputs @ a + a0)
    logits = hidden @ b + b0
    logits = logits - logits.max(axis=1, keepdims=True)
    return inputs, hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def evaluate(weights: list[np.ndarray], contexts: np.ndarray, after: np.ndarray):
    """Returns the mean loss and the accuracy on the examples (contexts, after)."""
    log_probabilities = _forward(weights, contexts)[2]
    loss = -log_probabilities[np.arange(len(after)), after].mean()
    return float(loss), float((log_probabilities.argmax(axis=1) == after).mean())


def train(
    weights: list[np.ndarray],
    contexts: np.ndarray,
    after: np.ndarray,
    rate: float,
    proximal: float = 0.0,
) -> list[np.ndarray]:
    """Runs one epoch of SGD; `proximal` is FedProx's mu (arXiv:1812.06127)."""
    start, weights = weights, [w.copy() for w in weights]
    for begin in range(0, len(after), _BATCH):
        part = slice(begin, begin + _BATCH)
        gradients = _gradients(weights, contexts[part], after[part])
        weights = [
            (w - rate * (g + proximal * (w - s))).astype(np.float32)
            for w, g, s in zip(weights, gradients, start)
        ]
    return weights


def _gradients(
    weights: list[np.ndarray], contexts: np.ndarray, after: np.ndarray
) -> list[np.ndarray]:
    embedding, a, _, b, _ = weights
    inputs, hidden, log_probabilities = _forward(weights, contexts)
    error = np.exp(log_probabilities)
    error[np.arange(len(after)), after] -= 1.0
    error /= len(after)
    back = (error @ b.T) * (1.0 - hidden**2)
    into = (back @ a.T).reshape(*contexts.shape, -1)
    of_embedding = np.zeros_like(embedding)
    np.add.at(of_embedding, contexts, into)
    return [of_embedding, inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
