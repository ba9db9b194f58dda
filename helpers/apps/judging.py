"""`judge self|position|agree|cost|rubric`: whether a judge can be trusted, and what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from helpers.apps.flags import answers_from, parse, text
from helpers.course.evaluation import read_responses
from helpers.errors import CourseError
from helpers.files import check_place, find_data, write_json
from helpers.judging import sanity
from helpers.judging.judge import Candidates, Comparison, Judge
from helpers.judging.registry import JudgeSettings, make_judge, make_llm_judge
from helpers.models.profiles import pick_profile
from helpers.text.datasets import Example, load_examples

USAGE = """usage: python -m helpers judge self|position|agree|cost|rubric --judge gold|openai|… [flags]

  self      every response against itself: near 50 %, whatever the judge
  position  pairs in both orders: does the order decide?
  agree     two judges on the same pairs: Cohen's kappa
  cost      what judging these pairs would cost; asks nothing
  rubric    helpful, harmless and honest from 1 to 5, of --responses or of the chosen responses
  COMMAND --help lists the flags"""


@dataclass
class JudgeConfig(JudgeSettings):
    """Try a judge on pairs: chosen and rejected of a data set, or two files of answers to its prompts."""

    profile: str | None = text("tiny, smol, colab or qlora_7b: whose data set and base are used")
    dataset_name: str | None = text("data set; default: the profile's")
    split: str | None = text("its split; default: test_prefs, with --responses test_gen")
    responses: str | None = text("FILE.jsonl of answers, with row_id and response")
    baseline_responses: str | None = text("FILE.jsonl of the answers to compare them with")
    limit: int = text("pairs at most", 64)
    output: str | None = text("write the figures there as JSON")
    second_judge: str | None = text("agree: the other judge, by name")
    second_judge_model: str | None = text("agree: its model")
    second_judge_base_url: str | None = text("agree: its server")
    second_judge_format: str | None = text("agree: json or letter; default: as the first")
    second_judge_record: str | None = text("agree: its file of recorded verdicts")


def judge(words: list[str]) -> int:
    """Run one of the sub-commands."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise CourseError(f"judge {name} is not one of {', '.join(COMMANDS)}")
    answers, rest = answers_from(rest)
    config = parse(JudgeConfig, rest, f"judge {name}")
    if config.limit < 1:
        raise CourseError(f"--limit must be at least 1, not {config.limit}")
    check_place(config.output, "--output")
    check_place(config.judge_record, "--judge_record")
    lines, figures = COMMANDS[name](config, answers)
    print(lines)
    if config.output:
        write_json(config.output, figures)
        print(f"figures: {config.output}")
    return 1 if nothing_read(figures) else 0


def nothing_read(figures: dict[str, Any]) -> bool:
    """Whether a judge was asked and not one answer could be used, as where its server is down."""
    return figures.get("first_position_rate", 0) is None or figures.get("graded", 1) == 0


# ---------------------------------------------------------------------- what is judged
def pairs_of(config: JudgeConfig) -> list[Comparison]:
    """Chosen and rejected of a data set, or the answers of two files to the same prompts."""
    if bool(config.responses) != bool(config.baseline_responses):
        raise CourseError("--responses and --baseline_responses belong together: each pair takes one of each")
    if config.responses and config.baseline_responses:
        files = [Path(config.responses), Path(config.baseline_responses)]
        first, second = (read_responses(path) for path in files)
        examples = [
            one for one in prompts_of(config, files[0]) if one.row_id in first and one.row_id in second
        ]
        if not examples:
            raise CourseError(f"{files[0]} and {files[1]} answer no prompt in common")
        chosen = examples[: config.limit]
        return [Comparison(one, first[one.row_id], second[one.row_id]) for one in chosen]
    source = find_data(config.dataset_name or pick_profile(config.profile).dataset_name)
    split = config.split or "test_prefs"
    pairs = load_examples(source, split=split, kind="preference", limit=config.limit).examples
    return [Comparison(one, *one.responses) for one in pairs]


