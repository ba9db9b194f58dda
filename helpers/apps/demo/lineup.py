"""The policies of the demo: one base in memory, adapters on it, and a reward model that is one of them."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from helpers.apps.demo.streaming import Draft, stream_answers
from helpers.errors import CourseError
from helpers.models import loading
from helpers.models.adapters import reference
from helpers.models.profiles import Profile
from helpers.models.reward_model import RewardModel
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.groups import Group

BASE = "base"
MOST_COLUMNS = 6
LONGEST_ANSWER = 256  # tokens, the benchmark's budget
LONGEST_PROMPT = 100_000  # characters
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Column:
    """One policy's answer in a contest."""

    policy: str
    draft: Draft = field(default_factory=lambda: Draft([], ""))
    reward: float | None = None  # once the answer is done, if there is a reward model


@dataclass(frozen=True)
class Contest:
    """One prompt and the answers of several policies, in the order in which they are shown."""

    key: str
    prompt: str
    columns: tuple[Column, ...]
    sampling: Sampling
    seed: int
    blind: bool
    cut: int = 0  # tokens of the prompt that the budget cut off
    done: bool = False

    @property
    def policies(self) -> list[str]:
        """Who stands where."""
        return [column.policy for column in self.columns]


class Lineup:
    """Base, adapters and reward model over one set of base weights.

    Attributes: `model`, `encoder`, `policies` ("base" first), `reward_model`, `budget`, `lock` (held while
    the model computes).
    """

    def __init__(
        self,
        model_name: str,
        adapters: Mapping[str, Path],
        reward: Path | None,
        profile: Profile,
        last_token_index: Callable[..., Any],
    ) -> None:
        self.encoder = ChatEncoder(loading.load_tokenizer(model_name))
        self.model: Any = loading.load_base(model_name, profile, gradient_checkpointing=False)
        self.model.requires_grad_(False)
        for name, place in adapters.items():
            check_policy_name(name)
            self.model = loading.load_adapter(self.model, place, name)
        self.policies = [BASE, *adapters]
        self.reward_model: RewardModel | None = None
        if reward is not None:
            self.reward_model = RewardModel.load(
                reward,
                self.model,
                last_token_index,
                name="reward",
                pad_id=self.encoder.pad_id,
                layout=profile.layout,
            )
            if self.reward_model.adapter is not None:
                self.model = self.reward_model.model
        self.model.eval()
        limits = (profile.max_prompt_tokens, profile.max_response_tokens, LONGEST_ANSWER)
        self.budget = Budget(*limits)
        self.lock = threading.Lock()

    def encode(self, prompt: str) -> tuple[list[int], int]:
        """Token ids of a user's prompt within the budget, and how many tokens were cut off its beginning.

        Raises CourseError for an empty prompt, and for one of more than 100,000 characters.
        """
        if not prompt.strip():
            raise CourseError("the prompt is empty: type a question first")
        if len(prompt) > LONGEST_PROMPT:
            raise CourseError(
                f"the prompt has {len(prompt):,} characters; {LONGEST_PROMPT:,} are allowed, and the"
                f" model reads only the last {self.budget.max_prompt_tokens} tokens: shorten it"
            )
        whole = self.encoder.encode_prompt([{"role": "user", "content": prompt}])
        kept = self.encoder.truncate_prompt(whole, self.budget.max_prompt_tokens)
        return kept, len(whole) - len(kept)

    def contest(
        self,
        prompt: str,
        policies: Sequence[str],
        sampling: Sampling,
        *,
        seed: int = 0,
        blind: bool = True,
        shuffle: random.Random | None = None,
    ) -> Iterator[Contest]:
        """Yield a contest again and again while its answers grow; the last one is `done` and has rewards.

        A blind one stands in a random order, drawn by `shuffle` and independent of the seed of the answers.
        """
        policies = self.check(policies, sampling)
        prompt = readable(prompt)
        ids, cut = self.encode(prompt)
        if blind:
            (shuffle or random.SystemRandom()).shuffle(policies)
        columns = tuple(map(Column, policies))
        contest = Contest(uuid4().hex, prompt, columns, sampling, seed, blind, cut)
        adapters = [None if name == BASE else name for name in policies]
        drafts: list[Draft] = []
        for drafts in stream_answers(
            self.model, self.encoder, ids, adapters, sampling, seed=seed, lock=self.lock
        ):
            yield replace(contest, columns=tuple(map(Column, policies, drafts)))
        rewards = self.rewards([Group(ids, [draft.ids for draft in drafts])])[0]
        yield replace(contest, columns=tuple(map(Column, policies, drafts, rewards)), done=True)

    def check(self, policies: Sequence[str], sampling: Sampling) -> list[str]:
        """The policies in the line-up's order. CourseError for unknown or too many, and long answers."""
        unknown = [name for name in policies if name not in self.policies]
        if unknown:
            raise CourseError(f"there is no policy {unknown[0]!r}; there are {', '.join(self.policies)}")
        if not 1 <= len(set(policies)) <= MOST_COLUMNS:
            raise CourseError(f"choose 1 to {MOST_COLUMNS} policies, not {len(set(policies))}")
        if sampling.max_new_tokens > LONGEST_ANSWER:
            raise CourseError(f"an answer has at most {LONGEST_ANSWER} tokens, not {sampling.max_new_tokens}")
        return [name for name in self.policies if name in policies]

    def rewards(self, groups: Sequence[Group]) -> list[list[float | None]]:
        """The reward model's score of every response; None without a reward model."""
        if self.reward_model is None:
            return [[None] * len(group.responses) for group in groups]
        with self.lock:
            return [list(scores) for scores in self.reward_model.score_groups(groups)]

    def greedy(self, policy: str, prompts: Sequence[list[int]], max_new_tokens: int) -> list[Completion]:
        """Greedy answers of one policy to encoded prompts."""
        sampling = Sampling(max_new_tokens=max_new_tokens, greedy=True)
        with self.lock, reference(self.model, None if policy == BASE else policy):
            return [group[0] for group in generate(self.model, self.encoder, prompts, sampling)]


def check_policy_name(name: str) -> None:
    """Raise CourseError for a name that the demo itself uses."""
    if name in (BASE, "reward"):
        raise CourseError(f"--adapters: the name {name!r} is taken; write another name before the =")


def readable(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates, which no tokenizer takes, become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def sampling_of(temperature: float, top_p: float, max_new_tokens: float) -> Sampling:
    """Settings of the page; temperature 0 is greedy. CourseError for values that cannot be."""
    for name, value in (("temperature", temperature), ("top-p", top_p), ("max new tokens", max_new_tokens)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise CourseError(f"{name} is {value!r}: give a number")
    if temperature < 0:
        raise CourseError(f"temperature is {temperature:g}: 0 takes the likeliest token, above it draws")
    if max_new_tokens != int(max_new_tokens):
        raise CourseError(f"max new tokens is {max_new_tokens:g}: give a whole number")
    if temperature == 0:
        return Sampling(max_new_tokens=int(max_new_tokens), greedy=True)
    return Sampling(max_new_tokens=int(max_new_tokens), temperature=float(temperature), top_p=float(top_p))
