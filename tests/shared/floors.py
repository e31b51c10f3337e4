"""Lower bounds on delta, computed from Gaussian tails without an accountant."""

import functools

import mpmath

DIGITS = 60


def _tail(z):
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


@functools.cache
def gaussian(norm, noise, log_threshold):
    """Returns `E_P (1 - K / L)_+` for P = N(norm, noise^2) and Q = N(0, noise^2).

    L is the likelihood ratio P / Q. With K = e^eps, this is delta at epsilon.

    Args:
      norm: the norm of the example's contribution.
      noise: the standard deviation of the noise.
      log_threshold: log K as a float or an mpf.
    """
    with mpmath.workdps(DIGITS):
        mu = mpmath.mpf(norm) / mpmath.mpf(noise)
        log_k = mpmath.mpf(log_threshold)
        far = _tail(log_k / mu - mu / 2)
        return far - mpmath.exp(log_k) * _tail(log_k / mu + mu / 2)


def one_step(probability, noise, epsilon):
    """Returns the delta of one step, which bounds the delta of all steps from below.

    An example is in the step with probability q, which is 1 if the order is public.
    With N(m) the normal density of mean m, delta is the integral of the positive part
    of `(1 - q) N(0) + q N(1) - e^eps N(0) = q (N(1) - K N(0))`, where
    `K = (e^eps - 1 + q) / q`.
    """
    with mpmath.workdps(DIGITS):
        q = mpmath.mpf(probability)
        threshold = (mpmath.expm1(mpmath.mpf(epsilon)) + q) / q
        return q * gaussian(1.0, noise, mpmath.log(threshold))


def own_bin(norm, noise, num_bins, epsilon):
    """Returns a lower bound on delta for balls in bins, from the example's own bin.

    Let K = e^eps. If the example is in bin j of b, the output has the distribution P_j and
    the likelihood ratio L_j. The means over all bins are P and L, so `L >= L_j / b`.
    Therefore `E_P (1 - K / L)_+ >= E_P_j (1 - b K / L_j)_+`, in which only bin j occurs.
    """
    with mpmath.workdps(DIGITS):
        shifted = mpmath.mpf(epsilon) + mpmath.log(num_bins)
        return gaussian(norm, noise, shifted)


def replaced_step(probability, noise, epsilon):
    """Returns the delta of one sampled step if a contribution changes its sign.

    With `v(x) = exp((2 x - 1) / (2 sigma^2))`, the likelihood ratio
    `L(x) = (1 - q + q v(x)) / (1 - q + q v(-x))` increases in x. Therefore, delta is a
    difference of tails beyond the point where `log L` is epsilon.
    """
    with mpmath.workdps(DIGITS):
        q, sigma = mpmath.mpf(probability), mpmath.mpf(noise)

        def ratio(x):
            v = mpmath.exp((2 * x - 1) / (2 * sigma**2))
            other = mpmath.exp((-2 * x - 1) / (2 * sigma**2))
            return mpmath.log(1 - q + q * v) - mpmath.log(1 - q + q * other)

        epsilon = mpmath.mpf(epsilon)
        lower, upper = mpmath.mpf(0), mpmath.mpf(1)
        while ratio(upper) < epsilon:
            upper *= 2
        for _ in range(160):
            middle = (lower + upper) / 2
            lower, upper = (
                (middle, upper) if ratio(middle) < epsilon else (lower, middle)
            )
        rest = (1 - q) * _tail(upper / sigma)
        removed = rest + q * _tail((upper - 1) / sigma)
        return removed - mpmath.exp(epsilon) * (rest + q * _tail((upper + 1) / sigma))


def best_of_runs(noise, mean, shape, epsilon):
    """Returns a lower bound on delta for releasing the largest of K Gaussian answers.

    K has a truncated negative binomial distribution with generating function f, so the
    largest answer is at most t with probability `f(Phi(t))`. Each threshold t gives a
    lower bound on delta; the result is the best one found.
    """
    with mpmath.workdps(DIGITS):
        sigma, factor = mpmath.mpf(noise), mpmath.exp(mpmath.mpf(epsilon))
        best = mpmath.mpf(0)
        for place in range(40):
            t = 1 + sigma * (mpmath.mpf(place) / 2 - 8)
            removed, added = (t - 1) / sigma, t / sigma
            for p, q in (
                [_more(_tail(z), mean, shape) for z in (removed, added)],
                [_most(_tail(-z), mean, shape) for z in (removed, added)],
            ):
                best = max(best, p - factor * q, q - factor * p)
        return best


def _more(tail, mean, shape):
    """Returns `1 - f(1 - tail)` for the generating function f, without cancellation."""
    if mean == 1:
        return tail
    gamma = _gamma(mean, shape)
    grown = mpmath.log1p((1 - gamma) / gamma * tail)
    if shape == 0:
        return grown / -mpmath.log(gamma)
    return mpmath.expm1(-shape * grown) / mpmath.expm1(shape * mpmath.log(gamma))


def _most(x, mean, shape):
    """Returns the value of the generating function f at x, without cancellation."""
    if mean == 1:
        return x
    gamma = _gamma(mean, shape)
    left = mpmath.log1p(-(1 - gamma) * x)
    if shape == 0:
        return left / mpmath.log(gamma)
    return mpmath.expm1(-shape * left) / mpmath.expm1(-shape * mpmath.log(gamma))


@functools.cache
def _gamma(mean, shape):
    """Finds the parameter gamma for which the number of runs K has this mean."""
    with mpmath.workdps(DIGITS):
        lower, upper = mpmath.mpf("1e-13"), mpmath.mpf(1) - mpmath.mpf("1e-30")
        for _ in range(200):
            middle = mpmath.sqrt(lower * upper)
            odds = 1 / middle - 1
            if shape == 0:
                middle_mean = odds / -mpmath.log(middle)
            else:
                middle_mean = shape * odds / (1 - middle**shape)
            lower, upper = (middle, upper) if middle_mean > mean else (lower, middle)
        return upper
