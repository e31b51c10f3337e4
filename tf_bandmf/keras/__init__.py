"""Private training in Keras 3 on TensorFlow: the names that a training program needs.

`tf_bandmf.keras.extending` has further names, for custom components: layer rules,
custom metrics, errors and the classes of results. `tf_bandmf.keras.audit` audits a run.
Without Keras 3 on TensorFlow, the import raises an ImportError that says what is
missing.
"""

from tf_bandmf.keras import (
    _requirements,  # noqa: F401  (checks Keras first)
    audit,  # noqa: F401
    extending,  # noqa: F401
)
from tf_bandmf.keras.clipping.sums.settings import Clipping as Clipping
from tf_bandmf.keras.metrics.callbacks import PrivacyProgress as PrivacyProgress
from tf_bandmf.keras.metrics.callbacks import PrivateEvaluation as PrivateEvaluation
from tf_bandmf.keras.metrics.private_metrics import PrivateAccuracy as PrivateAccuracy
from tf_bandmf.keras.metrics.private_metrics import PrivateAUC as PrivateAUC
from tf_bandmf.keras.metrics.private_metrics import PrivateLoss as PrivateLoss
from tf_bandmf.keras.model.cloning import replace_batch_norm as replace_batch_norm
from tf_bandmf.keras.model.conversion import make_private as make_private
from tf_bandmf.keras.model.conversion import to_plain as to_plain
from tf_bandmf.keras.model.preprocessing import (
    split_preprocessing as split_preprocessing,
)
from tf_bandmf.keras.model.privately import fit_privately as fit_privately
from tf_bandmf.keras.optimizer.private import PrivateOptimizer as PrivateOptimizer
