"""Writing a submission as the university project's autograder reads it.

    policy_generations/   greedy answers to the public prompts, a file a method
    reward_model/         scores of the public preference pairs
    part2/                the best answers of several candidates, written by `helpers.course.best`

Rows are checked before a file appears, files appear whole, and a killed run goes on where it was.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.course.layout import REWARD_FILE, ROOT_NAME, layout, policy_file
from helpers.course.submission_files import Submission, open_submission
from helpers.course.submission_reader import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    Faults,
    read_policy_rows,
    read_score_rows,
)
from helpers.errors import CourseError
from helpers.files import atomic_path, fingerprint, read_jsonl, write_jsonl
from helpers.journal import in_batches
from helpers.judging.measure import AS_IT_IS, Role, check_finite
from helpers.models.adapters import active_adapter
from helpers.models.reference_cache import weights_fingerprint
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.groups import Group

RETRIES = (1, 8, 32)  # min_new_tokens tried in turn on a prompt whose greedy answer has no visible text
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # so that equal submissions give equal zips


@dataclass(frozen=True)
class Written:
    """What was written: the file, its rows, and what a reader of the log should know."""

    path: Path
    rows: int
    resumed: int = 0  # rows taken from an interrupted run
    retried: list[str] = field(default_factory=list)  # row ids whose first greedy answer was empty
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def render(self) -> str:
        """Return the summary as lines for the terminal."""
        resumed = f", {self.resumed} of them from the interrupted run" if self.resumed else ""
        lines = [f"{self.path}: {self.rows} rows{resumed} in {self.seconds:.1f} s"]
        if self.retried:
            lines.append(
                f"{len(self.retried)} greedy answers were empty and were generated again with a minimum "
                f"length: {', '.join(self.retried[:5])}{' …' if len(self.retried) > 5 else ''}"
            )
        return "\n".join([*lines, *self.notes])


def check_budget(budget: Budget) -> list[str]:
    """Refuse a budget over the benchmark's; return a note for each one under it.

    Raises:
        CourseError: naming the flag that is over, or not positive.
    """
    limits = {
        "max_prompt_tokens": MAX_PROMPT_TOKENS,
        "max_new_tokens": MAX_NEW_TOKENS,
        "max_response_tokens": MAX_RESPONSE_TOKENS,
    }
    notes = []
    for name, limit in limits.items():
        value = getattr(budget, name)
        if not 1 <= value <= limit:
            raise CourseError(f"--{name} {value} is outside the benchmark's budget: use 1 to {limit}")
        if value < limit:
            notes.append(f"--{name} is {value}, under the {limit} that the benchmark allows")
    return notes


def directory_fingerprint(path: str | Path) -> str:
    """Hash the names and contents of the files under `path`, such as a saved adapter."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file())
    if not files:
        raise CourseError(f"{path} holds no files: give the directory of a saved adapter")
    return fingerprint(*(part for file in files for part in (str(file.relative_to(root)), file.read_bytes())))


def read_public_rows(path: str | Path, *needed: str) -> list[dict[str, Any]]:
    """Read a public evaluation file; every row needs a unique `row_id`, a prompt and the `needed` fields.

    Rows without `prompt_messages` get one user message from `prompt_text`.
    """
    rows, seen = read_jsonl(path), set()
    if not rows:
        raise CourseError(f"{path} has no rows")
    for number, row in enumerate(rows, start=1):
        missing = [name for name in ("row_id", *needed) if not isinstance(row.get(name), str)]
        if missing or not (row.get("prompt_messages") or row.get("prompt_text")):
            raise CourseError(
                f"{path} row {number} lacks {', '.join(missing) or 'prompt_messages and prompt_text'}"
            )
        if row["row_id"] in seen:
            raise CourseError(f"{path} row {number} repeats row_id {row['row_id']}")
        seen.add(row["row_id"])
        messages = row.get("prompt_messages") or [{"role": "user", "content": row["prompt_text"]}]
        row["prompt_messages"] = messages
        row.setdefault("prompt_text", str(messages[-1].get("content", "")))
    return rows


def _finish(path: Path, rows: Sequence[dict[str, Any]], faults: Faults) -> None:
    """Write the checked rows atomically and drop the journal; CourseError if anything is wrong with them."""
    if faults:
        raise CourseError(f"{path} was not written. " + "; ".join(faults.lines()))
    write_jsonl(path, rows)
    finish(path)


