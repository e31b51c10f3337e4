"""Steps with large embedding tables: private ones beside ordinary ones, in one run.

An ordinary step has a sparse update: the gradient of the table is `tf.IndexedSlices`, and
SGD subtracts from the rows that were looked up. It is that of `keras.Model.fit`; beside it
stands one that is written by hand, which has no metric and none of Keras' Python. An
ordinary dense step, by hand, makes a tensor of the table's shape of the gradient, and SGD
changes all rows. A private step draws the noise of rows when they are read
(`make_private(tables="lazy")`), and has ratios to both sparse ones; or it draws that of all
rows (`tables="dense"`), and its ratio is to the dense one. A release draws what all rows
are behind by; beside it stands one draw of as many independent normals.

Steps are measured after a hundred: in its first ninety runs or so TensorFlow takes an
operation for an expensive one, and hands it to another thread.

    python benchmarks/embeddings.py                        # 10^4 to 10^6 rows, 16 columns
    python benchmarks/embeddings.py --rows 10000000 --columns 64 --no-dense
    python benchmarks/embeddings.py --rows 1000000 --batch 4096 --length 20 --no-dense
    python benchmarks/embeddings.py --processor-time       # where others are busy, too
    python benchmarks/embeddings.py --rows 10000 100000 1000000 10000000 --in-turns

Each line is a process of its own: its peak of memory is that of its largest table. With
--in-turns private steps of all sizes are taken in turns, in one process.
"""

import argparse
import resource
import subprocess
import sys
import time

BATCH, LENGTH, STEPS, EXAMPLES = 500, 4, 100, 20_000
WARM_UP, EPOCHS = 100, 8
CLOCK = time.perf_counter


def seconds(functions, repeats, before=2):
    """Of each function, called in turns: the first decile, or the median of processor time.

    Others use the machine. What they take does not count as processor time, but slows it,
    and a short step more often falls between them than a long one.
    """
    taken = [[] for _ in functions]
    for repeat in range(before + repeats):
        for function, own in zip(functions, taken):
            start = CLOCK()
            function()
            if repeat >= before:
                own.append(CLOCK() - start)
    share = 2 if CLOCK is time.process_time else 10
    return [sorted(own)[len(own) // share] for own in taken]


def network(rows, columns):
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(rows, columns),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def ordinary(rows, columns, ids, labels, loss, is_sparse=True):
    """A step whose update of the table is sparse; or dense, as Keras' SGD makes it."""
    import tensorflow as tf

    model = network(rows, columns)
    variables = [variable.value for variable in model.trainable_variables]
    table, others = variables[0], variables[1:]

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            found = tf.nn.embedding_lookup(table, x)
            hidden = tf.reshape(found, [-1, LENGTH * columns])
            hidden = tf.nn.relu(hidden @ others[0] + others[1])
            value = loss(y, hidden @ others[2] + others[3])
        first, *gradients = tape.gradient(value, variables)
        if is_sparse:
            table.scatter_sub(tf.IndexedSlices(0.1 * first.values, first.indices))
        else:
            table.assign_sub(0.1 * tf.convert_to_tensor(first))
        for variable, gradient in zip(others, gradients):
            variable.assign_sub(0.1 * gradient)
        return value

    data = tf.data.Dataset.from_tensor_slices((ids, labels)).repeat().batch(BATCH)
    batches = iter(data)
    return lambda: step(*next(batches)).numpy()


def of_keras(rows, columns, ids, labels, loss):
    """A step of `keras.Model.fit`. XLA, which would make the update dense, is off."""
    import keras
    import tensorflow as tf

    model = network(rows, columns)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    model.train_on_batch(ids[:BATCH], labels[:BATCH])
    model.make_train_function()
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).repeat().batch(BATCH)
    batches = iter(data)
    return lambda: [float(v) for v in model.train_function(batches).values()]


def private(rows, columns, ids, labels, loss, mechanism, tables):
    """A step, and a release after a step."""
    import keras

    import tf_bandmf
    import tf_bandmf.keras

    plan = tf_bandmf.plan(
        mechanism,
        epsilon=8,
        delta=1e-6,
        num_examples=EXAMPLES,
        batch_size=BATCH,
        epochs=EPOCHS,
    )
    model = tf_bandmf.keras.make_private(network(rows, columns), tables=tables)
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(0.1), plan, additional_run=True
    )
    model.compile(optimizer, loss)
    schedule = plan.batches(ids, labels)
    first = next(iter(schedule.dataset(0)))
    model.train_on_batch(first)
    model.make_train_function()
    batches = iter(schedule.dataset(1))
    table = model.trainable_variables[0]

    def step():
        return [float(value) for value in model.train_function(batches).values()]

    def release():
        model.release()
        return float(table[0, 0])

    return step, release


