"""Makes the recorded runs that the detectors of reward hacking are tested on:

    python -m tests.course.record_runs DIRECTORY_FOR_THE_RUNS [NAME …]

Every recording is a real run on the bundled world, cut down to the columns and entries the detectors read.
The healthy ones have the course's own settings, the hacked ones no pull to the reference and a learning rate
three times as large; "long" also pays for length.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import solutions.answers as answers
from helpers.course.held_out import gold_verdicts
from helpers.files import find_data
from helpers.models.loading import load_base
from helpers.models.profiles import pick_profile
from helpers.models.reward_model import RewardModel
from helpers.quiet import quiet_libraries
from helpers.text.groups import Group
from helpers.training.configs import OnlineConfig
from helpers.training.online import train_online
from helpers.training.ppo import train_ppo
from helpers.training.ppo_config import PPOConfig
from helpers.training.run_rows import read_metric_rows, read_sample_rows

RECORDINGS = Path(__file__).parent / "recordings"
COLUMNS = ("step", "reward", "reward_std", "kl", "tokens", "loss", "eval_reward", "gold")
ENTRIES = ("step", "row_id", "response", "reward", "gold")
ADAPTERS = Path(find_data("data/tiny")) / "adapters"
SFT = {"init_adapter": str(ADAPTERS / "sft")}
HACKED: dict[str, Any] = {"learning_rate": 3e-3, "kl_coef": 0.0, "max_steps": 60}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"healthy_grpo_{seed}": ("grpo", {"seed": seed}) for seed in (0, 1, 2)},
    **{f"healthy_dr_grpo_{seed}": ("dr_grpo", {"seed": seed}) for seed in (0, 1)},
    **{f"healthy_gspo_{seed}": ("gspo", {"seed": seed}) for seed in (1, 2)},
    **{f"healthy_ppo_{seed}": ("ppo", {"seed": seed, **SFT}) for seed in (0, 1, 2)},
    **{f"hacked_grpo_{seed}": ("grpo", {"seed": seed, **HACKED}) for seed in (0, 1, 2)},
    "hacked_dr_grpo_0": ("dr_grpo", {"seed": 0, **HACKED}),
    "hacked_gspo_0": ("gspo", {"seed": 0, **HACKED}),
    "hacked_ppo_0": ("ppo", {"seed": 0, **HACKED}),
    "hacked_long_0": ("grpo", {"seed": 0, **HACKED, "learning_rate": 1e-3}),
}
PER_TOKEN = 0.2


class Long:
    """The bundled reward model, plus something for every token."""

    def __init__(self) -> None:
        base = load_base(pick_profile("tiny").model_name)
        self.model = RewardModel.load(ADAPTERS / "reward", base, answers.last_token_index)

    def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
        """A reward that length can buy."""
        scores = self.model.score_groups(groups, batch_size=batch_size)
        return [
            [score + PER_TOKEN * len(ids) for score, ids in zip(row, group.responses, strict=True)]
            for row, group in zip(scores, groups, strict=True)
        ]


def record(name: str, place: Path) -> None:
    """Train, and keep what the detectors read."""
    algo, settings = RUNS[name]
    common = {"output_dir": str(place / name), "profile": "tiny", "eval_samples": 30, "eval_steps": 5}
    common |= {"reward_model": str(ADAPTERS / "reward"), "save_steps": 0, "algo": algo}
    kind: Any = PPOConfig if algo == "ppo" else OnlineConfig
    train: Any = train_ppo if algo == "ppo" else train_online
    scorer = Long() if "long" in name else None
    run = train(kind(**{**common, **settings}), answers, scorer=scorer, held_out=gold_verdicts).run_dir
    target = RECORDINGS / name
    target.mkdir(parents=True, exist_ok=True)
    kept = {"algo": algo, **{key: value for key, value in settings.items() if key != "init_adapter"}}
    (target / "config.json").write_text(json.dumps(kept) + "\n")
    rows = read_metric_rows(run / "metrics.csv")[1]
    with (target / "metrics.csv").open("w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([short(row.get(column, "")) for column in COLUMNS] for row in rows)
    samples = [{key: row[key] for key in ENTRIES} for row in read_sample_rows(run / "samples.jsonl")]
    lines = [json.dumps({**row, "reward": round(row["reward"], 3)}, separators=(",", ":")) for row in samples]
    (target / "samples.jsonl").write_text("\n".join(lines) + "\n")


def short(cell: str | None) -> str:
    """Five digits of a number."""
    return f"{float(cell):.5g}" if cell else ""


if __name__ == "__main__":
    quiet_libraries()
    for wanted in sys.argv[2:] or RUNS:
        record(wanted, Path(sys.argv[1]))
