"""What a policy writes and how far it has moved; how well a reward model ranks pairs.

Nothing here needs a judge: greedy answers, their lengths, the KL divergence to the base and to the SFT
model, pair accuracy and reward histograms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch

from helpers.errors import CourseError
from helpers.guard import guarded
from helpers.judging.gold import gold_scores
from helpers.judging.gold_rules import RULES
from helpers.models.adapters import reference
from helpers.models.policy import layout_for, response_logprobs
from helpers.models.reward_model import RewardModel
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, encode_groups
from helpers.text.groups import Group, make_batch

AS_IT_IS = "as it is"  # a Role whose adapters are left as the caller set them


def gold_metadata(example: Example) -> dict[str, Any] | None:
    """Return the facts the gold judge needs, or None for a row of another data set."""
    facts = example.metadata.get("metadata")
    known = isinstance(facts, dict) and isinstance(facts.get("family"), str) and facts["family"] in RULES
    return facts if known else None


@dataclass(frozen=True)
class Role:
    """A model in one of its roles: `adapter` names the active adapter, None means all adapters off.

    The default takes the model as it stands, which is right for a model of its own (a merged or fully
    fine-tuned one) and for a policy whose adapter is active already.
    """

    model: Any
    adapter: str | None = AS_IT_IS

    @contextmanager
    def active(self) -> Iterator[None]:
        """Put the model into this role for the length of the block, in eval mode and without gradients."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                if self.adapter == AS_IT_IS:
                    yield
                else:
                    with reference(self.model, self.adapter):
                        yield
        finally:
            for module, mode in modes:
                module.training = mode


@dataclass(frozen=True)
class KlEstimate:
    """KL(policy || reference) in nats, from the policy's own samples at temperature 1."""

    per_token: float  # mean over all response tokens
    per_sequence: float  # mean over sequences of the sum over their tokens
    tokens: int
    sequences: int
    non_finite: int = 0  # sequences left out because their estimate overflowed


