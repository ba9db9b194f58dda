"""Preference pairs sampled from the base and labelled by a simulated annotator.

The gold judge scores every sample and a Bradley-Terry coin decides which of two the annotator prefers, as
in Gao et al. 2022 (arXiv 2210.10760, section 2.1) and AlpacaFarm (Dubois et al. 2023, arXiv 2305.14387).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from helpers.judging.gold import gold_scores
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import ChatEncoder
from helpers.tiny.families import Prompt
from helpers.tiny.splits import Row, messages, quotas, row_id

SAMPLES = 4  # a prompt, at T = 1
INVERSE_TEMPERATURE = 10.0  # of the annotator: at a gap of 0.3 in gold total 95 % of the labels are right
SMALLEST_GAP = 0.05  # in gold total; closer pairs would be labelled by the coin alone
JUDGE_NAME = "gold+bt-noise"
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt with their gold totals, in the order they were drawn."""

    first: str
    second: str
    first_total: float
    second_total: float

    @property
    def first_preferred(self) -> float:
        """Probability that the annotator prefers the first response (Bradley and Terry, 1952)."""
        return 1 / (1 + math.exp(-INVERSE_TEMPERATURE * (self.first_total - self.second_total)))


def sample_responses(
    model: Any, encoder: ChatEncoder, prompts: Sequence[Prompt], *, k: int, seed: int, greedy: bool = False
) -> list[list[Completion]]:
    """Draw k responses for every prompt from the base at T = 1, or its most likely one."""
    ids = [encoder.encode_prompt(messages(prompt.text)) for prompt in prompts]
    sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS, greedy=greedy)
    return generate(model, encoder, ids, sampling, k=k, batch_size=256, seed=seed, progress="sampling")


def choose_pair(prompt: Prompt, responses: Sequence[Completion], rng: random.Random) -> Pair | None:
    """Return one pair of complete, different responses with a gap in gold total, or None."""
    texts = list(
        dict.fromkeys(answer.text for answer in responses if answer.complete and answer.text.strip())
    )
    totals = {text: gold_scores(prompt.metadata, text).total for text in texts}
    pairs = [
        pair for pair in combinations(texts, 2) if abs(totals[pair[0]] - totals[pair[1]]) >= SMALLEST_GAP
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return Pair(first, second, totals[first], totals[second])


def preference_rows(
    file: str, prompts: Sequence[Prompt], responses: Sequence[Sequence[Completion]], size: int, seed: int
) -> list[Row]:
    """Return `size` labelled pairs, all families alike as far as their samples differ."""
    rng, left = random.Random(f"annotator-{file}-{seed}"), quotas(size)
    rows: list[Row] = []
    spare: list[tuple[Prompt, Pair]] = []
    for prompt, answers in zip(prompts, responses, strict=True):
        pair = choose_pair(prompt, answers, rng)
        if pair is None:
            continue
        if left[prompt.family]:
            left[prompt.family] -= 1
            rows.append(_label(prompt, pair, rng))
        else:
            spare.append((prompt, pair))
    rows += [_label(prompt, pair, rng) for prompt, pair in spare[: size - len(rows)]]
    rng.shuffle(rows)
    return [{**row, "row_id": row_id(file, place)} for place, row in enumerate(rows)]


def _label(prompt: Prompt, pair: Pair, rng: random.Random) -> Row:
    """Toss the annotator's coin. The averages stand for what several annotators of such data report."""
    first_wins = rng.random() < pair.first_preferred
    chosen, rejected = (pair.first, pair.second) if first_wins else (pair.second, pair.first)
    gap = abs(pair.first_total - pair.second_total)
    strength = round(1 + 4 * min(1.0, gap), 2)
    quality = round(1 + 4 * (pair.first_total if first_wins else pair.second_total), 2)
    return {
        "avg_confidence": round(max(pair.first_preferred, 1 - pair.first_preferred), 3),
        "avg_preference_strength": strength,
        "avg_training_quality": quality,
        "chosen_text": chosen,
        "judge_model": JUDGE_NAME,
        "prompt_messages": messages(prompt.text),
        "prompt_text": prompt.text,
        "rejected_text": rejected,
        "row_id": "",
        "score": round((strength + quality) / 2, 2),
        "metadata": prompt.metadata,
    }


def label_ceiling(rows: Sequence[Row]) -> float:
    """Share of labels that agree with gold: the best accuracy any reward model can expect on them."""
    agree = [
        gold_scores(row["metadata"], row["chosen_text"]).total
        > gold_scores(row["metadata"], row["rejected_text"]).total
        for row in rows
    ]
    return sum(agree) / len(agree)
