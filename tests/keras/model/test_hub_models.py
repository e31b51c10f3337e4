"""Tasks of KerasHub: private training, and the way back to a plain task."""

import functools

import hub_models
import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras
from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.keras.run import known_runs

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


def private(model, plan):
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    hub_models.compile_for_training(model, optimizer, weighted_metrics=[])


@pytest.fixture(scope="module")
def train(make_plan):
    """Trains a task privately for one epoch."""

    def run(model, x, y, sample_weight=None, **changes):
        plan = make_plan(epochs=1)
        private(model, plan)
        batches = plan.batches(x, y, sample_weight=sample_weight)
        model.fit(batches, epochs=1, verbose=0, **changes)
        assert model.optimizer.steps_taken == plan.num_steps
        return model

    return run


@pytest.fixture(scope="module")
def trained(train):
    """Tasks that were trained, by name; no test changes them."""

    @functools.cache
    def by_name(name):
        known_runs.forget()
        model = hub_models.MAKERS[name]()
        x, y, weight = hub_models.data(name, NUM_EXAMPLES)
        before = [w.copy() for w in model.get_weights()]
        train(model, x, y, weight)
        assert any((a != b).any() for a, b in zip(before, model.get_weights()))
        return model, (x, y, weight)

    return by_name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "distil_bert", "gpt2", "gemma"])
def test_a_task_trains_and_becomes_plain(name, trained, tmp_path):
    model, (x, _, _) = trained(name)
    plain_class = type(hub_models.MAKERS[name]())
    assert isinstance(model, tf_bandmf.keras.PrivateTraining)
    assert isinstance(model, plain_class)
    plain = tf_bandmf.keras.to_plain(model)
    assert type(plain) is plain_class
    np.testing.assert_allclose(plain(x), model(x), rtol=1e-5, atol=1e-6)
    plain.save(tmp_path / "plain.keras")
    loaded = keras.models.load_model(tmp_path / "plain.keras")
    assert type(loaded) is plain_class
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-5, atol=1e-6)


def train_lazily(model, x, y, plan):
    tf_bandmf.keras.make_private(model, tables="lazy")
    inner = keras.optimizers.SGD(0.1)
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan, additional_run=True)
    hub_models.compile_for_training(model, optimizer, weighted_metrics=[])
    model.fit(plan.batches(x, y), epochs=1, verbose=0)


@pytest.mark.slow
def test_tables_that_are_not_tied_have_lazy_noise(make_plan):
    model, plan = hub_models.bert(), make_plan(epochs=1)
    x, y, _ = hub_models.data("bert", NUM_EXAMPLES)
    backbone = model.backbone
    tables = [
        backbone.token_embedding.embeddings,
        backbone.segment_embedding.embeddings,
    ]
    before = [table.numpy() for table in tables]
    train_lazily(model, x, y, plan)
    actual = model.optimizer.run.tables.variables
    assert {id(table) for table in actual} == {id(table) for table in tables}
    # Noise of a release is in every row, in those that no example has, too.
    for table, old in zip(tables, before):
        assert np.all(np.any(table.numpy() != old, axis=1))


def test_a_tied_table_is_refused_for_lazy_noise_with_the_reason(make_plan):
    model, plan = hub_models.gpt2(), make_plan(epochs=1)
    x, y, _ = hub_models.data("gpt2", NUM_EXAMPLES)
    with pytest.raises(UnsupportedModelError, match=r"token_embedding.*tied output"):
        train_lazily(model, x, y, plan)


