"""Models that preprocess raw data themselves, such as tasks of KerasHub."""

from __future__ import annotations

from typing import Any


def refuse_preprocessor(model: Any) -> None:
    """Raises ValueError if a model would preprocess whole batches in its step.

    Args:
      model: private, of any class.
    """
    is_none = getattr(model, "preprocessor", None) is None
    if is_none or not hasattr(model, "preprocess_samples"):
        return
    raise ValueError(
        f"Model {model.name!r} has a preprocessor, which would see whole batches. Take it "
        f"out, and let the batches call it for each example: preprocess = "
        f"model.preprocessor; model.preprocessor = None; plan.batches(x, y, "
        f"map=preprocess). Apply one that keeps a cache of tokens, or that makes targets, "
        f"beforehand: x, y, sample_weight = preprocess(texts). To predict from raw data, "
        f"set model.preprocessor = preprocess after training."
    )
