"""Compares the accountants of cyclic sampling with dp-accounting."""

import floors
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

from tf_bandmf.accounting import event_losses, gaussian
from tf_bandmf.accounting.cyclic_fixed_size import CyclicFixedSizeAccountant
from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant


class TestFixedSize:
    @pytest.mark.parametrize(
        "queries, part, batch", [(1000, 60_000, 600), (20, 400, 40)]
    )
    @pytest.mark.parametrize("delta", [1e-3, 1e-7])
    def test_noise_is_that_of_dp_accountings_losses(self, queries, part, batch, delta):
        """The noise agrees with dp-accounting.

        It is more than twice the noise for Poisson sampling.
        """
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
        """Delta is at least that of a single step in which one example is replaced."""
        fixed = CyclicFixedSizeAccountant(queries, part, batch)
        q = batch / part
        for epsilon in (0.01, 1.0, 10.0, 50.0):
            actual = fixed.sampled_delta(epsilon, noise)
            assert 0.0 <= actual <= 1.0
            floor = floors.replaced_step(q, noise, epsilon)
            assert floor >= floors.one_step(q, noise, epsilon)
            assert actual >= floor or floor < 1e-290


def replaced_loss(probability, noise, interval):
    """Returns the privacy loss distribution of a step if one example is replaced.

    It is made from the positive losses of dp-accounting's distribution for removing an
    example. Each of them keeps its probability p, the negated loss gets the probability
    p exp(-loss), and the loss 0 gets the remaining probability.
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
    """A run composed with other releases has the delta that dp-accounting computes."""
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
    # Replacing an example can change a release by twice as much as removing it.
    moved = privacy_loss_distribution.from_gaussian_mechanism(0.5 * releases, **make)
    exact = exact.compose(moved).get_delta_for_epsilon(3.0 * epsilon)
    actual = fixed.beside(releases).sampled_delta(3.0 * epsilon, noise)
    assert exact * (1.0 - 1e-4) <= actual <= 1.002 * exact


def test_the_rounding_of_transforms_is_in_the_privacy_loss_distribution():
    queries = CyclicPoissonAccountant(50_000, 0.001)
    loss = event_losses.of_event(queries.event(1.0), 1e-2)
    # 500 is above all finite losses, so this delta consists of the allowance for
    # rounding errors.
    assert loss.get_delta_for_epsilon(500.0) >= 50_000 * 2.0**-51
