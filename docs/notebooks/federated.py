# %% [markdown]
# # Federated averaging with correlated noise
#
# In this notebook, 400 devices train a model in 24 rounds, with 20 devices per round.
# Two participations of a device are at least 6 rounds apart. The mechanism assumes
# nothing else, not even amplification by sampling. Here the rounds are a custom loop,
# which uses the engine-independent parts of `tf-bandmf-federated`. The package also has
# complete programs for TensorFlow Federated and Flower.

# %%
import numpy as np

import tf_bandmf
from tf_bandmf import plots
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import measure_participation, measured_guarantee

DEVICES, ROUNDS, COHORT, FEATURES = 400, 24, 20, 10
participation = tf_bandmf.MinSep(min_separation=6, max_participations=4)
plans = {
    name: tf_bandmf.plan(
        mechanism,
        epsilon=8,
        delta=1e-4,
        num_steps=ROUNDS,
        sampling=participation,
        l2_norm_clip=1.0,
        unit="one device",
    )
    for name, mechanism in {"DP-FedAvg": "identity", "BLT": "blt:2"}.items()
}
axes = plots.per_step_error(plans)

# %% [markdown]
# ## The devices
#
# Each device has a few examples of the same linear model. The weights of the model are
# learned in many small steps, so the noise of all rounds adds up, unless later noise
# cancels earlier noise.

# %%
rng = np.random.default_rng(0)
truth = rng.normal(size=FEATURES)
inputs = 0.3 * rng.normal(size=(DEVICES, 8, FEATURES))
targets = inputs @ truth + 0.1 * rng.normal(size=(DEVICES, 8))


def update_of(device, weights, clip):
    """Returns a device's update, clipped to a fixed norm; in reality, on the device."""
    errors = inputs[device] @ weights - targets[device]
    update = -inputs[device].T @ errors / len(errors)
    return update * min(1.0, clip / np.linalg.norm(update))


# %% [markdown]
# ## Rounds
#
# In each round, devices are selected whose last participation was at least 6 rounds
# ago. Each round gets its noise, and the divisor is the public cohort size.


# %%
def run(plan):
    b, k = plan.participation.min_separation, plan.participation.max_participations
    last, counts = np.full(DEVICES, -b), np.zeros(DEVICES, int)
    noise = NoiseGenerator(plan.strategy, FEATURES)
    state = noise.initial_state(NoiseKey.from_operating_system())
    weights, losses, record = np.zeros(FEATURES), [], {}
    for now in range(ROUNDS):
        free = np.flatnonzero((now - last >= b) & (counts < k))
        chosen = rng.choice(free, COHORT, replace=False)
        last[chosen], counts[chosen], record[now] = now, counts[chosen] + 1, chosen
        total = sum(update_of(device, weights, plan.l2_norm_clip) for device in chosen)
        row, state = noise.next(state, now)
        total = total + plan.noise_stddev * row.numpy()
        weights = weights + total / COHORT
        losses.append(float(np.linalg.norm(weights - truth)))
    return measure_participation(record), losses


outcomes = {name: run(plan) for name, plan in plans.items()}
axes = plots.training_curves(
    {name: [losses] for name, (_, losses) in outcomes.items()},
    "distance to the true weights",
)
axes.set_xlabel("round")

# %% [markdown]
# ## The guarantee of the actual participation
#
# The plan's guarantee is for the worst case. From a record of the actual participation,
# one can compute a guarantee that may be better.

# %%
measured = outcomes["BLT"][0]
actual = measured_guarantee(plans["BLT"], measured)
print(measured)
print(f"planned epsilon {actual.planned.epsilon:.3f}")
print(f"measured epsilon {actual.guarantee.epsilon:.3f} ({actual.guarantee.kind})")
