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
from tf_bandmf.keras.model import preprocessing
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


def private(model, plan, self_check=False):
    tf_bandmf.keras.make_private(model, self_check=self_check)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    hub_models.compile_for_training(model, optimizer, weighted_metrics=[])


@pytest.fixture(scope="module")
def train(make_plan):
    """Trains a task privately for one epoch."""

    def run(model, x, y, sample_weight=None, self_check=False, **changes):
        plan = make_plan(epochs=1)
        private(model, plan, self_check)
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
        train(model, x, y, weight, self_check=name == "distil_bert")
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
    tf_bandmf.keras.make_private(model, self_check=False, tables="lazy")
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
    found = model.optimizer.run.tables.variables
    assert {id(table) for table in found} == {id(table) for table in tables}
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


WEIGHTS = np.linspace(0.5, 1.5, NUM_EXAMPLES).astype(np.float32)


@pytest.fixture(scope="module")
def on_strings(train, tmp_path_factory):
    """A task trained on strings, its first weights, and the shapes preprocessed."""
    known_runs.forget()
    keras.utils.set_random_seed(0)
    model = hub_models.bert(preprocessor())
    before, seen = model.get_weights(), []
    original = type(model).preprocess_samples

    class Watched(type(model)):
        def preprocess_samples(self, x, y=None, sample_weight=None):
            seen.append(tuple(x.shape))
            return original(self, x, y, sample_weight)

    model.__class__ = Watched
    private = tmp_path_factory.mktemp("strings") / "run.private"
    train(model, TEXTS, LABELS, WEIGHTS, private_state=private)
    return model, before, tuple(seen)


@pytest.mark.slow
def test_raw_strings_are_preprocessed_example_by_example(on_strings):
    model, _, seen = on_strings
    assert set(seen) == {(1,)}
    x, _ = preprocessor()(TEXTS, LABELS)
    np.testing.assert_allclose(
        model.predict(TEXTS, verbose=0), model(x), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_plain_task_has_the_vocabulary(on_strings, tmp_path):
    model, *_ = on_strings
    expected = model.predict(TEXTS, verbose=0)
    plain = tf_bandmf.keras.to_plain(model)
    np.testing.assert_allclose(plain.predict(TEXTS, verbose=0), expected, rtol=1e-5)
    plain.save(tmp_path / "plain.keras")
    known = {"Watched": type(plain)}
    loaded = keras.models.load_model(tmp_path / "plain.keras", custom_objects=known)
    np.testing.assert_allclose(loaded.predict(TEXTS, verbose=0), expected, rtol=1e-5)


@pytest.mark.slow
def test_raw_strings_train_as_prepared_data_do(train, on_strings):
    raw, before, _ = on_strings
    prepared = hub_models.bert()
    prepared.set_weights(before)
    x, y = preprocessor()(TEXTS, LABELS)
    x = keras.tree.map_structure(np.asarray, x)
    train(prepared, x, np.asarray(y), WEIGHTS)
    for first, second in zip(raw.get_weights(), prepared.get_weights()):
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.invariant(11)
def test_a_random_preprocessor_is_not_resumed(train, tmp_path):
    class Noisy(keras.layers.Layer):
        def call(self, texts):
            count = tf.shape(texts)[0]
            ids = tf.random.uniform([count, 6], 1, 12, dtype=tf.int32)
            ids = tf.ensure_shape(ids, [1, 6])
            ones = tf.ones_like(ids)
            return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ones}

    with pytest.raises(ValueError, match="other batches under the same noise"):
        train(
            hub_models.bert(Noisy()), TEXTS, LABELS, private_state=tmp_path / "private"
        )
    train(hub_models.bert(Noisy()), TEXTS, LABELS)


def changed(kind):
    """A preprocessor that looks like KerasHub's, and keeps what it sees."""
    own = preprocessor()
    kept = tf.Variable(tf.zeros([6], tf.int32))

    def call(x, y=None, sample_weight=None):
        found = keras_hub.models.BertTextClassifierPreprocessor.call(
            own, x, y, sample_weight
        )
        kept.assign_add(found[0]["token_ids"][0])
        return found

    if kind == "method":
        own.call = call
    elif kind == "name":
        own.__class__ = type(
            "BertTextClassifierPreprocessor",
            (keras_hub.models.BertTextClassifierPreprocessor,),
            {
                "call": lambda self, x, y=None, sample_weight=None: call(x, y),
                "__module__": keras_hub.models.BertTextClassifierPreprocessor.__module__,
            },
        )
    return own


@pytest.mark.slow_cases("name", "none")
@pytest.mark.parametrize("kind", ["method", "name", "none"])
@pytest.mark.invariant(16)
def test_what_only_looks_like_kerashubs_keeps_nothing(kind, make_plan):
    model, plan = hub_models.bert(preprocessor=changed(kind)), make_plan(epochs=1)
    private(model, plan)
    batch = next(iter(plan.batches(TEXTS, LABELS).dataset()))
    if kind == "none":
        preprocessing.preprocessed_batch(model, batch)
        return
    with pytest.raises(ValueError, match="no function of one example"):
        preprocessing.preprocessed_batch(model, batch)


@pytest.mark.slow_cases("own")
@pytest.mark.parametrize("keys", ["own", "one for all"])
@pytest.mark.invariant(16)
def test_the_cache_of_tokens_has_the_keys_of_kerashub(keys, make_plan):
    vocabulary = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["a b"])
    own = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=4)
    model = hub_models.gpt2()
    model.preprocessor, plan = own, make_plan(epochs=1)
    private(model, plan)
    batch = next(iter(plan.batches(np.array(["ab", "b"] * 11)).dataset()))
    if keys == "own":
        preprocessing.preprocessed_batch(model, batch)
        return
    tokenizer.cache.factors = tf.zeros([8], tf.int64)
    with pytest.raises(ValueError, match="no function of one example"):
        preprocessing.preprocessed_batch(model, batch)
