"""A next-character model with 6,615 weights for Keras and TFF, and its evaluation."""

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
            # `RNN` with a `GRUCell` replaces Keras' `GRU` layer. The graph of `GRU`
            # chooses between kernels, and TFF's worker takes longer to prepare this
            # choice for each client than to train.
            tf.keras.layers.RNN(tf.keras.layers.GRUCell(32), return_sequences=True),
            tf.keras.layers.Dense(speakers.NUM_SYMBOLS),
        ]
    )


def loss() -> tf.keras.losses.Loss:
    """Returns the cross-entropy loss of logits, in nats per character."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_fn() -> tff.learning.models.VariableModel:
    """Returns a new model, wrapped for TFF."""
    return tff.learning.models.from_keras_model(
        build(), loss=loss(), input_spec=INPUT_SPEC
    )


class Test:
    """Evaluates model weights on test sequences, which no device trains on.

    Args:
      data: the devices' data.
      limit: maximum number of sequences to test on.
    """

    def __init__(self, data: speakers.Speakers, limit: int = 1000) -> None:
        # Choose evenly spaced sequences, so that all speakers are represented.
        chosen = data.test[:: max(1, len(data.test) // limit)][:limit]
        self._inputs, self._targets = chosen[:, :-1], chosen[:, 1:]
        self._model = build()
        self._model.compile(loss=loss(), metrics=["accuracy"])

    def __call__(
        self, weights: tff.learning.models.ModelWeights
    ) -> tuple[float, float]:
        """Returns the accuracy in [0, 1] and the loss in nats per character."""
        weights.assign_weights_to(self._model)
        metrics = self._model.evaluate(
            self._inputs, self._targets, batch_size=250, verbose=0, return_dict=True
        )
        return metrics["accuracy"], metrics["loss"]
