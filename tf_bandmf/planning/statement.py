"""The privacy statement: what is guaranteed, to whom, under which assumptions.

Its points follow arXiv:2306.08153, App. K.1, which follows arXiv:2303.00654, section 5.3.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from tf_bandmf.accounting.guarantee import ZERO_OUT, Guarantee
from tf_bandmf.planning.card import PrivacyCard
from tf_bandmf.strategies import Strategy, registry

if TYPE_CHECKING:
    from tf_bandmf.planning.composition import JointGuarantee
    from tf_bandmf.planning.plan import Plan

ONE_EXAMPLE = "one training example"
WITHOUT_SAMPLING = "If nothing is counted on the sampling"
NOT_COVERED = (
    "Training metrics (loss, accuracy and norms on training data) are exact functions "
    "of the data: do not publish them.",
    "Choosing hyper-parameters, models or checkpoints by looking at private data.",
    "Further runs on the same data: each spends its own budget.",
    "Floating-point effects: the guarantee is for ideal real arithmetic.",
)
# What the statement says of the generators of noise.
GENERATORS = {
    "philox": "The noise generator (Philox, keyed for each step from a secret 256-bit key) "
    "is not proven to be cryptographically secure.",
    "chacha20": "The noise is that of the stream cipher ChaCha20, keyed for each step from "
    "a secret 256-bit key: the guarantee is against observers who cannot tell its "
    "keystream from random bits.",
}


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
    """A statement to publish with a model: numbered points, as text or Markdown.

    It is about one run, or about several and releases made elsewhere. No field has a
    default: each is a promise.

    Attributes:
      guarantee: (epsilon, delta), what the numbers are worth, and for which neighbors.
      mu: `1 / sigma` of the Gaussian mechanism that all outputs are together, without
        amplification; None if they are none.
      unit: whose presence is hidden.
      test_only: whether noise came from a known seed: then there is no guarantee at all.
      is_amplified: whether the guarantee rests on the randomness of the sampling.
      sampling: what is claimed from the randomness of the sampling.
      participation: how the data are used; empty without runs.
      covered: the runs and releases, such as "one training run of 20 steps".
      scope: what follows the numbers: " for all runs together", or nothing.
      output: what the mechanism outputs, such as "all noisy gradients".
      mechanism: title and text of the point that describes strategies and their noise.
      generators: generators of the noise, out of `GENERATORS`.
      fingerprints: of the plans.
      remarks: what else a reader must know about this run: other runs on the same data,
        weights that were changed by hand. Empty but for measurements in a plan's own
        statement.
      proviso: what must be said before the numbers: of weights that were loaded, or a
        run that took no step. Empty in a plan's own statement.

    Raises:
      ValueError: if the unit is not a text of one line.
    """

    guarantee: Guarantee
    mu: float | None
    unit: str
    test_only: bool
    is_amplified: bool
    sampling: str
    participation: str
    covered: str
    scope: str
    output: str
    mechanism: tuple[str, str]
    generators: tuple[str, ...]
    fingerprints: tuple[str, ...]
    remarks: tuple[str, ...]
    proviso: str

    def __post_init__(self) -> None:
        check_unit(self.unit)

    @classmethod
    def of_plan(
        cls, plan: Plan, unit: str, remarks: tuple[str, ...] = ()
    ) -> PrivacyStatement:
        """The statement of a run of a plan; see `Plan.statement`."""
        guarantee, use = plan.guarantee, plan.participation
        sampling = use.amplification()
        if guarantee.is_unamplified:
            guarantee = dataclasses.replace(guarantee, confidence=None)
            sampling = "No amplification by sampling is claimed."
        participation = use.describe()
        if plan.unit != ONE_EXAMPLE:
            participation += (
                f" What is called an example here is {plan.unit}: all of its data that a "
                f"step uses are clipped together."
            )
        return cls(
            guarantee=guarantee,
            mu=math.sqrt(2.0 * plan.zcdp_rho),
            unit=unit,
            test_only=plan.test_seed is not None,
            is_amplified=use.is_amplified and not guarantee.is_unamplified,
            sampling=sampling,
            participation=participation,
            covered=f"one training run of {plan.num_steps} steps",
            scope="",
            output="all noisy gradients",
            mechanism=(
                "Mechanism",
                f"{mechanism_of(plan.strategy)}; {plan.sensitivity}; noise multiplier "
                f"{plan.noise_multiplier:.6g} per unit of sensitivity, which is "
                f"{plan.noise_stddev / plan.l2_norm_clip:.6g} clip norms; l2 norm clip "
                f"{plan.l2_norm_clip:g}.",
            ),
            generators=(plan.generator,),
            fingerprints=(plan.fingerprint,),
            remarks=tuple(filter(None, (plan.measurements.describe(), *remarks))),
            proviso="",
        )

    @classmethod
    def of_joint(
        cls, joint: JointGuarantee, guarantee: Guarantee, unit: str
    ) -> PrivacyStatement:
        """The statement of several releases; see `JointGuarantee.statement`."""
        plans, noise = joint.plans, joint.gaussian_noise
        others = len(joint.parts) - len(plans)
        covered = f"{len(plans)} training run(s) on the same data"
        if others:
            covered = (
                f"{len(plans)} training run(s) and {others} release(s) made elsewhere, on "
                f"the same data; what is said of the latter is their makers' to show"
            )
        runs = enumerate((part.describe() for part in joint.parts), start=1)
        uses = dict.fromkeys(plan.participation.describe() for plan in plans)
        return cls(
            guarantee=guarantee,
            # A rho alone is no Gaussian mechanism.
            mu=None if noise is None else 1.0 / noise,
            unit=unit,
            test_only=any(plan.test_seed is not None for plan in plans),
            is_amplified=any(plan.participation.is_amplified for plan in plans),
            sampling="",
            participation=" ".join(uses),
            covered=covered,
            scope=" for all runs together",
            output="all noisy gradients of all runs"
            + " and the outputs of the other releases" * bool(others),
            mechanism=("Runs", " ".join(f"({i}) {text}" for i, text in runs)),
            generators=tuple(dict.fromkeys(plan.generator for plan in plans)),
            fingerprints=tuple(dict.fromkeys(plan.fingerprint for plan in plans)),
            remarks=(),
            proviso="",
        )

    @property
    def epsilon(self) -> float:
        """The guarantee's."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """The guarantee's."""
        return self.guarantee.delta

    @property
    def zcdp_rho(self) -> float | None:
        """Rho of zCDP without amplification, under the guarantee's adjacency, or None."""
        return self.guarantee.zcdp_rho

    @property
    def replaces(self) -> bool:
        """Whether neighbors replace one unit by another."""
        return self.guarantee.adjacency != ZERO_OUT

    def found(self, accused: float) -> float:
        """The largest share of those in the data that an attacker can find.

        Args:
          accused: alpha, the share of the others that is accused wrongly, in [0, 1].
        """
        kept = math.exp(-self.epsilon) * (1.0 - self.delta - accused)
        bounds = [1.0, 1.0 - max(kept, 0.0)]
        if self.epsilon < 700.0:
            bounds.append(math.exp(self.epsilon) * accused + self.delta)
        if self.mu is not None and 0.0 < accused < 1.0:
            from scipy.special import ndtri  # slow to import

            from tf_bandmf.accounting import tails

            bounds.append(float(tails.lower_tail(float(ndtri(accused)) + self.mu)))
        return min(bounds)

    def right(self) -> float:
        """The largest share of right guesses if both answers are equally likely."""
        # Half of one plus the total variation distance, (found - accused) at its largest.
        shift = math.tanh(0.5 * self.epsilon)
        distance = min(shift + self.delta * (1.0 - shift), 1.0)
        if self.mu is not None:
            from tf_bandmf.accounting import tails

            between = 2.0 * float(tails.lower_tail(0.5 * self.mu)) - 1.0
            distance = min(distance, between)
        return 0.5 * (1.0 + distance)

    def card(self, model_name: str | None = None) -> PrivacyCard:
        """The statement in plain words, too: for a model card, or for lawyers.

        Args:
          model_name: name of the model, in one line.

        Raises:
          ValueError: if the name is not a text of one line.
        """
        return PrivacyCard(self, model_name)

    def points(self) -> list[tuple[str, str]]:
        """The points of the statement: (title, text)."""
        made = self.guarantee
        formal = (
            f"(epsilon = {made.epsilon:.6g}, delta = {made.delta:.3g})-DP{self.scope}"
        )
        # What holds without the sampling says nothing of the guarantee.
        rho = "" if made.zcdp_rho is None else f"{made.zcdp_rho:.6g}-zCDP."
        formal += f"; {rho}" if rho and not self.is_amplified else "."
        if self.test_only:
            formal = (
                "NONE. The noise comes from a known test seed: anyone can remove it. "
                f"With a secret key it would be {formal}"
            )
        accounting = sentences(
            f"{made.accountant}.", made.describe_kind(), self.sampling
        )
        generators = (GENERATORS[name] for name in self.generators)
        verifiable = f"tf-bandmf, plan fingerprint {', '.join(self.fingerprints)}."
        points = [
            ("Formal statement", sentences(self.proviso, formal)),
            (
                "DP setting",
                "Central DP: the party that trains is trusted with the data, the noise "
                "keys and the correct implementation.",
            ),
            ("Data accesses covered", sentence(self.covered)),
            (
                "Mechanism output",
                f"The sequence of {self.output}, hence every intermediate model and the "
                f"final one.",
            ),
            ("Unit of privacy", sentence(self.unit)),
            ("Adjacency", made.adjacency),
            ("Type of accounting", accounting),
            ("Accounting assumptions", self.participation),
            (WITHOUT_SAMPLING, rho if self.is_amplified else ""),
            self.mechanism,
            ("This run", " ".join(self.remarks)),
            ("Not covered", " ".join([*NOT_COVERED, *generators])),
            ("Verifiability", verifiable if self.fingerprints else ""),
        ]
        return [(title, text) for title, text in points if text]

    def __str__(self) -> str:
        points = enumerate(self.points(), start=1)
        lines = [f"{i}. {name}: {text}" for i, (name, text) in points]
        return "\n".join(["Privacy statement", *lines])

    def to_markdown(self) -> str:
        """The statement as a Markdown section."""
        points = enumerate(self.points(), start=1)
        lines = [f"{i}. **{name}.** {text}" for i, (name, text) in points]
        return "\n".join(["## Privacy statement", "", *lines, ""])


def sentences(*texts: str) -> str:
    """Those that are not empty, as one text."""
    return " ".join(filter(None, texts))


def mechanism_of(strategy: Strategy) -> str:
    """The name that tables have, and its parameters in words."""
    name, described = registry.specification(strategy), strategy.describe()
    parameters = described.removeprefix(strategy.family)
    return name if name == described else f"{name} {parameters}".strip()


def check_unit(unit: str) -> None:
    """Raises ValueError if a unit is no text of one line."""
    if not isinstance(unit, str) or len(unit.strip().splitlines()) != 1:
        raise ValueError(
            f"unit must name in one line whose presence is hidden, such as 'one "
            f"device', found {unit!r}."
        )


def check_generator(generator: str) -> None:
    """Raises ValueError if no generator of noise has this name."""
    if not isinstance(generator, str) or generator not in GENERATORS:
        raise ValueError(
            f"generator must be one of {', '.join(GENERATORS)}, found {generator!r}."
        )


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
