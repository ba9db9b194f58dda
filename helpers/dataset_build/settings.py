"""What a build is asked for, as flags of the command line, checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from helpers.dataset_build.near import rows_of_a_band
from helpers.errors import CourseError
from helpers.files import find_data
from helpers.models.profiles import Profile
from helpers.training.configs import flag

MOST_CANDIDATES = 8  # that a judge is shown at once
PERSONAL = ("drop", "mask", "keep")
TURNS = ("first", "last")


@dataclass
class BuildSettings:
    """Prompts out of conversations, candidate answers, best and worst by a judge, pairs, splits, a card."""

    source: str = flag("", "conversations or prompts: directory, file or hub id")
    output_dir: str = flag(
        "", "the data set is written there; `stages` in it is what a killed build goes on from"
    )
    source_split: str | None = flag(None, "split or file stem of the source")
    limit: int | None = flag(None, "prompts at most, of those that pass the filters")
    language: str = flag("English", "keep prompts in this language; 'any' keeps all")
    turn: str = flag("first", "of a conversation take its first question, or all up to the last: first, last")
    max_turns: int = flag(4, "drop conversations with more questions")
    min_chars: int = flag(8, "drop shorter prompts")
    max_chars: int = flag(4000, "drop longer prompts")
    max_prompt_tokens: int = flag(700, "drop prompts of more tokens, chat template included")
    keep_toxic: bool = flag(False, "keep what the source flags as toxic")
    personal_data: str = flag("drop", "prompts with personal data: drop, mask or keep")
    near_duplicate: float = flag(
        0.8, "drop a prompt as similar as this to one kept (Jaccard, 3-word shingles)"
    )
    split_similarity: float = flag(0.5, "prompts as similar as this, or chained by such, share a split")
    profile: str | None = flag(None, "tiny, smol, colab or qlora_7b; picked by the hardware if not given")
    model_name: str | None = flag(None, "base model; default: the profile's")
    models: str = flag("base", "who answers: comma-separated base, NAME=ADAPTER_DIR or NAME=MODEL")
    candidates_per_prompt: int = flag(4, "answers a prompt from each model")
    temperatures: str = flag("1.0", "comma-separated; answers take them in turns")
    top_p: float = flag(1.0, "nucleus of sampling")
    max_new_tokens: int | None = flag(None, "longest answer; default: the profile's")
    keep_truncated: bool = flag(False, "keep answers that hit --max_new_tokens before they ended")
    batch_size: int = flag(16, "prompts answered together; a killed build does at most so many again")
    min_confidence: float = flag(0.5, "keep pairs of at least this confidence, 0 to 1")
    min_strength: float = flag(1.0, "keep pairs of at least this preference strength, 1 to 5")
    min_quality: float = flag(
        1.0, "keep pairs whose chosen answer has at least this training quality, 1 to 5"
    )
    keep_unusable: bool = flag(False, "keep pairs that the judge calls unusable")
    dev_share: float = flag(0.1, "share of prompts for dev files")
    test_share: float = flag(0.1, "share of prompts for test files")
    seed: int = flag(0, "seed of sampling, of --limit and of the order in which the judge sees answers")
    date: str | None = flag(None, "date to write on the data card; without it none, so that builds are equal")


def check_settings(settings: BuildSettings) -> None:
    """Raise CourseError for the first setting that cannot work."""
    if not settings.source or not settings.output_dir:
        missing = "--output_dir" if settings.source else "--source"
        raise CourseError(
            f"data build needs {missing}: python -m helpers data build --source FILE --output_dir DIR"
        )
    for name, known in (("personal_data", PERSONAL), ("turn", TURNS)):
        if getattr(settings, name) not in known:
            raise CourseError(f"--{name} is one of {', '.join(known)}, not {getattr(settings, name)!r}")
    for name in (
        "limit",
        "max_turns",
        "min_chars",
        "batch_size",
        "candidates_per_prompt",
        "max_prompt_tokens",
    ):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise CourseError(f"--{name} must be at least 1, not {value}")
    if settings.max_chars < settings.min_chars:
        raise CourseError(f"--max_chars {settings.max_chars} is below --min_chars {settings.min_chars}")
    rows_of_a_band(settings.near_duplicate), rows_of_a_band(settings.split_similarity)
    if settings.split_similarity > settings.near_duplicate:
        raise CourseError(
            f"--split_similarity {settings.split_similarity} is above --near_duplicate"
            f" {settings.near_duplicate}: prompts alike could land in two splits"
        )
    _check_ranges(settings)
    temperatures(settings)


def _check_ranges(settings: BuildSettings) -> None:
    ranges = {"min_confidence": (0, 1), "min_strength": (0, 5), "min_quality": (0, 5)}
    for name, (low, high) in {**ranges, "dev_share": (0, 0.9), "test_share": (0, 0.9)}.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise CourseError(f"--{name} must be from {low} to {high}, not {value}")
    if settings.dev_share + settings.test_share >= 1:
        raise CourseError("--dev_share and --test_share leave nothing to train on: make them smaller")


def temperatures(settings: BuildSettings) -> list[float]:
    """The temperature of each of a model's answers to a prompt; 0 means greedy."""
    try:
        values = [float(part) for part in settings.temperatures.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise CourseError(f"--temperatures {settings.temperatures!r}: give numbers of 0 or more, with commas")
    taken = [values[place % len(values)] for place in range(settings.candidates_per_prompt)]
    if taken.count(0.0) > 1:
        raise CourseError(
            "--temperatures: at 0 every answer is the same, and --candidates_per_prompt asks for"
            f" {taken.count(0.0)} such; give others as well"
        )
    return taken


@dataclass(frozen=True)
class Author:
    """A model that answers: a base, with an adapter or alone."""

    name: str
    model_name: str
    adapter: Path | None = None


def authors(settings: BuildSettings, profile: Profile) -> list[Author]:
    """Read "base,sft=data/tiny/adapters/sft,big=owner/model"; CourseError for what is neither."""
    base = settings.model_name or profile.model_name
    found: dict[str, Author] = {}
    for entry in filter(None, (part.strip() for part in settings.models.split(","))):
        name, _, place = entry.rpartition("=")
        adapter = adapter_directory(Path(find_data(place)))
        name = _plain(name or Path(place).name)
        if name in found:
            raise CourseError(f"--models: the name {name!r} is taken; write NAME={place}")
        model = base if adapter or place == "base" else place
        found[name] = Author(name, model, adapter)
    if not found:
        raise CourseError(f"--models {settings.models!r} names nobody: base, NAME=ADAPTER_DIR or NAME=MODEL")
    total = len(found) * settings.candidates_per_prompt
    if not 2 <= total <= MOST_CANDIDATES:
        raise CourseError(
            f"{len(found)} of --models and --candidates_per_prompt {settings.candidates_per_prompt} make"
            f" {total} answers a prompt; a judge compares 2 to {MOST_CANDIDATES}"
        )
    return list(found.values())


def adapter_directory(path: Path) -> Path | None:
    """The adapter that `path` holds as it is, as a run's `final`, or as a run; None if there is none."""
    places = (path, path / "adapter", path / "final" / "adapter")
    return next((place for place in places if (place / "adapter_config.json").is_file()), None)


def _plain(name: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in name)
