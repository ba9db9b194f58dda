"""What each command does: read flags, call one function, print the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.apps.checking import check_exercises
from helpers.apps.exporting import export
from helpers.apps.flags import DEFAULT_ANSWERS, answers_from, answers_of, parse, take_flag, text
from helpers.apps.hacking import hacking
from helpers.apps.reporting import report
from helpers.course.stages import ALGOS, trainer_of
from helpers.errors import CourseError
from helpers.models.processes import is_main
from helpers.training.run_rows import plain


# ---------------------------------------------------------------------- course and train
def course(words: list[str]) -> int:
    """The main job."""
    from helpers.course.pipeline import CourseConfig, run_course

    config = parse(CourseConfig, words, "course")
    if config.max_steps is not None and config.max_steps < 1:
        raise CourseError(f"--max_steps must be at least 1, not {config.max_steps}")
    if config.methods and not config.methods.replace(",", "").strip():
        raise CourseError(f"--methods {config.methods} names nothing: leave it out for all of them")
    result = run_course(config, answers_of(config.answers))
    verdicts = [figures["passed"] for figures in result["methods"].values()] + [
        result["reward_model"]["passed"]
    ]
    return 1 if False in verdicts else 0


def train(words: list[str]) -> int:
    """One training run."""
    if not words or (set(words) & {"-h", "--help"} and "--algo" not in " ".join(words)):
        print(f"usage: python -m helpers train --algo {'|'.join(ALGOS)} [flags]; --help after it lists them")
        return 0 if words else 2
    algo, rest = take_flag(words, "--algo")
    if algo is None:
        raise CourseError(
            f"train needs --algo, one of {', '.join(ALGOS)}; then --help lists that method's flags"
        )
    trainer = trainer_of(algo)
    answers, rest = answers_from(rest)
    config = parse(trainer.settings, rest, f"train --algo {algo}")
    if hasattr(config, "algo"):
        config.algo = algo
    result = trainer.train(config, answers)
    if is_main():
        print(json.dumps(plain({"run": result.run_dir, "final": result.final, **result.metrics})))
    return 0


# ---------------------------------------------------------------------- evaluation
def evaluate(words: list[str]) -> int:
    """Base and adapters, or files of answers, in one table."""
    from helpers.apps import evaluating

    answers, rest = answers_from(words)
    print(evaluating.evaluate(rest, answers))
    return 0


def judge(words: list[str]) -> int:
    """judge self|position|agree|cost|rubric."""
    from helpers.apps import judging

    return judging.judge(words)


# ---------------------------------------------------------------------- submission
def submit(words: list[str]) -> int:
    """submit policy|reward_model|best|zip|export."""
    from helpers.apps import submitting

    kinds = submitting.KINDS
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: python -m helpers submit {'|'.join(kinds)} [flags]; --help after it lists them")
        return 0
    if not words or words[0] not in kinds:
        raise CourseError(f"submit needs one of {', '.join(kinds)} as its first word")
    answers, rest = answers_from(words[1:])
    print(submitting.submit(words[0], rest, answers))
    return 0


def grade(words: list[str]) -> int:
    """Grade a submission; exit status 1 if a part fails."""
    from helpers.apps.grading import grade_submission

    answers, rest = answers_from(words)
    return grade_submission(rest, answers)


@dataclass
class DoctorConfig:
    """Say in words what the curves of a training run mean, with the numbers behind it."""

    run: str = text("the run directory, such as runs/my_dpo", "")
    json: bool = text("print the findings as JSON", False)


def doctor(words: list[str]) -> int:
    """doctor RUN [--json]."""
    from helpers.course.doctor import diagnose

    if words and not words[0].startswith("-"):
        words = ["--run", *words]
    config = parse(DoctorConfig, words, "doctor")
    if not config.run:
        raise CourseError("doctor needs the run: python -m helpers doctor runs/my_dpo")
    found = diagnose(config.run)
    print(json.dumps(plain(found.to_dict())) if config.json else found.render())
    return 0


# ---------------------------------------------------------------------- machine, data, speed
@dataclass
class ProfileConfig:
    """Print the profile this machine gets, why, and what each profile could do here."""

    profile: str | None = text("ask about this one")


def profile(words: list[str]) -> int:
    """The choice and its reason."""
    from helpers.models.hardware import probe
    from helpers.models.profiles import describe_profiles, pick_profile

    config = parse(ProfileConfig, words, "profile")
    hardware = probe()
    print(f"{pick_profile(config.profile, hardware).reason}\n\n{describe_profiles(hardware)}")
    return 0


@dataclass
class BuildTinyConfig:
    """Build the bundled world from its seed: prompts, tokenizer, base model, preferences, adapters."""

    output_dir: str = text("where to write it", "data/tiny")
    seed: int = text("seed of everything", 0)


@dataclass
class DataReportConfig:
    """Load a data set and report what was kept, dropped and why."""

    source: str = text("directory, file or hub id")
    split: str | None = text("split or file stem")
    kind: str | None = text("sft, preference or prompts; default: what the rows hold")
    format: str | None = text("name the format instead of finding it from the first rows")
    limit: int | None = text("rows at most")
    model_name: str | None = text("also encode with this model's tokenizer and count truncation")


def data(words: list[str]) -> int:
    """data build | data build-tiny | data report SOURCE."""
    kinds = ("build", "build-tiny", "report")
    if words[:1] in (["-h"], ["--help"]):
        print(f"usage: python -m helpers data {'|'.join(kinds)} [flags]; --help after it lists them")
        return 0
    if not words or words[0] not in kinds:
        raise CourseError(f"data needs one of {', '.join(kinds)} as its first word")
    if words[0] == "build":
        from helpers.apps.building_data import data_build

        spec, rest = take_flag(words[1:], "--answers")
        print(data_build(rest, lambda: answers_of(spec)))
        return 0
    if words[0] == "build-tiny":
        from helpers.tiny.adapters import ADAPTERS, SFT_RESPONSES
        from helpers.tiny.build import build_tiny

        answers, rest = answers_from(words[1:])
        config = parse(BuildTinyConfig, rest, "data build-tiny")
        build_tiny(Path(config.output_dir), config.seed, answers, extra_stages=(ADAPTERS, SFT_RESPONSES))
        return 0
    from helpers.apps.evaluating import data_report

    rest = words[1:]
    if rest and not rest[0].startswith("-"):
        rest = ["--source", *rest]
    config = parse(DataReportConfig, rest, "data report")
    if not config.source:
        raise CourseError("data report needs a source: python -m helpers data report DIR --split test_prefs")
    print(data_report(config))
    return 0


@dataclass
class BuildConfig:
    """Build the notebooks of all lessons, or of those whose numbers you give, from solutions/NN_title.py."""

    check: bool = text("write nothing; say what is stale, edited, leaked or missing, and exit with 1", False)
    no_execute: bool = text("do not run the instructor's notebooks", False)
    force: bool = text("run also those whose outputs came from the same code", False)


def build(words: list[str]) -> int:
    """build [NN ...]; with --check, exit status 1 if something is to be mended."""
    from helpers.course.builder.kit import Kit
    from helpers.course.builder.make import build_lessons, build_vectors
    from helpers.course.builder.review import review

    numbers = [word for word in words if Path(word).name[:1].isdigit()]
    config = parse(BuildConfig, [word for word in words if word not in numbers], "build")
    kit = Kit(Path(__file__).resolve().parents[2], DEFAULT_ANSWERS)
    if config.check:
        findings = review(kit, numbers)
        print("\n".join(findings) or f"all is as the sources say: {', '.join(kit.lessons(numbers))}")
        return 1 if findings else 0
    if not numbers:
        for name in build_vectors(kit, check=False):
            print(f"{name}: written")
    build_lessons(kit, numbers, run=not config.no_execute, force=config.force)
    return 0


def release(words: list[str]) -> int:
    """release kit|autograder."""
    from helpers.apps import releasing

    return releasing.release(words, DEFAULT_ANSWERS)


@dataclass
class BenchConfig:
    """Print speed and memory figures, one JSON line each."""

    only: str = text("comma-separated: fused, dpo, ppo, memory, course; default all", "")
    real_data: str | None = text(
        "directory of the real data; default: ../shared/real_data beside the project"
    )
    pairs: int = text("pairs of the DPO comparison", 16)


def bench(words: list[str]) -> int:
    """Speed and memory."""
    from helpers.course.bench import run_bench

    spec, rest = take_flag(words, "--answers")
    config = parse(BenchConfig, rest, "bench")
    if config.real_data is not None and not Path(config.real_data).is_dir():
        raise CourseError(f"--real_data {config.real_data}: there is no such directory")
    kept = run_bench(config.only, spec or DEFAULT_ANSWERS, pairs=config.pairs, real_data=config.real_data)
    return 0 if kept else 1


def demo(words: list[str]) -> int:
    """The chat demo."""
    from helpers.apps.demo.command import demo as run_demo

    return run_demo(words)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "course": course,
    "train": train,
    "evaluate": evaluate,
    "judge": judge,
    "submit": submit,
    "grade": grade,
    "check": check_exercises,
    "doctor": doctor,
    "hacking": hacking,
    "report": report,
    "profile": profile,
    "data": data,
    "export": export,
    "demo": demo,
    "build": build,
    "release": release,
    "bench": bench,
}
