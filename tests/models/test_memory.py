"""Sizes counted in a model or planned from its configuration, and the peak of what lives in between."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config

from helpers.models.loading import LoraSettings, add_adapter, load_base
from helpers.models.memory import TensorPeak, planned_sizes, sizes_of
from helpers.models.profiles import PROFILES

QWEN_7B = Qwen2Config(
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152_064,
)


def test_a_model_of_seven_billion_is_counted_without_a_byte_of_it():
    sizes = planned_sizes(QWEN_7B, r=PROFILES["qlora_7b"].lora.r)
    frozen = sizes["linear_parameters"] + sizes["other_parameters"]
    assert frozen == 7_615_616_512  # the number of parameters on the model's card: 7.61 B
    assert sizes["other_parameters"] > 2 * 152_064 * 3584  # embedding and head, apart
    ins_and_outs = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)  # q, o; k, v; gate, up, down
    assert sizes["adapter_parameters"] == 28 * 32 * ins_and_outs


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_plan_counts_what_the_model_has(quantization):
    base = load_base("data/tiny/model", quantization=quantization)
    model = add_adapter(base, "policy", LoraSettings(r=16))
    assert sizes_of(model) == planned_sizes(base.config, r=16)


def test_peak_counts_storages_once_and_forgets_what_has_gone():
    with TensorPeak() as memory:
        kept = torch.zeros(2**20)
        view = kept.view(2, -1)[0]
        for _ in range(5):
            torch.zeros(2**20).add_(1)
        del view
    assert memory.peak == pytest.approx(2 * 2**22 / 2**30, rel=0.02)
    with TensorPeak(torch.nn.Linear(1024, 1024, bias=False)) as memory:
        pass
    assert memory.peak == pytest.approx(2**22 / 2**30)


def test_the_constants_of_packed_weights_count_too():
    nf4, whole = (TensorPeak(load_base("data/tiny/model", quantization=q)).peak for q in ("nf4", "none"))
    linear = sizes_of(load_base("data/tiny/model"))["linear_parameters"]
    saved = (whole - nf4) * 2**30 / linear
    assert saved == pytest.approx(4 - 0.5 - 1 / 64, abs=0.05)
