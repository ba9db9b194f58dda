"""The whole build, stage by stage: prompts, candidates, verdicts, pairs, files, manifest, card.

Each stage leaves its output in `stages/` of the output directory, under a fingerprint of all it depends on. A
build that was killed goes on after its last finished batch; one with other thresholds begins at the pairs.
Equal inputs, models and settings on one machine give equal files, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helpers.dataset_build.candidates import write_candidates
from helpers.dataset_build.card import FORMAT, describe
from helpers.dataset_build.pairs import Outcome, all_outcomes, pair_row, prompt_row, same_answer, sft_row
from helpers.dataset_build.prompts import read_prompts
from helpers.dataset_build.settings import Author, BuildSettings, authors, check_settings
from helpers.dataset_build.splits import SPLITS, split_prompts
from helpers.dataset_build.stages import FOLDER, Row, Stage, digest_of, stage, tail
from helpers.dataset_build.verdicts import TOO_FEW, candidate_rows, example_of, write_verdicts
from helpers.errors import CourseError
from helpers.files import file_digest, find_data, write_json, write_jsonl, write_text, writing
from helpers.judging.judge import Judge
from helpers.judging.measure import gold_metadata
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.text.chat import ChatEncoder
from helpers.text.sources import find_source

MANIFEST, CARD = "manifest.json", "README.md"
UNJUDGED = "not judged yet"
SFT_NAMES = {"train": "sft_train", "dev": "sft_val", "test": "sft_test"}
# What shapes the prompts; a change of anything else leaves them as they are.
OF_PROMPTS = (
    "source_split limit language turn max_turns min_chars max_chars max_prompt_tokens keep_toxic"
    " personal_data near_duplicate seed"
).split()


def build_data_set(
    settings: BuildSettings, judge: Judge, identity: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write the data set into `settings.output_dir` and return its manifest.

    Args:
        settings: what to build; see `BuildSettings`.
        judge: chooses best and worst.
        identity: all that the judge's choices depend on beside what it is shown; its `model`, or else the
            judge's name, stands in the rows. Default: the name.

    Raises:
        CourseError: for settings that cannot work, a directory with other things in it, or no pair at all.
    """
    check_settings(settings)
    profile = pick_profile(settings.profile)
    writers = authors(settings, profile)
    output = _open(Path(settings.output_dir))
    identity = identity if identity is not None else {"name": judge.name}
    encoder = ChatEncoder(loading.load_tokenizer(writers[0].model_name))
    prompts = _prompts(settings, encoder, output)
    if judge.name == "gold" and any(gold_metadata(example_of(row)) is None for row in prompts.rows):
        raise CourseError(
            f"--judge gold: prompts of {settings.source} carry no facts to judge by, as only those of the"
            " bundled world do; choose another judge"
        )
    answers = [write_candidates(settings, profile, author, prompts, output) for author in writers]
    verdicts = write_verdicts(settings, judge, identity, prompts, answers, output)
    rows, _ = candidate_rows(settings, prompts, answers)
    found = {row["row_id"]: row for row in verdicts.rows}
    outcomes = all_outcomes(rows, found, settings, TOO_FEW, UNJUDGED)
    files, spread = _files(settings, rows, outcomes, identity.get("model") or judge.name)
    (output / MANIFEST).unlink(missing_ok=True)  # it comes back when it is true again
    manifest = {
        "format": FORMAT,
        **({"date": settings.date} if settings.date else {}),
        **_origin(settings, encoder, prompts),
        "parameters": _parameters(settings, profile.name, writers),
        "prompts": prompts.summary,
        "authors": [answer.summary for answer in answers],
        "answers_left_out": dict(sorted(verdicts.summary["left_out"].items())),
        "judge": {**identity, "is_proxy": judge.is_proxy},
        "verdicts": {
            **_manners(found, {row["row_id"]: len(row["answers"]) for row in rows}),
            "stopped": verdicts.summary["stopped"],
        },
        "pairs": _pairs(rows, outcomes),
        "clusters": spread,
        "files": _write(output, files),
    }
    write_text(output / CARD, describe(manifest))
    write_json(output / MANIFEST, manifest)
    return manifest


def _open(output: Path) -> Path:
    """The output directory, unless it holds something that is not a build's."""
    if output.exists() and not output.is_dir():
        raise CourseError(f"--output_dir {output} is a file: name a directory")
    if output.is_dir() and any(output.iterdir()) and not (output / FOLDER).is_dir():
        raise CourseError(
            f"--output_dir {output} holds other things: name an empty directory, or a build's own"
        )
    with writing(output):
        (output / FOLDER).mkdir(parents=True, exist_ok=True)
    return output


