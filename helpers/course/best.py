"""Part 2 of a submission: several candidates from each policy of a family, of which a selector keeps one.

What is handed in is the kept answers and a manifest (`helpers.course.manifest`) that declares family, number
of candidates, sampling and selector, so that a reader can tell a better policy from a better choice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helpers.course.layout import best_file, manifest_file
from helpers.course.manifest import FORMAT, MAX_N, SELECTORS, digest, foreign_method
from helpers.course.submission import Written, check_budget, finish, policy_row, read_public_rows
from helpers.course.submission_reader import Faults, read_policy_rows
from helpers.errors import CourseError
from helpers.files import fingerprint, write_json, write_jsonl
from helpers.guard import guarded
from helpers.journal import in_batches
from helpers.judging.measure import Role, check_finite
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.groups import Group

SCORED_TOGETHER = 8  # candidates of one prompt in a row of the reward model


@dataclass(frozen=True)
class Member:
    """One policy of the family: the model in its role, a hash of its weights, the method that trained it."""

    role: Role
    fingerprint: str
    method: str | None = None


@dataclass(frozen=True)
class Selection:
    """How candidates are drawn and chosen among. `reward_model` scores them for the selector of that name."""

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    selector: str = "reward_model"
    reward_model: Any = None
    reward_fingerprint: str | None = None
    seed: int = 0


def check_selection(kind: str, methods: Mapping[str, str | None], selection: Selection) -> None:
    """Raise CourseError, before any model is loaded, for a family or a choice that no grader would take."""
    best_file(kind)
    if not methods:
        raise CourseError("submit best needs --adapters NAME=DIR,…: the policies that write the candidates")
    for name, method in methods.items():
        if foreign := foreign_method(kind, method):
            raise CourseError(f"--kind {kind}, --adapters {name}: {foreign}")
    if not 1 <= selection.n <= MAX_N:
        raise CourseError(f"--n {selection.n}: draw 1 to {MAX_N} candidates a policy")
    if selection.selector not in SELECTORS:
        raise CourseError(f"--selector {selection.selector} is not one of {', '.join(SELECTORS)}")
    Sampling(temperature=selection.temperature, top_p=selection.top_p)  # refuses what cannot be drawn from


def write_best_submission(
    directory: str | Path,
    kind: str,
    prompts_path: str | Path,
    family: Mapping[str, Member],
    encoder: ChatEncoder,
    answers: Any,
    selection: Selection,
    *,
    base_model: str,
    budget: Budget | None = None,
    batch_size: int = 32,
) -> Written:
    """Draw `selection.n` answers to every public prompt from every policy, keep the best, write the manifest.

    Args:
        kind: "offline" or "online".
        answers: namespace with `best_of_n`, which chooses from (P, N) scores.
        base_model: name of the model the adapters sit on, for the manifest.
        batch_size: responses generated together. An interrupted run goes on only with the same.

    Raises:
        CourseError: over budget, for a selector or family that is not allowed, or when answers stay empty.
    """
    started, budget, answers = time.perf_counter(), budget or Budget(), guarded(answers)
    check_selection(kind, {name: member.method for name, member in family.items()}, selection)
    notes, path = check_budget(budget), Path(directory) / best_file(kind)
    prompts = read_public_rows(prompts_path)
    declared = _declared(kind, family, selection, budget, base_model)
    key = fingerprint(declared, encoder.fingerprint, prompts, answers.fingerprints("best_of_n"))
    chooser = Chooser(family, encoder, answers.best_of_n, selection, budget, batch_size)
    together = max(1, batch_size // selection.n)
    batches, resumed = in_batches(path, key, prompts, together, chooser.work, f"submit {kind} best")
    rows = {row["row_id"]: row for batch in batches for row in batch["rows"]}
    chosen = Counter(name for batch in batches for name in batch["chosen"])
    ordered = [rows[prompt["row_id"]] for prompt in prompts]
    _check(path, ordered, prompts)
    write_jsonl(path, ordered)
    counts = {name: chosen[name] for name in family}
    manifest = {**declared, "rows": len(ordered), "sha256": digest(path.read_bytes()), "chosen": counts}
    write_json(Path(directory) / manifest_file(kind), manifest)
    finish(path)
    spread = ", ".join(f"{name} {count}" for name, count in counts.items())
    notes = [*notes, f"chosen by {selection.selector}: {spread}; manifest: {manifest_file(kind)}"]
    return Written(path, len(ordered), resumed, [], notes, time.perf_counter() - started)


def _declared(
    kind: str, family: Mapping[str, Member], selection: Selection, budget: Budget, base_model: str
) -> dict[str, Any]:
    """What the manifest says before a single answer is drawn."""
    return {
        "format": FORMAT,
        "kind": kind,
        "base_model": base_model,
        "family": [
            {"name": name, "method": member.method, "fingerprint": member.fingerprint}
            for name, member in family.items()
        ],
        "n": selection.n,
        "sampling": {"temperature": selection.temperature, "top_p": selection.top_p},
        "selector": {"name": selection.selector, "fingerprint": selection.reward_fingerprint},
        "seed": selection.seed,
        "budget": dict(vars(budget)),
    }


def _check(path: Path, rows: Sequence[dict[str, Any]], prompts: Sequence[dict[str, Any]]) -> None:
    faults = Faults()
    data = "\n".join(json.dumps(row) for row in rows).encode()
    read_policy_rows(data, [prompt["row_id"] for prompt in prompts], faults)
    if faults:
        raise CourseError(
            f"{path} was not written. {'; '.join(faults.lines())}; where every candidate is empty, draw more "
            "(--n) or take a policy that has not collapsed"
        )


class Chooser:
    """Draws candidates for a batch of prompts and keeps one for each."""

    def __init__(
        self,
        family: Mapping[str, Member],
        encoder: ChatEncoder,
        best_of_n: Any,
        selection: Selection,
        budget: Budget,
        batch_size: int,
    ) -> None:
        self.family, self.encoder, self.best_of_n = family, encoder, best_of_n
        self.selection, self.budget, self.batch_size = selection, budget, batch_size

    def work(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The kept answers to a batch of prompts, and the name of the policy that wrote each."""
        limit = self.budget.max_prompt_tokens
        prompts = [self.encoder.encode_prompt(row["prompt_messages"], limit) for row in rows]
        candidates = self.draw(rows, prompts)
        scores = self.scores(rows, prompts, candidates)
        visible = torch.tensor([[bool(c.text.strip()) for c in group] for group in candidates])
        scores = scores.masked_fill(~visible, -torch.inf)  # an empty answer is no answer
        best = self.best_of_n(scores).tolist()
        names = list(self.family)
        return {
            "rows": [policy_row(row, group[i]) for row, group, i in zip(rows, candidates, best, strict=True)],
            "chosen": [names[index // self.selection.n] for index in best],
        }

    def draw(self, rows: list[dict[str, Any]], prompts: list[list[int]]) -> list[list[Completion]]:
        """(P, policies · n) candidates: the first n of the first policy, then those of the next."""
        selection = self.selection
        sampling = Sampling(
            max_new_tokens=self.budget.max_new_tokens,
            temperature=selection.temperature,
            top_p=selection.top_p,
        )
        found: list[list[Completion]] = [[] for _ in rows]
        for name, member in self.family.items():
            # every batch of every policy draws from a stream of its own
            seed = int(fingerprint(selection.seed, name, [row["row_id"] for row in rows]), 16) % 2**31
            with member.role.active():
                groups = generate(
                    member.role.model,
                    self.encoder,
                    prompts,
                    sampling,
                    k=selection.n,
                    batch_size=self.batch_size,
                    seed=seed,
                )
            for held, group in zip(found, groups, strict=True):
                held += group
        return found

    def scores(
        self, rows: list[dict[str, Any]], prompts: list[list[int]], candidates: list[list[Completion]]
    ) -> torch.Tensor:
        """(P, N) scores by the selector: of the reward model, the length in tokens, or the order drawn."""
        if self.selection.selector == "longest":
            return torch.tensor([[float(len(c.ids)) for c in group] for group in candidates])
        if self.selection.selector == "first":
            return -torch.arange(len(candidates[0])).float().repeat(len(candidates), 1)
        limit = self.budget.max_response_tokens
        groups = [
            Group(prompt, [list(c.ids[:limit]) for c in group[at : at + SCORED_TOGETHER]], row["row_id"])
            for row, prompt, group in zip(rows, prompts, candidates, strict=True)
            for at in range(0, len(group), SCORED_TOGETHER)
        ]
        flat = self.selection.reward_model.score_groups(groups, self.batch_size)
        check_finite([group.row_id for group in groups], flat)
        return torch.tensor([score for scores in flat for score in scores]).reshape(len(rows), -1)
