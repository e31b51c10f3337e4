"""What the gradients are checked on before the first step: shapes, and no batch."""

import tensorflow as tf

from tf_bandmf.keras.model.scheduled import _like_batches_of


def dataset(*shape):
    spec = {
        "x": tf.TensorSpec([None, *shape], tf.float32),
        "text": tf.TensorSpec([None], tf.string),
        "rows": tf.TensorSpec([None, 2], tf.bool),
        "step": tf.TensorSpec([], tf.int64),
    }

    def batches():
        raise AssertionError("A batch was drawn.")

    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def test_no_batch_is_drawn_where_shapes_are_known():
    (batch,) = _like_batches_of(dataset(3, 4))
    assert batch["x"].shape == (1, 3, 4) and batch["x"].dtype == tf.float32
    assert batch["text"].numpy().tolist() == [b""]
    assert batch["rows"].numpy().tolist() == [[True, True]]
    assert batch["step"].shape == ()


def test_batches_tell_what_shapes_do_not():
    given = dataset(None)
    assert _like_batches_of(given) is given
