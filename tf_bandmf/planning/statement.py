"""The privacy statement, and the same in plain words: what is guaranteed, to whom, when.

    statement = plan.statement(unit="one user")
    card = statement.card("churn-2026")
    card.to_markdown(), card.to_record()
    card.to_model_card(license="mit")    # a README.md for Keras and Hugging Face

The points of the statement follow arXiv:2306.08153, App. K.1, which follows
arXiv:2303.00654, section 5.3.

A test explains what epsilon means for one person: an attacker who sees all that is
released, and knows everything but whether one person's data were used, has to decide
this. If the attacker accuses at most a share alpha of those who were not in the data,
then of those who were, at most

    min(exp(epsilon) alpha + delta, 1 - exp(-epsilon) (1 - delta - alpha))

are found (Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 2.1); and at most `Phi(
Phi^-1(alpha) + mu)` for a Gaussian mechanism (Dong, Roth, Su, 2019, arXiv:1905.02383,
Theorem 2.7), which every run is, also without the amplification that its sampling gives.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__
from tf_bandmf.accounting.guarantee import ZERO_OUT, Guarantee
from tf_bandmf.strategies import Strategy, registry

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

ONE_EXAMPLE = "one training example"
# What the statement says of the generators of noise.
GENERATORS = {
    "philox": "The noise generator (Philox, keyed for each step from a secret 256-bit key) "
    "is not proven to be cryptographically secure.",
    "chacha20": "The noise is that of the stream cipher ChaCha20, keyed for each step from "
    "a secret 256-bit key: the guarantee is against observers who cannot tell its "
    "keystream from random bits.",
}
_SETTING = (
    "Central DP: the party that trains is trusted with the data, the noise keys and the "
    "correct implementation."
)
_NOT_COVERED = (
    "Training metrics (loss, accuracy and norms on training data) are exact functions of "
    "the data: do not publish them. Choosing hyper-parameters, models or checkpoints by "
    "looking at private data. Further runs on the same data: each spends its own budget. "
    "Floating-point effects: the guarantee is for ideal real arithmetic."
)
# The same in plain words.
_NOTHING = (
    "NOTHING. The noise comes from a seed that is known, for tests: anyone can remove it. "
    "Do not publish this model."
)
_FROM_WHOM = (
    "From everyone who sees the model, or all of its versions during training, whatever "
    "else they know, now or later. Not from those who trained it: they have the data, and "
    "the secret key of the noise."
)
_ESTIMATED = (
    "They rest on an ESTIMATE by simulation: the true epsilon may be larger, and no bound "
    "on the error is given."
)
_PROVEN = (
    "They are proven upper bounds, for the method as it is described below. That it was "
    "followed, nobody can see from the model: it is the word of those who trained."
)
_NOT_PROMISED = (
    "That nothing can be learned about a person: what is true of people in general can "
    "be, also of those who were never in the data. Whose data are more than {unit} is "
    "protected less. Other models or statistics from the same data add to what is known. "
    "Numbers that were measured on the training data, such as its accuracy, are not "
    "covered."
)
# Of a person's data, and what an attacker asks: zeroed out, or replaced.
_PROTECTED = (
    "Whether the data of {unit} were used at all, and so everything that they say: had "
    "they been left out, the model would look much the same.",
    "What the data of {unit} say: had they been other data, the model would look much the "
    "same.",
)
_QUESTION = (
    "whether one person's data were used",
    "which of two possible records one person's data are",
)
# Largest epsilons: Ponomareva et al., 2023, arXiv:2303.00654, section 5.
_TIERS = {
    1.0: "a strong guarantee (epsilon of at most 1)",
    10.0: "a reasonable guarantee (epsilon from 1 to 10)",
    math.inf: "little formal protection (epsilon above 10)",
}
# The share of people who are accused though they were not in the data.
_ACCUSED = 0.05
_TAGS = ("differential-privacy", "tf-bandmf")
_Points = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
    """A statement to publish with a model: numbered points, as text or Markdown.

    It is about one run (`Plan.statement`), or about several and releases made elsewhere
    (`JointGuarantee.statement`). No field has a default: each is a promise.

    Attributes:
      guarantee: (epsilon, delta), what the numbers are worth, and for which neighbors.
      mu: `1 / sigma` of the Gaussian mechanism that all outputs are together, without
        amplification; None if they are none.
      unit: whose presence is hidden.
      plans: of the runs.
      sampling: what is claimed from the randomness of the sampling.
      participation: how the data are used; empty without runs.
      covered: the runs and releases, such as "one training run of 20 steps".
      scope: what follows the numbers: " for all runs together", or nothing.
      output: what the mechanism outputs, such as "all noisy gradients".
      mechanism: title and text of the point that describes strategies and their noise.
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
    plans: tuple[Plan, ...]
    sampling: str
    participation: str
    covered: str
    scope: str
    output: str
    mechanism: tuple[str, str]
    remarks: tuple[str, ...]
    proviso: str

    def __post_init__(self) -> None:
        check_unit(self.unit)

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
    def test_only(self) -> bool:
        """Whether noise comes from a known seed: then there is no guarantee at all."""
        return any(plan.test_seed is not None for plan in self.plans)

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

            bounds.append(_normal(float(ndtri(accused)) + self.mu))
        return min(bounds)

    def right(self) -> float:
        """The largest share of right guesses if both answers are equally likely."""
        # Half of one plus the total variation distance, (found - accused) at its largest.
        shift = math.tanh(0.5 * self.epsilon)
        distance = min(shift + self.delta * (1.0 - shift), 1.0)
        if self.mu is not None:
            distance = min(distance, 2.0 * _normal(0.5 * self.mu) - 1.0)
        return 0.5 * (1.0 + distance)

    def card(self, model_name: str | None = None) -> PrivacyCard:
        """The statement in plain words, too: for a model card, or for lawyers.

        Args:
          model_name: name of the model, in one line.

        Raises:
          ValueError: if the name is not a text of one line.
        """
        return PrivacyCard(self, model_name)

    def points(self) -> _Points:
        """The points of the statement: (title, text)."""
        made = self.guarantee
        formal = (
            f"(epsilon = {made.epsilon:.6g}, delta = {made.delta:.3g})-DP{self.scope}"
        )
        # What holds without the sampling says nothing of the guarantee.
        rho = "" if made.zcdp_rho is None else f"{made.zcdp_rho:.6g}-zCDP."
        is_amplified = any(
            plan.participation.is_amplified and not plan.guarantee.is_unamplified
            for plan in self.plans
        )
        formal += f"; {rho}" if rho and not is_amplified else "."
        if self.test_only:
            formal = (
                "NONE. The noise comes from a known test seed: anyone can remove it. "
                f"With a secret key it would be {formal}"
            )
        accounting = (f"{made.accountant}.", made.describe_kind(), self.sampling)
        generators = dict.fromkeys(GENERATORS[plan.generator] for plan in self.plans)
        plans = ", ".join(dict.fromkeys(plan.fingerprint for plan in self.plans))
        points = [
            ("Formal statement", sentences(self.proviso, formal)),
            ("DP setting", _SETTING),
            ("Data accesses covered", sentence(self.covered)),
            (
                "Mechanism output",
                f"The sequence of {self.output}, hence every intermediate model and the "
                f"final one.",
            ),
            ("Unit of privacy", sentence(self.unit)),
            ("Adjacency", made.adjacency),
            ("Type of accounting", sentences(*accounting)),
            ("Accounting assumptions", self.participation),
            ("If nothing is counted on the sampling", rho if is_amplified else ""),
            self.mechanism,
            ("This run", sentences(*self.remarks)),
            ("Not covered", sentences(_NOT_COVERED, *generators)),
            ("Verifiability", plans and f"tf-bandmf, plan fingerprint {plans}."),
        ]
        return [(title, text) for title, text in points if text]

    def __str__(self) -> str:
        return _listed("Privacy statement", "{}. {}: {}", self.points())

    def to_markdown(self) -> str:
        """The statement as a Markdown section."""
        title = "## Privacy statement\n"
        return _listed(title, "{}. **{}.** {}", self.points()) + "\n"


