"""The command `demo`: the chat demo on this machine, or as a folder for a Hugging Face Space."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from helpers.apps.demo.lineup import LONGEST_ANSWER
from helpers.apps.demo.offer import Offer, open_offer
from helpers.apps.demo.serve import check_gradio, launch
from helpers.apps.demo.space import export_space
from helpers.apps.evaluating import named_adapters
from helpers.apps.flags import parse, text
from helpers.errors import CourseError
from helpers.files import data_dir, find_data
from helpers.models.loading import BUNDLED_MODEL
from helpers.models.profiles import Profile, pick_profile
from helpers.models.reward_model import CARD, read_card
from helpers.training.setup import pick_split


@dataclass
class DemoConfig:
    """Several policies answer one prompt side by side: blind votes, rewards, a gallery. Runs in the browser.

    Without flags: the bundled model, its SFT adapter and reward model, and whatever `course` has trained.
    """

    adapters: str = text("comma-separated name=DIR or DIR of saved adapters; default: those found", "")
    reward_model: str | None = text("directory of a reward model; default: the one found")
    profile: str | None = text("tiny, smol, colab or qlora_7b")
    model_name: str | None = text("base model; default: the profile's")
    dataset_name: str | None = text("whose held-out prompts the gallery uses; default: the profile's")
    split: str | None = text("split of held-out prompts; default: the usual one")
    votes: str | None = text(
        "file of preference pairs, .jsonl; default: runs/demo_PROFILE/votes/train_prefs.jsonl"
    )
    max_new_tokens: int | None = text(f"longest answer at the start, {LONGEST_ANSWER} at most")
    tokens_per_second: float = text("pace of the answers, equal for all; 0: as fast as it goes", 40.0)
    host: str = text("address to listen on; 0.0.0.0 opens it to the network", "127.0.0.1")
    port: int | None = text("port; default: the first free one from 7860")
    share: bool = text("also open a public link through Gradio's servers", False)
    export_space: str | None = text("write a folder for a Hugging Face Space there, and start nothing")


def demo(words: list[str]) -> int:
    """Serve until Ctrl-C, or export."""
    config = parse(DemoConfig, words, "demo")
    if config.port is not None and not 1 <= config.port <= 65535:
        raise CourseError(f"--port must be from 1 to 65535, not {config.port}")
    check_gradio()
    offer = offer_of(config)
    if config.export_space:
        files = export_space(offer, Path(config.export_space))
        size = sum(path.stat().st_size for path in files) / 2**20
        print(f"{config.export_space}: {len(files)} files, {size:.1f} MiB; start it with python app.py there")
        return 0
    desk, settings = open_offer(offer)
    print(f"{pick_profile(config.profile).reason}\npolicies: {', '.join(desk.lineup.policies)}")
    print(f"reward model: {offer.reward_model or 'none'}\nvotes: {offer.votes}", flush=True)
    launch(desk, settings, host=config.host, port=config.port, share=config.share)
    return 0


def offer_of(config: DemoConfig) -> Offer:
    """What the flags ask for, completed by what is found. CourseError for what is not there."""
    profile = pick_profile(config.profile)
    limit = config.max_new_tokens or min(profile.max_new_tokens, 128)
    if limit > LONGEST_ANSWER:
        raise CourseError(f"--max_new_tokens is {limit}; the budget is {LONGEST_ANSWER}")
    model_name = config.model_name or profile.model_name
    folder = runs() / f"demo_{profile.name}"
    adapters = named_adapters(config.adapters) if config.adapters else found_adapters(config, profile)
    reward = config.reward_model or found_reward(config, profile)
    if reward:
        reward = str(reward_directory(Path(reward)))
    data = find_data(config.dataset_name or profile.dataset_name)
    return Offer(
        profile=profile.name,
        model_name=model_name,
        adapters={name: str(place) for name, place in adapters.items()},
        reward_model=reward,
        prompts=data,
        split=config.split or pick_split(data, "prompts", None, evaluation=True),
        votes=config.votes or str(folder / "votes" / "train_prefs.jsonl"),
        gallery=str(folder / "gallery"),
        max_new_tokens=limit,
        pace=config.tokens_per_second,
    )


def runs() -> Path:
    """Where results go."""
    return Path(os.environ.get("COURSE_RUNS", "runs"))


def found_adapters(config: DemoConfig, profile: Profile) -> dict[str, Path]:
    """The bundled SFT adapter, and the final adapters of `course` runs of this profile."""
    if config.model_name not in (None, profile.model_name):
        return {}
    places = {"sft": data_dir() / "tiny" / "adapters" / "sft"} if profile.model_name == BUNDLED_MODEL else {}
    course = runs() / f"course_{profile.name}"
    for card in sorted(course.glob("*/final/adapter/adapter_config.json")):
        if not (card.parents[1] / CARD).exists():  # a reward model answers nothing
            places.setdefault(card.parents[2].name, card.parent)
    return {name: place for name, place in places.items() if place.is_dir()}


def found_reward(config: DemoConfig, profile: Profile) -> str | None:
    """The bundled reward model, or that of a `course` run."""
    if config.model_name not in (None, profile.model_name):
        return None
    bundled = [data_dir() / "tiny" / "adapters" / "reward"] if profile.model_name == BUNDLED_MODEL else []
    places = [*bundled, runs() / f"course_{profile.name}" / "reward_model" / "final"]
    return next((str(place) for place in places if (place / CARD).is_file()), None)


def reward_directory(path: Path) -> Path:
    """Accept a reward model, or the run that trained one."""
    place = path / "final" if not (path / CARD).is_file() and (path / "final" / CARD).is_file() else path
    read_card(place)
    return place
