"""Preference pairs out of a hacked run: what its reward model got wrong, for the next one to learn from.

The hacked policy and the one it started from answer training prompts. Where the reward model prefers the
hacked answer and the judge the other, the pair is kept, with the judge's choice. Added to the training pairs
they close the hole that was found; the next policy may find another (Gao et al. 2022, arXiv 2210.10760,
section 5, on why one round is not the end).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.course.held_out import gold_verdicts
from helpers.errors import CourseError
from helpers.files import find_data, read_json, read_jsonl, write_jsonl
from helpers.guard import guarded
from helpers.judging.judge import Comparison, Judge
from helpers.judging.measure import Role
from helpers.judging.registry import make_judge
from helpers.models import loading
from helpers.models.reward_model import RewardModel
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.chat import ChatEncoder
from helpers.text.datasets import Example, load_examples
from helpers.text.groups import Group
from helpers.training.run_dir import CONFIG
from helpers.training.setup import pick_split

CLEAR = 0.1  # of the gold scale: closer answers are no lesson
STRENGTH, QUALITY = 3.0, 3.0  # the middle of the annotators' scales from 1 to 5


@dataclass(frozen=True)
class Mined:
    """The pairs, and how many were looked at."""

    rows: list[dict[str, Any]]
    compared: int

    @property
    def share(self) -> float:
        """How often reward model and judge disagreed."""
        return len(self.rows) / max(self.compared, 1)


def mine_pairs(
    run: str | Path,
    answers: Any,
    *,
    prompts: int = 400,
    samples: int = 2,
    judge: str | None = None,
    seed: int = 0,
) -> Mined:
    """Pairs that the reward model of a finished online run ranks the wrong way round.

    Args:
        answers: namespace with `last_token_index`.
        prompts, samples: training prompts, and sampled answers to each from either policy.
        judge: decides which answer is better; None: gold, where the prompts have its facts.

    Raises:
        CourseError: if the run is not an online one with a reward model, or did not finish.
    """
    config = run_config(Path(run))
    source = find_data(config["dataset_name"])
    split = pick_split(source, "prompts", config.get("train_split"), evaluation=False)
    examples = load_examples(source, split=split, kind="prompts", limit=prompts, seed=seed).examples
    hacked, start, rewards = answered(Path(run), config, guarded(answers), examples, samples, seed)
    triples = [
        (example, bad, good)
        for example, row, bads, goods in zip(examples, rewards, hacked, start, strict=True)
        for bad, good, (high, low) in zip(bads, goods, row, strict=True)
        if high > low and bad.text.strip() and good.text.strip() and bad.text != good.text
    ]
    wrong = mistaken(triples, judge)
    unlike = {(example.row_id, bad.text): (example, bad, good) for example, bad, good in wrong}
    rows = [pair_row(number, *triple) for number, triple in enumerate(unlike.values())]
    return Mined(rows, len(examples) * samples)


def run_config(run: Path) -> dict[str, Any]:
    """The settings of a finished online run."""
    config = dict(read_json(run / CONFIG)) if (run / CONFIG).is_file() else {}
    if not config.get("reward_model") or not (run / "final" / "adapter").is_dir():
        raise CourseError(
            f"{run} is no finished online run with a reward model: give the directory of a run of"
            " `train --algo grpo`, or of another online method"
        )
    return config


Answers = list[list[Completion]]


def answered(
    run: Path, config: dict[str, Any], answers: Any, examples: Sequence[Example], samples: int, seed: int
) -> tuple[Answers, Answers, list[list[tuple[float, float]]]]:
    """Sampled answers of the run's policy and of the one it began as, and both rewards of each pair."""
    encoder = ChatEncoder(loading.load_tokenizer(config["model_name"]))
    model: Any = loading.load_base(config["model_name"], quantization=config["quantization"])
    if config.get("init_adapter"):
        model = loading.load_adapter(model, config["init_adapter"], "start")
    model = loading.load_adapter(model, run / "final" / "adapter", "policy")
    judge = RewardModel.load(
        config["reward_model"],
        model,
        answers.last_token_index,
        pad_id=encoder.pad_id,
        layout=config["layout"],
    )
    ids = [encoder.encode_prompt(e.messages, config["max_prompt_tokens"]) for e in examples]
    how = Sampling(max_new_tokens=config["max_new_tokens"])
    drawn = []
    for place, adapter in enumerate(("policy", "start" if config.get("init_adapter") else None)):
        role = Role(model, adapter)
        with role.active():
            drawn.append(generate(model, encoder, ids, how, k=samples, seed=2 * seed + place))
    groups = [
        Group(prompt, [answer.ids for pair in zip(bads, goods, strict=True) for answer in pair])
        for prompt, bads, goods in zip(ids, *drawn, strict=True)
    ]
    scores = judge.score_groups(groups)
    return drawn[0], drawn[1], [list(zip(row[::2], row[1::2], strict=True)) for row in scores]


