"""Packed equals padded equals one sequence at a time; one path for old, new and reference log-probs."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Model

from helpers.errors import CourseError
from helpers.models.anatomy import PACKED_MODEL_TYPES, decoder_of, head_of
from helpers.models.loading import load_base
from helpers.models.policy import (
    hidden_states,
    layout_for,
    response_hidden,
    response_logprobs,
    supports_packed,
)
from helpers.models.smol import HUB_ID as SMOL
from helpers.text.groups import Group, make_batch, pack_groups, pad_groups

PAD, VOCABULARY = 0, 61
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)  # padding's id occurs inside texts
group_lists = st.lists(
    st.builds(Group, tokens, st.lists(tokens, min_size=1, max_size=8)), min_size=1, max_size=3
)
GROUPS = [
    Group([1, 2, 3], [[4, 5], [6, 7, 8, 9, 0], [3]], "a"),
    Group([1], [[4]], "b"),
    Group([9, 8, 0, 7, 6, 5], [[1] * 9, [2, 2, 2, 2]], "c"),
]


def small_model(kind="qwen2", attention="sdpa", **changes):
    """Random weights, wide enough that attending to a wrong token moves the log-probabilities."""
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 128,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **changes,
        },
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def with_lora(model, *, b_scale=0.1, **changes):
    """A LoRA adapter on all linear layers whose B is not 0, so that every gradient is seen."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        changes = {"target_modules": "all-linear", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, **changes}
        model = get_peft_model(model, LoraConfig(**changes))
        for name, weight in model.named_parameters():
            if "lora_B" in name and b_scale:
                torch.nn.init.normal_(weight, std=b_scale)
    return model.eval()


MODELS = {
    (kind, attention): with_lora(small_model(kind, attention))
    for kind in ("qwen2", "llama")
    for attention in ("sdpa", "eager")
}


def one_by_one(model, groups):
    """[(length,)] of full-logit log-probabilities, one sequence at a time: no padding, mask or positions."""
    result = []
    for group in groups:
        for response in group.responses:
            logits = model(input_ids=torch.tensor([group.prompt_ids + response])).logits[0]
            scores = logits.log_softmax(-1)[len(group.prompt_ids) - 1 : -1]
            result.append(scores.gather(1, torch.tensor(response)[:, None])[:, 0])
    return result


def lora_gradients(model, logprobs, mask):
    """Gradients of a token mean in which every token counts differently."""
    weight = torch.linspace(0.5, 2.0, int(mask.sum())) / mask.sum()
    learned = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad((logprobs[mask] * weight).sum(), learned)


def assert_layouts_agree(model, groups, tolerance=1e-4):
    batches = [pack_groups(groups, PAD), pad_groups(groups, PAD), pad_groups(groups, PAD, "left")]
    scores = [response_logprobs(model, batch, with_entropy=True) for batch in batches]
    single = one_by_one(model, groups)
    for own in scores:
        torch.testing.assert_close(own.logprobs[own.mask], torch.cat(single), rtol=0, atol=tolerance)
        torch.testing.assert_close(own.entropy, scores[0].entropy, rtol=0, atol=tolerance)
        assert (own.logprobs[~own.mask] == 0).all() and (own.entropy[~own.mask] == 0).all()
    mask = scores[0].mask
    want = lora_gradients(model, torch.zeros(mask.shape).masked_scatter(mask, torch.cat(single)), mask)
    for own in scores:
        got = lora_gradients(model, own.logprobs, own.mask)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("model", MODELS.values(), ids=map("-".join, MODELS))
def test_packed_equals_padded_equals_single(model):
    assert_layouts_agree(model, GROUPS)


@pytest.mark.parametrize("k", range(1, 9))
def test_every_group_size(k):
    groups = [Group([5, 6, 7], [[1 + i] * (1 + i % 4) for i in range(k)]), Group([3], [[2]])]
    assert_layouts_agree(MODELS["qwen2", "sdpa"], groups)


@given(groups=group_lists, which=st.sampled_from(sorted(MODELS)))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_layouts_agree_for_any_groups(groups, which):
    assert_layouts_agree(MODELS[which], groups)


