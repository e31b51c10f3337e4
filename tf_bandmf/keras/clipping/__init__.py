"""Exact per-example gradient clipping for Keras 3 models on TensorFlow."""

from tf_bandmf.keras.clipping.factors.base import Factor as Factor
from tf_bandmf.keras.clipping.factors.base import Instantiated as Instantiated
from tf_bandmf.keras.clipping.factors.base import Product as Product
from tf_bandmf.keras.clipping.factors.precision import (
    prepare_process as prepare_process,
)
from tf_bandmf.keras.clipping.forward.supported import STEP_METHODS as STEP_METHODS
from tf_bandmf.keras.clipping.forward.supported import (
    check_supported as check_supported,
)
from tf_bandmf.keras.clipping.forward.supported import (
    refuse_own_step as refuse_own_step,
)
from tf_bandmf.keras.clipping.independence.map_examples import (
    map_examples as map_examples,
)
from tf_bandmf.keras.clipping.independence.registration import (
    register_per_example_layer as register_per_example_layer,
)
from tf_bandmf.keras.clipping.independence.registration import (
    vouched_classes as vouched_classes,
)
from tf_bandmf.keras.clipping.losses.alone_and_together import (
    check_loss as check_loss,
)
from tf_bandmf.keras.clipping.proof.inference import measured_rows as measured_rows
from tf_bandmf.keras.clipping.proof.judge import (
    find_layers_alone as find_layers_alone,
)
from tf_bandmf.keras.clipping.proof.regularizers import (
    regularization_gradients as regularization_gradients,
)
from tf_bandmf.keras.clipping.rules import LayerCall as LayerCall
from tf_bandmf.keras.clipping.rules import Rule as Rule
from tf_bandmf.keras.clipping.rules import register_rule as register_rule
from tf_bandmf.keras.clipping.rules.embedding import is_lookup_table as is_lookup_table
from tf_bandmf.keras.clipping.sums.clipped_sums import OUTCOMES as OUTCOMES
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    ClippedGradients as ClippedGradients,
)
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    clipped_gradient_sums as clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.sums.self_check import (
    needs_self_check as needs_self_check,
)
from tf_bandmf.keras.clipping.sums.self_check import self_check as self_check
from tf_bandmf.keras.clipping.sums.settings import Clipping as Clipping
from tf_bandmf.keras.clipping.sums.settings import check_loss_scale as check_loss_scale
from tf_bandmf.keras.clipping.tensors.errors import OF_THE_MACHINE as OF_THE_MACHINE
from tf_bandmf.keras.clipping.tensors.errors import (
    ClippingMismatchError as ClippingMismatchError,
)
from tf_bandmf.keras.clipping.tensors.errors import (
    UnsupportedModelError as UnsupportedModelError,
)
from tf_bandmf.keras.clipping.tensors.made_up import made_up as made_up
from tf_bandmf.keras.clipping.tensors.multi_row import present_rows as present_rows
