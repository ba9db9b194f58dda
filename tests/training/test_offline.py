"""SFT, reward model and DPO: what their first step, their accumulation and their resumption must be."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.text.groups import Group
from helpers.training.configs import PreferenceConfig, RewardConfig, SFTConfig
from helpers.training.preference import train_preference
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft
from helpers.training.trainer import GroupTrainer, TrainingItem
from tests.support import adapter_weights, assert_equal_weights, metric_rows

RUNS = [(SFTConfig, train_sft), (RewardConfig, train_reward_model), (PreferenceConfig, train_preference)]
IDS = ["sft", "reward_model", "dpo"]


@pytest.mark.parametrize(("kind", "train"), RUNS, ids=IDS)
def test_four_micro_batches_of_one_equal_one_of_four(kind: type, train: Any, settings: Any) -> None:
    one = train(settings(kind, "one", per_device_train_batch_size=4, max_steps=3), answers)
    four = train(
        settings(kind, "four", per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=3),
        answers,
    )
    assert_equal_weights(adapter_weights(one.final), adapter_weights(four.final), atol=2e-4)


@pytest.mark.parametrize(("kind", "train"), RUNS, ids=IDS)
def test_a_partial_last_batch_weighs_what_it_holds(kind: type, train: Any, settings: Any) -> None:
    """10 rows in batches of 4: the last batch has 2, cut into 2×1 or 1×2."""
    common = {"train_limit": 10, "max_steps": -1, "num_train_epochs": 1.0, "eval_steps": 0}
    one = train(settings(kind, "one", per_device_train_batch_size=4, **common), answers)
    cut = train(
        settings(kind, "cut", per_device_train_batch_size=1, gradient_accumulation_steps=4, **common), answers
    )
    assert one.metrics["steps"] == cut.metrics["steps"] == 3
    assert_equal_weights(adapter_weights(one.final), adapter_weights(cut.final), atol=2e-4)


@pytest.mark.parametrize(("kind", "train"), RUNS, ids=IDS)
def test_a_token_limit_cuts_batches_and_changes_nothing(kind: type, train: Any, settings: Any) -> None:
    wide = train(settings(kind, "wide", max_steps=2, eval_steps=0), answers)
    narrow = train(settings(kind, "narrow", max_steps=2, eval_steps=0, micro_batch_tokens=90), answers)
    assert_equal_weights(adapter_weights(wide.final), adapter_weights(narrow.final), atol=2e-4)


def test_micro_batches_hold_similar_lengths_within_both_limits() -> None:
    items = [TrainingItem(Group([1] * n, [[2]])) for n in (9, 4, 50, 5, 8, 3)]
    trainer = SimpleNamespace(config=SimpleNamespace(per_device_train_batch_size=3, micro_batch_tokens=20))
    batches = GroupTrainer.micro_batches(trainer, items)  # type: ignore[arg-type]
    assert [[len(item) for item in batch] for batch in batches] == [[4, 5, 6], [9, 10], [51]]


@pytest.mark.parametrize(("kind", "train"), RUNS, ids=IDS)
def test_an_interrupted_run_resumes_bit_for_bit(kind: type, train: Any, settings: Any) -> None:
    """Dropout on where the method has it: the random state is part of what is restored."""
    common = {"lora_dropout": 0.1, "max_steps": 9, "train_limit": 20}  # step 9 lies in the second epoch
    whole = train(settings(kind, "whole", **common), answers)
    train(settings(kind, "parts", **common), answers, stop_at_step=7)  # last checkpoint: step 6
    parts = train(settings(kind, "parts", resume=True, **common), answers)
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))
    assert metric_rows(whole.run_dir) == metric_rows(parts.run_dir)
    assert (whole.run_dir / "samples.jsonl").exists() == (parts.run_dir / "samples.jsonl").exists()
    if (whole.run_dir / "samples.jsonl").exists():
        assert (whole.run_dir / "samples.jsonl").read_text() == (parts.run_dir / "samples.jsonl").read_text()


def test_dpo_starts_at_ln_2_even_when_dropout_is_asked_for(settings: Any) -> None:
    """TRL #2042: dropout in policy or reference moves the first loss off ln 2."""
    run = train_preference(settings(PreferenceConfig, lora_dropout=0.5, max_steps=1, eval_steps=1), answers)
    first = [row for row in metric_rows(run.run_dir) if row["loss"]][0]
    assert float(first["loss"]) == pytest.approx(math.log(2), abs=1e-6)
    assert float(first["margin"]) == pytest.approx(0.0, abs=1e-6)


