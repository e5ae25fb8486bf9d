"""Prices and risks, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np
from scipy.special import erf

import spmd
from tests.programs.corpus.cases import case


@case(30, 200000, lambda n, r: dict(s=50 + 50 * r(n), k=50 + 50 * r(n), t=0.1 + r(n), rate=0.03,
                                    vol=0.2))
def black_scholes(s, k, t, rate, vol):
    def cdf(x):
        return 0.5 * (1 + erf(x / np.sqrt(2)))

    root = vol * np.sqrt(t)
    d1 = (np.log(s / k) + (rate + 0.5 * vol**2) * t) / root
    d2 = d1 - root
    discounted = k * np.exp(-rate * t)
    call = s * cdf(d1) - discounted * cdf(d2)
    put = call - s + discounted
    vega = s * np.exp(-0.5 * d1**2) / np.sqrt(2 * np.pi) * np.sqrt(t)
    return call, put, cdf(d1), vega


@case(20, 1000, lambda n, r: dict(steps=n, s0=100.0, strike=105.0, rate=0.05, vol=0.3, years=1.0))
def american_put(steps, s0, strike, rate, vol, years):
    """A binomial tree, backwards from its leaves; at each node it may be exercised."""
    dt = years / steps
    up = np.exp(vol * np.sqrt(dt))
    down = 1 / up
    p = (np.exp(rate * dt) - down) / (up - down)
    discount = np.exp(-rate * dt)
    j = np.arange(steps + 1)
    price = s0 * up ** (steps - 2.0 * j)
    value = np.maximum(strike - price, 0)
    for _ in spmd.range(steps):
        price[:-1] = price[:-1] * down
        value[:-1] = np.maximum(strike - price[:-1],
                                discount * (p * value[:-1] + (1 - p) * value[1:]))
    return value[0]


@case(20, 5000, lambda n, r: dict(normal=r(n, 12) - 0.5, strike=100.0))
def asian_option(normal, strike, s0=100.0, rate=0.02, vol=0.25, years=1.0):
    paths, steps = normal.shape
    dt = years / steps
    growth = (rate - 0.5 * vol**2) * dt + vol * np.sqrt(dt) * normal
    path = s0 * np.exp(np.cumsum(growth, axis=1))
    payoff = np.maximum(path.mean(axis=1) - strike, 0)
    knocked_out = (path.min(axis=1) < 90) | (path.max(axis=1) > 115)
    payoff = np.exp(-rate * years) * np.where(knocked_out, 0, payoff)
    return payoff.mean(), payoff.std(ddof=1) / np.sqrt(paths), knocked_out.mean()


@case(40, 5000, lambda n, r: dict(prices=100 * np.exp(np.cumsum(0.02 * (r(n, 3) - 0.5), axis=0))))
def portfolio(prices, window=10):
    """Returns, rolling spread, drawdown, value at risk, and the portfolio of least variance."""
    returns = np.diff(np.log(prices), axis=0)
    total = np.cumsum(np.vstack([np.zeros((1, 3)), returns]), axis=0)
    square = np.cumsum(np.vstack([np.zeros((1, 3)), returns**2]), axis=0)
    mean = (total[window:] - total[:-window]) / window
    spread = np.sqrt(np.maximum((square[window:] - square[:-window]) / window - mean**2, 0))
    cov = np.cov(returns, rowvar=False)
    weights = np.linalg.solve(cov, np.ones(3))
    weights = weights / weights.sum()
    wealth = np.exp(np.cumsum(returns @ weights))
    drawdown = 1 - wealth / np.maximum.accumulate(wealth)
    return spread, weights, drawdown.max(), np.quantile(returns @ weights, 0.05)


@case(24, 2000, lambda n, r: dict(price=100 + np.cumsum(r(n) - 0.5), fast=0.4, slow=0.1))
def crossing_averages(price, fast, slow):
    """Exponential averages bar by bar, and trades where they cross."""
    f = s = price[0]
    position = 0
    profit = 0.0
    trades = 0
    history = np.zeros(len(price))
    for t in spmd.range(1, len(price)):
        profit += position * (price[t] - price[t - 1])
        f = fast * price[t] + (1 - fast) * f
        s = slow * price[t] + (1 - slow) * s
        wanted = 1 if f > s else -1
        if wanted != position:
            trades += 1
            position = wanted
        history[t] = profit
    return history, trades
