"""The formats data sets come in: how a row is recognised, and how it becomes examples.

A parser raises `RowError` with a reason for a row it cannot use; the loader counts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.text.messages import ROLE_NAMES, Message, role_problem, user

Row = dict[str, Any]
ID_FIELDS = ("row_id", "id", "prompt_id", "message_id", "conversation_hash", "conversation_id")
KINDS = ("preference", "sft", "prompts")


@dataclass(frozen=True)
class Example:
    """The one internal schema: a prompt and no response, an answer, or (chosen, rejected).

    `metadata` keeps every field of the row that is not one of these.
    """

    row_id: str
    messages: tuple[Message, ...]
    responses: tuple[str, ...]
    metadata: dict[str, Any]


class RowError(Exception):
    """A row that cannot be used, with the reason it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


Matcher = Callable[[Row], bool]
Parser = Callable[[Row, str, str], list[Example]]  # (row, row_id, kind)


@dataclass(frozen=True)
class Format:
    """A row format: what it can be read as, how it is told from others, and its parser."""

    name: str
    fields: str  # for messages to the user
    kinds: tuple[str, ...]
    matches: Matcher
    parse: Parser


# Pieces that parsers share


def text_of(row: Row, name: str) -> str:
    """A text field; absent, of another type or not encodable it raises RowError."""
    if row.get(name) is None:
        raise RowError("missing field", name)
    return _text(row[name], name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError("wrong type", f"{name} is a {type(value).__name__}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and no tokenizer takes
        raise RowError("not valid Unicode", name) from None
    return value


def messages_of(row: Row, name: str) -> list[Message]:
    """A field of messages, in any common spelling of role and content."""
    if row.get(name) is None:
        raise RowError("missing field", name)
    value = row[name]
    if not isinstance(value, (list, tuple)):
        raise RowError("wrong type", f"{name} is a {type(value).__name__}, not a list of messages")
    return [_message(item, f"{name}[{place}]") for place, item in enumerate(value)]


def _message(item: Any, name: str) -> Message:
    if not isinstance(item, dict):
        raise RowError("wrong type", f"{name} is a {type(item).__name__}, not a message")
    role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if role is None or content is None:
        raise RowError("missing field", f"{name} has no {'role' if role is None else 'content'}")
    if isinstance(content, list):  # parts, as multimodal chats have them
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise RowError("wrong type", f"{name} is not text alone")
        content = "".join(_text(part.get("text"), name) for part in content)
    role = _text(role, name)
    return {"role": ROLE_NAMES.get(role, role), "content": _text(content, name)}


def make_example(
    row: Row, row_id: str, messages: Sequence[Message], responses: Sequence[str], used: Iterable[str]
) -> Example:
    """Check what every format must satisfy; `used` are the fields that metadata leaves out."""
    problem = role_problem(messages)
    if problem:
        raise RowError("bad role order", problem)
    for message in messages:
        if not message["content"].strip():
            reason = "empty prompt" if message is messages[-1] else "empty message"
            raise RowError(reason, f"a blank {message['role']} message")
    if not all(response.strip() for response in responses):
        raise RowError("empty response")
    if len(responses) == 2 and responses[0] == responses[1]:
        raise RowError("chosen equal to rejected")
    left_out = {"row_id", *used}
    metadata = {name: value for name, value in row.items() if name not in left_out}
    return Example(row_id, tuple(messages), tuple(responses), metadata)


def _last_answer(messages: list[Message]) -> tuple[list[Message], str]:
    """Split a conversation into the prompt and its last message, which must be the assistant's."""
    if not messages or messages[-1]["role"] != "assistant":
        raise RowError("bad role order", "a conversation to learn from ends with the assistant")
    return messages[:-1], messages[-1]["content"]


def _from_pair(
    row: Row, row_id: str, kind: str, chosen: list[Message], rejected: list[Message], used: Iterable[str]
) -> list[Example]:
    """Two conversations that differ in their last answer."""
    prompt, answer = _last_answer(chosen)
    other_prompt, other_answer = _last_answer(rejected)
    if prompt != other_prompt:
        raise RowError("prompts differ")
    responses = {"preference": (answer, other_answer), "sft": (answer,), "prompts": ()}[kind]
    return [make_example(row, row_id, prompt, responses, used)]


# Parsers


def _project(row: Row, row_id: str, kind: str) -> list[Example]:
    """The university project's rows, and this kit's own: prompt_messages and *_text fields."""
    if row.get("prompt_messages") is not None:
        messages = messages_of(row, "prompt_messages")
    elif row.get("prompt_text") is not None:
        messages = [user(text_of(row, "prompt_text"))]
    else:
        raise RowError("missing field", "prompt_messages")
    names: tuple[str, ...] = ()
    if kind == "preference":
        names = ("chosen_text", "rejected_text")
    elif kind == "sft":
        answers = ("response_text", "chosen_text", "reference_response_text")
        names = (next((name for name in answers if row.get(name) is not None), "response_text"),)
    responses = [text_of(row, name) for name in names]
    return [make_example(row, row_id, messages, responses, ("prompt_messages", *names))]


def _hh(row: Row, row_id: str, kind: str) -> list[Example]:
    """Anthropic HH-RLHF: transcripts, equal up to the last answer (Bai et al. 2022, arXiv 2204.05862)."""
    chosen, rejected = (transcript_messages(text_of(row, name)) for name in ("chosen", "rejected"))
    return _from_pair(row, row_id, kind, chosen, rejected, ("chosen", "rejected"))


def transcript_messages(text: str) -> list[Message]:
    r"""Split ``\n\nHuman: … \n\nAssistant: …`` into messages, white space around each removed."""
    start, *parts = re.split(r"(?:\A|\n\n)(Human|Assistant):", text)
    if start.strip():
        raise RowError("not a transcript", "it does not begin with 'Human:' or 'Assistant:'")
    roles = {"Human": "user", "Assistant": "assistant"}
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [{"role": roles[name], "content": content.strip()} for name, content in pairs]


def _ultrafeedback(row: Row, row_id: str, kind: str) -> list[Example]:
    """Binarised UltraFeedback and TRL's conversational pairs: chosen and rejected are lists of messages."""
    chosen, rejected = messages_of(row, "chosen"), messages_of(row, "rejected")
    if chosen and chosen[0]["role"] == "assistant":  # answers alone, the prompt beside them
        prompt = _prompt_field(row)
        chosen, rejected = prompt + chosen, prompt + rejected
    return _from_pair(row, row_id, kind, chosen, rejected, ("chosen", "rejected", "prompt", "messages"))


def _prompt_field(row: Row) -> list[Message]:
    """`prompt`, as text or as messages."""
    if isinstance(row.get("prompt"), (list, tuple)):
        return messages_of(row, "prompt")
    return [user(text_of(row, "prompt"))]


def _completions(row: Row, row_id: str, kind: str) -> list[Example]:
    """Original UltraFeedback: several rated completions; the best against the worst.

    The fine-grained score is preferred: a part of the `overall_score` values is known to be wrong.
    """
    prompt = [user(text_of(row, "instruction"))]
    if kind == "prompts":
        return [make_example(row, row_id, prompt, (), ("instruction",))]
    completions = row["completions"]
    if not isinstance(completions, (list, tuple)):
        raise RowError("wrong type", "completions is not a list")
    rated = sorted((_rated(item) for item in completions), key=lambda pair: -pair[0])
    if not rated or (kind == "preference" and rated[0][0] == rated[-1][0]):
        raise RowError("no preference", "all completions are rated alike")
    responses = [rated[0][1], rated[-1][1]] if kind == "preference" else [rated[0][1]]
    scores = {"chosen_score": rated[0][0], "rejected_score": rated[-1][0]}
    return [make_example({**row, **scores}, row_id, prompt, responses, ("instruction", "completions"))]


def _rated(item: Any) -> tuple[float, str]:
    if not isinstance(item, dict):
        raise RowError("wrong type", "a completion is not an object")
    scores = (item.get("fine-grained_score"), item.get("overall_score"))
    score = next((score for score in scores if score is not None), None)
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise RowError("missing field", "a completion has no numeric fine-grained_score or overall_score")
    return float(score), text_of(item, "response")


def _instruction(answer: str, context: str) -> Parser:
    """Alpaca and Dolly: an instruction, perhaps a text it is about, and an answer."""

    def parse(row: Row, row_id: str, kind: str) -> list[Example]:
        prompt = instruction_prompt(text_of(row, "instruction"), row.get(context))
        responses = [] if kind == "prompts" else [text_of(row, answer)]
        return [make_example(row, row_id, prompt, responses, ("instruction", context, answer))]

    return parse


def instruction_prompt(instruction: str, context: Any) -> list[Message]:
    """One user message: the instruction and, a blank line below, the text it is about, if any."""
    context = "" if context is None else _text(context, "input").strip()
    if context in ("", "<noinput>"):
        return [user(instruction)]
    return [user(f"{instruction}\n\n{context}")]


def _seed_tasks(row: Row, row_id: str, kind: str) -> list[Example]:
    """Self-instruct seed tasks: one instruction with several instances, each an example."""
    instruction, instances = text_of(row, "instruction"), row["instances"]
    if not isinstance(instances, list) or not instances:
        raise RowError("wrong type", "instances is not a list with at least one entry")
    examples = []
    for number, instance in enumerate(instances):
        if not isinstance(instance, dict):
            raise RowError("wrong type", "an instance is not an object")
        prompt = instruction_prompt(instruction, instance.get("input"))
        responses = [] if kind == "prompts" else [text_of(instance, "output")]
        name = f"{row_id}#{number}" if number else row_id
        examples.append(make_example(row, name, prompt, responses, ("instruction", "instances")))
    return examples


def _conversation(row: Row, row_id: str, kind: str) -> list[Example]:
    """A list of messages; the last answer is the response."""
    names = ("messages", "conversations", "conversation")
    name = next((name for name in names if row.get(name) is not None), names[0])
    messages = messages_of(row, name)
    if kind == "prompts" and messages and messages[-1]["role"] == "user":
        return [make_example(row, row_id, messages, (), (name, "prompt"))]
    prompt, answer = _last_answer(messages)
    return [make_example(row, row_id, prompt, () if kind == "prompts" else (answer,), (name, "prompt"))]


def _wildchat(row: Row, row_id: str, kind: str) -> list[Example]:
    """WildChat (Zhao et al. 2024, arXiv 2405.01470): messages that carry a language and flags of their own.

    The flags are kept in metadata as `message_flags`, one a message; those of the row stay as they are.
    """
    examples = _conversation(row, row_id, kind)
    names = ("language", "toxic", "redacted")
    flags = [{name: message[name] for name in names if name in message} for message in row["conversation"]]
    return [replace(e, metadata={**e.metadata, "message_flags": flags}) for e in examples]


def _prompt(row: Row, row_id: str, kind: str) -> list[Example]:
    """Plain rows: prompt with completion or response, or with chosen and rejected, as texts."""
    names: tuple[str, ...] = ()
    if kind == "preference":
        names = ("chosen", "rejected")
    elif kind == "sft":
        answers = ("completion", "response", "chosen")
        names = (next((name for name in answers if row.get(name) is not None), "completion"),)
    responses = [_answer_field(row, name) for name in names]
    return [make_example(row, row_id, _prompt_field(row), responses, ("prompt", *names))]


def _answer_field(row: Row, name: str) -> str:
    """An answer, as text or as a list with one assistant message."""
    if isinstance(row.get(name), list):
        return _last_answer(messages_of(row, name))[1]
    return text_of(row, name)


def _has(*names: str) -> Matcher:
    return lambda row: all(name in row for name in names)


def _has_any(*names: str) -> Matcher:
    return lambda row: any(name in row for name in names)


def _is_pair_of_lists(row: Row) -> bool:
    return isinstance(row.get("chosen"), (list, tuple)) and isinstance(row.get("rejected"), (list, tuple))


def _is_transcript(row: Row) -> bool:
    chosen = row.get("chosen")
    if not isinstance(chosen, str) or "prompt" in row:
        return False
    return bool(re.match(r"\s*(Human|Assistant):", chosen))


def _format(name: str, fields: str, kinds: tuple[str, ...], parse: Parser) -> Format:
    """A format recognised by having all of `fields`."""
    return Format(name, fields, kinds, _has(*fields.split(", ")), parse)


ANSWERS = ("sft", "prompts")
FORMATS = (  # the first that matches a row names its format
    Format(
        "project",
        "prompt_messages or prompt_text",
        KINDS,
        _has_any("prompt_messages", "prompt_text"),
        _project,
    ),
    Format("hh", "chosen, rejected (transcripts)", KINDS, _is_transcript, _hh),
    Format("ultrafeedback", "chosen, rejected (messages)", KINDS, _is_pair_of_lists, _ultrafeedback),
    _format("ultrafeedback_original", "instruction, completions", KINDS, _completions),
    _format("seed_tasks", "instruction, instances", ANSWERS, _seed_tasks),
    _format("dolly", "instruction, response", ANSWERS, _instruction("response", "context")),
    _format("alpaca", "instruction, output", ANSWERS, _instruction("output", "input")),
    Format("messages", "messages", ANSWERS, _has_any("messages", "conversations"), _conversation),
    _format("wildchat", "conversation", ANSWERS, _wildchat),
    _format("prompt", "prompt", KINDS, _prompt),
)
