# %% [markdown]
# # Choosing a mechanism
#
# This notebook needs no data and no training, because the plan determines the error of
# the noise. The plans are for 20,000 examples, batches of 250 and 8 epochs, which make
# 640 steps.

# %%
from matplotlib import pyplot as plt

import tf_bandmf
from tf_bandmf import plots

budget = {"epsilon": 4, "delta": 1e-6}
use = {"num_examples": 20_000, "batch_size": 250, "epochs": 8}

# %% [markdown]
# ## A table
#
# RMSE is the root mean square, over steps, of the standard deviation of the noise in a
# coordinate of the model; max SE is the standard deviation at the worst step.
# `tf-bandmf compare` prints the same table.

# %%
names = ["identity", "tree", "lambda_cgd", "bisr:4", "bisr:16", "bsr:16", "blt"]
table = tf_bandmf.compare(names, **use)
print(table)
axes = plots.comparison_bars(table)

# %% [markdown]
# ## What the matrices look like
#
# C⁻¹ defines the noise of each step: step i adds row i of C⁻¹Z. Negative entries cancel
# noise of earlier steps. BISR has few negative entries per row; BLT summarizes all
# earlier noise in a few vectors.

# %%
plans = {
    name: tf_bandmf.plan(name, **budget, **use)
    for name in ("identity", "bisr:4", "blt")
}
figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for axes, name in zip(panels, ("bisr:4", "blt")):
    plots.noising_matrix(plans[name].strategy, rows=32, axes=axes)
    axes.set_title(f"{name}: {axes.get_title()}")

# %% [markdown]
# ## Error after each step

# %%
axes = plots.per_step_error(plans)

# %% [markdown]
# ## How many bands?
#
# Under cyclic Poisson sampling, fewer bands mean more amplification, and more bands
# mean better correlations.

# %%
names = [f"bsr:{bands}" for bands in (1, 2, 4, 8, 16, 32)]
table = tf_bandmf.compare(
    names, epsilon=2, delta=1e-6, sampling="cyclic-poisson", **use
)
print(table.reason)

# %% [markdown]
# ## The privacy of one run at other δ

# %%
axes = plots.epsilon_of_delta({"any of the plans above": plans["bisr:4"]})
