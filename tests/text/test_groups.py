"""Packed and padded layouts say the same thing, and masks come from lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from helpers.errors import CourseError
from helpers.text.groups import Group, TokenBatch, make_batch, pack_groups, pad_groups

PAD = 0
VOCABULARY = 60

ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7)  # pad and "eos" occur inside texts
group_lists = st.lists(st.builds(Group, ids, st.lists(ids, min_size=1, max_size=8)), min_size=1, max_size=4)


def small_model(architecture: str = "qwen2", **settings_) -> torch.nn.Module:
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[architecture]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **settings_,
    )
    return model_class(config).eval()


MODEL = small_model()


def logprobs(model: torch.nn.Module, batch: TokenBatch) -> torch.Tensor:
    """(N, R) log-probabilities of response tokens, zeros outside the mask: whole logits, no tricks."""
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    scores = logits.log_softmax(-1).flatten(0, 1)[batch.predict_index]
    return scores.gather(-1, batch.labels[..., None])[..., 0] * batch.mask


def alone(model: torch.nn.Module, prompt: list[int], response: list[int]) -> torch.Tensor:
    """(R,) log-probabilities of one response with no padding, mask or position ids at all."""
    scores = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits.log_softmax(-1)[0]
    return scores[len(prompt) - 1 : -1].gather(-1, torch.tensor(response)[:, None])[:, 0]


LAYOUTS = {
    "packed": lambda groups: pack_groups(groups, PAD),
    "padded right": lambda groups: pad_groups(groups, PAD, "right"),
    "padded left": lambda groups: pad_groups(groups, PAD, "left"),
}


@given(group_lists)
@settings(max_examples=40, deadline=None)
def test_indices_point_at_the_response_tokens(groups):
    for lay_out in LAYOUTS.values():
        batch = lay_out(groups)
        responses = [response for group in groups for response in group.responses]
        assert batch.mask.sum(-1).tolist() == [len(response) for response in responses]
        assert [row[keep].tolist() for row, keep in zip(batch.labels, batch.mask, strict=True)] == responses
        at = batch.input_ids.flatten()[batch.token_index]
        assert torch.equal(at[batch.mask], batch.labels[batch.mask])
        assert not batch.labels[~batch.mask].any()
        prompts = [group.prompt_ids for group in groups for _ in group.responses]
        before = batch.input_ids.flatten()[batch.predict_index[:, 0]]
        assert before.tolist() == [prompt[-1] for prompt in prompts]
        inner = batch.mask[:, 1:]
        assert torch.equal(batch.predict_index[:, 1:][inner], batch.token_index[:, :-1][inner])
        assert batch.group_index.tolist() == [i for i, g in enumerate(groups) for _ in g.responses]


@given(group_lists)
@settings(max_examples=40, deadline=None)
def test_positions_restart_after_the_prompt_and_ignore_padding(groups):
    for lay_out in LAYOUTS.values():
        batch = lay_out(groups)
        positions = batch.position_ids.flatten()[batch.token_index]
        for row, (group_number, keep) in enumerate(zip(batch.group_index.tolist(), batch.mask, strict=True)):
            start = len(groups[group_number].prompt_ids)
            assert positions[row][keep].tolist() == list(range(start, start + int(keep.sum())))


@given(group_lists)
@settings(max_examples=30, deadline=None)
def test_packed_equals_padded_equals_one_at_a_time(groups):
    with torch.no_grad():
        scores = {name: logprobs(MODEL, lay_out(groups)) for name, lay_out in LAYOUTS.items()}
        single = [alone(MODEL, g.prompt_ids, r) for g in groups for r in g.responses]
    for name, found in scores.items():
        for row, expected in zip(found, single, strict=True):
            torch.testing.assert_close(row[: len(expected)], expected, atol=1e-5, rtol=1e-4, msg=name)


def additive(batch: TokenBatch) -> TokenBatch:
    """The packed mask as "eager" attention wants it: 0 where visible, a huge negative number elsewhere."""
    if batch.layout == "padded":
        return batch
    mask = torch.zeros(batch.attention_mask.shape).masked_fill(~batch.attention_mask, -1e9)
    return replace(batch, attention_mask=mask)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gradients_of_the_layouts_agree(architecture, attention):
    model = small_model(architecture, attn_implementation=attention)
    groups = [Group([5, 6, 7], [[8], [9, 10, 11], [8, 9]]), Group([3], [[4, 4, 4, 4]]), Group([2], [[7, 7]])]
    gradients = {}
    for name, lay_out in LAYOUTS.items():
        batch = lay_out(groups) if attention == "sdpa" else additive(lay_out(groups))
        model.zero_grad()
        logprobs(model, batch).square().sum().backward()
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradients[name].isfinite().all(), f"{name}: a padding row that sees nothing yields NaN"
    for name in ("padded right", "padded left"):
        torch.testing.assert_close(gradients[name], gradients["packed"], atol=1e-4, rtol=1e-3)


def test_a_response_sees_the_prompt_and_itself_only():
    batch = pack_groups([Group([1, 2], [[3, 4], [5]]), Group([6], [[7]])], PAD)
    visible = batch.attention_mask[0, 0].int().tolist()
    assert visible == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]
    padding = batch.attention_mask[1, 0, 2:].int().tolist()
    assert padding == [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]], "padding attends to itself alone"


def test_masks_go_by_length_where_pad_is_the_end_of_turn():
    """TRL #1623: with pad == eos a mask by id silently stops training the end-of-turn token."""
    end_of_turn = pad = 9
    groups = [Group([9, 1], [[2, 9], [9, 3, 4, 9]])]
    for layout in ("packed", "padded"):
        batch = make_batch(groups, pad, layout)
        assert batch.mask.tolist() == [[True, True, False, False], [True, True, True, True]]
        assert batch.labels[0, 1] == end_of_turn
        assert batch.labels[1, 3] == end_of_turn
    by_id = batch.input_ids != pad
    assert by_id.sum() < batch.attention_mask.sum(), "the common slip drops real tokens here"


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_mask_in_rows_marks_the_response_tokens(layout):
    """And the end-of-turn token among them, though it shares its id with the padding."""
    groups = [Group([5, 6], [[8, PAD], [9, 9, PAD]]), Group([5, 6, 7], [[8]])]
    batch = make_batch(groups, PAD, layout)
    marked = batch.input_ids[batch.mask_in_rows()]
    assert marked.tolist() == [8, PAD, 9, 9, PAD, 8]


