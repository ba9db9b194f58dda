"""Statements about the perplexity of held-out answers."""

from __future__ import annotations

import math

import pytest
import torch

import solutions.answers as answers
from helpers.judging.likelihood import text_perplexity
from helpers.judging.measure import Role
from helpers.text.groups import Group


def groups() -> list[Group]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda count: torch.randint(1, 60, (count,), generator=generator).tolist()  # noqa: E731
    return [Group(draw(3 + index % 3), [draw(1 + index % 5)], f"row{index}") for index in range(7)]


def test_it_is_the_exponential_of_the_mean_over_all_response_tokens(random_qwen2):
    model = random_qwen2()
    nats = []
    for group in groups():
        ids = torch.tensor([group.prompt_ids + group.responses[0]])
        logprobs = model(ids).logits[0].log_softmax(-1).detach()
        for place in range(len(group.prompt_ids), ids.shape[1]):
            nats.append(-float(logprobs[place - 1, ids[0, place]]))
    by_hand = math.exp(sum(nats) / len(nats))
    assert text_perplexity(Role(model), groups(), 0, answers) == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize(("batch_size", "layout"), [(1, "packed"), (3, "padded"), (7, "padded")])
def test_neither_batches_nor_layout_change_it(random_qwen2, batch_size, layout):
    role = Role(random_qwen2())
    one = text_perplexity(role, groups(), 0, answers)
    other = text_perplexity(role, groups(), 0, answers, batch_size=batch_size, layout=layout)
    assert other == pytest.approx(one, rel=1e-4)


def test_without_answers_it_is_not_known(random_qwen2):
    assert math.isnan(text_perplexity(Role(random_qwen2()), [], 0, answers))
