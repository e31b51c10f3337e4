"""The privacy statement of a model, and a plain-language version of it.

    statement = plan.statement(unit="one user")
    card = statement.card("churn-2026")
    card.to_markdown(), card.to_record()
    card.to_model_card(license="mit")    # a README.md for Keras and Hugging Face

The points of the statement follow arXiv:2306.08153, App. K.1, which is based on
arXiv:2303.00654, section 5.3.

A hypothesis test explains the meaning of epsilon for one person. An attacker sees
everything that is released, knows everything except whether the data of one person were
used, and has to guess this. Suppose that the attacker wrongly accuses at most a share
alpha of the people who were not in the data. Then the share of people in the data whom
the attacker finds is at most

    min(exp(epsilon) alpha + delta, 1 - exp(-epsilon) (1 - delta - alpha))

(Kairouz, Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 2.1). Without amplification by
sampling, every run is a Gaussian mechanism, for which this share is at most
`Phi(Phi^-1(alpha) + mu)` (Dong, Roth, Su, 2019, arXiv:1905.02383, Theorem 2.7). Here
Phi is the standard normal distribution function, and mu is the sensitivity divided by
the standard deviation of the noise. A sampled run satisfies many pairs (epsilon,
delta). The first formula gives a bound for each pair, and the smallest of these bounds
is used (arXiv:1905.02383, section 2.3).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tf_bandmf._version import __version__
from tf_bandmf.accounting.guarantee import ZERO_OUT, Guarantee
from tf_bandmf.planning.texts import phrase, phrases

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

ONE_EXAMPLE = "one training example"
# The privacy card assumes that an attacker wrongly accuses this share of the people
# outside the data.
_ACCUSED = 0.05
# The epsilons at which the privacy profile of a sampled run is evaluated, to bound the
# power of an attacker's test.
_EPSILONS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
_TAGS = ("differential-privacy", "tf-bandmf")
_Points = list[tuple[str, str]]
# The sentences about each noise generator in a statement.
GENERATORS = phrases("generators")


@dataclasses.dataclass(frozen=True)
class PrivacyStatement:
    """A statement to publish with a model: numbered points, as text or Markdown.

    A statement is about one run (`Plan.statement`), or about several runs and other
    releases on the same data (`JointGuarantee.statement`). No field has a default,
    because each field is a promise to the reader.

    Attributes:
      guarantee: epsilon and delta, how certain they are, and the adjacency.
      mu: sensitivity divided by noise standard deviation, for all outputs as a single
        Gaussian mechanism without amplification; None if the outputs are not Gaussian.
      unit: the privacy unit, whose presence is hidden, such as "one user".
      plans: the plans of the runs.
      sampling: sentence about amplification by the randomness of the sampling.
      participation: description of how runs use the data; empty without runs.
      covered: the runs and releases that the statement is about, such as "one training
        run of 20 steps".
      scope: text after epsilon and delta: "for all runs together", or empty.
      output: the mechanism's output, such as "all noisy gradients".
      mechanism: strategy and noise of a single run; empty for several runs.
      runs: descriptions of several runs and releases; empty for a single run.
      remarks: further facts about this run that a reader must know, such as other runs
        on the same data, or weights that were changed by hand. A statement from
        `Plan.statement` has only remarks about measurements.
      proviso: a condition, stated before the guarantee, if weights were loaded or the
        run took no step. Empty in a statement from `Plan.statement`.

    Raises:
      ValueError: if the unit is not one line of text.
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
    mechanism: str
    runs: str
    remarks: tuple[str, ...]
    proviso: str

    def __post_init__(self) -> None:
        check_unit(self.unit)

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.guarantee.epsilon

    @property
    def test_only(self) -> bool:
        """True if there is no guarantee, because the noise comes from a known seed."""
        return any(plan.test_seed is not None for plan in self.plans)

    @property
    def neighbors(self) -> str:
        """The adjacency of the guarantee in short form: "zero-out" or "replace-one"."""
        return "zero-out" if self.guarantee.adjacency == ZERO_OUT else "replace-one"

    def found(self, accused: float) -> float:
        """Returns the maximum share of people in the data whom an attacker detects.

        Args:
          accused: alpha, the share of people outside the data whom the attacker wrongly
            takes for people in the data, in [0, 1].
        """
        bounds = [1.0]
        for epsilon, delta in self._pairs():
            bounds.append(1.0 - math.exp(-epsilon) * (1.0 - delta - accused))
            if epsilon < 700.0:
                bounds.append(math.exp(epsilon) * accused + delta)
        if self.mu is not None and 0.0 < accused < 1.0:
            # Importing SciPy is slow, so it is imported only if needed.
            from scipy.special import ndtri

            bounds.append(_normal(float(ndtri(accused)) + self.mu))
        return min(bounds)

    def right(self) -> float:
        """Returns the maximum share of people about whom an attacker guesses right.

        For each person, the attacker guesses whether the person's data were used. The
        data of half of the people were used.
        """
        # The result is (1 + d) / 2, where d is the maximum of
        # `self.found(accused) - accused` over all values of `accused`.
        shifts = [(math.tanh(0.5 * epsilon), delta) for epsilon, delta in self._pairs()]
        distance = min(shift + delta * (1.0 - shift) for shift, delta in shifts)
        if self.mu is not None:
            distance = min(distance, 2.0 * _normal(0.5 * self.mu) - 1.0)
        return 0.5 * (1.0 + distance)

    def _pairs(self) -> Iterator[tuple[float, float]]:
        """Yields pairs (epsilon, delta) that are guaranteed, first the stated pair."""
        yield self.epsilon, self.guarantee.delta
        for plan in () if self.runs else self.plans:
            if plan.guarantee == self.guarantee and not plan.participation.is_simulated:
                run, noise = plan.accounting(), plan.unit_noise_stddev
                yield from ((one, run.delta(one, noise)) for one in _EPSILONS)

    def card(self, model_name: str | None = None) -> PrivacyCard:
        """Returns the statement together with a plain-language version of it.

        Args:
          model_name: name of the model, in one line.

        Raises:
          ValueError: if the name is not one line of text.
        """
        return PrivacyCard(self, model_name)

    def facts(self) -> dict[str, Any]:
        """Returns the values of placeholders in the texts of the statement and card."""
        made, plans = self.guarantee, self.plans
        is_sampled = any(
            plan.participation.is_amplified and not plan.guarantee.is_unamplified
            for plan in plans
        )
        rho = "" if made.zcdp_rho is None else phrase("parts", "rho", rho=made.zcdp_rho)
        risk = 1.0 - (made.confidence or 1.0)
        prints = ", ".join(dict.fromkeys(plan.fingerprint for plan in plans))
        generators = dict.fromkeys(GENERATORS[plan.generator] for plan in plans)
        return {
            **vars(self),
            "none": phrase("test seed", "none") if self.test_only else "",
            "whose": self.scope and f" {self.scope}",
            # Rho does not include amplification by sampling, so the statement has a
            # separate point for it if epsilon does include amplification.
            "rho": f"; {rho}" if rho and not is_sampled else "",
            "unamplified": f"{rho}." if rho and is_sampled else "",
            "accesses": sentence(self.covered),
            "whom": sentence(self.unit),
            "sure": phrase("sure", made.certainty, risk=risk),
            "kind": phrase("kind", made.certainty, risk=risk),
            "remarked": " ".join(self.remarks),
            "generators": " ".join(generators),
            "verifiability": prints and f"tf-bandmf, plan fingerprint {prints}.",
        }

    def points(self) -> _Points:
        """Returns the points of the statement as pairs (title, text)."""
        filled = phrases("statement", **self.facts())
        return [(title, text) for title, text in filled.items() if text]

    def __str__(self) -> str:
        return _listed("Privacy statement", "{}. {}: {}", self.points())

    def to_markdown(self) -> str:
        """Returns the statement as a Markdown section."""
        title = "## Privacy statement\n"
        return _listed(title, "{}. **{}.** {}", self.points()) + "\n"