@dataclasses.dataclass(frozen=True)
class PrivacyCard:
    """A privacy statement in plain words, followed by the technical one.

    Attributes:
      statement: the technical statement.
      model_name: name of the model, in one line, or None.

    Raises:
      ValueError: if the name is not a text of one line.
    """

    statement: PrivacyStatement
    model_name: str | None = None

    def __post_init__(self) -> None:
        if self.model_name is not None:
            check_line("model_name", self.model_name)

    def points(self) -> _Points:
        """The statement in plain words: (title, text)."""
        said = self.statement
        if said.test_only:
            return [("What is protected", _NOTHING)]
        right, found = _percent(said.right()), _percent(said.found(_ACCUSED))
        protected = _PROTECTED[said.replaces].format(unit=said.unit)
        sure = _ESTIMATED if said.guarantee.kind == "estimate" else _PROVEN
        if said.guarantee.confidence is not None:
            sure = (
                f"They are upper bounds, wrong with a probability of at most "
                f"{1.0 - said.guarantee.confidence:.2g} over the simulation that found "
                f"them."
            )
        tier = next(text for most, text in _TIERS.items() if said.epsilon <= most)
        example = (
            f"Somebody knows everything about the data but {_QUESTION[said.replaces]}, "
            f"thinks that both answers are equally likely, and then sees the model. "
            f"Without it, guesses are right 50 times of 100; with it at most {right} times."
        )
        if not said.replaces:
            example += (
                f" Whoever may accuse {_percent(_ACCUSED)} of 100 people wrongly of being "
                f"in the data finds at most {found} of 100 who are."
            )
        return [
            (
                "What is protected",
                sentences(
                    protected, said.proviso, f"Covered: {said.covered}.", *said.remarks
                ),
            ),
            ("From whom", _FROM_WHOM),
            (
                "How strongly",
                f"Epsilon is {said.epsilon:.3g}, delta {said.delta:.2g}. In the usual "
                f"scale that is {tier}. Smaller numbers are better; at 0 the model has "
                f"learned nothing. Delta is about the probability that the promise of "
                f"epsilon fails.",
            ),
            (
                "What that means for one person",
                f"{example} This holds for a person whose data are {said.unit}, and no "
                f"more.",
            ),
            ("How sure the numbers are", sure),
            ("What is not promised", _NOT_PROMISED.format(unit=said.unit)),
        ]

    def __str__(self) -> str:
        plain = _listed("Privacy in plain words", "{1}: {2}", self.points())
        return f"{plain}\n\n{self.statement}"

    def to_markdown(self) -> str:
        """Both parts as Markdown sections."""
        name = f" of {_markdown(self.model_name)}" if self.model_name else ""
        heading = f"# Privacy{name}\n\n## In plain words\n"
        plain = _listed(heading, "**{1}.** {2}\n", self.points())
        return f"{plain}\n{self.statement.to_markdown()}"

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        said, guarantee = self.statement, None
        if not said.test_only:
            guarantee = {
                "epsilon": said.epsilon,
                "delta": said.delta,
                "kind": said.guarantee.kind,
                "confidence": said.guarantee.confidence,
                "unit": said.unit,
                "neighbors": "replace-one" if said.replaces else "zero-out",
                "right_guesses_at_most": said.right(),
                "found_at_most": said.found(_ACCUSED),
                "wrongly_accused": _ACCUSED,
            }
        return {
            "format": "tf-bandmf privacy card",
            "version": __version__,
            "model_name": self.model_name,
            "guarantee": guarantee,
            "plain": [{"title": t, "text": text} for t, text in self.points()],
            "technical": [{"title": t, "text": text} for t, text in said.points()],
        }

    def to_json(self) -> str:
        """`to_record` as text."""
        return json.dumps(self.to_record(), indent=2, allow_nan=False) + "\n"

    def to_model_card(
        self,
        *,
        license: str | None = None,
        datasets: Sequence[str] = (),
        tags: Sequence[str] = (),
        library_name: str = "keras",
    ) -> str:
        """A README.md as Keras (`model.save("hf://...")`) and Hugging Face write it.

        It has metadata in YAML, then the card. Add what the card does not know:
        intended uses, evaluation, training data.

        Args:
          license: identifier, such as "apache-2.0".
          datasets: identifiers of the training data, if they have any.
          tags: in addition to "differential-privacy" and "tf-bandmf".
          library_name: the library that loads the model: "keras", "keras-hub",
            "tf-keras".
        """
        fields: dict[str, Any] = {
            "library_name": library_name,
            "license": license,
            "datasets": list(datasets),
            "tags": list(dict.fromkeys([*_TAGS, *tags])),
            "model_name": self.model_name,
            "differential_privacy": self.to_record()["guarantee"],
        }
        # JSON is YAML: no text of a user can end a value.
        lines = [
            f"{name}: {json.dumps(value, allow_nan=False)}"
            for name, value in fields.items()
            if value
        ]
        return "\n".join(["---", *lines, "---", "", self.to_markdown()])


