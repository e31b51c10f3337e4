"""A private step under JAX, held against TensorFlow's: words, noise, clipped sums.

    python benchmarks/jax_backend/in_jax.py --folder reference

In an environment with JAX alone, on what `reference.py` wrote. The same integer programs
and polynomials as in `tf_bandmf/noise`, in `jax.numpy`: a prototype that shows what a JAX
backend could take over. It is no part of the package and protects nobody.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

BLOCK, PAIRS, SHARED = 4096, 2048, 1 << 63
MULTIPLIERS, INCREMENTS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
ROUNDS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
LOGARITHM = (
    2.882216, -3.3916235, 2.5153387, -0.4070771, 0.5392252,
    0.48561022, 0.6674012, 0.9999857, 2.0,
)  # fmt: skip
SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1, 1.0)
COSINE = (
    2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0,
)  # fmt: skip


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def philox(key: jax.Array, counter: jax.Array) -> list[jax.Array]:
    keys = list(halves(key[0]))
    words = [*halves(counter)]
    words += [jnp.broadcast_to(half, counter.shape) for half in halves(key[1])]
    for _ in range(10):
        low_0, high_0 = halves(words[0].astype(jnp.uint64) * np.uint64(MULTIPLIERS[0]))
        low_1, high_1 = halves(words[2].astype(jnp.uint64) * np.uint64(MULTIPLIERS[1]))
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [key + np.uint32(more) for key, more in zip(keys, INCREMENTS)]
    return words


def rotated(word: jax.Array, bits: int) -> jax.Array:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def chacha20(key: jax.Array, counter: jax.Array) -> list[jax.Array]:
    number = counter >> np.uint64(2)
    *secret, third, fourth = (half for word in key for half in halves(word))
    constants = [jnp.uint32(value) for value in CONSTANTS]
    start = [*constants, *secret, *halves(number), third, fourth]
    start = [jnp.broadcast_to(word, number.shape) for word in start]

    def double_round(_: int, state: list[jax.Array]) -> list[jax.Array]:
        state = list(state)
        for a, b, c, d in ROUNDS:
            for first, second, third, bits in (
                (a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7),
            ):  # fmt: skip
                state[first] = state[first] + state[second]
                state[third] = rotated(state[third] ^ state[first], bits)
        return state

    state = jax.lax.fori_loop(0, 10, double_round, start)
    words = [word + first for word, first in zip(state, start)]
    quarter = (counter & np.uint64(3)).astype(jnp.int32)
    return [
        jnp.select(
            [quarter == q for q in range(4)], [words[4 * q + i] for q in range(4)]
        )
        for i in range(4)
    ]


WORDS = {"philox": philox, "chacha20": chacha20}


def polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    value = jnp.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + jnp.float32(coefficient)
    return value


def low_bits(word: jax.Array, exponent: int = 0) -> jax.Array:
    scale = np.float32(2.0**exponent)
    return (word & np.int32(0x7FFFFFFF)).astype(jnp.float32) * scale


def bits_of(x: jax.Array, dtype: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, dtype)


def normals(key: jax.Array, size: int, generator: str) -> jax.Array:
    """`noise.standard_normals`."""
    blocks = jnp.arange(-(-size // BLOCK), dtype=jnp.uint64)
    four = WORDS[generator]
    g, h, *_ = (bits_of(w, jnp.int32) for w in four(key, blocks + np.uint64(SHARED)))
    shared = low_bits(g, -93) + (low_bits(h) + np.float32(0.5)) * np.float32(2.0**-124)
    pairs = jnp.arange(PAIRS, dtype=jnp.uint64)
    counter = (blocks * np.uint64(PAIRS))[:, None] + pairs
    a, b, c, angle = (bits_of(w, jnp.int32) for w in four(key, counter))
    t = low_bits(a) + (low_bits(b, -31) + (low_bits(c, -62) + shared[:, None]))
    bits = bits_of(t, jnp.int32)
    k = 126 + 32 - (bits >> 23)
    mantissa = (bits & 0x7FFFFF) | 0x3F000000
    x = jnp.where(a < 0, t * np.float32(2.0**-32), 1.0 - bits_of(mantissa, jnp.float32))
    k = jnp.where(a < 0, jnp.float32(0.0), k.astype(jnp.float32))
    radius = jnp.sqrt(x * polynomial(LOGARITHM, x) + k * np.float32(2.0 * np.log(2.0)))
    turns = (angle + np.int32(1 << 29)) >> 30
    rest = (angle - (turns << 30)).astype(jnp.float32) * np.float32(np.pi * 2.0**-31)
    square = rest * rest
    cosine, sine = polynomial(COSINE, square), rest * polynomial(SINE, square)
    is_odd = (turns & 1) > 0

    def signed(x: jax.Array, turns: jax.Array) -> jax.Array:
        return bits_of(bits_of(x, jnp.int32) ^ ((turns & 2) << 30), jnp.float32)

    both = (
        radius * signed(jnp.where(is_odd, sine, cosine), turns + 1),
        radius * signed(jnp.where(is_odd, cosine, sine), turns),
    )
    return jnp.stack(both, axis=-1).reshape(-1)[:size]


def rows_of_noise(
    name: str, keys: jax.Array, factors: np.ndarray, size: int, generator: str
) -> jax.Array:
    """All rows of `C^-1 Z`, by the recurrence of the mechanism."""
    z = jax.jit(lambda key: normals(key, size, generator))
    found: list[jax.Array] = []
    sums = jnp.zeros((factors.shape[1], size), jnp.float32)
    for step in range(len(keys)):
        fresh = z(keys[step])
        if name == "blt":
            scales, decays = factors
            found.append(fresh + jnp.tensordot(scales, sums, 1))
            sums = decays[:, None] * sums + fresh
            continue
        row = factors[min(step, len(factors) - 1)]
        earlier = range(1, min(step + 1, len(row)))
        if name == "bisr":
            terms = (row[j] * z(keys[step - j]) for j in earlier)
            found.append(sum(terms, row[0] * fresh))
        else:
            past = sum((row[j] * found[step - j] for j in earlier), jnp.zeros(size))
            found.append((fresh - past.astype(jnp.float32)) / row[0])
    return jnp.stack(found)


def clipped_sums(
    weights: list[jax.Array], x: jax.Array, y: jax.Array, clip: float
) -> Any:
    """Sum of the gradients of single examples, each clipped as a whole."""

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ weights[0] + weights[1])
        return -jax.nn.log_softmax(hidden @ weights[2] + weights[3])[y]

    def clipped(x: jax.Array, y: jax.Array) -> Any:
        gradient = jax.grad(loss)(weights, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradient))
        return [g * jnp.minimum(1.0, clip / norm) for g in gradient]

    return [g.sum(axis=0) for g in jax.vmap(clipped)(x, y)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with np.load(options.folder / "reference.npz") as stored:
        reference = dict(stored)
    found: dict[str, Any] = {"jax": jax.__version__}
    for name in ("bisr", "banded", "blt"):
        for generator in WORDS:
            prefix = f"{name} {generator} "
            rows = reference[f"{prefix}rows"]
            mine = rows_of_noise(
                name,
                jnp.asarray(reference[f"{prefix}keys"]),
                reference[f"{prefix}factors"],
                rows.shape[1],
                generator,
            )
            differ = np.asarray(mine, np.float32).view(np.int32) != rows.view(np.int32)
            found[f"{name}, {generator}"] = {
                "first row, bits that differ": int(differ[0].sum()),
                "all rows, bits that differ": float(differ.mean()),
                "largest difference": float(np.abs(mine - rows).max()),
            }
    weights = [jnp.asarray(reference[f"weight {i}"]) for i in range(4)]
    # The batch that the plan has for its first step.
    x, y = (jnp.asarray(reference[name][reference["batch 0"]]) for name in ("x", "y"))
    sums = jax.jit(clipped_sums)(weights, x, y, float(reference["clip"]))
    errors = [np.abs(s - reference[f"sum {i}"]).max() for i, s in enumerate(sums)]
    found["clipped sums, largest difference"] = float(max(errors))
    found["clipped sums, largest entry"] = float(max(np.abs(s).max() for s in sums))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
