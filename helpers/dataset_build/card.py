"""The data card: what is in the set, where it came from, what was left out and why, what to beware of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 1
CARD = """# A preference data set

Made by `python -m helpers data build`{date}. `manifest.json` holds all figures, settings and hashes.

| file | rows |
|---|---|
{files}

Files of pairs have the fields of the university project's data: `chosen_text` and `rejected_text` are the
best and the worst of the answers in the judge's eyes, `avg_*` the means of its two verdicts. `*_gen` files
hold every prompt, with the chosen answer as reference where there is one; `sft_*` the chosen answers.

## Prompts
From `{source}` (format {format}): {read:,} rows read, {kept:,} prompts kept{not_taken}.

| dropped because | prompts | such as |
|---|---|---|
{dropped}

Personal data: {personal}. Patterns find e-mail addresses, telephone, card and account numbers, Internet
addresses and keys, but no names and no streets. Toxic: {toxic}; that is as good as the source's flags.

## Answers
{authors}
Left out before judging: {left_out}.

## Judge
{judge}. It saw every prompt's answers twice, in opposite orders. Both orders named the same best answer for
{same} of {judged:,} prompts; the best stood first in {first} of its verdicts, where chance gives
{chance}.{proxy}

## Pairs
{pairs:,} pairs; {by_author}. The chosen answer is the longer in {longer:.1%} of them: a judge, or a reward
model trained on its verdicts, may like length for its own sake.

| no pair because | prompts |
|---|---|
{no_pair}

## Splits
By a hash of the prompt's words. Prompts whose 3-word shingles have a Jaccard similarity of {similarity:g} or
more, directly or by a chain, share a split ({clusters:,} clusters).
"""


def describe(manifest: Mapping[str, Any]) -> str:
    """The card as Markdown, from the manifest alone."""
    prompts, pairs, verdicts = manifest["prompts"], manifest["pairs"], manifest["verdicts"]
    settings = manifest["parameters"]
    return CARD.format(
        date=f" on {manifest['date']}" if "date" in manifest else "",
        files="\n".join(f"| `{name}` | {file['rows']:,} |" for name, file in manifest["files"].items()),
        source=manifest["source"]["name"],
        format=prompts["format"],
        read=prompts["read"],
        kept=prompts["kept"],
        not_taken=f"; {prompts['not_taken']:,} more would have passed" if prompts["not_taken"] else "",
        dropped=_drops(prompts),
        personal={"drop": "such prompts are dropped", "mask": "masked", "keep": "kept"}[
            settings["personal_data"]
        ],
        toxic="kept" if settings["keep_toxic"] else "what the source flags is dropped",
        authors=_authors(manifest),
        left_out=_counts(manifest["answers_left_out"]) or "nothing",
        judge=_judge(manifest["judge"]),
        proxy=" A model's opinion, no ground truth." if manifest["judge"]["is_proxy"] else "",
        same=_share(verdicts["same_best_in_both_orders"]),
        judged=verdicts["prompts_judged"],
        first=_share(verdicts["best_is_shown_first"]),
        chance=_share(verdicts["by_chance"]),
        pairs=pairs["kept"],
        by_author="chosen from " + _counts(pairs["chosen_by_author"]),
        longer=pairs["chosen_longer_share"],
        no_pair="\n".join(f"| {reason} | {count:,} |" for reason, count in pairs["dropped"].items())
        or "| – | 0 |",
        similarity=settings["split_similarity"],
        clusters=manifest["clusters"],
    )


def _drops(prompts: Mapping[str, Any]) -> str:
    lines = []
    for reason, count in sorted(prompts["dropped"].items(), key=lambda item: (-item[1], item[0])):
        example = prompts["examples_of_dropped"][reason][0].replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {reason} | {count:,} | {example} |")
    return "\n".join(lines) or "| – | 0 | |"


def _authors(manifest: Mapping[str, Any]) -> str:
    settings = manifest["parameters"]
    lines = [
        f"- `{author['author']}`: {author['answers']:,} answers, {author['truncated']:,} cut off at the limit"
        for author in manifest["authors"]
    ]
    drawn = f"{settings['candidates_per_prompt']} a prompt at temperature {settings['temperatures']}"
    return f"{drawn}, from {', '.join(settings['models'])}.\n\n" + "\n".join(lines) + "\n"


def _judge(judge: Mapping[str, Any]) -> str:
    model = f" with `{judge['model']}`" if judge.get("model") else ""
    return f"`{judge['name']}`{model}"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in values.items())


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