def _listed(heading: str, form: str, points: _Points) -> str:
    """A heading, and a line for each point: of its number, title and text."""
    lines = [form.format(i, *point) for i, point in enumerate(points, start=1)]
    return "\n".join([heading, *lines])


def _normal(x: float) -> float:
    """The probability of a standard normal number up to x."""
    from tf_bandmf.accounting import tails  # needs SciPy

    return float(tails.lower_tail(x))


def _percent(share: float) -> int:
    """Rounded up."""
    return min(100, math.ceil(100.0 * share - 1e-9))


def _markdown(text: str) -> str:
    """Without characters that Markdown or HTML would read as markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text)


def sentences(*texts: str) -> str:
    """Those that are not empty, as one text."""
    return " ".join(filter(None, texts))


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def mechanism_of(strategy: Strategy) -> str:
    """The name that tables have, and its parameters in words."""
    name, described = registry.specification(strategy), strategy.describe()
    parameters = described.removeprefix(strategy.family)
    return name if name == described else f"{name} {parameters}".strip()


def check_line(name: str, text: str, must: str = "be text of one line") -> None:
    """Raises ValueError if this is no text of one line."""
    if not isinstance(text, str) or len(text.strip().splitlines()) != 1:
        raise ValueError(f"{name} must {must}, found {text!r}.")


def check_unit(unit: str) -> None:
    """Raises ValueError if a unit is no text of one line."""
    check_line(
        "unit", unit, "name in one line whose presence is hidden, such as 'one device'"
    )
