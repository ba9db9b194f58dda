"""Where we differ from TRL and transformers on purpose, and by how much."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.training.algorithms import arguments
from helpers.training.configs import OnlineConfig, PreferenceConfig, RewardConfig
from helpers.training.preference import train_preference
from helpers.training.reward import build_reward_model, train_reward_model
from helpers.training.rollouts import passes
from helpers.training.setup import add_policy
from tests.answers.numerics import near
from tests.parity.replay import our_run, replay_trainer
from tests.parity.trainers import (
    copy_adapter,
    dpo_trainer,
    grpo_tensors,
    grpo_trainer,
    our_losses,
    pair_tensors,
    ready,
    reward_start,
    trl_grpo_loss,
    trl_losses,
    trl_pair_loss,
)
from tests.training.conftest import rows_of

pytest.importorskip("trl", minversion="1.16")


def test_a_response_ends_with_its_end_of_turn_where_trl_trains_on_the_templates_newline_too(
    configure: Any,
) -> None:
    from datasets import Dataset
    from trl import DPOTrainer

    space, groups = ready(configure, PreferenceConfig, "dpo", "start")
    trainer = dpo_trainer(space, groups)
    row = rows_of("prefs", 1)[0]
    turns = {side: [{"role": "assistant", "content": row[f"{side}_text"]}] for side in ("chosen", "rejected")}
    data = Dataset.from_list([{"prompt": row["prompt_messages"], **turns}])
    tokens = DPOTrainer._prepare_dataset(trainer, data, space.encoder.tokenizer, trainer.args, "train")[0]
    newline = space.encoder.tokenizer("\n").input_ids
    assert tokens["prompt_ids"] == groups[0].prompt_ids
    assert tokens["chosen_ids"] == groups[0].responses[0] + newline
    assert tokens["rejected_ids"] == groups[0].responses[1] + newline


def test_a_reward_is_read_at_the_end_of_turn_where_transformers_looks_for_the_padding_id(
    random_qwen2: Any,
) -> None:
    """With pad = end-of-turn, Qwen2ForSequenceClassification takes the genuine end-of-turn for padding."""
    from transformers import Qwen2ForSequenceClassification

    end = 7
    config = random_qwen2(num_labels=1, pad_token_id=end).config
    model = Qwen2ForSequenceClassification(config).eval()
    ids, attention = (
        torch.tensor([[1, 2, 3, end], [4, 5, end, end]]),
        torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    )
    with torch.no_grad():
        states = model.model(ids, attention_mask=attention).last_hidden_state
        theirs = model(ids, attention_mask=attention).logits
        scores = model.score(states)[..., 0]
    near(theirs[:, 0], scores[[0, 1], [2, 1]])
    assert answers.last_token_index(attention).tolist() == [3, 2]


def test_a_partial_micro_batch_weighs_by_its_pairs_where_trl_averages_averages(
    configure: Any, in_order: None
) -> None:
    """3 pairs as 2 + 1: each counts one third with us; with TRL the last counts one half."""
    batch = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 1,
        "train_limit": 3,
    }
    _, groups, trainer = reward_start(configure, "start", **batch)
    theirs = trl_losses(trainer)[0]
    ours = our_losses(train_reward_model(configure(RewardConfig, **batch), answers).run_dir)[0]
    space, _ = ready(configure, RewardConfig, "reward_model", "again", **batch)
    scores = torch.tensor(build_reward_model(space, answers).score_groups(groups))
    each = [answers.bradley_terry_loss(*pair.view(2, 1)).item() for pair in scores]
    assert ours == pytest.approx(sum(each) / 3, abs=1e-5)
    assert theirs == pytest.approx((sum(each[:2]) / 2 + each[2]) / 2, abs=1e-5)
    assert abs(ours - theirs) > 1e-4


def test_the_kl_term_is_the_papers_where_trl_weighs_it_by_the_ratio(configure: Any) -> None:
    """TRL 1.16 has ratio × k3 by default (DeepSeek-V3.2, arXiv 2512.02556); eq. 4 of GRPO has k3."""
    given = grpo_tensors()
    logp, old, ref, _, mask = (value.detach().double() for value in given.values())
    theirs = trl_grpo_loss(grpo_trainer(configure, beta=0.5, use_bias_correction_kl=True), given)
    ours = answers.grpo_loss(**given, clip_eps=0.2, kl_coef=0.5)
    k3 = (ref - logp).exp() - 1 - (ref - logp)
    extra = (((logp - old).exp() - 1) * k3 * mask).sum(1) / mask.sum(1).clamp(min=1)
    near(theirs - ours, 0.5 * extra.mean())
    assert extra.mean().abs() > 1e-3


def test_rubbish_at_masked_places_stays_there_where_trl_multiplies_by_the_mask(configure: Any) -> None:
    given = grpo_tensors()
    clean = answers.grpo_loss(**given, clip_eps=0.2, kl_coef=0.04)
    given["old_logprobs"] = given["old_logprobs"].masked_fill(~given["mask"], math.nan)
    assert trl_grpo_loss(grpo_trainer(configure), given).isnan()
    near(answers.grpo_loss(**given, clip_eps=0.2, kl_coef=0.04), clean)


def test_equal_rewards_teach_nothing_where_trl_divides_rounding_by_epsilon(configure: Any) -> None:
    """The mean of seven times 0.1 is not quite 0.1 in float32; 1e-8 over 1e-4 is an advantage."""
    rewards = [0.1] * 7 + [0.7] * 7
    changes = {"num_generations": 7, "per_device_train_batch_size": 14}
    trainer = grpo_trainer(configure, lambda completions, **_: rewards, **changes)
    theirs = trainer._generate_and_score_completions([{"prompt": f"say {i // 7}"} for i in range(14)])[
        "advantages"
    ]
    assert theirs.abs().max() > 0
    near(theirs, 0.0, 1e-3)
    assert answers.group_advantages(torch.tensor(rewards), 7).tolist() == [0.0] * 14


def test_aot_sorts_the_optimiser_batch_where_trl_sorts_a_micro_batch_and_of_one_makes_dpo(
    configure: Any, in_order: None
) -> None:
    whole = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_steps": 5}
    cut = {**whole, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}

    def theirs(batch: dict[str, int], loss_type: str, name: str) -> list[float]:
        space, groups = ready(configure, PreferenceConfig, "aot", name, beta=0.5, **batch)
        trainer = dpo_trainer(space, groups, loss_type=loss_type)
        copy_adapter(add_policy(space, dropout=0.0).model, "policy", trainer.model)
        return trl_losses(trainer)

    sorted_whole = theirs(whole, "aot_unpaired", "one")
    assert theirs(cut, "aot_unpaired", "two") == pytest.approx(theirs(cut, "sigmoid", "three"), abs=1e-5)
    run = train_preference(configure(PreferenceConfig, algo="aot", beta=0.5, **cut), answers)
    assert our_losses(run.run_dir) == pytest.approx(sorted_whole, abs=1e-4)


def test_ipo_takes_whole_responses_where_trl_averages_over_tokens(configure: Any) -> None:
    """One beta, two problems: the target is a gap between responses here, a gap a token there."""
    policy, reference, mask = pair_tensors()
    sizes = mask.sum(dim=2)
    trainer = dpo_trainer(*ready(configure, PreferenceConfig, "ipo", "start"), loss_type="ipo", beta=0.1)
    sums = [tokens.sum(dim=2) for tokens in (policy.detach(), reference)]
    means = [total / sizes for total in sums]
    ours, averaged = (
        answers.ipo_loss(pi[:, 0], pi[:, 1], ref[:, 0], ref[:, 1], 0.1) for pi, ref in (sums, means)
    )
    theirs = trl_pair_loss(trainer, policy, reference, mask)
    near(averaged, theirs)
    assert (ours - theirs).abs() > 0.1


def test_a_cut_off_response_leaves_the_mean_where_trl_counts_it_as_zero(configure: Any) -> None:
    given = {name: value.detach() for name, value in grpo_tensors().items()}
    taught = torch.tensor([True, True, False, False, True])
    emptied = given | {"mask": given["mask"] & taught[:, None]}
    theirs = trl_grpo_loss(grpo_trainer(configure), emptied)  # as its mask_truncated_completions does
    micro = SimpleNamespace(**{**given, "batch": SimpleNamespace(mask=given["mask"]), "taught": taught})
    ours = answers.grpo_loss(*arguments(given["logprobs"], micro, OnlineConfig(clip_eps=0.2, kl_coef=0.04)))
    near(ours * 3 / 5, theirs)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_siblings_stay_in_one_minibatch_where_trl_shuffles_responses(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a rollout is cut into several updates; one update of all of it does not see the order."""
    batch = {"per_device_train_batch_size": 4, "group_size": 4, "minibatch_size": 8, "max_steps": 1}
    config = configure(OnlineConfig, num_epochs=1, min_new_tokens=1, **batch)
    cut: list[list[int]] = []

    def watched(rollout: Any, *rest: Any) -> Any:
        cut.extend(micro.places.tolist() for window in rollout.windows for micro in window)
        return passes(rollout, *rest)

    monkeypatch.setattr("helpers.training.online.passes", watched)
    _, recorder = our_run(config, monkeypatch)
    trainer = replay_trainer(config, recorder, steps_per_generation=2)
    trainer.model.train()
    trainer._prepare_inputs([{"prompt": "any"}] * 16)
    theirs = [batch["prompt_ids"].unique(dim=0, return_counts=True)[1] for batch in trainer._buffered_inputs]
    assert [len({place // 4 for place in places}) for places in cut] == [2, 2]  # two whole groups of 4
    assert len(theirs) == 2 and all(len(counts) > 2 for counts in theirs)
