"""kill -9 in the middle of training: the resumed run ends where the uninterrupted one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import solutions.answers as answers
from helpers.training.configs import OnlineConfig, PreferenceConfig, RewardConfig, SFTConfig
from helpers.training.online import train_online
from helpers.training.ppo import train_ppo
from helpers.training.ppo_config import PPOConfig
from helpers.training.preference import train_preference
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft
from tests.support import adapter_weights, assert_equal_weights, metric_rows
from tests.training.test_online import EvenIds

DPO = """
import json, sys
import solutions.answers as answers
from helpers.training.configs import PreferenceConfig
from helpers.training.preference import train_preference
train_preference(PreferenceConfig(**json.load(open(sys.argv[1]))), answers)
"""
GSPO = """
import json, sys
import solutions.answers as answers
from helpers.training.configs import OnlineConfig
from helpers.training.online import train_online
from tests.training.test_online import EvenIds
train_online(OnlineConfig(**json.load(open(sys.argv[1]))), answers, scorer=EvenIds())
"""
PPO = """
import json, sys
import solutions.answers as answers
from helpers.training.ppo import train_ppo
from helpers.training.ppo_config import PPOConfig
train_ppo(PPOConfig(**json.load(open(sys.argv[1]))), answers)
"""


def run_and_kill(script: str, config: Any, tmp_path: Path, root: Path) -> None:
    """Train in a process of its own and kill it after its first checkpoint."""
    (tmp_path / "config.json").write_text(json.dumps(vars(config)))
    command = [sys.executable, "-c", script, str(tmp_path / "config.json")]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.DEVNULL)
    place, deadline = Path(config.output_dir), time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(place.glob("checkpoints/step_*")):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (place / "finished.json").exists(), "the run ended before it was killed"


def test_a_killed_dpo_run_resumes_bit_for_bit(settings: Any, tmp_path: Path, root: Path) -> None:
    steps = {"max_steps": 60, "save_steps": 4, "eval_steps": 0}
    whole = train_preference(settings(PreferenceConfig, "whole", **steps), answers)
    config = settings(PreferenceConfig, "killed", **steps)
    run_and_kill(DPO, config, tmp_path, root)
    resumed = train_preference(config, answers)  # the same settings: it goes on by itself
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(resumed.final))
    assert metric_rows(whole.run_dir) == metric_rows(resumed.run_dir)


def test_a_killed_gspo_run_resumes_bit_for_bit(settings: Any, tmp_path: Path, root: Path) -> None:
    steps = {"algo": "gspo", "clip_eps": 0.01, "max_steps": 16, "save_steps": 2, "eval_steps": 0}
    whole = train_online(settings(OnlineConfig, "whole", **steps), answers, scorer=EvenIds())
    config = settings(OnlineConfig, "killed", **steps)
    run_and_kill(GSPO, config, tmp_path, root)
    resumed = train_online(config, answers, scorer=EvenIds())
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(resumed.final))
    assert metric_rows(whole.run_dir) == metric_rows(resumed.run_dir)


def test_a_killed_ppo_run_resumes_bit_for_bit(settings: Any, tmp_path: Path, root: Path) -> None:
    """Policy, value, both groups of the optimiser and the adaptive price of drift."""
    sft = train_sft(settings(SFTConfig, "sft", max_steps=2), answers)
    reward = train_reward_model(settings(RewardConfig, "reward", max_steps=2), answers)
    roles = {"reward_model": str(reward.final), "init_adapter": str(sft.final / "adapter")}
    steps = {"max_steps": 16, "save_steps": 2, "eval_steps": 0, "adaptive_kl_target": 0.01, "kl_horizon": 50}
    whole = train_ppo(settings(PPOConfig, "whole", **steps, **roles), answers)
    config = settings(PPOConfig, "killed", **steps, **roles)
    run_and_kill(PPO, config, tmp_path, root)
    resumed = train_ppo(config, answers)
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(resumed.final))
    assert metric_rows(whole.run_dir) == metric_rows(resumed.run_dir)
    values = [run.run_dir / "checkpoints" / "step_000016" / "value" for run in (whole, resumed)]
    assert_equal_weights(*(adapter_weights(place) for place in values))
