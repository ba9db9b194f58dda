"""What a demo offers: model, adapters, reward model, prompts, a place for votes; on disk, `demo.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from helpers.apps.demo.gallery import Gallery, kept_gallery, make_gallery
from helpers.apps.demo.lineup import Lineup
from helpers.apps.demo.page import PageSettings
from helpers.apps.demo.view import TOKENS_A_SECOND, Desk
from helpers.apps.demo.votes import VoteBook
from helpers.course.stand_ins import last_token_index
from helpers.errors import CourseError
from helpers.files import read_json, write_json
from helpers.models.loading import BUNDLED_MODEL
from helpers.models.profiles import pick_profile
from helpers.text.datasets import Example, load_examples

CARD = "demo.json"
SPACE_MODEL = "model"  # the base's directory in an exported folder
GALLERY_PROMPTS = 64
CLICKABLE = 5
PROMPTS = (  # where no data set is at hand
    "Explain what a reward model is, in two sentences.",
    "Write a short note that asks a neighbour for a ladder.",
    "Is it true that Napoleon invented the telephone?",
)


@dataclass(frozen=True)
class Offer:
    """Paths are relative to the folder that holds `demo.json`, or to the working directory without one."""

    profile: str
    model_name: str
    adapters: dict[str, str] = field(default_factory=dict)
    reward_model: str | None = None
    prompts: str | None = None  # a file or data set of held-out prompts
    split: str | None = None
    votes: str = "votes/train_prefs.jsonl"
    gallery: str = "gallery"  # directory
    max_new_tokens: int = 128
    pace: float = TOKENS_A_SECOND

    def save(self, folder: Path) -> None:
        """Write `demo.json`."""
        write_json(folder / CARD, asdict(self))

    @staticmethod
    def load(folder: Path) -> Offer:
        """Read `demo.json`; CourseError for one that does not fit."""
        card = read_json(folder / CARD)
        known = {item.name for item in fields(Offer)}
        if not isinstance(card, dict) or not {"profile", "model_name"} <= set(card) <= known:
            raise CourseError(f"{folder / CARD} holds other fields than {', '.join(sorted(known))}")
        return Offer(**card)


def open_offer(offer: Offer, folder: Path | None = None) -> tuple[Desk, PageSettings]:
    """Load what is offered: the desk that answers and votes, and what the page starts with."""
    place = folder or Path()
    adapters = {name: place / path for name, path in offer.adapters.items()}
    reward = place / offer.reward_model if offer.reward_model else None
    model_name = offer.model_name
    if folder and (folder / model_name).is_dir():
        model_name = str(folder / model_name)
    lineup = Lineup(model_name, adapters, reward, pick_profile(offer.profile), last_token_index)
    prompts = held_out_prompts(offer, place)
    known = prompts() if offer.prompts and (place / offer.prompts).exists() else []
    facts = {e.messages[-1]["content"]: e.metadata["metadata"] for e in known if "metadata" in e.metadata}
    votes = VoteBook(place / offer.votes, facts)
    weights = [*adapters.values(), *([reward] if reward else [])]
    settings = PageSettings(
        model_name=title_of(offer.model_name),
        prompts=clickable(known) or PROMPTS,
        gallery=gallery_maker(lineup, prompts, place / offer.gallery, weights) if reward else None,
        max_new_tokens=offer.max_new_tokens,
        votes=str(Path(offer.votes).parent),
    )
    return Desk(lineup, votes, offer.pace), settings


def title_of(model_name: str) -> str:
    """A model's name for readers: a hub id as it is, the last part of a path."""
    if model_name in (BUNDLED_MODEL, SPACE_MODEL):
        return "a small language model"
    return (
        model_name if model_name.count("/") == 1 and not Path(model_name).is_dir() else Path(model_name).name
    )


def held_out_prompts(offer: Offer, place: Path) -> Callable[[], list[Example]]:
    """The prompts, read when they are first asked for: a data set of the hub is not fetched for nothing."""

    @cache
    def read() -> list[Example]:
        if offer.prompts is None:
            return []
        local = place / offer.prompts
        source = local if local.exists() else offer.prompts
        return load_examples(source, split=offer.split, kind="prompts").examples

    return read


def clickable(examples: list[Example]) -> list[str]:
    """A few short single prompts, of different families where rows name one."""
    found: dict[str, str] = {}
    for number, example in enumerate(examples):
        family = (example.metadata.get("metadata") or {}).get("family") or str(number)
        text = example.messages[-1]["content"]
        if len(example.messages) == 1 and len(text) <= 90:
            found.setdefault(family, text)
    return list(found.values())[:CLICKABLE]


def gallery_maker(
    lineup: Lineup, prompts: Callable[[], list[Example]], folder: Path, weights: list[Path]
) -> Callable[[str, Callable[[float], None]], Gallery]:
    """Make, or read again, the gallery of a policy; made anew when weights or prompts change."""

    def make(policy: str, progress: Callable[[float], None]) -> Gallery:
        examples = prompts()[:GALLERY_PROMPTS]
        key = [example.messages for example in examples]
        files = [file.read_bytes() for path in weights for file in sorted(path.rglob("*.safetensors"))]
        return kept_gallery(
            folder / f"{policy}.json",
            lambda: make_gallery(lineup, examples, policy, progress=progress),
            key,
            *files,
        )

    return make


def run_folder(folder: str | Path, **how: Any) -> Any:
    """Serve the demo whose `demo.json` lies in `folder`: what `app.py` of a Space does."""
    from helpers.apps.demo.serve import check_gradio, launch

    check_gradio()
    place = Path(folder).resolve()
    return launch(*open_offer(Offer.load(place), place), **{"host": None, **how})
