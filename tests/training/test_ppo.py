"""PPO: roles on one base, credit by token, two adapters that learn apart, and what ends or bends a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.models import loading
from helpers.text.groups import Group, make_batch
from helpers.training import online, ppo, ppo_credit, ppo_value, rollouts
from helpers.training.configs import RewardConfig, SFTConfig
from helpers.training.ppo import PPOTrainer, train_ppo
from helpers.training.ppo_config import PPOConfig
from helpers.training.ppo_credit import adapted_coefficient
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft
from helpers.training.updates import recomputing
from tests.support import adapter_weights, assert_equal_weights, metric_rows


class EvenIds:
    """The share of even token ids; NaN for the first response of the groups whose call is `bad_at`."""

    def __init__(self, bad_at: int | None = None) -> None:
        self.calls, self.bad_at = 0, bad_at

    def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
        self.calls += 1
        scores = [[sum(t % 2 == 0 for t in r) / len(r) for r in group.responses] for group in groups]
        if self.calls == self.bad_at:
            scores = [[math.nan, *others[1:]] for others in scores]
        return scores


def train(config: PPOConfig, **options: Any) -> Any:
    """Train with the hand-made score."""
    return train_ppo(
        config, options.pop("answers", answers), scorer=options.pop("scorer", EvenIds()), **options
    )


def rows_of(run: Any) -> list[dict[str, str]]:
    """Rows of training steps."""
    return [row for row in metric_rows(run.run_dir) if row.get("loss")]


def column(run: Any, name: str) -> list[float]:
    """One metric, step by step."""
    return [float(row[name]) for row in rows_of(run)]


def replaced(**functions: Any) -> SimpleNamespace:
    """The answers with some functions exchanged."""
    return SimpleNamespace(**{**{name: getattr(answers, name) for name in answers.__all__}, **functions})


@pytest.fixture
def opened(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`opened(**changes)`: a trainer before its first step."""

    def open_trainer(name: str = "open", **changes: Any) -> PPOTrainer:
        kept: list[PPOTrainer] = []
        monkeypatch.setattr(online, "run_online", lambda trainer, _: kept.append(trainer))
        scorer = changes.pop("scorer", None if "reward_model" in changes else EvenIds())
        train_ppo(settings(PPOConfig, name, **changes), answers, scorer=scorer)
        monkeypatch.undo()
        kept[0].space.run.close()
        return kept[0]

    return open_trainer


@pytest.fixture
def reward_model(settings: Any) -> str:
    """A reward model of a few steps."""
    return str(train_reward_model(settings(RewardConfig, "rm", max_steps=4), answers).final)


@pytest.fixture
def sft(settings: Any) -> str:
    """An SFT adapter of a few steps."""
    return str(train_sft(settings(SFTConfig, "sft", max_steps=4), answers).final / "adapter")


