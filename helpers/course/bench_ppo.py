"""Peak memory of PPO with its four roles on one base, against four separate models.

Both train SmolLM2-135M on a CPU with the same settings, prompts, adapters and seeds for a few steps; only
where the roles live differs. Each runs in a process of its own, as a process's high-water mark never falls:

    python -m helpers.course.bench_ppo one --place DIR --dataset_name DIR --answers MODULE_OR_FILE
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.course.bench_dpo import DATA_SET, find_real_data, run_apart
from helpers.errors import CourseError
from helpers.models.bench_fused import peak_resident_bytes
from helpers.models.smol import HUB_ID

ROLES = 4
# Three bases are saved; how large a share that is depends on the activations: 0.8 at these sizes in float32.
BOUNDS = {"memory_ratio": 0.85}


@dataclass(frozen=True)
class Setup:
    """What both ways are given. `dataset_name` is a directory with prompts in test_gen."""

    dataset_name: str
    answers: str
    place: str  # where both start from, and their runs
    steps: int = 2
    prompts: int = 4
    group_size: int = 2
    max_prompt_tokens: int = 256
    max_new_tokens: int = 64
    model_name: str = HUB_ID
    quantization: str = "none"

    def flags(self) -> list[str]:
        """The same as command-line flags."""
        return [word for name, value in vars(self).items() for word in (f"--{name}", str(value))]


def bench_ppo(answers: str, *, real_data: str | Path | None = None, **sizes: Any) -> dict[str, Any]:
    """Train both ways, one after the other, and compare their peaks.

    Args:
        answers: where the course's functions come from, as for `--answers`.
        sizes: fields of `Setup`.

    Returns `one` and `four`, each with `peak_gib` (resident memory of the whole process), `bases` (models in
    memory) and `score` of the last step, which must agree; `memory_ratio`; `bounds`; `passed`.

    Raises CourseError if the real data are missing, or a run fails, with its last words.
    """
    data = str(Path(real_data or find_real_data()) / DATA_SET)
    with tempfile.TemporaryDirectory() as place:
        setup = Setup(**{"dataset_name": data, "answers": answers, "place": place, **sizes})
        ways = ("prepare", "one", "four")
        printed = [run_apart("helpers.course.bench_ppo", "PPO", [way, *setup.flags()]) for way in ways]
    one, four = (json.loads(text.splitlines()[-1]) for text in printed[1:])
    return {"benchmark": "ppo", "one": one, "four": four, **compare(one, four)}


def compare(one: dict[str, float], four: dict[str, float]) -> dict[str, Any]:
    """The ratio of the peaks. CourseError if the two did not do the same."""
    if (one["bases"], four["bases"]) != (1, ROLES) or abs(one["score"] - four["score"]) > 1e-3:
        raise CourseError(f"the PPO benchmark's runs did not train alike: {one} and {four}")
    ratio = one["peak_gib"] / four["peak_gib"]
    return {
        "memory_ratio": round(ratio, 3),
        "bounds": BOUNDS,
        "passed": ratio <= BOUNDS["memory_ratio"],
    }


# ---------------------------------------------------------------------- in the process of its own
def prepare(setup: Setup) -> None:
    """Write an SFT adapter and a reward model, fresh ones: their sizes are what matters here."""
    from helpers.models.adapters import LoraSettings, add_adapter, save_adapter
    from helpers.models.loading import load_base
    from helpers.models.reward_model import RewardModel

    base = load_base(setup.model_name, quantization=setup.quantization)
    model = add_adapter(base, "sft", LoraSettings(dropout=0.0), seed=1)
    save_adapter(model, "sft", Path(setup.place) / "sft")
    add_adapter(model, "reward", LoraSettings(dropout=0.0), seed=2)
    RewardModel.create(model, "reward", lambda mask: mask.sum(dim=1) - 1).save(Path(setup.place) / "reward")


def config_of(setup: Setup, way: str) -> Any:
    """Settings of both ways."""
    from helpers.training.ppo_config import PPOConfig

    return PPOConfig(
        output_dir=f"{setup.place}/{way}",
        profile="smol",
        model_name=setup.model_name,
        dataset_name=setup.dataset_name,
        train_split="test_gen",
        quantization=setup.quantization,
        init_adapter=f"{setup.place}/sft",
        reward_model=f"{setup.place}/reward",
        max_steps=setup.steps,
        per_device_train_batch_size=setup.prompts,
        group_size=setup.group_size,
        minibatch_size=setup.prompts * setup.group_size,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        num_epochs=1,
        max_prompt_tokens=setup.max_prompt_tokens,
        max_new_tokens=setup.max_new_tokens,
        min_new_tokens=1,
        eval_steps=0,
        eval_samples=0,
        save_steps=0,
    )


def train(way: str, setup: Setup) -> dict[str, float]:
    """Train with the roles on one base, or on four."""
    from helpers.course.answers import load_answers
    from helpers.models.loading import count_bases
    from helpers.models.reward_model import RewardModel
    from helpers.training.online import start_online
    from helpers.training.ppo import USES, PPOTrainer
    from helpers.training.ppo_value import add_value
    from helpers.training.setup import Policy, load_base

    config, answers, made = config_of(setup, way), load_answers(setup.answers), []

    def make(space: Any, fenced: Any, policy: Policy, *others: Any) -> PPOTrainer:
        home = policy if way == "one" else Policy(load_base(space))
        made.append(PPOTrainer(space, fenced, policy, *others, value=add_value(space, home, fenced)))
        if way == "four":
            refer_apart(made[0], load_base(space))
        return made[0]

    scorer = None
    if way == "four":
        scorer = RewardModel.load(config.reward_model, None, answers.last_token_index)
    result = start_online(config, answers, USES, make, scorer=scorer, stop_at_step=None)
    trainer = made[0]
    models = [
        trainer.model,
        trainer.scorer,
        trainer.value,
        getattr(trainer, "reference_model", trainer.model),
    ]
    return {
        "peak_gib": round(peak_resident_bytes() / 2**30, 3),
        "bases": count_bases(models),
        "score": last_score(result.run_dir),
    }


def refer_apart(trainer: Any, base: Any) -> None:
    """Let a model of its own give the reference log-probs."""
    from helpers.models.adapters import load_adapter
    from helpers.models.policy import response_logprobs

    config, give_credit = trainer.config, trainer.credit_window
    trainer.reference_model = load_adapter(base, config.init_adapter, "reference")

    def credit_window(window: Any, *others: Any) -> Any:
        for micro in window:
            scores = response_logprobs(trainer.reference_model, micro.batch, temperature=config.temperature)
            micro.ref_logprobs = scores.logprobs.detach()
        return give_credit(window, *others)

    trainer.credit_window = credit_window


def last_score(run: Path) -> float:
    """The score of the last step."""
    from helpers.training.run_rows import read_metric_rows

    return [float(row["score"]) for row in read_metric_rows(run / "metrics.csv")[1] if row.get("score")][-1]


def main() -> None:
    """One way, in this process; the last line of standard output is what it measured, as JSON."""
    parser = argparse.ArgumentParser(description="One way of the PPO benchmark.")
    parser.add_argument("way", choices=("prepare", "one", "four"))
    for field in dataclasses.fields(Setup):
        known = {} if field.default is dataclasses.MISSING else {"default": field.default}
        number = isinstance(field.default, int)
        parser.add_argument(f"--{field.name}", type=int if number else str, required=not known, **known)
    given = vars(parser.parse_args())
    way, setup = given.pop("way"), Setup(**given)
    if way == "prepare":
        prepare(setup)
        return
    print(json.dumps(train(way, setup)))


if __name__ == "__main__":
    main()
