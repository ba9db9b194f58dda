"""`evaluate` and `data report`: adapters in one table, a data set in one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.course.pipeline import load_adapters, pick_judge
from helpers.errors import CourseError
from helpers.files import find_data, write_json
from helpers.judging.evaluate import compare_policies
from helpers.judging.measure import Role, evaluate_policy, evaluate_reward
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import encode_groups, load_examples, report_source
from helpers.text.formats import FORMATS, KINDS
from helpers.text.trees import NAME as TREES

FORMAT_NAMES = tuple(known.name for known in FORMATS)


def named_adapters(text: str) -> dict[str, Path]:
    """Read "dpo=runs/a/final/adapter,runs/b/final/adapter" into names and directories.

    An entry without a name is called after its run directory.
    """
    found: dict[str, Path] = {}
    if text and not text.replace(",", "").strip():
        raise CourseError(f"--adapters {text} names nothing: give DIR or name=DIR, with commas between them")
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, path = entry.rpartition("=")
        place = adapter_directory(Path(path))
        name = name or [part for part in place.parts if part not in ("final", "adapter")][-1]
        name = "".join(char if char.isalnum() else "_" for char in name)
        if name in found or name == "base":
            raise CourseError(f"--adapters: the name {name!r} is taken; write name=DIR")
        found[name] = place
    return found


def adapter_directory(path: Path) -> Path:
    """Accept an adapter, a run's `final` or a run."""
    for place in (path, path / "adapter", path / "final" / "adapter"):
        if (place / "adapter_config.json").is_file():
            return place
    raise CourseError(f"{path} holds no adapter: give a run directory or its final/adapter")


def evaluate_adapters(config: Any, answers: Any) -> str:
    """Greedy answers of base and adapters, compared; returns the table."""
    profile = pick_profile(config.profile)
    name = config.model_name or profile.model_name
    encoder = ChatEncoder(loading.load_tokenizer(name))
    budget = Budget(
        profile.max_prompt_tokens,
        profile.max_response_tokens,
        config.max_new_tokens or profile.max_new_tokens,
    )
    source = find_data(config.dataset_name or profile.dataset_name)
    examples = load_examples(source, split=config.split, kind="prompts", limit=config.limit).examples
    places = named_adapters(config.adapters)
    model = load_adapters(loading.load_base(name, profile), places)
    roles = {"base": Role(model, None), **{adapter: Role(model, adapter) for adapter in places}}
    reports = []
    for label, role in roles.items():
        others: dict[str, Role] = {o: roles[o] for o in ("base", "sft") if o in roles and o != label}
        references = others if label != "base" else None
        reports.append(
            evaluate_policy(
                label,
                role,
                encoder,
                examples,
                answers,
                references=references,
                budget=budget,
                seed=config.seed,
            )
        )
    table = compare_policies(reports, examples, pick_judge(examples), answers)
    figures = table.to_dict()
    lines = [table.render()]
    if config.reward_model:
        base = loading.load_base(name, profile)
        reward_model = RewardModel.load(
            config.reward_model, base, answers.last_token_index, pad_id=encoder.pad_id
        )
        pairs = load_examples(
            source, split=config.pairs_split, kind="preference", limit=config.limit
        ).examples
        report = evaluate_reward(reward_model, pairs, encoder, answers, budget=budget)
        figures["reward_model"] = report.to_dict()
        low, high = report.ci95
        lines.append(
            f"reward model: pair accuracy {report.pair_accuracy:.3f} [{low:.3f}, {high:.3f}]"
            f" on {report.pairs} pairs"
        )
    if config.output:
        write_json(config.output, json.loads(json.dumps(figures)))
        lines.append(f"figures: {config.output}")
    return "\n".join(lines)


def data_report(config: Any) -> str:
    """Load a data set and say what was kept and dropped; with a model, encode it and count truncation too."""
    source = find_data(config.source)
    if config.kind is not None and config.kind not in KINDS:
        raise CourseError(f"--kind is one of {', '.join(KINDS)}, not {config.kind!r}")
    if config.format is not None and config.format not in (*FORMAT_NAMES, TREES):
        raise CourseError(f"--format is one of {', '.join((*FORMAT_NAMES, TREES))}, not {config.format!r}")
    if not config.model_name:
        if config.limit is not None:
            raise CourseError("--limit needs --model_name: without a model every row is read")
        return report_source(source, split=config.split, kind=config.kind, format=config.format)
    kind = config.kind or "preference"
    loaded = load_examples(source, split=config.split, kind=kind, limit=config.limit, format=config.format)
    encoder = ChatEncoder(loading.load_tokenizer(config.model_name))
    return encode_groups(loaded.examples, encoder, Budget(), kind=kind, report=loaded.report)[1].render()
