"""Grading a submission: one part a file, a table for the terminal and a results JSON as Gradescope reads it.

A part that is missing, damaged or under its threshold says what to do; the others are graded all the same.
Thresholds are those of the university project. A prompt whose verdicts disagree between the two orders is
a tie and counts one half (the project's own grader leaves such prompts out).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from helpers.course.submission import policy_file, read_public_rows
from helpers.course.submission_reader import (
    REWARD_FILE,
    Faults,
    Submission,
    open_submission,
    read_policy_rows,
    read_score_rows,
)
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
# Mean per response token, against the model PPO starts from. Only training and evaluation can measure it.
KL_LIMITS = {"ppo": 0.5}
OPPONENTS = {"base": "the frozen base", "sft": "the SFT model"}
PROMPTS, PREFERENCES = "public_test_gen_prompts_*.jsonl", "public_test_prefs_*.jsonl"
RESPONSES = "public_test_gen_{}_responses_*.jsonl"
MAX_UNPARSED_SHARE = 0.05  # with more verdicts missing than this, a win rate is no basis for a grade
ALIASES = {"policy_generations/drgrpo.jsonl": "policy_generations/dr_grpo.jsonl"}


@dataclass(frozen=True)
class Outcome:
    """What grading one part found. `value` is None where nothing could be measured."""

    passed: bool
    output: str
    value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


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
) -> dict[str, Any]:
    """Grade a submission directory or zip and return the results (written to `output` if given).

    Args:
        public_eval_dir: holds the public prompts, the frozen base's responses, the preference pairs and,
            for PPO, the SFT model's responses.
        judge: None grades the reward model alone.
        answers: namespace with `combine_orders`, `win_rate`, `bootstrap_ci` and `pair_accuracy`.
        output: path of the results JSON. Nothing else is written.
        trainable: methods that this version of the course can train; None means all. One that it cannot is a
            part of the grade only where it was submitted all the same.

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
    tests = [_timed("reward_model", REWARD_THRESHOLD, lambda: _grade_reward(opened, public, answers))]
    for method, threshold in WIN_THRESHOLDS.items():
        if trainable is not None and method not in trainable and not _submitted(method, opened):
            notices.append(
                f"{method} is no part of this grade: this version of the course does not train it yet"
            )
        elif _opponent_is_there(method, public):
            part = partial(_grade_policy, method, opened, public, judge, answers, strict_below)
            tests.append(_timed(method, threshold, part))
        else:
            notices.append(f"{method} is no part of this grade: {public.name} has no {_responses_of(method)}")
    results = _results(tests, notices, judge, time.perf_counter() - started)
    if output is not None:
        write_json(output, results)
    return results


def _results(
    tests: list[dict[str, Any]], notices: list[str], judge: Judge | None, seconds: float
) -> dict[str, Any]:
    notices = [_printable(notice) for notice in notices]
    return {
        "score": sum(test["score"] for test in tests),
        "max_score": sum(test["max_score"] for test in tests),
        "execution_time": round(seconds, 3),
        "output": "\n".join(notices),
        "visibility": "visible",
        "tests": tests,
        "extra_data": {
            "judge": judge.name if judge else None,
            "judge_is_proxy": bool(judge and judge.is_proxy),
            "notices": notices,
        },
    }


def _timed(name: str, threshold: float, part: Callable[[], Outcome]) -> dict[str, Any]:
    """Run one part; whatever goes wrong in it becomes its one line and leaves the others alone."""
    started = time.perf_counter()
    try:
        outcome = part()
    except CourseError as problem:
        outcome = Outcome(False, str(problem))
    except Exception as problem:  # a fault of ours or of the judge must not take the other parts down
        outcome = Outcome(
            False, f"the grader failed on this part ({type(problem).__name__}: {problem}); ask staff"
        )
    return {
        "name": name,
        "score": 1.0 if outcome.passed else 0.0,
        "max_score": 1.0,
        "status": "passed" if outcome.passed else "failed",
        "output": _printable(outcome.output),
        "visibility": "visible",
        "extra_data": {
            "value": outcome.value,
            "threshold": threshold,
            "seconds": round(time.perf_counter() - started, 3),
            **outcome.details,
        },
    }


def _printable(text: str) -> str:
    """Escape what a terminal or a JSON file could choke on; newlines between lines stay."""
    return "\n".join(
        "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        for line in text.split("\n")
    )


def _sound(faults: Faults, name: str) -> None:
    if faults:
        raise CourseError("\n".join([f"{name} was not graded, mend it first:", *faults.lines()]))


# ---------------------------------------------------------------------- the reward model


def _grade_reward(submission: Submission, public: Path, answers: Any) -> Outcome:
    if REWARD_FILE not in submission:
        raise CourseError(
            f"{REWARD_FILE} is missing: "
            "make it with `python -m helpers submit reward_model --reward_model RUN/final`"
        )
    expected = [row["row_id"] for row in read_public_rows(_public_file(public, PREFERENCES))]
    faults = Faults()
    scores = read_score_rows(submission.read(REWARD_FILE), expected, faults)
    _sound(faults, REWARD_FILE)
    pairs = torch.tensor([scores[row_id] for row_id in expected], dtype=torch.float64)
    accuracy = float(answers.pair_accuracy(pairs[:, 0], pairs[:, 1]))
    low, high = answers.bootstrap_ci([float(chosen > rejected) for chosen, rejected in pairs.tolist()])
    ties = int((pairs[:, 0] == pairs[:, 1]).sum())
    line = f"pair accuracy {accuracy:.3f} [{low:.3f}, {high:.3f}] on {len(expected)} pairs"
    line += f"; {ties} pairs scored equal count as wrong" if ties else ""
    advice = (
        "train longer or on more pairs; far under 0.5 means that chosen and rejected are swapped; "
        "equal scores mean a head that was not saved"
    )
    details = {"ci95": [low, high], "pairs": len(expected), "ties": ties}
    return _judged(accuracy, REWARD_THRESHOLD, line, advice, details)


