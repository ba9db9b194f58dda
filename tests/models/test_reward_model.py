"""Scores: equal alone and in a batch, packed and padded, before saving and after, beside any other role."""

import pytest
import torch

from helpers.errors import CourseError
from helpers.models.loading import (
    LoraSettings,
    activate,
    active_adapter,
    add_adapter,
    count_bases,
    enable_checkpointing,
    load_base,
    reference,
)
from helpers.models.reward_model import RewardModel
from helpers.text.groups import Group, make_batch, pad_groups

SMALL = LoraSettings(r=4, alpha=8, dropout=0.0)
PAD = 2
GROUPS = [
    Group([5, 6, 7], [[8, 9, 2], [10, 2], [11, 12, 13, 14, 2]]),
    Group([5, 2, 2, 6, 7, 15, 16], [[2], [17, 18, 2, 2]]),  # the pad id occurs in prompt and response
    Group([20], [[21, 22]]),
]


def last_token_index(attention_mask):
    """As the exercise asks, for either padding side."""
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (positions * attention_mask).argmax(dim=1)


def shake(model, name, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if f".{name}." in key or key.startswith("head"):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model


def build(model, layout="packed", **options):
    """A policy and a reward adapter, both trained a little, on one base; the policy is active."""
    model = add_adapter(add_adapter(model, "reward", SMALL), "policy", SMALL)
    reward = RewardModel.create(model, "reward", last_token_index, pad_id=PAD, layout=layout, **options)
    shake(model, "policy", 1)
    return model, shake(reward, "reward", 2)


@pytest.fixture
def roles(random_qwen2):
    return build(random_qwen2())


def flat(scores):
    return torch.tensor([score for group in scores for score in group])


def state(model):
    return active_adapter(model), {name: weight.requires_grad for name, weight in model.named_parameters()}


def test_scores_are_fp32_one_a_response_and_follow_from_state_and_head(roles):
    model, reward = roles
    batch = pad_groups([GROUPS[0]], PAD)
    with torch.no_grad():
        scores = reward.score(batch)
        with reference(model, "reward"):
            text = torch.tensor([GROUPS[0].prompt_ids + GROUPS[0].responses[1]])
            hidden = model.get_base_model().model(text).last_hidden_state[0, -1]
    assert scores.shape == (3,) and scores.dtype == torch.float32
    torch.testing.assert_close(scores[1], reward.head(hidden)[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_batched_equals_single_on_both_padding_sides(roles, side):
    _, reward = roles
    with torch.no_grad():
        together = reward.score(pad_groups(GROUPS, PAD, side=side))
        alone = [
            reward.score(pad_groups([Group(g.prompt_ids, [r])], PAD)) for g in GROUPS for r in g.responses
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_packed_equals_padded_at_any_batch_size_and_in_the_order_of_the_groups(roles, batch_size):
    _, reward = roles
    packed = reward.score_groups(GROUPS, batch_size)
    reward.layout = "padded"
    padded = reward.score_groups(GROUPS, 100)
    assert [len(group) for group in packed] == [3, 2, 1]
    torch.testing.assert_close(flat(packed), flat(padded), atol=1e-5, rtol=1e-5)
    assert flat(packed).unique().numel() == 6


def test_scoring_leaves_the_policy_as_it_was(roles):
    model, reward = roles
    before = state(model)
    model.train()
    reward.score_groups(GROUPS)
    assert state(model) == before
    assert before[0] == "policy"
    assert model.training
    with reference(model):
        reward.score_groups(GROUPS)
        assert active_adapter(model) is None
    assert state(model) == before


def test_scores_do_not_depend_on_which_adapter_is_active_nor_on_the_policy(roles):
    model, reward = roles
    scores = reward.score_groups(GROUPS)
    shake(model, "policy", 9)
    assert reward.score_groups(GROUPS) == scores
    activate(model, "reward", trainable=False)
    assert reward.score_groups(GROUPS) == scores
    shake(model, "reward", 9)
    assert reward.score_groups(GROUPS) != scores


def test_policy_reference_and_reward_share_one_base(roles):
    model, reward = roles
    assert count_bases([model, reward, model.get_base_model()]) == 1


def test_dropout_is_off_while_groups_are_scored(random_qwen2):
    model = add_adapter(random_qwen2(), "reward", LoraSettings(r=4, dropout=0.5))
    reward = shake(RewardModel.create(model, "reward", last_token_index, pad_id=PAD), "reward", 2)
    reward.train()
    assert reward.score_groups(GROUPS) == reward.score_groups(GROUPS)
    assert reward.training


# ------------------------------------------------------------------------ the head
def test_a_fresh_head_is_seeded_and_small_but_not_zero(random_qwen2):
    def create(seed):
        model = add_adapter(random_qwen2(), "reward", SMALL)
        return RewardModel.create(model, "reward", last_token_index, pad_id=PAD, seed=seed)

    first, again, other = create(0), create(0), create(1)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert first.head.weight.dtype == torch.float32
    scores = flat(first.score_groups(GROUPS))
    assert scores.abs().max() < 1
    assert scores.any()


def test_the_head_is_fp32_on_a_half_precision_base(random_qwen2):
    model = add_adapter(random_qwen2().bfloat16(), "reward", SMALL)
    reward = RewardModel.create(model, "reward", last_token_index, pad_id=PAD)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = reward.score(make_batch(GROUPS, PAD, "padded"))
    assert reward.head.weight.dtype == scores.dtype == torch.float32


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_first_step_moves_the_head_and_every_lora_b(random_qwen2, checkpointing):
    base = random_qwen2()
    if checkpointing:
        enable_checkpointing(base)
    model = add_adapter(base, "reward", SMALL)
    reward = RewardModel.create(model, "reward", last_token_index, pad_id=PAD)
    reward.train()
    scores = reward(make_batch(GROUPS, PAD, "packed"))
    (-torch.nn.functional.logsigmoid(scores[0::2] - scores[1::2])).mean().backward()
    still = [
        n for n, w in reward.named_parameters() if "lora_B" in n and (w.grad is None or not w.grad.any())
    ]
    assert not still
    assert reward.head.weight.grad.any()
    assert all(w.grad is None for n, w in reward.named_parameters() if "lora_" not in n and "head" not in n)


def test_training_a_sleeping_adapter_under_checkpointing_is_refused(random_qwen2):
    base = random_qwen2()
    enable_checkpointing(base)
    _, reward = build(base)
    reward.train()
    with pytest.raises(CourseError, match="make adapter 'reward' active"):
        reward.score(make_batch(GROUPS, PAD, "packed"))
    reward.score_groups(GROUPS)


# ----------------------------------------------------------------- save and load
def test_adapter_and_head_reload_to_equal_scores_on_a_shared_base(random_qwen2, roles, tmp_path):
    _, reward = roles
    scores = reward.score_groups(GROUPS)
    reward.save(tmp_path / "rm")
    policy = shake(add_adapter(random_qwen2(), "policy", SMALL), "policy", 1)
    before = state(policy)
    loaded = RewardModel.load(tmp_path / "rm", policy, last_token_index, pad_id=PAD)
    assert loaded.score_groups(GROUPS) == scores
    assert count_bases([policy, loaded]) == 1
    flags = {name: flag for name, flag in state(policy)[1].items() if ".reward." not in name}
    assert (active_adapter(policy), flags) == before
    assert not any(w.requires_grad for n, w in loaded.named_parameters() if ".reward." in n or "head" in n)


def test_without_a_base_the_recorded_one_is_loaded(random_qwen2, tmp_path):
    random_qwen2().save_pretrained(tmp_path / "base")
    _, reward = build(load_base(tmp_path / "base"))
    reward.save(tmp_path / "rm")
    loaded = RewardModel.load(tmp_path / "rm", None, last_token_index, pad_id=PAD)
    assert loaded.score_groups(GROUPS) == reward.score_groups(GROUPS)


def test_a_fully_fine_tuned_reward_model_brings_its_own_base(random_qwen2, roles, tmp_path):
    policy, _ = roles
    reward = RewardModel.create(random_qwen2(seed=5), None, last_token_index, pad_id=PAD)
    shake(reward, "none", 3)
    reward.save(tmp_path / "rm")
    loaded = RewardModel.load(tmp_path / "rm", policy, last_token_index, pad_id=PAD)
    assert loaded.score_groups(GROUPS) == reward.score_groups(GROUPS)
    assert count_bases([policy, loaded]) == 2
    assert not any(weight.requires_grad for weight in loaded.parameters())


@pytest.mark.parametrize("full", [False, True])
def test_restore_puts_the_saved_weights_back_into_the_same_parameters(random_qwen2, tmp_path, full):
    if full:
        reward = RewardModel.create(random_qwen2(), None, last_token_index, pad_id=PAD)
    else:
        _, reward = build(random_qwen2())
    scores, parameters = reward.score_groups(GROUPS), list(reward.parameters())
    reward.save(tmp_path / "rm")
    with torch.no_grad():
        for name, weight in reward.named_parameters():
            if full or ".reward." in name or "head" in name:
                weight.add_(0.1)
    assert reward.score_groups(GROUPS) != scores
    reward.restore(tmp_path / "rm")
    assert reward.score_groups(GROUPS) == scores
    assert all(a is b for a, b in zip(parameters, reward.parameters(), strict=True))


def test_a_wrong_directory_or_base_is_refused(random_qwen2, roles, tmp_path):
    _, reward = roles
    with pytest.raises(CourseError, match="reward.json is missing.*reward_model"):
        RewardModel.load(tmp_path, random_qwen2(), last_token_index)
    reward.save(tmp_path / "rm")
    with pytest.raises(CourseError, match="another base"):
        RewardModel.load(tmp_path / "rm", random_qwen2(hidden=64), last_token_index)
    full = RewardModel.create(random_qwen2(), None, last_token_index)
    with pytest.raises(CourseError, match="of kind 'adapter'"):
        full.restore(tmp_path / "rm")
    (tmp_path / "rm" / "head.safetensors").unlink()
    with pytest.raises(CourseError, match="head.safetensors is missing"):
        RewardModel.load(tmp_path / "rm", random_qwen2(), last_token_index)


def test_roles_are_checked(random_qwen2, roles):
    model, reward = roles
    with pytest.raises(CourseError, match="no adapter 'value'"):
        RewardModel.create(model, "value", last_token_index)
    with pytest.raises(CourseError, match="needs a model of its own"):
        RewardModel.create(model, None, last_token_index)
    with pytest.raises(CourseError, match="batch_size"):
        reward.score_groups(GROUPS, 0)
    assert reward.score_groups([]) == []
