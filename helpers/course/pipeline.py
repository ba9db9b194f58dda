"""The main job: SFT, reward model, every method, evaluation, submission, grading, report."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.course.autograder import REWARD_THRESHOLD, grade
from helpers.course.report import terminal_table, write_report
from helpers.course.stages import METHODS, run_stage
from helpers.course.submission import (
    directory_fingerprint,
    write_policy_submission,
    write_reward_submission,
    zip_submission,
)
from helpers.course.verdicts import opponent_of, verdict_on
from helpers.errors import CourseError
from helpers.files import find_data, read_jsonl, write_json
from helpers.judging.evaluate import EvaluationTable, compare_policies, gold_metadata
from helpers.judging.judge import Judge
from helpers.judging.measure import PolicyReport, RewardReport, Role, evaluate_policy, evaluate_reward
from helpers.judging.registry import make_judge
from helpers.models import loading
from helpers.models.hardware import probe
from helpers.models.profiles import Profile, pick_profile
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, load_examples
from helpers.text.groups import Group
from helpers.tiny.probes import accuracy_by_property, minimal_pairs
from helpers.training.setup import RunResult, environment

SHOWN_PROMPTS = 12


@dataclass
class CourseConfig:
    """Train every method, evaluate it on held-out prompts, write and grade a submission, and report."""

    profile: str | None = field(default=None, metadata={"help": "tiny, smol, colab or qlora_7b"})
    output_dir: str = field(default="", metadata={"help": "default: runs/course_<profile>[_seed<seed>]"})
    methods: str = field(
        default="", metadata={"help": f"comma-separated, of {','.join(METHODS)}; default all"}
    )
    seed: int = field(default=0, metadata={"help": "seed of every run"})
    dataset_name: str | None = field(
        default=None, metadata={"help": "data set directory; default: the profile's"}
    )
    model_name: str | None = field(default=None, metadata={"help": "base model; default: the profile's"})
    train_limit: int | None = field(default=None, metadata={"help": "training rows a run at most"})
    eval_limit: int | None = field(default=None, metadata={"help": "held-out prompts at most"})
    max_steps: int | None = field(default=None, metadata={"help": "optimiser steps a run at most"})
    overwrite: bool = field(default=False, metadata={"help": "train everything again, also what is finished"})
    answers: str = field(default="", metadata={"help": "module, file or notebook whose functions train"})


@dataclass
class Course:
    """What the stages share."""

    config: CourseConfig
    profile: Profile
    answers: Any
    path: Path
    data: Path
    encoder: ChatEncoder
    budget: Budget
    runs: dict[str, RunResult] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Seed of every stage."""
        return self.config.seed


def open_course(config: CourseConfig, answers: Any) -> Course:
    """Pick the profile and find data and tokenizer."""
    profile = pick_profile(config.profile)
    suffix = f"_seed{config.seed}" if config.seed else ""
    path = Path(config.output_dir or f"runs/course_{profile.name}{suffix}")
    data = Path(find_data(config.dataset_name or profile.dataset_name))
    if not data.is_dir():
        raise CourseError(f"course needs a data set directory; --dataset_name {data} is none")
    encoder = ChatEncoder(loading.load_tokenizer(config.model_name or profile.model_name))
    budget = Budget(profile.max_prompt_tokens, profile.max_response_tokens, profile.max_new_tokens)
    return Course(config, profile, answers, path, data, encoder, budget)


def chosen_methods(config: CourseConfig) -> list[str]:
    """The methods asked for, in the course's order."""
    wanted = [name.strip() for name in config.methods.split(",") if name.strip()] or list(METHODS)
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise CourseError(f"--methods: {', '.join(unknown)} is not among {', '.join(METHODS)}")
    return [name for name in METHODS if name in wanted]


def run_course(config: CourseConfig, answers: Any) -> dict[str, Any]:
    """Run everything, and return what course.json holds."""
    started = time.perf_counter()
    methods = chosen_methods(config)
    course = open_course(config, answers)
    print(f"profile {course.profile.reason}\nresults go to {course.path}")
    train_all(course, methods)
    examples, table, reports = evaluate_all(course, methods)
    reward, properties = evaluate_reward_model(course)
    graded = submit_and_grade(course, methods)
    result = summarise(course, table, reward, graded, time.perf_counter() - started)
    result["reward_model"]["minimal_pairs"] = properties
    write_json(course.path / "course.json", result)
    write_results(course, result, reports, examples)
    print(terminal_table(result))
    print(f"report: {course.path / 'report.html'}")
    return result


