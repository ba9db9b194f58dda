"""The run time of a lesson: what a notebook needs around the learner's own functions.

    lesson = Lesson("03_dpo")                       # picks the profile, finds data and model
    answers = lesson.use(dpo_loss=dpo_loss)         # refuses what does not pass its check
    run = lesson.train("dpo", answers)
    lesson.show({"base": None, "DPO": run})         # the same twelve prompts in every lesson

A policy is None for the base, the result of `train`, or the directory of an adapter.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from helpers.course.answers import Answers
from helpers.course.lesson_display import FigureData, Plot, Table, tint_of
from helpers.course.pipeline import pick_judge, spread_over_families
from helpers.course.plots import Series, read_metrics
from helpers.course.stages import run_stage, trainer_of
from helpers.course.stand_ins import STAND_INS
from helpers.errors import CourseError
from helpers.files import find_data, read_json
from helpers.guard import Guarded, guarded
from helpers.judging.evaluate import compare_policies
from helpers.judging.gold import gold_scores
from helpers.judging.measure import PolicyReport, Role, evaluate_policy, gold_metadata
from helpers.models import loading
from helpers.models.hardware import probe
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel
from helpers.models.sampling import Completion, Sampling, generate
from helpers.quiet import quiet_libraries
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, encode_groups, load_examples
from helpers.text.groups import Group, TokenBatch, make_batch
from helpers.training.setup import SPLITS, RunResult, pick_split

SHOWN = 12  # prompts that every lesson shows
Policies = Mapping[str, "RunResult | str | Path | None"]
_open: list[Lesson] = []  # at most one, so that running a set-up cell again does not keep two models


class Lesson:
    """One lesson on this machine. Opening one closes the one before it.

    Args:
        name: such as "03_dpo"; results go to runs/lessons/<profile>/<name>.
        profile: tiny, smol, colab or qlora_7b; picked by the hardware (or COURSE_PROFILE) if not given.

    Attributes: `profile`, `encoder`, `tokenizer`, `budget`, `data` (the data set), `path` (the results),
    `prompts` (the twelve), `figure_data` (what the figures drew).
    """

    def __init__(self, name: str, profile: str | None = None) -> None:
        quiet_libraries()
        close_lesson()
        self.name = name
        self.profile = pick_profile(profile)
        self.started = time.perf_counter()
        self.data = str(find_data(self.profile.dataset_name))
        self.encoder = ChatEncoder(loading.load_tokenizer(self.profile.model_name))
        self.tokenizer = self.encoder.tokenizer
        limits = (self.profile.max_prompt_tokens, self.profile.max_response_tokens)
        self.budget = Budget(*limits, self.profile.max_new_tokens)
        self.path = Path(os.environ.get("COURSE_RUNS", "runs")) / "lessons" / self.profile.name / name
        self.figure_data = FigureData()
        self._model: Any = None
        self._adapters: dict[tuple[str, int], str] = {}
        self._replies: dict[tuple[Any, ...], PolicyReport] = {}
        evaluation = pick_split(self.data, "prompts", None, evaluation=True)
        shown = self.examples(evaluation, "prompts")
        self.prompts = [shown[index] for index in spread_over_families(shown, SHOWN)]
        _open.append(self)
        print(f"profile {self.profile.reason}\nresults go to {self.path}")

    # ------------------------------------------------------------------ data
    def examples(
        self, split: str | None = None, kind: str = "preference", limit: int | None = None
    ) -> list[Example]:
        """Rows of a split; kind: "preference", "sft" or "prompts". Without a split, the training one."""
        known_kind(kind)
        split = split or pick_split(self.data, kind, None, evaluation=False)
        return load_examples(self.data, split=split, kind=kind, limit=limit).examples  # type: ignore[arg-type]

    def held_out(self, kind: str = "preference", limit: int | None = None) -> list[Example]:
        """Rows of the evaluation split."""
        names = ", ".join(SPLITS[known_kind(kind)][1])
        split = pick_split(self.data, kind, None, evaluation=True)
        if split is None and Path(self.data).is_dir():
            raise CourseError(f"{self.data} holds no split to evaluate on: one of {names}")
        return self.examples(split, kind, limit)

    def groups(self, examples: Sequence[Example], kind: str = "preference") -> list[Group]:
        """Token ids within the budget: prompts, each with its responses."""
        return encode_groups(examples, self.encoder, self.budget, kind=kind)[0]

    def batch(self, groups: Sequence[Group], layout: str = "padded") -> TokenBatch:
        """One padded (or packed) batch on the model's device."""
        return make_batch(groups, self.encoder.pad_id, layout).to(self.model().device)

    def conversations(self, examples: Sequence[Example]) -> Any:
        """Examples as a `datasets.Dataset` of messages, the form in which TRL and others take them.

        Columns: prompt and completion (one response), or prompt, chosen and rejected (two).
        """
        from datasets import Dataset

        names = {0: (), 1: ("completion",), 2: ("chosen", "rejected")}
        rows = []
        for example in examples:
            row: dict[str, Any] = {"prompt": list(example.messages)}
            for name, text in zip(names[len(example.responses)], example.responses, strict=True):
                row[name] = [{"role": "assistant", "content": text}]
            rows.append(row)
        return Dataset.from_list(rows)

    # ------------------------------------------------------------------ the learner's functions
    def use(self, unchecked: bool = False, **functions: Callable[..., Any]) -> Guarded:
        """The namespace that trainers call: these functions, once their checks pass.

        unchecked: take them as they are; for a deliberate mistake.

        Raises CourseError naming the exercise that is missing or wrong, with its hint.
        """
        from helpers.course.checks import check

        for name, function in () if unchecked else functions.items():
            try:
                result = check(name, function, quiet=True)
            except KeyError as problem:
                raise CourseError(f"lesson.use: {name} is no exercise: {problem}") from None
            if not result.passed:
                raise CourseError(
                    f"exercise {name}: {result.hint}\nMend the cell that defines it, run it and its check,"
                    " then this cell again."
                )
        return guarded(Answers(**{**STAND_INS, **functions}))

    # ------------------------------------------------------------------ training
    def train(
        self,
        algo: str,
        answers: Any,
        name: str | None = None,
        *,
        on_tiny: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> RunResult:
        """Train in `path`/`name`. A finished run with equal settings and functions is returned at once.

        An interrupted one goes on from its last checkpoint; one with other settings or functions is
        replaced. `on_tiny` holds settings that shorten the run on the bundled world only.
        """
        self._forget()
        if self.profile.name == "tiny":
            settings = {**settings, **(on_tiny or {})}
        known = {field.name: str(field.type) for field in dataclasses.fields(trainer_of(algo).settings)}
        del known["output_dir"]  # `path`/`name` it is
        if unknown := sorted(settings.keys() - known.keys()):
            raise CourseError(f"lesson.train({algo!r}): no setting {', '.join(unknown)}; see train --help")
        settings = {"profile": self.profile.name, "eval_samples": 0, **settings}
        if name is not None and (
            Path(name).name != name or name == ".." or "\0" in name
        ):  # nothing outside is replaced
            raise CourseError(f"lesson.train: name={name!r} is no plain name; results go to {self.path}/NAME")
        for setting, value in settings.items():
            if isinstance(value, str) and not any(word in known[setting] for word in ("str", "Literal")):
                raise CourseError(
                    f"lesson.train: {setting}={value!r} is a text; give a number, or True or False"
                )
        place = self.path / (name or algo)
        return run_stage(algo, place, answers, replace_others=True, **settings)

    def metrics(self, run: RunResult) -> dict[str, Series]:
        """The columns of a run's metrics.csv, each with `steps` and `values`."""
        return read_metrics(run.run_dir / "metrics.csv")

    @staticmethod
    def settings(run: RunResult, *names: str) -> str:
        """What a run was trained with, for instance "beta 0.5, learning_rate 0.002"."""
        config = read_json(run.run_dir / "config.json")
        return ", ".join(f"{name} {config[name]}" for name in names)

    # ------------------------------------------------------------------ models
    def fresh_base(self) -> Any:
        """A base model of one's own, for instance to hand to another library."""
        return loading.load_base(self.profile.model_name, quantization=self.profile.quantization)

    def model(self) -> Any:
        """The frozen base that the lesson looks at things with; adapters are put on it as needed."""
        if self._model is None:
            self._model = self.fresh_base().requires_grad_(False)
            self._model.eval()
        return self._model

    def role(self, policy: RunResult | str | Path | None) -> Role:
        """The base (None) or a trained policy, as a role of the one model."""
        if policy is None:
            return Role(self.model(), None if self._adapters else "as it is")
        place = adapter_of(policy)
        mark = (str(place), (place / "adapter_config.json").stat().st_mtime_ns)
        if mark not in self._adapters:
            label = f"policy{len(self._adapters)}"
            self._model = loading.load_adapter(self.model(), place, label)
            self._adapters[mark] = label
        return Role(self._model, self._adapters[mark])

    def bundled(self, what: str) -> Path:
        """The adapter that comes with the tiny world, "sft" or "reward"; elsewhere that lesson's result."""
        lessons = {"sft": "01_sft/sft/final", "reward": "02_reward_model/reward_model/final"}
        if self.profile.name == "tiny":
            return Path(self.data) / "adapters" / what
        place = self.path.parent / lessons[what]
        if not place.exists():
            raise CourseError(
                f"profile {self.profile.name} brings no trained {what}: run lesson {lessons[what][:2]} first,"
                " or try this lesson with profile tiny"
            )
        return place

    def reward_model(self, place: RunResult | str | Path, answers: Any = None) -> RewardModel:
        """A reward model on a base of its own."""
        source = place.final if isinstance(place, RunResult) else Path(place)
        pooling = (answers or self.use()).last_token_index
        return RewardModel.load(
            source, self.fresh_base(), pooling, pad_id=self.encoder.pad_id, layout=self.profile.layout
        )

    # ------------------------------------------------------------------ answers of policies
    def sample(
        self, policy: RunResult | str | Path | None, examples: Sequence[Example], k: int = 1, **how: Any
    ) -> list[list[Completion]]:
        """k answers to each prompt; `how`: temperature, top_p, greedy, max_new_tokens, seed."""
        seed = how.pop("seed", 0)
        sampling = Sampling(**{"max_new_tokens": self.budget.max_new_tokens, **how})
        prompts = [self.encoder.encode_prompt(e.messages, self.budget.max_prompt_tokens) for e in examples]
        role = self.role(policy)
        with role.active():
            return generate(role.model, self.encoder, prompts, sampling, k=k, seed=seed)

    def report(self, name: str, policy: Any, examples: Sequence[Example]) -> PolicyReport:
        """Greedy answers of one policy, kept so that the same are not generated twice."""
        where = None if policy is None else (str(adapter_of(policy)), adapter_of(policy).stat().st_mtime_ns)
        key = (where, *(example.row_id for example in examples))
        if key not in self._replies:
            self._replies[key] = evaluate_policy(
                name,
                self.role(policy),
                self.encoder,
                examples,
                self.use(),
                budget=self.budget,
                layout=self.profile.layout,
                progress=False,
            )
        return dataclasses.replace(self._replies[key], name=name)

    def show(self, policies: Policies, caption: str = "The same twelve prompts") -> Table:
        """The twelve prompts with every policy's greedy answer, tinted by its gold score if there is one."""
        reports = {name: self.report(name, policy, self.prompts) for name, policy in policies.items()}
        rows, tints = [], {}
        for index, example in enumerate(self.prompts):
            facts = gold_metadata(example)
            texts = [report.responses[index] for report in reports.values()]
            for column, text in enumerate(texts, start=1):
                if tint := tint_of(gold_scores(facts, text).total if facts else None):
                    tints[index, column] = tint
            rows.append([example.messages[-1]["content"], *texts])
        return Table(caption, ["prompt", *policies], rows, tints, data=reports)

    def evaluate(self, policies: Policies, limit: int | None = 150, caption: str = "") -> Table:
        """Held-out prompts, greedy answers: win rate of each policy against the first, and gold scores.

        `Table.data` maps a policy to its figures, as in course.json.
        """
        if not policies:
            raise CourseError("lesson.evaluate: no policy is given; name them, such as {'base': None}")
        examples = self.held_out("prompts", limit)
        reports = [self.report(name, policy, examples) for name, policy in policies.items()]
        first = reports[0].name
        table = compare_policies(reports, examples, pick_judge(examples), self.use(), base=first, sft="")
        figures = {row.report.name: row.to_dict() for row in table.rows}
        header = ["policy", f"win rate vs {first}", "95 %", "helpful", "harmless", "honest", "tokens"]
        rows = [_figures_row(name, row) for name, row in figures.items()]
        title = caption or f"{len(examples)} held-out prompts, greedy answers, judge: {table.judge or 'none'}"
        return Table(title, header, rows, data=figures)

    # ------------------------------------------------------------------ figures
    def plot(self, key: str, title: str, xlabel: str, ylabel: str, **size: Any) -> Plot:
        """An empty figure to draw on; see `Plot`."""
        return Plot(key, title, xlabel, ylabel, self.figure_data, **size)

    def curves(
        self, runs: Mapping[str, RunResult], column: str, title: str, ylabel: str, key: str | None = None
    ) -> Plot:
        """One column of several runs over their steps; `key` names the figure, else `column` does."""
        plot = self.plot(key or column, title, "step", ylabel)
        for label, run in runs.items():
            found = self.metrics(run).get(column)
            if found is None:
                known = ", ".join(sorted(self.metrics(run)))
                raise CourseError(f"run {run.run_dir} has no column {column!r}; it has {known}")
            plot.line(found.steps, found.values, label)
        return plot

    def trl_defaults(self) -> dict[str, Any]:
        """Arguments for TRL's configurations: every step logged; no files, bars, reports, mixed precision."""
        return {
            "output_dir": str(self.path / "trl"),
            "logging_steps": 1,
            "gradient_checkpointing": False,
            "bf16": False,
            "dataloader_pin_memory": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
        }

    @staticmethod
    def losses_of(trainer: Any) -> list[float]:
        """Run another library's `transformers.Trainer` without its printing; the losses it logged."""
        from transformers import PrinterCallback

        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    # ------------------------------------------------------------------ end
    def finish(self) -> None:
        """Say what this run of the lesson took, and let go of its models."""
        self.close()
        minutes = (time.perf_counter() - self.started) / 60
        memory = psutil.Process().memory_info().rss / 2**30
        print(f"{self.name} on {probe()}: {minutes:.1f} minutes, {memory:.1f} GiB at the end")

    def close(self) -> None:
        """Release models and answers."""
        self._forget()
        self._replies.clear()

    def _forget(self) -> None:
        # Dropped, not emptied: a learner may still hold the model in a variable.
        self._model = None
        self._adapters.clear()
        loading.release_memory()


def close_lesson() -> None:
    """Release the models of the lesson opened last."""
    while _open:
        _open.pop().close()


def known_kind(kind: str) -> str:
    """The kind of rows, if there are such."""
    if kind not in SPLITS:
        raise CourseError(f"kind={kind!r} is none of {', '.join(SPLITS)}")
    return kind


def adapter_of(policy: RunResult | str | Path) -> Path:
    """The adapter directory of a run, or of a directory that holds one. CourseError if there is none."""
    place = policy.final if isinstance(policy, RunResult) else Path(policy)
    for candidate in (place, place / "adapter", place / "final" / "adapter"):
        if (candidate / "adapter_config.json").is_file():
            return candidate
    raise CourseError(f"{place} holds no adapter: give the result of lesson.train, or its directory")


def _figures_row(name: str, row: Mapping[str, Any]) -> list[Any]:
    low, high = row["ci95"] or (None, None)
    interval = f"{low:.2f}–{high:.2f}" if low is not None else None
    gold = [row["helpful"], row["harmless"], row["honest"]]
    return [name, row["win_rate_vs_base"], interval, *gold, round(row["mean_tokens"], 1)]
