"""Over-optimisation made on purpose, and what each remedy does to it: `python -m helpers hacking compare`.

GRPO on the bundled world without a pull to the reference and with steps three times as long, once as it is
and once with each remedy, for every seed. Greedy answers to the 150 test prompts are then judged by gold,
which trained nothing, and rated by the reward model that was trained against. It may be interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from helpers.course.hacked_pairs import mine_pairs, write_mix
from helpers.course.hacking import gold_against_kl, hacking_signs
from helpers.course.stages import run_stage
from helpers.errors import CourseError
from helpers.files import find_data, read_json, write_json
from helpers.guard import guarded
from helpers.judging.evaluate import head_to_head
from helpers.judging.gold import GoldJudge, gold_scores
from helpers.judging.measure import PolicyReport, Role, evaluate_policy, gold_metadata
from helpers.models import loading
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, load_examples
from helpers.text.groups import Group
from helpers.training.run_dir import BEST
from helpers.training.setup import RunResult

PROFILE, SPLIT = "tiny", "test_gen"
UNLEASHED: dict[str, Any] = {
    "learning_rate": 3e-3,
    "kl_coef": 0.0,
    "max_steps": 60,
    "eval_samples": 60,
    "eval_steps": 5,
    "save_steps": 0,
}
RETRAINED, STOPPED = "hacked pairs", "best weights"
ARMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "kl_coef 0.1": {"kl_coef": 0.1},
    "length_penalty 0.1": {"length_penalty": 0.1},
    "diversity_penalty 5": {"diversity_penalty": 5.0},
    RETRAINED: {},
    STOPPED: {},
}


def compare_remedies(
    answers: Any,
    place: Path,
    seeds: Sequence[int] = (0, 1, 2),
    arms: Mapping[str, dict[str, Any]] | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Train and measure every remedy for every seed; what was measured before is read again.

    Args:
        answers: the answers of GRPO, of evaluation, of the reward model, and of lesson 11.
        place: runs go to `place`/seed0/nothing and so on, figures to `place`/hacking.json.
        limit: test prompts at most.

    Returns:
        {"base": figures, "arms": {arm: [figures of each seed]}}; see `Yardstick.measure`.
    """
    wanted = dict(ARMS if arms is None else arms)
    yardstick = Yardstick.load(guarded(answers), limit)
    base = yardstick.measure("base", None)
    result: dict[str, Any] = {"seeds": list(seeds), "base": base, "arms": {arm: [] for arm in wanted}}
    for seed in seeds:
        for arm, settings in wanted.items():
            directory = place / f"seed{seed}" / arm.replace(" ", "_")
            known = directory / "figures.json"
            if not known.is_file():
                adapter, course = run_arm(arm, settings, answers, place / f"seed{seed}", directory, seed)
                write_json(known, {**yardstick.measure(arm, adapter), **course})
            result["arms"][arm].append(read_json(known))
            write_json(place / "hacking.json", result)
            print(line_of(f"seed {seed}, {arm}", result["arms"][arm][-1]), flush=True)
    return result


def run_arm(
    arm: str, settings: Mapping[str, Any], answers: Any, place: Path, directory: Path, seed: int
) -> tuple[Path, dict[str, Any]]:
    """Train, and return the adapter and what the run saw of itself.

    The retrained reward model learns from the run without a remedy. The best weights are those of that run,
    as the judge of its evaluations liked them, and what --stop_on_hacking hands over.
    """
    if arm == STOPPED:
        best = place / "nothing" / BEST
        return best / "adapter", {"last_step": read_json(best / "best.json")["step"]}
    reward_model = Path(find_data("data/tiny")) / "adapters" / "reward"
    if arm == RETRAINED:
        reward_model = retrain(answers, place, seed)
    common: dict[str, Any] = {"profile": PROFILE, "seed": seed, "reward_model": str(reward_model)}
    run = run_stage("grpo", directory, answers, **{**UNLEASHED, **common, **settings})
    return run.final / "adapter", course_of(run)


def retrain(answers: Any, place: Path, seed: int) -> Path:
    """A reward model on the training pairs and the pairs that the first one got wrong."""
    mix = place / "pairs"
    if not (mix / "dev_prefs.jsonl").is_file():
        mined = mine_pairs(place / "nothing", answers, seed=seed)
        print(f"{len(mined.rows)} of {mined.compared} pairs were ranked the wrong way round", flush=True)
        write_mix(mined.rows, "data/tiny", mix)
    settings: dict[str, Any] = {"profile": PROFILE, "dataset_name": str(mix), "seed": seed}
    return run_stage("reward_model", place / "reward_model", answers, **settings).final


def course_of(run: RunResult) -> dict[str, Any]:
    """What the run saw of itself: reward, judge and KL at its evaluations, signs, and how it ended."""
    seen = gold_against_kl(run.run_dir)
    return {
        "steps": seen.steps,
        "kl_curve": seen.kl,
        "proxy_curve": seen.proxy,
        "gold_curve": seen.gold,
        "signs": {sign.kind: sign.step for sign in hacking_signs(run.run_dir)},
        "last_step": run.metrics.get("steps"),
    }


