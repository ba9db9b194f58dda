"""Grading a submission: one part a file, and part 2, each on its own.

A part that is missing, damaged or under its threshold says what to do; the others are graded all the same.
Thresholds are those of the university project. A prompt whose verdicts disagree between the two orders is
a tie and counts one half (the project's own grader leaves such prompts out; its figure stands beside ours).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from helpers.course.layout import (
    ALIASES,
    KINDS,
    REWARD_FILE,
    best_file,
    manifest_file,
    policy_file,
)
from helpers.course.manifest import describe, read_manifest
from helpers.course.results import Outcome, Part, as_test, graded, outcome_of, printable, results_of
from helpers.course.submission import read_public_rows
from helpers.course.submission_files import Submission, open_submission
from helpers.course.submission_reader import Faults, read_policy_rows, read_score_rows
from helpers.errors import CourseError
from helpers.files import write_json
from helpers.guard import guarded
from helpers.judging.evaluate import STRICT_BELOW, HeadToHead, answer, head_to_head
from helpers.judging.judge import Judge
from helpers.text.datasets import Example

REWARD_THRESHOLD = 0.74
WIN_THRESHOLDS = {
    "dpo": 0.65,
    "ipo": 0.60,
    "aot": 0.65,
    "grpo": 0.60,
    "dr_grpo": 0.60,
    "gspo": 0.60,
    "ppo": 0.75,
}
PART2_THRESHOLDS = {"offline": 0.82, "online": 0.70}  # one of them is enough
# Mean per response token, against the model PPO starts from. Only training and evaluation can measure it.
KL_LIMITS = {"ppo": 0.5}
OPPONENTS = {"base": "the frozen base", "sft": "the SFT model"}
PROMPTS, PREFERENCES = "public_test_gen_prompts_*.jsonl", "public_test_prefs_*.jsonl"
RESPONSES = "public_test_gen_{}_responses_*.jsonl"
MAX_UNPARSED_SHARE = 0.05  # with more verdicts missing than this, a win rate is no basis for a grade
NO_JUDGE = "no judge was given"


def baseline_of(method: str) -> str:
    """PPO starts from the SFT model and is measured against it; the others against the frozen base."""
    return "sft" if method == "ppo" else "base"


def grade(
    submission: str | Path,
    public_eval_dir: str | Path,
    judge: Judge | None,
    answers: Any,
    output: str | Path | None = None,
    *,
    strict_below: float | None = STRICT_BELOW,
    trainable: Sequence[str] | None = None,
    part2: bool = True,
    no_judge: str = NO_JUDGE,
    leaderboard: bool = False,
    judging_reward_model: str | None = None,
) -> dict[str, Any]:
    """Grade a submission directory or zip and return the results (written to `output` if given).

    Args:
        public_eval_dir: holds the public prompts, the frozen base's responses, the preference pairs and,
            for PPO, the SFT model's responses.
        judge: None grades the reward model alone, and checks the other files; `no_judge` says why.
        answers: namespace with `combine_orders`, `win_rate`, `bootstrap_ci` and `pair_accuracy`.
        output: path of the results JSON. Nothing else is written. An interrupted grading writes what it has.
        trainable: methods that this version of the course can train; None means all. One that it cannot is a
            part of the grade only where it was submitted all the same.
        part2: False makes part 2 a part of the grade only where it was submitted.
        leaderboard: also write the figures as Gradescope's leaderboard, which the class sees.
        judging_reward_model: fingerprint of the reward model that judges, if one does. Answers that it chose
            are not graded by it.

    Raises:
        CourseError: only for the instructor's side: public files or answers that are missing. What is
            wrong with the submission is in the results.
    """
    started, public, answers = time.perf_counter(), Path(public_eval_dir), guarded(answers)
    for name in ("combine_orders", "win_rate", "bootstrap_ci", "pair_accuracy"):
        answer(answers, name)
    if not public.is_dir():
        raise CourseError(f"{public_eval_dir} is not a directory: give the one with {PROMPTS}")
    try:
        opened, notices = open_submission(submission), []
    except CourseError as problem:
        opened, notices = Submission({}, []), [str(problem)]
    notices += opened.notices
    grader = Grader(opened, public, judge, answers, strict_below, no_judge, judging_reward_model)
    parts = grader.parts(trainable, part2, notices)
    tests: list[dict[str, Any]] = []

    def so_far() -> dict[str, Any]:
        rest = [as_test(part, Outcome(False, INTERRUPTED), 0.0) for part in parts[len(tests) :]]
        seconds = time.perf_counter() - started
        return results_of(tests + rest, notices, judge, seconds, leaderboard=leaderboard)

    try:
        for part in parts:
            tests.append(graded(part))
            if output is not None and tests[-1]["extra_data"]["seconds"] > SAVE_AFTER:
                write_json(output, so_far())
    finally:
        results = so_far()
        if output is not None:
            write_json(output, results)
    return results


INTERRUPTED = "not graded: the grader was interrupted; run it again"
SAVE_AFTER = 5.0  # a part that took longer is written at once, so that no kill takes it away


class Grader:
    """One submission, the public files, and the judge."""

    def __init__(
        self,
        submission: Submission,
        public: Path,
        judge: Judge | None,
        answers: Any,
        strict_below: float | None,
        no_judge: str,
        judging_reward_model: str | None,
    ) -> None:
        self.submission, self.public, self.judge, self.answers = submission, public, judge, answers
        self.strict_below, self.no_judge = strict_below, no_judge
        self.judging_reward_model = judging_reward_model

    def parts(self, trainable: Sequence[str] | None, part2: bool, notices: list[str]) -> list[Part]:
        """The parts of this grade in order; why one is left out goes to `notices`."""
        parts = [Part("reward_model", REWARD_THRESHOLD, self.reward_model)]
        for method, threshold in WIN_THRESHOLDS.items():
            if trainable is not None and method not in trainable and self.policy_name(method) is None:
                notices.append(
                    f"{method} is no part of this grade: this version of the course does not train it yet"
                )
            elif _opponent_is_there(method, self.public):
                parts.append(Part(method, threshold, partial(self.policy, method)))
            else:
                missing = f"{self.public.name} has no {_responses_of(method)}"
                notices.append(f"{method} is no part of this grade: {missing}")
        if part2 or any(best_file(kind) in self.submission for kind in KINDS):
            parts.append(Part("part2", min(PART2_THRESHOLDS.values()), self.part2))
        return parts

    # ------------------------------------------------------------------ the reward model

    def reward_model(self) -> Outcome:
        """Pair accuracy on the public preference pairs. No judge is needed."""
        if REWARD_FILE not in self.submission:
            raise CourseError(
                f"{REWARD_FILE} is missing: "
                "make it with `python -m helpers submit reward_model --reward_model RUN/final`"
            )
        expected = [row["row_id"] for row in read_public_rows(_public_file(self.public, PREFERENCES))]
        faults = Faults()
        scores = read_score_rows(self.submission.read(REWARD_FILE), expected, faults)
        _sound(faults, REWARD_FILE)
        pairs = torch.tensor([scores[row_id] for row_id in expected], dtype=torch.float64)
        accuracy = float(self.answers.pair_accuracy(pairs[:, 0], pairs[:, 1]))
        right = [float(chosen > rejected) for chosen, rejected in pairs.tolist()]
        low, high = self.answers.bootstrap_ci(right)
        ties = int((pairs[:, 0] == pairs[:, 1]).sum())
        line = f"pair accuracy {accuracy:.3f} [{low:.3f}, {high:.3f}] on {len(expected)} pairs"
        line += f"; {ties} pairs scored equal count as wrong" if ties else ""
        advice = (
            "train longer or on more pairs; far under 0.5 means that chosen and rejected are swapped; "
            "equal scores mean a head that was not saved"
        )
        details = {"ci95": [low, high], "pairs": len(expected), "ties": ties}
        return _judged(accuracy, REWARD_THRESHOLD, line, advice, details)

    # ------------------------------------------------------------------ policies

    def policy_name(self, method: str) -> str | None:
        """The name under which a method's file was submitted."""
        name = policy_file(method)
        return next((known for known in (name, ALIASES.get(name)) if known in self.submission), None)

    def policy(self, method: str) -> Outcome:
        """One method's answers against the base's, or PPO's against the SFT model's."""
        name = self.policy_name(method)
        if name is None:
            raise CourseError(
                f"{policy_file(method)} is missing: make it with "
                f"`python -m helpers submit policy --method {method} --adapter RUN/final/adapter`"
            )
        advice = "choose a checkpoint on the development prompts, train longer, or look at the lost prompts"
        return self.answers_against(name, baseline_of(method), WIN_THRESHOLDS[method], advice)

    def answers_against(self, name: str, opponent: str, threshold: float, advice: str) -> Outcome:
        """Judge one file of answers in both orders; CourseError for a file that is not sound."""
        prompts = read_public_rows(_public_file(self.public, PROMPTS))
        expected = [row["row_id"] for row in prompts]
        faults = Faults()
        responses = read_policy_rows(self.submission.read(name), expected, faults)
        _sound(faults, name)
        if self.judge is None:
            raise CourseError(f"{name} is sound but was not graded: {self.no_judge}")
        baseline = _baseline(self.public, opponent, expected)
        result = head_to_head(
            self.judge,
            [as_example(row) for row in prompts],
            [responses[row_id] for row_id in expected],
            [baseline[row_id] for row_id in expected],
            self.answers,
            strict_below=self.strict_below,
        )
        return _policy_outcome(result, opponent, threshold, advice)

    # ------------------------------------------------------------------ part 2

    def part2(self) -> Outcome:
        """The best answers of an offline and of an online family; one over its threshold is enough."""
        submitted = [kind for kind in KINDS if best_file(kind) in self.submission]
        if not submitted:
            files = " or ".join(map(best_file, KINDS))
            raise CourseError(
                f"{files} is missing: make one with `python -m helpers submit best --kind offline --adapters "
                "dpo=RUN --n 8 --selector reward_model --reward_model RUN/final`"
            )
        outcomes = {kind: outcome_of(partial(self.best, kind)) for kind in submitted}
        lines = [f"{kind}: {outcome.output}" for kind, outcome in outcomes.items()]
        measured = {kind: outcome.value for kind, outcome in outcomes.items() if outcome.value is not None}
        details: dict[str, Any] = {
            kind: {"value": outcome.value, "threshold": PART2_THRESHOLDS[kind], **outcome.details}
            for kind, outcome in outcomes.items()
        }
        nearest = max(measured, key=lambda kind: measured[kind] - PART2_THRESHOLDS[kind], default=None)
        if nearest is not None:
            details = {"threshold": PART2_THRESHOLDS[nearest], **details}
        passed = any(outcome.passed for outcome in outcomes.values())
        return Outcome(passed, "\n".join(lines), measured.get(nearest), details)

    def best(self, kind: str) -> Outcome:
        """One file of part 2, if a sound manifest says what its answers were chosen from."""
        name, manifest_name = best_file(kind), manifest_file(kind)
        if manifest_name not in self.submission:
            raise CourseError(
                f"{manifest_name} is missing: `python -m helpers submit best` writes it with the answers"
            )
        rows = len(read_public_rows(_public_file(self.public, PROMPTS)))
        data = self.submission.read(manifest_name)
        try:
            manifest = read_manifest(data, kind, self.submission.read(name), rows)
        except CourseError as problem:
            raise CourseError(f"{manifest_name} does not hold: {problem}") from None
        if self.judging_reward_model and manifest["selector"].get("fingerprint") == self.judging_reward_model:
            raise CourseError(
                "the reward model that chose these answers is the judge here: take another judge"
            )
        advice = (
            "train a better policy, a better reward model, or draw more candidates and look at what it chose"
        )
        outcome = self.answers_against(name, "base", PART2_THRESHOLDS[kind], advice)
        chosen = {printable(name): count for name, count in manifest["chosen"].items()}
        details = {**outcome.details, "manifest": {"n": manifest["n"], "chosen": chosen}}
        return Outcome(outcome.passed, f"{outcome.output}; {describe(manifest)}", outcome.value, details)


