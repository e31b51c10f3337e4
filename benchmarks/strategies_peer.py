"""Loss and gradient of jax_privacy's optimizers, as one JSON object per line.

Run by `strategies.py` with the Python of an environment that has jax_privacy: its
dependencies and TensorFlow's need not agree in one environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time


def shortest(function, repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=["banded", "toeplitz"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bands", type=int, required=True)
    parser.add_argument("--scan", default="plain", choices=["plain", "equinox"])
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import banded, toeplitz

    n, bands = arguments.steps, arguments.bands
    coefficients = toeplitz.optimal_max_error_strategy_coefs(bands)
    if arguments.family == "toeplitz":
        start = coefficients.astype(jnp.float64)

        def loss(x):
            return toeplitz.loss(x, n)

    else:
        start = banded.ColumnNormalizedBanded.default(n, bands)
        scan = jax.lax.scan if arguments.scan == "plain" else arguments.scan

        def loss(x):
            return jnp.mean(banded.per_query_error(x, scan_fn=scan))

    function = jax.jit(jax.value_and_grad(loss))
    began = time.perf_counter()
    value = float(jax.block_until_ready(function(start))[0])
    first = time.perf_counter() - began
    seconds = shortest(
        lambda: jax.block_until_ready(function(start)), arguments.repetitions
    )
    result = {
        "seconds": seconds,
        "first_seconds": first,
        "value": value,
        "version": importlib.metadata.version("jax_privacy"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