# ---------------------------------------------------------------------- training
def train_all(course: Course, methods: Sequence[str]) -> None:
    """SFT, reward model and every method; each picks up where it was interrupted."""
    config = course.config
    for name in ("perplexity", "bradley_terry_loss", "last_token_index", "pair_accuracy"):
        getattr(course.answers, name)  # what is missing is said before minutes of training
    shared: dict[str, Any] = {
        "profile": course.profile.name,
        "seed": config.seed,
        "dataset_name": str(course.data),
        "model_name": config.model_name,
        "train_limit": config.train_limit,
        "max_steps": config.max_steps,
        "overwrite": config.overwrite,
    }
    for algo in ("sft", "reward_model", *methods):
        reused = (course.path / algo / "finished.json").exists() and not config.overwrite
        announce(f"{algo}: already trained" if reused else f"training {algo}")
        extra: dict[str, Any] = {}
        if algo not in ("sft", "reward_model"):
            extra["reward_model"] = str(course.runs["reward_model"].final)
        if opponent_of(algo) == "sft":
            extra["init_adapter"] = str(course.runs["sft"].final / "adapter")
        course.runs[algo] = run_stage(algo, course.path / algo, course.answers, **shared, **extra)
        loading.release_memory()


def announce(what: str) -> None:
    """Say what comes next."""
    print(f"[{datetime.datetime.now():%H:%M:%S}] {what}", flush=True)


# ---------------------------------------------------------------------- evaluation
def load_policies(course: Course, names: Sequence[str]) -> Any:
    """One base in memory with an adapter for each trained policy."""
    profile = course.profile
    base = loading.load_base(
        course.config.model_name or profile.model_name, quantization=profile.quantization
    )
    return load_adapters(base, {name: course.runs[name].final / "adapter" for name in names})


def load_adapters(base: Any, places: Mapping[str, Path]) -> Any:
    """Put saved adapters on one base, none of them trainable."""
    for name, place in places.items():
        base = loading.load_adapter(base, place, name)
    return base


def evaluate_all(
    course: Course, methods: Sequence[str]
) -> tuple[list[Example], EvaluationTable, dict[str, PolicyReport]]:
    """Greedy answers of base, SFT and every method to the held-out prompts, judged against each other."""
    split = "test_gen"
    examples = load_examples(
        course.data, split=split, kind="prompts", limit=course.config.eval_limit
    ).examples
    model = load_policies(course, ["sft", *methods])
    references = {"base": Role(model, None), "sft": Role(model, "sft")}
    reports: dict[str, PolicyReport] = {}
    for name in ("base", "sft", *methods):
        announce(f"evaluating {name} on {len(examples)} prompts of {split}")
        role = Role(model, None if name == "base" else name)
        others = {other: ref for other, ref in references.items() if other != name}
        reports[name] = evaluate_policy(
            name,
            role,
            course.encoder,
            examples,
            course.answers,
            references=others if name != "base" else None,
            budget=course.budget,
            layout=course.profile.layout,
            seed=course.seed,
        )
    judge = pick_judge(examples)
    return examples, compare_policies(list(reports.values()), examples, judge, course.answers), reports


def pick_judge(examples: Sequence[Example]) -> Judge | None:
    """The gold judge, or none where it cannot judge these prompts."""
    if all(gold_metadata(example) for example in examples):
        return make_judge("gold")
    return None


def evaluate_reward_model(course: Course) -> tuple[RewardReport, dict[str, float]]:
    """Pair accuracy on held-out pairs, and on minimal pairs by the property in which they differ."""
    announce("evaluating the reward model on test_prefs")
    model = load_reward_model(course)
    pairs = load_examples(
        course.data, split="test_prefs", kind="preference", limit=course.config.eval_limit
    ).examples
    report = evaluate_reward(model, pairs, course.encoder, course.answers, budget=course.budget)
    return report, minimal_pair_accuracy(course.data, course.encoder, model)


def minimal_pair_accuracy(data: Path, encoder: ChatEncoder, model: RewardModel) -> dict[str, float]:
    """What the reward model sees: accuracy by property, on the bundled world in `data` only, else {}."""
    place = data / "test_gen.jsonl"
    rows = read_jsonl(place) if place.is_file() else []
    if not all(isinstance(row.get("metadata"), dict) for row in rows):
        return {}
    pairs = minimal_pairs(rows)
    groups = [
        Group(
            encoder.encode_prompt([{"role": "user", "content": pair.prompt}]),
            [encoder.encode_response(text) for text in (pair.better, pair.worse)],
        )
        for pair in pairs
    ]
    scores = [(better, worse) for better, worse in model.score_groups(groups, batch_size=128)]
    return accuracy_by_property(pairs, scores)


