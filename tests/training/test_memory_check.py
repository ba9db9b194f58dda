"""The longest batch goes first: what does not fit is said at once; a run that fits is not changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.errors import CourseError
from helpers.models import profiles
from helpers.models.hardware import Hardware
from helpers.text.groups import Group
from helpers.training import memory_check, online, sft
from helpers.training.configs import OnlineConfig, PreferenceConfig, SFTConfig
from helpers.training.memory_check import largest_batch
from helpers.training.preference import train_preference
from helpers.training.trainer import GroupTrainer, TrainingItem
from solutions import answers
from tests.support import adapter_weights, assert_equal_weights


def items_of(*lengths: int) -> list[TrainingItem]:
    return [TrainingItem(Group([1], [[1] * (length - 1)])) for length in lengths]


def limits(rows: int, tokens: int | None) -> Any:
    return SimpleNamespace(per_device_train_batch_size=rows, micro_batch_tokens=tokens)


@pytest.mark.parametrize("tokens", [None, 64, 100, 1000])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_no_micro_batch_of_any_order_has_more_tokens(rows, tokens):
    draw = torch.Generator().manual_seed(rows)
    config = limits(rows, tokens)
    items = items_of(*torch.randint(2, 120, (60,), generator=draw).tolist())
    largest = largest_batch(items, config)
    size = len(largest) * max(map(len, largest))
    cut = GroupTrainer.micro_batches
    for _ in range(20):
        order = torch.randperm(60, generator=draw).tolist()
        for start in range(0, 60, 12):
            batches = cut(SimpleNamespace(config=config), [items[i] for i in order[start : start + 12]])
            assert all(len(batch) * max(map(len, batch)) <= size for batch in batches)


def starved(limit: int, real: Any, seen: list[int]) -> Any:
    """A model call that runs out of memory above `limit` tokens."""

    def call(model, batch, **how):
        seen.append(batch.input_ids.numel())
        if batch.input_ids.numel() > limit and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(model, batch, **how)

    return call


def test_out_of_memory_comes_before_the_first_step_and_names_the_flags(settings, monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(sft, "response_logprobs", starved(60, sft.response_logprobs, seen))
    config = settings(SFTConfig, check_memory=True)
    with pytest.raises(CourseError) as stop:
        sft.train_sft(config, answers)
    message = str(stop.value)
    assert "4 row(s)" in message and "--micro_batch_tokens" in message
    assert "--per_device_train_batch_size (now 4)" in message
    assert "--gradient_checkpointing true" in message and "--quantization nf4" in message
    assert len(seen) == 1


def test_without_the_rehearsal_the_same_error_names_what_is_kept(settings, monkeypatch):
    monkeypatch.setattr(sft, "response_logprobs", starved(60, sft.response_logprobs, []))
    with pytest.raises(CourseError, match="keeps everything up to its last checkpoint"):
        sft.train_sft(settings(SFTConfig), answers)


@pytest.mark.parametrize("kind", ["sft", "aot"])
def test_a_run_that_fits_learns_the_same(settings, kind):
    def run(name: str, **changes: Any) -> Any:
        if kind == "sft":
            return sft.train_sft(settings(SFTConfig, name, lora_dropout=0.2, **changes), answers)
        return train_preference(settings(PreferenceConfig, name, algo="aot", **changes), answers)

    plain, checked = run("plain"), run("checked", check_memory=True)
    assert_equal_weights(adapter_weights(plain.final), adapter_weights(checked.final))


def test_an_online_run_rehearses_the_longest_answers(settings, monkeypatch):
    seen: list[int] = []
    real = memory_check.response_logprobs
    monkeypatch.setattr(memory_check, "response_logprobs", starved(10, real, seen))
    config = settings(OnlineConfig, check_memory=True, gradient_checkpointing=True)
    scorer = SimpleNamespace(score_groups=lambda groups, **_: [[0.0] * len(g.responses) for g in groups])
    with pytest.raises(CourseError, match=r"--minibatch_size \(now 4\).*--max_new_tokens \(now 6\)") as stop:
        online.train_online(config, answers, scorer=scorer)
    assert len(seen) == 1 and "--gradient_checkpointing true" not in str(stop.value)


def test_a_rehearsal_is_the_default_only_where_there_is_a_gpu(monkeypatch):
    assert not memory_check.wanted(SFTConfig()) and memory_check.wanted(SFTConfig(check_memory=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert memory_check.wanted(SFTConfig()) and not memory_check.wanted(SFTConfig(check_memory=False))


def test_torch_on_a_cpu_says_it_in_other_words():
    assert memory_check.is_out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    )
    assert not memory_check.is_out_of_memory(RuntimeError("shapes do not match"))


def test_the_optimiser_is_paged_on_a_gpu_only():
    card = Hardware("cuda", "NVIDIA RTX 4090", (8, 9), 23.6)
    assert profiles.pick_profile("qlora_7b", card).optim == "paged_adamw_8bit"
    assert profiles.pick_profile("qlora_7b", Hardware("cpu", "CPU")).optim == "adamw_torch"
    assert profiles.fits("qlora_7b", card)[0] == "yes"
    assert profiles.fits("qlora_7b", Hardware("cuda", "Tesla T4", (7, 5), 14.7))[0] == "tight"
