"""Write all of `data/tiny`, stage by stage: prompts, model, preferences, public set, facts about them.

Every stage writes its files atomically and then leaves a mark; a build that was stopped goes on after the
last mark, and a finished one leaves none. The same seed gives the same text files byte for byte; the model,
and what is sampled from it, is the same on the same machine with the same number of threads.
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.files import atomic_path, fingerprint, read_json, read_jsonl, write_json, write_jsonl
from helpers.models.loading import load_base, load_tokenizer
from helpers.models.sampling import Completion
from helpers.text.chat import ChatEncoder
from helpers.tiny import card, corpus
from helpers.tiny.families import FAMILIES, Prompt
from helpers.tiny.preferences import SAMPLES, preference_rows, sample_responses
from helpers.tiny.pretrain import Recipe, pretrain
from helpers.tiny.splits import (
    GEN_SIZES,
    PREF_SIZES,
    PUBLIC_PROMPTS,
    SFT_SIZES,
    Row,
    gen_rows,
    prompt_plan,
    sft_rows,
)
from helpers.tiny.tokenizer import train_tokenizer

MARKS = ".build"
TOKENIZER_CHATS = 20_000


@dataclass(frozen=True)
class Build:
    """What a stage gets. `answers`: namespace of exercise functions, for stages that train adapters."""

    output_dir: Path
    seed: int
    answers: Any = None

    @cached_property
    def plan(self) -> dict[str, list[Prompt]]:
        """File name -> its prompts."""
        return prompt_plan(self.seed)

    @cached_property
    def model(self) -> Any:
        """The pretrained base, from the stage before."""
        return load_base(str(self.output_dir / "model"), dtype="float32").eval()

    @cached_property
    def encoder(self) -> ChatEncoder:
        """The chat encoder of the bundled tokenizer."""
        return ChatEncoder(load_tokenizer(str(self.output_dir / "model")))


@dataclass(frozen=True)
class Stage:
    """A named step of the build."""

    name: str
    run: Callable[[Build], None]


def write_prompts(build: Build) -> None:
    """Prompt files and instruction data: no model needed, the same bytes everywhere."""
    for file in GEN_SIZES:
        write_jsonl(build.output_dir / f"{file}.jsonl", gen_rows(file, build.plan[file], build.seed))
    for file in SFT_SIZES:
        write_rows(build.output_dir, file, sft_rows(file, build.plan[file], build.seed))


def write_rows(folder: Path, file: str, rows: list[Row]) -> Path:
    """Write one file of instruction data; the large one is compressed, with no time stamp in it."""
    if file != "sft_train":
        write_jsonl(folder / f"{file}.jsonl", rows)
        return folder / f"{file}.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = folder / f"{file}.jsonl.gz"
    with atomic_path(path) as draft:
        draft.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def write_model(build: Build) -> None:
    """Tokenizer and base, pretrained on the mixed corpus."""
    chats = corpus.corpus_chats(build.seed)
    tokenizer = train_tokenizer(text for chat in chats[:TOKENIZER_CHATS] for text in chat if text)
    model = pretrain(tokenizer, chats, build.seed, Recipe())
    with atomic_path(build.output_dir / "model") as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


def write_preferences(build: Build) -> None:
    """Pairs sampled from the base, with the simulated annotator's labels."""
    for number, (file, size) in enumerate(PREF_SIZES.items()):
        prompts = build.plan[file]
        responses = sample_responses(
            build.model, build.encoder, prompts, k=SAMPLES, seed=1000 * build.seed + number
        )
        rows = preference_rows(file, prompts, responses, size, build.seed)
        if len(rows) < size:
            raise CourseError(f"{file}: only {len(rows)} of {size} pairs; the base answers too much alike")
        write_jsonl(build.output_dir / f"{file}.jsonl", rows)


def write_public_eval(build: Build) -> None:
    """128 held-out prompts with the base's greedy responses, in the university project's format.

    The prompts also keep their `metadata`: without it the gold judge cannot grade answers to them.
    """
    folder = build.output_dir / "public_eval"
    chosen = public_places(build.plan["test_gen"])
    prompts = [build.plan["test_gen"][place] for place in chosen]
    rows = read_jsonl(build.output_dir / "test_gen.jsonl")
    fields = ("prompt_messages", "prompt_text", "reference_response_text", "row_id", "metadata")
    public = [{field: rows[place][field] for field in fields} for place in chosen]
    replies = sample_responses(build.model, build.encoder, prompts, k=1, seed=0, greedy=True)
    base = response_rows(public, replies)
    pairs = read_jsonl(build.output_dir / "test_prefs.jsonl")
    write_jsonl(folder / "public_test_gen_prompts_128.jsonl", public)
    write_jsonl(folder / "public_test_gen_base_responses_128.jsonl", base)
    write_jsonl(folder / "public_test_prefs_256.jsonl", [_public_pair(pair) for pair in pairs])


