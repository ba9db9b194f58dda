"""`data build`: flags into a judge and a build, and what it says in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.apps.flags import parse
from helpers.dataset_build.build import build_data_set
from helpers.dataset_build.settings import BuildSettings, authors, check_settings
from helpers.dataset_build.stages import digest_of, tail
from helpers.files import fingerprint
from helpers.judging import gold
from helpers.judging.judge import Judge
from helpers.judging.registry import JudgeSettings, make_judge
from helpers.judging.reward_judge import refuse_if_trained_on
from helpers.models.profiles import pick_profile


@dataclass
class DataBuildConfig(BuildSettings, JudgeSettings):
    """Build a preference data set: prompts filtered out of conversations, candidate answers, best and worst
    by a judge in both orders, pairs, splits, manifest and card. The same command goes on where it stopped."""


def data_build(words: list[str], load_answers: Callable[[], Any]) -> str:
    """Read the flags, build, and say what came of it; `load_answers` is called for a reward model alone."""
    config = parse(DataBuildConfig, words, "data build")
    config.judge = config.judge or "gold"
    check_settings(config)
    writers = authors(config, pick_profile(config.profile))
    if config.judge == "reward_model" and config.judge_reward_model:
        adapters = [author.adapter for author in writers if author.adapter]
        refuse_if_trained_on(config.judge_reward_model, adapters, force=config.force_proxy)
    judge = make_judge(config.judge, config, load_answers() if config.judge == "reward_model" else None)
    return render(build_data_set(config, judge, identity_of(config, judge)), config.output_dir)


def identity_of(config: JudgeSettings, judge: Judge) -> dict[str, Any]:
    """All that a judge's choices depend on beside what it is shown, without places on this machine."""
    identity: dict[str, Any] = {
        "name": config.judge,
        "instructions": getattr(judge, "instructions_hash", None),
    }
    if config.judge == "openai":
        model = getattr(getattr(judge, "client", None), "model", None) or config.judge_model
        names = ("judge_format", "judge_temperature", "judge_max_tokens")
        identity |= {"model": tail(str(model)), **{name: getattr(config, name) for name in names}}
    elif config.judge == "gold":
        folder = Path(gold.__file__).parent
        rules = [(folder / f"{name}.py").read_bytes() for name in ("gold", "gold_rules", "manners")]
        identity["instructions"] = fingerprint(*rules)
    else:
        place = config.judge_reward_model if config.judge == "reward_model" else config.judge_record
        identity |= {"model": judge.name, "sha256": digest_of(str(place))}
    return identity


def render(manifest: dict[str, Any], place: str) -> str:
    """The manifest in a few lines."""
    prompts, pairs, verdicts = manifest["prompts"], manifest["pairs"], manifest["verdicts"]
    lines = [f"{'rows read':<34}{prompts['read']:>8,}", f"{'prompts kept':<34}{prompts['kept']:>8,}"]
    lines += _drops(prompts["dropped"])
    if prompts["not_taken"]:
        lines.append(f"{'fit, beyond --limit':<34}{prompts['not_taken']:>8,}")
    lines.append(f"{'answers':<34}{sum(author['answers'] for author in manifest['authors']):>8,}")
    lines += _drops(manifest["answers_left_out"])
    lines.append(f"{'prompts judged in both orders':<34}{verdicts['prompts_judged']:>8,}")
    for name in ("same_best_in_both_orders", "best_is_shown_first", "by_chance"):
        if verdicts[name] is not None:
            lines.append(f"  {name.replace('_', ' '):<32}{verdicts[name]:>8.1%}")
    lines.append(f"{'pairs kept':<34}{pairs['kept']:>8,}")
    lines += _drops(pairs["dropped"])
    files = ", ".join(f"{name} {file['rows']:,}" for name, file in manifest["files"].items())
    return "\n".join([*lines, f"files: {files}", f"data set, manifest.json and README.md: {place}"])


def _drops(counts: dict[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"  {reason:<32}{count:>8,}" for reason, count in ordered]
