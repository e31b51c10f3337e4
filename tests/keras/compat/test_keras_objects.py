"""Each private name of Keras is there, and is what it is taken for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.compat import keras_objects as objects

layers = keras.layers


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential(
        [keras.Input((4, 3)), layers.Dense(2), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mse"])
    model.train_on_batch(np.zeros((2, 4, 3)), np.zeros((2, 1)))
    return model


def test_layers(model):
    assert [type(layer) for layer in objects.all_layers(model, include_self=False)] == [
        layers.InputLayer,
        layers.Dense,
        layers.Flatten,
        layers.Dense,
    ]
    assert objects.all_layers(model)[0] is model
    outer = keras.Sequential([keras.Input((4, 3)), model])
    assert model in objects.all_layers(outer, recursive=False)
    assert model.layers[-1] in objects.all_layers(outer)
    assert model.layers[-1] not in objects.all_layers(outer, recursive=False)


def test_what_a_layer_computes_with(model):
    dense = model.layers[0]
    assert objects.kernel_of(dense) is dense.kernel
    assert objects.own_trainable_variables(dense) == dense.trainable_variables
    assert objects.own_trainable_variables(model) == []
    table = layers.Embedding(5, 2)
    table.build()
    assert objects.embeddings_of(table) is table.embeddings
    for layer in (layers.Dense(2, lora_rank=1), layers.EinsumDense("ab,bc->ac", 2)):
        layer.build((None, 3))
        assert tuple(objects.kernel_of(layer).shape) == (3, 2)


def test_properties_of_a_layer():
    activity = layers.Dense(1, activity_regularizer="l2")
    activity(tf.ones([1, 2]))
    assert len(objects.added_losses(activity)) == 1
    assert objects.takes_training(layers.Dropout(0.5))
    assert not objects.takes_training(layers.Flatten())
    assert objects.remat_mode(layers.Dense(1)) is None
    with keras.RematScope(mode="full"):
        assert objects.remat_mode(layers.Dense(1)) is not None


def test_variables():
    variable = keras.Variable([1.0])
    assert isinstance(objects.tensorflow_value(variable), tf.Variable)


def test_a_compiled_loss_and_its_copy(model):
    loss = objects.compile_loss(model)
    assert objects.compile_loss(keras.Sequential()) is None
    (part,) = objects.loss_parts(loss)
    assert part.loss_weights is None
    assert isinstance(part.loss, objects.LossFunctionWrapper)
    assert objects.loss_arguments(part.loss) == {}
    copy = objects.copied_loss(loss, objects.CompileLoss)
    arguments = tf.ones([2, 1]), tf.zeros([2, 1])
    assert float(copy(*arguments)) == float(loss(*arguments)) == 1.0
    tensor = layers.Masking()(tf.zeros([1, 2, 3]))
    assert getattr(tensor, objects.MASK) is not None
    probabilities = keras.activations.softmax(tf.zeros([1, 2]))
    assert getattr(probabilities, objects.LOGITS) is not None


def test_metrics(model):
    assert objects.loss_tracker(model) is model.metrics[0]
    assert objects.compile_metrics(model).built
    assert objects.given_metrics(model) == (["mae"], ["mse"])


def test_what_stands_around_a_call():
    seen = []

    class Asking(layers.Layer):
        def call(self, x):
            for name in (objects.CALL_CONTEXT, objects.AUTOCAST_SCOPE):
                seen.append(objects.global_state.get_global_attribute(name))
            return x

    layer = Asking(dtype="mixed_float16")
    layer(tf.zeros([1]), training=None)
    context, autocast = seen
    assert context.entry_layer is layer and autocast is not None
    with keras.StatelessScope(initialize_variables=False):
        objects.global_state.set_global_attribute(objects.UNINITIALIZED_VARIABLES, [])
        keras.Variable("zeros", shape=(1,))
        name = objects.UNINITIALIZED_VARIABLES
        assert len(objects.global_state.get_global_attribute(name)) == 1
        objects.global_state.set_global_attribute(name, [])


def test_training(model):
    assert not objects.is_distributed(model)
    fresh = keras.Sequential([layers.Dense(1)])
    fresh.compile("adam", "mse")
    objects.build_from(fresh, (tf.zeros([2, 3]), tf.zeros([2, 1])))
    assert fresh.built and fresh.optimizer.built

    class Hooked(objects.BuildHook, keras.Sequential):
        def built_from(self, data_batch):
            asked.append(data_batch)
            return objects.NOTHING_TO_BUILD

    asked = []
    hooked = Hooked([keras.Input((3,)), layers.Dense(1)])
    hooked.compile("sgd", "mse")
    hooked.fit(np.zeros((2, 3)), np.zeros((2, 1)), verbose=0)
    assert asked == [None]


def test_optimizers(model):
    adam = model.optimizer
    assert objects.variables_of_optimizer(adam) == model.trainable_variables
    assert len(objects.second_moments(adam)) == len(model.trainable_variables)
    assert objects.given_learning_rate(adam) is adam._learning_rate
    assert objects.given_learning_rate(object()) is None
    variable = model.trainable_variables[0]
    for excluded in ([], [variable]):
        decayed = keras.optimizers.SGD(weight_decay=0.1)
        decayed.exclude_from_weight_decay(excluded)
        decayed.build([variable])
        assert objects.uses_weight_decay(decayed, variable) == (not excluded)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 8)
    assert objects.given_learning_rate(keras.optimizers.SGD(schedule)) is schedule


def test_names_under_which_classes_are_saved():
    class Plain(keras.layers.Layer):
        pass

    objects.register_class(Plain, "compat>Plain")
    assert objects.registered_name(Plain) == "compat>Plain"
    assert issubclass(objects.Functional, keras.Model)

    def get_config(self):
        return {}

    objects.copy_config_mark(layers.Layer.get_config, get_config)
    assert get_config._is_default
    objects.copy_config_mark(layers.Dense.get_config, get_config)
    assert not get_config._is_default


def test_adapted_layers_are_told_from_those_that_were_given_all():
    numbers, words = np.arange(12.0)[:, None], np.array(["a", "b", "a"])
    layers = keras.layers
    from_data = {
        layers.Normalization(): numbers,
        layers.Discretization(num_bins=3): numbers,
        layers.StringLookup(): words,
        layers.IntegerLookup(): np.arange(3),
        layers.TextVectorization(): words,
    }
    given = [
        layers.Normalization(mean=0.0, variance=1.0),
        layers.Discretization(bin_boundaries=[1.0, 2.0]),
        layers.StringLookup(vocabulary=["a"]),
        layers.IntegerLookup(vocabulary=[1]),
        layers.TextVectorization(vocabulary=["a"]),
        layers.Hashing(3),
        layers.Dense(2),
    ]
    for layer, data in from_data.items():
        layer.adapt(data)
        assert objects.adapted_layers(layer) == [layer]
    assert not any(map(objects.adapted_layers, given))