def lora(model: Any, adapter: str) -> dict[str, torch.Tensor]:
    """Copies of an adapter's weights."""
    return {name: w.detach().clone() for name, w in model.named_parameters() if f".{adapter}." in name}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Whether anything changed."""
    return any(not torch.equal(before[name], after[name]) for name in before)


# ---------------------------------------------------------------- the roles
def test_policy_reference_reward_and_value_share_one_base(
    opened: Any, reward_model: str, sft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    honest = loading.load_base
    monkeypatch.setattr(loading, "load_base", lambda *a, **k: loads.append("base") or honest(*a, **k))
    trainer = opened(reward_model=reward_model, init_adapter=sft)
    assert loads in ([], ["base"])
    assert loading.count_bases([trainer.model, trainer.scorer.model, trainer.value.model]) == 1
    base = {w.data_ptr() for n, w in trainer.model.named_parameters() if "lora_" not in n}
    plain = honest(trainer.config.model_name)
    assert len(base) == len({w.data_ptr() for w in plain.parameters()})
    assert set(trainer.model.peft_config) == {"policy", "reference", "reward", "value"}


def test_the_value_starts_as_a_copy_of_the_reward_model(opened: Any, reward_model: str) -> None:
    trainer = opened(reward_model=reward_model)
    reward, value = lora(trainer.model, "reward"), lora(trainer.model, "value")
    assert_equal_weights({k.replace(".reward.", ".value."): w for k, w in reward.items()}, value)
    assert_equal_weights(trainer.scorer.head.state_dict(), trainer.value.head.state_dict())
    groups = [Group([5, 6, 7], [[8, 9, 10], [11]]), Group([4], [[12, 13]])]
    batch = make_batch(groups, 0, "packed")
    # The value before one more token is the reward of the text so far.
    longer = make_batch([Group(g.prompt_ids, [[*r, 1] for r in g.responses]) for g in groups], 0, "packed")
    last = longer.mask.sum(dim=1) - 1
    values = trainer.value.token_values(longer)[torch.arange(3), last]
    torch.testing.assert_close(values, trainer.scorer.score(batch), rtol=1e-4, atol=1e-5)


def test_the_value_is_read_where_the_token_is_predicted_and_does_not_know_it(opened: Any) -> None:
    """The slip gae_off_by_one_value."""
    value = opened().value
    one, other = (make_batch([Group([5, 6], [[7, 8, last]])], 0, "packed") for last in (9, 200))
    torch.testing.assert_close(value.token_values(one), value.token_values(other), rtol=0, atol=1e-6)
    first = make_batch([Group([5, 6], [[30, 8, 9]])], 0, "packed")
    seen = (value.token_values(one) - value.token_values(first)).abs()[0]
    assert seen[0] < 1e-6 and seen[1] > 1e-6 and seen[2] > 1e-6


def test_packed_and_padded_values_agree_and_the_padding_has_none(opened: Any) -> None:
    value, groups = opened().value, [Group([5, 6, 7], [[8, 9, 10], [11]]), Group([4], [[12, 13]])]
    packed, padded = (make_batch(groups, 0, layout) for layout in ("packed", "padded"))
    torch.testing.assert_close(value.token_values(packed), value.token_values(padded), rtol=1e-4, atol=1e-5)
    assert not value.token_values(packed)[~packed.mask].any()


def test_policy_and_value_losses_each_move_their_own_adapter_only(opened: Any, reward_model: str) -> None:
    trainer = opened(reward_model=reward_model)
    watch = ppo.RatioWatch(trainer.config)
    micro = trainer.rollout().windows[0][0]
    roles = ("policy", "value", "reward")

    def graded() -> set[str]:
        named = {
            role
            for role in roles
            for n, w in trainer.model.named_parameters()
            if f".{role}." in n and w.grad is not None and bool(w.grad.any())
        }
        return named | ({"head"} if trainer.value.head.weight.grad is not None else set())

    trainer.policy_backward(micro, 1.0, watch)
    assert graded() == {"policy"}
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.value_backward(micro, 1.0)
    assert graded() == {"value", "head"}


def test_reference_and_reward_never_move_and_policy_and_value_do(
    opened: Any, reward_model: str, sft: str
) -> None:
    trainer = opened(reward_model=reward_model, init_adapter=sft)
    before = {role: lora(trainer.model, role) for role in trainer.model.peft_config}
    trainer.one_step()
    after = {role: lora(trainer.model, role) for role in trainer.model.peft_config}
    assert {role for role in before if moved(before[role], after[role])} == {"policy", "value"}
    assert loading.active_adapter(trainer.model) == "policy"


def test_the_reference_is_the_sft_model_the_policy_started_from(opened: Any, sft: str) -> None:
    trainer = opened(init_adapter=sft)
    assert trainer.policy.reference == "reference"
    rollout = trainer.rollout()
    assert rollout.metrics["kl"] == pytest.approx(0.0, abs=1e-9)
    micro = rollout.windows[0][0]
    assert torch.equal(micro.old_logprobs, micro.ref_logprobs)


def test_value_and_policy_have_learning_rates_of_their_own(opened: Any) -> None:
    trainer = opened(value_learning_rate=0.5, learning_rate=0.25, lr_scheduler_type="constant")
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.25, 0.5]


def test_a_fully_fine_tuned_reward_model_is_refused(settings: Any) -> None:
    config = settings(RewardConfig, "rm", max_steps=1, full_finetune=True)
    reward = train_reward_model(config, answers)
    with pytest.raises(CourseError, match="--full_finetune false"):
        train_ppo(settings(PPOConfig, reward_model=str(reward.final)), answers)


def test_without_a_reward_model_it_says_what_it_needs(settings: Any) -> None:
    with pytest.raises(CourseError, match="--reward_model"):
        train_ppo(settings(PPOConfig), answers)


# ---------------------------------------------------------------- credit
def test_shaped_rewards_sum_to_the_score_less_the_price_of_drift(opened: Any, sft: str) -> None:
    trainer = opened(init_adapter=sft, missing_eos_penalty=0.0, kl_coef=0.3, max_steps=3)
    trainer.one_step()
    rollout = trainer.rollout()
    for micro in (m for window in rollout.windows for m in window):
        drift = (micro.old_logprobs - micro.ref_logprobs).sum(dim=1)
        wanted = rollout.rewards[micro.places] - 0.3 * drift
        torch.testing.assert_close(micro.rewards.sum(dim=1), wanted, rtol=1e-4, atol=1e-5)
    metrics = rollout.metrics
    assert metrics["score"] == pytest.approx(metrics["reward"], abs=1e-6)
    assert metrics["kl_penalty"] == pytest.approx(-0.3 * metrics["kl_k1"] * metrics["tokens"], rel=1e-3)


def test_places_lead_from_micro_batches_back_to_their_responses(opened: Any) -> None:
    rollout = opened(minibatch_size=2).rollout()
    flat = [response for group in rollout.groups for response in group.responses]
    seen = []
    for micro in (m for window in rollout.windows for m in window):
        for place, labels, mask in zip(micro.places, micro.batch.labels, micro.batch.mask, strict=True):
            assert labels[mask].tolist() == flat[int(place)]
            seen.append(int(place))
    assert sorted(seen) == list(range(len(flat)))


def test_advantages_are_whitened_over_the_rollout_and_returns_are_not(opened: Any) -> None:
    rollout = opened(minibatch_size=2, lam=1.0, kl_coef=0.0, missing_eos_penalty=0.0).rollout()
    micros = [micro for window in rollout.windows for micro in window]
    flat = torch.cat([micro.advantages[micro.learn] for micro in micros])
    assert flat.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert flat.std().item() == pytest.approx(1.0, abs=1e-4)
    for micro in micros:  # gamma = lam = 1 and no price: the return of every token is the score
        wanted = rollout.rewards[micro.places][:, None].expand_as(micro.returns)[micro.learn]
        torch.testing.assert_close(micro.returns[micro.learn], wanted, rtol=1e-4, atol=1e-5)


def test_a_response_that_is_cut_off_pays_the_penalty(opened: Any) -> None:
    """The slip missing_eos_penalty_ineffective."""
    free, fined = (opened(f"fine{p}", missing_eos_penalty=p, kl_coef=0.0).rollout() for p in (0.0, 2.0))
    complete = torch.tensor([answer.complete for group in fined.completions for answer in group])
    assert not complete.all()
    for a, b in zip(free.windows, fined.windows, strict=True):
        for one, other in zip(a, b, strict=True):
            lost = (one.rewards - other.rewards).sum(dim=1)
            torch.testing.assert_close(lost, 2.0 * (~complete[one.places]).float())
    assert fined.metrics["truncated"] > 0 and fined.metrics["score"] < fined.metrics["reward"]


def test_masked_truncated_responses_teach_nothing_but_are_counted(opened: Any) -> None:
    trainer = opened(mask_truncated=True)
    rollout = trainer.rollout()
    complete = torch.tensor([answer.complete for group in rollout.completions for answer in group])
    for micro in (m for window in rollout.windows for m in window):
        assert torch.equal(micro.learn.any(dim=1), complete[micro.places])
        assert not micro.advantages[~micro.learn].any() and not micro.returns[~micro.learn].any()
    assert rollout.metrics["truncated"] == pytest.approx(1 - complete.float().mean().item())


def test_a_response_without_a_score_is_learned_from_nowhere_and_counted(opened: Any) -> None:
    rollout = opened(scorer=EvenIds(bad_at=1)).rollout()
    assert rollout.metrics["abstained"] == 4  # the first of each of four groups
    for micro in (m for window in rollout.windows for m in window):
        assert torch.equal(micro.learn.any(dim=1), micro.places % 2 == 1)
        assert torch.isfinite(micro.returns).all() and not micro.advantages[~micro.learn].any()


def test_a_rollout_without_any_score_changes_nothing(opened: Any) -> None:
    class Silent:
        def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
            return [[math.nan] * len(group.responses) for group in groups]

    trainer = opened(scorer=Silent())
    before = lora(trainer.model, "policy") | lora(trainer.model, "value")
    row = trainer.one_step()
    assert not moved(before, lora(trainer.model, "policy") | lora(trainer.model, "value"))
    assert row["skipped_steps"] == 4 and all(math.isfinite(value) for value in row.values())


def test_explained_variance_is_1_for_perfect_values_and_0_for_constant_ones() -> None:
    learn = torch.ones(2, 3, dtype=torch.bool)
    returns = torch.tensor([[1.0, 2.0, 4.0], [0.0, 5.0, -1.0]])

    def explained(values: torch.Tensor) -> float:
        micro = SimpleNamespace(learn=learn, values=values, returns=returns, rewards=torch.zeros(2, 3))
        measured = ppo_credit.measure_credit([micro], torch.zeros(2), torch.ones(2).bool())  # type: ignore[list-item]
        return measured["explained_variance"]

    assert explained(returns) == 1.0
    assert explained(returns + 7) == pytest.approx(1.0)  # a shift is no variance
    assert explained(torch.full((2, 3), 0.5)) == pytest.approx(0.0)
    assert explained(-returns) < 0


# ---------------------------------------------------------------- the update
def test_the_first_ratio_is_1_the_first_kl_is_0_and_old_values_are_the_first_values(
    settings: Any, opened: Any, reward_model: str, sft: str
) -> None:
    run = train_ppo(
        settings(PPOConfig, max_steps=3, reward_model=reward_model, init_adapter=sft, temperature=0.7),
        answers,
    )
    assert column(run, "first_ratio_error") == [0.0] * 3
    assert column(run, "kl")[0] == 0.0 and min(column(run, "kl")) >= 0 and column(run, "kl")[-1] > 0
    trainer = opened(reward_model=reward_model, init_adapter=sft)
    for micro in (m for window in trainer.rollout().windows for m in window):
        with torch.enable_grad():
            assert torch.equal(trainer.value.token_values(micro.batch), micro.values)


def test_every_log_probability_uses_the_sampling_temperature(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #3029: old, reference and new log-probs at the temperature of sampling."""
    seen: list[float] = []
    honest = ppo.response_logprobs

    def spy(*args: Any, temperature: float = 1.0, **options: Any) -> Any:
        seen.append(temperature)
        return honest(*args, temperature=temperature, **options)

    for module in (ppo, rollouts):
        monkeypatch.setattr(module, "response_logprobs", spy)
    train(settings(PPOConfig, max_steps=1, temperature=0.6, eval_steps=0))
    assert set(seen) == {0.6} and len(seen) >= 6


