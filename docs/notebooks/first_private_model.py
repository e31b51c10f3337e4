# %% [markdown]
# # A first private model
#
# This notebook trains on handwritten digits from scikit-learn: 1,440 images for
# training, 357 for testing. The same model is trained twice at the same (ε, δ): with
# DP-SGD, whose noise is fresh at every step, and with BISR, whose noise cancels part of
# the noise added before.

# %%
import keras
import numpy as np
import sklearn.datasets

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import plots

digits = sklearn.datasets.load_digits()
order = np.random.RandomState(0).permutation(len(digits.target))
x, y = digits.data[order].astype("float32") / 16, digits.target[order]
x_train, y_train, x_test, y_test = x[:1440], y[:1440], x[1440:], y[1440:]

# %% [markdown]
# ## Plans come first
#
# Before any data are read, a plan fixes everything on which the guarantee depends: the
# budget, the number of examples, the batches, the mechanism and the momentum of the
# optimizer.

# %%
EPOCHS = 10
use = {"num_examples": 1440, "batch_size": 48, "epochs": EPOCHS}
use["workload"] = "sgd:momentum=0.9"
plans = {
    "DP-SGD": tf_bandmf.plan("identity", epsilon=4, delta=1e-4, **use),
    "BISR": tf_bandmf.plan("bisr", epsilon=4, delta=1e-4, **use),
}
for name, plan in plans.items():
    print(f"{name:7s} RMSE of the noise {plan.rmse():.2f}")

# %% [markdown]
# The picture shows the noise in one weight of the model; both curves use the same
# random numbers.

# %%
axes = plots.accumulated_noise(plans)

# %% [markdown]
# ## Training
#
# A Keras program needs only three changes: `make_private`, `PrivateOptimizer` and the
# batches of the plan. The learning rate and the averaging of the weights are computed
# from the noise of the plan and the size of the model: nothing is tuned.
# `additional_run=True` confirms that the second run, which spends a second budget on
# the same data, is intended.


# %%
def train(plan):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10),
        ]
    )
    tf_bandmf.keras.make_private(model)
    advised = plan.optimizer_arguments(model.count_params())
    model.compile(
        optimizer=tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(**advised), plan, additional_run=True
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        plan.batches(x_train, y_train),
        epochs=EPOCHS,
        validation_data=(x_test, y_test),
        verbose=0,
    )
    return model, history.history["val_accuracy"]


trained = {name: train(plan) for name, plan in plans.items()}
curves = {name: [accuracy] for name, (_, accuracy) in trained.items()}
axes = plots.training_curves(curves)

# %% [markdown]
# ## What to say about the model
#
# A plan's privacy statement holds if the plan's run is the only run on the data. Two
# runs compose: the joint guarantee covers both runs.

# %%
print(plans["BISR"].statement())
joint = tf_bandmf.compose(list(plans.values()))
print(f"\nBoth runs: epsilon = {joint.epsilon(1e-4):.2f} at delta = 1e-4")

# %% [markdown]
# ## Release
#
# `to_plain` returns a Keras model without keys, noise and private optimizer.

# %%
released = tf_bandmf.keras.to_plain(trained["BISR"][0])
print(type(released).__name__, released.predict(x_test[:1], verbose=0).argmax())
