"""Cyclic Poisson sampling: published values, special cases, properties, misuse."""

import dp_accounting
import floors
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

from tf_bandmf import matrices, strategies
from tf_bandmf.accounting import event_losses, gaussian
from tf_bandmf.accounting.cyclic_fixed_size import CyclicFixedSizeAccountant
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant


@pytest.mark.slow_cases("1000-0.01-1.0-1e-05-1.41463")
@pytest.mark.parametrize(
    "queries, probability, epsilon, delta, noise",
    [
        # DP-SGD with 1000 steps, q = 0.01: jax_privacy finds 1.41463.
        (1000, 0.01, 1.0, 1e-5, 1.41463),
        # Banded, 1000 steps, 10 parts, k = 10 (q = 0.1): jax_privacy finds 3.94165.
        (100, 0.1, 1.0, 1e-5, 3.94165),
    ],
)
def test_values_of_jax_privacy(queries, probability, epsilon, delta, noise):
    accountant = CyclicPoissonAccountant(queries, probability)
    actual = accountant.calibrate(epsilon, delta).noise_stddev
    assert actual == pytest.approx(noise, rel=1e-4)
    assert accountant.delta(epsilon, actual) <= delta
    assert accountant.epsilon(delta, actual) == pytest.approx(epsilon, rel=1e-3)


def test_event_has_ceil_of_n_over_b_queries_of_the_largest_column_norm():
    strategy = matrices.ToeplitzBanded([1.0, 0.5, 0.25], 11)
    accountant = CyclicPoissonAccountant.of_strategy(strategy, 4, 0.3)
    assert accountant.num_queries == 3
    assert accountant.column_norm == pytest.approx(np.sqrt(1.3125))
    event = accountant.event(2.0 * accountant.column_norm)
    assert event.count == 3 and event.event.sampling_probability == 0.3
    assert event.event.event == dp_accounting.GaussianDpEvent(2.0)


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: CyclicPoissonAccountant.of_strategy(
                matrices.ToeplitzBanded(np.ones(5), 20), 4, 0.1
            ),
            "num_parts >= 5, fewer bands, or BallsInBins",
        ),
        (
            lambda: CyclicPoissonAccountant.of_strategy(
                strategies.lambda_cgd(20, 0.5).matrix, 4, 0.1
            ),
            "Use BallsInBins",
        ),
        (lambda: CyclicPoissonAccountant(3, 1.1), "sampling_probability must be"),
        (lambda: CyclicPoissonAccountant(3, 0.1).delta(1.0, np.nan), "finite"),
    ],
)
def test_overlapping_participations_and_impossible_numbers_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


class TestFixedSize:
    @pytest.mark.parametrize(
        "queries, part, batch", [(1000, 60_000, 600), (20, 400, 40)]
    )
    @pytest.mark.parametrize("delta", [1e-3, 1e-7])
    def test_noise_is_that_of_dp_accountings_losses(self, queries, part, batch, delta):
        """Compares the noise with Poisson sampling and with dp-accounting."""
        fixed = CyclicFixedSizeAccountant(queries, part, batch)
        actual = fixed.calibrate(1.0, delta)
        noise = actual.noise_stddev
        poisson = CyclicPoissonAccountant(queries, batch / part)
        assert noise > 2.0 * poisson.calibrate(1.0, delta).noise_stddev
        assert actual.guarantee.kind == "bound" and not actual.guarantee.is_unamplified
        assert "Replace-one" in actual.guarantee.adjacency
        exact = replaced_loss(batch / part, noise, 1e-4).self_compose(queries)
        assert delta * 0.998 < exact.get_delta_for_epsilon(1.0) < delta * 1.0001
        assert fixed.epsilon(delta, noise) == pytest.approx(1.0, rel=1e-3)
        fixed.validate(noise, actual.guarantee)

    def test_replacing_counts_twice(self):
        fixed = CyclicFixedSizeAccountant(7, 1000, 20)
        event = fixed.event(3.0)
        assert event.count == 7 and event.event.event.noise_multiplier == 1.5
        assert event.event.source_dataset_size == 1000
        assert event.event.sample_size == 20

    def test_where_sampling_does_not_help_the_gaussian_mechanism_counts(self):
        for batch in (9, 10):
            fixed = CyclicFixedSizeAccountant(2, 10, batch)
            actual = fixed.calibrate(1.0, 1e-5)
            unamplified = gaussian.calibrate_noise_stddev(1.0, 1e-5)
            assert actual.noise_stddev == np.sqrt(2) * unamplified
            assert actual.guarantee.is_unamplified

    @pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 20.0, 1e4])
    @pytest.mark.parametrize("queries, part, batch", [(1, 10, 1), (100, 1000, 900)])
    @pytest.mark.invariant(12)
    def test_no_delta_is_below_its_floor(self, queries, part, batch, noise):
        """The floor is the delta of a single step in which one example is replaced."""
        fixed = CyclicFixedSizeAccountant(queries, part, batch)
        q = batch / part
        for epsilon in (0.01, 1.0, 10.0, 50.0):
            actual = fixed.sampled_delta(epsilon, noise)
            assert 0.0 <= actual <= 1.0
            floor = floors.replaced_step(q, noise, epsilon)
            assert floor >= floors.one_step(q, noise, epsilon)
            assert actual >= floor or floor < 1e-290

    def test_impossible_batches_and_strategies_without_bands_are_refused(self):
        with pytest.raises(ValueError, match="batch_size must be"):
            CyclicFixedSizeAccountant(10, 10, 11)
        with pytest.raises(ValueError, match="BallsInBins"):
            CyclicFixedSizeAccountant.of_strategy(
                strategies.lambda_cgd(20, 0.5).matrix, 4, 10, 2
            )