@dataclass
class Yardstick:
    """What every policy is measured with: the test prompts, the base's answers, the bundled reward model."""

    answers: Any
    encoder: ChatEncoder
    examples: list[Example]
    budget: Budget
    reward_model: RewardModel
    base: PolicyReport | None = None

    @classmethod
    def load(cls, answers: Any, limit: int | None = None) -> Yardstick:
        """Read everything of the bundled world."""
        profile = pick_profile(PROFILE)
        encoder = ChatEncoder(loading.load_tokenizer(profile.model_name))
        data = find_data(profile.dataset_name)
        examples = load_examples(data, split=SPLIT, kind="prompts", limit=limit).examples
        if not all(gold_metadata(example) for example in examples):
            raise CourseError(f"{data}: {SPLIT} has rows without gold facts; is the bundled world damaged?")
        reward_model = RewardModel.load(
            Path(data) / "adapters" / "reward",
            loading.load_base(profile.model_name),
            answers.last_token_index,
            pad_id=encoder.pad_id,
        )
        limits = (profile.max_prompt_tokens, profile.max_response_tokens, profile.max_new_tokens)
        return cls(answers, encoder, examples, Budget(*limits), reward_model)

    def measure(self, name: str, adapter: Path | None) -> dict[str, Any]:
        """Figures of one policy.

        gold: scores of the single answers, 0 to 1. proxy: mean reward. win_rate: against the base, with its
        bootstrap interval. kl: to the base, nats a token. tokens: mean length.
        """
        model: Any = loading.load_base(pick_profile(PROFILE).model_name)
        role, references = Role(model), None
        if adapter is not None:
            model = loading.load_adapter(model, adapter, "policy")
            role, references = Role(model, "policy"), {"base": Role(model, None)}
        report = evaluate_policy(
            name, role, self.encoder, self.examples, self.answers,
            references=references, budget=self.budget, progress=False,
        )  # fmt: skip
        figures = self.figures(report)
        if self.base is None:
            self.base = report
        else:
            duel = head_to_head(
                GoldJudge(), self.examples, report.responses, self.base.responses, self.answers
            )
            figures |= {"win_rate": duel.win_rate, "win_rate_ci95": list(duel.ci95)}
        return figures

    def figures(self, report: PolicyReport) -> dict[str, Any]:
        """What its answers alone say."""
        prompts = [
            self.encoder.encode_prompt(e.messages, self.budget.max_prompt_tokens) for e in self.examples
        ]
        groups = [
            Group(prompt, [self.encoder.encode_response(text, complete=not cut)])
            for prompt, text, cut in zip(prompts, report.responses, report.truncated, strict=True)
        ]
        facts = [gold_metadata(example) or {} for example in self.examples]
        return {
            "gold": [gold_scores(f, text).total for f, text in zip(facts, report.responses, strict=True)],
            "proxy": fmean(row[0] for row in self.reward_model.score_groups(groups, batch_size=64)),
            "kl": report.kl["base"].per_token if report.kl else 0.0,
            "tokens": report.mean_tokens,
        }


# ---------------------------------------------------------------------- words
def line_of(name: str, figures: Mapping[str, Any]) -> str:
    """One run in a line."""
    return (
        f"{name}: proxy {figures['proxy']:.2f}, gold {fmean(figures['gold']):.3f}, win rate"
        f" {figures['win_rate']:.2f}, KL {figures['kl']:.2f}, {figures['tokens']:.1f} tokens,"
        f" step {figures['last_step']}"
    )


def table_of(result: Mapping[str, Any], answers: Any) -> str:
    """A Markdown table: means over seeds, 95 % bootstrap intervals over prompts, each seed's own mean."""
    fenced, base = guarded(answers), result["base"]
    lines = [
        "| remedy | gold [95 %] (each seed) | win rate vs base [95 %] | proxy | KL per token | tokens |",
        "|---|---|---|---|---|---|",
        f"| the base | {interval(fenced, base['gold'])} | | {base['proxy']:.2f} | 0 | {base['tokens']:.1f} |",
    ]
    for arm, runs in result["arms"].items():
        if not runs:
            continue
        by_prompt = [fmean(values) for values in zip(*(run["gold"] for run in runs), strict=True)]
        duels = [[points(a, b) for a, b in zip(run["gold"], base["gold"], strict=True)] for run in runs]
        wins = [fmean(values) for values in zip(*duels, strict=True)]
        own = ", ".join(f"{fmean(run['gold']):.2f}" for run in runs)
        proxy, kl, tokens = (fmean(run[name] for run in runs) for name in ("proxy", "kl", "tokens"))
        lines.append(
            f"| {arm} | {interval(fenced, by_prompt)} ({own}) | {interval(fenced, wins)} | {proxy:.2f}"
            f" | {kl:.2f} | {tokens:.1f} |"
        )
    return "\n".join(lines)


def points(own: float, other: float) -> float:
    """1, ½ or 0, as gold judges two answers."""
    return 0.5 if own == other else float(own > other)


def interval(answers: Any, values: Sequence[float]) -> str:
    """A mean and its interval."""
    low, high = answers.bootstrap_ci(list(values))
    return f"{fmean(values):.2f} [{low:.2f}, {high:.2f}]"