def test_packed_and_padded_layouts_train_alike(settings: Any) -> None:
    packed, padded = (train(settings(PPOConfig, w, layout=w, max_steps=2)) for w in ("packed", "padded"))
    assert_equal_weights(adapter_weights(packed.final), adapter_weights(padded.final), atol=5e-4)


def test_the_score_rises_and_the_value_learns_to_foretell_it(settings: Any) -> None:
    batch = {"per_device_train_batch_size": 8, "group_size": 4, "minibatch_size": 32}
    config = settings(
        PPOConfig,
        max_steps=30,
        learning_rate=3e-2,
        kl_coef=0.0,
        eval_steps=0,
        missing_eos_penalty=0.0,
        **batch,
    )
    run = train(config)
    scores, losses = column(run, "score"), column(run, "value_loss")
    assert sum(scores[-5:]) / 5 > sum(scores[:5]) / 5 + 0.1
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_a_high_price_of_drift_keeps_the_policy_near_its_reference(settings: Any) -> None:
    batch = {"per_device_train_batch_size": 8, "group_size": 4, "minibatch_size": 32, "eval_steps": 0}
    steps = {"max_steps": 10, "learning_rate": 2e-2, **batch}
    cheap, dear = (train(settings(PPOConfig, f"kl{price}", kl_coef=price, **steps)) for price in (0.0, 5.0))
    assert column(dear, "kl")[-1] < 0.5 * column(cheap, "kl")[-1]


