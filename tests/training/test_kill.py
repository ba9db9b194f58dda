"""kill -9 in the middle of offline training: the resumed run ends where the uninterrupted one does."""

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
from helpers.training.configs import PreferenceConfig
from helpers.training.preference import train_preference
from tests.support import adapter_weights, assert_equal_weights, metric_rows

SCRIPT = """
import json, sys
import solutions.answers as answers
from helpers.training.configs import PreferenceConfig
from helpers.training.preference import train_preference
train_preference(PreferenceConfig(**json.load(open(sys.argv[1]))), answers)
"""


def test_a_killed_dpo_run_resumes_bit_for_bit(settings: Any, tmp_path: Path, root: Path) -> None:
    steps = {"max_steps": 60, "save_steps": 4, "eval_steps": 0}
    whole = train_preference(settings(PreferenceConfig, "whole", **steps), answers)
    config = settings(PreferenceConfig, "killed", **steps)
    (tmp_path / "config.json").write_text(json.dumps(vars(config)))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "config.json")]
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
    resumed = train_preference(config, answers)  # the same settings: it goes on by itself
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(resumed.final))
    assert metric_rows(whole.run_dir) == metric_rows(resumed.run_dir)
