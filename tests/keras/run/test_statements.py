"""The statement is made of the run: its data, its weights, and the runs beside it."""

import keras
import pytest
import tensorflow as tf


class Rows(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.x[11 * index : 11 * index + 11], self.y[
            11 * index : 11 * index + 11
        ]


@pytest.mark.invariant(15)
@pytest.mark.parametrize("kind", ["PyDataset", "generator", "in tf.data", "tf.data"])
def test_it_says_for_what_data_the_caller_vouches(
    kind, data, make_plan, make_private_model
):
    # To each case its own examples: a process knows them, wherever they come from.
    data = data[0] + len(kind), data[1]
    dataset = tf.data.Dataset.from_tensor_slices(data)
    signature = tuple(tf.TensorSpec(s.shape, s.dtype) for s in dataset.element_spec)
    made = {
        "PyDataset": Rows(*data),
        "generator": lambda: zip(*data),
        "in tf.data": tf.data.Dataset.from_generator(
            lambda: zip(*data), output_signature=signature
        ),
        "tf.data": dataset.batch(11),
    }
    plan = make_plan("identity", batch_size=22)
    model = make_private_model(plan, run_eagerly=True)
    model.fit(plan.batches(made[kind]), epochs=1, verbose=0)
    points = dict(model.privacy_statement().points())
    vouched = "each is made of one record alone" in points["This run"]
    assert vouched == (kind != "tf.data")
