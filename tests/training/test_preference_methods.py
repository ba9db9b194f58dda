"""IPO and AOT, weights and smoothed labels: the learner's function, however the batch is cut."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.text.datasets import Example
from helpers.text.groups import Group
from helpers.training.configs import PreferenceConfig
from helpers.training.pairs import pair_weights, preference_loss, whole_batch
from helpers.training.preference import LOSSES, train_preference
from helpers.training.trainer import TrainingItem
from tests.answers.numerics import near, random
from tests.support import adapter_weights, assert_equal_weights, metric_rows

FORMS = {
    "ipo": {"algo": "ipo"},
    "ipo_average": {"algo": "ipo", "length_average": True},
    "aot": {"algo": "aot"},
    "aot_paired": {"algo": "aot", "aot_paired": True},
    "weights": {"algo": "dpo", "pair_weights": "avg_preference_strength"},
    "smoothing": {"algo": "dpo", "label_smoothing": 0.2},
}
EVERY = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def losses(run: Any) -> list[float]:
    """The loss of every training step."""
    return [float(row["loss"]) for row in metric_rows(run.run_dir) if row.get("loss")]


@EVERY
def test_four_micro_batches_of_one_equal_one_of_four(form: dict[str, Any], settings: Any) -> None:
    """TRL with a batch of one turns AOT into DPO without a word."""
    common = {**form, "beta": 0.5, "max_steps": 4, "eval_steps": 0}
    one = train_preference(settings(PreferenceConfig, "one", **common), answers)
    cut = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    four = train_preference(settings(PreferenceConfig, "four", **common, **cut), answers)
    assert losses(four) == pytest.approx(losses(one), rel=1e-5, abs=1e-5)
    assert_equal_weights(adapter_weights(one.final), adapter_weights(four.final), atol=2e-4)


def test_a_batch_cut_into_single_pairs_is_still_no_dpo(settings: Any) -> None:
    cut = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 6, "beta": 0.5}
    runs = [
        train_preference(settings(PreferenceConfig, algo, algo=algo, eval_steps=0, **cut), answers)
        for algo in ("dpo", "aot")
    ]
    assert abs(losses(runs[0])[-1] - losses(runs[1])[-1]) > 1e-3


@pytest.mark.parametrize("name", ["ipo", "aot"])
def test_a_partial_last_batch_weighs_what_it_holds(name: str, settings: Any) -> None:
    common = {"algo": name, "train_limit": 10, "max_steps": -1, "num_train_epochs": 1.0, "eval_steps": 0}
    one = train_preference(settings(PreferenceConfig, "one", **common), answers)
    cut = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    many = train_preference(settings(PreferenceConfig, "cut", **common, **cut), answers)
    assert one.metrics["steps"] == many.metrics["steps"] == 3
    assert_equal_weights(adapter_weights(one.final), adapter_weights(many.final), atol=2e-4)


@pytest.mark.parametrize("name", ["ipo", "aot"])
def test_an_interrupted_run_resumes_bit_for_bit(name: str, settings: Any) -> None:
    common = {"algo": name, "max_steps": 9, "train_limit": 20, "per_device_train_batch_size": 2}
    common["gradient_accumulation_steps"] = 2
    whole = train_preference(settings(PreferenceConfig, "whole", **common), answers)
    train_preference(settings(PreferenceConfig, "parts", **common), answers, stop_at_step=7)
    parts = train_preference(settings(PreferenceConfig, "parts", resume=True, **common), answers)
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))
    assert metric_rows(whole.run_dir) == metric_rows(parts.run_dir)


@pytest.mark.parametrize(
    ("form", "start"),
    [("ipo", 25.0), ("ipo_average", 25.0), ("aot", math.log(2)), ("aot_paired", math.log(2))],
)
def test_the_first_loss_is_that_of_a_policy_that_is_its_reference(
    form: str, start: float, settings: Any
) -> None:
    run = train_preference(
        settings(PreferenceConfig, **FORMS[form], beta=0.1, max_steps=1, eval_steps=1), answers
    )
    assert losses(run)[0] == pytest.approx(start, abs=1e-4)


@pytest.mark.parametrize("name", ["ipo", "aot"])
def test_the_method_learns_the_pairs(name: str, settings: Any) -> None:
    changes = {"algo": name, "max_steps": 40, "eval_steps": 0, "learning_rate": 2e-2}
    run = train_preference(settings(PreferenceConfig, **changes), answers)
    rows = [row for row in metric_rows(run.run_dir) if row["loss"]]
    assert float(rows[-1]["loss"]) < 0.6 * float(rows[0]["loss"])
    assert float(rows[-1]["accuracy"]) > 0.7


def test_the_learners_own_function_is_the_one_that_trains(settings: Any) -> None:
    calls: list[tuple[int, ...]] = []

    def spy(*given: Any) -> torch.Tensor:
        calls.append(tuple(given[0].shape))
        return answers.aot_loss(*given)

    namespace = SimpleNamespace(
        **{name: getattr(answers, name) for name in answers.__all__} | {"aot_loss": spy}
    )
    cut = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "eval_steps": 0}
    train_preference(settings(PreferenceConfig, algo="aot", max_steps=2, **cut), namespace)
    assert calls == [(4,), (4,), (4,)]  # once a step on the whole batch, then on all four held-out pairs


# ---------------------------------------------------------------- the parts
def items_of(count: int, weights: list[float] | None = None) -> list[TrainingItem]:
    """Pairs with responses of 1 and 2 tokens."""
    given: list[float | None] = list(weights) if weights else [None] * count
    return [TrainingItem(Group([1], [[2], [3, 4]]), (0.0, 0.0), weight=weight) for weight in given]


def pairs(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 2) log-probs of policy and reference."""
    return random(count, 2, scale=3.0), random(count, 2, seed=1, scale=3.0)