def replaced_loss(probability, noise, interval):
    """Returns the privacy loss of a sampled step in which one example is replaced.

    It is built from dp-accounting's losses for "remove": a loss above 0 keeps its
    probability p, minus that loss gets p exp(-loss), and the rest of the probability is
    at 0.
    """
    pmf = privacy_loss_distribution.from_gaussian_mechanism(
        0.5 * noise, value_discretization_interval=interval, sampling_prob=probability
    )._pmf_remove.to_dense_pmf()
    index = np.arange(pmf.size) + pmf._lower_loss
    index, masses = index[index > 0], pmf._probs[index > 0]
    most = index[-1]
    both = np.zeros(2 * most + 1)
    both[most + index] = masses
    both[most - index] = masses * np.exp(-interval * index)
    both[most] = 1.0 - both.sum() - pmf._infinity_mass
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(interval, -most, both, pmf._infinity_mass, True)
    )


@pytest.mark.parametrize("epsilon, releases", [(2.0, 5.0), (0.7, 3.0)])
@pytest.mark.invariant(12)
def test_releases_beside_a_run_compose_with_it(epsilon, releases):
    """Compares the joint delta with dp-accounting's convolution of both privacy losses."""
    make = {"value_discretization_interval": 1e-4}
    noise, count, q = 1.0, 100, 0.02
    run = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=q, **make
    )
    beside = privacy_loss_distribution.from_gaussian_mechanism(releases, **make)
    exact = run.self_compose(count).compose(beside).get_delta_for_epsilon(epsilon)
    both = CyclicPoissonAccountant(count, q).beside(releases)
    assert exact * (1.0 - 1e-5) <= both.delta(epsilon, noise) <= 1.001 * exact
    assert both.epsilon(exact, noise) == pytest.approx(epsilon, rel=1e-3)
    loss = event_losses.of_event(both.event(noise), 1e-3)
    assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(exact, rel=1e-2)
    fixed = CyclicFixedSizeAccountant(count, 1000, 20)
    exact = replaced_loss(q, noise, 1e-4).self_compose(count)
    # Replacing an example moves a release twice as far as removing the example.
    moved = privacy_loss_distribution.from_gaussian_mechanism(0.5 * releases, **make)
    exact = exact.compose(moved).get_delta_for_epsilon(3.0 * epsilon)
    actual = fixed.beside(releases).sampled_delta(3.0 * epsilon, noise)
    assert exact * (1.0 - 1e-4) <= actual <= 1.002 * exact


def test_the_rounding_of_transforms_is_in_the_privacy_loss_distribution():
    queries = CyclicPoissonAccountant(50_000, 0.001)
    loss = event_losses.of_event(queries.event(1.0), 1e-2)
    # Above every finite loss, only the allowance for rounding remains.
    assert loss.get_delta_for_epsilon(500.0) >= 50_000 * 2.0**-51
