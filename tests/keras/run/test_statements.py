"""The statement is made of the run: its data, its weights, and the runs beside it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras


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


def adapted(data):
    layer = keras.layers.Normalization()
    layer.adapt(data[0])
    return layer


def weighed(y, kind):
    """Arguments of `plan.batches` and of `fit`."""
    by_class = np.array([1.0, 1.0, 4.0], np.float32)[y]
    each = np.linspace(0.5, 1.0, len(y), dtype=np.float32)
    given = {"by class": by_class, "each": each, "equal": np.ones_like(each)}
    fit = {"class_weight": {0: 1.0, 1: 1.0, 2: 4.0}} if kind == "class_weight" else {}
    return {"sample_weight": given.get(kind)}, fit


@pytest.mark.filterwarnings("ignore:sample_weight has one weight")
@pytest.mark.invariant(15)
@pytest.mark.parametrize(
    "kind, said",
    [
        ("class_weight", True),
        ("by class", True),
        ("each", False),
        ("equal", False),
        (None, False),
    ],
)
def test_it_says_that_classes_have_weights(
    kind, said, data, make_plan, make_private_model
):
    """ "Balanced" weights of private labels moved a step by 2.0 clip norms."""
    plan = make_plan("identity", batch_size=22)
    model = make_private_model(plan, run_eagerly=True)
    of_batches, of_fit = weighed(data[1], kind)
    model.fit(plan.batches(*data, **of_batches), epochs=1, verbose=0, **of_fit)
    points = dict(model.privacy_statement().points())
    assert points["This run"].count("Weights of classes are in use") == said


def test_it_says_so_of_batches_that_the_caller_makes(
    data, make_min_sep_plan, make_private_model
):
    model = make_private_model(make_min_sep_plan(), run_eagerly=True)
    x, y = data[0][:4], data[1][:4]
    model.train_on_batch(x, y)
    assert "Weights of classes" not in str(model.privacy_statement())
    model.train_on_batch(x, y, class_weight={0: 1.0, 1: 0.5, 2: 0.5})
    assert "Weights of classes" in str(model.privacy_statement())


@pytest.mark.invariant(15)
@pytest.mark.parametrize(
    "where", ["model", "map", "function", "tf.data", "no statistics", "no layer"]
)
def test_it_names_layers_that_were_adapted(where, data, make_plan, compile_model):
    layer = adapted(data)
    if where == "no statistics":
        layer = keras.layers.Normalization(mean=0.0, variance=1.0)
    inside = [layer] if where in ("model", "no statistics") else []
    network = keras.Sequential([keras.Input((5,)), *inside, keras.layers.Dense(3)])
    model = tf_bandmf.keras.make_private(network, self_check=False)
    plan = make_plan("identity", batch_size=22)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    compile_model(model, optimizer, run_eagerly=True)
    mapped = {"map": layer, "function": lambda x: layer(x[None])[0]}
    batches = plan.batches(*data, map=mapped.get(where))
    if where == "tf.data":
        dataset = tf.data.Dataset.from_tensor_slices(data)
        batches = plan.batches(dataset.map(lambda x, y: (layer(x[None])[0], y)))
    model.fit(batches, epochs=1, verbose=0)
    text = str(model.privacy_statement())
    assert (f"Normalization {layer.name!r}" in text) == (not where.startswith("no "))