def test_minibatches_of_two_accumulated_twice_equal_one_of_four(settings: Any) -> None:
    steps = {"max_steps": 2, "per_device_train_batch_size": 2, "entropy_coef": 0.01}
    one = settings(PPOConfig, "one", minibatch_size=4, gradient_accumulation_steps=1, **steps)
    two = settings(PPOConfig, "two", minibatch_size=2, gradient_accumulation_steps=2, **steps)
    # Responses that abstain (in the second call: the first scores the evaluation) make the halves unequal.
    one, two = (train(config, scorer=EvenIds(bad_at=2)) for config in (one, two))
    assert_equal_weights(adapter_weights(one.final), adapter_weights(two.final), atol=5e-4)


def test_an_entropy_bonus_keeps_the_entropy_higher(settings: Any) -> None:
    steps = {"max_steps": 8, "learning_rate": 2e-2, "eval_steps": 0}
    plain, spread = (train(settings(PPOConfig, f"e{c}", entropy_coef=c, **steps)) for c in (0.0, 0.5))
    assert column(spread, "entropy")[-1] > column(plain, "entropy")[-1]


def test_passes_end_early_where_the_policy_has_gone_too_far(settings: Any) -> None:
    steps = {"max_steps": 2, "num_epochs": 4, "learning_rate": 5e-2, "eval_steps": 0, "minibatch_size": 8}
    free = train(settings(PPOConfig, "free", **steps))
    held = train(settings(PPOConfig, "held", target_kl=1e-4, **steps))
    assert column(free, "epochs") == [4.0, 4.0]
    assert max(column(held, "epochs")) < 4.0
    assert min(column(held, "epochs")) >= 1.0  # the first pass is on-policy: its KL is 0
    assert max(column(held, "update_kl")) <= 1e-4 < max(column(free, "update_kl"))


