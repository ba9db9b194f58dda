"""Training in two processes is training in one with a batch as large: losses, weights, files, resuming."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.models import processes
from helpers.training.configs import OnlineConfig, PreferenceConfig, RewardConfig, SFTConfig
from helpers.training.online import train_online
from helpers.training.preference import train_preference
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft
from tests.support import adapter_weights, assert_equal_weights, metric_rows

pytestmark = pytest.mark.slow
# 24 rows in batches of 5 × 2: the last batch of an epoch has 4, one micro-batch for two processes.
RUNS: dict[str, tuple[str, type, Any, dict[str, Any]]] = {
    "sft": ("sft", SFTConfig, train_sft, {}),
    "reward_model": ("reward_model", RewardConfig, train_reward_model, {}),
    "dpo": ("preference", PreferenceConfig, train_preference, {"pair_weights": "avg_preference_strength"}),
    "aot": ("preference", PreferenceConfig, train_preference, {"algo": "aot"}),
}
COMMON = {
    "max_steps": 5,
    "save_steps": 2,
    "eval_steps": 3,
    "per_device_train_batch_size": 5,
    "lora_alpha": 16,
}
TOLERANCE = 1e-5


def launch(words: list[str], root: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Start two processes on the loopback interface."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *words],
        cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


# --multi_gpu is what makes Accelerate start several processes, on CPUs too; see `check_launcher`.
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")  # fmt: skip
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@pytest.fixture(scope="module")
def pairs(
    pocket: SimpleNamespace, make_settings: Any, tmp_path_factory: pytest.TempPathFactory, root: Path
) -> Iterator[dict[str, tuple[Path, Path]]]:
    """name → (run of one process, run of two)."""
    place = tmp_path_factory.mktemp("pairs")
    work, found = [], {}
    for name, (key, kind, train, changes) in RUNS.items():
        alone = make_settings(place, kind, f"{name}_1", **COMMON, **changes, gradient_accumulation_steps=2)
        both = make_settings(place, kind, f"{name}_2", **COMMON, **changes, gradient_accumulation_steps=1)
        train(alone, answers)
        work.append({"kind": key, "settings": vars(both)})
        found[name] = (Path(alone.output_dir), Path(both.output_dir))
    torn = make_settings(place, PreferenceConfig, "torn", **COMMON, **RUNS["dpo"][3])
    work.append({"kind": "preference", "settings": vars(torn), "stop_at_step": 3})
    found["torn"] = (Path(torn.output_dir), Path(torn.output_dir))
    (place / "runs.json").write_text(json.dumps(work), encoding="utf-8")
    launch(["tests/training/work_of_two.py", str(place / "runs.json")], root, *ACCELERATE)
    yield found


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_weights_are_those_of_one_process(pairs: dict[str, tuple[Path, Path]], name: str) -> None:
    alone, both = pairs[name]
    assert_equal_weights(adapter_weights(alone / "final"), adapter_weights(both / "final"), atol=TOLERANCE)
    for one, two in zip(metric_rows(alone), metric_rows(both), strict=True):
        assert one.keys() == two.keys()
        for column in one:
            assert one[column] == two[column] or float(one[column]) == pytest.approx(
                float(two[column]), abs=TOLERANCE, rel=1e-4 if column == "grad_norm" else 0
            ), column


def test_one_process_writes(pairs: dict[str, tuple[Path, Path]]) -> None:
    """No row or sample twice, the same files, and no lock or draft left behind."""
    for name in RUNS:
        alone, both = pairs[name]
        files = [{str(p.relative_to(place)) for p in place.rglob("*")} for place in (alone, both)]
        states = {str(Path("checkpoints") / f"step_{n:06d}" / "rng_state") for n in (2, 4, 5)}
        assert files[1] - files[0] == {f"{state}_{rank}.pth" for state in states for rank in (0, 1)}
        assert files[0] - files[1] == {f"{state}.pth" for state in states}
        if (alone / "samples.jsonl").exists():
            assert (alone / "samples.jsonl").read_text() == (both / "samples.jsonl").read_text()
    assert json.loads((pairs["dpo"][1] / "config.json").read_text())["processes"] == 2


def test_the_reference_is_computed_once(pairs: dict[str, tuple[Path, Path]]) -> None:
    alone, both = pairs["dpo"]
    caches = [sorted(p.name for p in (place / "reference").iterdir()) for place in (alone, both)]
    assert caches[0] == caches[1]


def test_a_run_of_two_goes_on_where_it_was_broken_off(
    pairs: dict[str, tuple[Path, Path]], root: Path
) -> None:
    """The command line under torchrun, from the checkpoint of step 2 of a run that stopped at step 3."""
    torn, whole = pairs["torn"][0], pairs["dpo"][1]
    config = json.loads((torn / "config.json").read_text())
    assert not (torn / "finished.json").exists() and not (torn / "run.lock").exists()
    words = ["-m", "helpers", "train", "--algo", "dpo"]
    skipped = {"algo", "processes", "resume", "overwrite"}
    for name, value in config.items():
        if name not in skipped and "." not in name and value is not None:
            words += [f"--{name}", str(value)]
    done = launch(words, root, *TORCHRUN)
    assert json.loads(done.stdout)["steps"] == 5, "process 0 alone prints the result"
    assert_equal_weights(adapter_weights(whole / "final"), adapter_weights(torn / "final"))
    assert metric_rows(whole) == metric_rows(torn)


def test_the_online_trainer_says_that_it_is_one_process(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(CourseError, match="one process, and 2 were started: leave out accelerate launch"):
        train_online(settings(OnlineConfig), answers)


def test_a_launcher_that_started_one_process_of_two_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --cpu --num_processes 2` without MPI starts one, and says nothing."""
    processes.check_launcher()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(CourseError, match="--multi_gpu in place of --cpu"):
        processes.check_launcher()


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clusters set WORLD_SIZE for every job; it takes a rank to be one of several."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.delenv("RANK", raising=False)
    assert (processes.count(), processes.rank(), processes.is_main()) == (1, 0, True)
    assert processes.once(lambda: 3) == 3 and processes.gather(5) == [5]