def _prompts(settings: BuildSettings, encoder: ChatEncoder, output: Path) -> Stage:
    source = find_source(find_data(settings.source), settings.source_split)
    inputs = {
        "source": digest_of(source),
        "tokenizer": encoder.fingerprint,
        "settings": {name: getattr(settings, name) for name in OF_PROMPTS},
    }

    def work(_: str) -> tuple[list[Row], Row]:
        examples, report = read_prompts(settings, encoder)
        rows = [
            {"row_id": e.row_id, "prompt_messages": [dict(m) for m in e.messages], **e.metadata}
            for e in examples
        ]
        names = ("format", "read", "kept", "not_taken", "dropped", "examples_of_dropped")
        return rows, {name: asdict(report)[name] for name in names}

    return stage(output / FOLDER / "prompts.jsonl", inputs, work)


def _files(
    settings: BuildSettings, rows: Sequence[Row], outcomes: dict[str, Outcome], judge_name: str
) -> tuple[dict[str, list[Row]], int]:
    """Rows of every file by its name, and how many clusters of similar prompts there are."""
    texts = ["\n".join(message["content"] for message in row["prompt_messages"]) for row in rows]
    places, members = split_prompts(texts, settings.split_similarity, settings.dev_share, settings.test_share)
    files: dict[str, list[Row]] = {
        name: [] for split in SPLITS for name in (f"{split}_prefs", f"{split}_gen", SFT_NAMES[split])
    }
    for row, split in zip(rows, places, strict=True):
        outcome = outcomes[row["row_id"]]
        pair = None if outcome.reason else pair_row(row, outcome, judge_name)
        files[f"{split}_gen"].append(prompt_row(row, pair))
        if pair:
            files[f"{split}_prefs"].append(pair)
            files[SFT_NAMES[split]].append(sft_row(pair))
    return files, len(set(members))


def _write(output: Path, files: dict[str, list[Row]]) -> dict[str, Any]:
    """Write what has rows; a file of an earlier build that has none now is removed."""
    written = {}
    for name, rows in files.items():
        path = output / f"{name}.jsonl"
        if not rows:
            path.unlink(missing_ok=True)
            continue
        write_jsonl(path, rows)
        written[path.name] = {"rows": len(rows), "sha256": file_digest(path)}
    return written


def _origin(settings: BuildSettings, encoder: ChatEncoder, prompts: Stage) -> dict[str, Any]:
    source = find_source(find_data(settings.source), settings.source_split)
    return {
        "source": {"name": tail(source), "format": prompts.summary["format"], "sha256": digest_of(source)},
        "chat_template": encoder.fingerprint,
    }


def _parameters(settings: BuildSettings, profile: str, writers: Sequence[Author]) -> dict[str, Any]:
    """The settings, without places on this machine."""
    skipped = ("source", "output_dir", "date", "models", "model_name", "profile")
    own = BuildSettings.__dataclass_fields__
    shown = {name: getattr(settings, name) for name in own if name not in skipped}
    names = [f"{w.name} ({'adapter on ' if w.adapter else ''}{tail(w.model_name)})" for w in writers]
    return {"profile": profile, "models": names, **shown}


def _manners(verdicts: dict[str, Row], counts: dict[str, int]) -> dict[str, Any]:
    """How the judge behaved: readable answers, agreement of the two orders, taste for the first place."""
    statuses = Counter(v[order]["status"] for v in verdicts.values() for order in ("first", "second"))
    sound = [
        (v["first"], v["second"], counts[row_id])
        for row_id, v in verdicts.items()
        if v["first"]["status"] == v["second"]["status"] == "ok"
    ]
    first = sum((a["best"] == 0) + (b["best"] == count - 1) for a, b, count in sound)
    same = sum(same_answer("best", a, b) for a, b, _ in sound)
    return {
        "prompts_judged": len(verdicts),
        "status": dict(sorted(statuses.items())),
        "same_best_in_both_orders": round(same / len(sound), 4) if sound else None,
        "best_is_shown_first": round(first / (2 * len(sound)), 4) if sound else None,
        "by_chance": round(sum(1 / count for *_, count in sound) / len(sound), 4) if sound else None,
    }


def _pairs(rows: Sequence[Row], outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Kept and dropped, each reason with examples; whose answers were chosen; which of a pair is longer."""
    dropped: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    chosen: Counter[str] = Counter()
    longer = kept = 0
    for row in rows:
        outcome = outcomes[row["row_id"]]
        if outcome.reason:
            dropped[outcome.reason] = dropped.get(outcome.reason, 0) + 1
            if len(examples.setdefault(outcome.reason, [])) < 3:
                examples[outcome.reason].append(row["row_id"])
            continue
        best, worst = row["answers"][outcome.best], row["answers"][outcome.worst]
        chosen[best["author"]] += 1
        longer += len(best["text"]) > len(worst["text"])
        kept += 1
    if not kept:
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        raise CourseError(f"no pair is left: {reasons}; lower the thresholds, or look at the judge")
    return {
        "kept": kept,
        "dropped": dict(sorted(dropped.items())),
        "examples_of_dropped": dict(sorted(examples.items())),
        "chosen_by_author": dict(sorted(chosen.items())),
        "chosen_longer_share": round(longer / kept, 4),
    }
