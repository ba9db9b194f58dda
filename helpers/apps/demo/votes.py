"""Blind votes: what is kept of them, the preference pairs they give, and the running win rate.

A vote names the best of several answers, so it says that one answer beats each of the others, and nothing
about the others among themselves. Two files: the pairs, in the schema of the training data, and beside them
every ballot, ties included, from which the win rates are counted.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from helpers.apps.demo.lineup import BASE, Contest
from helpers.errors import CourseError
from helpers.files import read_text, writing

Row = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """How one policy fares against another: `rate` over `duels`, ties half, with its 95 % interval."""

    policy: str
    picked: int  # ballots that named it best
    shown: int  # ballots in which it stood
    duels: int  # votes that decided between the two
    rate: float | None
    low: float = 0.0
    high: float = 1.0


class VoteBook:
    """Votes in a file of pairs, such as votes/train_prefs.jsonl, and a file of ballots beside it.

    A contest can be voted on once. Both files are only ever appended to, one line at a time.
    """

    def __init__(self, path: str | Path, facts: Mapping[str, Row] | None = None) -> None:
        """`facts`: metadata of known prompts, by their text, for judges that need it."""
        self.path = Path(path)
        if self.path.suffix != ".jsonl":
            raise CourseError(f"--votes {path}: name a file that ends in .jsonl")
        self.ballot_path = self.path.with_suffix(".ballots")
        self.facts = facts or {}
        self._lock = threading.Lock()
        self._ballots: list[Row] = read_ballots(self.ballot_path)

    @property
    def ballots(self) -> list[Row]:
        """All votes: {"contest", "policies" in the order shown, "texts", "choice" or null}."""
        return list(self._ballots)

    def record(self, contest: Contest, choice: int | None) -> list[Row]:
        """Keep a vote for column `choice` (None: no difference); return the pairs that it gave.

        Raises CourseError for a contest that is not blind, not done, or was voted on, and for a column that
        is not there.
        """
        if not contest.done:
            raise CourseError("the answers are not finished: vote when they are")
        if not contest.blind:
            raise CourseError("only a blind comparison counts: tick Blind and send the prompt again")
        if choice is not None and not 0 <= choice < len(contest.columns):
            raise CourseError(f"there is no column {choice}")
        if len(contest.columns) < 2:
            raise CourseError("one answer alone cannot be compared: choose at least two policies")
        pairs = pairs_of(contest, choice, self.facts.get(contest.prompt))
        with self._lock:
            if any(ballot["contest"] == contest.key for ballot in self._ballots):
                raise CourseError("this comparison has its vote already: send another prompt")
            ballot = ballot_of(contest, choice)
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with FileLock(f"{self.path}.lock"):
                    append_rows(self.path, pairs)
                    append_rows(self.ballot_path, [ballot])
            self._ballots.append(ballot)
        return pairs

    def standings(self, against: str = BASE) -> list[Standing]:
        """Every policy that stood in a vote, the reference last."""
        return standings(self._ballots, against)


def read_ballots(path: Path) -> list[Row]:
    """The ballots of a file, none where there is no file. A line that is none is reported and left out."""
    if not path.exists():
        return []
    found, bad = [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            row = json.loads(line)
            choice, shown = row["choice"], len(row["policies"])
            if len(row["texts"]) != shown or not row["contest"] or choice not in (None, *range(shown)):
                raise ValueError
            found.append(row)
        except (ValueError, KeyError, TypeError):
            bad.append(number)
    if bad:
        print(f"warning: {path} line {', '.join(map(str, bad))}: no ballot, left out", file=sys.stderr)
    return found


def ballot_of(contest: Contest, choice: int | None) -> Row:
    """One line of the ballots."""
    texts = [column.draft.text for column in contest.columns]
    return {"contest": contest.key, "policies": contest.policies, "texts": texts, "choice": choice}


def pairs_of(contest: Contest, choice: int | None, facts: Row | None = None) -> list[Row]:
    """Preference rows: the chosen answer against each other text. A tie gives none, nor do empty answers."""
    if choice is None:
        return []
    writers: dict[str, list[str]] = {}  # policies by what they wrote: a text cannot lose to itself
    for column in contest.columns:
        writers.setdefault(column.draft.text, []).append(column.policy)
    best = contest.columns[choice].draft.text
    losers = [text for text in writers if text != best and text.strip() and best.strip()]
    rows = []
    for number, loser in enumerate(losers):
        who = {"chosen_policies": writers[best], "rejected_policies": writers[loser]}
        row = {
            "avg_confidence": 1.0,  # of one voter
            "avg_preference_strength": 1.0,  # better or not; how much better was not asked
            "avg_training_quality": 1.0,
            "chosen_text": best,
            "judge_model": "blind vote",
            "prompt_messages": [{"content": contest.prompt, "role": "user"}],
            "prompt_text": contest.prompt,
            "rejected_text": loser,
            "row_id": f"vote-{contest.key}-{number}",
            "score": 1.0,
            "metadata": {**(facts or {}), "vote": {**how_it_came_about(contest), **who}},
        }
        rows.append(row)
    return rows


def how_it_came_about(contest: Contest) -> Row:
    """Which answers were shown in which order, and how they were drawn."""
    settings = contest.sampling
    return {
        "contest": contest.key,
        "shown": contest.policies,
        "temperature": 0.0 if settings.greedy else settings.temperature,
        "top_p": settings.top_p,
        "max_new_tokens": settings.max_new_tokens,
        "seed": contest.seed,
    }


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append whole lines and see them on disk; a line torn by a crash before is closed first."""
    if not rows:
        return
    with path.open("ab+") as stream:
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        stream.write(text.encode("utf-8", "replace"))
        stream.flush()
        os.fsync(stream.fileno())


