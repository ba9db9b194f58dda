"""Reference log-probabilities: what they are, that a cache equals computing them, and when it may be used."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from helpers.errors import CourseError
from helpers.models import policy
from helpers.models.policy import reference_logprobs, response_logprobs
from helpers.models.reference_cache import weights_fingerprint
from helpers.text.groups import Group, pack_groups

GROUPS = [
    Group([1, 2, 3], [[4, 5], [6, 7, 8, 9, 0]], "a"),
    Group([1], [[4]], "b"),
    Group([9, 8, 0, 7, 6, 5], [[1] * 9, [2, 2, 2, 2], [3]], "c"),
    Group([2, 2], [[5, 6, 7]], "d"),
]


def base_model(seed=0, **changes):
    settings = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    config = AutoConfig.for_model("qwen2", **{**settings, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def two_adapters(dropout=0.0, **changes):
    """A policy ("default") and a frozen SFT adapter ("sft"), neither of them equal to the base."""
    config = LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = get_peft_model(base_model(**changes), config)
        model.add_adapter("sft", config)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    return model


def scores(model, groups=GROUPS, **options):
    return reference_logprobs(model, groups, pad_id=0, progress=False, **options)


def assert_same(one, other, tolerance=0.0):
    flat = [[logprobs for group in result for logprobs in group] for result in (one, other)]
    torch.testing.assert_close(*flat, rtol=0, atol=tolerance)


@pytest.fixture
def forwards(monkeypatch):
    """Counts forward passes."""
    calls = []

    def counted(*args, **options):
        calls.append(1)
        return response_logprobs(*args, **options)

    monkeypatch.setattr(policy, "response_logprobs", counted)
    return calls


# --- what is computed ----------------------------------------------------------------------------------


def test_one_tensor_a_response_in_the_order_of_the_data():
    result = scores(base_model())
    assert [[len(r) for r in group] for group in result] == [[len(r) for r in g.responses] for g in GROUPS]
    together = response_logprobs(base_model(), pack_groups(GROUPS, 0))
    flat = torch.cat([logprobs for group in result for logprobs in group])
    torch.testing.assert_close(flat, together.logprobs[together.mask].detach(), rtol=0, atol=1e-5)
    assert flat.dtype == torch.float32 and not flat.requires_grad


@pytest.mark.parametrize("batch_tokens", [1, 25, 10_000])
def test_batching_and_layout_change_nothing(batch_tokens):
    model = base_model()
    for layout in ("packed", "padded"):
        assert_same(scores(model, layout=layout, batch_tokens=batch_tokens), scores(model), tolerance=1e-4)


def test_the_base_and_the_sft_adapter_are_different_references():
    """DPO after SFT with the adapter merely switched off would measure against the base (TRL #1193)."""
    model = two_adapters()
    off, sft = scores(model), scores(model, adapter="sft")
    assert_same(off, scores(base_model()))
    only_sft = copy.deepcopy(model)
    only_sft.set_adapter("sft")
    only_sft.delete_adapter("default")
    assert_same(sft, scores(only_sft, adapter="sft"))
    assert (off[2][0] - sft[2][0]).abs().max() > 0.1


def test_dropout_is_off_and_the_model_is_left_as_it_was():
    model = two_adapters(dropout=0.5)
    model.train()
    model.base_model.model.model.norm.eval()
    before = [module.training for module in model.modules()]
    learned = [p.requires_grad for p in model.parameters()]
    assert_same(scores(model, adapter="sft"), scores(two_adapters(), adapter="sft"))
    assert [module.training for module in model.modules()] == before
    assert [p.requires_grad for p in model.parameters()] == learned
    assert model.active_adapter == "default"


def test_temperature():
    model = base_model()
    hot = scores(model, temperature=2.0)
    logits = model(input_ids=torch.tensor([[1, 4]])).logits[0, 0] / 2.0
    torch.testing.assert_close(hot[1][0][0], logits.log_softmax(-1)[4].detach())


def test_no_data():
    assert scores(base_model(), []) == []


def test_the_bar_counts_prompts(capsys):
    reference_logprobs(base_model(), GROUPS, pad_id=0)
    captured = capsys.readouterr()
    assert "reference log-probs" in captured.err and "/4" in captured.err and captured.out == ""


# --- the cache -------------------------------------------------------------------------------------------


def test_cached_equals_computed(tmp_path, forwards):
    model = two_adapters()
    computed = scores(model, adapter="sft", cache_dir=tmp_path)
    passes = len(forwards)
    assert_same(scores(model, adapter="sft", cache_dir=tmp_path), computed)
    assert_same(scores(two_adapters(), adapter="sft", cache_dir=tmp_path), computed)
    assert len(forwards) == passes > 0
    assert_same(computed, scores(model, adapter="sft"))
    assert [file.name[:10] for file in tmp_path.iterdir()] == ["reference-"]


def changed_data(model):
    return {"groups": [*GROUPS[:-1], Group([2, 2], [[5, 6, 8]], "d")]}


def changed_order(model):
    return {"groups": GROUPS[::-1]}


def moved_boundary(model):
    return {"groups": [*GROUPS[:-1], Group([2], [[2, 5, 6, 7]], "d")]}


def changed_base_weight(model):
    with torch.no_grad():
        model.base_model.model.model.layers[1].mlp.up_proj.base_layer.weight[3, 5] += 1e-3


def changed_behind_autograd(model):
    model.base_model.model.model.norm.weight.data.mul_(1.01)


def changed_adapter_weight(model):
    with torch.no_grad():
        model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["sft"].weight[0, 0] += 1e-3


def changed_config(model):
    model.base_model.model.config.rope_parameters["rope_theta"] = 500.0


CHANGES = [
    changed_data,
    changed_order,
    moved_boundary,
    changed_base_weight,
    changed_behind_autograd,
    changed_adapter_weight,
    changed_config,
    lambda model: {"temperature": 0.7},
    lambda model: {"adapter": None},
    lambda model: {"adapter": "default"},
    lambda model: {"layout": "padded"},
    lambda model: {"key": ["another tokenizer"]},
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_computes_again(tmp_path, forwards, change):
    model = two_adapters()
    options = {"groups": GROUPS, "adapter": "sft", "cache_dir": tmp_path}
    scores(model, **options)
    passes = len(forwards)
    options |= change(model) or {}
    fresh = scores(model, **options)
    assert len(forwards) > passes
    assert_same(fresh, scores(model, **{**options, "cache_dir": None}))


def test_training_the_policy_leaves_the_cache_valid(tmp_path, forwards):
    model = two_adapters()
    scores(model, adapter="sft", cache_dir=tmp_path)
    passes = len(forwards)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".default." in name:
                weight += 0.1
    scores(model, adapter="sft", cache_dir=tmp_path)
    assert len(forwards) == passes


def cut(file):
    file.write_bytes(file.read_bytes()[:-7])


def empty(file):
    file.write_bytes(b"")


def flip(file):
    content = bytearray(file.read_bytes())
    content[-30] ^= 0x10
    file.write_bytes(content)


def other(file):
    """A whole file that belongs to another fingerprint."""
    scores(base_model(seed=5), cache_dir=file.parent / "elsewhere")
    (wrong,) = (file.parent / "elsewhere").iterdir()
    file.write_bytes(wrong.read_bytes())


@pytest.mark.parametrize("damage", [cut, empty, flip, other])
def test_a_damaged_file_is_reported_and_mended(tmp_path, forwards, damage, recwarn):
    computed = scores(base_model(), cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    damage(file)
    with pytest.warns(UserWarning, match=rf"{file.name} is damaged .* computing it again"):
        assert_same(scores(base_model(), cache_dir=tmp_path), computed)
    passes = len(forwards)
    assert_same(scores(base_model(), cache_dir=tmp_path), computed)
    assert len(forwards) == passes


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be written.*nothing is cached"):
        result = scores(base_model(), cache_dir=tmp_path / "file")
    assert_same(result, scores(base_model()))


def test_failures_are_not_cached(tmp_path):
    model = base_model()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(CourseError, match="row a: .* not finite"):
        scores(model, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- the identity of weights ----------------------------------------------------------------------------


def test_the_base_is_the_same_inside_peft():
    assert weights_fingerprint(base_model()) == weights_fingerprint(two_adapters())
    assert weights_fingerprint(base_model()) != weights_fingerprint(base_model(seed=1))
    assert weights_fingerprint(base_model()) != weights_fingerprint(base_model().bfloat16())


def test_large_weights_are_remembered_until_they_change():
    model = base_model(vocab_size=20_000)
    embedding, first = model.model.embed_tokens.weight, weights_fingerprint(model)
    assert embedding.nbytes > 2**20
    with torch.no_grad():
        embedding[7, 7] += 1
    second = weights_fingerprint(model)
    embedding.data.add_(1)  # as merging does: no version is counted
    third = weights_fingerprint(model)
    embedding.data.sub_(1)
    assert len({first, second, third}) == 3


def test_quantised_weights_have_an_identity_of_their_own():
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def quantised(scale):
        model = base_model(hidden_size=64, intermediate_size=64)
        plain = model.model.layers[0].mlp.up_proj
        layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, quant_type="nf4", compute_dtype=torch.float32)
        layer.weight = bitsandbytes.nn.Params4bit(plain.weight.data * scale, quant_type="nf4")
        model.model.layers[0].mlp.up_proj = layer.to("cpu")
        return model

    one, same, scaled = (weights_fingerprint(quantised(scale)) for scale in (1.0, 1.0, 2.0))
    assert one == same  # scaling leaves every 4-bit code as it was: only the constants tell
    assert one != scaled


def test_a_merged_adapter_is_refused():
    model = two_adapters()
    model.merge_adapter(["sft"])
    with pytest.raises(CourseError, match="unmerge"):
        weights_fingerprint(model)


def test_an_unknown_adapter_is_named():
    with pytest.raises(CourseError, match="nope"):
        weights_fingerprint(two_adapters(), "nope")
    with pytest.raises(CourseError, match="sft"):
        scores(base_model(), adapter="sft")
