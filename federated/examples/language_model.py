"""A next-character model with 6,615 weights, its training and its test."""

from __future__ import annotations

import speakers
import tensorflow as tf
import tensorflow_federated as tff

INPUT_SPEC = (
    tf.TensorSpec([None, speakers.LENGTH], tf.int32),
    tf.TensorSpec([None, speakers.LENGTH], tf.int32),
)


def build() -> tf.keras.Model:
    """Returns a model with an embedding, one recurrent layer and a dense layer."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer([speakers.LENGTH], dtype=tf.int32),
            tf.keras.layers.Embedding(speakers.NUM_SYMBOLS, 8),
            # The cell runs in a plain loop, because the graph of Keras' GRU layer chooses
            # between kernels, which for each client takes TFF's worker longer than the
            # training.
            tf.keras.layers.RNN(tf.keras.layers.GRUCell(32), return_sequences=True),
            tf.keras.layers.Dense(speakers.NUM_SYMBOLS),
        ]
    )


def loss() -> tf.keras.losses.Loss:
    """The cross-entropy of logits, in nats per character."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_fn() -> tff.learning.models.VariableModel:
    """Returns the model in TFF's form."""
    return tff.learning.models.from_keras_model(
        build(), loss=loss(), input_spec=INPUT_SPEC
    )


class Test:
    """Computes accuracy and loss of weights on sequences that no device trains on.

    Args:
      data: the devices' data.
      limit: maximum number of sequences to test on.
    """

    def __init__(self, data: speakers.Speakers, limit: int = 1000) -> None:
        # Sequences are chosen evenly from all speakers.
        chosen = data.test[:: max(1, len(data.test) // limit)][:limit]
        self._inputs, self._targets = chosen[:, :-1], chosen[:, 1:]
        self._model = build()
        self._model.compile(loss=loss(), metrics=["accuracy"])

    def __call__(
        self, weights: tff.learning.models.ModelWeights
    ) -> tuple[float, float]:
        """Returns accuracy in [0, 1] and loss in nats per character."""
        weights.assign_weights_to(self._model)
        metrics = self._model.evaluate(
            self._inputs, self._targets, batch_size=250, verbose=0, return_dict=True
        )
        return metrics["accuracy"], metrics["loss"]
