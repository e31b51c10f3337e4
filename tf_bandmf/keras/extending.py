"""Names for programs that extend private training in Keras.

Layer rules and registration, base classes of metrics, errors, and the classes of the
objects that `make_private`, `fit_privately` and custom training loops return.
"""

from tf_bandmf.keras.audit.private_metrics import PrivateMean, PrivateMetric
from tf_bandmf.keras.clipping import (
    ClippingMismatchError,
    Factor,
    Instantiated,
    LayerCall,
    Layout,
    OneTapRule,
    Product,
    Rule,
    UnsupportedModelError,
    register_per_example_layer,
    register_rule,
)
from tf_bandmf.keras.model.privately import PrivateFit
from tf_bandmf.keras.model.reporting import NoisyMetrics
from tf_bandmf.keras.model.training import PrivateTraining
from tf_bandmf.keras.optimizer.private import NoisyGradients
from tf_bandmf.keras.run.counts import PrivateCounts

__all__ = [
    "ClippingMismatchError",
    "Factor",
    "Instantiated",
    "LayerCall",
    "Layout",
    "NoisyGradients",
    "NoisyMetrics",
    "OneTapRule",
    "PrivateCounts",
    "PrivateFit",
    "PrivateMean",
    "PrivateMetric",
    "PrivateTraining",
    "Product",
    "Rule",
    "UnsupportedModelError",
    "register_per_example_layer",
    "register_rule",
]