@pytest.mark.parametrize("kind", sorted(PACKED_MODEL_TYPES))
def test_every_architecture_that_may_pack(kind):
    model = with_lora(small_model(kind))
    assert supports_packed(model, longest=15)
    assert_layouts_agree(model, GROUPS)


def test_this_test_would_see_a_wrong_mask():
    """A response that sees its neighbour, or positions that run on, move the log-probabilities."""
    model, batch = MODELS["qwen2", "sdpa"], pack_groups(GROUPS, PAD)
    width = batch.input_ids.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril().expand_as(batch.attention_mask)
    running = torch.arange(width).expand_as(batch.position_ids)
    right = response_logprobs(model, batch).logprobs
    for wrong in (replace(batch, attention_mask=causal), replace(batch, position_ids=running)):
        assert (response_logprobs(model, wrong).logprobs - right).abs().max() > 0.05


def test_temperature_divides_the_logits():
    model = MODELS["llama", "sdpa"]
    scores = response_logprobs(model, pack_groups(GROUPS[1:2], PAD), temperature=0.5)
    logits = model(input_ids=torch.tensor([[1, 4]])).logits[0, 0] / 0.5
    torch.testing.assert_close(scores.logprobs[0, 0], logits.log_softmax(-1)[4])


def test_states_at_the_response_tokens():
    model = MODELS["qwen2", "sdpa"]
    packed, padded = (response_hidden(model, make_batch(GROUPS, PAD, way)) for way in ("packed", "padded"))
    assert packed.shape == (6, 9, 32)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-4)
    sequence = torch.tensor([GROUPS[0].prompt_ids + GROUPS[0].responses[1]])
    alone = decoder_of(model)(input_ids=sequence).last_hidden_state[0, 3:]
    torch.testing.assert_close(packed[1, :5], alone, rtol=0, atol=1e-4)
    assert (packed[1, 5:] == 0).all()


def test_a_model_without_lm_head_gives_states_but_no_logprobs():
    bare = Qwen2Model(small_model().config)
    assert hidden_states(bare, pack_groups(GROUPS, PAD)).shape == (3 * 19, 32)
    with pytest.raises(CourseError, match="no LM head"):
        response_logprobs(bare, pack_groups(GROUPS, PAD))


# --- one path for old, new and reference ---------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_ratio_of_a_policy_to_itself_is_exactly_one(layout, mode):
    """Old log-probs (no gradients) and new ones (gradients) are the same bits, whatever autocast is on."""
    model = getattr(copy.deepcopy(MODELS["qwen2", "sdpa"]), mode)()
    batch = make_batch(GROUPS, PAD, layout)
    new = response_logprobs(model, batch, temperature=0.9, with_entropy=True)
    with torch.no_grad():
        old = response_logprobs(model, batch, temperature=0.9)
    assert new.logprobs.requires_grad and not old.logprobs.requires_grad
    assert torch.equal(new.logprobs, old.logprobs)


def test_half_precision_model_ignores_the_callers_autocast():
    model, batch = small_model().bfloat16(), pack_groups(GROUPS, PAD)
    with torch.no_grad():
        want = response_logprobs(model, batch).logprobs
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(response_logprobs(model, batch).logprobs, want)
    assert want.dtype == torch.float32


# --- training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_equal_gradients_and_trains_every_lora_b(layout, reentrant):
    plain = with_lora(small_model(), b_scale=0.0).train()
    saving = with_lora(small_model(), b_scale=0.0).train()
    saving.gradient_checkpointing_enable({"use_reentrant": reentrant})
    saving.enable_input_require_grads()
    batch = make_batch(GROUPS, PAD, layout)
    for model in (plain, saving):
        (-response_logprobs(model, batch).logprobs.sum()).backward()
    for (name, one), other in zip(plain.named_parameters(), saving.parameters(), strict=True):
        if one.requires_grad:
            torch.testing.assert_close(one.grad, other.grad, msg=name)
    learned = [p for p in saving.parameters() if p.requires_grad]
    torch.optim.SGD(learned, lr=0.1).step()
    stuck = [n for n, p in saving.named_parameters() if "lora_B" in n and not p.abs().max() > 0]
    assert stuck == []


