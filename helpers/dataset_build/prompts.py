"""Prompts out of conversations: every filter drops for one named reason, and every drop is counted."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tqdm.auto import tqdm

from helpers.dataset_build.near import NearIndex, normalized
from helpers.dataset_build.personal import find_personal, mask_personal
from helpers.dataset_build.settings import BuildSettings
from helpers.errors import CourseError
from helpers.files import find_data, fingerprint
from helpers.text.chat import ChatEncoder
from helpers.text.datasets import Example, LoadReport, load_examples

Filter = Callable[[Example, BuildSettings], str | None]  # what to say of a prompt that is dropped, or None
LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
# Words that few English sentences do without and that hardly occur in other languages.
ENGLISH = frozenset(
    "the and of to is are was were be been have has had do does did not with for from that this these those "
    "what which who how why when where would could should can will you your my it its they their about into "
    "write make give tell explain please".split()
)
GUESSED_FROM = 8  # words; a shorter text says too little about its language
DETOXIFY = 0.5  # score from which a message counts as toxic


def prompt_text(example: Example) -> str:
    """All messages of the prompt, one paragraph each."""
    return "\n\n".join(message["content"] for message in example.messages)


# ---------------------------------------------------------------------- filters
def wrong_language(example: Example, settings: BuildSettings) -> str | None:
    """By the source's field, for the message itself if it says so; without one, a guess for English only."""
    if settings.language == "any":
        return None
    known = _language_field(example)
    if known is not None:
        return None if known.casefold() == settings.language.casefold() else known
    if settings.language.casefold() != "english":
        return "the source does not say which"
    return None if looks_english(example.messages[-1]["content"]) else "does not look English"


def _language_field(example: Example) -> str | None:
    flags = example.metadata.get("message_flags") or []
    place = len(example.messages) - 1
    value = flags[place].get("language") if place < len(flags) else None
    value = value or example.metadata.get("language")
    return value if isinstance(value, str) and value else None


def looks_english(text: str) -> bool:
    """Latin letters, and in a text of some length at least one of the commonest English words."""
    letters = [char for char in text if char.isalpha()]
    if letters and sum(bool(LATIN.match(char)) for char in letters) < 0.9 * len(letters):
        return False
    words = re.findall(r"[a-z']+", text.casefold())
    return len(words) < GUESSED_FROM or any(word in ENGLISH for word in words)


def too_many_turns(example: Example, settings: BuildSettings) -> str | None:
    """Questions in the conversation that the prompt comes from."""
    turns = int(example.metadata["questions"])
    return f"{turns} questions" if turns > settings.max_turns else None


def too_short(example: Example, settings: BuildSettings) -> str | None:
    """Characters, white space at the ends aside."""
    size = len(prompt_text(example).strip())
    return f"{size} characters" if size < settings.min_chars else None


def too_long(example: Example, settings: BuildSettings) -> str | None:
    """Characters."""
    size = len(prompt_text(example).strip())
    return f"{size} characters" if size > settings.max_chars else None


def toxic(example: Example, settings: BuildSettings) -> str | None:
    """Any flag of the source, of the row or of a message of the prompt; the moderation lists count whole."""
    if settings.keep_toxic:
        return None
    row = example.metadata
    flags = (row.get("message_flags") or [])[: len(example.messages)]
    if row.get("toxic") is True or any(flag.get("toxic") is True for flag in flags):
        return "flag toxic"
    for entry in _entries(row.get("openai_moderation")):
        if entry.get("flagged") is True:
            return "flagged by moderation"
    for entry in _entries(row.get("detoxify_moderation")):
        high = [n for n, value in entry.items() if isinstance(value, (int, float)) and value >= DETOXIFY]
        if high:
            return f"detoxify {high[0]}"
    return None