@dataclass(frozen=True)
class PolicyReport:
    """Greedy answers of one policy. Lists hold one entry a prompt, in the order of `row_ids`."""

    name: str
    row_ids: list[str]
    responses: list[str]
    generated_tokens: list[int]  # end-of-turn included
    truncated: list[bool]  # hit the token limit before an end-of-turn
    kl: dict[str, KlEstimate] = field(default_factory=dict)  # by reference: "base", "sft"
    seconds: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Mean number of generated tokens a response."""
        return fmean(self.generated_tokens) if self.generated_tokens else 0.0

    @property
    def truncated_share(self) -> float:
        """Share of responses that never ended by themselves."""
        return fmean(self.truncated) if self.truncated else 0.0

    @property
    def empty(self) -> int:
        """Number of responses without visible text."""
        return sum(not response.strip() for response in self.responses)


def evaluate_policy(
    name: str,
    model: Any,
    encoder: ChatEncoder,
    examples: Sequence[Example],
    answers: Any,
    *,
    references: Mapping[str, Role] | None = None,
    budget: Budget | None = None,
    batch_size: int = 64,
    layout: str = "packed",
    seed: int = 0,
    progress: bool = True,
) -> PolicyReport:
    """Answer `examples` greedily; with references, sample once a prompt at T = 1 and estimate the KL to each.

    Args:
        model: a Role, or a model taken as it stands.
        answers: namespace with `approx_kl` (needed only with references).
        references: such as {"base": Role(model, None), "sft": Role(model, "sft")}.
        budget: limits in tokens; the benchmark's by default.
        batch_size: sequences generated or scored together.
        seed: of the samples behind the KL.
        progress: show bars while generating.

    Raises:
        CourseError: without prompts, or for a model that cannot be scored.
    """
    answers = guarded(answers)
    if not examples:
        raise CourseError(f"policy {name}: there are no prompts to answer")
    started = time.perf_counter()
    budget = budget or Budget()
    role = model if isinstance(model, Role) else Role(model)
    prompts = [encoder.encode_prompt(example.messages, budget.max_prompt_tokens) for example in examples]
    greedy = Sampling(max_new_tokens=budget.max_new_tokens, greedy=True)
    with role.active():
        title = f"{name}: greedy answers" if progress else None
        completions = _one_each(role, encoder, prompts, greedy, batch_size, seed, title)
    kl = {}
    if references:
        title = f"{name}: samples for the KL" if progress else None
        groups = _sampled_groups(role, encoder, prompts, budget, batch_size, seed, title)
        kl = estimate_kl(
            role, references, groups, encoder.pad_id, answers, batch_size=batch_size, layout=layout
        )
    return PolicyReport(
        name=name,
        row_ids=[example.row_id for example in examples],
        responses=[completion.text for completion in completions],
        generated_tokens=[len(completion.ids) for completion in completions],
        truncated=[not completion.complete for completion in completions],
        kl=kl,
        seconds=time.perf_counter() - started,
    )


def _one_each(
    role: Role,
    encoder: ChatEncoder,
    prompts: list[list[int]],
    sampling: Sampling,
    batch_size: int,
    seed: int,
    title: str | None,
) -> list[Completion]:
    groups = generate(
        role.model, encoder, prompts, sampling, k=1, batch_size=batch_size, seed=seed, progress=title
    )
    return [group[0] for group in groups]


def _sampled_groups(
    role: Role,
    encoder: ChatEncoder,
    prompts: list[list[int]],
    budget: Budget,
    batch_size: int,
    seed: int,
    title: str | None,
) -> list[Group]:
    sampling = Sampling(max_new_tokens=budget.max_new_tokens, temperature=1.0, top_p=1.0)
    with role.active():
        samples = _one_each(role, encoder, prompts, sampling, batch_size, seed, title)
    return [
        Group(prompt, [sample.ids]) for prompt, sample in zip(prompts, samples, strict=True) if sample.ids
    ]


def estimate_kl(
    policy: Role,
    references: Mapping[str, Role],
    groups: Sequence[Group],
    pad_id: int,
    answers: Any,
    *,
    batch_size: int = 64,
    layout: str = "packed",
) -> dict[str, KlEstimate]:
    """Estimate KL(policy || reference) by k3 (Schulman, 2020) on `groups`, sampled from the policy at T = 1.

    The mean per token weights every token alike over the whole set, so it does not depend on the batches.
    """
    sums: dict[str, list[float]] = {name: [] for name in references}
    lengths: list[int] = []
    device = next(policy.model.parameters()).device
    layout = layout_for(policy.model, groups, layout)
    for start in range(0, len(groups), batch_size):
        batch = make_batch(groups[start : start + batch_size], pad_id, layout).to(device)
        with policy.active():
            own = response_logprobs(policy.model, batch)
        lengths += own.mask.sum(dim=1).tolist()
        for name, role in references.items():
            with role.active():
                other = response_logprobs(role.model, batch)
            sums[name] += _sequence_sums(own.logprobs, other.logprobs, own.mask, answers)
    return {name: _kl_of(values, lengths) for name, values in sums.items()}


def _sequence_sums(own: torch.Tensor, other: torch.Tensor, mask: torch.Tensor, answers: Any) -> list[float]:
    """(N, R) log-probabilities -> the k3 sum of each of N sequences."""
    rows = [slice(index, index + 1) for index in range(len(own))]
    means = [answers.approx_kl(own[row], other[row], mask[row], "k3") for row in rows]
    return [float(mean) * int(mask[row].sum()) for mean, row in zip(means, rows, strict=True)]


def _kl_of(sums: Sequence[float], lengths: Sequence[int]) -> KlEstimate:
    finite = [(value, length) for value, length in zip(sums, lengths, strict=True) if math.isfinite(value)]
    total, tokens = sum(value for value, _ in finite), sum(length for _, length in finite)
    return KlEstimate(
        per_token=total / max(tokens, 1),
        per_sequence=total / max(len(finite), 1),
        tokens=tokens,
        sequences=len(finite),
        non_finite=len(sums) - len(finite),
    )


# ---------------------------------------------------------------------- reward model


@dataclass(frozen=True)
class RewardReport:
    """How a reward model ranks preference pairs. `gold_accuracy` is None without gold metadata."""

    pair_accuracy: float  # against the data's labels; equal scores count as wrong
    ci95: tuple[float, float]
    pairs: int
    dropped: int  # pairs that could not be encoded: empty, or equal after truncation
    row_ids: list[str]
    chosen_scores: list[float]
    rejected_scores: list[float]
    gold_accuracy: float | None
    gold_pairs: int  # pairs whose gold totals differ
    label_accuracy: float | None  # how often the data's label agrees with gold: the noise ceiling

    def histogram(self, bins: int = 30) -> dict[str, list[float]]:
        """Return bin "edges" (bins + 1) and the counts of "chosen" and "rejected" scores in them."""
        scores = np.asarray([self.chosen_scores, self.rejected_scores], dtype=float)
        edges = np.histogram_bin_edges(scores.ravel(), bins=bins)
        counts = [np.histogram(side, bins=edges)[0] for side in scores]
        return {"edges": edges.tolist(), "chosen": counts[0].tolist(), "rejected": counts[1].tolist()}

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and the histogram as JSON values, without single scores."""
        gaps = [
            chosen - rejected
            for chosen, rejected in zip(self.chosen_scores, self.rejected_scores, strict=True)
        ]
        return {
            "pair_accuracy": self.pair_accuracy,
            "ci95": list(self.ci95),
            "pairs": self.pairs,
            "dropped": self.dropped,
            "gold_accuracy": self.gold_accuracy,
            "gold_pairs": self.gold_pairs,
            "label_accuracy": self.label_accuracy,
            "mean_margin": fmean(gaps),
            "histogram": self.histogram(),
        }


