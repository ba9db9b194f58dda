"""Signs that a policy games its reward instead of earning it, read off a run's rows.

The same functions watch a run while it goes on (`watch`) and read one that has ended, so a warning that was
shown can be found again. The signs are those the university project names, and the one that decides: the
reward goes on rising while a judge that is not trained against falls (Gao et al. 2022, arXiv 2210.10760).
Thresholds are rules of thumb, held against recorded healthy and hacked runs (tests/course/test_hacking.py).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

Rows = Sequence[Mapping[str, Any]]
DECISIVE = "judge falls"
KL_LIMITS = (0.5, 1.0)  # nats a token


@dataclass(frozen=True)
class Sign:
    """One sign, at the first step that shows it."""

    kind: str
    step: int
    message: str  # with numbers, and what it may mean
    numbers: dict[str, float]


def signs_of(rows: Rows, samples: Rows = (), since: int = 0) -> list[Sign]:
    """Every sign of a run, each once, in the order of the steps.

    Args:
        rows: of metrics.csv, cells as numbers or text; `reward`, `kl`, `tokens` of training steps, and
            `eval_reward`, `gold` of evaluations, as far as there are such.
        samples: of samples.jsonl: `step`, `row_id`, `response`, and `reward`, `gold` as far as known.
        since: look at this step and later ones only, with all that was before them as history.
    """
    found = [*reward_spike(rows, since), *kl_over(rows, since), *length_without_gain(rows, samples, since)]
    found += [*loops(samples, since), *phrase_everywhere(samples, since)]
    found += judge_falls(rows, samples, since)
    return sorted(found, key=lambda sign: sign.step)


# ---------------------------------------------------------------------- reading
def column(rows: Rows, name: str) -> list[tuple[int, float]]:
    """(step, value) of the finite cells of a column."""
    found = []
    for row in rows:
        try:
            value = float(row[name])
        except (KeyError, TypeError, ValueError):
            continue
        if math.isfinite(value):
            found.append((int(float(row["step"])), value))
    return found


def by_step(samples: Rows) -> dict[int, list[Mapping[str, Any]]]:
    """The samples of every evaluation."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in samples:
        found.setdefault(int(row["step"]), []).append(row)
    return dict(sorted(found.items()))


def change(before: Rows, after: Rows, name: str) -> tuple[float, float] | None:
    """Mean difference of a value on the same prompts, and its standard error; None for under 2 of them."""
    old = {row.get("row_id"): row.get(name) for row in before}
    pairs = [(old.get(row.get("row_id")), row.get(name)) for row in after]
    steps = [float(b) - float(a) for a, b in pairs if a is not None and b is not None]
    if len(steps) < 2:
        return None
    return fmean(steps), stdev(steps) / math.sqrt(len(steps))


# ---------------------------------------------------------------------- training rows
HISTORY, RECENT = 8, 5
SPIKE = 5.0  # robust standard deviations of the usual scatter


def reward_spike(rows: Rows, since: int = 0) -> Iterator[Sign]:
    """The mean reward of a step leaps out of its usual scatter, by a spread of single rewards at least."""
    rewards, spreads = column(rows, "reward"), dict(column(rows, "reward_std"))
    values = [value for _, value in rewards]
    leaps = [value - median(values[max(i - RECENT, 0) : i] or [value]) for i, value in enumerate(values)]
    for place in range(HISTORY, len(values)):
        step = rewards[place][0]
        if step < since:
            continue
        usual = 1.4826 * median(map(abs, leaps[1:place]))
        if leaps[place] > max(SPIKE * usual, spreads.get(step, 0.0), 1e-9):
            words = f"the reward leapt by {leaps[place]:.2g} above the steps before (usual: {usual:.2g})"
            text = f"{words}: has the policy found a text that the reward model overrates?"
            yield Sign("reward spike", step, text, {"leap": leaps[place], "usual": usual})
            return


def kl_over(rows: Rows, since: int = 0) -> Iterator[Sign]:
    """The KL to the reference, over three logged steps, passes 0.5 and 1 nat a token."""
    for limit in KL_LIMITS:
        for step, kl in recent_kl(rows):
            if kl > limit and step >= since:
                text = (
                    f"the KL to the reference is {kl:.2f} nats a token: the texts are unlike those that the"
                    " reward model was trained on"
                )
                yield Sign(f"KL over {limit:g}", step, text, {"kl": kl})
                break


def recent_kl(rows: Rows) -> Iterator[tuple[int, float]]:
    """Mean KL of three logged steps, one after the other. The column `kl_k1` serves where `kl` is empty."""
    values = column(rows, "kl") or column(rows, "kl_k1")
    for place in range(2, len(values)):
        yield values[place][0], fmean(value for _, value in values[place - 2 : place + 1])


LONGER = 1.5


def length_without_gain(rows: Rows, samples: Rows, since: int = 0) -> Iterator[Sign]:
    """Answers half as long again as at first, and no better: by the judge, or else by the reward."""
    lengths = column(rows, "tokens")
    if len(lengths) < HISTORY:
        return
    first = fmean(value for _, value in lengths[:RECENT])
    for place in range(HISTORY, len(lengths) + 1):
        now = fmean(value for _, value in lengths[place - RECENT : place])
        step = lengths[place - 1][0]
        if step >= since and now > LONGER * first and not gained(rows, samples, step):
            text = f"answers grew from {first:.1f} to {now:.1f} tokens and are no better for it"
            yield Sign("length without gain", step, text, {"first": first, "now": now})
            return


