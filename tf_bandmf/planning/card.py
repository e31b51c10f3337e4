"""The privacy part of a model card: plain words first, the technical statement after it.

    card = plan.statement(unit="one user").card("churn-2026")
    card.to_markdown(), card.to_record()
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
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__

if TYPE_CHECKING:
    from tf_bandmf.planning.statement import PrivacyStatement

# People of a hundred who are accused though they were not in the data.
_ACCUSED = 5
# Ponomareva et al., 2023, arXiv:2303.00654, section 5.
_STRONG, _REASONABLE = 1.0, 10.0
_TAGS = ("differential-privacy", "tf-bandmf")


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
        name = self.model_name
        if name is not None and (
            not isinstance(name, str) or len(name.strip().splitlines()) != 1
        ):
            raise ValueError(f"model_name must be text of one line, found {name!r}.")

    def points(self) -> list[tuple[str, str]]:
        """The statement in plain words: (title, text)."""
        said = self.statement
        if said.test_only:
            text = (
                "NOTHING. The noise comes from a seed that is known, for tests: anyone "
                "can remove it. Do not publish this model."
            )
            return [("What is protected", text)]
        return [
            ("What is protected", _protected(said)),
            ("From whom", _FROM_WHOM),
            ("How strongly", _strength(said)),
            ("What that means for one person", _example(said)),
            ("How sure the numbers are", _certainty(said)),
            ("What is not promised", _NOT_PROMISED.format(unit=said.unit)),
        ]

    def __str__(self) -> str:
        lines = [f"{title}: {text}" for title, text in self.points()]
        return "\n".join(["Privacy in plain words", *lines, "", str(self.statement)])

    def to_markdown(self) -> str:
        """Both parts as Markdown sections."""
        plain = [f"**{title}.** {text}\n" for title, text in self.points()]
        name = f" of {_markdown(self.model_name)}" if self.model_name else ""
        heads = [f"# Privacy{name}", "", "## In plain words", ""]
        return "\n".join([*heads, *plain, self.statement.to_markdown()])

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
                "found_at_most": said.found(_ACCUSED / 100.0),
                "wrongly_accused": _ACCUSED / 100.0,
            }
        both = {"plain": self.points(), "technical": said.points()}
        return {
            "format": "tf-bandmf privacy card",
            "version": __version__,
            "model_name": self.model_name,
            "guarantee": guarantee,
            **{
                part: [{"title": title, "text": text} for title, text in points]
                for part, points in both.items()
            },
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


_FROM_WHOM = (
    "From everyone who sees the model, or all of its versions during training, whatever "
    "else they know, now or later. Not from those who trained it: they have the data, and "
    "the secret key of the noise."
)
_NOT_PROMISED = (
    "That nothing can be learned about a person: what is true of people in general can "
    "be, also of those who were never in the data. Whose data are more than {unit} is "
    "protected less. Other models or statistics from the same data add to what is known. "
    "Numbers that were measured on the training data, such as its accuracy, are not "
    "covered."
)


def _protected(said: PrivacyStatement) -> str:
    text = (
        f"Whether the data of {said.unit} were used at all, and so everything that they "
        f"say: had they been left out"
    )
    if said.replaces:
        text = f"What the data of {said.unit} say: had they been other data"
    accesses = [said.proviso, f"Covered: {said.covered}.", *said.remarks]
    text += ", the model would look much the same."
    return " ".join(filter(None, [text, *accesses]))


def _strength(said: PrivacyStatement) -> str:
    if said.epsilon <= _STRONG:
        tier = "a strong guarantee (epsilon of at most 1)"
    elif said.epsilon <= _REASONABLE:
        tier = "a reasonable guarantee (epsilon from 1 to 10)"
    else:
        tier = "little formal protection (epsilon above 10)"
    return (
        f"Epsilon is {said.epsilon:.3g}, delta {said.delta:.2g}. In the usual scale that "
        f"is {tier}. Smaller numbers are better; at 0 the model has learned nothing. Delta "
        f"is about the probability that the promise of epsilon fails."
    )


def _example(said: PrivacyStatement) -> str:
    right, found = _percent(said.right()), _percent(said.found(_ACCUSED / 100.0))
    question = "whether one person's data were used"
    if said.replaces:
        question = "which of two possible records one person's data are"
    text = (
        f"Somebody knows everything about the data but {question}, thinks that both "
        f"answers are equally likely, and then sees the model. Without it, guesses are "
        f"right 50 times of 100; with it at most {right} times. "
    )
    if not said.replaces:
        text += (
            f"Whoever may accuse {_ACCUSED} of 100 people wrongly of being in the data "
            f"finds at most {found} of 100 who are. "
        )
    return text + f"This holds for a person whose data are {said.unit}, and no more."


def _percent(share: float) -> int:
    """Rounded up."""
    return min(100, math.ceil(100.0 * share - 1e-9))


def _certainty(said: PrivacyStatement) -> str:
    if said.guarantee.kind == "estimate":
        return (
            "They rest on an ESTIMATE by simulation: the true epsilon may be larger, and "
            "no bound on the error is given."
        )
    if said.guarantee.confidence is not None:
        return (
            f"They are upper bounds, wrong with a probability of at most "
            f"{1.0 - said.guarantee.confidence:.2g} over the simulation that found them."
        )
    return (
        "They are proven upper bounds, for the method as it is described below. That it "
        "was followed, nobody can see from the model: it is the word of those who trained."
    )


def _markdown(text: str | None) -> str:
    """Without characters that Markdown or HTML would read as markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text or "")
