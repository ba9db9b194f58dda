"""`evaluate` and `data report`: policies in one table and one set of figures, a data set in one report."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from helpers.apps.flags import parse, text
from helpers.course.evaluation import (
    Bench,
    Evaluation,
    answer_all,
    perplexities,
    read_responses,
    report_of,
    score_answers,
    spread_of,
    variety,
)
from helpers.course.evaluation_files import render_text, write_evaluation
from helpers.course.pipeline import load_adapters, pick_judge
from helpers.errors import CourseError
from helpers.files import check_place, find_data, write_json, writing
from helpers.judging.evaluate import compare_policies
from helpers.judging.judge import Judge
from helpers.judging.measure import PolicyReport, Role, evaluate_reward
from helpers.judging.registry import JudgeSettings, make_judge, refuse_unused
from helpers.judging.reward_judge import refuse_if_trained_on
from helpers.judging.rubric import SCALES, rubric_scores
from helpers.models import loading
from helpers.models.profiles import Profile, pick_profile
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, encode_groups, load_examples, report_source
from helpers.text.formats import FORMATS, KINDS
from helpers.text.trees import NAME as TREES

FORMAT_NAMES = tuple(known.name for known in FORMATS)
PERPLEXITY_ROWS = 128


@dataclass
class EvaluateConfig(JudgeSettings):
    """Greedy answers of the base, of adapters or from files, compared in one table and set of figures."""

    adapters: str = text("comma-separated name=DIR or DIR of saved adapters", "")
    responses: str = text(
        "comma-separated name=FILE.jsonl of answers that are there already; without --adapters no model is"
        " loaded, and prompts come from --dataset_name or, without it, from the first file",
        "",
    )
    baseline: str | None = text("the policy that the others are compared with; default: base, else the first")
    profile: str | None = text("tiny, smol, colab or qlora_7b")
    model_name: str | None = text("base model; default: the profile's")
    dataset_name: str | None = text("data set; default: the profile's")
    split: str = text("held-out prompts", "test_gen")
    limit: int | None = text("prompts at most")
    max_new_tokens: int | None = text("longest response")
    reward_model: str | None = text(
        "directory of a reward model: scores every answer, and is itself evaluated on --pairs_split"
    )
    pairs_split: str = text("held-out pairs, for the reward model and the perplexity of chosen", "test_prefs")
    sft_split: str = text("held-out answers whose perplexity is measured", "sft_test")
    perplexity_rows: int = text("held-out answers of each kind for the perplexity; 0: none", PERPLEXITY_ROWS)
    rubric: bool = text("grades from 1 to 5 for helpful, harmless and honest, by --judge openai", False)
    output: str | None = text("write the figures there as JSON")
    output_dir: str | None = text(
        "write evaluation.json, tables, figures, outcomes and responses there; a killed evaluation goes on"
    )
    batch_size: int = text("responses generated or scored together", 64)
    seed: int = text("seed of the KL samples", 0)


def evaluate(words: list[str], answers: Any) -> str:
    """Read the flags, evaluate, write what was asked for; returns the table."""
    config = parse(EvaluateConfig, words, "evaluate")
    if config.perplexity_rows < 0:
        raise CourseError(f"--perplexity_rows must be 0 or more, not {config.perplexity_rows}")
    check_place(config.output, "--output")
    check_place(config.judge_record, "--judge_record")
    if config.output_dir:
        check_place(Path(config.output_dir) / "evaluation.json", "--output_dir")
    evaluation = evaluate_policies(config, answers)
    lines = [render_text(evaluation)]
    if evaluation.reward_model:
        low, high = evaluation.reward_model["ci95"]
        accuracy, pairs = (evaluation.reward_model[name] for name in ("pair_accuracy", "pairs"))
        lines += [f"reward model: pair accuracy {accuracy:.3f} [{low:.3f}, {high:.3f}] on {pairs} pairs"]
    if config.output:
        write_json(config.output, json.loads(json.dumps(evaluation.to_dict())))
        lines.append(f"figures: {config.output}")
    if config.output_dir:
        lines += write_evaluation(evaluation, Path(config.output_dir))
    return "\n".join(lines)


# ---------------------------------------------------------------------- which policies
def named_adapters(text: str) -> dict[str, Path]:
    """Read "dpo=runs/a/final/adapter,runs/b/final/adapter" into names and directories.

    An entry without a name is called after its run directory.
    """
    found: dict[str, Path] = {}
    for name, path in _entries(text, "--adapters", "DIR"):
        place = adapter_directory(path)
        default = [part for part in place.parts if part not in ("final", "adapter")][-1]
        _take(found, name or default, place, "--adapters", "DIR", reserved=("base",))
    return found


def named_responses(text: str) -> dict[str, Path]:
    """Read "base=a.jsonl,dpo=b.jsonl" into names and files; one without a name is called after its file."""
    found: dict[str, Path] = {}
    for name, path in _entries(text, "--responses", "FILE"):
        _take(found, name or path.stem, path, "--responses", "FILE")
    return found


def _entries(text: str, flag: str, what: str) -> Iterator[tuple[str, Path]]:
    if text and not text.replace(",", "").strip():
        raise CourseError(
            f"{flag} {text} names nothing: give {what} or name={what}, with commas between them"
        )
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, path = entry.rpartition("=")
        yield name, Path(path)


def _take(
    found: dict[str, Path], name: str, place: Path, flag: str, what: str, reserved: Sequence[str] = ()
) -> None:
    name = "".join(char if char.isalnum() else "_" for char in name)
    if name in found or name in reserved:
        raise CourseError(f"{flag}: the name {name!r} is taken; write name={what}")
    found[name] = place


def adapter_directory(path: Path) -> Path:
    """Accept an adapter, a run's `final` or a run."""
    for place in (path, path / "adapter", path / "final" / "adapter"):
        if (place / "adapter_config.json").is_file():
            return place
    raise CourseError(f"{path} holds no adapter: give a run directory or its final/adapter")


