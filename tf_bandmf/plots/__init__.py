"""Pictures, one function each; they need matplotlib: `pip install "tf-bandmf[plot]"`.

    from tf_bandmf import plots

    axes = plots.per_step_error({"bisr:4": plan})
    axes.figure.savefig("error.png")

Every function takes an optional matplotlib axes and returns the axes that it drew on.
Lines differ in color and in dash, in colors that color-blind readers tell apart (Okabe and
Ito, 2008); heat maps are perceptually uniform. Errors are standard deviations per
coordinate, in units of `l2_norm_clip`.
"""

from tf_bandmf.plots.errors import (
    accumulated_noise,
    comparison_bars,
    per_step_error,
)
from tf_bandmf.plots.heat_maps import noising_matrix, strategy_matrix
from tf_bandmf.plots.outcomes import epsilon_of_delta, training_curves
from tf_bandmf.plots.overview import plan_overview

__all__ = [
    "accumulated_noise",
    "comparison_bars",
    "epsilon_of_delta",
    "noising_matrix",
    "per_step_error",
    "plan_overview",
    "strategy_matrix",
    "training_curves",
]
