"""What tests/training/test_two_processes.py lets `accelerate launch` start: a list of runs, one by one.

accelerate launch --multi_gpu --num_processes 2 tests/training/work_of_two.py RUNS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import solutions.answers as answers
from helpers.training.configs import PreferenceConfig, RewardConfig, SFTConfig
from helpers.training.preference import train_preference
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft

RUNS = {
    "sft": (SFTConfig, train_sft),
    "reward_model": (RewardConfig, train_reward_model),
    "preference": (PreferenceConfig, train_preference),
}

if __name__ == "__main__":
    for run in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        kind, train = RUNS[run["kind"]]
        train(kind(**run["settings"]), answers, stop_at_step=run.get("stop_at_step"))
