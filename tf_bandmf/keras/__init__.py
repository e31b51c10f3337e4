"""Private training in Keras 3 on TensorFlow: `make_private` and `PrivateOptimizer`.

Without Keras 3 on TensorFlow, the import raises an ImportError that says what is
missing.
"""

from tf_bandmf.keras import _requirements  # noqa: F401  (raises first)
from tf_bandmf.keras.audit.one_run import RunAudit, audit_run
from tf_bandmf.keras.audit.private_metrics import (
    PrivateAccuracy,
    PrivateAUC,
    PrivateLoss,
    PrivateMean,
    PrivateMetric,
)
from tf_bandmf.keras.clipping import (
    Clipping,
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
from tf_bandmf.keras.model.cloning import replace_batch_norm
from tf_bandmf.keras.model.conversion import make_private, to_plain
from tf_bandmf.keras.model.preprocessing import split_preprocessing
from tf_bandmf.keras.model.privately import PrivateFit, fit_privately
from tf_bandmf.keras.model.reporting import (
    NoisyMetrics,
    PrivacyProgress,
    PrivateEvaluation,
)
from tf_bandmf.keras.model.training import PrivateTraining
from tf_bandmf.keras.optimizer.private import NoisyGradients, PrivateOptimizer
from tf_bandmf.keras.run.counts import PrivateCounts

__all__ = [
    "Clipping",
    "ClippingMismatchError",
    "Factor",
    "Instantiated",
    "LayerCall",
    "Layout",
    "NoisyGradients",
    "NoisyMetrics",
    "OneTapRule",
    "PrivacyProgress",
    "PrivateAUC",
    "PrivateAccuracy",
    "PrivateCounts",
    "PrivateEvaluation",
    "PrivateFit",
    "PrivateLoss",
    "PrivateMean",
    "PrivateMetric",
    "PrivateOptimizer",
    "PrivateTraining",
    "Product",
    "Rule",
    "RunAudit",
    "UnsupportedModelError",
    "audit_run",
    "fit_privately",
    "make_private",
    "register_per_example_layer",
    "register_rule",
    "replace_batch_norm",
    "split_preprocessing",
    "to_plain",
]