def test_dpo_learns_the_pairs(settings: Any) -> None:
    run = train_preference(
        settings(PreferenceConfig, max_steps=40, eval_steps=0, learning_rate=2e-2), answers
    )
    rows = [row for row in metric_rows(run.run_dir) if row["loss"]]
    assert float(rows[-1]["loss"]) < 0.4
    assert float(rows[-1]["accuracy"]) > 0.9


def test_after_sft_the_reference_is_the_sft_model_and_not_the_base(settings: Any) -> None:
    """TRL #1193: an adapter switched off gives the base, which is not where the run started."""
    sft = train_sft(settings(SFTConfig, "sft", max_steps=20), answers)
    adapter = str(sft.final / "adapter")
    right = train_preference(settings(PreferenceConfig, "dpo", init_adapter=adapter, max_steps=1), answers)
    first = [row for row in metric_rows(right.run_dir) if row["loss"]][0]
    assert float(first["loss"]) == pytest.approx(math.log(2), abs=1e-6)

    from helpers.models.loading import load_adapter, load_base
    from helpers.models.policy import reference_logprobs
    from helpers.text.groups import Group

    model = load_adapter(load_base(settings(SFTConfig).model_name), adapter, "reference")
    groups = [Group([5, 6, 7], [[8, 9, 10]])]
    as_sft = reference_logprobs(model, groups, pad_id=0, adapter="reference", progress=False)[0][0]
    as_base = reference_logprobs(model, groups, pad_id=0, adapter=None, progress=False)[0][0]
    assert (as_sft - as_base).abs().max() > 0.1


def test_the_fused_sft_loss_is_the_learners_loss(settings: Any) -> None:
    fused = train_sft(settings(SFTConfig, "fused", max_steps=3), answers)
    full = train_sft(settings(SFTConfig, "full", max_steps=3, fused=False), answers)
    assert_equal_weights(adapter_weights(fused.final), adapter_weights(full.final), atol=2e-4)


def test_without_a_response_mask_sft_masks_by_what_laid_out_the_batch(settings: Any) -> None:
    """Lesson 01 stands alone: its learner brings `sft_loss` and not yet, or no longer, lesson 00's mask."""
    own = SimpleNamespace(sft_loss=answers.sft_loss, perplexity=answers.perplexity)
    whole = train_sft(settings(SFTConfig, "whole", max_steps=3, fused=False), answers)
    alone = train_sft(settings(SFTConfig, "alone", max_steps=3, fused=False), own)
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(alone.final), atol=0)


def test_sft_lowers_perplexity_and_writes_samples(settings: Any) -> None:
    run = train_sft(settings(SFTConfig, max_steps=30, eval_steps=10), answers)
    values = [float(row["eval_perplexity"]) for row in metric_rows(run.run_dir) if row.get("eval_perplexity")]
    assert values[-1] < values[0]
    text = (run.run_dir / "samples.jsonl").read_text()
    assert '"prompt"' in text and '"reference_response"' in text


