"""The privacy statement: what is guaranteed, to whom, under which assumptions.

Its points follow arXiv:2306.08153, App. K.1, which follows arXiv:2303.00654, section 5.3.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING

from tf_bandmf.accounting.guarantee import REPLACE_ONE
from tf_bandmf.planning.card import Facts, PrivacyCard
from tf_bandmf.strategies import Strategy, registry

if TYPE_CHECKING:
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


class Statement(abc.ABC):
    """Numbered points; `str()` is text, `to_markdown()` Markdown."""

    @abc.abstractmethod
    def points(self) -> list[tuple[str, str]]:
        """The points of the statement: (title, text)."""

    @abc.abstractmethod
    def facts(self) -> Facts:
        """What is promised, as numbers."""

    def card(self, model_name: str | None = None) -> PrivacyCard:
        """The statement in plain words, too: for a model card, or for lawyers.

        Args:
          model_name: name of the model, in one line.

        Raises:
          ValueError: if the name is not a text of one line.
        """
        return PrivacyCard(self, model_name)

    def __str__(self) -> str:
        lines = [f"{i}. {name}: {text}" for i, (name, text) in self._numbered()]
        return "\n".join(["Privacy statement", *lines])

    def to_markdown(self) -> str:
        """The statement as a Markdown section."""
        lines = [f"{i}. **{name}.** {text}" for i, (name, text) in self._numbered()]
        return "\n".join(["## Privacy statement", "", *lines, ""])

    def _numbered(self) -> enumerate[tuple[str, str]]:
        return enumerate(self.points(), start=1)


@dataclasses.dataclass(frozen=True)
class PrivacyStatement(Statement):
    """A statement to publish with a model. No field has a default: each is a promise.

    Attributes:
      epsilon, delta: the guarantee.
      zcdp_rho: rho of zCDP without amplification, under `adjacency` like the guarantee.
      accountant: name of the accountant.
      kind: "exact", "bound" or "estimate".
      confidence: the confidence of a simulated bound, else None.
      is_amplified: whether the guarantee rests on the randomness of the sampling.
      accounting: whether the values are exact, a bound (at which confidence) or an
        estimate.
      adjacency: which data sets count as neighbors.
      participation: how the data are used, one sentence.
      mechanism: the strategy and its parameters.
      num_steps: n.
      noise_multiplier: noise standard deviation per unit of sensitivity.
      sensitivity: the sensitivity with the theorem it rests on, or marked as a bound.
      l2_norm_clip: zeta.
      fingerprint: fingerprint of the plan.
      test_only: whether the noise came from a known seed: then there is no guarantee at
        all.
      unit: whose presence is hidden.
      sampling: what is claimed from the randomness of the sampling.
      output: what the mechanism outputs, such as "noisy gradients".
      generator: generator of the noise, one of `GENERATORS`.
      remarks: what else a reader must know about this run: other runs on the same data,
        weights that were changed by hand. Empty in a plan's own statement.
      proviso: what must be said before the numbers: of weights that were loaded, or a
        run that took no step. Empty in a plan's own statement.

    Raises:
      ValueError: if the unit is not a text of one line.
    """

    epsilon: float
    delta: float
    zcdp_rho: float
    accountant: str
    participation: str
    mechanism: str
    num_steps: int
    noise_multiplier: float
    sensitivity: str
    l2_norm_clip: float
    fingerprint: str
    test_only: bool
    unit: str
    sampling: str
    kind: str
    confidence: float | None
    is_amplified: bool
    accounting: str
    adjacency: str
    output: str
    generator: str
    remarks: tuple[str, ...]
    proviso: str

    def __post_init__(self) -> None:
        check_unit(self.unit)

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        unit: str,
        remarks: tuple[str, ...] = (),
    ) -> PrivacyStatement:
        """The statement of a run of a plan; see `Plan.statement`."""
        guarantee = plan.guarantee
        assert guarantee.zcdp_rho is not None
        is_amplified = plan.participation.is_amplified and not guarantee.is_unamplified
        amplification = plan.participation.amplification()
        if guarantee.is_unamplified:
            amplification = "No amplification by sampling is claimed."
        participation = plan.participation.describe()
        if plan.unit != ONE_EXAMPLE:
            participation += (
                f" What is called an example here is {plan.unit}: all of its data that a "
                f"step uses are clipped together."
            )
        return cls(
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            zcdp_rho=guarantee.zcdp_rho,
            accountant=guarantee.accountant,
            kind=guarantee.kind,
            confidence=None if guarantee.is_unamplified else guarantee.confidence,
            is_amplified=is_amplified,
            accounting=guarantee.describe_kind(),
            adjacency=guarantee.adjacency,
            sampling=amplification,
            participation=participation,
            mechanism=_mechanism(plan.strategy),
            num_steps=plan.num_steps,
            noise_multiplier=plan.noise_multiplier,
            sensitivity=str(plan.sensitivity),
            l2_norm_clip=plan.l2_norm_clip,
            fingerprint=plan.fingerprint,
            test_only=plan.test_seed is not None,
            unit=unit,
            output="noisy gradients",
            generator=plan.generator,
            remarks=tuple(filter(None, (plan.measurements.describe(), *remarks))),
            proviso="",
        )

    def facts(self) -> Facts:
        """What is promised, as numbers."""
        return Facts(
            epsilon=self.epsilon,
            delta=self.delta,
            mu=math.sqrt(2.0 * self.zcdp_rho),
            kind=self.kind,
            confidence=self.confidence,
            replaces=self.adjacency == REPLACE_ONE,
            test_only=self.test_only,
            unit=self.unit,
            accesses=sentences(
                self.proviso,
                f"Covered is one training run of {self.num_steps} steps.",
                *self.remarks,
            ),
        )

    def points(self) -> list[tuple[str, str]]:
        """The points of the statement: (title, text)."""
        guarantee = f"(epsilon = {self.epsilon:.6g}, delta = {self.delta:.3g})-DP"
        # What holds without the sampling says nothing of the guarantee.
        concentrated = f"{self.zcdp_rho:.6g}-zCDP."
        guarantee += "." if self.is_amplified else f"; {concentrated}"
        if self.test_only:
            guarantee = (
                "NONE. The noise comes from a known test seed: anyone can remove it. "
                f"With a secret key it would be {guarantee}"
            )
        return [
            ("Formal statement", sentences(self.proviso, guarantee)),
            (
                "DP setting",
                "Central DP: the party that trains is trusted with the data, the noise "
                "key and the correct implementation.",
            ),
            (
                "Data accesses covered",
                f"One training run of {self.num_steps} steps.",
            ),
            (
                "Mechanism output",
                f"The sequence of all {self.output}, hence every intermediate model "
                f"and the final one.",
            ),
            ("Unit of privacy", sentence(self.unit)),
            ("Adjacency", self.adjacency),
            (
                "Type of accounting",
                f"{self.accountant}. {self.accounting} {self.sampling}",
            ),
            ("Accounting assumptions", self.participation),
            *([(WITHOUT_SAMPLING, concentrated)] if self.is_amplified else []),
            (
                "Mechanism",
                f"{self.mechanism}; {self.sensitivity}; noise multiplier "
                f"{self.noise_multiplier:.6g} per unit of sensitivity; l2 norm clip "
                f"{self.l2_norm_clip:g}.",
            ),
            *([("This run", " ".join(self.remarks))] if self.remarks else []),
            ("Not covered", " ".join([*NOT_COVERED, GENERATORS[self.generator]])),
            ("Verifiability", f"tf-bandmf, plan fingerprint {self.fingerprint}."),
        ]


def sentences(*texts: str) -> str:
    """Those that are not empty, as one text."""
    return " ".join(filter(None, texts))


def _mechanism(strategy: Strategy) -> str:
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
