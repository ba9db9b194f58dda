"""`data build`: flags into a build, and what it says in the end."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from helpers.apps.flags import parse, text
from helpers.dataset_build.build import build_data_set
from helpers.dataset_build.settings import BuildSettings, check_settings
from helpers.judging.registry import make_judge


@dataclass
class DataBuildConfig(BuildSettings):
    """Build a preference data set: prompts filtered out of conversations, candidate answers, best and worst
    by a judge in both orders, pairs, splits, manifest and card. The same command goes on where it stopped."""

    judge: str = text("who chooses", "gold")


def data_build(words: list[str]) -> str:
    """Read the flags, build, and say what came of it."""
    config = parse(DataBuildConfig, words, "data build")
    settings = BuildSettings(**{item.name: getattr(config, item.name) for item in fields(BuildSettings)})
    check_settings(settings)
    return render(build_data_set(settings, make_judge(config.judge)), settings.output_dir)


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
    lines.append(f"{'pairs kept':<34}{pairs['kept']:>8,}")
    lines += _drops(pairs["dropped"])
    files = ", ".join(f"{name} {file['rows']:,}" for name, file in manifest["files"].items())
    return "\n".join([*lines, f"files: {files}", f"data set, manifest.json and README.md: {place}"])


def _drops(counts: dict[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"  {reason:<32}{count:>8,}" for reason, count in ordered]