def test_the_parts_of_a_coupled_batch_add_up_to_its_gradient() -> None:
    policy, reference = pairs()
    items = items_of(6)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return answers.aot_loss(x[:, 0], x[:, 1], reference[:, 0], reference[:, 1], 0.3)

    leaf = policy.clone().requires_grad_()
    (right,) = torch.autograd.grad(loss(leaf), leaf)
    whole = whole_batch(policy, loss, items)
    leaf = policy.clone().requires_grad_()
    total = torch.zeros(())
    for rows in ([4], [0, 2, 5], [1, 3]):
        part = whole.part(leaf[rows], [items[i] for i in rows]) * (len(rows) / 6)
        part.backward()
        total = total + part.detach()
    near(leaf.grad, right, 1e-6)
    near(total, loss(policy), 1e-6)


def test_weights_multiply_each_pairs_own_loss() -> None:
    policy, reference = pairs()
    weights = [0.0, 0.5, 1.0, 1.5, 2.0, 1.0]
    config = PreferenceConfig(beta=0.3)
    ours = preference_loss(answers.dpo_loss, policy, reference, config, items_of(6, weights))
    each = [
        answers.dpo_loss(*(p[i : i + 1] for p in (*policy.T, *reference.T)), 0.3).item() for i in range(6)
    ]
    near(ours, sum(w * loss for w, loss in zip(weights, each, strict=True)) / 6)
    equal = preference_loss(answers.dpo_loss, policy, reference, config, items_of(6, [1.0] * 6))
    near(equal, answers.dpo_loss(*policy.T, *reference.T, 0.3))


def test_smoothed_labels_are_a_mixture_of_both_directions() -> None:
    policy, reference = pairs()
    config = PreferenceConfig(beta=0.3, label_smoothing=0.25)
    ours = preference_loss(answers.dpo_loss, policy, reference, config, items_of(6))
    gaps = 0.3 * ((policy - reference)[:, 0] - (policy - reference)[:, 1])
    right = -0.75 * torch.nn.functional.logsigmoid(gaps) - 0.25 * torch.nn.functional.logsigmoid(-gaps)
    near(ours, right.mean())


def test_length_averages_are_over_response_tokens_only(settings: Any) -> None:
    """TRL #1581: the prompt's length has no business in it. One step, seen through the learner's function."""
    seen: dict[str, list[torch.Tensor]] = {"sums": [], "means": []}

    def run(name: str, **changes: Any) -> None:
        def spy(*given: Any) -> torch.Tensor:
            seen[name].append(torch.stack([given[2], given[3]], dim=1))
            return answers.ipo_loss(*given)

        namespace = SimpleNamespace(**{n: getattr(answers, n) for n in answers.__all__} | {"ipo_loss": spy})
        train_preference(
            settings(PreferenceConfig, name, algo="ipo", max_steps=1, eval_steps=0, eval_limit=8, **changes),
            namespace,
        )

    run("sums")
    run("means", length_average=True)
    text = (Path(settings(PreferenceConfig).dataset_name) / "dev_prefs.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    # A token a byte, and the end of turn.
    sizes = torch.tensor([[len(row[f"{side}_text"]) + 1 for side in ("chosen", "rejected")] for row in rows])
    near(seen["means"][-1], seen["sums"][-1] / sizes)


def example(row_id: str, **fields: Any) -> Example:
    return Example(row_id, ({"role": "user", "content": "hi"},), ("yes", "no"), fields)


def test_weights_are_scaled_to_mean_one() -> None:
    rows = [example(str(i), trust=value) for i, value in enumerate((0.2, 0.6, 0.4))]
    assert pair_weights(rows, "trust") == pytest.approx([0.5, 1.5, 1.0])
    assert pair_weights(rows, None) == [None] * 3


@pytest.mark.parametrize("value", [None, "high", -1.0, math.nan, True])
def test_a_weight_that_is_none_names_its_row(value: Any) -> None:
    rows = [example("first", trust=1.0), example("second", trust=value, other=2.0)]
    with pytest.raises(CourseError, match=r"--pair_weights trust: row second .*other"):
        pair_weights(rows, "trust")


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(CourseError, match="nothing to learn"):
        pair_weights([example("a", trust=0), example("b", trust=0)], "trust")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"algo": "aot", "pair_weights": "avg_preference_strength"}, "--pair_weights"),
        ({"algo": "ipo", "label_smoothing": 0.1}, "--label_smoothing"),
        ({"algo": "dpo", "label_smoothing": 0.5}, "--label_smoothing"),
        ({"algo": "dpo", "length_average": True}, "--length_average"),
        ({"algo": "ipo", "aot_paired": True}, "--aot_paired"),
        ({"algo": "dpo", "pair_weights": "no_such_field"}, "--pair_weights no_such_field"),
        ({"algo": "kto"}, "--algo"),
    ],
)
def test_an_option_that_does_not_fit_names_its_flag(
    changes: dict[str, Any], flag: str, settings: Any
) -> None:
    with pytest.raises(CourseError, match=flag):
        train_preference(settings(PreferenceConfig, **changes), answers)


def test_every_preference_method_has_an_answer() -> None:
    assert set(LOSSES.values()) <= set(answers.__all__)
