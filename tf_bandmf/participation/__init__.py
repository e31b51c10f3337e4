"""Participations: rules for the steps in which one example (or user) may participate.

One object defines both the sampler and its privacy analysis, so these two cannot
contradict each other. Two participations of an example are at least b steps apart.

| class | sampler | accounting |
|---|---|---|
| `MinSep` | provided by the caller | without amplification |
| `FixedEpochOrder` | the same batches in every epoch | without amplification |
| `Shuffled` | one secret order, the same in every epoch | a bound, without amplification |
| `CyclicPoisson` | each example of one of b parts, independently | amplified |
| `Poisson` | each example, independently (DP-SGD) | amplified |
| `CyclicFixedSize` | a fixed number of examples of one of b parts | amplified, a bound |
| `BMinSepSampling` | each example not in the last b - 1 batches | amplified, simulated |
| `BallsInBins` | each example in one random bin of the epoch | amplified, simulated |
"""

from tf_bandmf.participation.b_min_sep import BMinSepSampling as BMinSepSampling
from tf_bandmf.participation.balls_in_bins import BallsInBins as BallsInBins
from tf_bandmf.participation.base import NAMED as NAMED
from tf_bandmf.participation.base import PARTICIPATIONS as PARTICIPATIONS
from tf_bandmf.participation.base import Participation as Participation
from tf_bandmf.participation.base import from_config as from_config
from tf_bandmf.participation.base import register as register
from tf_bandmf.participation.base import samplings as samplings
from tf_bandmf.participation.cyclic_fixed_size import CyclicFixedSize as CyclicFixedSize
from tf_bandmf.participation.cyclic_poisson import CyclicPoisson as CyclicPoisson
from tf_bandmf.participation.cyclic_poisson import Poisson as Poisson
from tf_bandmf.participation.fixed_epoch_order import FixedEpochOrder as FixedEpochOrder
from tf_bandmf.participation.min_sep import MinSep as MinSep
from tf_bandmf.participation.shuffled import Shuffled as Shuffled
