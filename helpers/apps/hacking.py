"""`hacking signs RUN` · `hacking pairs RUN` · `hacking compare`: reward hacking found, mended, measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.apps.flags import answers_from, parse, text
from helpers.errors import CourseError
from helpers.training.configs import check_seed
from helpers.training.run_rows import plain


@dataclass
class SignsConfig:
    """Signs of reward hacking in an online run; exit status 1 if there are any."""

    run: str = text("the run directory, such as runs/tiny_grpo_seed0", "")
    json: bool = text("print them as JSON", False)


@dataclass
class PairsConfig:
    """Write the training pairs of a run's data set, and with them those its reward model ranks wrongly."""

    run: str = text("a finished online run", "")
    output_dir: str = text("the data set to write; train --algo reward_model --dataset_name takes it", "")
    prompts: int = text("training prompts to try", 400)
    samples: int = text("answers to each", 2)
    copies: int = text("how often each new pair is given", 1)
    judge: str | None = text("who decides which answer is better; default gold, where prompts have its facts")
    seed: int = text("seed of the answers", 0)


@dataclass
class CompareConfig:
    """A run that over-optimises, with and without each remedy, on the bundled world: one table."""

    seeds: str = text("comma-separated", "0,1,2")
    output_dir: str = text("runs and figures; what is there is not run again", "runs/hacking")
    arms: str = text("comma-separated, a part of them; default all", "")


def hacking(words: list[str]) -> int:
    """Find the part and run it."""
    parts = {"signs": signs, "pairs": pairs, "compare": compare}
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: python -m helpers hacking {'|'.join(parts)} [flags]; --help after it lists them")
        return 0
    if not words or words[0] not in parts:
        raise CourseError(f"hacking needs one of {', '.join(parts)} as its first word")
    return parts[words[0]](words[1:])


def with_run(kind: type, words: list[str], name: str) -> Any:
    """Flags whose first word may be the run."""
    if words and not words[0].startswith("-"):
        words = ["--run", *words]
    config = parse(kind, words, f"hacking {name}")
    if not config.run:
        raise CourseError(f"hacking {name} needs the run: python -m helpers hacking {name} runs/my_grpo")
    return config


def signs(words: list[str]) -> int:
    """hacking signs RUN."""
    from helpers.course.hacking import hacking_signs

    config = with_run(SignsConfig, words, "signs")
    found = hacking_signs(config.run)
    if config.json:
        print(json.dumps(plain([asdict(sign) for sign in found])))
    else:
        lines = [f"step {sign.step:<4} {sign.kind}: {sign.message}" for sign in found]
        print("\n".join(lines) or f"{config.run}: no sign of reward hacking")
    return 1 if found else 0


def pairs(words: list[str]) -> int:
    """hacking pairs RUN --output_dir DIR."""
    from helpers.course.hacked_pairs import mine_pairs, run_config, write_mix

    answers, rest = answers_from(words)
    config = with_run(PairsConfig, rest, "pairs")
    if not config.output_dir:
        raise CourseError("hacking pairs needs --output_dir, the data set to write")
    source = run_config(Path(config.run))["dataset_name"]
    how = {name: getattr(config, name) for name in ("prompts", "samples", "judge", "seed")}
    mined = mine_pairs(config.run, answers, **how)
    place = write_mix(mined.rows, source, Path(config.output_dir), copies=config.copies)
    print(f"{len(mined.rows)} of {mined.compared} pairs were ranked the wrong way round; {place} holds them")
    return 0


def compare(words: list[str]) -> int:
    """hacking compare."""
    from helpers.course.bench_hacking import ARMS, compare_remedies, table_of

    answers, rest = answers_from(words)
    config = parse(CompareConfig, rest, "hacking compare")
    names = [name.strip() for name in config.arms.split(",") if name.strip()] or list(ARMS)
    if unknown := sorted(set(names) - set(ARMS)):
        raise CourseError(f"--arms: {', '.join(unknown)} is not among {', '.join(ARMS)}")
    try:
        seeds = [int(word) for word in config.seeds.split(",")]
    except ValueError:
        raise CourseError(f"--seeds {config.seeds}: give whole numbers, with commas between them") from None
    for seed in seeds:
        check_seed(seed)
    arms = {name: settings for name, settings in ARMS.items() if name in names or name == "nothing"}
    print(table_of(compare_remedies(answers, Path(config.output_dir), seeds, arms), answers))
    return 0
