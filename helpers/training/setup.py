"""What every run does before its first step: settings, run directory, tokenizer, data, model."""

from __future__ import annotations

import dataclasses
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.files import find_data, write_json, write_text
from helpers.models import loading, processes, unsloth_backend
from helpers.models.hardware import Hardware, probe
from helpers.models.policy import layout_for
from helpers.models.profiles import Profile, pick_profile
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, encode_groups, load_examples
from helpers.text.groups import Group
from helpers.training.configs import Config, RunSettings, resolve
from helpers.training.inputs import inputs_of
from helpers.training.run_dir import ENVIRONMENT, RunDir
from helpers.training.shared_run import open_run

SPLITS = {
    "sft": (
        ("sft_train", "train_sft", "train", "train_prefs"),
        ("sft_val", "val", "dev_prefs", "test_prefs"),
    ),
    "preference": (("train_prefs", "train"), ("dev_prefs", "test_prefs", "test")),
    "prompts": (("train_gen", "train_prefs", "train"), ("dev_gen", "test_gen", "dev_prefs", "test_prefs")),
}


@dataclass
class Workspace:
    """A run that is ready to load its model: settings, place, tokenizer and machine."""

    config: Any
    profile: Profile
    hardware: Hardware
    run: RunDir
    encoder: ChatEncoder
    reports: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """Token limits of prompts and responses."""
        c = self.config
        return Budget(c.max_prompt_tokens, c.max_response_tokens, c.max_new_tokens)

    @property
    def pad_id(self) -> int:
        """The tokenizer's padding id."""
        return self.encoder.pad_id


@dataclass(frozen=True)
class RunResult:
    """Where a run lies and what it ended with."""

    run_dir: Path
    final: Path
    metrics: dict[str, Any]


def open_workspace(config: Config, algo: str, learned_from: dict[str, str] | None = None) -> Workspace:
    """Resolve the settings by profile, open the run directory and load the tokenizer.

    learned_from: fingerprints of the answers that shape the weights; a run is not taken for another's that
    was trained by other functions.
    """
    hardware = probe()
    profile = pick_profile(config.profile, hardware)
    config = resolve(config, profile.defaults(algo))
    place = config.output_dir or f"runs/{profile.name}_{algo}_seed{config.seed}"
    config = dataclasses.replace(config, output_dir=place, profile=profile.name)
    functions = {f"answers.{name}": mark for name, mark in (learned_from or {}).items()}
    settings = {"algo": algo, **dataclasses.asdict(config), **functions, **inputs_of(config)}
    run = open_run(place, settings, resume=config.resume, overwrite=config.overwrite)
    if processes.is_main() and not run.is_finished:
        known = {"hardware": str(hardware), "profile": profile.reason, **environment()}
        write_json(run.path / ENVIRONMENT, known)
    if config.seed is not None:
        torch.manual_seed(config.seed)
    encoder = ChatEncoder(loading.load_tokenizer(config.model_name))
    return Workspace(config, profile, hardware, run, encoder)


def finished_result(run: RunDir) -> RunResult | None:
    """The result of a run that has already come to its end and still holds it, or None."""
    metrics = run.finished_metrics()
    if metrics is None or not (run.final_path.is_dir() and any(run.final_path.iterdir())):
        return None
    run.close()
    if processes.is_main():
        print(f"{run.path} is finished already; --overwrite trains it again", file=sys.stderr)
    return RunResult(run.path, run.final_path, metrics)


def environment() -> dict[str, str]:
    """Versions that a result depends on."""
    import peft
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }


# ---------------------------------------------------------------------- data
def pick_split(
    source: str, kind: str, wanted: str | None, *, evaluation: bool, not_this: str | None = None
) -> str | None:
    """Name the split to read: the one asked for, else the first usual one that the directory holds.

    `not_this` is never picked unasked: a run is not evaluated on what it trains on.
    """
    if wanted or not Path(source).is_dir():
        return wanted
    names = SPLITS[kind][1 if evaluation else 0]
    for name in names:
        if name != not_this and any(Path(source).glob(f"{name}.json*")):
            return name
    if evaluation:
        return None
    raise CourseError(f"{source} holds none of {', '.join(names)} (.jsonl): name one with --train_split")


def held_out(examples: list[Example], config: RunSettings, evaluation: bool) -> list[Example]:
    """Cut `eval_holdout` rows off the training split, by seed; return those, or the others."""
    if config.eval_holdout >= len(examples):
        raise CourseError(
            f"--eval_holdout {config.eval_holdout} leaves nothing of {len(examples)} rows to train on"
        )
    order = shuffled_rows(len(examples), config.seed)
    cut = len(examples) - config.eval_holdout
    picked = sorted(order[cut:] if evaluation else order[:cut])
    return [examples[index] for index in picked]


