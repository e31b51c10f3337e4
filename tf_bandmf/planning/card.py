"""The privacy part of a model card: plain words first, the technical statement after it.

    card = plan.statement(unit="one user").card("churn-2026")
    card.to_markdown(), card.to_html(), card.to_record()
    card.to_model_card(license="mit")    # a README.md for Keras and Hugging Face

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
import html
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__

if TYPE_CHECKING:
    from tf_bandmf.planning.statement import Statement

# People of a hundred who are accused though they were not in the data.
_ACCUSED = 5
# Ponomareva et al., 2023, arXiv:2303.00654, section 5.
_STRONG, _REASONABLE = 1.0, 10.0
_TAGS = ("differential-privacy", "tf-bandmf")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a statement promises, as numbers and plain facts.

    Attributes:
      epsilon, delta: the guarantee.
      mu: `1 / sigma` of a Gaussian mechanism that all outputs are together, or None.
      kind: "exact", "bound" or "estimate".
      confidence: of a simulated bound, else None.
      replaces: whether neighbors replace one unit by another.
      test_only: whether a known seed made the noise: nothing is protected then.
      unit: whose presence is hidden.
      accesses: what is covered, a sentence.
    """

    epsilon: float
    delta: float
    mu: float | None
    kind: str
    confidence: float | None
    replaces: bool
    test_only: bool
    unit: str
    accesses: str

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

            place = float(ndtri(accused)) + self.mu
            bounds.append(float(tails.lower_tail(place)))
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


@dataclasses.dataclass(frozen=True)
class PrivacyCard:
    """A privacy statement in plain words, followed by the technical one.

    Attributes:
      statement: the technical statement.
      model_name: name of the model, in one line, or None.

    Raises:
      ValueError: if the name is not a text of one line.
    """

    statement: Statement
    model_name: str | None = None

    def __post_init__(self) -> None:
        name = self.model_name
        if name is not None and (
            not isinstance(name, str) or len(name.strip().splitlines()) != 1
        ):
            raise ValueError(f"model_name must be text of one line, found {name!r}.")

    def points(self) -> list[tuple[str, str]]:
        """The statement in plain words: (title, text)."""
        facts = self.statement.facts()
        if facts.test_only:
            return [
                (
                    "What is protected",
                    "NOTHING. The noise comes from a seed that is known, for tests: anyone "
                    "can remove it. Do not publish this model.",
                )
            ]
        return [
            ("What is protected", _protected(facts)),
            ("From whom", _from_whom()),
            ("How strongly", _strength(facts)),
            ("What that means for one person", _example(facts)),
            ("How sure the numbers are", _certainty(facts)),
            ("What is not promised", _not_promised(facts)),
        ]

    def __str__(self) -> str:
        lines = [f"{title}: {text}" for title, text in self.points()]
        return "\n".join(["Privacy in plain words", *lines, "", str(self.statement)])

    def to_markdown(self) -> str:
        """Both parts as Markdown sections."""
        plain = [f"**{title}.** {text}\n" for title, text in self.points()]
        title = "# Privacy" + (
            f" of {_markdown(self.model_name)}" * bool(self.model_name)
        )
        return "\n".join(
            [title, "", "## In plain words", "", *plain, self.statement.to_markdown()]
        )

    def to_html(self) -> str:
        """Both parts as one page without scripts, styles or links."""
        name = f" of {self.model_name}" if self.model_name else ""
        heading = html.escape(f"Privacy{name}")
        plain = "".join(
            f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>\n"
            for title, text in self.points()
        )
        technical = "".join(
            f"<li><strong>{html.escape(title)}.</strong> {html.escape(text)}</li>\n"
            for title, text in self.statement.points()
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
            f"<title>{heading}</title></head>\n<body>\n<h1>{heading}</h1>\n"
            f"<h2>In plain words</h2>\n<dl>\n{plain}</dl>\n"
            f"<h2>Privacy statement</h2>\n<ol>\n{technical}</ol>\n</body>\n</html>\n"
        )

    def to_record(self) -> dict[str, Any]:
        """Plain finite values, ready for JSON."""
        facts = self.statement.facts()
        guarantee = None
        if not facts.test_only:
            guarantee = {
                "epsilon": facts.epsilon,
                "delta": facts.delta,
                "kind": facts.kind,
                "confidence": facts.confidence,
                "unit": facts.unit,
                "neighbors": "replace-one" if facts.replaces else "zero-out",
                "right_guesses_at_most": facts.right(),
                "found_at_most": facts.found(_ACCUSED / 100.0),
                "wrongly_accused": _ACCUSED / 100.0,
            }
        return {
            "format": "tf-bandmf privacy card",
            "version": __version__,
            "model_name": self.model_name,
            "guarantee": guarantee,
            "plain": [{"title": t, "text": text} for t, text in self.points()],
            "technical": [
                {"title": t, "text": text} for t, text in self.statement.points()
            ],
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
            if value not in (None, [], ())
        ]
        return "\n".join(["---", *lines, "---", "", self.to_markdown()])


