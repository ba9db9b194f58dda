"""`submit` and `grade`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.apps.evaluating import adapter_directory, named_adapters
from helpers.apps.flags import parse, text
from helpers.course.best import Member, Selection, check_selection, write_best_submission
from helpers.course.layout import KINDS as KINDS_OF_POLICY
from helpers.course.layout import policy_file
from helpers.course.pipeline import load_adapters
from helpers.course.submission import (
    check_budget,
    directory_fingerprint,
    export_submission,
    write_policy_submission,
    write_reward_submission,
    zip_submission,
)
from helpers.errors import CourseError
from helpers.files import data_dir, read_json
from helpers.judging.measure import Role
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel, read_card
from helpers.text.chat import Budget, ChatEncoder

POLICY_METHODS = tuple(name for names in KINDS_OF_POLICY.values() for name in names)
SELECTOR = "selector__"  # the reward model's adapter; no name given by --adapters ends so
KINDS = ("policy", "reward_model", "best", "zip", "export")
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


@dataclass
class SubmitConfig:
    """Write one part of a submission: policy generations or reward-model scores; or hand in what is written.

    zip packs it for Gradescope; export copies it in the layout of the university project's own grader.
    """

    output_dir: str = text("the submission directory", "submission")
    method: str | None = text("policy: dpo, ipo, aot, grpo, dr_grpo, gspo or ppo")
    adapter: str | None = text("policy: directory of the adapter, such as runs/my_dpo/final/adapter")
    reward_model: str | None = text("reward_model: directory of the reward model, such as runs/my_rm/final")
    public_eval: str | None = text("directory of the public evaluation files; default: the bundled one")
    profile: str | None = text("tiny, smol, colab or qlora_7b")
    model_name: str | None = text("base model; default: the profile's")
    quantization: str | None = text("nf4 or none; default: the profile's")
    max_prompt_tokens: int | None = text("budget of the prompt; the benchmark's is 700")
    max_response_tokens: int | None = text("budget of a scored response; the benchmark's is 512")
    max_new_tokens: int | None = text("budget of a generated response; the benchmark's is 256")
    batch_size: int = text("rows at once", 32)
    zip: str | None = text("zip: the file to write; default: the directory's name with .zip")
    export: str | None = text("export: the directory that receives llm_rl_final_proj_public_submission")


@dataclass
class SubmitBestConfig(SubmitConfig):
    """Part 2: draw n candidates from each policy of a family, keep the best, and write the manifest."""

    kind: str | None = text("offline (dpo, ipo, aot, sft) or online (ppo, grpo, dr_grpo, gspo)")
    adapters: str = text("the family: comma-separated name=DIR or DIR of saved adapters", "")
    n: int = text("candidates a prompt from each policy", 8)
    selector: str = text("what keeps one of them: reward_model, longest or first", "reward_model")
    temperature: float = text("of the candidates", 1.0)
    top_p: float = text("nucleus of the candidates", 1.0)
    seed: int = text("of the candidates", 0)


@dataclass
class Loaded:
    """Base model, tokenizer, budget and public files of one `submit`."""

    name: str
    base: Any
    encoder: ChatEncoder
    budget: Budget
    public: Path
    layout: str


def submit(kind: str, words: list[str], answers: Any) -> str:
    """Run `submit KIND` with its flags and say what was written."""
    config = parse(SubmitBestConfig if kind == "best" else SubmitConfig, words, f"submit {kind}")
    if kind == "zip":
        return f"wrote {zip_submission(config.output_dir, config.zip)}"
    if kind == "export":
        if not config.export:
            raise CourseError("submit export needs --export DIR: where the submission is copied to")
        target, names = export_submission(config.output_dir, config.export)
        return "\n".join([f"{target}: {len(names)} files", *names])
    if kind == "best":
        return submit_best(config, answers)
    check_parts(kind, config)
    loaded = load_parts(config)
    if kind == "policy":
        return submit_policy(config, loaded)
    written = write_reward_submission(
        config.output_dir,
        public_file(loaded.public, PAIRS),
        load_reward(config.reward_model, loaded, loaded.base, answers, "reward"),
        loaded.encoder,
        budget=loaded.budget,
        batch_size=config.batch_size,
    )
    return written.render()


def load_parts(config: Any) -> Loaded:
    """Check the budget, then load what every kind of `submit` needs."""
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
    return Loaded(name, base, encoder, budget, public, profile.layout)


def load_reward(path: str, loaded: Loaded, base: Any, answers: Any, name: str) -> RewardModel:
    """A saved reward model, on the base that is loaded already."""
    return RewardModel.load(
        path,
        base,
        answers.last_token_index,
        name=name,
        pad_id=loaded.encoder.pad_id,
        layout=loaded.layout,
    )


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


def submit_policy(config: Any, loaded: Loaded) -> str:
    """Generate the answers of one policy."""
    place = adapter_directory(Path(config.adapter))
    written = write_policy_submission(
        config.output_dir,
        config.method,
        public_file(loaded.public, PROMPTS),
        Role(load_adapters(loaded.base, {"policy": place}), "policy"),
        loaded.encoder,
        budget=loaded.budget,
        batch_size=config.batch_size,
    )
    return written.render()


def submit_best(config: Any, answers: Any) -> str:
    """Generate candidates of a family of policies, keep the best, and write answers and manifest."""
    places = named_adapters(config.adapters)
    methods = {name: method_of(place) for name, place in places.items()}
    choice = {name: getattr(config, name) for name in ("n", "temperature", "top_p", "selector", "seed")}
    by_reward = config.selector == "reward_model"
    if config.kind is None:
        raise CourseError("submit best needs --kind offline or --kind online")
    if by_reward and not config.reward_model:
        raise CourseError("--selector reward_model needs --reward_model DIR, such as runs/my_rm/final")
    check_selection(config.kind, methods, Selection(**choice))
    if by_reward:
        read_card(Path(config.reward_model))
        choice["reward_fingerprint"] = directory_fingerprint(config.reward_model)
    loaded = load_parts(config)
    model = load_adapters(loaded.base, places)
    if by_reward:
        choice["reward_model"] = load_reward(config.reward_model, loaded, model, answers, SELECTOR)
    family = {
        name: Member(Role(model, name), directory_fingerprint(place), methods[name])
        for name, place in places.items()
    }
    written = write_best_submission(
        config.output_dir,
        config.kind,
        public_file(loaded.public, PROMPTS),
        family,
        loaded.encoder,
        answers,
        Selection(**choice),
        base_model=loaded.name,
        budget=loaded.budget,
        batch_size=config.batch_size,
    )
    return written.render()


def method_of(adapter: Path) -> str | None:
    """The method of the run that an adapter lies in, as the run's settings say; None where they do not."""
    for place in list(adapter.parents)[:3]:
        settings = read_json(place / "config.json") if (place / "config.json").is_file() else None
        if isinstance(settings, dict) and settings.get("algo") in POLICY_METHODS:
            return settings["algo"]
    return None