@pytest.mark.slow
def test_a_private_task_is_saved_and_loaded(trained, tmp_path):
    model, (x, y, weight) = trained("gemma")
    model.save(tmp_path / "private.keras")
    again = keras.models.load_model(tmp_path / "private.keras")
    assert type(again) is type(model)
    np.testing.assert_allclose(again(x), model(x), rtol=1e-5, atol=1e-6)
    # Not with the Adam of KerasHub, which overrides `compile`.
    assert isinstance(again.optimizer, tf_bandmf.keras.PrivateOptimizer)
    assert again.optimizer.plan.fingerprint == model.optimizer.plan.fingerprint
    assert again.optimizer.steps_taken == 0 < int(again.optimizer.iterations)
    # Its key is in no file: it does not train, and not without privacy either.
    with pytest.raises(tf.errors.InvalidArgumentError, match="restored from a file"):
        again.fit(model.optimizer.plan.batches(x, y, sample_weight=weight), verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    assert (tmp_path / "exported" / "saved_model.pb").exists()


@pytest.mark.slow
def test_adapters_are_trained_saved_and_merged(train, tmp_path):
    model = hub_models.gpt2()
    frozen = tf_bandmf.keras.to_plain(tf_bandmf.keras.make_private(hub_models.gpt2()))
    frozen.set_weights(model.get_weights())
    model.backbone.enable_lora(2)
    x, y, weight = hub_models.data("gpt2", NUM_EXAMPLES)
    train(model, x, y, weight)
    model.backbone.save_lora_weights(tmp_path / "adapter.lora.h5")
    kept = [v.path for v in model.trainable_variables if "bias" in v.path]
    plain = tf_bandmf.keras.to_plain(model)
    np.testing.assert_allclose(plain(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(plain.weights) < len(model.weights)
    # Biases of adapted layers train, too, and are in no adapter file.
    assert len(kept) == 2
    for layer, adapted in zip(frozen._flatten_layers(), model._flatten_layers()):
        if getattr(adapted, "lora_enabled", False):
            layer.bias.assign(adapted.bias)
    frozen.backbone.load_lora_weights(tmp_path / "adapter.lora.h5")
    np.testing.assert_allclose(frozen(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_private_language_model_generates(trained):
    model, (x, _, _) = trained("gemma")
    prompt = {name: value[:2] for name, value in x.items()}
    results = [
        lm.generate(prompt, max_length=hub_models.LENGTH, stop_token_ids=None)
        for lm in (_greedy(model), _greedy(tf_bandmf.keras.to_plain(model)))
    ]
    first, second = (np.asarray(result["token_ids"]) for result in results)
    np.testing.assert_array_equal(first, second)


def _greedy(model):
    if isinstance(model, tf_bandmf.keras.PrivateTraining):
        model.compile(
            model.optimizer, loss=model.loss, sampler="greedy", weighted_metrics=[]
        )
    else:
        model.compile(sampler="greedy")
    return model


@pytest.mark.parametrize("how", ["fit", "train_on_batch", "private_gradients"])
@pytest.mark.invariant(16)
def test_a_preprocessor_in_the_step_is_refused(how, make_plan):
    model, plan = hub_models.bert(preprocessor()), make_plan(epochs=1)
    private(model, plan)
    batches = plan.batches(TEXTS, LABELS)
    given = batches if how == "fit" else next(iter(batches.dataset()))
    with pytest.raises(ValueError, match="map=preprocess"):
        getattr(model, how)(given)
    assert model.optimizer.steps_taken == 0


@pytest.mark.slow
def test_texts_train_by_map_and_are_predicted_with_the_preprocessor(train, make_plan):
    model, prepared, plan = hub_models.bert(), hub_models.bert(), make_plan(epochs=1)
    prepared.set_weights(model.get_weights())
    private(model, plan)
    batches = plan.batches(TEXTS, LABELS, map=preprocessor())
    model.fit(batches, verbose=0)
    x, y = preprocessor()(TEXTS, LABELS)
    x = keras.tree.map_structure(np.asarray, x)
    known_runs.forget()
    train(prepared, x, np.asarray(y))
    for first, second in zip(model.get_weights(), prepared.get_weights()):
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-5)
    model.preprocessor = preprocessor()
    actual = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(actual, model(x), rtol=1e-4, atol=1e-5)
    plain = tf_bandmf.keras.to_plain(model)
    np.testing.assert_allclose(plain.predict(TEXTS, verbose=0), actual, rtol=1e-5)


def test_a_preprocessor_with_a_cache_of_tokens_is_applied_before(make_plan):
    vocabulary = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["a b"])
    own = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=4)
    plan, texts = make_plan(epochs=1), ["ab", "b"] * 11
    with pytest.raises(ValueError, match="LookupTableInsert"):
        plan.batches(np.array(texts), map=own)
    x, y, weight = own(texts)
    batch = next(iter(plan.batches(x, y, weight).dataset()))
    assert batch["y"].shape[1:] == (4,) and batch["sample_weight"].shape[1:] == (4,)