def test_the_schedule_ends_where_it_was_planned_to_however_early_passes_end(settings: Any) -> None:
    steps = {"max_steps": 2, "num_epochs": 4, "learning_rate": 5e-2, "eval_steps": 0}
    run = train(settings(PPOConfig, target_kl=1e-4, lr_scheduler_type="linear", **steps))
    assert column(run, "learning_rate")[-1] == 0.0


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.2, 1.02), (0.11, 1.01), (0.1, 1.0), (0.05, 0.98), (-3.0, 0.98)]
)
def test_the_adaptive_price_rises_above_the_target_and_falls_below_it(kl: float, factor: float) -> None:
    assert adapted_coefficient(0.5, kl, 0.1, 100, 1000) == pytest.approx(0.5 * factor)


def test_the_adaptive_price_moves_by_step_and_without_a_target_not(settings: Any) -> None:
    steps = {"max_steps": 3, "kl_coef": 0.1, "kl_horizon": 40, "eval_steps": 0}
    fixed = train(settings(PPOConfig, "fixed", **steps))
    low = train(settings(PPOConfig, "low", adaptive_kl_target=100.0, **steps))
    assert column(fixed, "kl_coef") == [0.1] * 3
    assert column(low, "kl_coef") == pytest.approx([0.1, 0.1 * 0.96, 0.1 * 0.96**2])


def test_a_value_loss_that_is_not_finite_skips_the_step_for_both(opened: Any) -> None:
    bad = replaced(ppo_value_loss=lambda *a: answers.ppo_value_loss(*a) * math.inf)
    trainer = opened()
    trainer.answers = bad
    before = lora(trainer.model, "policy") | lora(trainer.model, "value")
    assert trainer.one_step()["skipped_steps"] == 4
    assert not moved(before, lora(trainer.model, "policy") | lora(trainer.model, "value"))


@pytest.mark.parametrize("role", ["policy", "value"])
def test_gradient_checkpointing_recomputes_with_the_same_adapter(opened: Any, role: str) -> None:
    """In eval mode layers would keep their activations; after the pass another adapter would be active."""
    gradients = {}
    for on in (False, True):
        trainer = opened(f"checkpointed{on}", gradient_checkpointing=on)
        micro, passes = trainer.rollout().windows[0][0], []
        layer = trainer.model.get_base_model().model.layers[0]
        layer.self_attn.register_forward_hook(lambda *_, seen=passes: seen.append(1))
        with recomputing(trainer.model):
            if role == "policy":
                trainer.policy_backward(micro, 1.0, ppo.RatioWatch(trainer.config))
            else:
                trainer.value_backward(micro, 1.0)
        assert len(passes) == (2 if on else 1)
        named = trainer.model.named_parameters()
        gradients[on] = {n: w.grad for n, w in named if f".{role}." in n and w.grad is not None}
    assert gradients[True]
    assert_equal_weights(gradients[False], gradients[True], atol=1e-7)


