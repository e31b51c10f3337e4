"""What a private step pays to know its batch and its weights.

    python benchmarks/keras_binding.py --models mlp,cnn,wide --rounds 5

"fingerprint" is computed once where a batch is made and once in the step; "seal" is the
comparison of the weights with the last step's and the digest of the new ones; "sum" is the
keyed digest of the sum of clipped gradients, which the noise is bound to; "journal" is the
entry of the step in the private state file, with its share of the syncs. Processor
time and wall time of each in percent of a private step of `lambda_cgd` without them. Each
is called by itself here, so what such a call costs that does nothing is subtracted.
`wide` is a multi-layer perceptron with 10 million parameters.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any, Callable

import keras
import keras_steps
import numpy as np
import tensorflow as tf
from keras import layers

from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run.weights_seal import WeightsSeal
from tf_bandmf.noise.digests import digest_key, keyed_digest
from tf_bandmf.sampling.fingerprints import is_as_drawn, with_fingerprint

WIDTH = 2800


def wide() -> keras.Model:
    """10.1 million parameters."""
    hidden = [layers.Dense(WIDTH, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *hidden, layers.Dense(10)])


def fingerprint_of(name: str) -> Callable[[], Any]:
    x, y = keras_steps.data(name, keras_steps.BATCH_SIZES[name])
    batch = with_fingerprint({"x": tf.constant(x), "y": tf.constant(y), "step": 0})
    verify = tf.function(is_as_drawn, autograph=False)
    return lambda: bool(verify(batch))


def nothing_of(name: str) -> Callable[[], Any]:
    """A call with the same arguments."""
    x, y = keras_steps.data(name, keras_steps.BATCH_SIZES[name])
    batch = with_fingerprint({"x": tf.constant(x), "y": tf.constant(y), "step": 0})
    read = tf.function(lambda given: given["fingerprint"][0] > 0, autograph=False)
    return lambda: bool(read(batch))


def nothing() -> Callable[[], Any]:
    call = tf.function(lambda: tf.constant(True), autograph=False)
    return lambda: bool(call())


def seal_of(model: keras.Model) -> Callable[[], Any]:
    seal = WeightsSeal()

    @tf.function(autograph=False)
    def both() -> tf.Tensor:
        _, holds = seal.digest_if_holds(model.weights)
        with tf.control_dependencies([holds]):
            seal.renew(model.weights)
        return holds

    return lambda: bool(both())


def digest_of_sum(model: keras.Model) -> Callable[[], Any]:
    size = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    key = tf.constant(np.asarray(digest_key(bytes(32), "")))
    total = tf.random.stateless_normal([size], [1, 2])
    digest = tf.function(lambda: keyed_digest(key, total)[0] != 0, autograph=False)
    return lambda: bool(digest())


def journal(folder: str) -> Callable[[], Any]:
    file = Journal(f"{folder}/run.private")
    file.replace(b"")

    def append(words: np.ndarray) -> bool:
        file.append(words.tobytes())
        return True

    call = tf.function(
        lambda: tf.numpy_function(append, [tf.zeros([2], tf.int64)], tf.bool),
        autograph=False,
    )
    return lambda: bool(call())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="mlp,cnn,wide")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, help="instead of each model's own")
    options = parser.parse_args()
    options.microbatch_size, options.accuracy = None, False
    keras_steps.BATCH_SIZES["wide"] = keras_steps.BATCH_SIZES["mlp"]
    keras_steps.MODELS["wide"] = wide
    if options.batch_size is not None:
        keras_steps.BATCH_SIZES.update(
            dict.fromkeys(keras_steps.BATCH_SIZES, options.batch_size)
        )
    folder = tempfile.mkdtemp()
    for name in options.models.split(","):
        model = keras_steps.MODELS[name]()
        functions = {
            "step": keras_steps.private_step(name, "lambda_cgd", options),
            "fingerprint": fingerprint_of(name),
            "seal": seal_of(model),
            "sum": digest_of_sum(model),
            "journal": journal(folder),
            "call with a batch": nothing_of(name),
            "call": nothing(),
        }
        times = keras_steps.in_turns(functions, 20, options.rounds)
        wall, processor, _ = times["step"]
        size = sum(int(np.prod(weight.shape)) for weight in model.weights)
        print(f"{name}: {size} parameters, step {wall * 1e3:.1f} ms")
        calls = dict.fromkeys(("seal", "sum", "journal"), "call")
        calls["fingerprint"] = "call with a batch"
        for part, call in calls.items():
            here, used, _ = (
                a - b for a, b in zip(times[part], times[call], strict=True)
            )
            print(
                f"  {part}: {here * 1e3:.2f} ms, {here / wall:.2%} of the wall time; "
                f"{used * 1e3:.2f} ms, {used / processor:.2%} of the processor time"
            )


if __name__ == "__main__":
    main()
