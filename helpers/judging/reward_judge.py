"""A reward model as a judge: free and fast, and always a proxy. It must not judge a policy that was trained
to please it (Gao et al. 2022, arXiv 2210.10760: the proxy's score rises while the true one falls)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.files import file_digest, read_json
from helpers.judging.judge import Candidates, Choice, Comparison, Verdict, verdict_of
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.groups import Group


class RewardJudge:
    """Best and worst by a reward model's scores."""

    is_proxy = True

    def __init__(self, reward_model: RewardModel, encoder: ChatEncoder, name: str, budget: Budget) -> None:
        self.reward_model, self.encoder, self.budget = reward_model, encoder, budget
        self.name = f"reward model {name}"

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return one verdict for each; equal scores say "A" in both orders, which reads as a tie."""
        pairs = [Candidates(one.example, (one.response_a, one.response_b)) for one in comparisons]
        return [verdict_of(choice) for choice in self.choose(pairs)]

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """Return the highest and the lowest score of each set; a score that is not finite is "unparsed"."""
        groups = [self._group(one) for one in candidates]
        return [_choice(scores) for scores in self.reward_model.score_groups(groups)] if groups else []

    def _group(self, one: Candidates) -> Group:
        longest = self.budget.max_response_tokens
        responses = [
            self.encoder.encode_response(text, max_tokens=longest) or [self.encoder.end_of_turn_id]
            for text in one.responses
        ]
        prompt = self.encoder.encode_prompt(one.example.messages, self.budget.max_prompt_tokens)
        return Group(prompt, responses, one.example.row_id)


def _choice(scores: Sequence[float]) -> Choice:
    if not all(abs(score) < float("inf") for score in scores):
        return Choice(None, None, reason="a score is not finite", status="unparsed")
    places = range(len(scores))
    best = max(places, key=lambda place: (scores[place], -place))
    worst = min((place for place in places if place != best), key=lambda place: (scores[place], -place))
    return Choice(best, worst, scores=tuple(float(score) for score in scores))


def load_reward_judge(directory: str | None, answers: Any, profile: str | None = None) -> RewardJudge:
    """The judge of --judge_reward_model, on the base that its run names, or the profile's.

    Raises:
        CourseError: without the flag, without `last_token_index`, or for a directory that holds none.
    """
    if not directory:
        raise CourseError("--judge reward_model needs --judge_reward_model DIR: the final/ of such a run")
    if answers is None:
        raise CourseError("--judge reward_model needs the answers: their last_token_index finds the score")
    place = reward_directory(Path(directory))
    settings = pick_profile(profile)
    config = next(iter(run_configs(place)), {})
    name = str(config.get("model_name") or settings.model_name)
    encoder = ChatEncoder(loading.load_tokenizer(name))
    model = RewardModel.load(
        place,
        loading.load_base(name, settings),
        answers.last_token_index,
        pad_id=encoder.pad_id,
        layout=settings.layout,
    )
    budget = Budget(settings.max_prompt_tokens, settings.max_response_tokens, settings.max_new_tokens)
    return RewardJudge(model, encoder, f"{place} (proxy)", budget)


def reward_directory(path: Path) -> Path:
    """Accept a run or its final/."""
    for place in (path, path / "final"):
        if (place / "reward.json").is_file():
            return place
    raise CourseError(f"--judge_reward_model {path} holds no reward model: give the final/ of such a run")


# ---------------------------------------------------------------------- no judge in its own case
def refuse_if_trained_on(
    judge_directory: str | Path, adapters: Iterable[str | Path], *, force: bool = False
) -> list[Path]:
    """Refuse a reward model as judge of a policy that was trained on it; returns the policies concerned.

    A policy's run, and the runs it started from, name their reward model in config.json. The same model is
    known by its place or, where it was copied, by the bytes of its head.

    Raises:
        CourseError: naming the first such adapter, unless `force` (--force_proxy).
    """
    judge = reward_directory(Path(judge_directory))
    guilty = [
        Path(adapter) for adapter in adapters if any(_same(judge, used) for used in rewards_of(adapter))
    ]
    if guilty and not force:
        raise CourseError(
            f"{guilty[0]} was trained to please --judge_reward_model {judge_directory}, which therefore"
            " cannot judge it: use another judge, or --force_proxy true to see by how much it is pleased"
        )
    return guilty


def rewards_of(adapter: str | Path) -> Iterator[Path]:
    """The reward models that an adapter, or an adapter it was trained from, was trained on."""
    todo, seen = [Path(adapter)], set()
    while todo:
        place = todo.pop()
        if place.absolute() in seen:
            continue
        seen.add(place.absolute())
        for config in run_configs(place):
            if isinstance(config.get("reward_model"), str):
                yield Path(config["reward_model"])
            if isinstance(config.get("init_adapter"), str):
                todo.append(Path(config["init_adapter"]))
            break


def run_configs(place: Path) -> Iterator[dict[str, Any]]:
    """The config.json of the run that a directory of weights belongs to: that above it, at most three up."""
    for folder in (place, *place.absolute().parents[:3]):
        if (folder / "config.json").is_file() and not (folder / "model.safetensors").is_file():
            config = read_json(folder / "config.json")
            if isinstance(config, dict) and "algo" in config:
                yield config


def _same(judge: Path, used: Path) -> bool:
    places = [place for place in (used, used / "final") if (place / "reward.json").is_file()]
    if not places:
        return used.absolute() in (judge.absolute(), judge.absolute().parent)
    heads = [_digest(place / "head.safetensors") for place in (judge, *places)]
    return judge.resolve() in [place.resolve() for place in places] or heads[0] in heads[1:]


def _digest(path: Path) -> str:
    return file_digest(path) if path.is_file() else str(path)
