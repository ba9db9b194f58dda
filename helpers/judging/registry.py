"""Judges by name, and the flags that every command with a judge shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helpers.errors import CourseError
from helpers.judging.gold import GoldJudge
from helpers.judging.judge import Judge
from helpers.judging.recorded import RecordedJudge, RecordingJudge

if TYPE_CHECKING:
    from helpers.judging.llm import LLMJudge

DEFAULT_MODEL = "gpt-4.1-mini"


def _flag(help_text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass
class JudgeSettings:
    """Which judge, and how it is asked. Keys come from the environment only: see docs/judging.md."""

    judge: str | None = _flag("gold, openai, reward_model or recorded; default: gold where it can judge")
    judge_model: str | None = _flag(f"model that judges; default at OpenAI: {DEFAULT_MODEL}")
    judge_base_url: str | None = _flag(
        "an OpenAI-compatible server, such as http://localhost:8000/v1; its key, if any, is in JUDGE_API_KEY"
    )
    judge_format: str = _flag(
        "json: a verdict with all its fields; letter: one letter, for small models", "json"
    )
    judge_temperature: float = _flag("temperature of the judge", 0.0)
    judge_max_tokens: int = _flag("longest verdict; a model that thinks needs more", 800)
    judge_concurrency: int = _flag("requests at a time", 8)
    judge_timeout: float = _flag("seconds for one request", 60.0)
    judge_retries: int = _flag("further attempts after a failure that may pass", 4)
    judge_cache: str = _flag("directory in which verdicts are kept; none: nowhere", "runs/judge_cache")
    max_cost: float | None = _flag("USD after which no more is asked; what is there is kept")
    price_in: float | None = _flag("USD per million input tokens, for a model that the list lacks")
    price_out: float | None = _flag("USD per million output tokens")
    judge_record: str | None = _flag("verdicts are added to this file; with --judge recorded: read from it")
    judge_reward_model: str | None = _flag("directory of a trained reward model, for --judge reward_model")
    force_proxy: bool = _flag("let a reward model judge policies that were trained on it", False)


def make_judge(name: str | None, settings: JudgeSettings | None = None, answers: Any = None) -> Judge:
    """The judge called `name`, which asks as `settings` say.

    Args:
        answers: needed for a reward model alone (`last_token_index`).

    Raises:
        CourseError: for an unknown name, settings that make no sense, or a judge that cannot be had here.
    """
    settings = settings or JudgeSettings()
    if name not in JUDGES:
        raise CourseError(f"--judge {name} is not one of {', '.join(JUDGES)}")
    refuse_unused(name, settings)
    judge = JUDGES[name](settings, answers)
    if settings.judge_record and name != "recorded":
        return RecordingJudge(judge, settings.judge_record)
    return judge


def refuse_unused(name: str | None, settings: JudgeSettings) -> None:
    """CourseError where a language model is described but another judge would decide, unasked for."""
    if name in ("openai", "recorded"):
        return
    for flag in ("judge_model", "judge_base_url"):
        if getattr(settings, flag) is not None:
            instead = f"not of --judge {name}" if name else "and no judge is named"
            raise CourseError(f"--{flag} is a flag of --judge openai, {instead}: name it, or leave it out")


def _gold(settings: JudgeSettings, answers: Any) -> Judge:
    return GoldJudge()


def _openai(settings: JudgeSettings, answers: Any) -> Judge:
    return make_llm_judge(settings)


def make_llm_judge(settings: JudgeSettings, *, with_key: bool = True) -> LLMJudge:
    """The LLM judge of these settings; without a key it can only estimate what it would cost."""
    from helpers.judging.llm import LLMJudge
    from helpers.judging.llm_cache import VerdictCache
    from helpers.judging.llm_client import LLMClient
    from helpers.judging.llm_cost import Budget, price_of

    check_numbers(settings)
    url = settings.judge_base_url
    if url and not settings.judge_model:
        raise CourseError("--judge_base_url needs --judge_model: the name under which the server knows it")
    model = settings.judge_model or DEFAULT_MODEL
    client = LLMClient(
        model,
        url,
        temperature=settings.judge_temperature,
        timeout=settings.judge_timeout,
        retries=settings.judge_retries,
        budget=Budget(settings.max_cost, price_of(model, url, settings.price_in, settings.price_out)),
        with_key=with_key,
    )
    return LLMJudge(
        client,
        VerdictCache(None if settings.judge_cache == "none" else settings.judge_cache),
        form=settings.judge_format,
        concurrency=settings.judge_concurrency,
        max_tokens=settings.judge_max_tokens,
    )


def _reward_model(settings: JudgeSettings, answers: Any) -> Judge:
    from helpers.judging.reward_judge import load_reward_judge

    return load_reward_judge(settings.judge_reward_model, answers, getattr(settings, "profile", None))


def _recorded(settings: JudgeSettings, answers: Any) -> Judge:
    if not settings.judge_record:
        raise CourseError("--judge recorded needs --judge_record FILE: verdicts that another run recorded")
    return RecordedJudge(settings.judge_record)


def check_numbers(settings: JudgeSettings) -> None:
    """CourseError for a flag outside its range."""
    least = {"judge_max_tokens": 1, "judge_concurrency": 1, "judge_retries": 0, "judge_temperature": 0}
    for name, bound in least.items():
        if not getattr(settings, name) >= bound:
            raise CourseError(f"--{name} must be at least {bound}, not {getattr(settings, name)}")
    if not settings.judge_timeout > 0:
        raise CourseError("--judge_timeout must be more than 0 seconds")


JUDGES: dict[str, Callable[[JudgeSettings, Any], Judge]] = {
    "gold": _gold,
    "openai": _openai,
    "reward_model": _reward_model,
    "recorded": _recorded,
}
