"""The parts of a report about results: questions with short answers, tables with intervals, figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helpers.course import plots
from helpers.course.evaluation_files import table_rows
from helpers.course.evaluation_plots import evaluation_figures
from helpers.course.report_blocks import Block, Heading, Table, Text, Tile, picture
from helpers.course.report_sources import Run, Source
from helpers.course.tables import (
    DASH,
    display_name,
    interval_of,
    methods_of,
    number,
    number_or_nan,
    rate,
    result_rows,
    reward_model_line,
    reward_model_of,
    summary_line,
    threshold_target,
    verdict,
)
from helpers.errors import CourseError
from helpers.files import read_jsonl

AGAINST = {
    "win_rate_vs_base": ("the base", "win_rate_vs_base", "ci95"),
    "win_rate_vs_sft": ("the SFT model", "win_rate_vs_sft", "ci95_vs_sft"),
}
READING = (
    "Rates: share of held-out prompts on which the greedy answer beats the other's, ties counting one half, "
    "each pair judged in both orders; in brackets the 95 % bootstrap interval over prompts. strict: scores "
    "under 0.3 count as 0. KL: estimate of KL(method ‖ reference) in nats a response token, from one sampled "
    "answer a prompt."
)


# ---------------------------------------------------------------------- questions
def questions(sources: Sequence[Source], runs: Sequence[Run]) -> list[Block]:
    """What was asked, with the answer in a few words and where it is shown."""
    rows = [list(row) for row in asked(sources, runs)]
    if not rows:
        return [Text("Nothing has been measured yet.")]
    return [Table(["question", "answer", "shown under"], rows, words=True)]


def asked(sources: Sequence[Source], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """(question, answer, section)."""
    for source in sources:
        if source.kind == "course":
            yield from asked_of_course(source)
        elif source.kind == "evaluation":
            yield from asked_of_evaluation(source)
    answered = {run.path for source in sources if source.kind == "course" for run in source.runs}
    for run in runs:
        if run.online or run.path not in answered:
            yield from asked_of_run(run)


def asked_of_course(source: Source) -> Iterator[tuple[str, str, str]]:
    """Whether each method reaches its threshold, and the reward model its own."""
    reward = reward_model_of(source.figures)
    if number(reward.get("pair_accuracy")) != DASH:
        answer = f"{rate(reward, 'pair_accuracy', 'ci95')}{against_threshold(reward)}"
        yield "How often does the reward model rank a held-out pair right?", answer, "Results"
    for name, row in methods_of(source.figures).items():
        opponent, key, interval = AGAINST[threshold_target(name, row)]
        if name != "base" and number(row.get(key)) != DASH:
            question = f"Does {display_name(name)} answer held-out prompts better than {opponent}?"
            yield question, f"{better(row, key, interval)}{against_threshold(row)}", "Results"


def asked_of_evaluation(source: Source) -> Iterator[tuple[str, str, str]]:
    """Whether each policy beats the baseline."""
    baseline = display_name(str(source.figures.get("baseline") or "base"))
    for name, row in source.figures["policies"].items():
        if number(row.get("win_rate_vs_base")) != DASH:
            question = f"Does {display_name(name)} answer held-out prompts better than {baseline}?"
            yield question, better(row, "win_rate_vs_base", "ci95"), "Results"


def asked_of_run(run: Run) -> Iterator[tuple[str, str, str]]:
    """What the closing evaluation of a single run says."""
    known = run.finished or {}
    if run.algo == "sft" and number(known.get("eval_perplexity")) != DASH:
        yield (f"How likely does {run.name} find held-out answers?",
               f"perplexity {number(known['eval_perplexity'])}", "Curves")  # fmt: skip
    accuracy = known.get("eval_pair_accuracy", known.get("eval_accuracy"))
    if run.algo in ("reward_model", "dpo", "ipo", "aot") and number(accuracy) != DASH:
        yield (f"How often does {run.name} put the chosen answer of a held-out pair first?",
               f"{number(accuracy)} of the pairs (0.5 is chance)", "Curves")  # fmt: skip
    rewards = run.metrics.get("eval_reward")
    if run.online and rewards is not None and len(rewards.values) > 1:
        golds = run.metrics.get("gold")
        judged = golds is not None and len(golds.values) > 1
        also = f"; the held-out judge: {golds.values[0]:.2f} → {golds.values[-1]:.2f}" if judged else ""
        yield (f"Does {run.name} raise the reward of held-out answers, and does a judge agree?",
               f"reward {rewards.values[0]:.2f} → {rewards.values[-1]:.2f}{also or '; no judge was asked'}",
               "Reward hacking")  # fmt: skip


def better(row: Mapping[str, Any], key: str, interval: str) -> str:
    """A rate in words: yes and no only where the interval leaves a half out."""
    low, high = interval_of(row, interval)
    value = rate(row, key, interval)
    if low > 0.5:
        return f"yes: {value}"
    if high < 0.5:
        return f"no: {value}"
    return f"not shown: {value}"


def against_threshold(row: Mapping[str, Any]) -> str:
    """Whether the threshold was reached, where there is one."""
    if number(row.get("threshold")) == DASH:
        return ""
    return f"; threshold {number(row['threshold'])} {'reached' if row.get('passed') else 'missed'}"


# ---------------------------------------------------------------------- head
def tiles(sources: Sequence[Source]) -> list[Tile]:
    """The main figure of every method."""
    found = []
    for source in sources:
        if source.kind == "evaluation":
            rows, on = source.figures["policies"], str(source.figures.get("baseline") or "base")
            for name, row in rows.items():
                if number(row.get("win_rate_vs_base")) != DASH:
                    found.append(
                        Tile(display_name(name), number(row["win_rate_vs_base"]), f"win rate vs {on}")
                    )
        elif source.kind == "course":
            found += course_tiles(source.figures)
    return found


def course_tiles(course: Mapping[str, Any]) -> list[Tile]:
    """Reward model and methods, with their thresholds."""
    reward = reward_model_of(course)
    rows: list[tuple[str, Mapping[str, Any], str, str]] = []
    rows += [("reward model", reward, "pair_accuracy", "pair accuracy")] if reward else []
    for name, row in methods_of(course).items():
        opponent, key, _ = AGAINST[threshold_target(name, row)]
        if name != "base":
            rows.append((display_name(name), row, key, f"win rate vs {opponent}"))
    found = []
    for name, row, key, what in rows:
        if number(row.get(key)) != DASH:
            goal = f", needs {number(row['threshold'])}" if number(row.get("threshold")) != DASH else ""
            mark = {"passed": " ✓", "missed": " ✗"}.get(verdict(row.get("passed")), "")
            found.append(Tile(name, number(row[key]) + mark, what + goal, verdict(row.get("passed"))))
    return found


# ---------------------------------------------------------------------- tables and figures
def results(sources: Sequence[Source]) -> list[Block]:
    """Tables with intervals and the figures that go with them."""
    blocks: list[Block] = []
    for source in sources:
        if source.kind == "course":
            blocks += [Heading(f"Course run {source.path.name}"), *course_results(source.figures)]
        elif source.kind == "evaluation":
            blocks += [Heading(f"Evaluation {source.path.name}"), *evaluation_results(source)]
    return blocks or [Text("Policies have not been compared: add an evaluation (evaluate --output_dir DIR).")]


def course_results(course: Mapping[str, Any]) -> list[Block]:
    """The closing table, with the result first, where a phone shows it."""
    header, rows = result_rows(course)
    header, *rows = [[row[0], row[-1], row[-2], *row[1:-2]] for row in (header, *rows)]
    methods = methods_of(course)
    blocks: list[Block] = [Text(summary_line(course)), Table(header, rows)]
    blocks += [Text(line) for line in (reward_model_line(course), judge_line(course)) if line]
    blocks.append(Text(READING, soft=True))
    blocks += [
        picture(draw(methods)) for draw in (plots.win_rate_bars, plots.hhh_bars, plots.mean_tokens_bars)
    ]
    reward = reward_model_of(course)
    blocks.append(
        picture(plots.reward_histogram(reward.get("chosen_rewards"), reward.get("rejected_rewards")))
    )
    return sorted_pictures(blocks) + families(methods)


def sorted_pictures(blocks: list[Block]) -> list[Block]:
    """Figures together, and the reasons of those that were left out after them."""
    named = [block for block in blocks if type(block).__name__ == "Picture"]
    start = next((place for place, block in enumerate(blocks) if block in named), len(blocks))
    return [*blocks[:start], *named, *(block for block in blocks[start:] if block not in named)]


def families(methods: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """Mean gold score by family of prompts and method."""
    scored = {
        name: row["by_family"] for name, row in methods.items() if isinstance(row.get("by_family"), Mapping)
    }
    names = sorted({family for table in scored.values() for family in table})
    if not names:
        return []
    rows = [
        [name.replace("_", " "), *(number((table.get(name) or {}).get("total")) for table in scored.values())]
        for name in names
    ]
    return [Heading("Mean score, 0 to 1, by family of prompts"),
            Table(["family", *map(display_name, scored)], rows)]  # fmt: skip


def judge_line(figures: Mapping[str, Any]) -> str:
    """Who judged, and how far that can be believed."""
    name = figures.get("judge")
    name = name.get("name") if isinstance(name, Mapping) else name
    if not name:
        return "No judge compared the answers."
    proxy = figures.get("judge_is_proxy") or figures.get("is_proxy")
    warning = " It is a proxy: methods trained against it, or one like it, look better than they are."
    return f"Judge: {name}.{warning if proxy else ''}"


def evaluation_results(source: Source) -> list[Block]:
    """The policies' table, the differences between them, and the figures."""
    figures = source.figures
    header, rows = table_rows(figures["policies"])
    baseline = display_name(str(figures.get("baseline") or "base"))
    blocks: list[Block] = [
        Text(f"{figures.get('prompts') or 'Some'} prompts, baseline {baseline}. {judge_line(figures)}"),
        Table(header, [[display_name(row[0]), *row[1:]] for row in rows]),
        Text(READING, soft=True),
    ]  # fmt: skip
    gaps = [gap for gap in figures.get("differences") or () if isinstance(gap, Mapping)]
    if gaps:
        cells = [[str(gap.get("first")), str(gap.get("second")), rate(gap, "value", "ci95")] for gap in gaps]
        blocks += [Heading("Win rates of two policies, subtracted prompt by prompt"),
                   Table(["first", "second", "difference"], cells)]  # fmt: skip
    omitted = figures.get("omitted")
    if isinstance(omitted, Mapping):
        blocks += [Text(f"{what} is left out: {reason}.", soft=True) for what, reason in omitted.items()]
    drawn = evaluation_figures(figures, rewards_in(source))
    return blocks + sorted_pictures([picture(figure) for figure in drawn.values()])


def rewards_in(source: Source) -> dict[str, list[float]]:
    """Policy → rewards of its answers, as far as the evaluation recorded them."""
    found = {}
    for name in source.figures["policies"]:
        try:
            rows = read_jsonl(source.path / "responses" / f"{name}.jsonl")
        except CourseError:
            continue
        values = [number_or_nan(row.get("reward")) for row in rows if row.get("reward") is not None]
        if values:
            found[name] = values
    return found
