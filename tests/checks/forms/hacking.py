"""Other ways to write the functions of lessons 11 and 12."""

from collections import Counter
from itertools import pairwise

import torch


def length_penalty_by_addcmul(rewards, lengths, coef):
    return torch.addcmul(rewards.float(), lengths.float(), torch.tensor(-coef))


def length_penalty_by_costs(rewards, lengths, coef):
    costs = lengths.to(torch.float32).mul(coef)
    return rewards.to(torch.float32).sub(costs)


def length_penalty_by_rows(rewards, lengths, coef):
    paid = [float(r) - coef * float(n) for r, n in zip(rewards, lengths, strict=True)]
    return torch.tensor(paid)


def length_penalty_by_alpha(rewards, lengths, coef):
    return torch.sub(rewards.float(), lengths.float(), alpha=coef)


def length_penalty_in_float64(rewards, lengths, coef):
    return (rewards.double() - coef * lengths.double()).float()


def repetition_fraction_by_counter(token_ids, n=3):
    counts = Counter(zip(*(token_ids[i:] for i in range(n)), strict=False))
    total = sum(counts.values())
    return sum(c - 1 for c in counts.values()) / total if total else 0.0


def repetition_fraction_by_unfold(token_ids, n=3):
    if len(token_ids) < n:
        return 0.0
    grams = torch.tensor(token_ids).unfold(0, n, 1)
    return 1 - len(torch.unique(grams, dim=0)) / len(grams)


def repetition_fraction_by_memory(token_ids, n=3):
    seen, repeats, total = set(), 0, 0
    for start in range(len(token_ids) - n + 1):
        gram = tuple(token_ids[start : start + n])
        repeats += gram in seen
        seen.add(gram)
        total += 1
    return repeats / max(total, 1)


def repetition_fraction_by_sorting(token_ids, n=3):
    grams = sorted(token_ids[i : i + n] for i in range(len(token_ids) - n + 1))
    same = sum(a == b for a, b in pairwise(grams))
    return same / len(grams) if grams else 0.0


def repetition_fraction_by_text(token_ids, n=3):
    grams = [" ".join(map(str, token_ids[i : i + n])) for i in range(max(len(token_ids) - n + 1, 0))]
    return (len(grams) - len(dict.fromkeys(grams))) / len(grams) if grams else 0.0


def best_of_n_by_where(scores):
    return torch.where(torch.isnan(scores), -torch.inf, scores).argmax(-1)


def best_of_n_by_nan_to_num(scores):
    lowest = float("-inf")
    return scores.nan_to_num(nan=lowest, posinf=float("inf"), neginf=lowest).max(dim=1).indices


def best_of_n_by_rows(scores):
    def key(row):
        return max(range(len(row)), key=lambda i: row[i] if row[i] == row[i] else float("-inf"))

    return torch.tensor([key(row) for row in scores.tolist()])


def best_of_n_by_numpy(scores):
    values = scores.numpy().copy()
    values[values != values] = -float("inf")
    return torch.from_numpy(values.argmax(axis=1))


def best_of_n_by_comparison(scores):
    clean = scores.clone()
    clean[clean.isnan()] = -torch.inf
    is_best = clean == clean.amax(dim=1, keepdim=True)
    return is_best.int().argmax(dim=1)
