"""Sampling: seeded, stopped by every end id, within budget, and without a trace on the model."""

import pytest
import torch
from transformers import GenerationConfig

from helpers.errors import CourseError
from helpers.models.loading import LoraSettings, add_adapter, enable_checkpointing
from helpers.models.sampling import Completion, Sampling, generate

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14], [15, 16, 17, 18]]


class Encoder:
    """As much of a ChatEncoder as sampling needs: two end ids, one of them also the pad id."""

    eos_ids = frozenset({2, 3})
    pad_id = 2
    bos_id = None

    def decode(self, ids):
        return " ".join(str(token) for token in ids if token not in self.eos_ids)


@pytest.fixture
def model(random_qwen2):
    return random_qwen2()


def ids(results):
    return [[completion.ids for completion in row] for row in results]


def sample(model, prompts=PROMPTS, k=1, seed=0, batch_size=64, **settings):
    return generate(model, Encoder(), prompts, Sampling(**settings), k=k, seed=seed, batch_size=batch_size)


def likely_to_end(model, token, bias=50.0):
    """Make the model end at once, with `token`."""
    model.lm_head = torch.nn.Linear(32, 64)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
        model.lm_head.bias[token] = bias
    return model


def test_the_seed_decides_and_the_global_rng_neither_matters_nor_moves(model):
    torch.manual_seed(1)
    first = sample(model, k=3, max_new_tokens=8)
    following = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(following, torch.rand(1)), "generate drew from the global RNG"
    torch.manual_seed(2)
    assert sample(model, k=3, max_new_tokens=8) == first
    assert ids(sample(model, k=3, max_new_tokens=8, seed=1)) != ids(first)


def test_k_responses_a_prompt_in_order_and_different(model):
    results = sample(model, k=4, max_new_tokens=12, batch_size=5)
    assert [len(row) for row in results] == [4] * len(PROMPTS)
    assert all(len({tuple(c.ids) for c in row}) > 1 for row in results)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_batched_greedy_equals_single_greedy(model, batch_size):
    together = sample(model, greedy=True, max_new_tokens=16, batch_size=batch_size)
    alone = [sample(model, [prompt], greedy=True, max_new_tokens=16)[0] for prompt in PROMPTS]
    assert together == alone


def test_greedy_takes_the_most_likely_token_each_time(model):
    [[completion]] = sample(model, [PROMPTS[1]], greedy=True, max_new_tokens=5)
    text = list(PROMPTS[1])
    with torch.no_grad():
        for token in completion.ids:
            assert token == model(torch.tensor([text])).logits[0, -1].argmax().item()
            text.append(token)


def test_a_low_temperature_comes_close_to_greedy(model):
    cold = sample(model, temperature=1e-3, max_new_tokens=6)
    assert ids(cold) == ids(sample(model, greedy=True, max_new_tokens=6))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperature_zero_is_refused_and_greedy_named(temperature):
    with pytest.raises(CourseError, match="--temperature must be greater than 0.*greedy"):
        Sampling(temperature=temperature)
    Sampling(temperature=temperature, greedy=True)


def test_samples_follow_softmax_of_logits_over_temperature(model):
    with torch.no_grad():
        logits = model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    draws = sample(model, [PROMPTS[0]], k=4000, batch_size=4000, max_new_tokens=1, temperature=1.7)[0]
    counts = torch.bincount(torch.tensor([c.ids[0] for c in draws]), minlength=64) / 4000
    right, wrong = torch.softmax(logits / 1.7, -1), torch.softmax(logits, -1)
    assert (counts - right).abs().sum() < 0.2
    assert (counts - wrong).abs().sum() > 0.3, "temperature is ignored"


def test_top_p_keeps_the_nucleus_only(model):
    with torch.no_grad():
        probabilities = torch.softmax(model(torch.tensor([PROMPTS[0]])).logits[0, -1], -1)
    values, order = probabilities.sort(descending=True)
    nucleus = set(order[: int((values.cumsum(-1) < 0.5).sum()) + 1].tolist())
    draws = sample(model, [PROMPTS[0]], k=500, batch_size=500, max_new_tokens=1, top_p=0.5)[0]
    assert {c.ids[0] for c in draws} <= nucleus


# ------------------------------------------------------------------ where it ends
@pytest.mark.parametrize("end", sorted(Encoder.eos_ids))
def test_every_end_id_stops_and_is_kept_even_if_it_is_the_pad_id(model, end):
    results = sample(likely_to_end(model, end), max_new_tokens=10)
    assert results == [[Completion([end], "", True)]] * len(PROMPTS)


def test_a_response_that_does_not_end_is_unfinished_and_has_exactly_the_budget(model):
    likely_to_end(model, 2, bias=-50.0).lm_head.bias.data[3] = -50.0
    for [completion] in sample(model, max_new_tokens=7):
        assert len(completion.ids) == 7
        assert not completion.complete
        assert not set(completion.ids) & Encoder.eos_ids


