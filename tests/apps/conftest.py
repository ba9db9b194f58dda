"""The pocket world of the trainer tests, and the command line called in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.conftest import pocket

__all__ = ["pocket"]

SMALL = {
    "dpo": [],
    "sft": [],
    "reward_model": ["--full_finetune", "false"],
    "grpo": ["--group_size", "2", "--minibatch_size", "4", "--min_new_tokens", "1"],
}


@pytest.fixture
def helpers(capsys: pytest.CaptureFixture[str]) -> Any:
    """`helpers("train", …)`: what `python -m helpers train …` returns and prints."""
    from helpers.apps.cli import main

    def call(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        status = main(list(words))
        printed = capsys.readouterr()
        return SimpleNamespace(status=status, out=printed.out, err=printed.err)

    return call


@pytest.fixture
def train(helpers: Any, pocket: SimpleNamespace, tmp_path: Any) -> Any:
    """`train("dpo", "--beta", "2")`: a run of two steps in `tmp_path`/run, other flags behind it."""

    def call(algo: str, *words: str) -> SimpleNamespace:
        short = "--max_steps 2 --save_steps 1 --eval_steps 0 --eval_samples 2 --eval_limit 4 --lora_r 2 "
        short += "--max_new_tokens 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 1"
        place = ["--profile", "tiny", "--model_name", pocket.model, "--dataset_name", pocket.data]
        run = ["--output_dir", str(tmp_path / "run")]
        return helpers("train", "--algo", algo, *place, *run, *short.split(), *SMALL[algo], *words)

    return call