def _judged(value: float, threshold: float, line: str, advice: str, details: dict[str, Any]) -> Outcome:
    if value >= threshold:
        return Outcome(True, f"{line}; threshold {threshold:.2f} reached", value, details)
    return Outcome(False, f"{line}; under the threshold {threshold:.2f}: {advice}", value, details)


# ---------------------------------------------------------------------- policies


def _grade_policy(
    method: str,
    submission: Submission,
    public: Path,
    judge: Judge | None,
    answers: Any,
    strict_below: float | None,
) -> Outcome:
    name = _policy_name(method, submission)
    prompts = read_public_rows(_public_file(public, PROMPTS))
    expected = [row["row_id"] for row in prompts]
    faults = Faults()
    responses = read_policy_rows(submission.read(name), expected, faults)
    _sound(faults, name)
    if judge is None:
        raise CourseError(f"{name} is sound but was not graded: no judge was given")
    baseline = _baseline(public, method, expected)
    result = head_to_head(
        judge,
        [_example(row) for row in prompts],
        [responses[row_id] for row_id in expected],
        [baseline[row_id] for row_id in expected],
        answers,
        strict_below=strict_below,
    )
    return _policy_outcome(method, result)


def _submitted(method: str, submission: Submission) -> bool:
    name = policy_file(method)
    return name in submission or ALIASES.get(name, name) in submission


def _policy_name(method: str, submission: Submission) -> str:
    name = policy_file(method)
    alias = ALIASES.get(name, name)
    if name not in submission and alias not in submission:
        raise CourseError(
            f"{name} is missing: make it with "
            f"`python -m helpers submit policy --method {method} --adapter RUN/final/adapter`"
        )
    return name if name in submission else alias


def _policy_outcome(method: str, result: HeadToHead) -> Outcome:
    low, high = result.ci95
    prompts = len(result.outcomes) + result.unparsed
    line = (
        f"win rate {result.win_rate:.3f} [{low:.3f}, {high:.3f}] against {OPPONENTS[baseline_of(method)]} "
        f"by {result.judge}{' (a proxy)' if result.is_proxy else ''}: "
        f"{result.wins} won, {result.losses} lost, {result.ties} tied, {result.unparsed} unparsed"
    )
    if result.strict:
        line += f"; strict {result.strict.win_rate:.3f}"
    details = result.to_dict()
    if result.unparsed > MAX_UNPARSED_SHARE * prompts:
        line += (
            f"; {result.unparsed} of {prompts} verdicts are missing, too many to grade: run the judge again"
        )
        return Outcome(False, line, result.win_rate, details)
    advice = "choose a checkpoint on the development prompts, train longer, or look at the lost prompts"
    return _judged(result.win_rate, WIN_THRESHOLDS[method], line, advice, details)


def _example(row: Mapping[str, Any]) -> Example:
    schema = ("row_id", "prompt_messages", "prompt_text")
    rest = {name: value for name, value in row.items() if name not in schema}
    return Example(row["row_id"], tuple(row["prompt_messages"]), (), rest)


def _responses_of(method: str) -> str:
    return RESPONSES.format(baseline_of(method))


def _opponent_is_there(method: str, public: Path) -> bool:
    """Only the SFT model's responses are optional: a missing base file is an error of its part."""
    return baseline_of(method) == "base" or bool(list(public.glob(_responses_of(method))))


def _baseline(public: Path, method: str, expected: Sequence[str]) -> dict[str, str]:
    path = _public_file(public, _responses_of(method))
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


# ---------------------------------------------------------------------- the table


def render_results(results: Mapping[str, Any]) -> str:
    """Return the results as a table for the terminal, with what to mend below it."""
    header = f"{'part':<13} {'value':>6} {'needed':>6} {'score':>9} {'seconds':>8}  result"
    lines = [header, "-" * len(header)]
    lines += [_table_row(test) for test in results["tests"]]
    lines += [
        "-" * len(header),
        f"{'total':<13} {'':>6} {'':>6} {results['score']:>4g}/{results['max_score']:<4g}",
    ]
    lines += [f"note: {notice}" for notice in results["extra_data"]["notices"]]
    for test in results["tests"]:
        body = test["output"].split("\n")
        lines.append(f"{test['name']}: {body[0]}")
        lines += [f"    {line}" for line in body[1:]]
    return "\n".join(lines)


def _table_row(test: Mapping[str, Any]) -> str:
    extra = test["extra_data"]
    value = "–" if extra["value"] is None else f"{extra['value']:.3f}"
    score = f"{test['score']:>4g}/{test['max_score']:<4g}"
    figures = f"{value:>6} {extra['threshold']:>6.2f} {score:>9} {extra['seconds']:>8.2f}"
    return f"{test['name']:<13} {figures}  {test['status']}"