Triple = tuple[Example, Completion, Completion]


def mistaken(triples: Sequence[Triple], judge: str | None) -> list[Triple]:
    """Those whose second answer is the better one."""
    examples = [example for example, _, _ in triples]
    bads, goods = [bad.text for _, bad, _ in triples], [good.text for _, _, good in triples]
    if judge in (None, "gold"):
        verdicts = gold_verdicts(examples)
        if triples and verdicts is None:
            raise CourseError("these prompts have no gold facts: name who is to decide with --judge")
        scored = zip(triples, verdicts(bads), verdicts(goods), strict=True) if verdicts else ()
        return [triple for triple, bad, good in scored if good - bad > CLEAR]
    preferred = prefers_second(make_judge(judge), examples, bads, goods)
    return [triple for triple, second in zip(triples, preferred, strict=True) if second]


def prefers_second(
    judge: Judge, examples: Sequence[Example], first: Sequence[str], second: Sequence[str]
) -> list[bool]:
    """Where a judge finds the second answer better in both orders."""
    rows = list(zip(examples, first, second, strict=True))
    one = judge.compare([Comparison(*row) for row in rows])
    two = judge.compare([Comparison(example, b, a) for example, a, b in rows])
    return [(x.winner, y.winner) == ("B", "A") for x, y in zip(one, two, strict=True)]


def pair_row(number: int, example: Example, bad: Completion, good: Completion) -> dict[str, Any]:
    """One row in the schema of the training pairs."""
    facts = example.metadata.get("metadata")
    return {
        "avg_confidence": 1.0,
        "avg_preference_strength": STRENGTH,
        "avg_training_quality": QUALITY,
        "chosen_text": good.text,
        "judge_model": "hacked run",
        "prompt_messages": list(example.messages),
        "prompt_text": example.messages[-1]["content"],
        "rejected_text": bad.text,
        "row_id": f"hacked-{number:04d}",
        "score": STRENGTH,
        **({"metadata": facts} if facts else {}),
    }


def write_mix(
    rows: Sequence[dict[str, Any]], source: str, target: Path, *, copies: int = 1, keep: int | None = None
) -> Path:
    """A data set directory: the training pairs of `source` with `rows` added, and its held-out pairs.

    Args:
        copies: how often each added pair is given; few pairs among thousands are easily overheard.
        keep: training pairs of `source` at most, the first ones.
    """
    place = Path(find_data(source))
    if not (place / "train_prefs.jsonl").is_file():
        raise CourseError(f"{source} has no train_prefs.jsonl to add pairs to")
    more = [{**row, "row_id": f"{row['row_id']}.{copy}"} for copy in range(copies) for row in rows]
    write_jsonl(target / "train_prefs.jsonl", [*read_jsonl(place / "train_prefs.jsonl")[:keep], *more])
    for split in ("dev_prefs", "test_prefs"):
        if (place / f"{split}.jsonl").is_file():
            write_jsonl(target / f"{split}.jsonl", read_jsonl(place / f"{split}.jsonl"))
    return target