# ---------------------------------------------------------------------- figures into words


def _judged(value: float, threshold: float, line: str, advice: str, details: dict[str, Any]) -> Outcome:
    if value >= threshold:
        return Outcome(True, f"{line}; threshold {threshold:.2f} reached", value, details)
    return Outcome(False, f"{line}; under the threshold {threshold:.2f}: {advice}", value, details)


def _policy_outcome(result: HeadToHead, opponent: str, threshold: float, advice: str) -> Outcome:
    low, high = result.ci95
    prompts = len(result.outcomes) + result.unparsed
    line = (
        f"win rate {result.win_rate:.3f} [{low:.3f}, {high:.3f}] against {OPPONENTS[opponent]} "
        f"by {result.judge}{' (a proxy)' if result.is_proxy else ''}: "
        f"{result.wins} won, {result.losses} lost, {result.ties} tied, {result.unparsed} unparsed"
    )
    line += "".join(f"; {words}" for words in _trust(result))
    details = result.to_dict()
    if result.unparsed > MAX_UNPARSED_SHARE * prompts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.left_out.items() if count)
        line += (
            f"; {result.unparsed} of {prompts} verdicts are missing ({reasons}), too many to grade: "
            "run the judge again, it goes on where it stopped"
        )
        return Outcome(False, line, result.win_rate, details)
    return _judged(result.win_rate, threshold, line, advice, details)


