"""Branches and loops are read from what runs, not from the graphs kept beside it."""

import independence_cases as cases
import pytest
import tensorflow as tf

from tf_bandmf.graphs import shapes
from tf_bandmf.keras.clipping.independence import evaluation
from tf_bandmf.keras.clipping.proof.batch_axis import layers_executed_alone

BRANCHES, LOOPS = ("If", "StatelessIf"), ("While", "StatelessWhile")


def behind(tensor, types):
    """The operation of one of these types that a tensor comes from."""
    op = tensor.op
    while op.type not in types:
        op = op.inputs[0].op
    return op


def keep(runs, kept, attribute):
    """Puts the graph that one operation keeps beside another one, under its name."""
    graph = getattr(kept, attribute)
    graph.name = getattr(runs, attribute).name
    setattr(runs, attribute, graph)


def branch(x):
    found = [
        tf.cond(tf.constant(True), function, lambda: 2.0 * x)
        for function in (lambda: x[::-1] * 1.0, lambda: x * 1.0)
    ]
    keep(*(behind(result, BRANCHES) for result in found), "_true_graph")
    return x + tf.stop_gradient(found[0])


def loop(x):
    found = [
        tf.while_loop(lambda i, s: i < 1, body, (0, x))[1]
        for body in (
            lambda i, s: (i + 1, s[::-1] * 1.0),
            lambda i, s: (i + 1, s * 1.0),
        )
    ]
    keep(*(behind(result, LOOPS) for result in found), "_body_graph")
    return x + tf.stop_gradient(found[0])


def claimed(x):
    """A loop whose body claims that its state has one column, while it has two."""
    signature = [
        tf.TensorSpec([], "int32"),
        tf.TensorSpec([None, 1]),
        tf.TensorSpec(x.shape),
    ]

    @tf.function(input_signature=signature, autograph=False)
    def body(i, state, x):
        rows = tf.reshape(state, [-1, 1])[: tf.shape(x)[0]]
        return i + 1, tf.concat([rows, rows], 1), x

    @tf.function(input_signature=signature, autograph=False)
    def condition(i, state, x):
        return i < 2

    _, state, _ = tf.raw_ops.While(
        input=[tf.constant(0), x[:, 0, :1], x],
        cond=condition.get_concrete_function(),
        body=body.get_concrete_function(),
        output_shapes=[[], [None, None], x.shape],
    )
    return x + tf.stop_gradient(state[:, :1, None])


def set_by_hand(x):
    """A tensor of two columns whose shape is said to be of one."""
    two = tf.raw_ops.PlaceholderWithDefault(input=x[:, 0, :2], shape=[None, None])
    two.set_shape([None, 1])
    rows = tf.reshape(two, [-1, 1])[: tf.shape(x)[0]]
    return x + tf.stop_gradient(rows[:, :, None])


def said_in_a_function(x):
    """As `set_by_hand`, in a function that was traced before."""
    return x + tf.stop_gradient(_rows(x, _of_one_column(x)))


def said_in_a_branch(x):
    """As `set_by_hand`, in the branches of a condition."""
    always = tf.constant(True)
    found = tf.cond(always, lambda: _said(x), lambda: _said(x))
    return x + tf.stop_gradient(_rows(x, found))


def _said(x):
    two = _two(x)
    two.set_shape([None, 1])
    return two


def _two(x):
    """Two columns, whose number no static shape says."""
    return tf.raw_ops.PlaceholderWithDefault(input=x[:, 0, :2], shape=[None, None])


def said_by_a_library(x):
    """As `set_by_hand`, by a function of TensorFlow that is handed the method."""
    two = _two(x)
    tf.nest.map_structure(two.set_shape, tf.TensorShape([None, 1]))
    return x + tf.stop_gradient(_rows(x, two))


def said_by_a_name(x):
    """As `set_by_hand`, by code that says that it is TensorFlow's."""
    two = _two(x)
    code = {"__name__": "tensorflow.python.ops.math_ops"}
    exec("def claim(tensor, shape): tensor.set_shape(shape)", code)
    code["claim"](two, [None, 1])
    return x + tf.stop_gradient(_rows(x, two))


def said_unseen(x):
    """As `set_by_hand`, by a method that was kept before anything was traced."""
    two = tf.identity(_two(x))
    _KEPT(two, [None, 1])
    return x + tf.stop_gradient(_rows(x, two))


def said_of_arguments(x):
    """A function that was traced for one column, called on two."""
    columns = tf.TensorSpec([None, 1])
    same = tf.function(lambda t: t * 1.0, autograph=False)
    return x + tf.stop_gradient(_rows(x, same.get_concrete_function(columns)(_two(x))))