def test_every_answer_of_ppo_shapes_the_run(opened: Any) -> None:
    called: set[str] = set()

    def watched(name: str) -> Any:
        return lambda *a, **k: called.add(name) or getattr(answers, name)(*a, **k)

    trainer = opened()
    trainer.answers = replaced(**{name: watched(name) for name in ppo.USES})
    trainer.one_step()
    assert called == set(ppo.USES)


def test_each_step_logs_what_one_needs_to_know(settings: Any) -> None:
    run = train(settings(PPOConfig, max_steps=1))
    names = {
        *(
            "loss",
            "policy_loss",
            "value_loss",
            "kl",
            "kl_k1",
            "kl_sequence",
            "entropy",
            "reward",
            "reward_std",
        ),
        *("score", "kl_penalty", "clip_fraction", "value_clip_fraction", "ratio_min", "ratio_max"),
        *("explained_variance", "tokens", "truncated", "grad_norm", "value_grad_norm", "kl_coef"),
        *("skipped_steps", "epochs", "abstained", "update_kl", "learning_rate"),
    }
    assert names <= {name for name, value in rows_of(run)[0].items() if value != ""}


# ---------------------------------------------------------------- settings and resumption
@pytest.mark.parametrize(
    "changes",
    [
        {"gamma": 1.5},
        {"lam": -0.1},
        {"value_clip_eps": 0.0},
        {"value_learning_rate": 0.0},
        {"entropy_coef": -1.0},
        {"missing_eos_penalty": -1.0},
        {"target_kl": 0.0},
        {"adaptive_kl_target": -0.1},
        {"kl_horizon": 0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_numbers_out_of_range_name_their_flag(changes: dict[str, Any], settings: Any) -> None:
    with pytest.raises(CourseError, match=f"--{next(iter(changes))} "):
        train(settings(PPOConfig, **changes))


def test_the_projects_settings_are_the_defaults(settings: Any) -> None:
    from helpers.models.profiles import PROFILES
    from helpers.training.configs import resolve

    c = resolve(PPOConfig(profile="colab"), PROFILES["colab"].defaults("ppo"))
    assert (c.gamma, c.lam, c.clip_eps, c.value_clip_eps, c.kl_coef) == (1.0, 0.95, 0.2, 0.2, 0.01)
    assert (c.max_steps, c.per_device_train_batch_size, c.num_epochs, c.learning_rate) == (25, 16, 2, 1e-5)


def test_a_group_of_one_is_enough_for_ppo(settings: Any) -> None:
    run = train(settings(PPOConfig, max_steps=1, group_size=1, minibatch_size=2))
    assert run.metrics["steps"] == 1


def test_an_interrupted_run_resumes_bit_for_bit(settings: Any, reward_model: str, sft: str) -> None:
    changes = {
        "max_steps": 7,
        "reward_model": reward_model,
        "init_adapter": sft,
        "adaptive_kl_target": 0.01,
        "kl_horizon": 50,
        "target_kl": 0.05,
    }
    whole = train_ppo(settings(PPOConfig, "whole", **changes), answers)
    train_ppo(settings(PPOConfig, "parts", **changes), answers, stop_at_step=5)  # last checkpoint: step 3
    parts = train_ppo(settings(PPOConfig, "parts", **changes, resume=True), answers)
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))
    assert metric_rows(whole.run_dir) == metric_rows(parts.run_dir)
    assert (whole.run_dir / "samples.jsonl").read_text() == (parts.run_dir / "samples.jsonl").read_text()
    last = [Path(run.run_dir) / "checkpoints" / "step_000006" / "value" for run in (whole, parts)]
    assert_equal_weights(*(adapter_weights(place) for place in last))


def test_a_checkpoint_that_lost_its_value_is_passed_over(settings: Any) -> None:
    run = train(settings(PPOConfig, max_steps=6), stop_at_step=6)
    (run.run_dir / "checkpoints" / "step_000006" / "value" / "head.safetensors").unlink()
    from helpers.training.run_dir import RunDir

    with pytest.warns(UserWarning, match="passed over"):
        found = RunDir(run.run_dir).latest_checkpoint()
    assert found is not None and found[0] == 3


def test_a_fresh_value_is_the_same_for_the_same_seed(opened: Any) -> None:
    one, same, other = opened("a", seed=1).value, opened("b", seed=1).value, opened("c", seed=2).value
    assert torch.equal(one.head.weight, same.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert ppo_value.ADAPTER == one.adapter == "value"