@dataclasses.dataclass(frozen=True)
class PrivacyCard:
    """A privacy statement in plain words, followed by the technical one.

    Attributes:
      statement: the technical statement.
      model_name: name of the model, in one line, or None.

    Raises:
      ValueError: if the name is not one line of text.
    """

    statement: PrivacyStatement
    model_name: str | None = None

    def __post_init__(self) -> None:
        if self.model_name is not None:
            check_line("model_name", self.model_name)

    def points(self) -> _Points:
        """Returns the points in plain words as pairs (title, text)."""
        said, title = self.statement, "What is protected"
        if said.test_only:
            return [(title, phrase("test seed", title))]
        facts = {
            **said.facts(),
            "accused": _percent(_ACCUSED),
            "found": _percent(said.found(_ACCUSED)),
            "right": _percent(said.right()),
            "tier": next(
                text
                for most, text in phrases("tiers").items()
                if said.epsilon <= float(most)
            ),
        }
        facts |= phrases(said.neighbors, **facts)
        return list(phrases("card", **facts).items())

    def __str__(self) -> str:
        plain = _listed("Privacy in plain words", "{1}: {2}", self.points())
        return f"{plain}\n\n{self.statement}"

    def to_markdown(self) -> str:
        """Returns the plain-language text and the technical statement, in Markdown."""
        name = f" of {_markdown(self.model_name)}" if self.model_name else ""
        heading = f"# Privacy{name}\n\n## In plain words\n"
        plain = _listed(heading, "**{1}.** {2}\n", self.points())
        return f"{plain}\n{self.statement.to_markdown()}"

    def to_record(self) -> dict[str, Any]:
        """Returns the card as a dictionary of finite values that JSON can store."""
        said, guarantee = self.statement, None
        if not said.test_only:
            names = ("epsilon", "delta", "kind", "confidence")
            guarantee = {
                **{name: getattr(said.guarantee, name) for name in names},
                "unit": said.unit,
                "neighbors": said.neighbors,
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
        """Returns the result of `to_record` as JSON text."""
        return json.dumps(self.to_record(), indent=2, allow_nan=False) + "\n"

    def to_model_card(
        self,
        *,
        license: str | None = None,
        datasets: Sequence[str] = (),
        tags: Sequence[str] = (),
        library_name: str = "keras",
    ) -> str:
        """Returns a README.md in the model-card format of Keras and Hugging Face.

        The file consists of YAML metadata and the privacy card. Add the sections that
        this library cannot write: intended uses, evaluation, training data.

        Args:
          license: identifier of the license, such as "apache-2.0".
          datasets: identifiers of the training data, if they have any.
          tags: tags in addition to "differential-privacy" and "tf-bandmf".
          library_name: library that loads the model: "keras", "keras-hub" or "tf-keras".
        """
        fields: dict[str, Any] = {
            "library_name": library_name,
            "license": license,
            "datasets": list(datasets),
            "tags": list(dict.fromkeys([*_TAGS, *tags])),
            "model_name": self.model_name,
            "differential_privacy": self.to_record()["guarantee"],
        }
        # JSON is valid YAML. Its quoting ensures that a user's text remains one value.
        lines = [
            f"{name}: {json.dumps(value, allow_nan=False)}"
            for name, value in fields.items()
            if value
        ]
        return "\n".join(["---", *lines, "---", "", self.to_markdown()])


def _listed(heading: str, form: str, points: _Points) -> str:
    """Returns a heading, followed by one line for each point.

    Args:
      heading: the heading.
      form: format string of a line, for the number, title and text of a point.
      points: pairs (title, text).
    """
    lines = [form.format(i, *point) for i, point in enumerate(points, start=1)]
    return "\n".join([heading, *lines])


def _normal(x: float) -> float:
    """Returns the probability that a standard normal variable is at most x."""
    # This import is slow, because the module imports SciPy.
    from tf_bandmf.accounting import tails

    return float(tails.lower_tail(x))


def _percent(share: float) -> int:
    """Returns a share in percent, rounded up."""
    return min(100, math.ceil(100.0 * share - 1e-9))


def _markdown(text: str) -> str:
    """Escapes characters that Markdown or HTML would read as markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in text)


def sentence(text: str) -> str:
    """Returns a text as a sentence, with a capital letter and a period."""
    text = text.strip()
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def check_line(name: str, text: str, must: str = "be one line of text") -> str:
    """Checks that a text is one line, and returns it without outer spaces.

    Raises:
      ValueError: if the text is not a string with one line.
    """
    if not isinstance(text, str) or len(text.strip().splitlines()) != 1:
        raise ValueError(f"{name} must {must}, found {text!r}.")
    return text.strip()


def check_unit(unit: str) -> None:
    """Raises ValueError if the privacy unit is not one line of text."""
    check_line(
        "unit", unit, "be one line that names the privacy unit, such as 'one device'"
    )