def test_complete_responses_carry_no_padding_beside_unfinished_ones(model):
    likely_to_end(model, 2, bias=2.5)
    completions = [c for row in sample(model, k=20, max_new_tokens=20) for c in row]
    assert {c.complete for c in completions} == {True, False}
    for c in completions:
        assert len(c.ids) <= 20
        assert c.complete == (c.ids[-1] in Encoder.eos_ids)
        assert not set(c.ids[:-1]) & Encoder.eos_ids


def test_min_new_tokens_holds_the_end_back(model):
    for [completion] in sample(likely_to_end(model, 3), min_new_tokens=4, max_new_tokens=9):
        assert len(completion.ids) == 5
        assert completion.complete


# --------------------------------------------------------------- no trace on the model
def test_the_models_own_generation_settings_do_not_leak_in_nor_get_lost(model):
    plain = sample(model, k=2, max_new_tokens=10)
    greedy = sample(model, greedy=True, max_new_tokens=10)
    # What Qwen2.5's generation_config.json brings, exaggerated, and its end id.
    own = GenerationConfig(
        repetition_penalty=5.0,
        top_k=1,
        top_p=0.1,
        temperature=0.1,
        do_sample=True,
        eos_token_id=30,
        max_length=5,
        no_repeat_ngram_size=1,
        suppress_tokens=list(range(4, 60)),
    )
    model.generation_config = own
    assert sample(model, k=2, max_new_tokens=10) == plain
    assert sample(model, greedy=True, max_new_tokens=10) == greedy
    assert model.generation_config is own


def test_the_default_top_k_of_the_library_is_off(model):
    likely_to_end(model, 2)
    with torch.no_grad():  # almost uniform; equal logits would all count as the top 50
        model.lm_head.bias.copy_(torch.linspace(0, 0.1, 64))
    [draws] = sample(model, [PROMPTS[0]], k=3000, batch_size=3000, max_new_tokens=1)
    assert len({c.ids[0] for c in draws}) == 64


def test_modes_and_checkpointing_are_restored_and_the_cache_is_used(model, monkeypatch):
    enable_checkpointing(model)
    model = add_adapter(model, "policy", LoraSettings(r=2, dropout=0.5))
    model.train()
    model.base_model.model.model.layers[0].eval()
    before = [(m.training, getattr(m, "gradient_checkpointing", None)) for m in model.modules()]
    assert any(flag for _, flag in before)
    widths = []
    layer = model.base_model.model.model.layers[1]
    layer.register_forward_pre_hook(lambda module, args: widths.append((args[0].shape[1], module.training)))
    results = sample(model, max_new_tokens=5, min_new_tokens=5)
    assert widths == [(6, False)] + [(1, False)] * 4, "one pass over the prompt, then token by token"
    assert [(m.training, getattr(m, "gradient_checkpointing", None)) for m in model.modules()] == before
    assert results == sample(model, max_new_tokens=5, min_new_tokens=5), "dropout was active"


def test_the_model_is_restored_after_an_error_too(model):
    enable_checkpointing(model)
    model.train()
    own = model.generation_config
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(CourseError, match="not finite"):
        sample(model, max_new_tokens=3)
    assert model.training
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    assert model.generation_config is own


def test_sampling_leaves_no_graph_and_no_gradient(model):
    model = add_adapter(model, "policy", LoraSettings(r=2))
    sample(model, max_new_tokens=3)
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.is_grad_enabled()


# -------------------------------------------------------------------------- budget
def test_prompt_and_response_have_to_fit_the_context(model):
    sample(model, [[5] * 500], max_new_tokens=12, greedy=True)
    with pytest.raises(CourseError, match="prompt 1 has 501 tokens.*--max_new_tokens 12.*context of 512"):
        sample(model, [[5], [5] * 501], max_new_tokens=12)


def test_what_cannot_be_sampled_is_refused(model):
    with pytest.raises(CourseError, match="prompt 1 is empty"):
        sample(model, [[5], []])
    with pytest.raises(CourseError, match="k and batch_size"):
        sample(model, k=0)
    with pytest.raises(CourseError, match="greedy gives one response"):
        sample(model, k=2, greedy=True)
    assert sample(model, []) == []


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"max_new_tokens": 0}, "--max_new_tokens"),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "--min_new_tokens 5"),
        ({"min_new_tokens": -1}, "--min_new_tokens"),
        ({"top_p": 0.0}, "--top_p"),
        ({"top_p": 1.1}, "--top_p"),
    ],
)
def test_settings_out_of_range_name_their_flag(settings, flag):
    with pytest.raises(CourseError, match=flag):
        Sampling(**settings)


def test_a_progress_bar_counts_responses_on_stderr(model, capsys):
    generate(model, Encoder(), PROMPTS, Sampling(max_new_tokens=2), k=2, progress="rollout")
    captured = capsys.readouterr()
    assert "rollout" in captured.err and "8/8" in captured.err
    assert captured.out == ""