# ---------------------------------------------------------------------- the evaluation
def evaluate_policies(config: EvaluateConfig, answers: Any) -> Evaluation:
    """All policies on the same prompts, judged and measured.

    What the flags and files get wrong is found before anything is generated, which may take an hour.
    """
    places, files = named_adapters(config.adapters), named_responses(config.responses)
    with_model = bool(places) or not files
    names = ["base", *places] if with_model else []
    if clash := set(files) & set(names):
        raise CourseError(f"--responses: the name {min(clash)!r} is taken; write name=FILE")
    baseline = _baseline(config.baseline, [*names, *files])
    profile = pick_profile(config.profile)
    given = {name: read_responses(path) for name, path in files.items()}
    examples = _prompts(config, profile, files, given, with_model)
    read = [report_of(name, given[name], examples, path) for name, path in files.items()]
    judge = _judge(config, examples, places, answers)

    omitted: dict[str, str] = {}
    bench = _bench(config, profile, examples, answers) if with_model or config.reward_model else None
    run: list[PolicyReport] = []
    extra: dict[str, dict[str, Any]] = {}
    if with_model and bench:
        run, extra = _run_policies(config, profile, bench, places, omitted)
    reports = [*run, *read]
    table = compare_policies(reports, examples, judge, answers, base=baseline)
    evaluation = Evaluation(examples, table, baseline, omitted=omitted, settings=_settings(config))
    evaluation.add(variety(reports))
    evaluation.add(extra)
    if config.rubric:
        _add_rubric(judge, reports, evaluation)
    if config.reward_model and bench:
        _add_rewards(config, profile, bench, reports, evaluation)
    return evaluation


def _prompts(
    config: EvaluateConfig,
    profile: Profile,
    files: Mapping[str, Path],
    given: Mapping[str, Mapping[str, str]],
    with_model: bool,
) -> list[Example]:
    """The held-out prompts; those with an answer in the first file where no model is there to answer more."""
    if with_model:
        source = find_data(config.dataset_name or profile.dataset_name)
        return load_examples(source, split=config.split, kind="prompts", limit=config.limit).examples
    first = next(iter(files))
    if config.dataset_name is None:
        return load_examples(files[first], kind="prompts", limit=config.limit).examples
    source = find_data(config.dataset_name)
    examples = load_examples(source, split=config.split, kind="prompts").examples
    known = [example for example in examples if example.row_id in given[first]]
    if not known:
        raise CourseError(
            f"--responses {first}: no row_id of {files[first]} is a prompt of {source}, split {config.split}"
        )
    return known[: config.limit]


@contextlib.contextmanager
def _cache(output_dir: str | None) -> Iterator[Path]:
    """Where answers are kept as they come: below --output_dir, or nowhere that lasts."""
    if output_dir is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    place = Path(output_dir) / "cache"
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    yield place


def _bench(config: EvaluateConfig, profile: Profile, examples: list[Example], answers: Any) -> Bench:
    name = config.model_name or profile.model_name
    longest = config.max_new_tokens or profile.max_new_tokens
    return Bench(
        examples,
        ChatEncoder(loading.load_tokenizer(name)),
        Budget(profile.max_prompt_tokens, profile.max_response_tokens, longest),
        answers,
        layout=profile.layout,
        batch_size=config.batch_size,
        seed=config.seed,
    )


