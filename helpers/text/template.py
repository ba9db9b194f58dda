"""What a chat template does, found out by rendering it rather than by knowing the model's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from helpers.errors import CourseError
from helpers.text.messages import Message, user

QUESTION, ANSWER, SYSTEM = "Qsentinelq", "Asentinela", "Ssentinels"

# Some Llama templates print today's date unless they are told one: the same seed must give the same prompt.
FIXED_DATE = {"date_string": "26 Jul 2024"}


@dataclass(frozen=True)
class TemplateFacts:
    """Where a template puts an answer: ``prompt | opening | lead | answer | trail | end of turn``.

    `opening` is text that every answer starts with (Qwen3's empty thinking block): it belongs to the
    prompt. `lead` and `trail` are white space around the answer (Llama 2): they belong to the response.
    `trims_left` and `trims_right` say whether the template strips the answer's own white space.
    """

    opening: str
    lead: str
    trail: str
    end_of_turn_id: int
    supports_system: bool
    trims_left: bool
    trims_right: bool


def render(tokenizer: Any, messages: Sequence[Message], *, generation_prompt: bool) -> str:
    """Return the template's text for `messages`. A missing or refusing template raises CourseError."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise CourseError(
            f"the tokenizer of {name!r} has no chat template, so there is no telling how it marks turns. "
            "Use the model's instruct version, or set tokenizer.chat_template to the format it was trained on"
        )
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation_prompt, **FIXED_DATE
        )
    except (TemplateError, TypeError, ValueError) as problem:
        roles = ", ".join(message["role"] for message in messages)
        raise CourseError(
            f"the chat template of {name!r} refuses a conversation of roles {roles}: {problem}"
        ) from None
    return str(text)


def probe_template(tokenizer: Any) -> TemplateFacts:
    """Find out what the template puts around an answer, and fail loudly where training could not work.

    Raises CourseError if the answer does not follow the generation prompt, or if no control token ends it:
    a model trained on such texts would never learn to stop.
    """
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    prompt = render(tokenizer, [user(QUESTION)], generation_prompt=True)
    around = _around_answer(tokenizer, prompt, ANSWER, name)
    before, after = around
    blank = not before.strip()
    trail = after[: len(after) - len(after.lstrip())]
    return TemplateFacts(
        opening="" if blank else before,
        lead=before if blank else "",
        trail=trail,
        end_of_turn_id=_end_of_turn(tokenizer, after[len(trail) :], name),
        supports_system=_supports_system(tokenizer),
        trims_left=_around_answer(tokenizer, prompt, f" \n{ANSWER}", name) == around,
        trims_right=_around_answer(tokenizer, prompt, f"{ANSWER} \n", name) == around,
    )


def _around_answer(tokenizer: Any, prompt: str, answer: str, name: str) -> tuple[str, str]:
    """Text between the generation prompt and the answer sentinel, and text after the sentinel."""
    messages = [user(QUESTION), {"role": "assistant", "content": answer}]
    whole = render(tokenizer, messages, generation_prompt=False)
    if not whole.startswith(prompt):
        raise CourseError(
            f"the chat template of {name!r} asks for an answer with {prompt[-40:]!r} but writes finished "
            "answers differently: trained and sampled prompts would not be the same. Use another template"
        )
    if whole.count(ANSWER) != 1:
        raise CourseError(f"the chat template of {name!r} alters or drops what the assistant says")
    before, after = whole[len(prompt) :].split(ANSWER)
    return before, after


def _end_of_turn(tokenizer: Any, after: str, name: str) -> int:
    """Id of the control token at the start of `after`, the text behind an answer."""
    ids = tokenizer(after, add_special_tokens=False)["input_ids"] if after else []
    if not ids or ids[0] not in added_ids(tokenizer):
        raise CourseError(
            f"the chat template of {name!r} ends an answer with {after[:20]!r}, which is no control token: a "
            "model would never learn to stop. Put eos_token after assistant messages in the template"
        )
    return int(ids[0])


def _supports_system(tokenizer: Any) -> bool:
    """True if a system message is rendered rather than refused or dropped."""
    messages = [{"role": "system", "content": SYSTEM}, user(QUESTION)]
    try:
        return SYSTEM in render(tokenizer, messages, generation_prompt=True)
    except CourseError:
        return False


def added_ids(tokenizer: Any) -> set[int]:
    """Ids that are tokens of their own, outside the vocabulary that text is split into."""
    return set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)


def control_tokens(tokenizer: Any, more: Sequence[int]) -> dict[int, str]:
    """Id → text of every token that plain text must never turn into: the special ones, and `more`."""
    special = {key for key, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = special | set(tokenizer.all_special_ids)
    # Unknown text becomes "unk" rightly; but GPT-2's "unk" is its EOS too, which `more` then puts back.
    ids = (ids - {tokenizer.unk_token_id}) | set(more)
    return {key: tokenizer.convert_ids_to_tokens(key) for key in sorted(ids)}
