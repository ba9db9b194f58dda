"""The same tensors and the same runs of 20 steps through TRL's own trainers give the same."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.training.configs import PreferenceConfig, RewardConfig
from helpers.training.pairs import preference_loss
from helpers.training.preference import LOSSES, train_preference
from helpers.training.reward import train_reward_model
from helpers.training.setup import add_policy
from tests.answers.numerics import near, random
from tests.parity.trainers import (
    PREFERENCE_FORMS,
    copy_adapter,
    dpo_trainer,
    grpo_tensors,
    grpo_trainer,
    our_losses,
    pair_tensors,
    ready,
    reward_start,
    reward_trainer,
    trl_grpo_loss,
    trl_losses,
    trl_pair_loss,
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


@pytest.mark.parametrize("name", ["ipo", "aot", "aot_paired"])
def test_twenty_steps_of_its_relatives_follow_trls_loss_curve(
    configure: Any, in_order: None, name: str
) -> None:
    """Whole batches of 4: what TRL sorts is a micro-batch."""
    form = PREFERENCE_FORMS[name]
    space, groups = ready(configure, PreferenceConfig, form.ours["algo"], "start", beta=0.5)
    trainer = dpo_trainer(space, groups, **form.theirs)
    copy_adapter(add_policy(space, dropout=0.0).model, "policy", trainer.model)
    theirs = trl_losses(trainer)
    run = train_preference(configure(PreferenceConfig, beta=0.5, **form.ours), answers)
    ours = our_losses(run.run_dir)
    assert len(ours) == len(theirs) == 20 and ours[-1] < ours[0]
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_twenty_steps_of_the_reward_model_follow_trls_loss_curve(configure: Any, in_order: None) -> None:
    """Our head has a bias, TRL's none: it cancels in every difference and never moves."""
    _, _, trainer = reward_start(configure, "start")
    theirs = trl_losses(trainer)
    run = train_reward_model(configure(RewardConfig), answers)
    ours = our_losses(run.run_dir)
    assert len(ours) == len(theirs) == 20 and min(ours) < 0.6
    assert ours == pytest.approx(theirs, abs=1e-4)


# ---------------------------------------------------------------- the same tensors through TRL's loss code
@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("name", ["dpo", "ipo", "aot", "aot_paired"])
def test_preference_loss_and_gradient_equal_trls(configure: Any, name: str, beta: float) -> None:
    """Each form through what our trainer makes of the learner's function; IPO is TRL's, averaged."""
    form = PREFERENCE_FORMS[name]
    trainer = dpo_trainer(*ready(configure, PreferenceConfig, "dpo", "start"), **form.theirs, beta=beta)
    policy, reference, mask = pair_tensors()
    theirs = trl_pair_loss(trainer, policy, reference, mask)
    sizes = mask.sum(dim=2) if name == "ipo" else 1.0
    config = PreferenceConfig(beta=beta, **form.ours)
    sums = [tokens.sum(dim=2) / sizes for tokens in (policy, reference)]
    ours = preference_loss(getattr(answers, LOSSES[config.algo]), *sums, config, [])
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


CLIPS = [(0.04, 0.2, None), (1.0, 0.2, 0.28), (0.0, 0.1, None), (0.0, 3e-4, 4e-4)]


@pytest.mark.parametrize(("beta", "low", "high"), CLIPS)
@pytest.mark.parametrize("name", ["dr_grpo", "gspo"])
def test_dr_grpo_and_gspo_losses_and_gradients_equal_trls(
    configure: Any, name: str, beta: float, low: float, high: float | None
) -> None:
    form = {"loss_type": "dr_grpo"} if name == "dr_grpo" else {"importance_sampling_level": "sequence"}
    trainer = grpo_trainer(configure, beta=beta, epsilon=low, epsilon_high=high, **form)
    given = grpo_tensors()
    theirs = trl_grpo_loss(trainer, given)
    budget = {"max_new_tokens": trainer.max_completion_length} if name == "dr_grpo" else {}
    function = getattr(answers, f"{name}_loss")
    ours = function(**given, clip_eps=low, kl_coef=beta, clip_eps_high=high, **budget)
    near(ours, theirs)
    near(*(torch.autograd.grad(loss, given["logprobs"])[0] for loss in (ours, theirs)))


@pytest.mark.parametrize("scale", ["group", "none"])
def test_group_advantages_equal_trls(configure: Any, scale: str) -> None:
    """TRL samples for itself; its rewards are given."""
    rewards = [0.3, -1.2, 0.8, 0.1, 5.0, 5.0, 4.0, 5.5]
    trainer = grpo_trainer(configure, lambda completions, **_: rewards, scale_rewards=scale)
    prompts = [{"prompt": f"say {i // 4}"} for i in range(8)]
    theirs = trainer._generate_and_score_completions(prompts)["advantages"]
    near(answers.group_advantages(torch.tensor(rewards), 4, scale_by_std=scale == "group"), theirs)