def evaluate_reward(
    reward_model: RewardModel,
    examples: Sequence[Example],
    encoder: ChatEncoder,
    answers: Any,
    *,
    budget: Budget | None = None,
    batch_size: int = 32,
) -> RewardReport:
    """Score (chosen, rejected) pairs and report accuracy against the labels and against gold.

    Args:
        answers: namespace with `pair_accuracy` and `bootstrap_ci`.

    Raises:
        CourseError: without usable pairs, or for scores that are not finite (naming the rows).
    """
    answers = guarded(answers)
    groups, _ = encode_groups(examples, encoder, budget or Budget(), kind="preference")
    scores = [
        (float(chosen), float(rejected)) for chosen, rejected in reward_model.score_groups(groups, batch_size)
    ]
    row_ids = [group.row_id for group in groups]
    check_finite(row_ids, scores)
    chosen, rejected = map(list, zip(*scores, strict=True))
    outcomes = [float(first > second) for first, second in scores]
    return RewardReport(
        pair_accuracy=_accuracy(scores, answers),
        ci95=answers.bootstrap_ci(outcomes),
        pairs=len(groups),
        dropped=len(examples) - len(groups),
        row_ids=row_ids,
        chosen_scores=chosen,
        rejected_scores=rejected,
        **_against_gold(examples, row_ids, scores, answers),
    )


def check_finite(row_ids: Sequence[str], scores: Sequence[Sequence[float]]) -> None:
    """Raise CourseError naming the rows with a NaN or infinite score."""
    bad = [row for row, pair in zip(row_ids, scores, strict=True) if not all(map(math.isfinite, pair))]
    if bad:
        raise CourseError(
            f"the reward model gave NaN or infinite scores on {len(bad)} rows, such as {bad[:5]}: "
            "the training diverged (lower the learning rate) or fp16 overflowed (use fp32 or bf16)"
        )


def _accuracy(scores: Sequence[tuple[float, float]], answers: Any) -> float:
    pairs = torch.tensor(scores, dtype=torch.float64).reshape(-1, 2)
    return float(answers.pair_accuracy(pairs[:, 0], pairs[:, 1]))


def _against_gold(
    examples: Sequence[Example],
    row_ids: Sequence[str],
    scores: Sequence[tuple[float, float]],
    answers: Any,
) -> dict[str, Any]:
    """Rank again by the gold totals of the two texts; pairs that gold calls equal are left out."""
    by_id = {example.row_id: example for example in examples}
    ranked, agree = [], 0
    missing = {"gold_accuracy": None, "gold_pairs": 0, "label_accuracy": None}
    if len(by_id) < len(examples):  # with ids given twice nobody knows whose facts are whose
        return missing
    for row_id, (chosen, rejected) in zip(row_ids, scores, strict=True):
        facts = gold_metadata(by_id[row_id])
        if facts is None:
            return missing
        better, worse = (gold_scores(facts, text).total for text in by_id[row_id].responses)
        if better != worse:
            ranked.append((chosen, rejected) if better > worse else (rejected, chosen))
            agree += better > worse
    if not ranked:
        return missing
    return {
        "gold_accuracy": _accuracy(ranked, answers),
        "gold_pairs": len(ranked),
        "label_accuracy": agree / len(ranked),
    }
