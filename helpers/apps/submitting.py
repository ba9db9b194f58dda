"""`submit` and `grade`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from helpers.apps.evaluating import adapter_directory
from helpers.course.autograder import grade, render_results
from helpers.course.pipeline import load_adapters
from helpers.course.stages import METHODS
from helpers.course.submission import (
    check_budget,
    policy_file,
    write_policy_submission,
    write_reward_submission,
    zip_submission,
)
from helpers.errors import CourseError
from helpers.files import data_dir
from helpers.judging.measure import Role
from helpers.judging.registry import make_judge
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel, read_card
from helpers.text.chat import Budget, ChatEncoder

PROMPTS, PAIRS = "public_test_gen_prompts_*.jsonl", "public_test_prefs_*.jsonl"


def public_directory(given: str | None) -> Path:
    """The public evaluation set: the one given, or the bundled one."""
    path = Path(given) if given else data_dir() / "tiny" / "public_eval"
    if not path.is_dir():
        raise CourseError(f"--public_eval {path}: there is no such directory")
    return path


def public_file(directory: Path, pattern: str) -> Path:
    """The one file of the public evaluation set that matches `pattern`."""
    found = sorted(directory.glob(pattern))
    if not found:
        raise CourseError(f"{directory} holds no {pattern}")
    return found[0]


def submit_part(kind: str, config: Any, answers: Any) -> str:
    """Write one part of a submission and say what was written."""
    if kind == "zip":
        return f"wrote {zip_submission(config.output_dir, config.zip)}"
    check_parts(kind, config)
    profile = pick_profile(config.profile)
    public = public_directory(config.public_eval)
    budget = Budget(
        config.max_prompt_tokens or profile.max_prompt_tokens,
        config.max_response_tokens or profile.max_response_tokens,
        config.max_new_tokens or profile.max_new_tokens,
    )
    check_budget(budget)
    name = config.model_name or profile.model_name
    encoder = ChatEncoder(loading.load_tokenizer(name))
    base = loading.load_base(name, profile, quantization=config.quantization)
    if kind == "policy":
        return submit_policy(config, base, encoder, public, budget)
    reward_model = RewardModel.load(
        config.reward_model, base, answers.last_token_index, pad_id=encoder.pad_id, layout=profile.layout
    )
    written = write_reward_submission(
        config.output_dir,
        public_file(public, PAIRS),
        reward_model,
        encoder,
        budget=budget,
        batch_size=config.batch_size,
    )
    return written.render()


def check_parts(kind: str, config: Any) -> None:
    """Raise CourseError, before a model is loaded for minutes, where a flag is missing or names nothing."""
    if kind == "reward_model":
        if not config.reward_model:
            raise CourseError("submit reward_model needs --reward_model DIR, such as runs/my_rm/final")
        read_card(Path(config.reward_model))
        return
    if not config.method or not config.adapter:
        raise CourseError("submit policy needs --method NAME and --adapter DIR")
    policy_file(config.method)
    adapter_directory(Path(config.adapter))


def submit_policy(config: Any, base: Any, encoder: ChatEncoder, public: Path, budget: Budget) -> str:
    """Generate the answers of one policy."""
    place = adapter_directory(Path(config.adapter))
    written = write_policy_submission(
        config.output_dir,
        config.method,
        public_file(public, PROMPTS),
        Role(load_adapters(base, {"policy": place}), "policy"),
        encoder,
        budget=budget,
        batch_size=config.batch_size,
    )
    return written.render()


def grade_submission(config: Any, answers: Any) -> int:
    """Grade, print the table, and return 1 if a part fails."""
    source = Path(config.submission)
    if not os.path.exists(source):
        raise CourseError(f"{source} does not exist: give a submission directory or a zip")
    output = Path(config.output) if config.output else source.parent / f"{source.stem}_results.json"
    public = public_directory(config.public_eval)
    public_file(public, PROMPTS), public_file(public, PAIRS)
    results = grade(source, public, make_judge(config.judge), answers, output, trainable=METHODS)
    print(render_results(results))
    print(f"results: {output}")
    return 0 if all(test.get("status") == "passed" for test in results["tests"]) else 1
