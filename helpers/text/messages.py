"""Chat messages: what a well-formed conversation is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, str]

ROLE_NAMES = {"prompter": "user", "human": "user", "gpt": "assistant", "bot": "assistant"}


def user(content: str) -> Message:
    """One user message."""
    return {"role": "user", "content": content}


def role_problem(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Say what is wrong with the order of roles of a prompt, or None.

    A prompt is an optional system message, then user and assistant in turns, ending with the user.
    """
    roles = [message.get("role") for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if not turns:
        return "there is no user message"
    for number, role in enumerate(turns):
        expected = "assistant" if number % 2 else "user"
        if role != expected:
            return f"expected {expected}, found {role}, in: {', '.join(map(str, roles))}"
    if turns[-1] != "user":
        return f"a prompt ends with the user, not with: {turns[-1]}"
    return None


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put a leading system message in front of the first user message, for templates without system role."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    first = user(f"{messages[0]['content']}\n\n{messages[1]['content']}")
    return [first, *messages[2:]]