@pytest.mark.parametrize("tied", [False, True])
def test_full_fine_tuning_equals_full_logits(tied):
    """The head is trained too; tied to the embedding, it adds to the same gradient."""
    model = small_model(tie_word_embeddings=tied)
    learned = list(model.parameters())
    got = torch.autograd.grad(response_logprobs(model, pack_groups(GROUPS, PAD)).logprobs.sum(), learned)
    want = torch.autograd.grad(torch.cat(one_by_one(model, GROUPS)).sum(), learned)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_head_with_a_bias():
    model = small_model("phi", num_key_value_heads=4)
    torch.nn.init.normal_(model.lm_head.bias)
    own = response_logprobs(model, pad_groups(GROUPS, PAD))
    torch.testing.assert_close(own.logprobs[own.mask], torch.cat(one_by_one(model, GROUPS)))
    head = head_of(model)
    assert head.bias is model.lm_head.bias


# --- refused rather than silently wrong -----------------------------------------------------------------


@pytest.mark.parametrize(
    "adapter",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
    ],
    ids=["LoRA", "modules_to_save", "trainable tokens"],
)
def test_an_adapted_head_is_refused(adapter):
    tied = "trainable_token_indices" in adapter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = with_lora(small_model(tie_word_embeddings=tied), **adapter)
    with pytest.raises(CourseError, match="LM head of Qwen2ForCausalLM is a peft"):
        response_logprobs(model, pack_groups(GROUPS, PAD))


def test_an_adapter_put_on_the_head_later_is_refused():
    model = small_model()
    head_of(model)
    with pytest.raises(CourseError, match="adapted"):
        head_of(with_lora(model, target_modules=["lm_head"]))


def test_a_quantised_head_is_refused():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = small_model()
    model.lm_head = bitsandbytes.nn.Linear4bit(32, VOCABULARY, bias=False)
    with pytest.raises(CourseError, match="quantised"):
        head_of(model)


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("gemma2", {"attention": "eager"}, "final_logit_softcapping"),
        ("cohere", {}, "logit_scale"),
        ("granite", {"logits_scaling": 8.0}, "logits_scaling"),
    ],
)
def test_changed_logits_are_refused(kind, changes, field):
    with pytest.raises(CourseError, match=field):
        head_of(small_model(kind, **changes))