def prompts_of(config: JudgeConfig, file: Path) -> list[Example]:
    """Prompts from the data set or, without one, from the file of answers itself."""
    if config.dataset_name is None:
        return load_examples(file, kind="prompts").examples
    source = find_data(config.dataset_name)
    return load_examples(source, split=config.split or "test_gen", kind="prompts").examples


def the_judge(config: JudgeConfig, answers: Any) -> Judge:
    """The judge of --judge."""
    if not config.judge:
        raise CourseError("name the judge: --judge gold, openai, reward_model or recorded")
    return make_judge(config.judge, config, answers)


# ---------------------------------------------------------------------- the sub-commands
def run_self(config: JudgeConfig, answers: Any) -> tuple[str, dict[str, Any]]:
    """Each pair's first response against itself."""
    pairs = [replace(one, response_b=one.response_a) for one in pairs_of(config)]
    found = sanity.examine(the_judge(config, answers), pairs, same=True)
    return found.render("self against self"), found.to_dict()


def run_position(config: JudgeConfig, answers: Any) -> tuple[str, dict[str, Any]]:
    """The pairs in both orders."""
    found = sanity.examine(the_judge(config, answers), pairs_of(config))
    return found.render("position"), found.to_dict()


def run_agree(config: JudgeConfig, answers: Any) -> tuple[str, dict[str, Any]]:
    """Two judges on the same pairs."""
    if not config.second_judge:
        raise CourseError("judge agree needs --second_judge, and what it needs: --second_judge_model, …")
    plain = JudgeSettings(**{item.name: getattr(config, item.name) for item in fields(JudgeSettings)})
    other = replace(
        plain,
        judge=config.second_judge,
        judge_model=config.second_judge_model,
        judge_base_url=config.second_judge_base_url,
        judge_format=config.second_judge_format or config.judge_format,
        judge_record=config.second_judge_record,
    )
    judges = the_judge(config, answers), make_judge(config.second_judge, other, answers)
    found = sanity.agree(*judges, pairs_of(config))
    return found.render(), found.to_dict()


def run_cost(config: JudgeConfig, answers: Any) -> tuple[str, dict[str, Any]]:
    """What both orders of the pairs would cost."""
    pairs = pairs_of(config)
    if config.judge == "openai":  # the wish to know the cost comes before the key
        one: Any = make_llm_judge(config, with_key=False)
    else:
        one = the_judge(config, answers)
    if not hasattr(one, "estimate"):
        return f"{one.name} costs nothing", {"judge": one.name, "likely": 0.0, "most": 0.0}
    orders = [(each.response_a, each.response_b) for each in pairs]
    shown: Sequence[Candidates] = [
        Candidates(each.example, order)
        for each, (a, b) in zip(pairs, orders, strict=True)
        for order in ((a, b), (b, a))
    ]
    cost = one.estimate(shown)
    return cost.render(one.name), {"judge": one.name, **vars(cost)}


def run_rubric(config: JudgeConfig, answers: Any) -> tuple[str, dict[str, Any]]:
    """Grades of one response a prompt."""
    from helpers.judging.rubric import rubric_scores

    if config.responses:
        texts = read_responses(Path(config.responses))
        examples = [one for one in prompts_of(config, Path(config.responses)) if one.row_id in texts]
        rows = [(one, texts[one.row_id]) for one in examples[: config.limit]]
    else:
        rows = [(one.example, one.response_a) for one in pairs_of(config)]
    found = rubric_scores(the_judge(config, answers), [one for one, _ in rows], [said for _, said in rows])
    means = "  ".join(
        f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in found.means.items()
    )
    lost = ", ".join(f"{n} {status}" for status, n in found.left_out.items())
    return f"{found.judge}: {len(rows)} responses, means of 1 to 5\n  {means}\n  {lost}", found.to_dict()


COMMANDS = {
    "self": run_self,
    "position": run_position,
    "agree": run_agree,
    "cost": run_cost,
    "rubric": run_rubric,
}