def shuffled_rows(count: int, seed: int) -> list[int]:
    """A permutation by seed."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def load_groups(
    space: Workspace, kind: str, *, evaluation: bool = False
) -> tuple[list[Example], list[Group]]:
    """Read and encode one split; its report lands in `space.reports` and in the run directory.

    The two lists are aligned. An evaluation split that does not exist gives two empty lists.
    """
    config = space.config
    source = find_data(config.dataset_name)
    train_split = pick_split(source, kind, config.train_split, evaluation=False)
    eval_split = pick_split(source, kind, config.eval_split, evaluation=True, not_this=train_split)
    split = eval_split if evaluation else train_split
    if evaluation and split is None and not config.eval_holdout:
        return [], []
    limit = config.eval_limit if evaluation else config.train_limit
    if config.eval_holdout and not config.eval_split:
        loaded = load_examples(source, split=train_split, kind=kind)
        loaded.examples[:] = held_out(loaded.examples, config, evaluation)[:limit]
        loaded.report.notes.append(
            f"{len(loaded.examples)} of them taken: --eval_holdout {config.eval_holdout}"
        )
    else:
        loaded = load_examples(source, split=split, kind=kind, limit=limit, seed=config.seed)
    examples = loaded.examples
    groups: list[Group] = []
    report = loaded.report
    if kind != "prompts":
        groups, report = encode_groups(examples, space.encoder, space.budget, kind=kind, report=report)
        by_id = {example.row_id: example for example in examples}
        examples = [by_id[group.row_id] for group in groups]
    space.reports["evaluation" if evaluation else "training"] = report
    parts = [f"{use} data\n{done.render()}\n" for use, done in space.reports.items()]
    if processes.is_main():
        write_text(space.run.path / "data_report.txt", "\n".join(parts))
    return examples, groups


def encode_prompts(space: Workspace, examples: Sequence[Example]) -> list[list[int]]:
    """Token ids of the prompts, within the prompt budget."""
    limit = space.config.max_prompt_tokens
    return [space.encoder.encode_prompt(example.messages, max_tokens=limit) for example in examples]


# ---------------------------------------------------------------------- models
def lora_settings(config: RunSettings, *, dropout: float | None = None) -> loading.LoraSettings:
    """The adapter the settings ask for."""
    rate = config.lora_dropout if dropout is None else dropout
    return loading.LoraSettings(r=config.lora_r, alpha=config.lora_alpha, dropout=rate)


def load_base(space: Workspace) -> Any:
    """The frozen base model, quantised and placed as the profile says."""
    config = space.config
    return loading.load_base(
        config.model_name,
        quantization=config.quantization,
        hardware=space.hardware,
        gradient_checkpointing=bool(config.gradient_checkpointing),
    )


def fit_layout(space: Workspace, model: torch.nn.Module, groups: Sequence[Group]) -> None:
    """Fall back to the padded layout, with a warning, where the model cannot take packed rows."""
    layout = layout_for(model, groups, space.config.layout)
    space.config = dataclasses.replace(space.config, layout=layout)


@dataclass
class Policy:
    """The trainable adapter on its base, and the frozen adapter that is its reference.

    `reference` None means the base itself, adapter off: right only for an adapter that started fresh.
    """

    model: Any
    adapter: str = "policy"
    reference: str | None = None

    def save(self, path: Path) -> None:
        """Write `path`/adapter."""
        loading.save_adapter(self.model, self.adapter, path / "adapter")

    def restore(self, path: Path) -> None:
        """Read `path`/adapter into the same parameters."""
        loading.restore_adapter(self.model, self.adapter, path / "adapter")


def add_policy(space: Workspace, *, dropout: float | None = None) -> Policy:
    """Load the base with the adapter that is trained.

    With `init_adapter` the policy starts as a copy of that adapter, and the reference is a second, frozen
    copy: the model the run started from, not the base.
    """
    config = space.config
    settings = lora_settings(config, dropout=dropout)
    if config.backend == "unsloth":
        return load_with_unsloth(space, settings)
    if config.backend != "transformers":
        raise CourseError(f"--backend is transformers or unsloth, not {config.backend}")
    base = load_base(space)
    if not config.init_adapter:
        return Policy(loading.add_adapter(base, "policy", settings, seed=config.seed))
    model = loading.load_adapter(base, config.init_adapter, "policy", trainable=True)
    model = loading.load_adapter(model, config.init_adapter, "reference", trainable=False)
    return Policy(model, reference="reference")


def load_with_unsloth(space: Workspace, settings: loading.LoraSettings) -> Policy:
    """The same through unsloth's FastLanguageModel, which names its adapter "default"."""
    config = space.config
    if config.init_adapter:
        raise CourseError("--backend unsloth starts from a fresh adapter: leave --init_adapter out")
    changes = {
        name: getattr(config, name) for name in ("model_name", "quantization", "gradient_checkpointing")
    }
    profile = dataclasses.replace(space.profile, **changes)
    model, _ = unsloth_backend.load(profile, settings, seed=config.seed, hardware=space.hardware)
    space.config = dataclasses.replace(config, layout=unsloth_backend.LAYOUT)
    return Policy(model, adapter="default")


def disable_dropout(model: torch.nn.Module) -> None:
    """Set every dropout to 0: policy and reference must be the same function where their weights agree."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
