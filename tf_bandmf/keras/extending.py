"""Classes and functions for programs that extend private training in Keras.

This module exports layer rules and their registration, base classes of metrics, errors,
and the classes of the objects that `make_private`, `fit_privately` and custom training
loops return.
"""

from tf_bandmf.keras.clipping.factors.base import Factor as Factor
from tf_bandmf.keras.clipping.factors.base import Instantiated as Instantiated
from tf_bandmf.keras.clipping.factors.base import Product as Product
from tf_bandmf.keras.clipping.independence.registration import (
    register_per_example_layer as register_per_example_layer,
)
from tf_bandmf.keras.clipping.rules import register_rule as register_rule
from tf_bandmf.keras.clipping.rules.base import LayerCall as LayerCall
from tf_bandmf.keras.clipping.rules.base import Rule as Rule
from tf_bandmf.keras.clipping.tensors.errors import (
    ClippingMismatchError as ClippingMismatchError,
)
from tf_bandmf.keras.clipping.tensors.errors import (
    UnsupportedModelError as UnsupportedModelError,
)
from tf_bandmf.keras.metrics.counts import PrivateCounts as PrivateCounts
from tf_bandmf.keras.metrics.evaluation import NoisyMetrics as NoisyMetrics
from tf_bandmf.keras.metrics.private_metrics import PrivateMean as PrivateMean
from tf_bandmf.keras.metrics.private_metrics import PrivateMetric as PrivateMetric
from tf_bandmf.keras.model.privately import PrivateFit as PrivateFit
from tf_bandmf.keras.model.training import PrivateTraining as PrivateTraining
from tf_bandmf.keras.optimizer.private import NoisyGradients as NoisyGradients
