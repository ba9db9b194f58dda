"""What the page shows at each moment, without a widget in sight: texts, who is named, who may vote.

A blind contest names nobody and shows no reward until there is a vote, or until the reader gives the vote up.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.apps.demo.lineup import LETTERS, Column, Contest, Lineup, sampling_of
from helpers.apps.demo.votes import VoteBook
from helpers.errors import CourseError

TOKENS_A_SECOND = 40  # no faster than one can follow, and as fast for every policy
# Controls, marks that turn the direction of text round, and characters of no width; not tab and new line.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


@dataclass(frozen=True)
class Panel:
    """One column as shown. `name` is empty as long as nobody may know it."""

    letter: str
    text: str
    name: str = ""
    note: str = ""
    picked: bool = False


@dataclass(frozen=True)
class View:
    """The whole comparison as shown. `contest` stays on the server."""

    panels: tuple[Panel, ...] = ()
    status: str = ""
    failed: bool = False
    may_vote: bool = False
    contest: Contest | None = None


@dataclass
class Stop:
    """A reader's wish to stop the answers that are being written."""

    asked: bool = False


class Desk:
    """Takes prompts and votes, gives views. Nothing it is handed makes it raise: mistakes become a status."""

    def __init__(self, lineup: Lineup, votes: VoteBook, pace: float = TOKENS_A_SECOND) -> None:
        self.lineup, self.votes, self.pace = lineup, votes, pace

    def ask(
        self,
        prompt: Any,
        policies: Sequence[str],
        temperature: float,
        top_p: float,
        max_new_tokens: float,
        seed: float,
        blind: bool,
        stop: Stop | None = None,
    ) -> Iterator[View]:
        """Views of a growing comparison, which ends early when `stop` is asked for."""
        stop = stop or Stop()
        stop.asked = False
        last = View(status="reading the prompt …")
        yield last
        try:
            sampling = sampling_of(temperature, top_p, max_new_tokens)
            growing = self.lineup.contest(
                str(prompt or ""), list(policies or []), sampling, seed=whole_seed(seed), blind=bool(blind)
            )
            for contest in paced(growing, self.pace):
                last = compose(contest)
                if stop.asked:
                    yield replace(last, status="Stopped.", may_vote=False, contest=None)
                    return
                yield last
        except Exception as problem:
            yield replace(last, status=explain(problem), failed=True, may_vote=False, contest=None)

    def vote(self, contest: Contest | None, choice: int | None) -> View:
        """Record a vote (None: no difference) and name everybody."""
        if contest is None:
            return View(status="there is nothing to vote on: send a prompt first", failed=True)
        try:
            pairs = self.votes.record(contest, choice)
        except Exception as problem:
            return replace(compose(contest), status=explain(problem), failed=True)
        status = f"Thank you. Recorded: {kept_words(choice, len(pairs))}. {self.score_line(contest)}"
        return compose(contest, named=True, choice=choice, status=status.strip())

    def give_up(self, contest: Contest | None) -> View:
        """Name everybody without a vote; the contest can no longer be voted on."""
        if contest is None:
            return View(status="there is nothing to show: send a prompt first", failed=True)
        status = "Names shown, so this comparison no longer counts."
        return replace(compose(contest, named=True, status=status), contest=None)

    def score_line(self, contest: Contest) -> str:
        """The running win rates of those who stood in this contest."""
        found = [line for line in self.votes.standings() if line.rate is not None]
        parts = [
            f"{line.policy} {line.rate:.2f} ({line.low:.2f}–{line.high:.2f}, {counted(line.duels, 'vote')})"
            for line in found
            if line.policy in contest.policies
        ]
        return f"Win rate against base so far: {', '.join(parts)}." if parts else ""


def compose(contest: Contest, named: bool = False, choice: int | None = None, status: str = "") -> View:
    """The view of a contest; `named` or not blind: with names and rewards."""
    named = named or not contest.blind
    panels = tuple(panel(i, column, contest, named, choice) for i, column in enumerate(contest.columns))
    may_vote = contest.done and not named and len(panels) > 1
    if not status and not contest.done:
        status = "writing …"
    elif not status:
        status = "Which answer is best? Names and rewards appear after your vote." if may_vote else "Done."
    if contest.cut:
        status += f" (The prompt was too long: its first {contest.cut:,} tokens were cut off.)"
    return View(panels, status, may_vote=may_vote, contest=contest if contest.done else None)


def kept_words(choice: int | None, pairs: int) -> str:
    """What a vote left behind."""
    if choice is None:
        return "a tie, which gives no pair"
    if not pairs:
        return "a vote without a pair, as the texts leave nothing to prefer"
    return counted(pairs, "preference pair")


def counted(number: int, what: str) -> str:
    """1 vote, 2 votes."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def panel(place: int, column: Column, contest: Contest, named: bool, choice: int | None) -> Panel:
    """One column; before names are shown it holds the text and nothing else."""
    text = shown(column.draft.text)
    if not text.strip() and column.draft.done:
        text = "(an empty answer)"
    if not named:
        return Panel(LETTERS[place], text)
    notes = [f"reward {signed(column.reward)}"] if column.reward is not None else []
    notes.append(f"{len(column.draft.ids)} tokens")
    if column.draft.done and not column.draft.complete:
        notes.append("stopped at the limit")
    return Panel(LETTERS[place], text, column.policy, " · ".join(notes), place == choice)


def signed(number: float) -> str:
    """+1.20 or −1.20."""
    return f"{number:+.2f}".replace("-", "−")


def shown(text: str) -> str:
    """The text with characters that cannot be seen, or that act on others, made visible."""

    def mark(match: re.Match[str]) -> str:
        code = ord(match.group())
        return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"

    return UNSEEN.sub(mark, text.replace("\r\n", "\n"))


def paced(contests: Iterator[Contest], tokens_a_second: float) -> Iterator[Contest]:
    """The same at a steady pace. Equal for all policies, so that speed gives nobody away."""
    step = 1 / tokens_a_second if tokens_a_second > 0 else 0.0
    due = time.monotonic()
    for contest in contests:
        wait = due - time.monotonic()
        if wait > 0 and not contest.done:
            time.sleep(wait)
        due = max(due, time.monotonic() - step) + step
        yield contest


def whole_seed(seed: Any) -> int:
    """A seed that torch takes."""
    if isinstance(seed, bool) or not isinstance(seed, (int, float)) or seed != seed or abs(seed) >= 2**63:
        raise CourseError(f"seed is {seed!r}: give a whole number")
    if seed != int(seed) or seed < 0:
        raise CourseError(f"seed is {seed!r}: give a whole number from 0 up")
    return int(seed)


def explain(problem: Exception) -> str:
    """A plain sentence; what was not foreseen also goes to the terminal in full."""
    if isinstance(problem, CourseError):
        return str(problem)
    traceback.print_exception(problem, file=sys.stderr)
    return f"the answer could not be finished: {type(problem).__name__}; the terminal says more"
