"""Chat encoding: prompt and response are encoded apart and joined as ids.

Encoding a whole conversation and looking for the boundary afterwards loses or moves tokens where a merge
crosses it. Encoded apart, the ids a model is trained on are the ids it meets when it samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from helpers.errors import CourseError
from helpers.files import fingerprint
from helpers.text.messages import Message, fold_system, role_problem, user
from helpers.text.template import control_tokens, probe_template, render

PROBES = ("Hello there", "42 cats")  # answers on which a way of encoding is compared with the template's text


@dataclass(frozen=True)
class Budget:
    """The benchmark's limits in tokens; a scored response includes its end-of-turn token."""

    max_prompt_tokens: int = 700
    max_response_tokens: int = 512
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise CourseError(f"{name} must be at least 1, not {value}")


class ChatEncoder:
    """Turn messages into prompt ids and texts into response ids, by the tokenizer's own chat template.

    - A prompt has exactly the BOS its template writes; the tokenizer adds none.
    - A complete response ends with exactly one end-of-turn token, the one the template puts behind an
      assistant message; a truncated one has none.
    - Text never becomes a control token, even where a user types one (``<|im_end|>``).
    - Where the template strips an answer's white space, `encode_response` strips it too.
    - `matches_template` says whether prompt + response equals the template's text encoded whole. Where a
      merge crosses the boundary (a template that ends in a space, say) it does not, and the joined ids are
      still right: they are what a model sees when it samples.
    """

    def __init__(self, tokenizer: Any, eos_ids: int | Iterable[int] | None = None) -> None:
        """`eos_ids`: further ids that end a response, as in the model's generation config."""
        self.tokenizer = tokenizer
        self._facts = probe_template(tokenizer)
        self.end_of_turn_id: int = self._facts.end_of_turn_id
        given = [eos_ids] if isinstance(eos_ids, int) else list(eos_ids or [])
        known = [tokenizer.eos_token_id, self.end_of_turn_id, *given]
        self.eos_ids: frozenset[int] = frozenset(int(token) for token in known if token is not None)
        pads = [tokenizer.pad_token_id, tokenizer.eos_token_id, self.end_of_turn_id]
        self.pad_id: int = next(token for token in pads if token is not None)
        self._control = control_tokens(tokenizer, sorted(self.eos_ids))
        longest_first = sorted(self._control.values(), key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._ids_of_control = {text: token for token, text in self._control.items()}
        self.bos_id: int | None = self._find_bos()
        self._join = "plain"
        self.matches_template = self._choose_join()

    # Encoding

    def encode_prompt(self, messages: Sequence[Message], max_tokens: int | None = None) -> list[int]:
        """Ids of `messages` and the generation prompt; the last message is the user's.

        Longer than `max_tokens`, it keeps the BOS, if any, and the end. A bad role order raises CourseError.
        """
        problem = role_problem(messages)
        if problem:
            raise CourseError(f"bad role order in a prompt: {problem}")
        if not self._facts.supports_system:
            messages = fold_system(messages)
        return self.truncate_prompt(self._encode_messages(messages), max_tokens)

    def truncate_prompt(self, ids: list[int], max_tokens: int | None) -> list[int]:
        """Keep the BOS, if the template has one, and the last tokens, `max_tokens` in all."""
        if max_tokens is None or len(ids) <= max_tokens:
            return ids
        head = ids[:1] if self.bos_id is not None else []
        if max_tokens <= len(head):
            raise CourseError(f"max_prompt_tokens {max_tokens} leaves no room for a prompt; raise it")
        return head + ids[len(ids) - max_tokens + len(head) :]

    def encode_response(
        self, text: str, *, complete: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Ids of a response, with one end-of-turn token if it is complete and fits in `max_tokens`."""
        text = text.lstrip() if self._facts.trims_left else text
        text = text.rstrip() if self._facts.trims_right and complete else text
        trail = self._facts.trail if complete else ""
        ids = self._encode_answer(text, trail) + ([self.end_of_turn_id] if complete else [])
        return ids if max_tokens is None else ids[:max_tokens]

    def is_complete(self, ids: Sequence[int]) -> bool:
        """True if a response ends with one of the ids that end a turn."""
        return bool(ids) and ids[-1] in self.eos_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response: up to its first end-of-turn token, without control tokens."""
        stop = next((place for place, token in enumerate(ids) if token in self.eos_ids), len(ids))
        text = self.tokenizer.decode(
            list(ids[:stop]), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        text = text.removeprefix(self._facts.lead)
        return text.removesuffix(self._facts.trail) if stop < len(ids) else text

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with whatever changes the ids: vocabulary, merges, template, ends."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            state: Any = self.tokenizer.get_vocab()
        else:
            state = json.loads(backend.to_str())
            state.update(truncation=None, padding=None)  # left behind by calls; they change no id
        ends = [sorted(self.eos_ids), self.end_of_turn_id, self.pad_id]
        return fingerprint(state, self.tokenizer.chat_template, ends, self._join)

    # How

    def _ids(self, text: str, *, plain: bool) -> list[int]:
        """Encode without adding anything; `plain` keeps special tokens in `text` from being recognised."""
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain, verbose=False)
        return list(encoded["input_ids"])

    def _plain(self, text: str) -> list[int]:
        """Encode text in which nothing is a control token."""
        ids = self._ids(text, plain=True) if text else []
        if self._control.keys().isdisjoint(ids):
            return ids
        # The tokenizer insists (a control token not marked special, say): cut each after its first character.
        cuts = [0, *(match.start() + 1 for match in self._control_pattern.finditer(text)), len(text)]
        pieces = [text[start:stop] for start, stop in pairwise(cuts)]
        return [token for piece in pieces if piece for token in self._ids(piece, plain=True)]

    def _encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation with generation prompt; control tokens typed by a user stay text."""
        masked, typed = self._mask_control(messages)
        text = render(self.tokenizer, masked, generation_prompt=True) + self._facts.opening
        if not typed:
            return self._ids(text, plain=False)
        ids: list[int] = []
        start = 0
        for match in self._control_pattern.finditer(text):
            ids += self._plain(_unmask(text[start : match.start()], typed))
            ids.append(self._ids_of_control[match.group()])
            start = match.end()
        return ids + self._plain(_unmask(text[start:], typed))

    def _mask_control(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """Replace control tokens inside contents by marks. Returns the messages and {mark: typed text}."""
        contents = "".join(message["content"] for message in messages)
        if not self._control_pattern.search(contents):
            return list(messages), {}
        edge = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in contents)  # private use
        typed: dict[str, str] = {}

        def mark(match: re.Match[str]) -> str:
            name = f"{edge}{len(typed)}{edge}"
            typed[name] = match.group()
            return name

        masked = [{**m, "content": self._control_pattern.sub(mark, m["content"])} for m in messages]
        return masked, typed

    def _encode_answer(self, text: str, trail: str) -> list[int]:
        """Ids of an answer, in the way that `_choose_join` found to agree with the template."""
        if self._join == "bare":
            return self._plain(text + trail)
        whole = self._facts.lead + text + trail
        if self._join == "anchored":
            anchor = self._plain(self._anchor)
            ids = self._plain(self._anchor + whole)
            if ids[: len(anchor)] == anchor:
                return ids[len(anchor) :]
        return self._plain(whole)

    @cached_property
    def _anchor(self) -> str:
        """The last character of the generation prompt, which an answer is encoded behind and cut from.

        SentencePiece tokenizers put a space in front of whatever they are given, so an answer encoded
        alone would begin with a space that the template does not have.
        """
        return (render(self.tokenizer, [user("x")], generation_prompt=True) + self._facts.opening)[-1:]

    def _choose_join(self) -> bool:
        """Choose the first way of encoding answers that agrees with the template; False if none does."""
        for self._join in ("plain", "bare", "anchored"):
            if all(self._agrees(answer) for answer in PROBES):
                return True
        self._join = "plain"
        return False

    def _agrees(self, answer: str) -> bool:
        question = [user("Hi")]
        whole = render(
            self.tokenizer, [*question, {"role": "assistant", "content": answer}], generation_prompt=False
        )
        joined = self.encode_prompt(question) + self.encode_response(answer)
        return self._ids(whole, plain=False)[: len(joined)] == joined

    def _find_bos(self) -> int | None:
        """The tokenizer's BOS if the template writes it first; written twice, it raises CourseError."""
        bos = self.tokenizer.bos_token_id
        ids = self._encode_messages([user("x")])
        if bos is None or ids[:1] != [bos]:
            return None
        if ids[1:2] == [bos]:
            raise CourseError(
                f"the chat template writes {self.tokenizer.bos_token!r} twice at the start; remove one"
            )
        return int(bos)


def _unmask(text: str, typed: dict[str, str]) -> str:
    for mark, original in typed.items():
        text = text.replace(mark, original)
    return text
