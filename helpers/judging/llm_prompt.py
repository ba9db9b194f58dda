"""What an LLM judge is shown, and how its answer is read.

Candidate text comes from a model that may have learnt to please judges, or from a learner who tries. It is
kept inside three ways: it stands between marks whose code is a hash of all the material, which no text can
contain in advance; markers of chat templates in it are broken up, so that a server cannot take them for the
end of the turn; and the instructions of the JSON form and of the rubric, in the system turn, say that
nothing between the marks is an order (models that need the letter form do not follow so long a text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from helpers.errors import CourseError
from helpers.files import fingerprint, read_text
from helpers.judging.judge import EXCLUDE_TAGS, Choice

LETTERS = "ABCDEFGH"
INSTRUCTIONS = Path(__file__).parent / "instructions"
# Control tokens of the usual chat templates (<|…|>, <｜…｜>, [INST], <s>, <<SYS>>, <start_of_turn>, …), and
# our own marks at the start of a line, for a judge that does not look at their code.
CONTROL = re.compile(
    r"<(?=[|｜])|(?<=[|｜])>|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_))|"
    r"<(?=/?(?:s|bos|eos|pad|unk|im_start|im_end|think|SYS>|start_of_turn|end_of_turn)>)|<(?=</?SYS)|(?m:^)<(?=<<)"
)


# ---------------------------------------------------------------------- instructions
@dataclass(frozen=True)
class Instructions:
    """A versioned text; `hash` goes into every result and every cache key."""

    name: str
    text: str

    @property
    def hash(self) -> str:
        """16 hex digits."""
        return fingerprint(self.name, self.text)


@cache
def instructions(name: str) -> Instructions:
    """Read instructions/<name>.md."""
    text = read_text(INSTRUCTIONS / f"{name}.md").strip()
    return Instructions(name, text.replace("{tags}", ", ".join(f"`{tag}`" for tag in EXCLUDE_TAGS)))


# ---------------------------------------------------------------------- the material
def without_control(text: str) -> str:
    """Break up what a chat template might read as a control token; a space makes it plain text."""
    return CONTROL.sub(lambda found: " " + found[0] if found[0] == ">" else found[0] + " ", text)


def material(messages: Sequence[Mapping[str, Any]], answers: Mapping[str, str]) -> tuple[str, str]:
    """Conversation and answers between marks, and the code on the marks.

    Equal material gives equal text, which the cache needs. The code depends on all of it, so that whoever
    writes an answer would have to find a hash that its own text contains.
    """
    turns = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in messages)
    parts = {"CONVERSATION": turns, **{f"ANSWER {name}".strip(): text for name, text in answers.items()}}
    parts = {title: without_control(text) for title, text in parts.items()}
    code = fingerprint("marks", parts)
    while any(code in text for text in parts.values()):
        code = fingerprint(code)
    blocks = [f"<<<{title} {code}\n{text}\n<<<END {title} {code}" for title, text in parts.items()]
    return "\n\n".join(blocks), code


def choice_text(messages: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> str:
    """The user turn that asks for best and worst."""
    letters = check_count(responses)
    shown, code = material(messages, dict(zip(letters, responses, strict=True)))
    names = f"{', '.join(letters[:-1])} and {letters[-1]}"
    return f"{shown}\n\nThe marks with code {code} end here. Compare the answers {names}. Reply in JSON."


def letter_text(messages: Sequence[Mapping[str, Any]], responses: Sequence[str], which: str) -> str:
    """The user turn that asks for the letter of the best or the worst answer."""
    letters = check_count(responses)
    shown, _ = material(messages, dict(zip(letters, responses, strict=True)))
    names = f"{', '.join(letters[:-1])} or {letters[-1]}"
    ask = which if which == "better" else f"the {which}"  # small models follow few words, and these they do
    return f"{shown}\n\nWhich answer is {ask}, {names}? The letter of the {which} answer is"


def rubric_text(messages: Sequence[Mapping[str, Any]], response: str) -> str:
    """The user turn that asks for grades."""
    shown, code = material(messages, {"": response})
    return f"{shown}\n\nThe marks with code {code} end here. Grade the answer. Reply in JSON."


def check_count(responses: Sequence[str]) -> str:
    """The letters of the responses; CourseError for fewer than two or too many."""
    if not 2 <= len(responses) <= len(LETTERS):
        raise CourseError(f"a judge compares 2 to {len(LETTERS)} responses, not {len(responses)}")
    return LETTERS[: len(responses)]


# ---------------------------------------------------------------------- what may come back
class Strict(BaseModel):
    """No field missing, none to spare, none of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Grades(Strict):
    """A rubric's grades."""

    reason: str
    helpful: int = Field(ge=1, le=5)
    harmless: int = Field(ge=1, le=5)
    honest: int = Field(ge=1, le=5)


@cache
def choice_model(count: int) -> type[Strict]:
    """The verdict on `count` answers, as a schema that the API enforces and we check again."""
    letter = Literal[tuple(LETTERS[:count])]  # type: ignore[valid-type]
    tag = Literal[EXCLUDE_TAGS]  # type: ignore[valid-type]
    fields: dict[str, Any] = {
        "reason": (str, ...),
        "best": (letter, ...),
        "worst": (letter, ...),
        "confidence": (float, Field(ge=0, le=1)),
        "preference_strength": (int, Field(ge=1, le=5)),
        "usable": (bool, ...),
        "training_quality": (int, Field(ge=1, le=5)),
        "exclude_tags": (list[tag], ...),
    }
    return create_model("Verdict", __base__=Strict, **fields)


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema in the form that strict mode takes: every field required, nothing else allowed."""
    return model.model_json_schema()


class Unreadable(Exception):
    """The judge's answer does not follow the form."""


def read_json_answer(model: type[Strict], text: str) -> Any:
    """Read an answer that must be one JSON object, alone or in one code fence."""
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", text, re.DOTALL)
    try:
        return model.model_validate_json(fenced[1] if fenced else text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Unreadable(f"{where}: {first['msg']}" if where else first["msg"]) from None


def read_choice(text: str, count: int) -> Choice:
    """A verdict in JSON; Unreadable where it breaks the form or names one answer twice."""
    verdict = read_json_answer(choice_model(count), text)
    if verdict.best == verdict.worst:
        raise Unreadable("best and worst are the same answer")
    return Choice(
        best=LETTERS.index(verdict.best),
        worst=LETTERS.index(verdict.worst),
        confidence=verdict.confidence,
        strength=verdict.preference_strength,
        usable=verdict.usable,
        training_quality=verdict.training_quality,
        exclude_tags=tuple(dict.fromkeys(verdict.exclude_tags)),
        reason=verdict.reason[:500],
    )


def read_letter(text: str, count: int) -> int:
    """The place of the one capital letter that the answer consists of, marks around it apart."""
    found = re.fullmatch(r"[\s*_`\"'(\[]*([A-H])[\s*_`\"')\].:]*", text)
    if not found or found[1] not in LETTERS[:count]:
        raise Unreadable(f"no single letter: {json.dumps(text[:40])}")
    return LETTERS.index(found[1])