def said_in_an_attribute(x):
    """A tensor of unknown rank, and an operation that says another one."""
    two = tf.raw_ops.PlaceholderWithDefault(input=x[:, 0, :2], shape=None)
    one = tf.raw_ops.PlaceholderWithDefault(input=two, shape=[None, 1])
    return x + tf.stop_gradient(_rows(x, one))


_KEPT = tf.Tensor.set_shape
_of_one_column = tf.function(_said, autograph=False)


def _rows(x, found):
    return tf.reshape(found, [-1, 1])[: tf.shape(x)[0]][:, :, None]


CALLS = {
    "branch": branch,
    "loop": loop,
    "claimed": claimed,
    "set by hand": set_by_hand,
    "said in a function": said_in_a_function,
    "said in a branch": said_in_a_branch,
    "said by a library": said_by_a_library,
    "said by a name": said_by_a_name,
    "said unseen": said_unseen,
    "said of arguments": said_of_arguments,
}


@pytest.mark.attack(
    "Graphs kept beside what runs",
    tried="A branch and a loop that turn the batch around, beside which TensorFlow keeps "
    "the graph of harmless ones; a loop whose body claims another shape than it gets, and "
    "`set_shape` with another one than there is, by whichever code and in whichever way. "
    "The definitions are read, sizes follow from what holds in each round, and what "
    "nothing checks is not believed: the graph is made anew without it.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.slow_cases(
    "said by a library",
    "said by a name",
    "said in a branch",
    "said unseen",
    "branch",
    "said in a function",
    "said of arguments",
    "loop",
    "claimed",
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.invariant(16)
def test_what_runs_decides(name):
    layer = cases.Custom(CALLS[name])
    model = cases.model_with(layer)
    assert cases.executed_alone(model) == (layer,)
    assert cases.largest_change(model) <= 1 + 1e-3


@pytest.mark.parametrize("name", CALLS)
def test_the_functions_let_examples_meet(name):
    x, _ = cases.examples()
    other = x.copy()
    other[0] += 1
    function = tf.function(
        CALLS[name],
        autograph=False,
        input_signature=[tf.TensorSpec([None, *x.shape[1:]])],
    )
    assert (function(x).numpy()[1:] != function(other).numpy()[1:]).any()


@pytest.mark.invariant(16)
def test_a_shape_that_is_checked_runs_for_the_whole_batch():
    def checked(x):
        found = tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, None, None])
        return tf.ensure_shape(found, x.shape) * 2.0

    model = cases.model_with(cases.Custom(checked))
    assert cases.executed_alone(model) == ()


@pytest.mark.slow_cases("loop")
@pytest.mark.parametrize("name", ["branch", "loop"])
def test_the_measure_sees_a_kept_graph_that_is_believed(name, monkeypatch):
    made = evaluation.function_graph
    kept = {"branch": ("If", "_true_graph"), "loop": ("While", "_body_graph")}[name]

    def believed(op, name, given):
        graph = getattr(op, kept[1], None)
        same = graph is not None and graph.name == name
        return graph if same else made(op, name, given)

    monkeypatch.setattr(evaluation, "function_graph", believed)
    model = cases.model_with(cases.Custom(CALLS[name]))
    assert cases.largest_change(model) > 1.1


@pytest.mark.invariant(16)
def test_a_shape_that_an_attribute_says_is_not_believed():
    layer = cases.Custom(said_in_an_attribute)
    assert cases.executed_alone(cases.model_with(layer)) == (layer,)


def test_the_measure_sees_a_claim_that_is_believed(monkeypatch):
    monkeypatch.setattr(shapes.InferredShapes, "followed", lambda self, tensor: tensor)
    model = cases.model_with(cases.Custom(said_unseen))
    assert cases.largest_change(model) > 1.1


def product(x):
    """Products of matrices whose result TensorFlow says the shape of."""
    return tf.tensordot(x, tf.ones([cases.WIDTH, cases.WIDTH]), [[2], [0]])


FOLLOWING = {
    "tensordot": product,
    "einsum": lambda x: tf.einsum("btd,de->bte", x, tf.eye(cases.WIDTH)),
    "a loop": lambda x: tf.while_loop(
        lambda i, s: i < 2, lambda i, s: (i + 1, s * 2.0), (0, x)
    )[1],
    "a function": tf.function(
        lambda x: tf.reshape(x, [tf.shape(x)[0], cases.LENGTH, cases.WIDTH]),
        autograph=False,
    ),
    "a branch": lambda x: tf.cond(tf.constant(True), lambda: x * 2.0, lambda: x),
}


@pytest.mark.slow_cases("einsum", "a branch", "a loop")
@pytest.mark.parametrize("name", FOLLOWING)
def test_shapes_that_follow_are_found_again(name):
    model = cases.model_with(cases.Custom(FOLLOWING[name]))
    cases.clipping_of(model)(*cases.examples())
    assert layers_executed_alone(model) == ()