def test_sft_weighs_tokens_and_not_rows(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole optimiser batch has one denominator: the learner's loss on all rows at once."""
    seen = []
    honest = answers.sft_loss

    def spy(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(int(mask.sum()))
        return honest(logits, ids, mask)

    namespace = SimpleNamespace(
        **{name: getattr(answers, name) for name in answers.__all__} | {"sft_loss": spy}
    )
    train_sft(settings(SFTConfig, max_steps=1, fused=False, eval_steps=0), namespace)
    assert len(seen) == 1 and seen[0] > 4


def test_a_reward_model_reloads_to_equal_scores(settings: Any) -> None:
    """TRL #1379: a head that is not saved comes back random."""
    from helpers.models.loading import load_base, load_tokenizer
    from helpers.models.reward_model import RewardModel
    from helpers.text.chat import ChatEncoder
    from helpers.text.groups import Group

    run = train_reward_model(settings(RewardConfig, "rm", max_steps=10), answers)
    base = settings(RewardConfig).model_name
    encoder = ChatEncoder(load_tokenizer(base))
    groups = []
    for prompt, reply in (("say red", "blue"), ("say sun", "rain rain")):
        ids = encoder.encode_prompt([{"role": "user", "content": prompt}])
        groups.append(Group(ids, [encoder.encode_response(reply), encoder.encode_response("no")]))
    first = RewardModel.load(run.final, load_base(base), answers.last_token_index, pad_id=encoder.pad_id)
    again = RewardModel.load(run.final, load_base(base), answers.last_token_index, pad_id=encoder.pad_id)
    assert first.score_groups(groups) == again.score_groups(groups)
    rewards = (run.run_dir / "eval_rewards.json").read_text()
    assert '"chosen"' in rewards


def test_full_fine_tuning_of_a_reward_model_trains_every_weight(settings: Any) -> None:
    run = train_reward_model(settings(RewardConfig, "rm", full_finetune=True, max_steps=3), answers)
    before = load_file(Path(settings(RewardConfig).model_name) / "model.safetensors")
    after = load_file(run.final / "model" / "model.safetensors")
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert set(before) - set(moved) <= {name for name in before if "embed" in name}


def test_a_reward_margin_can_come_from_a_row_field(settings: Any) -> None:
    plain = train_reward_model(settings(RewardConfig, "plain", max_steps=1), answers)
    wide = train_reward_model(
        settings(RewardConfig, "wide", max_steps=1, margin_field="avg_preference_strength"), answers
    )
    losses = [float(metric_rows(run.run_dir)[0]["loss"]) for run in (plain, wide)]
    assert losses[1] > losses[0] + 0.5


def test_a_step_with_a_bad_gradient_is_skipped_and_counted(settings: Any) -> None:
    calls = []

    def poisoned(*logprobs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return answers.dpo_loss(*logprobs) * (float("nan") if len(calls) == 2 else 1.0)

    namespace = SimpleNamespace(
        **{name: getattr(answers, name) for name in answers.__all__} | {"dpo_loss": poisoned}
    )
    run = train_preference(settings(PreferenceConfig, max_steps=3, eval_steps=0), namespace)
    assert run.metrics["skipped_steps"] == 1
    assert all(torch.isfinite(value).all() for value in adapter_weights(run.final).values())


def test_a_finished_run_is_not_run_again(settings: Any) -> None:
    config = settings(SFTConfig, max_steps=2)
    first = train_sft(config, answers)
    stamp = (first.final / "adapter" / "adapter_model.safetensors").stat().st_mtime_ns
    again = train_sft(config, answers)
    assert again.metrics == first.metrics
    assert (again.final / "adapter" / "adapter_model.safetensors").stat().st_mtime_ns == stamp


def test_a_directory_with_another_run_is_refused(settings: Any) -> None:
    train_sft(settings(SFTConfig, max_steps=1), answers)
    with pytest.raises(CourseError, match="learning_rate"):
        train_sft(settings(SFTConfig, max_steps=1, learning_rate=1e-3), answers)


def test_the_run_directory_holds_what_the_course_promises(settings: Any) -> None:
    run = train_sft(settings(SFTConfig, max_steps=3), answers)
    for name in ("config.json", "metrics.csv", "samples.jsonl", "data_report.txt", "finished.json"):
        assert (run.run_dir / name).is_file(), name
    assert (run.run_dir / "checkpoints" / "step_000003" / "adapter" / "adapter_config.json").is_file()
    assert (run.final / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("flag", "value"),
    [("learning_rate", 0.0), ("per_device_train_batch_size", 0), ("lora_dropout", 1.0), ("beta", -1.0)],
)
def test_a_value_outside_its_range_names_its_flag(flag: str, value: float, settings: Any) -> None:
    with pytest.raises(CourseError, match=f"--{flag}"):
        train_preference(settings(PreferenceConfig, **{flag: value}), answers)