def finish(path: Path) -> None:
    """Drop the journal of a file that is written."""
    path.with_name(path.name + ".partial").unlink(missing_ok=True)


# ---------------------------------------------------------------------- policies


def write_policy_submission(
    directory: str | Path,
    method: str,
    prompts_path: str | Path,
    model: Any,
    encoder: ChatEncoder,
    *,
    policy_fingerprint: str | None = None,
    budget: Budget | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> Written:
    """Answer the public prompts greedily and write the method's file.

    Args:
        model: a Role, or a model taken as it stands.
        policy_fingerprint: identifies model and adapter; of the weights if None. An interrupted run of
            another policy, tokenizer, budget or set of prompts is not continued.
        batch_size: prompts generated together. A resumed run may use another.

    Raises:
        CourseError: over budget, for an unknown method, or when answers stay empty.
    """
    started, budget = time.perf_counter(), budget or Budget()
    notes, path = check_budget(budget), Path(directory) / policy_file(method)
    prompts = read_public_rows(prompts_path)
    role = model if isinstance(model, Role) else Role(model)
    identity = policy_fingerprint or _role_fingerprint(role)
    key = fingerprint(identity, encoder.fingerprint, vars(budget), prompts, "greedy", seed)
    like_lengths = sorted(prompts, key=lambda row: -len(str(row["prompt_messages"])))  # less padding

    def work(rows: list[dict[str, Any]]) -> dict[str, Any]:
        with role.active():
            return _answer_batch(role, encoder, rows, budget, seed)

    batches, resumed = in_batches(path, key, like_lengths, batch_size, work, f"submit {method}")
    retried = [row_id for batch in batches for row_id in batch["retried"]]
    by_id = {row["row_id"]: row for batch in batches for row in batch["rows"]}
    write_policy_rows(directory, method, [by_id[row["row_id"]] for row in prompts], prompts)
    return Written(path, len(prompts), resumed, retried, notes, time.perf_counter() - started)


def _role_fingerprint(role: Role) -> str:
    adapter = active_adapter(role.model) if role.adapter == AS_IT_IS else role.adapter
    return weights_fingerprint(role.model, adapter)


def write_policy_rows(
    directory: str | Path, method: str, rows: Sequence[dict[str, Any]], prompts: Sequence[dict[str, Any]]
) -> Path:
    """Write rows that exist already, if they are complete, unique, non-empty and within budget."""
    path, faults = Path(directory) / policy_file(method), Faults()
    data = "\n".join(json.dumps(row) for row in rows).encode()
    read_policy_rows(data, [row["row_id"] for row in prompts], faults)
    if any("empty" in kind for kind in faults.places):
        empty = [row["row_id"] for row in rows if not str(row.get("response_text", "")).strip()]
        faults.add(
            f"the answers to {', '.join(empty[:5])}{' …' if len(empty) > 5 else ''} stay empty even "
            "with a minimum length: submit an earlier checkpoint or train more gently"
        )
    _finish(path, rows, faults)
    return path


def _answer_batch(
    role: Role, encoder: ChatEncoder, rows: Sequence[dict[str, Any]], budget: Budget, seed: int
) -> dict[str, Any]:
    prompts = [encoder.encode_prompt(row["prompt_messages"], budget.max_prompt_tokens) for row in rows]
    answers = _greedy(role, encoder, prompts, budget, 0, seed)
    empty = [index for index, answer in enumerate(answers) if not answer.text.strip()]
    left = empty
    for minimum in RETRIES:  # an answer that ends at once is legal for the model but not for the grader
        if left:
            again = _greedy(
                role,
                encoder,
                [prompts[index] for index in left],
                budget,
                min(minimum, budget.max_new_tokens),
                seed,
            )
            for index, answer in zip(left, again, strict=True):
                answers[index] = answer
            left = [index for index in left if not answers[index].text.strip()]
    return {
        "rows": [policy_row(row, answer) for row, answer in zip(rows, answers, strict=True)],
        "retried": [rows[index]["row_id"] for index in empty],
    }


def _greedy(
    role: Role, encoder: ChatEncoder, prompts: list[list[int]], budget: Budget, minimum: int, seed: int
) -> list[Completion]:
    sampling = Sampling(max_new_tokens=budget.max_new_tokens, min_new_tokens=minimum, greedy=True)
    groups = generate(role.model, encoder, prompts, sampling, k=1, batch_size=len(prompts), seed=seed)
    return [group[0] for group in groups]


def policy_row(prompt: dict[str, Any], answer: Completion) -> dict[str, Any]:
    """An answer as the university project's files hold it."""
    return {
        "row_id": prompt["row_id"],
        "prompt_text": prompt["prompt_text"],
        "response_text": answer.text,
        "generated_num_tokens": len(answer.ids),
    }


# ---------------------------------------------------------------------- reward model


def write_reward_submission(
    directory: str | Path,
    prefs_path: str | Path,
    reward_model: Any,
    encoder: ChatEncoder,
    *,
    reward_fingerprint: str | None = None,
    budget: Budget | None = None,
    batch_size: int = 16,
) -> Written:
    """Score the public preference pairs and write the reward file. Every pair is scored, none is dropped.

    Raises:
        CourseError: over budget, or for scores that are not finite.
    """
    started, budget = time.perf_counter(), budget or Budget()
    notes, path = check_budget(budget), Path(directory) / REWARD_FILE
    pairs = read_public_rows(prefs_path, "chosen_text", "rejected_text")
    identity = reward_fingerprint or _reward_fingerprint(reward_model)
    key = fingerprint(identity, encoder.fingerprint, vars(budget), pairs, "reward")

    def work(rows: list[dict[str, Any]]) -> dict[str, Any]:
        scores = reward_model.score_groups([_pair_group(row, encoder, budget) for row in rows], batch_size)
        check_finite([row["row_id"] for row in rows], scores)
        named = zip(rows, scores, strict=True)
        return {"rows": [_score_row(row["row_id"], *map(float, pair)) for row, pair in named]}

    batches, resumed = in_batches(path, key, pairs, batch_size, work, "submit reward model")
    by_id = {row["row_id"]: row for batch in batches for row in batch["rows"]}
    rows, faults = [by_id[pair["row_id"]] for pair in pairs], Faults()
    data = "\n".join(json.dumps(row) for row in rows).encode()
    read_score_rows(data, [pair["row_id"] for pair in pairs], faults)
    _finish(path, rows, faults)
    return Written(path, len(rows), resumed, [], notes, time.perf_counter() - started)


def _reward_fingerprint(reward_model: Any) -> str:
    head = [(name, value.tolist()) for name, value in reward_model.head.state_dict().items()]
    return fingerprint(weights_fingerprint(reward_model.model, reward_model.adapter), head)


def _pair_group(row: dict[str, Any], encoder: ChatEncoder, budget: Budget) -> Group:
    texts = (row["chosen_text"], row["rejected_text"])
    responses = [encoder.encode_response(text, max_tokens=budget.max_response_tokens) for text in texts]
    return Group(
        encoder.encode_prompt(row["prompt_messages"], budget.max_prompt_tokens), responses, row["row_id"]
    )


def _score_row(row_id: str, chosen: float, rejected: float) -> dict[str, Any]:
    return {"row_id": row_id, "chosen_score": chosen, "rejected_score": rejected}


# ---------------------------------------------------------------------- handing it in


def zip_submission(directory: str | Path, output: str | Path | None = None) -> Path:
    """Zip the layout's files under the project's root name; equal files give equal zips.

    Raises:
        CourseError: without any file, or when a generation was interrupted and not resumed.
    """
    source = Path(directory)
    target = Path(output) if output else source.with_name(source.name + ".zip")
    submission, names = _complete(source)
    with atomic_path(target) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            member = zipfile.ZipInfo(f"{ROOT_NAME}/{name}", ZIP_TIME)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(member, submission.read(name))
    return target


def export_submission(directory: str | Path, output: str | Path) -> tuple[Path, list[str]]:
    """Copy the layout's files into `output`/llm_rl_final_proj_public_submission; return it and the names.

    The university project's grader takes that directory as it is.

    Raises:
        CourseError: as `zip_submission`.
    """
    submission, names = _complete(Path(directory))
    target = Path(output) / ROOT_NAME
    with atomic_path(target) as draft:
        for name in names:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(submission.read(name))
    return target, names


def _complete(source: Path) -> tuple[Submission, list[str]]:
    """Open a directory of our own making; CourseError where a file is unfinished, or none is there."""
    partial = sorted(path.name for path in source.rglob("*.partial"))
    if partial:
        raise CourseError(
            f"{source} holds unfinished files ({', '.join(partial)}): run the same `submit` again"
        )
    submission = open_submission(source)
    names = [name for name in layout() if name in submission]
    if not names:
        raise CourseError(f"{source} holds none of the files of a submission, such as {policy_file('dpo')}")
    return submission, names
