"""Other ways to write the functions of lesson 10."""

import math
import random
from collections import Counter

import numpy as np
import scipy.stats
import torch
from scipy.optimize import minimize


def combine_orders_by_table(first, second):
    table = {"AB": "win", "BA": "loss", "AA": "tie", "BB": "tie"}
    return [table[a + b] for a, b in zip(first, second, strict=True)]


def combine_orders_by_branches(first, second):
    out = []
    for i in range(len(first)):
        if first[i] == second[i]:
            out.append("tie")
        elif first[i] == "A":
            out.append("win")
        else:
            out.append("loss")
    return out


def combine_orders_by_counting(first, second):
    points = [(a == "A") + (b != "A") for a, b in zip(first, second, strict=True)]
    return [("loss", "tie", "win")[p] for p in points]


def combine_orders_by_numpy(first, second):
    a, b = np.array(first, dtype=str), np.array(second, dtype=str)
    return np.where(a == b, "tie", np.where(a == "A", "win", "loss")).tolist()


def combine_orders_in_tuples(first, second):
    return tuple(
        "tie" if a == b else {"A": "win", "B": "loss"}[a] for a, b in zip(first, second, strict=True)
    )


def win_rate_by_counter(verdicts):
    counts = Counter(verdicts)
    return (counts["win"] + 0.5 * counts["tie"]) / len(verdicts) if len(verdicts) else 0.5


def win_rate_by_numpy(verdicts):
    if not verdicts:
        return 0.5
    return float(np.mean([{"win": 1, "loss": 0, "tie": 0.5}[v] for v in verdicts]))


def win_rate_by_losses(verdicts):
    lost = sum(2 if v == "loss" else 1 for v in verdicts if v != "win")
    return 1 - lost / (2 * len(verdicts)) if verdicts else 0.5


def win_rate_by_torch(verdicts):
    points = torch.tensor([("loss", "tie", "win").index(v) / 2 for v in verdicts])
    return points.mean().item() if len(points) else 0.5


def win_rate_in_a_loop(verdicts):
    total = 0.0
    for v in verdicts:
        if v == "win":
            total += 1
        elif v == "tie":
            total += 0.5
    return total / len(verdicts) if verdicts else 0.5


def bootstrap_ci_by_choice(outcomes, n_resamples=2000, seed=0):
    rng = np.random.default_rng(seed)
    means = [rng.choice(outcomes, size=len(outcomes)).mean() for _ in range(n_resamples)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def bootstrap_ci_by_random(outcomes, n_resamples=2000, seed=0):
    rng = random.Random(seed)
    n = len(outcomes)
    means = sorted(sum(rng.choices(outcomes, k=n)) / n for _ in range(n_resamples))
    return means[int(0.025 * n_resamples)], means[int(0.975 * n_resamples) - 1]


def bootstrap_ci_by_torch(outcomes, n_resamples=2000, seed=0):
    values = torch.tensor(outcomes, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(0, len(values), (n_resamples, len(values)), generator=generator)
    low, high = torch.quantile(values[picks].mean(dim=1), torch.tensor([0.025, 0.975], dtype=torch.float64))
    return low.item(), high.item()


def bootstrap_ci_by_scipy(outcomes, n_resamples=2000, seed=0):
    if len(set(outcomes)) == 1:
        return outcomes[0], outcomes[0]
    found = scipy.stats.bootstrap(
        (np.asarray(outcomes),),
        np.mean,
        n_resamples=n_resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def bootstrap_ci_by_counts(outcomes, n_resamples=2000, seed=0):
    n = len(outcomes)
    counts = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=n_resamples)
    return [float(x) for x in np.percentile(counts @ np.asarray(outcomes) / n, [2.5, 97.5])]


def scaled(model_lengths, baseline_lengths):
    gaps = np.asarray(model_lengths, dtype=float) - np.asarray(baseline_lengths, dtype=float)
    return np.tanh(gaps / gaps.std()) if gaps.std() > 0 else None


def length_controlled_win_rate_by_bfgs(preferences, model_lengths, baseline_lengths):
    x = scaled(model_lengths, baseline_lengths)
    if x is None:
        return sum(preferences) / len(preferences)
    y = np.asarray(preferences)

    def nll(w):
        z = w[0] + w[1] * x
        return np.mean(np.logaddexp(0, z) - y * z)

    return float(1 / (1 + np.exp(-minimize(nll, np.zeros(2)).x[0])))


def length_controlled_win_rate_by_torch(preferences, model_lengths, baseline_lengths):
    x = scaled(model_lengths, baseline_lengths)
    if x is None:
        return float(np.mean(preferences))
    x, y = torch.tensor(x), torch.tensor(preferences, dtype=torch.float64)
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(weights[0] + weights[1] * x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return torch.sigmoid(weights[0]).item()


def length_controlled_win_rate_by_reweighted_least_squares(preferences, model_lengths, baseline_lengths):
    x = scaled(model_lengths, baseline_lengths)
    if x is None:
        return float(np.mean(preferences))
    design, y, w = np.c_[np.ones(len(x)), x], np.asarray(preferences), np.zeros(2)
    for _ in range(60):
        p = 1 / (1 + np.exp(-design @ w))
        v = np.clip(p * (1 - p), 1e-6, None)
        w = w + np.linalg.lstsq(design * np.sqrt(v)[:, None], (y - p) / np.sqrt(v), rcond=None)[0]
    return float(1 / (1 + math.exp(-w[0])))


def length_controlled_win_rate_by_gradient_descent(preferences, model_lengths, baseline_lengths):
    x = scaled(model_lengths, baseline_lengths)
    if x is None:
        return float(np.mean(preferences))
    y, theta, phi = np.asarray(preferences), 0.0, 0.0
    for _ in range(8000):
        error = 1 / (1 + np.exp(-(theta + phi * x))) - y
        theta, phi = theta - 2 * error.mean(), phi - 2 * (error * x).mean()
    return float(1 / (1 + np.exp(-theta)))


def length_controlled_win_rate_by_newton_in_loops(preferences, model_lengths, baseline_lengths):
    n = len(preferences)
    gaps = [a - b for a, b in zip(model_lengths, baseline_lengths, strict=True)]
    mean = sum(gaps) / n
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / n)
    if deviation == 0:
        return sum(preferences) / n
    xs = [math.tanh(g / deviation) for g in gaps]
    a = b = 0.0
    for _ in range(40):
        g0 = g1 = 0.0
        h00 = h11 = 1e-9
        h01 = 0.0
        for x, y in zip(xs, preferences, strict=True):
            p = 1 / (1 + math.exp(-(a + b * x)))
            g0, g1 = g0 + p - y, g1 + (p - y) * x
            v = p * (1 - p)
            h00, h01, h11 = h00 + v, h01 + v * x, h11 + v * x * x
        det = h00 * h11 - h01 * h01
        a, b = a - (h11 * g0 - h01 * g1) / det, b - (h00 * g1 - h01 * g0) / det
    return 1 / (1 + math.exp(-a))
