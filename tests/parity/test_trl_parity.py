"""The same tensors and the same runs of 20 steps through TRL's own trainers give the same."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.training.configs import PreferenceConfig, RewardConfig
from helpers.training.preference import train_preference
from helpers.training.reward import train_reward_model
from helpers.training.setup import add_policy
from tests.answers.numerics import near, random
from tests.parity.trainers import (
    copy_adapter,
    dpo_trainer,
    grpo_tensors,
    grpo_trainer,
    our_losses,
    ready,
    reward_start,
    reward_trainer,
    trl_grpo_loss,
    trl_losses,
)

pytest.importorskip("trl", minversion="1.16")


# ---------------------------------------------------------------- whole runs
def test_twenty_steps_of_dpo_follow_trls_loss_curve(configure: Any, in_order: None) -> None:
    """2 × 2 accumulated in both; ours packs and caches the reference, TRL pads and runs it in every step."""
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    space, groups = ready(configure, PreferenceConfig, "dpo", "start", **batch)
    trainer = dpo_trainer(space, groups)
    copy_adapter(add_policy(space, dropout=0.0).model, "policy", trainer.model)
    theirs = trl_losses(trainer)
    ours = our_losses(train_preference(configure(PreferenceConfig, **batch), answers).run_dir)
    assert len(ours) == len(theirs) == 20
    assert ours[0] == pytest.approx(math.log(2), abs=1e-6) and min(ours) < 0.6
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_twenty_steps_of_the_reward_model_follow_trls_loss_curve(configure: Any, in_order: None) -> None:
    """Our head has a bias, TRL's none: it cancels in every difference and never moves."""
    _, _, trainer = reward_start(configure, "start")
    theirs = trl_losses(trainer)
    run = train_reward_model(configure(RewardConfig), answers)
    ours = our_losses(run.run_dir)
    assert len(ours) == len(theirs) == 20 and min(ours) < 0.6
    assert ours == pytest.approx(theirs, abs=1e-4)


# ---------------------------------------------------------------- the same tensors through TRL's loss code
def token_logprobs_of_pairs(seed: int, mask: torch.Tensor) -> torch.Tensor:
    """(pairs, 2, T) float32 token log-probs, 0 outside the mask as both sides' models give them."""
    values = -random(*mask.shape, seed=seed).abs().float()
    return values.masked_fill(~mask, 0.0).requires_grad_()


def pair_mask() -> torch.Tensor:
    """(5, 2, 6) bool: pairs of unequal lengths, one of length 1."""
    lengths = torch.tensor([[6, 3], [1, 4], [2, 2], [5, 1], [3, 6]])
    return torch.arange(6) < lengths[..., None]


@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0])
def test_dpo_loss_and_gradient_equal_trls(configure: Any, beta: float) -> None:
    trainer = dpo_trainer(*ready(configure, PreferenceConfig, "dpo", "start"))
    trainer.beta, trainer.precompute_ref_logps = beta, True
    mask = pair_mask()
    policy, reference = (token_logprobs_of_pairs(seed, mask) for seed in (0, 1))
    stacked = torch.cat([mask[:, 0], mask[:, 1]])  # TRL's batch: all chosen, then all rejected

    def model(**_: Any) -> SimpleNamespace:
        zeros = torch.zeros_like(stacked, dtype=torch.float32)
        logp = torch.cat([policy[:, 0], policy[:, 1]])
        return SimpleNamespace(log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())

    with_prompt = torch.nn.functional.pad(stacked, (1, 0)).long()
    sums = reference.detach().sum(dim=2)
    inputs = {
        "input_ids": torch.zeros_like(with_prompt),
        "attention_mask": torch.nn.functional.pad(stacked, (1, 0), value=True).long(),
        "completion_mask": with_prompt,
        "ref_chosen_logps": sums[:, 0],
        "ref_rejected_logps": sums[:, 1],
    }
    theirs = trainer._compute_loss(model, inputs, False)
    ours = answers.dpo_loss(policy[:, 0].sum(1), policy[:, 1].sum(1), sums[:, 0], sums[:, 1], beta)
    near(ours, theirs)
    near(*(torch.autograd.grad(loss, policy)[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_reward_loss_and_gradient_equal_trls(configure: Any, with_margin: bool, scale: float) -> None:
    trainer = reward_trainer(*ready(configure, RewardConfig, "reward_model", "start"))
    rewards = random(6, 2, scale=scale).float().requires_grad_()
    margin = random(6, seed=1).abs().float() if with_margin else None
    inputs = {"attention_mask": torch.ones(12, 3)} | ({"margin": margin} if with_margin else {})

    def model(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.cat([rewards[:, 0], rewards[:, 1]])[:, None])

    theirs = trainer.compute_loss(model, inputs)
    ours = answers.bradley_terry_loss(rewards[:, 0], rewards[:, 1], margin)
    near(ours, theirs)
    near(*(torch.autograd.grad(loss, rewards)[0] for loss in (ours, theirs)))
    assert trainer._metrics["train"]["accuracy"] == [
        pytest.approx(answers.pair_accuracy(rewards[:, 0], rewards[:, 1]))
    ]


@pytest.mark.parametrize(("beta", "low", "high"), [(0.04, 0.2, None), (1.0, 0.2, 0.28), (0.0, 0.1, None)])
def test_grpo_loss_and_gradient_equal_trls(
    configure: Any, beta: float, low: float, high: float | None
) -> None:
    trainer = grpo_trainer(configure, beta=beta, epsilon=low, epsilon_high=high)
    given = grpo_tensors()
    theirs = trl_grpo_loss(trainer, given)
    ours = answers.grpo_loss(**given, clip_eps=low, kl_coef=beta, clip_eps_high=high)
    near(ours, theirs)
    near(*(torch.autograd.grad(loss, given["logprobs"])[0] for loss in (ours, theirs)))
    if beta:
        kl = answers.approx_kl(given["logprobs"], given["ref_logprobs"], given["mask"])
        near(kl, trainer._metrics["eval"]["kl"][-1])  # the model is in eval mode: no dropout


@pytest.mark.parametrize("scale", ["group", "none"])
def test_group_advantages_equal_trls(configure: Any, scale: str) -> None:
    """TRL samples for itself; its rewards are given."""
    rewards = [0.3, -1.2, 0.8, 0.1, 5.0, 5.0, 4.0, 5.5]
    trainer = grpo_trainer(configure, lambda completions, **_: rewards, scale_rewards=scale)
    prompts = [{"prompt": f"say {i // 4}"} for i in range(8)]
    theirs = trainer._generate_and_score_completions(prompts)["advantages"]
    near(answers.group_advantages(torch.tensor(rewards), 4, scale_by_std=scale == "group"), theirs)