@pytest.mark.parametrize("where", ["lm_head", "whole model", "before the head"])
def test_logits_changed_in_an_unknown_way_are_refused(where):
    model = small_model()
    if where == "lm_head":
        model.lm_head.register_forward_hook(lambda _m, _i, out: out * 1.05)
    elif where == "before the head":
        model.lm_head.register_forward_pre_hook(lambda _m, given: (given[0] * 1.05,))
    else:
        model.register_forward_hook(lambda _m, _i, out: setattr(out, "logits", out.logits * 1.05))
    with pytest.raises(CourseError, match="not its LM head times its last hidden state"):
        head_of(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mixed_precision_is_no_reason_to_refuse(dtype):
    """Nor is a trainer's wrapping of the model, which computes in half precision and returns float32."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    model = small_model().to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head_of(model)
    wrapped = small_model().to(dtype)
    wrapped.forward = convert_outputs_to_fp32(torch.autocast("cpu", dtype=torch.bfloat16)(wrapped.forward))
    head_of(wrapped)


def test_comparing_the_logits_draws_no_random_numbers():
    model = small_model(attention_dropout=0.5).train()
    state = torch.get_rng_state()
    head_of(model)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize("kind", ["gpt_neox", "bloom", "t5"])
def test_other_architectures_are_right_or_refused(kind):
    changes = {"d_model": 32, "num_heads": 4, "d_kv": 8} if kind == "t5" else {}
    config = AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **changes
    )
    if kind == "t5":
        from transformers import T5ForConditionalGeneration

        model = T5ForConditionalGeneration(config)
    else:
        model = AutoModelForCausalLM.from_config(config).eval()
    if kind == "gpt_neox":
        own = response_logprobs(model, pad_groups(GROUPS, PAD))
        torch.testing.assert_close(own.logprobs[own.mask], torch.cat(one_by_one(model, GROUPS)))
        assert not supports_packed(model)
    else:
        with pytest.raises(CourseError, match="decoder"):
            response_logprobs(model, pad_groups(GROUPS, PAD))


def test_prompt_tuning_is_refused():
    from peft import PromptTuningConfig

    model = get_peft_model(small_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(CourseError, match="prompt-learning"):
        hidden_states(model, pack_groups(GROUPS, PAD))


# --- what may be packed --------------------------------------------------------------------------------


def windowed(window, kind="mistral"):
    return small_model(kind, sliding_window=window)


def test_a_sliding_window_is_kept_by_padding_and_refused_packed():
    model = windowed(4)
    assert not supports_packed(model, longest=15) and not supports_packed(model)
    with pytest.raises(CourseError, match="4 tokens back"):
        response_logprobs(model, pack_groups(GROUPS, PAD))
    own = response_logprobs(model, pad_groups(GROUPS, PAD))
    torch.testing.assert_close(own.logprobs[own.mask], torch.cat(one_by_one(model, GROUPS)))


def test_a_window_that_is_never_reached_allows_packing():
    model = windowed(15)
    assert supports_packed(model, longest=15)
    own = response_logprobs(model, pack_groups(GROUPS, PAD))
    torch.testing.assert_close(
        own.logprobs[own.mask], torch.cat(one_by_one(model, GROUPS)), rtol=0, atol=1e-4
    )


def test_layout_falls_back_with_the_reason():
    with pytest.warns(UserWarning, match="tokens back"):
        assert layout_for(windowed(4), GROUPS) == "padded"
    with pytest.warns(UserWarning, match="not tested with model type 'phi'"):
        assert layout_for(small_model("phi", num_key_value_heads=4), GROUPS) == "padded"
    assert layout_for(windowed(15), GROUPS) == "packed"
    assert layout_for(small_model(), GROUPS, "padded") == "padded"


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_attention_without_4d_masks_is_refused(attention):
    model = small_model()
    model.config._attn_implementation = attention  # not installed here, so it cannot be asked for
    assert not supports_packed(model)
    with pytest.raises(CourseError, match=f"attention '{attention}' takes no 4-D mask"):
        hidden_states(model, pack_groups(GROUPS, PAD))


# --- real models ----------------------------------------------------------------------------------------


def test_the_bundled_model(tiny_dir):
    if not (tiny_dir / "model").is_dir():
        pytest.skip("data/tiny/model is not built yet: python -m helpers data build-tiny")
    model = AutoModelForCausalLM.from_pretrained(tiny_dir / "model", dtype=torch.float32)
    assert_layouts_agree(with_lora(model, b_scale=0.02), GROUPS)


@pytest.mark.smol
def test_smol():
    try:
        model = load_base(SMOL, quantization="none", dtype=torch.float32)
    except CourseError as problem:
        pytest.skip(f"SmolLM2 is not available: {problem}")
    generator = torch.Generator().manual_seed(0)

    def text(length):
        return torch.randint(100, 40_000, (length,), generator=generator).tolist()

    groups = [Group(text(30), [text(20), text(1), text(11)]), Group(text(7), [text(5)])]
    assert_layouts_agree(with_lora(model, b_scale=0.002), groups)


def test_a_4_bit_base(tmp_path):
    """QLoRA: layouts agree, and checkpointed training moves every lora_B."""
    pytest.importorskip("bitsandbytes")
    small_model(hidden_size=64, intermediate_size=64, head_dim=16).save_pretrained(tmp_path)
    base = load_base(tmp_path, quantization="nf4", dtype=torch.float32, gradient_checkpointing=True)
    model = with_lora(base, b_scale=0.0)
    assert_layouts_agree(model, GROUPS)
    model.train()
    (-response_logprobs(model, pack_groups(GROUPS, PAD)).logprobs.sum()).backward()
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    torch.optim.SGD(learned.values(), lr=0.1).step()
    assert [name for name, p in learned.items() if "lora_B" in name and not p.abs().max() > 0] == []
