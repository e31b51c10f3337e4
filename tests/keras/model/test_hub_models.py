"""Tests private training of KerasHub tasks, and their conversion to plain tasks."""

import hub_models
import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, flat, refused
from small_models import make_plan, make_private_model

import tf_bandmf.keras
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.run import admission

NUM_EXAMPLES = 22
TEXTS = np.array(
    ["the cat sat", "a dog", "on the mat", "cat", "the dog sat on a cat"] * 4
    + ["mat", "a a"]
)
LABELS = np.arange(NUM_EXAMPLES, dtype=np.int32) % hub_models.CLASSES


def preprocessor():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary += ["the", "a", "cat", "dog", "sat", "on", "mat"]
    tokenizer = keras_hub.tokenizers.BertTokenizer(vocabulary=vocabulary)
    return keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=6)


def train(model, x, y, sample_weight=None, **drawn):
    """Trains a KerasHub task privately for one epoch, and returns it."""
    admission.forget()
    plan = make_plan(epochs=1)
    make_private_model(plan, model=model, weighted_metrics=[])
    model.fit(plan.batches(x, y, sample_weight, **drawn), verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distil_bert", "gpt2", "gemma"])
def test_a_task_trains_is_saved_and_becomes_plain(name, tmp_path):
    model = hub_models.MAKERS[name]()
    plain_class, before = type(model), flat(model)
    x, y, weight = hub_models.data(name, NUM_EXAMPLES)
    train(model, x, y, weight)
    assert np.any(flat(model) != before)
    assert isinstance(model, tf_bandmf.keras.extending.PrivateTraining)
    assert isinstance(model, plain_class)
    model.save(tmp_path / "private.keras")
    again = keras.models.load_model(tmp_path / "private.keras")
    assert type(again) is type(model)
    # After loading, KerasHub's `compile` must not replace the private optimizer with
    # Adam.
    assert isinstance(again.optimizer, tf_bandmf.keras.PrivateOptimizer)
    assert again.optimizer.plan.fingerprint == model.optimizer.plan.fingerprint
    assert again.optimizer.steps_taken == 0 < int(again.optimizer.iterations)
    # Model files never contain the run's key, so a loaded model cannot train.
    with pytest.raises(tf.errors.InvalidArgumentError, match="restored from a file"):
        again.fit(model.optimizer.plan.batches(x, y, sample_weight=weight), verbose=0)
    plain = tf_bandmf.keras.to_plain(model)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert type(plain) is type(loaded) is plain_class
    for other in (again, plain, loaded):
        np.testing.assert_allclose(other(x), model(x), rtol=1e-5, atol=1e-6)
    if name != "gemma":
        return
    prompt, results = {key: value[:2] for key, value in x.items()}, []
    compiled = {"optimizer": model.optimizer, "loss": model.loss}
    model.compile(**compiled, sampler="greedy", weighted_metrics=[])
    plain.compile(sampler="greedy")
    for lm in (model, plain):
        texts = lm.generate(prompt, max_length=hub_models.LENGTH, stop_token_ids=None)
        results.append(np.asarray(texts["token_ids"]))
    np.testing.assert_array_equal(*results)


def train_lazily(model, x, y, plan):
    settings = {"tables": "lazy"}
    make_private_model(plan, model=model, settings=settings, weighted_metrics=[])
    model.fit(plan.batches(x, y), epochs=1, verbose=0)


def test_a_tied_table_is_refused_for_lazy_noise_with_the_reason():
    model, plan = hub_models.gpt2(), make_plan(epochs=1)
    x, y, _ = hub_models.data("gpt2", NUM_EXAMPLES)
    with pytest.raises(UnsupportedModelError, match=r"token_embedding.*tied output"):
        train_lazily(model, x, y, plan)


@pytest.mark.invariant(16)
def test_a_preprocessor_in_the_step_is_refused():
    model, plan = hub_models.bert(preprocessor()), make_plan(epochs=1)
    make_private_model(plan, model=model, weighted_metrics=[])
    batches = plan.batches(TEXTS, LABELS)
    first = next(iter(batches.dataset()))
    for call, given in (
        (model.fit, batches),
        (model.train_on_batch, first),
        (model.private_gradients, first),
    ):
        with refused(model, ValueError, "map=preprocess"):
            call(given)


@pytest.mark.slow
def test_texts_train_by_map_and_are_predicted_with_the_preprocessor():
    model, prepared = hub_models.bert(), hub_models.bert()
    prepared.set_weights(model.get_weights())
    train(model, TEXTS, LABELS, map=preprocessor())
    x, y = keras.tree.map_structure(np.asarray, preprocessor()(TEXTS, LABELS))
    train(prepared, x, y)
    assert_same(model, prepared, rtol=1e-3, atol=1e-5)
    model.preprocessor = preprocessor()
    actual = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(actual, model(x), rtol=1e-4, atol=1e-5)
    plain = tf_bandmf.keras.to_plain(model)
    np.testing.assert_allclose(plain.predict(TEXTS, verbose=0), actual, rtol=1e-5)
