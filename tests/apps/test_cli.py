"""Careless learners and flaky machines at the command line: one sentence, exit status 2, nothing lost."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.apps import cli
from tests.support import adapter_weights, assert_equal_weights


def complains(result: Any, *words: str) -> bool:
    """The command ended with one error on stderr that holds `words`, and no traceback."""
    assert result.status == 2 and "Traceback" not in result.err, result
    message = result.err[result.err.rindex("error: ") :]
    assert all(word in message for word in words), message
    return True


# ------------------------------------------------------------------ flags
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("learning_rate", "nan"),
        ("learning_rate", "inf"),
        ("learning_rate", "1e400"),
        ("learning_rate", "fast"),
        ("beta", "inf"),
        ("weight_decay", "inf"),
        ("max_grad_norm", "nan"),
        ("seed", "-1"),
        ("seed", "4294967296"),
        ("seed", "99999999999999999999"),
        ("max_steps", "0"),
        ("max_steps", "-2"),
        ("train_limit", "0"),
        ("eval_limit", "0"),
        ("eval_limit", "-3"),
        ("eval_holdout", "-1"),
        ("eval_holdout", "24"),
        ("eval_samples", "-1"),
        ("save_total_limit", "0"),
        ("warmup_ratio", "1"),
        ("warmup_ratio", "2"),
        ("lora_dropout", "1"),
        ("num_train_epochs", "inf"),
        ("lr_scheduler_type", "foo"),
        ("lr_scheduler_type", "warmup_stable_decay"),
        ("lr_scheduler_type", "reduce_lr_on_plateau"),
        ("layout", "stacked"),
        ("quantization", "int3"),
        ("backend", "jax"),
        ("profile", "huge"),
        ("train_split", "typo"),
        ("init_adapter", "/nowhere"),
        ("dataset_name", "x" * 5000),
    ],
)
def test_a_wrong_value_is_named(train: Any, flag: str, value: str) -> None:
    named = {"train_split": "typo", "init_adapter": "/nowhere", "dataset_name": "xxx"}.get(flag, f"--{flag}")
    assert complains(train("dpo", f"--{flag}", value), named)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max_steps", "-1"),
        ("clip_eps_high", "-1"),
        ("clip_eps_high", "nan"),
        ("kl_coef", "inf"),
        ("temperature", "inf"),
        ("generation_batch_size", "0"),
    ],
)
def test_a_wrong_value_of_an_online_run_is_named(train: Any, flag: str, value: str) -> None:
    assert complains(train("grpo", f"--{flag}", value), f"--{flag}")


@pytest.mark.parametrize(
    "words",
    [["--init_adapter", ""], ["--dataset_name="], ["--beta", " "], ["--output_dir", ""], ["--answers", ""]],
)
def test_an_unset_shell_variable_is_no_value(train: Any, words: list[str]) -> None:
    assert complains(train("dpo", *words), f"{words[0].rstrip('=')} is empty")


def test_null_bytes_are_refused(helpers: Any) -> None:
    assert complains(helpers("grade", "x\0y"), "null byte")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "--limit", "0"], "--limit"),
        (["evaluate", "--max_new_tokens", "0"], "--max_new_tokens"),
        (["evaluate", "--seed", "-1"], "--seed"),
        (["evaluate", "--adapters", ","], "--adapters"),
        (["submit", "policy", "--batch_size", "0"], "--batch_size"),
        (["submit", "policy", "--method", "dpo", "--adapter", "/nowhere"], "/nowhere"),
        (["submit", "policy", "--method", "typo", "--adapter", "/nowhere"], "typo"),
        (["submit", "reward_model", "--reward_model", "/nowhere"], "/nowhere"),
        (["bench", "--pairs", "0"], "--pairs"),
        (["data", "report", "data/tiny", "--kind", "typo"], "--kind"),
        (["data", "report", "data/tiny", "--format", "typo"], "--format"),
        (["data", "report", "data/tiny", "--limit", "3"], "--limit"),
        (["bench", "--only", "dpo", "--real_data", "/nowhere"], "/nowhere"),
        (["course", "--methods", ","], "--methods"),
        (["course", "--max_steps", "0"], "--max_steps"),
        (["course", "--max_steps", "-1"], "--max_steps"),
        (["course", "--seed", "-1"], "--seed"),
        (["course", "--eval_limit", "0"], "--eval_limit"),
        (["grade", "/nowhere"], "/nowhere does not exist"),
    ],
)
def test_every_command_names_what_is_wrong(helpers: Any, words: list[str], said: str) -> None:
    assert complains(helpers(*words), said)


def test_a_wrong_flag_does_not_block_the_right_one(train: Any) -> None:
    assert complains(train("dpo", "--train_split", "typo"), "typo")
    assert train("dpo").status == 0


def test_a_response_budget_beyond_the_context_is_refused_before_training(train: Any, tmp_path: Path) -> None:
    assert complains(train("dpo", "--max_new_tokens", "100000"), "--max_new_tokens")
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize("field", ["typo", "prompt_text", "note", "maybe"])
def test_a_margin_field_holds_numbers(train: Any, pocket: Any, tmp_path: Path, field: str) -> None:
    rows = (Path(pocket.data) / "train_prefs.jsonl").read_text().splitlines()
    (tmp_path / "data.jsonl").write_text(
        "".join(
            json.dumps({**json.loads(row), "note": "strong", "maybe": float("nan")}) + "\n" for row in rows
        )
    )
    result = train("reward_model", "--dataset_name", str(tmp_path / "data.jsonl"), "--margin_field", field)
    assert complains(result, f"--margin_field {field}", "avg_preference_strength")


# ------------------------------------------------------------------ places
@pytest.mark.parametrize("command", ["train", "course", "grade", "evaluate"])
def test_a_place_that_cannot_be_written_is_named(
    helpers: Any, train: Any, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "below")
    if command == "train":
        result = train("dpo", "--output_dir", place)
    elif command == "course":
        result = helpers("course", "--output_dir", place)
    elif command == "grade":
        result = helpers("grade", str(tmp_path), "--output", place)
    else:
        result = helpers("evaluate", "--limit", "1", "--max_new_tokens", "2", "--output", place)
    assert complains(result, place)


def test_a_missing_submission_leaves_no_results(helpers: Any, tmp_path: Path) -> None:
    assert complains(helpers("grade", str(tmp_path / "typo")), "typo does not exist")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("harm", ["cut", "text", "gone"])
@pytest.mark.parametrize("part", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_damaged_adapter_is_named(train: Any, tmp_path: Path, part: str, harm: str) -> None:
    assert train("sft").status == 0
    file = tmp_path / "run" / "final" / "adapter" / part
    kept = file.read_bytes()
    file.write_bytes({"cut": kept[: len(kept) // 2], "text": b"[]", "gone": b""}[harm])
    if harm == "gone":
        file.unlink()
    result = train("dpo", "--output_dir", str(tmp_path / "dpo"), "--init_adapter", str(file.parent))
    assert complains(result, part)


# ------------------------------------------------------------------ flaky machines
def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def torch_full(*_: Any, **__: Any) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")


@pytest.mark.parametrize("algo", ["sft", "dpo"])
@pytest.mark.parametrize(("where", "harm"), [("os.replace", full), ("torch.save", torch_full)])
def test_a_full_disk_is_said_and_nothing_is_lost(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, where: str, harm: Any
) -> None:
    assert train(algo, "--output_dir", str(tmp_path / "whole")).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(where, harm)
        assert complains(train(algo), "run", "disk is full")
    assert train(algo).status == 0
    assert_equal_weights(*(adapter_weights(tmp_path / name / "final") for name in ("whole", "run")))


def test_ctrl_c_says_how_to_go_on(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.AdamW.step
    assert train("dpo", "--output_dir", str(tmp_path / "whole")).status == 0

    def interrupt(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (tmp_path / "run" / "checkpoints" / "step_000001").exists():
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", interrupt)
        result = train("dpo")
    assert result.status == 130 and f"{tmp_path / 'run'} keeps everything" in result.err
    assert train("dpo").status == 0
    assert_equal_weights(*(adapter_weights(tmp_path / name / "final") for name in ("whole", "run")))


def test_a_result_that_was_deleted_is_made_again(train: Any, tmp_path: Path) -> None:
    assert train("dpo").status == 0
    again = train("dpo")
    assert again.status == 0 and "finished already" in again.err
    weights = tmp_path / "run" / "final" / "adapter" / "adapter_model.safetensors"
    for file in sorted((tmp_path / "run" / "final").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    assert train("dpo").status == 0 and weights.exists()


def test_a_reader_that_goes_away_is_no_error(root: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "helpers", "data", "report", "data/tiny", "--split", "test_gen"]
    done = subprocess.run(command, cwd=root, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0 and not done.stderr


def test_a_terminal_without_utf8_shows_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as done:
        cli.main(["train", "--algo", "sft", "--help"])
    assert done.value.code == 0
    assert cli.main(["train", "--algo", "süß"]) == 2
    err.flush()
    assert b"s\\xfc\\xdf" in err.buffer.getvalue()  # type: ignore[attr-defined]


# ------------------------------------------------------------------ learners' functions
def test_a_learners_mistake_is_told_with_function_and_line(train: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def dpo_loss(pc, pr, rc, rr, beta):\n    return (pc - pr) / 0\n")
    assert complains(train("dpo", "--answers", str(mine)), "dpo_loss returned a float32 tensor of shape (4,)")
    mine.write_text("def dpo_loss(pc, pr, rc, rr, beta):\n    return undefined\n")
    assert complains(train("dpo", "--answers", str(mine)), "dpo_loss raised NameError", f"{mine} line 2")


def test_a_run_by_other_functions_is_not_taken_for_this_one(train: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def dpo_loss(pc, pr, rc, rr, beta):\n    return (pr - pc).mean()\n")
    assert train("dpo", "--answers", str(mine)).status == 0
    assert train("dpo", "--answers", str(mine)).status == 0
    mine.write_text("def dpo_loss(pc, pr, rc, rr, beta):\n    return 2 * (pr - pc).mean()\n")
    assert complains(train("dpo", "--answers", str(mine)), "the answer dpo_loss has changed", "--overwrite")
    assert train("dpo", "--answers", str(mine), "--overwrite", "true").status == 0
