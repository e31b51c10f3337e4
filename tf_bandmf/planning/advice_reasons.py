"""Why an advice is what it is, in sentences; and the clip norm, with its reason."""

from __future__ import annotations

import math

import numpy as np

from tf_bandmf.planning import learning_rates, run_settings
from tf_bandmf.planning.gradient_sample import GradientSample
from tf_bandmf.planning.run_settings import RunSetting

# Clip norm, as a part of the median norm of gradients at the initial weights. Fashion-MNIST
# (scattering, linear), last weights at the best of 7 rates, one seed: 1/100 and 1/10 are
# within 0.2 points of each other, 1 costs 0.4 points with DP-SGD and 0.2 with BISR
# (`benchmarks/utility/advised.py --ablation`). Small clip norms are alike, as updates of
# normalized gradients are: De et al., 2022, arXiv:2204.13650, Bu et al., 2022,
# arXiv:2206.07136.
_CLIP_PART = 0.1
_DEFAULT_CLIP = 1.0

AVERAGE = (
    "Release the moving average of the weights, which remembers a tenth of the steps: "
    "use_ema=True and this ema_momentum in a Keras optimizer. At good learning rates it "
    "was never worse than the last weights, and up to 5 points better."
)


def clip_norm(sample: GradientSample | None) -> tuple[float, str]:
    """A part of the median norm, so that nearly all gradients are clipped.

    Clipping nearly all makes every example count alike as long as it is not learned,
    while noise falls in proportion to the clip norm. See `_CLIP_PART` for the measurement.
    """
    if sample is None:
        return _DEFAULT_CLIP, (
            "Without public gradients 1, the usual value; with most gradients above it "
            "only clip norm times learning rate matters."
        )
    median = float(np.median(sample.norms))
    clip = float(f"{_CLIP_PART * median:.3g}")
    clipped = 100.0 * float(np.mean(sample.norms > clip))
    return clip, (
        f"A tenth of the median norm of {sample.norms.size} public gradients, "
        f"{median:.3g}; it clips {clipped:.0f}% of them."
    )


def of_mechanism(reason: str) -> str:
    """Why this mechanism: the words of `plan`, which are about noise on sums."""
    return f"{reason} Batch sizes were compared with closed forms."


def of_rate(setting: RunSetting, fan_in: float, is_guess: bool) -> str:
    """Why this learning rate; see `learning_rates.per_clip_unit`."""
    rate = setting.learning_rate
    noise = rate * setting.rmse / setting.expected_batch_size * math.sqrt(fan_in)
    text = (
        f"{rate:.3g} divided by the clip norm: noise in a weight is then {noise:.2g} / "
        f"sqrt(fan-in), where the best rates that we measured had 2 to 6."
    )
    if setting.has_few_steps:
        text += (
            f" The noise would allow more; larger ones than "
            f"{learning_rates.LARGEST:g} (1 - momentum) were never best in our "
            f"measurements."
        )
    if is_guess:
        text += (
            f" The fan-in was not given: {fan_in:.0f}, ten times the root of the number "
            f"of parameters, is a guess, and a four times larger one halves the rate."
        )
    return text


def of_signal(sample: GradientSample | None) -> str:
    """What the noise-to-signal ratio is."""
    if sample is None:
        return (
            "Norm of the noise in the models as a part of what they learn, if all "
            "gradients pointed the same way; public gradients say how far they do."
        )
    if sample.alignment == 0.0:
        return (
            "The public gradients have no common direction: at these weights there is "
            "no signal, and the ratio is that of gradients that all point the same way."
        )
    return (
        f"Norm of the noise in the models as a part of what they learn: the mean of the "
        f"public gradients keeps {sample.alignment:.2g} of the clip norm at these "
        f"weights."
    )


def of_epochs(scan: run_settings.Scan, setting: RunSetting) -> str:
    """What more compute would do."""
    names = (setting.mechanism,)
    doubled = scan.mechanisms(
        setting.sampling, setting.batch_size, 2 * setting.epochs, names
    )
    less = 100.0 * (1.0 - next(doubled).noise_to_signal / setting.noise_to_signal)
    effect = f"would lower noise to signal by {less:.0f}%"
    if less < 1.0:
        effect = "would not lower noise to signal"
    return f"As many as the compute allows. Twice as many {effect}."


def in_percent(one: RunSetting, than: RunSetting) -> str:
    """How much more or less noise one setting has than another."""
    part = 100.0 * (one.noise_to_signal / than.noise_to_signal - 1.0)
    if abs(part) < 0.5:
        return "as much"
    return f"{abs(part):.0f}% {'more' if part > 0.0 else 'less'}"
