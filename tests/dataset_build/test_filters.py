"""Filters of prompts: each drops what it should, for its own reason, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.dataset_build.prompts import looks_english, read_prompts
from helpers.dataset_build.settings import BuildSettings
from helpers.errors import CourseError
from helpers.models.loading import load_tokenizer
from helpers.text.chat import ChatEncoder

QUESTION = "What should I cook for six guests on Sunday?"
AT = "@"


@pytest.fixture(scope="module")
def encoder(tiny_dir: Path) -> ChatEncoder:
    return ChatEncoder(load_tokenizer(tiny_dir / "model"))


def talk(*questions: str, **row: Any) -> dict[str, Any]:
    """A conversation as WildChat has it; `message` holds flags of every message, the rest is the row's."""
    flags = {"language": "English", "toxic": False, "redacted": False, **row.pop("message", {})}
    messages = []
    for question in questions:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "An answer."}]
    return {
        "conversation_hash": "0",
        "conversation": [{**flags, **message} for message in messages],
        "turn": len(questions),
        "language": flags["language"],
        "toxic": False,
        "redacted": False,
        "openai_moderation": [{"flagged": False}],
        "detoxify_moderation": [{"toxicity": 0.01, "insult": 0.02}],
        **row,
    }


@pytest.fixture
def filtered(tmp_path: Path, encoder: ChatEncoder):
    """`filtered(row, …, max_chars=9)`: (texts kept, reasons), one harmless row added so that one is kept."""

    def run(*rows: dict[str, Any], **changes: Any):
        path = tmp_path / "talks.jsonl"
        extra = talk("Please name three rivers in Europe.")
        numbered = [{**row, "conversation_hash": f"talk{i}"} for i, row in enumerate([extra, *rows])]
        path.write_text("".join(json.dumps(row) + "\n" for row in numbered))
        settings = BuildSettings(source=str(path), output_dir="unused", **changes)
        examples, report = read_prompts(settings, encoder)
        assert report.read == report.kept + report.not_taken + sum(report.dropped.values())
        return [[m["content"] for m in e.messages] for e in examples][1:], report

    return run


def test_an_ordinary_first_question_is_kept(filtered):
    kept, report = filtered(talk(QUESTION, "And what to drink?"))
    assert kept == [[QUESTION]]
    assert report.format == "wildchat" and report.dropped == {}


def test_all_up_to_the_last_question_on_request(filtered):
    kept, _ = filtered(talk(QUESTION, "And what to drink?"), turn="last")
    assert kept == [[QUESTION, "An answer.", "And what to drink?"]]


MODERATED = [{"flagged": False}, {"flagged": True}]
DROPPED = [
    ("language", talk("Was koche ich am Sonntag?", message={"language": "German"}), {}),
    ("language", talk("What is this?", language="French", message={"language": None}), {}),
    ("too many turns", talk(*[f"{QUESTION} {i}" for i in range(5)]), {}),
    ("too short", talk("hi"), {}),
    ("too long", talk("why " * 2000), {}),
    ("too many tokens", talk(QUESTION), {"max_prompt_tokens": 18}),
    ("toxic", talk(QUESTION, toxic=True), {}),
    ("toxic", talk(QUESTION, message={"toxic": True}), {}),
    ("toxic", talk(QUESTION, openai_moderation=MODERATED), {}),
    ("toxic", talk(QUESTION, detoxify_moderation=[{"insult": 0.9}]), {}),
    ("personal data", talk(f"{QUESTION} Write to ann{AT}example.org."), {}),
    ("personal data", talk(QUESTION, redacted=True), {}),
    ("exact duplicate", talk("please name three rivers, in europe!"), {}),
    ("near duplicate", talk("Hello there: please name three rivers in Europe."), {"near_duplicate": 0.5}),
]


@pytest.mark.parametrize(("reason", "row", "changes"), DROPPED)
def test_it_is_dropped_for_that_reason_with_an_example(filtered, reason, row, changes):
    kept, report = filtered(row, **changes)
    assert kept == [] and report.dropped == {reason: 1}
    (example,) = report.examples_of_dropped[reason]
    assert example.startswith("talk1: ")


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (talk("Was koche ich am Sonntag?", message={"language": "German"}), {"language": "any"}),
        (talk(*[f"{QUESTION} {i}" for i in range(5)]), {"max_turns": 5}),
        (talk(QUESTION, toxic=True), {"keep_toxic": True}),
        (talk(QUESTION, redacted=True), {"personal_data": "keep"}),
        (talk(QUESTION, detoxify_moderation=[{"insult": 0.4}]), {}),
        (talk("Hello there: please name three rivers in Europe."), {}),
        (talk("Please name four rivers in Asia, and two lakes."), {}),
    ],
)
def test_it_is_kept(filtered, row, changes):
    kept, report = filtered(row, **changes)
    assert len(kept) == 1 and report.dropped == {}


def test_another_language_is_taken_by_the_flag_of_its_message(filtered):
    german = talk("Was koche ich am Sonntag?", language="English", message={"language": "German"})
    _, report = filtered(german, language="german")
    assert report.kept == 1 and report.examples_of_dropped == {"language": ["talk0: English"]}


def test_personal_data_is_masked_on_request_and_never_quoted(filtered):
    secret = f"ann{AT}example.org"
    kept, _ = filtered(talk(f"Write a kind letter to {secret}."), personal_data="mask")
    assert kept == [["Write a kind letter to [EMAIL]."]]
    _, report = filtered(talk(f"Write a kind letter to {secret}."))
    assert secret not in report.render()


def test_masked_prompts_that_differ_in_what_was_masked_are_duplicates(filtered):
    letters = [talk(f"Write a kind letter to {name}{AT}example.org.") for name in ("ann", "bob")]
    kept, report = filtered(*letters, personal_data="mask")
    assert len(kept) == 1 and report.dropped == {"exact duplicate": 1}


def test_a_larger_limit_keeps_what_a_smaller_one_took(filtered):
    rows = [talk(f"Tell me about the number {n} and what it is good for, {n}.") for n in range(20)]
    few, report = filtered(*rows, limit=5)
    more, _ = filtered(*rows, limit=12)
    assert report.not_taken == 16
    assert {text for (text,) in few} <= {text for (text,) in more}


def test_rows_with_one_id_get_different_ones(tmp_path, encoder):
    path = tmp_path / "rows.jsonl"
    rows = [{"row_id": "x", "prompt_text": text} for text in (QUESTION, "Please name three rivers.")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples, _ = read_prompts(BuildSettings(source=str(path), output_dir="unused"), encoder)
    assert [example.row_id for example in examples] == ["x", "x#2"]


def test_nothing_left_is_an_error_with_the_counts(tmp_path, encoder):
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(talk("hi")))
    with pytest.raises(CourseError, match=r"passes the filters(?s:.*)too short +1"):
        read_prompts(BuildSettings(source=str(path), output_dir="unused"), encoder)


@pytest.mark.parametrize(
    "text", [QUESTION, "Vector of 3 ints", "Caf\u00e9?", "Fix: for i in range(3): print(i)", "2+2"]
)
def test_english_or_too_short_to_tell(text):
    assert looks_english(text)


@pytest.mark.parametrize(
    "text",
    [
        "\u041a\u0430\u043a \u0434\u0435\u043b\u0430?",
        "\u4f60\u597d\u5417",
        "Quelle est la capitale de la France et pourquoi cette ville-ci, dites-moi",
        "Ich habe gestern einen sehr sch\u00f6nen Kuchen gebacken und gegessen",
    ],
)
def test_not_english(text):
    assert not looks_english(text)