def load_reward_model(course: Course) -> RewardModel:
    """The reward model of this course, on a base of its own."""
    profile = course.profile
    base = loading.load_base(
        course.config.model_name or profile.model_name, quantization=profile.quantization
    )
    return RewardModel.load(
        course.runs["reward_model"].final,
        base,
        course.answers.last_token_index,
        pad_id=course.encoder.pad_id,
        layout=profile.layout,
    )


# ---------------------------------------------------------------------- submission
def submit_and_grade(course: Course, methods: Sequence[str]) -> dict[str, Any] | None:
    """Write, zip and grade the submission; None where the data set has no public evaluation set."""
    public = course.data / "public_eval"
    if not public.is_dir():
        return None
    announce("writing and grading the submission")
    target = course.path / "submission"
    model = load_policies(course, ["sft", *methods])
    for name in methods:
        try:
            write_policy_submission(
                target,
                name,
                public / "public_test_gen_prompts_128.jsonl",
                Role(model, name),
                course.encoder,
                policy_fingerprint=directory_fingerprint(course.runs[name].final / "adapter"),
                budget=course.budget,
            )
        except CourseError as problem:  # one policy that has collapsed does not take the others down
            announce(f"no submission of {name}: {problem}")
    write_reward_submission(
        target,
        public / "public_test_prefs_256.jsonl",
        load_reward_model(course),
        course.encoder,
        reward_fingerprint=directory_fingerprint(course.runs["reward_model"].final),
        budget=course.budget,
    )
    zip_submission(target, course.path / "submission.zip")
    result = course.path / "grade.json"
    judge = make_judge("gold")
    return grade(target, public, judge, course.answers, result, trainable=METHODS, part2=False)


# ---------------------------------------------------------------------- results
def summarise(
    course: Course,
    table: EvaluationTable,
    reward: RewardReport,
    graded: dict[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """What course.json holds."""
    methods = {}
    for row in table.rows:
        name = row.report.name
        figures = row.to_dict()
        run = course.runs.get(name)
        methods[name] = {
            **figures,
            "by_family": row.hhh.by_family if row.hhh else None,
            "seconds": run.metrics.get("seconds") if run else None,
            **verdict_on(name, figures, run.run_dir if run else None),
        }
    return {
        "profile": course.profile.name,
        "reason": course.profile.reason,
        "hardware": str(probe()),
        "versions": environment(),
        "seed": course.seed,
        "config": dataclasses.asdict(course.config),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "prompts": table.prompts,
        "judge": table.judge,
        "judge_is_proxy": table.is_proxy,
        "omitted": table.omitted,
        "methods": methods,
        "reward_model": reward_figures(course, reward),
        "grade": points(graded) if graded else None,
    }


def points(graded: Mapping[str, Any]) -> dict[str, float]:
    """How many points the submission got, and how many there are."""
    return {"score": graded["score"], "max_score": graded["extra_data"]["max_score"]}


def reward_figures(course: Course, reward: RewardReport) -> dict[str, Any]:
    """The reward model's part of course.json."""
    return {
        **reward.to_dict(),
        "threshold": REWARD_THRESHOLD,
        "passed": reward.pair_accuracy >= REWARD_THRESHOLD,
        "seconds": course.runs["reward_model"].metrics.get("seconds"),
        "chosen_rewards": [round(score, 4) for score in reward.chosen_scores],
        "rejected_rewards": [round(score, 4) for score in reward.rejected_scores],
    }


def write_results(
    course: Course, result: dict[str, Any], reports: dict[str, PolicyReport], examples: Sequence[Example]
) -> None:
    """The HTML report with curves and side-by-side samples."""
    runs = {name: done.run_dir for name, done in course.runs.items()}
    write_report(result, runs, side_by_side(examples, reports), course.path / "report.html")


def side_by_side(examples: Sequence[Example], reports: dict[str, PolicyReport]) -> list[dict[str, Any]]:
    """The same prompts under every policy, spread over the families."""
    from helpers.judging.gold import gold_scores

    rows = []
    for index in spread_over_families(examples, SHOWN_PROMPTS):
        facts = gold_metadata(examples[index])
        responses = {}
        for name, report in reports.items():
            text = report.responses[index]
            total = gold_scores(facts, text).total if facts else None
            responses[name] = {"text": text, "total": total}
        prompt = examples[index].messages[-1]["content"]
        rows.append({"prompt": prompt, "family": facts["family"] if facts else "", "responses": responses})
    return rows


def spread_over_families(examples: Sequence[Example], count: int) -> list[int]:
    """Indices of `count` prompts, one a family before a second of any."""
    seen: dict[str, int] = {}
    ranked = []
    for index, example in enumerate(examples):
        facts = gold_metadata(example)
        family = str(facts["family"]) if facts else ""
        seen[family] = seen.get(family, 0) + 1
        ranked.append((seen[family], index))
    return sorted(index for _, index in sorted(ranked)[:count])