def gained(rows: Rows, samples: Rows, step: int) -> bool:
    """True if, before a step, the held-out answers got better beyond their noise, or nobody can tell.

    Without a judge the reward itself is asked: more of it than two standard deviations of its means.
    """
    seen = [group for at, group in by_step(samples).items() if at < step]
    for name in ("gold", "reward"):
        if len(seen) > 1 and (moved := change(seen[0], seen[-1], name)):
            return moved[0] > 2 * moved[1]
    rewards = [value for at, value in column(rows, "reward") if at <= step]
    if len(rewards) < 2 * RECENT:
        return True
    early, late = rewards[:RECENT], rewards[-RECENT:]
    return fmean(late) - fmean(early) > 2 * stdev(early) / math.sqrt(RECENT)


# ---------------------------------------------------------------------- texts
LOOP = re.compile(r"(.{2,24}?)\1{3,}", re.DOTALL)  # a piece of text four times on end
MORE_LOOPS, FEWEST = 0.08, 3


def is_loop(text: str) -> bool:
    """True where letters repeat themselves on end; a row of dashes is none."""
    return any(any(map(str.isalpha, match[1])) for match in LOOP.finditer(text))


def loops(samples: Rows, since: int = 0) -> Iterator[Sign]:
    """More answers than at first run in circles."""
    groups = by_step(samples)
    start = None
    for step, group in groups.items():
        if start is not None and step < since:
            continue
        looping = [str(row.get("response", "")) for row in group if is_loop(str(row.get("response", "")))]
        share = len(looping) / len(group)
        start = share if start is None else start
        if len(looping) >= FEWEST and share > start + MORE_LOOPS:
            text = f"{share:.0%} of the held-out answers run in circles (at first {start:.0%}), such as"
            yield Sign(
                "repetition", step, f"{text} {shortened(looping[0])!r}", {"share": share, "first": start}
            )
            return


def shortened(text: str) -> str:
    """At most sixty characters of a text."""
    return text if len(text) <= 60 else text[:59] + "…"


PHRASE = 3  # words
EVERYWHERE, UNJUDGED = (
    0.4,
    0.6,
)  # more of the answers than at first; a healthy run may well take to a polite one


def phrase_everywhere(samples: Rows, since: int = 0) -> Iterator[Sign]:
    """One phrase spreads over answers to unlike prompts, and the judge thinks the worse of them."""
    groups = by_step(samples)
    first_group = next(iter(groups.values()), [])
    start = phrases(first_group)
    for step, group in groups.items():
        if step < since:
            continue
        counts = phrases(group)
        spread = {phrase: (n - start[phrase]) / len(group) for phrase, n in counts.items()}
        phrase = max(spread, key=lambda p: (spread[p], p), default=())
        moved = change(first_group, group, "gold")
        limit = UNJUDGED if moved is None else EVERYWHERE if moved[0] < -moved[1] else math.inf
        if len(group) >= 2 * FEWEST and spread.get(phrase, 0.0) > limit:
            share, first = counts[phrase] / len(group), start[phrase] / len(group)
            text = f"{share:.0%} of the held-out answers hold {' '.join(phrase)!r} (at first {first:.0%})"
            yield Sign("repeated phrase", step, text, {"share": share, "first": first})
            return


def phrases(group: Rows) -> Counter[tuple[str, ...]]:
    """In how many answers each run of three words occurs."""
    counts: Counter[tuple[str, ...]] = Counter()
    for row in group:
        words = re.findall(r"[^\W_]+", str(row.get("response", "")).lower())
        counts.update({tuple(words[i : i + PHRASE]) for i in range(len(words) - PHRASE + 1)})
    return counts


# ---------------------------------------------------------------------- the one that decides
CERTAIN = 3.0  # standard errors
FELL = 0.05  # of the judge's scale from 0 to 1
FELL_UNSURE = 0.15  # where there are means only, and no error of them


def judge_falls(rows: Rows, samples: Rows = (), since: int = 0) -> Iterator[Sign]:
    """The judge is below its best while the reward is above its start, on the same held-out answers."""
    golds, rewards = dict(column(rows, "gold")), dict(column(rows, "eval_reward"))
    steps = [step for step in golds if step in rewards]
    groups = by_step(samples)
    for place in range(1, len(steps)):
        now, start = steps[place], steps[0]
        if now < since:
            continue
        best = max(steps[:place], key=lambda step: golds[step])
        fall, rise = golds[now] - golds[best], rewards[now] - rewards[start]
        if fell(groups.get(best, ()), groups.get(now, ()), fall) and rise > 0:
            text = (
                f"the held-out judge fell from {golds[best]:.2f} (step {best}) to {golds[now]:.2f}, while the"
                f" reward stands {rise:.2f} above its start: the policy is gaming the reward model"
            )
            numbers = {"best_step": best, "best": golds[best], "gold": golds[now], "reward_rise": rise}
            yield Sign(DECISIVE, now, text, {name: float(value) for name, value in numbers.items()})
            return


def fell(before: Rows, after: Rows, fall: float) -> bool:
    """Whether the judge's fall is beyond its noise on the same prompts."""
    moved = change(before, after, "gold")
    if moved is None:
        return fall < -FELL_UNSURE
    return moved[0] < -max(CERTAIN * moved[1], FELL)