def draw(rows, columns):
    """One draw of as many normals as the table has numbers."""
    import tensorflow as tf

    from tf_bandmf.noise import standard_normals
    from tf_bandmf.noise.keys import NoiseKey

    keys = tf.constant(NoiseKey.for_testing(0).step_keys(1)[0])
    return lambda: standard_normals(keys, rows * columns)[:1].numpy()


def arguments_of(rows, columns):
    """Of a step: the shape of its table, examples and loss."""
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, (EXAMPLES, LENGTH)).astype("int32")
    labels = (rng.random((EXAMPLES, 1)) < 0.3).astype("float32")
    return rows, columns, ids, labels, keras.losses.BinaryCrossentropy(from_logits=True)


def measure_in_turns(sizes, columns, mechanism):
    """Prints what a private step takes at each size, and how much that varies."""
    import tf_bandmf.keras  # noqa: F401

    steps = [private(*arguments_of(n, columns), mechanism, "lazy")[0] for n in sizes]
    taken = seconds(steps, STEPS, WARM_UP)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    for rows, own in zip(sizes, taken):
        print(f"{rows:>10,} {columns:>3} {mechanism:<11}{1e3 * own:>9.2f}", flush=True)
    print(
        f"{'varies by':<26}{max(taken) / min(taken):>9.2f}{peak:>8.2f} GB", flush=True
    )


def measure(rows, columns, mechanism, dense):
    """Prints a line of the table."""
    import tf_bandmf.keras  # noqa: F401

    arguments = arguments_of(rows, columns)
    step, release = private(*arguments, mechanism, "lazy")
    steps = [of_keras(*arguments), ordinary(*arguments), step]
    keras_step, by_hand, lazy = seconds(steps, STEPS, WARM_UP)
    whole, eager = float("nan"), float("nan")
    if dense:
        steps = [ordinary(*arguments, is_sparse=False)]
        steps.append(private(*arguments, mechanism, "dense")[0])
        # What a large table takes hides what a thread more takes.
        few = min(STEPS, max(20, 2 * 10**8 // (rows * columns)))
        whole, eager = seconds(steps, few, few)
    releases = []
    for _ in range(5):
        step()
        start = CLOCK()
        release()
        releases.append(CLOCK() - start)
    release_time = sorted(releases)[2 if CLOCK is time.process_time else 0]
    (once,) = seconds([draw(rows, columns)], 9)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{rows:>10,} {columns:>3} {mechanism:<11}{1e3 * keras_step:>8.2f}"
        f"{1e3 * by_hand:>8.2f}{1e3 * lazy:>8.2f}{lazy / keras_step:>7.2f}"
        f"{lazy / by_hand:>7.2f}{1e3 * whole:>8.1f}{1e3 * eager:>9.1f}"
        f"{eager / whole:>7.2f}{1e3 * once:>8.1f}"
        f"{1e3 * release_time:>9.0f}{release_time / once:>7.1f}{peak:>7.2f}",
        flush=True,
    )


def main():
    global BATCH, LENGTH, EXAMPLES, CLOCK
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10**4, 10**5, 10**6])
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--mechanisms", nargs="*", default=["dp_sgd", "lambda_cgd"])
    parser.add_argument("--no-dense", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=LENGTH, help="ids of an example")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--in-turns", action="store_true")
    given = parser.parse_args()
    # An epoch of the plan has 40 steps.
    BATCH, LENGTH, EXAMPLES = given.batch, given.length, 40 * given.batch
    if given.processor_time:
        CLOCK = time.process_time
    if given.one:
        mechanism = given.mechanisms[0]
        if given.in_turns:
            measure_in_turns(given.rows, given.columns, mechanism)
        else:
            measure(given.rows[0], given.columns, mechanism, not given.no_dense)
        return
    if not given.in_turns:
        print(
            f"{'rows':>10}{'col':>4} {'mechanism':<11}{'Keras':>8}{'by hand':>8}{'lazy':>8}"
            f"{'/Keras':>7}{'/hand':>7}{'dense':>8}{'private':>9}{'ratio':>7}"
            f"{'draw':>8}{'release':>9}{'/draw':>7}{'GB':>7}   (ms)",
            flush=True,
        )
    for mechanism in given.mechanisms:
        for rows in [given.rows] if given.in_turns else [[n] for n in given.rows]:
            command = [sys.executable, __file__, "--one", "--rows", *map(str, rows)]
            command += ["--columns", str(given.columns), "--mechanisms", mechanism]
            command += ["--batch", str(given.batch), "--length", str(given.length)]
            command += ["--no-dense"] * given.no_dense
            command += ["--processor-time"] * given.processor_time
            command += ["--in-turns"] * given.in_turns
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
