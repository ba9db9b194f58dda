"""DPO on real preference pairs: this course's trainer against TRL's, in time and peak memory.

Both train SmolLM2-135M in float32 on a CPU with the same settings on the same token ids: LoRA on all linear
layers, batch 4, reference log-probs computed before training, no gradient checkpointing, no dropout in either
(TRL switches it off too). TRL is handed the course's token ids, so that neither reads a longer text. Each
runs in a process of its own, as a process's high-water mark never falls:

    python -m helpers.course.bench_dpo ours --answers MODULE_OR_FILE [--n_pairs 16]
    python -m helpers.course.bench_dpo trl --answers MODULE_OR_FILE [--n_pairs 16]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.models.bench_fused import peak_resident_bytes
from helpers.models.smol import HUB_ID

ROOT = Path(__file__).resolve().parents[2]
DATA_SET, SPLIT = "wildchat_min4_judged_5k_v1", "test_prefs"
BOUNDS = {"speedup": 2.0, "memory_ratio": 0.3}  # what the project promises at the default sizes


@dataclass(frozen=True)
class Setup:
    """What both ways are given. `real_data` is the folder of the real files; see `find_real_data`."""

    real_data: str
    answers: str
    n_pairs: int = 16
    max_prompt_tokens: int = 512
    max_response_tokens: int = 384  # at the course's 700 + 512, TRL's run takes more than 24 GB
    batch_size: int = 4
    model_name: str = HUB_ID
    threads: int = 0  # 0: torch's own choice

    def flags(self) -> list[str]:
        """The same as command-line flags."""
        return [word for name, value in vars(self).items() for word in (f"--{name}", str(value))]


def find_real_data() -> Path:
    """$COURSE_REAL_DATA, or shared/real_data beside the checkout; CourseError if there is none."""
    path = Path(os.environ.get("COURSE_REAL_DATA") or ROOT.parent / "shared" / "real_data")
    if not (path / DATA_SET).is_dir():
        raise CourseError(
            f"the DPO benchmark reads real pairs from {path / DATA_SET}, which does not exist:"
            " set COURSE_REAL_DATA to the folder that holds it"
        )
    return path


def bench_dpo(
    answers: str,
    *,
    n_pairs: int = 16,
    real_data: str | Path | None = None,
    max_prompt_tokens: int = Setup.max_prompt_tokens,
    max_response_tokens: int = Setup.max_response_tokens,
    threads: int = 0,
) -> dict[str, Any]:
    """Train both ways, one after the other, and compare.

    Args:
        answers: where the course's losses come from, as for `--answers`.
        n_pairs: how many of the real test preferences to take, by a seeded draw.

    Returns keys `ours` and `trl`, each with `train_seconds` (steps only), `reference_seconds`,
    `peak_gib` (resident memory of the whole process), `first_loss`, `last_loss`, `pairs` and `tokens`;
    `speedup` of training, `speedup_with_reference`, `memory_ratio` (ours to TRL's); `bounds`; `passed`.

    Raises CourseError if TRL or the real data are missing, or a run fails, with its last words.
    """
    if importlib.util.find_spec("trl") is None:
        raise CourseError(
            "the DPO benchmark compares with trl, which is not installed: pip install -e .[dev]"
        )
    place = str(real_data or find_real_data())
    setup = Setup(place, answers, n_pairs, max_prompt_tokens, max_response_tokens, threads=threads)
    ours, trl = (measured_apart(way, setup) for way in ("ours", "trl"))
    return {"benchmark": "dpo", "ours": ours, "trl": trl, **compare(ours, trl)}


def compare(ours: dict[str, float], trl: dict[str, float]) -> dict[str, Any]:
    """Ratios of two measurements, and whether they keep the bounds. CourseError if their data differ."""
    if (ours["pairs"], ours["tokens"]) != (trl["pairs"], trl["tokens"]):
        raise CourseError(f"the DPO benchmark's runs read different data: {ours} and {trl}")
    both = ("train_seconds", "reference_seconds")
    speedup = trl["train_seconds"] / ours["train_seconds"]
    memory = ours["peak_gib"] / trl["peak_gib"]
    return {
        "speedup": round(speedup, 2),
        "speedup_with_reference": round(sum(trl[k] for k in both) / sum(ours[k] for k in both), 2),
        "memory_ratio": round(memory, 3),
        "bounds": BOUNDS,
        "passed": speedup >= BOUNDS["speedup"] and memory <= BOUNDS["memory_ratio"],
    }


def run_apart(module: str, name: str, words: list[str], variables: Mapping[str, str] | None = None) -> str:
    """Run one way of a benchmark in a fresh process without a GPU; return what it printed.

    Args:
        module: run by `python -m`.
        name: of the benchmark, for messages.
        words: its arguments, the way first.
        variables: of its environment, besides.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled", **(variables or {})}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode == -signal.SIGKILL:
        raise CourseError(f"the {name} benchmark's run of {words[0]} was killed, most likely for memory")
    if done.returncode != 0:
        raise CourseError(f"the {name} benchmark's run of {words[0]} failed: {done.stderr[-800:]}")
    return done.stdout


def measured_apart(way: str, setup: Setup) -> dict[str, float]:
    """What one way of this benchmark measured in a process of its own."""
    printed = run_apart("helpers.course.bench_dpo", "DPO", [way, *setup.flags()])
    return json.loads(printed.splitlines()[-1])


# ---------------------------------------------------------------------- in the process of its own
def open_run(setup: Setup, place: str) -> tuple[Any, list[Any]]:
    """A workspace with the benchmark's settings, and the encoded pairs."""
    from helpers.training.configs import PreferenceConfig
    from helpers.training.setup import load_groups, open_workspace

    config = PreferenceConfig(
        output_dir=f"{place}/run",
        profile="smol",
        model_name=setup.model_name,
        dataset_name=str(Path(setup.real_data) / DATA_SET),
        train_split=SPLIT,
        train_limit=setup.n_pairs,
        quantization="none",
        layout="packed",
        max_prompt_tokens=setup.max_prompt_tokens,
        max_response_tokens=setup.max_response_tokens,
        lora_r=32,
        lora_alpha=64,
        lora_dropout=0.05,
        num_train_epochs=1.0,
        per_device_train_batch_size=setup.batch_size,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        logging_steps=1,
        eval_steps=0,
        save_steps=0,
        beta=0.1,
    )
    space = open_workspace(config, "dpo")
    groups = load_groups(space, "preference")[1]
    return space, groups


def train_ours(setup: Setup, place: str) -> dict[str, float]:
    """The steps of `train_preference`, with a clock around the reference."""
    from helpers.course.answers import load_answers
    from helpers.training.fit import fit
    from helpers.training.preference import PreferenceObjective, with_reference
    from helpers.training.samples import SampleLogger
    from helpers.training.setup import add_policy, disable_dropout

    space, groups = open_run(setup, place)
    policy = add_policy(space, dropout=0.0)
    disable_dropout(policy.model)
    started = time.perf_counter()
    items = with_reference(space, policy, groups)
    reference_seconds = time.perf_counter() - started
    answers = load_answers(setup.answers)
    objective = PreferenceObjective(space, answers, answers.dpo_loss, [], SampleLogger(space, []))
    result = fit(space, policy.model, items, objective, save=lambda path: None, load=lambda path: None)
    losses = [float(row["loss"]) for row in space.run.read_metrics()[1] if row.get("loss")]
    return figures(groups, result.metrics["seconds"], reference_seconds, losses)


def train_trl(setup: Setup, place: str) -> dict[str, float]:
    """TRL's DPOTrainer with the same settings, its reference pass timed where it happens."""
    from datasets import Dataset

    from helpers.training.setup import load_base

    space, groups = open_run(setup, place)
    rows = [
        {"prompt_ids": g.prompt_ids, "chosen_ids": g.responses[0], "rejected_ids": g.responses[1]}
        for g in groups
    ]
    trainer, reference_seconds = make_trl_trainer(space, load_base(space), Dataset.from_list(rows), place)
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return figures(groups, seconds, reference_seconds, losses)


def make_trl_trainer(space: Any, model: Any, pairs: Any, place: str) -> tuple[Any, float]:
    """A DPOTrainer on pairs that are token ids already, and the seconds of its reference pass."""
    from peft import LoraConfig
    from trl import DPOTrainer

    seconds = 0.0

    class TokenDPOTrainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _precompute_ref_logps(self, *arguments: Any) -> Any:
            nonlocal seconds
            started = time.perf_counter()
            result = super()._precompute_ref_logps(*arguments)
            seconds += time.perf_counter() - started
            return result

    config = space.config
    trainer = TokenDPOTrainer(
        model=model,
        args=trl_arguments(config, place),
        train_dataset=pairs,
        processing_class=space.encoder.tokenizer,
        peft_config=LoraConfig(
            r=config.lora_r,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    return trainer, seconds


def trl_arguments(config: Any, place: str) -> Any:
    """The run's settings under TRL's names; where TRL's defaults differ (bf16, checkpointing), ours hold."""
    from trl import DPOConfig

    return DPOConfig(
        output_dir=f"{place}/trl",
        max_length=config.max_prompt_tokens + config.max_response_tokens,
        precompute_ref_log_probs=True,
        beta=config.beta,
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        num_train_epochs=config.num_train_epochs,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_ratio,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=False,
        bf16=False,
        fp16=False,
        use_cpu=True,
        seed=config.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def figures(
    groups: list[Any], seconds: float, reference_seconds: float, losses: list[float]
) -> dict[str, float]:
    """One measurement. Peak memory is that of the whole process, imports and model included."""
    return {
        "pairs": len(groups),
        "tokens": sum(len(g.prompt_ids) + sum(map(len, g.responses)) for g in groups),
        "train_seconds": round(seconds, 2),
        "reference_seconds": round(reference_seconds, 2),
        "peak_gib": round(peak_resident_bytes() / 2**30, 3),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def main() -> None:
    """One way, in this process; the last line of standard output is what it measured, as JSON."""
    parser = argparse.ArgumentParser(description="One way of the DPO benchmark.")
    parser.add_argument("way", choices=("ours", "trl"))
    parser.add_argument("--answers", required=True)
    parser.add_argument("--real_data", default=None)
    for name in ("n_pairs", "max_prompt_tokens", "max_response_tokens", "batch_size", "threads"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Setup, name))
    parser.add_argument("--model_name", default=Setup.model_name)
    given = vars(parser.parse_args())
    way = given.pop("way")
    setup = Setup(**{**given, "real_data": given["real_data"] or str(find_real_data())})
    if setup.threads:
        import torch

        torch.set_num_threads(setup.threads)
    with tempfile.TemporaryDirectory() as place:
        measured = train_ours(setup, place) if way == "ours" else train_trl(setup, place)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