def test_counting_positions_from_the_row_start_would_be_wrong_with_left_padding():
    groups = [Group([1, 2], [[3]]), Group([4], [[5, 6, 7]])]
    batch = pad_groups(groups, PAD, "left")
    assert batch.position_ids.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    with torch.no_grad():
        right = alone(MODEL, [1, 2], [3])
        torch.testing.assert_close(logprobs(MODEL, batch)[0, :1], right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (Group([], [[1]], "row-7"), "row-7.*empty prompt"),
        (Group([1], [[1], []], "row-8"), "row-8.*empty response"),
        (Group([1], [], "row-9"), "row-9.*no response"),
    ],
)
def test_a_group_that_cannot_be_scored_is_refused_by_name(group, words):
    for layout in ("packed", "padded"):
        with pytest.raises(CourseError, match=words):
            make_batch([Group([1], [[2]], "fine"), group], PAD, layout)


def test_unknown_layouts_sides_and_empty_batches_are_refused():
    group = Group([1], [[2]])
    with pytest.raises(CourseError, match="'packed' or 'padded'"):
        make_batch([group], PAD, "ragged")
    with pytest.raises(CourseError, match="'right' or 'left'"):
        pad_groups([group], PAD, "middle")
    with pytest.raises(CourseError, match="at least one group"):
        pack_groups([], PAD)


def test_to_moves_every_tensor_and_leaves_the_original():
    batch = make_batch([Group([1], [[2]])], PAD, "packed")
    moved = batch.to("meta")
    assert moved.layout == "packed"
    assert all(value.is_meta for value in vars(moved).values() if torch.is_tensor(value))
    assert not batch.input_ids.is_meta