def standings(ballots: Sequence[Row], against: str = BASE) -> list[Standing]:
    """Win rate of each policy against `against`, with how often it was picked."""
    names = {name for ballot in ballots for name in ballot["policies"]}
    order = sorted(names, key=lambda name: (name == against, name))
    return [standing(ballots, name, against) for name in order]


def standing(ballots: Sequence[Row], policy: str, against: str) -> Standing:
    """One policy's line."""
    stood = [ballot for ballot in ballots if policy in ballot["policies"]]
    picked = sum(best_text(ballot) == text_of(ballot, policy) for ballot in stood)
    both = [ballot for ballot in stood if against in ballot["policies"] and policy != against]
    points = [point for point in (duel(ballot, policy, against) for ballot in both) if point is not None]
    if not points:
        return Standing(policy, picked, len(stood), 0, None)
    low, high = wilson(sum(points), len(points))
    return Standing(policy, picked, len(stood), len(points), sum(points) / len(points), low, high)


def duel(ballot: Row, policy: str, against: str) -> float | None:
    """1, ½ or 0 points for `policy`; None where the vote fell on a third and says nothing about the two.

    A tie gives half, and so does a vote for either of two equal texts: nobody can have told them apart.
    """
    won, lost = (best_text(ballot) in (None, text_of(ballot, name)) for name in (policy, against))
    if not won and not lost:
        return None
    return 0.5 if won and lost else float(won)


def text_of(ballot: Row, policy: str) -> str:
    """What a policy wrote."""
    return ballot["texts"][ballot["policies"].index(policy)]


def best_text(ballot: Row) -> str | None:
    """The text that was picked; None in a tie."""
    return None if ballot["choice"] is None else ballot["texts"][ballot["choice"]]


def wilson(wins: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927).

    Unlike a bootstrap it is honest about few votes: three wins of three give 0.44 to 1, where resampling
    three ones gives 1 to 1. Ties counted half make it slightly too wide.
    """
    share, square = wins / count, z * z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
