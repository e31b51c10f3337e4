"""Broken: what the accountant assumes of sampling and adjacency."""

import mechanism_checks as checks
import numpy as np
from mutation import broken, suite

from tf_bandmf.accounting import cyclic_poisson, gaussian
from tf_bandmf.participation import cyclic_poisson as poisson_lib
from tf_bandmf.planning.plan import Plan
from tf_bandmf.sampling import batches, samplers

# What the accountant assumes.


@broken(
    "Poisson sampling accounted for, batches of a shuffle",
    checks.poisson_batches_vary,
    says="not those of Poisson",
    invariants=(2,),
    is_fast=True,
)
def shuffled_for_poisson(patch):
    def shuffled(self, words):
        order = np.argsort(words(-1, self.num_examples)).astype(np.int64)
        steps = self.num_examples // self.batch_size
        return samplers.OrderSampler(order, steps)

    patch.setattr(poisson_lib.CyclicPoisson, "sampler", shuffled)


@suite(
    "sampling/test_law.py",
    "test_trials_succeed_with_no_more_than_the_probability",
    "1/3",
    says="",
    title="Poisson sampling at another rate",
    invariants=(2,),
    is_fast=True,
)
def other_rate(patch):
    begin = samplers.Trials.__init__
    patch.setattr(
        samplers.Trials,
        "__init__",
        lambda self, part, whole: begin(self, part * 10**6 + 1, whole * 10**6),
    )


@suite(
    "sampling/test_batches.py",
    "test_every_example_once_per_epoch_at_the_same_position",
    says="",
    title="A separation that is one too small",
    invariants=(2,),
    is_fast=True,
)
def separation_off_by_one(patch):
    begin = samplers.OrderSampler.__init__
    patch.setattr(
        samplers.OrderSampler,
        "__init__",
        lambda self, order, steps: begin(self, order, steps - 1),
    )


@broken(
    "A sampler's seed that is known",
    checks.samplers_seeds_are_fresh,
    says="seed is known",
    invariants=(8, 10),
)
def known_sampler_seed(patch):
    class Known:
        @staticmethod
        def token_bytes(size):
            return bytes(size)

    patch.setattr(batches, "secrets", Known)


@suite(
    "planning/test_statement.py",
    "test_rho_of_zcdp_is_that_of_the_stated_adjacency",
    says="",
    title="Rho of zCDP under the wrong adjacency",
    invariants=(12,),
)
def rho_of_other_adjacency(patch):
    patch.setattr(
        Plan,
        "zcdp_rho",
        property(lambda plan: gaussian.zcdp_rho(plan.noise_multiplier)),
    )


@broken(
    "Amplification claimed for more bands than parts",
    checks.bands_fit_the_cycle,
    says="accepted",
    invariants=(2, 3),
)
def bands_beyond_the_cycle(patch):
    of_strategy = cyclic_poisson.CyclicPoissonAccountant.of_strategy.__func__

    def careless(cls, matrix, parts, probability):
        return of_strategy(cls, matrix, max(parts, matrix.bands), probability)

    patch.setattr(
        cyclic_poisson.CyclicPoissonAccountant, "of_strategy", classmethod(careless)
    )


@broken(
    "A canary at every step of its part, accounted for as sampled",
    checks.audited_sampler,
    says="the audit",
    invariants=(2,),
)
def always_sampled(patch):
    def everybody(self, step):
        return np.arange(step % self._parts, self._total, self._parts)

    patch.setattr(samplers.PoissonSampler, "example_indices", everybody)