def _trust(result: HeadToHead) -> Iterator[str]:
    """What stands beside a win rate: how far it can be believed. Figures that were not taken are left out."""
    if result.strict:
        yield f"strict {result.strict.win_rate:.3f}"
    agreed, length = result.agreement, result.length_controlled
    if agreed and agreed.win_rate is not None:
        yield f"the project's own figure {agreed.win_rate:.3f} on {agreed.n} prompts with agreeing orders"
    if result.consistency is not None and result.first_position_rate is not None:
        yield f"consistency {result.consistency:.2f}, first position {result.first_position_rate:.2f}"
    if length and length.value is not None:
        yield f"at equal lengths {length.value:.3f}{' (an extrapolation)' if length.warning else ''}"


def _sound(faults: Faults, name: str) -> None:
    if faults:
        raise CourseError("\n".join([f"{name} was not graded, mend it first:", *faults.lines()]))


# ---------------------------------------------------------------------- the public files


def as_example(row: Mapping[str, Any]) -> Example:
    """A row of the public prompts, as judges take it."""
    schema = ("row_id", "prompt_messages", "prompt_text")
    rest = {name: value for name, value in row.items() if name not in schema}
    return Example(row["row_id"], tuple(row["prompt_messages"]), (), rest)


def _responses_of(method: str) -> str:
    return RESPONSES.format(baseline_of(method))


def _opponent_is_there(method: str, public: Path) -> bool:
    """Only the SFT model's responses are optional: a missing base file is an error of its part."""
    return baseline_of(method) == "base" or bool(list(public.glob(_responses_of(method))))


def _baseline(public: Path, opponent: str, expected: Sequence[str]) -> dict[str, str]:
    path = _public_file(public, RESPONSES.format(opponent))
    faults = Faults()
    responses = read_policy_rows(path.read_bytes(), expected, faults)
    if faults:
        raise CourseError(f"the public file {path} is damaged, tell staff: {'; '.join(faults.lines())}")
    return responses


def _public_file(public: Path, pattern: str) -> Path:
    found = sorted(public.glob(pattern))
    if len(found) != 1:
        raise CourseError(f"{public} holds {len(found)} files like {pattern}; exactly one is needed")
    return found[0]