def _entries(value: Any) -> Iterable[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def personal(example: Example, settings: BuildSettings) -> str | None:
    """Personal data by pattern, or removed by the source already, which leaves a prompt with holes."""
    if settings.personal_data != "drop":
        return None
    flags = (example.metadata.get("message_flags") or [])[: len(example.messages)]
    if example.metadata.get("redacted") is True or any(flag.get("redacted") is True for flag in flags):
        return "removed by the source"
    return ", ".join(find_personal(prompt_text(example))) or None


FILTERS: tuple[tuple[str, Filter], ...] = (
    ("language", wrong_language),
    ("too many turns", too_many_turns),
    ("too short", too_short),
    ("too long", too_long),
    ("toxic", toxic),
    ("personal data", personal),
)


# ---------------------------------------------------------------------- the stage
def read_prompts(settings: BuildSettings, encoder: ChatEncoder) -> tuple[list[Example], LoadReport]:
    """Load the source and keep what passes every filter, in the order of the source.

    Raises CourseError, with the report, if nothing is left.
    """
    source = find_data(settings.source)
    loaded = load_examples(source, split=settings.source_split, kind="prompts")
    report = loaded.report
    kept: list[Example] = []
    exact: dict[str, str] = {}
    index = NearIndex(settings.near_duplicate)
    for example in tqdm(loaded.examples, desc="filtering", unit="prompt", leave=False):
        example = _cut(example, settings)
        reason, detail = _verdict(example, settings, encoder, exact, index, kept)
        if reason:
            report.drop(reason, example.row_id, detail)
            continue
        kept.append(_bare(example))
        exact[normalized(prompt_text(example))] = example.row_id
        index.add(prompt_text(example))
    if not kept:
        report.kept = 0
        raise CourseError(f"no prompt of {source} passes the filters:\n{report.render()}")
    kept = _unique_ids(_limited(kept, settings, report))
    report.kept = len(kept)
    return kept, report


def _cut(example: Example, settings: BuildSettings) -> Example:
    """A conversation's first question, if that is wanted, personal data masked, if that is.

    Prompts that are no conversations stay whole.
    """
    questions = sum(message["role"] == "user" for message in example.messages)
    metadata = {**example.metadata, "questions": questions}
    messages = example.messages
    if settings.turn == "first" and "message_flags" in metadata:
        messages = messages[: 2 if messages[0]["role"] == "system" else 1]
    if settings.personal_data == "mask":  # before duplicates are looked for: they may differ in it alone
        messages = tuple({**m, "content": mask_personal(m["content"])[0]} for m in messages)
    return replace(example, messages=messages, metadata=metadata)


def _verdict(
    example: Example,
    settings: BuildSettings,
    encoder: ChatEncoder,
    exact: dict[str, str],
    index: NearIndex,
    kept: Sequence[Example],
) -> tuple[str, str]:
    """The reason to drop a prompt and what to say of it; empty texts for one that is kept."""
    for reason, find in FILTERS:
        detail = find(example, settings)
        if detail:
            return reason, detail
    tokens = len(encoder.encode_prompt(example.messages))
    if tokens > settings.max_prompt_tokens:
        return "too many tokens", f"{tokens} tokens"
    text = prompt_text(example)
    twin = exact.get(normalized(text))
    if twin is not None:
        return "exact duplicate", f"of {twin}: {excerpt(text)}"
    near = index.similar(text)
    if near:
        place, value = max(near, key=lambda found: (found[1], -found[0]))
        return "near duplicate", f"{value:.2f} like {kept[place].row_id}: {excerpt(text)}"
    return "", ""


def excerpt(text: str) -> str:
    """The beginning of a text on one line, personal data masked."""
    return textwrap.shorten(mask_personal(text)[0], 60, placeholder=" …")


def _bare(example: Example) -> Example:
    """Only what later stages need: messages, and the facts for the gold judge."""
    facts = example.metadata.get("metadata")
    return replace(example, responses=(), metadata={"metadata": facts} if isinstance(facts, dict) else {})


def _limited(kept: list[Example], settings: BuildSettings, report: LoadReport) -> list[Example]:
    """The limit takes by a hash of the text: a larger limit keeps what a smaller one took."""
    if settings.limit is None or settings.limit >= len(kept):
        return kept
    report.not_taken = len(kept) - settings.limit
    ranked = sorted(range(len(kept)), key=lambda i: fingerprint(settings.seed, prompt_text(kept[i])))
    return [kept[place] for place in sorted(ranked[: settings.limit])]


def _unique_ids(examples: list[Example]) -> list[Example]:
    """Ids that come twice get a number, since all later stages go by them."""
    taken: set[str] = set()
    unique = []
    for example in examples:
        name, count = example.row_id, 1
        while name in taken:
            count += 1
            name = f"{example.row_id}#{count}"
        taken.add(name)
        unique.append(replace(example, row_id=name))
    return unique