def _protected(facts: Facts) -> str:
    if facts.replaces:
        return (
            f"What the data of {facts.unit} say: had they been other data, the model "
            f"would look much the same. {facts.accesses}"
        )
    return (
        f"Whether the data of {facts.unit} were used at all, and so everything that they "
        f"say: had they been left out, the model would look much the same. "
        f"{facts.accesses}"
    )


def _from_whom() -> str:
    return (
        "From everyone who sees the model, or all of its versions during training, "
        "whatever else they know, now or later. Not from those who trained it: they have "
        "the data, and the secret key of the noise."
    )


def _strength(facts: Facts) -> str:
    if facts.epsilon <= _STRONG:
        tier = "a strong guarantee (epsilon of at most 1)"
    elif facts.epsilon <= _REASONABLE:
        tier = "a reasonable guarantee (epsilon from 1 to 10)"
    else:
        tier = "little formal protection (epsilon above 10)"
    return (
        f"Epsilon is {facts.epsilon:.3g}, delta {facts.delta:.2g}. In the usual scale that "
        f"is {tier}. Smaller numbers are better; at 0 the model has learned nothing. Delta "
        f"is about the probability that the promise of epsilon fails."
    )


def _example(facts: Facts) -> str:
    right, found = _percent(facts.right()), _percent(facts.found(_ACCUSED / 100.0))
    question = "whether one person's data were used"
    if facts.replaces:
        question = "which of two possible records one person's data are"
    text = (
        f"Somebody knows everything about the data but {question}, thinks that both "
        f"answers are equally likely, and then sees the model. Without it, guesses are "
        f"right 50 times of 100; with it at most {right} times. "
    )
    if not facts.replaces:
        text += (
            f"Whoever may accuse {_ACCUSED} of 100 people wrongly of being in the data "
            f"finds at most {found} of 100 who are. "
        )
    return text + f"This holds for a person whose data are {facts.unit}, and no more."


def _percent(share: float) -> int:
    """Rounded up."""
    return min(100, math.ceil(100.0 * share - 1e-9))


def _certainty(facts: Facts) -> str:
    if facts.kind == "estimate":
        return (
            "They rest on an ESTIMATE by simulation: the true epsilon may be larger, and "
            "no bound on the error is given."
        )
    if facts.confidence is not None:
        return (
            f"They are upper bounds, wrong with a probability of at most "
            f"{1.0 - facts.confidence:.2g} over the simulation that found them."
        )
    return (
        "They are proven upper bounds, for the method as it is described below. That it "
        "was followed, nobody can see from the model: it is the word of those who trained."
    )


def _not_promised(facts: Facts) -> str:
    return (
        f"That nothing can be learned about a person: what is true of people in general "
        f"can be, also of those who were never in the data. Whose data are more than "
        f"{facts.unit} is protected less. Other models or statistics from the same data "
        f"add to what is known. Numbers that were measured on the training data, such as "
        f"its accuracy, are not covered."
    )


def _markdown(text: str | None) -> str:
    """Without characters that Markdown or HTML would read as markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text or "")