def response_rows(prompts: Sequence[Row], replies: Sequence[Sequence[Completion]]) -> list[Row]:
    """The first reply to each prompt, in the university project's format."""
    return [
        {
            "generated_num_tokens": len(reply[0].ids),
            "prompt_text": row["prompt_text"],
            "response_text": reply[0].text,
            "row_id": row["row_id"],
        }
        for row, reply in zip(prompts, replies, strict=True)
    ]


def public_places(prompts: Sequence[Prompt]) -> list[int]:
    """Places of 128 prompts among the test prompts, at least eight of every family."""
    by_family: dict[str, list[int]] = {family: [] for family in FAMILIES}
    for place, prompt in enumerate(prompts):
        by_family[prompt.family].append(place)
    base, extra = divmod(PUBLIC_PROMPTS, len(FAMILIES))
    chosen = [
        place
        for number, places in enumerate(by_family.values())
        for place in places[: base + (number < extra)]
    ]
    return sorted(chosen)


def _public_pair(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("judge_model", "metadata")}


def write_facts(build: Build) -> None:
    """Manifest and data card, measured from the files."""
    manifest = card.measure(build.output_dir, build.seed, build.model, build.encoder)
    write_json(build.output_dir / "manifest.json", manifest)
    card.write_card(build.output_dir / "README.md", manifest)


STAGES = (
    Stage("prompts", write_prompts),
    Stage("model", write_model),
    Stage("preferences", write_preferences),
    Stage("public_eval", write_public_eval),
)
FACTS = Stage("facts", write_facts)  # always last: it describes whatever the other stages wrote


def build_tiny(
    output_dir: str | Path,
    seed: int = 0,
    answers: Any = None,
    *,
    extra_stages: Sequence[Stage] = (),
    restart: bool = False,
) -> dict[str, Any]:
    """Write the bundled world into `output_dir` and return its manifest.

    A finished build is made anew; one that was stopped goes on after its last finished stage.

    Args:
        answers: namespace of exercise functions; only `extra_stages` that train adapters need it.
        extra_stages: run after the built-in ones and before the manifest is written.
        restart: forget how far an earlier build came.

    Raises:
        CourseError: when the directory holds half a build of another seed or recipe.
    """
    build = Build(Path(output_dir), seed, answers)
    build.output_dir.mkdir(parents=True, exist_ok=True)
    marks = build.output_dir / MARKS
    done = {} if restart else _marks(marks, seed)
    with tqdm((*STAGES, *extra_stages, FACTS), desc="build-tiny", unit="stage") as bar:
        for stage in bar:
            bar.set_postfix_str(stage.name)
            if stage.name not in done:
                started = time.perf_counter()
                stage.run(build)
                done[stage.name] = round(time.perf_counter() - started, 1)
                write_json(marks / "stages.json", {"recipe": _recipe(seed), "seconds": done})
    shutil.rmtree(marks)
    print("seconds by stage: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in done.items()))
    return read_json(build.output_dir / "manifest.json")


def add_stage(output_dir: str | Path, stage: Stage, seed: int = 0, answers: Any = None) -> dict[str, Any]:
    """Run one more stage over a finished build, describe the result anew, and return the manifest."""
    build = Build(Path(output_dir), seed, answers)
    stage.run(build)
    FACTS.run(build)
    return read_json(build.output_dir / "manifest.json")


def _recipe(seed: int) -> str:
    """Fingerprint of the seed and of all source text that shapes the data: a changed recipe builds anew."""
    here = Path(__file__).parent
    shaping = [path for path in sorted(here.glob("*.py")) if path.name not in ("card.py", "build.py")]
    judging = [here.parent / "judging" / f"{name}.py" for name in ("gold", "gold_rules", "manners")]
    return fingerprint(seed, *(path.read_bytes() for path in (*shaping, *judging)))


def _marks(marks: Path, seed: int) -> dict[str, float]:
    """Seconds by finished stage of a build that was stopped; empty for a fresh one."""
    path = marks / "stages.json"
    if not path.exists():
        return {}
    state = read_json(path)
    if state.get("recipe") != _recipe(seed):
        raise CourseError(
            f"{marks.parent} holds half a build of another seed or recipe: choose another --output_dir, or "
            f"delete {marks} to start over"
        )
    return dict(state["seconds"])