def _run_policies(
    config: EvaluateConfig,
    profile: Profile,
    bench: Bench,
    places: Mapping[str, Path],
    omitted: dict[str, str],
) -> tuple[list[PolicyReport], dict[str, dict[str, Any]]]:
    """Answers of base and adapters, and the perplexity of held-out answers under each."""
    name = config.model_name or profile.model_name
    model = load_adapters(loading.load_base(name, profile), places)
    roles = {"base": Role(model, None), **{adapter: Role(model, adapter) for adapter in places}}
    with _cache(config.output_dir) as cache:
        reports = answer_all(bench, roles, cache)
    extra: dict[str, dict[str, Any]] = {}
    if config.perplexity_rows:
        extra = dict(perplexities(bench, roles, _held_out(config, profile), omitted))
    del model, roles
    loading.release_memory()
    return reports, extra


def _held_out(config: EvaluateConfig, profile: Profile) -> dict[str, Callable[[], Sequence[Example]]]:
    source = find_data(config.dataset_name or profile.dataset_name)

    def load(split: str, kind: str) -> Callable[[], Sequence[Example]]:
        return lambda: load_examples(source, split=split, kind=kind, limit=config.perplexity_rows).examples

    return {
        "perplexity_sft": load(config.sft_split, "sft"),
        "perplexity_chosen": load(config.pairs_split, "preference"),
    }


def _baseline(wanted: str | None, names: Sequence[str]) -> str:
    if wanted is not None and wanted not in names:
        raise CourseError(f"--baseline {wanted} is none of the policies {', '.join(names)}")
    return wanted or ("base" if "base" in names else names[0])


def _judge(
    config: EvaluateConfig, examples: Sequence[Example], places: Mapping[str, Path], answers: Any
) -> Judge | None:
    """The judge of the flags; without one the gold judge, where it can judge these prompts."""
    if config.judge is None:
        refuse_unused(None, config)
        return pick_judge(examples)
    if config.judge == "reward_model" and config.judge_reward_model:
        refuse_if_trained_on(config.judge_reward_model, places.values(), force=config.force_proxy)
    return make_judge(config.judge, config, answers)


def _add_rubric(judge: Judge | None, reports: Sequence[PolicyReport], evaluation: Evaluation) -> None:
    """Grades of every policy's answers; the reason where this judge gives none."""
    try:
        for report in reports:
            graded = rubric_scores(judge, evaluation.examples, report.responses)
            means = {f"rubric_{name}": graded.means[name] for name in SCALES}
            evaluation.add({report.name: {**means, "rubric": graded.to_dict()}})
    except CourseError as problem:
        evaluation.omitted["rubric"] = str(problem)


def _settings(config: EvaluateConfig) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}


def _add_rewards(
    config: EvaluateConfig,
    profile: Profile,
    bench: Bench,
    reports: Sequence[PolicyReport],
    evaluation: Evaluation,
) -> None:
    """A reward model's scores of every answer, and how the model ranks held-out pairs."""
    base = loading.load_base(config.model_name or profile.model_name, profile)
    reward_model = RewardModel.load(
        str(config.reward_model),
        base,
        bench.answers.last_token_index,
        pad_id=bench.encoder.pad_id,
        layout=bench.layout,
    )
    evaluation.rewards = score_answers(bench, reward_model, reports)
    evaluation.add({name: spread_of(scores) for name, scores in evaluation.rewards.items()})
    source = find_data(config.dataset_name or profile.dataset_name)
    pairs = load_examples(source, split=config.pairs_split, kind="preference", limit=config.limit).examples
    report = evaluate_reward(reward_model, pairs, bench.encoder, bench.answers, budget=bench.budget)
    evaluation.reward_model = report.to_dict()


# ---------------------------------------------------------------------- data report
def data_report(config: Any) -> str:
    """Load a data set and say what was kept and dropped; with a model, encode it and count truncation too."""
    source = find_data(config.source)
    if config.kind is not None and config.kind not in KINDS:
        raise CourseError(f"--kind is one of {', '.join(KINDS)}, not {config.kind!r}")
    if config.format is not None and config.format not in (*FORMAT_NAMES, TREES):
        raise CourseError(f"--format is one of {', '.join((*FORMAT_NAMES, TREES))}, not {config.format!r}")
    if not config.model_name:
        if config.limit is not None:
            raise CourseError("--limit needs --model_name: without a model every row is read")
        return report_source(source, split=config.split, kind=config.kind, format=config.format)
    kind = config.kind or "preference"
    loaded = load_examples(source, split=config.split, kind=kind, limit=config.limit, format=config.format)
    encoder = ChatEncoder(loading.load_tokenizer(config.model_name))
    return encode_groups(loaded.examples, encoder, Budget(), kind=kind, report=loaded.report)[1].render()
