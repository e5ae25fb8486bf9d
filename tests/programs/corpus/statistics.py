"""Statistics and small learning machines, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(20, 2000, lambda n, r: dict(x=r(n), draws=(n * r(25, n)).astype(np.int64)))
def bootstrap(x, draws):
    """The mean of resampled data, its standard error and an interval."""
    means = x[draws].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return means, means.std(ddof=1), low, high


@case(24, 20000, lambda n, r: dict(x=r(n, 2), centroids=r(4, 2), max_iter=10))
def k_means(x, centroids, max_iter):
    k = centroids.shape[0]
    for _ in spmd.range(max_iter):
        distances = np.linalg.norm(x[:, None, :] - centroids[None, :, :], axis=2)
        labels = np.argmin(distances, axis=1)
        for j in range(k):
            members = labels == j
            many = members.sum()
            mean = np.where(members[:, None], x, 0).sum(axis=0) / np.maximum(many, 1)
            centroids[j] = np.where(many > 0, mean, centroids[j])
    inertia = np.sum(np.min(np.linalg.norm(x[:, None] - centroids, axis=2), axis=1) ** 2)
    return centroids, inertia


@case(30, 20000, lambda n, r: dict(x=np.concatenate([r(n // 2), 2 + r(n - n // 2)]), steps=8))
def gaussian_mixture(x, steps, k=3):
    """Expectation and maximisation for a mixture in one dimension."""
    weights = np.ones(k) / k
    means = np.linspace(0.1, 2.5, k)
    variances = np.ones(k)
    likelihood = np.zeros(steps)
    for t in spmd.range(steps):
        density = np.exp(-0.5 * (x[:, None] - means) ** 2 / variances) / np.sqrt(
            2 * np.pi * variances)
        joint = weights * density
        evidence = joint.sum(axis=1, keepdims=True)
        likelihood[t] = np.log(evidence).sum()
        r = joint / evidence
        nk = r.sum(axis=0)
        weights = nk / len(x)
        means = (r * x[:, None]).sum(axis=0) / nk
        variances = (r * (x[:, None] - means) ** 2).sum(axis=0) / nk + 1e-6
    return weights, means, variances, likelihood


@case(17, 5000, lambda n, r: dict(x=r(n, 5) @ np.diag([5.0, 3.0, 2.0, 1.0, 0.5])))
def principal_components(x, components=2):
    centred = x - x.mean(axis=0)
    cov = centred.T @ centred / (len(x) - 1)
    values, vectors = np.linalg.eigh(cov)
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    vectors = vectors * np.sign(vectors[0])
    projected = centred @ vectors[:, :components]
    return projected, values / values.sum()


@case(25, 20000, lambda n, r: dict(x=r(n, 4), y=(r(n) < 0.5).astype(np.float64), steps=20))
def logistic_regression(x, y, steps, rate=0.5, penalty=0.01):
    w = np.zeros(x.shape[1])
    b = 0.0
    losses = []
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(x @ w + b)))
        losses.append(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
        error = p - y
        w = w - rate * (x.T @ error / len(y) + penalty * w)
        b = b - rate * error.mean()
    return w, b, np.array(losses)


@case(20, 3000, lambda n, r: dict(z=np.cumsum(r(n, 2) - 0.4, axis=0)))
def kalman_filter(z):
    """A point moves with constant velocity in a plane; we see where it is, roughly."""
    dt = 1.0
    f = np.array([[1, 0, dt, 0], [0, 1, 0, dt], [0, 0, 1, 0], [0, 0, 0, 1]])
    h = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    q, r = 0.01 * np.eye(4), 0.5 * np.eye(2)
    x, p = np.zeros(4), np.eye(4)
    estimates = np.zeros((len(z), 4))
    for t in spmd.range(len(z)):
        x = f @ x
        p = f @ p @ f.T + q
        y = z[t] - h @ x
        s = h @ p @ h.T + r
        k = p @ h.T @ np.linalg.inv(s)
        x = x + k @ y
        p = (np.eye(4) - k @ h) @ p
        estimates[t] = x
    return estimates, p


@case(40, 4000, lambda n, r: dict(steps=r(n, 2) - 0.5, uniform=r(n), data=r(30)))
def metropolis(steps, uniform, data):
    """A chain for the mean and the log of the spread of data."""

    def log_posterior(theta):
        mu, log_sigma = theta[0], theta[1]
        sigma = np.exp(log_sigma)
        return -len(data) * log_sigma - 0.5 * np.sum(((data - mu) / sigma) ** 2) - 0.5 * mu**2

    theta = np.zeros(2)
    current = log_posterior(theta)
    chain = np.zeros((len(uniform), 2))
    accepted = 0
    for i in spmd.range(len(uniform)):
        proposal = theta + 0.5 * steps[i]
        candidate = log_posterior(proposal)
        if np.log(uniform[i]) < candidate - current:
            theta, current = proposal, candidate
            accepted += 1
        chain[i] = theta
    return chain, accepted / len(uniform)


@case(15, 2000, lambda n, r: dict(seen=(3 * r(n)).astype(np.int64), start=r(4), step=r(4, 4),
                                  emit=r(4, 3)))
def viterbi(seen, start, step, emit):
    """The likeliest path of a hidden Markov model, and the likelihood of what is seen."""
    states = len(start)
    log_step = np.log(step / step.sum(1, keepdims=True))
    log_emit = np.log(emit / emit.sum(1, keepdims=True))
    log_start = np.log(start / start.sum())
    score = np.zeros((len(seen), states))
    back = np.zeros((len(seen), states), dtype=np.int64)
    score[0] = log_start + log_emit[:, seen[0]]
    for t in spmd.range(1, len(seen)):
        options = score[t - 1][:, None] + log_step
        back[t] = np.argmax(options, axis=0)
        score[t] = np.max(options, axis=0) + log_emit[:, seen[t]]
    path = np.zeros(len(seen), dtype=np.int64)
    path[-1] = np.argmax(score[-1])
    for t in spmd.range(len(seen) - 2, -1, -1):
        path[t] = back[t + 1, path[t + 1]]
    return path, np.max(score[-1])


@case(22, 5000, lambda n, r: dict(x=r(n, 6), y=r(n), lambdas=np.array([0.01, 0.1, 1.0])))
def ridge_path(x, y, lambdas):
    """Ridge regression for some penalties, judged on the last third."""
    split = 2 * len(x) // 3
    mean, std = x[:split].mean(0), x[:split].std(0)
    x = (x - mean) / std
    gram = x[:split].T @ x[:split]
    right = x[:split].T @ y[:split]
    errors = np.zeros(len(lambdas))
    for k in range(len(lambdas)):
        w = np.linalg.solve(gram + lambdas[k] * np.eye(x.shape[1]), right)
        errors[k] = np.mean((x[split:] @ w - y[split:]) ** 2)
    return errors, lambdas[np.argmin(errors)]


@case(30, 100000, lambda n, r: dict(x=r(n), y=r(n), bins=5))
def binned_statistics(x, y, bins):
    """Mean and spread of y in equal bins of x, a histogram in two dimensions, a correlation."""
    which = np.clip(np.digitize(x, np.linspace(0, 1, bins + 1)) - 1, 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = np.bincount(which, weights=y, minlength=bins) / np.maximum(count, 1)
    square = np.bincount(which, weights=y * y, minlength=bins) / np.maximum(count, 1)
    joint, _, _ = np.histogram2d(x, y, bins=bins, range=[[0, 1], [0, 1]])
    return mean, np.sqrt(np.maximum(square - mean**2, 0)), joint, np.corrcoef(x, y)[0, 1]


@case(20, 600, lambda n, r: dict(x=r(n, 3), x_new=r(7, 3), y=r(n)))
def gaussian_process(x, x_new, y, length=0.5, noise=0.1):
    def kernel(a, b):
        square = np.sum(a**2, 1)[:, None] + np.sum(b**2, 1) - 2 * a @ b.T
        return np.exp(-0.5 * square / length**2)

    low = np.linalg.cholesky(kernel(x, x) + noise * np.eye(len(x)))
    alpha = np.linalg.solve(low.T, np.linalg.solve(low, y))
    cross = kernel(x_new, x)
    v = np.linalg.solve(low, cross.T)
    likelihood = -0.5 * y @ alpha - np.log(np.diag(low)).sum() - len(x) / 2 * np.log(2 * np.pi)
    return cross @ alpha, 1 - np.sum(v**2, axis=0), likelihood


@case(5, 64, lambda n, r: dict(designs=r(n, 2 * n, n) / n, targets=r(n, 2 * n), steps=4))
def models_of_stations(designs, targets, steps, rate=0.5):
    """Least squares of every station by itself, by gradient descent from zero."""
    weights = np.zeros_like(designs[:, 0, :])
    for s in spmd.range(len(designs)):
        w = weights[s]
        for _ in spmd.range(steps):
            w = w - rate * (designs[s].T @ (designs[s] @ w - targets[s]))
        weights[s] = w
    return weights
