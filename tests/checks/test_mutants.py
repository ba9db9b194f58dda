"""Small wrong changes of each answer are rejected: signs, bounds, masks, means, exchanged arguments."""

from __future__ import annotations

import pytest
import torch

import solutions.answers as answers
from helpers.course.checks import check
from solutions.oracles import ORACLES
from tests.checks.mutants import exchanged, mutants

NO_HOLES = "padding is 0 by then; a mask with holes would tell, and the contract has none"
# Changes that change nothing, with the reason.
EQUIVALENT = {
    **{
        (
            "length_controlled_win_rate",
            what,
        ): "refuses bad input in more or fewer cases, and the cases are of good input"
        for what in (
            "0 < len(wins) == len(model_lengths) == len(baseline_lengths)"
            " -> 0 <= len(wins) == len(model_lengths) == len(baseline_lengths)",
            "(wins >= 0) & (wins <= 1) -> wins <= 1",
            "(wins >= 0) & (wins <= 1) -> wins >= 0",
        )
    },
    ("length_controlled_win_rate", "np.abs(step).max() -> np.abs(step).min()"): "Newton stops a step earlier",
    ("length_controlled_win_rate", "np.abs(step).max() < 1e-09 -> np.abs(step).max() <= 1e-09"): (
        "Newton's step is never that number exactly"
    ),
    (
        "length_controlled_win_rate",
        "features.T @ (features * (chances * (1 - chances))[:, None]) + RIDGE * np.eye(2)"
        " -> features.T @ (features * (chances * (1 - chances))[:, None]) - RIDGE * np.eye(2)",
    ): "the ridge is in the gradient too; in the curvature it only changes the steps",
    ("group_advantages", "centred.masked_fill(equal, 0.0) -> centred"): (
        "equal rewards are centred to 0 already, but for rounding"
    ),
    ("grpo_loss", "torch.where(keep, logprobs - old_logprobs, 0.0) -> logprobs - old_logprobs"): (
        "per_token is masked again; only the gradient under NaN differs, which no check demands"
    ),
    ("grpo_loss", "torch.where(keep, logprobs - ref_logprobs, 0.0) -> logprobs - ref_logprobs"): (
        "per_token is masked again; only the gradient under NaN differs, which no check demands"
    ),
    ("dpo_loss", "policy_chosen <-> ref_rejected"): "both have a plus sign in the margin",
    ("dpo_loss", "policy_rejected <-> ref_chosen"): "both have a minus sign in the margin",
    ("ipo_loss", "policy_chosen <-> ref_rejected"): "both have a plus sign in the margin",
    ("ipo_loss", "policy_rejected <-> ref_chosen"): "both have a minus sign in the margin",
    ("dr_grpo_loss", "torch.where(keep, logprobs - old_logprobs, 0.0) -> logprobs - old_logprobs"): (
        "per_token is masked again, as in grpo_loss"
    ),
    ("dr_grpo_loss", "torch.where(keep, logprobs - ref_logprobs, 0.0) -> logprobs - ref_logprobs"): (
        "per_token is masked again, as in grpo_loss"
    ),
    ("gae", "torch.where(keep[:, t], advantage, next_advantage) -> advantage"): NO_HOLES,
    ("gae", "torch.where(keep[:, t], values[:, t], next_value) -> values[:, t]"): NO_HOLES,
    (
        "gae",
        "torch.where(keep, advantages + values, 0.0) -> advantages + values",
    ): "both are 0 outside already",
    ("gae", "torch.where(keep, rewards, 0.0) -> rewards"): "columns are masked again",
    ("gae", "torch.where(keep, values, 0.0) -> values"): "columns and returns are masked again",
    ("whiten", "kept.std().clamp(min=1e-12) -> kept.std()"): "equal entries have been dealt with before",
    ("sft_loss", "-1 -> 1"): "the last axis of a matrix is axis 1",
}


def survivors(name: str) -> tuple[set[tuple[str, str]], int]:
    """Changes that a check lets pass, and how many were tried."""
    oracle, function = ORACLES[name], getattr(answers, name)
    given = oracle.cases()[1].arguments
    tensors = [
        key
        for key in oracle.arguments
        if isinstance(given.get(key), torch.Tensor) and key not in oracle.optional
    ]
    changed = [*mutants(function, oracle.gradients), *exchanged(function, tensors)]
    return {(name, what) for what, f in changed if check(name, f, quiet=True).passed}, len(changed)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_small_wrong_changes_are_rejected(name: str) -> None:
    passed, tried = survivors(name)
    assert tried >= 2
    assert passed - set(EQUIVALENT) == set()


def test_changes_of_every_kind_are_made() -> None:
    labels = [
        what for name in ORACLES for what, _ in mutants(getattr(answers, name), ORACLES[name].gradients)
    ]
    text = "\n".join(labels)
    for kind in (
        ".sum(dim=1) -> ",
        ".mean()",
        ".detach()",
        "torch.where(",
        "minimum",
        "maximum",
        " + 1",
        " - 1",
        ">=",
    ):
        assert kind in text, kind
    assert len(labels) > 100
