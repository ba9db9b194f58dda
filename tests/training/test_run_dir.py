"""A run directory keeps what was written, refuses what does not belong together, and survives kill -9."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.errors import CourseError
from helpers.training.run_dir import RunDir, read_metric_rows
from helpers.training.run_lock import ABANDONED_SECONDS

ROOT = Path(__file__).parents[2]


def save(run: RunDir, step: int) -> None:
    with run.save_checkpoint(step) as draft:
        (draft / "weights.txt").write_text(f"weights of {step}")


def steps_of(run: RunDir) -> list[int]:
    return [int(row["step"]) for row in run.read_metrics()[1]]


# ------------------------------------------------------------------ configuration
def test_the_same_configuration_is_the_same_run(tmp_path):
    RunDir(tmp_path / "a").write_config({"lr": 1e-3, "path": Path("x"), "betas": (0.9, 0.99)})
    changed = RunDir(tmp_path / "a").write_config({"lr": 1e-3, "path": Path("x"), "betas": (0.9, 0.99)})
    assert changed == []


def test_another_configuration_is_refused_and_the_message_says_what_to_do(tmp_path):
    run = RunDir(tmp_path)
    run.write_config({"lr": 1e-3, "seed": 0})
    run.log(1, loss=0.5)
    with pytest.raises(CourseError, match=r"lr was 0.001, now 0.002.*--output_dir.*--resume.*--overwrite"):
        RunDir(tmp_path).write_config({"lr": 2e-3, "seed": 0})
    assert RunDir(tmp_path).read_config() == {"lr": 1e-3, "seed": 0}


def test_a_run_that_failed_before_it_began_may_be_started_with_other_settings(tmp_path):
    RunDir(tmp_path).write_config({"dataset_name": "typpo"})
    (tmp_path / "data_report.txt").write_text("nothing usable")
    RunDir(tmp_path).write_config({"dataset_name": "typo"})
    assert RunDir(tmp_path).read_config() == {"dataset_name": "typo"}


def test_resume_takes_another_configuration_and_names_what_changed(tmp_path):
    RunDir(tmp_path).write_config({"max_steps": 10, "resume": False, "output_dir": "runs/x"})
    run = RunDir(tmp_path, resume=True)
    assert run.write_config({"max_steps": 20, "resume": True, "output_dir": "./runs/x"}) == ["max_steps"]
    assert run.read_config()["max_steps"] == 20


def test_files_that_are_no_run_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(CourseError, match="thesis.tex"):
        RunDir(tmp_path).write_config({})


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(CourseError, match="is a file"):
        RunDir(tmp_path / "run")


def test_overwrite_removes_the_run_but_no_other_files(tmp_path):
    with RunDir(tmp_path) as run:
        run.write_config({"lr": 1})
        run.log(3, loss=1.0)
        save(run, 3)
        run.mark_finished({})
    (tmp_path / "notes.log").write_text("mine")
    with RunDir(tmp_path, overwrite=True) as run:
        run.write_config({"lr": 2})
        assert (steps_of(run), run.latest_checkpoint(), run.is_finished) == ([], None, False)
        run.log(1, loss=2.0)
    assert (tmp_path / "notes.log").read_text() == "mine"


# ------------------------------------------------------------------ metrics
def test_columns_may_appear_later(tmp_path):
    run = RunDir(tmp_path)
    run.log(1, loss=0.5)
    run.log(2, loss=0.25, kl=0.125)
    run.log(2, **{"eval/win_rate": 0.75})
    assert (tmp_path / "metrics.csv").read_text() == (
        "step,loss,kl,eval/win_rate\n1,0.5,,\n2,0.25,0.125,\n2,,,0.75\n"
    )


def test_values_keep_their_precision_and_nan_stays_visible(tmp_path):
    torch = pytest.importorskip("torch")
    run = RunDir(tmp_path)
    run.log(1, loss=0.1 + 0.2, bad=float("nan"), nothing=None, tensor=torch.tensor(1.5), note='a "b",\nc')
    _, rows = run.read_metrics()
    assert rows == [
        {
            "step": "1",
            "loss": repr(0.1 + 0.2),
            "bad": "nan",
            "nothing": "",
            "tensor": "1.5",
            "note": 'a "b", c',
        }
    ]


def test_steps_never_fall(tmp_path):
    run = RunDir(tmp_path)
    run.log(5, loss=1.0)
    run.log(5, loss=1.0)
    with pytest.raises(CourseError, match="reaches step 5, so step 4 cannot be logged.*--resume"):
        run.log(4, loss=1.0)
    run.close()
    with pytest.raises(CourseError, match="step 5"):  # also where the rows are an earlier process's
        RunDir(tmp_path).log(1, loss=1.0)


@pytest.mark.parametrize("torn", ["3", "3,0.", "3,0.25,0.1", '3,"x'])
def test_a_torn_last_row_is_ignored_and_then_dropped(tmp_path, torn):
    run = RunDir(tmp_path)
    run.log(1, loss=1.0, kl=0.0)
    run.log(2, loss=0.5, kl=0.1)
    run.close()
    with run.metrics_path.open("a") as stream:
        stream.write(torn)
    again = RunDir(tmp_path)
    assert again.last_step == 2 and steps_of(again) == [1, 2]
    again.log(3, loss=0.25, kl=0.2)
    assert run.metrics_path.read_text() == "step,loss,kl\n1,1.0,0.0\n2,0.5,0.1\n3,0.25,0.2\n"


def test_a_torn_header_and_ragged_rows_are_read_as_far_as_possible(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,lo")
    assert read_metric_rows(path) == ([], [])
    path.write_bytes(b"step,loss,kl\n1,0.5\n\n2,0.4,0.1,9,9\nnot a step,1,2\n\xff\xfe,1\n3,0.3,\x000.2\n")
    _, rows = read_metric_rows(path)
    assert rows == [
        {"step": "1", "loss": "0.5"},
        {"step": "2", "loss": "0.4", "kl": "0.1"},
        {"step": "3", "loss": "0.3", "kl": "0.2"},
    ]


def test_followers_hear_every_row(tmp_path):
    run, heard = RunDir(tmp_path), []
    run.follow(lambda step, row: heard.append((step, row["loss"])))
    run.log(1, loss=0.5)
    run.log(2, loss=0.25)
    assert heard == [(1, 0.5), (2, 0.25)]


# ------------------------------------------------------------------ samples
def test_samples_carry_their_step_and_any_text(tmp_path):
    run = RunDir(tmp_path)
    run.log_samples(10, [{"prompt": "p\n\u2028", "response": "żółć 🙂", "reward": float("nan")}])
    run.log_samples(20, [{"prompt": "q"}, {"prompt": "r"}])
    assert run.read_samples() == [
        {"step": 10, "prompt": "p\n\u2028", "response": "żółć 🙂", "reward": None},
        {"step": 20, "prompt": "q"},
        {"step": 20, "prompt": "r"},
    ]


def test_a_torn_sample_is_ignored_and_then_dropped(tmp_path):
    run = RunDir(tmp_path)
    run.log_samples(1, [{"prompt": "a"}])
    with run.samples_path.open("a") as stream:
        stream.write('{"step": 2, "prom')
    assert [row["step"] for row in run.read_samples()] == [1]
    run.log_samples(2, [{"prompt": "b"}])
    assert [row["step"] for row in run.read_samples()] == [1, 2]


# ------------------------------------------------------------------ truncation
def test_truncation_forgets_everything_after_the_step(tmp_path):
    run = RunDir(tmp_path)
    for step in range(1, 7):
        run.log(step, loss=1.0 / step)
        run.log_samples(step, [{"prompt": "p"}])
        if step % 2 == 0:
            save(run, step)
    run.mark_finished({"loss": 1.0})
    resumed = RunDir(tmp_path, resume=True)
    resumed.truncate_to(4)
    assert steps_of(resumed) == [1, 2, 3, 4] and resumed.last_step == 4
    assert [row["step"] for row in resumed.read_samples()] == [1, 2, 3, 4]
    assert [step for step, _ in resumed.checkpoints()] == [2, 4] and not resumed.is_finished
    resumed.log(5, loss=9.0)
    assert steps_of(resumed) == [1, 2, 3, 4, 5]
    resumed.truncate_to(0)
    assert steps_of(resumed) == [] and resumed.read_samples() == [] and resumed.latest_checkpoint() is None
    resumed.log(1, loss=1.0)


def test_an_empty_run_can_be_truncated(tmp_path):
    run = RunDir(tmp_path / "new")
    run.truncate_to(0)
    assert run.last_step == 0 and not run.metrics_path.exists()


# ------------------------------------------------------------------ checkpoints
def test_a_checkpoint_is_whole_or_absent(tmp_path):
    run = RunDir(tmp_path)
    save(run, 100)
    with pytest.raises(RuntimeError), run.save_checkpoint(200) as draft:
        (draft / "half").write_text("half")
        raise RuntimeError("disk full")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000100"]
    assert run.latest_checkpoint() == (100, tmp_path / "checkpoints" / "step_000100")


def test_partial_empty_and_foreign_checkpoints_are_ignored(tmp_path):
    run = RunDir(tmp_path)
    save(run, 9)
    save(run, 1_000_000)
    folder = tmp_path / "checkpoints"
    for name in ("step_2000000", "step_best/x", ".step_3000000.abc/step_3000000", "step_30", "other/y"):
        (folder / name).mkdir(parents=True)
    (folder / "step_4000000").write_text("a file")
    assert [step for step, _ in run.checkpoints()] == [9, 1_000_000]


def delete(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:-2])


def flip(file):
    file.write_bytes(b"X" + file.read_bytes()[1:])


@pytest.mark.parametrize("harm", [delete, cut, flip])
@pytest.mark.parametrize("part", ["optimizer.pt", "adapter/weights", "files.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, harm, part):
    run = RunDir(tmp_path)
    for step in (1, 2):
        with run.save_checkpoint(step) as draft:
            (draft / "adapter").mkdir()
            for name in ("optimizer.pt", "adapter/weights"):
                (draft / name).write_text(f"state {step}")
    assert run.latest_checkpoint()[0] == 2
    harm(tmp_path / "checkpoints" / "step_000002" / part)
    with pytest.warns(UserWarning, match=rf"step_000002 is passed over: .*{part}"):
        assert run.latest_checkpoint()[0] == 1


def test_rows_that_are_none_do_not_stop_the_readers(tmp_path):
    run = RunDir(tmp_path)
    (tmp_path / "samples.jsonl").write_bytes(b'{"step": null}\n{"step": "x"}\n[1]\n\xff\x00\n{"step": 2}\n')
    (tmp_path / "metrics.csv").write_bytes(b"step,loss\n1,0.5\n" + b'"' + b"x" * 200_000 + b'"\n')
    run.truncate_to(3)
    assert run.read_samples() == [{"step": 2}] and run.last_step == 1


def test_saving_the_same_step_again_replaces_it(tmp_path):
    run = RunDir(tmp_path)
    save(run, 1)
    with run.save_checkpoint(1) as draft:
        (draft / "other.txt").write_text("")
    assert {path.name for path in run.latest_checkpoint()[1].iterdir()} == {"other.txt", "files.json"}


def test_pruning_keeps_the_newest(tmp_path):
    run = RunDir(tmp_path)
    for step in (1, 2, 3, 4):
        save(run, step)
    assert [path.name for path in run.prune(2)] == ["step_000001", "step_000002"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_000003",
        "step_000004",
    ]
    assert run.prune(2) == []
    with pytest.raises(CourseError, match="1 or more"):
        run.prune(0)


# ------------------------------------------------------------------ finished
def test_a_finished_run_says_so(tmp_path):
    run = RunDir(tmp_path)
    assert not run.is_finished and run.finished_metrics() is None
    run.mark_finished({"loss": 0.5, "bad": float("inf")})
    assert RunDir(tmp_path).is_finished and run.finished_metrics() == {"loss": 0.5, "bad": None}
    assert not (tmp_path / "run.lock").exists()


# ------------------------------------------------------------------ lock
WRITER = """
import sys
from helpers.training.run_dir import RunDir
run = RunDir(sys.argv[1], resume=True)
run.write_config({"lr": 1})
step = run.last_step
print("ready", flush=True)
while True:
    step += 1
    run.log(step, loss=1.0 / step, **{f"column{step // 50}": step})
    run.log_samples(step, [{"prompt": "p" * 500, "response": "r" * 500}])
    if step % 3 == 0:
        with run.save_checkpoint(step) as draft:
            for part in range(4):
                (draft / f"part{part}").write_text("x" * 20_000)
        run.prune(2)
"""


def start_writer(path: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    assert writer.stdout is not None and writer.stdout.readline().strip() == b"ready"
    return writer


def wait_for_steps(path: Path, step: int, seconds: float = 60.0) -> None:
    deadline = time.time() + seconds
    while RunDir(path).last_step < step:
        assert time.time() < deadline, "the writer does not get on"
        time.sleep(0.002)


def test_two_processes_do_not_write_to_one_run(tmp_path):
    writer = start_writer(tmp_path)
    try:
        reader = RunDir(tmp_path, resume=True)  # looking is allowed
        reader.read_metrics(), reader.latest_checkpoint()
        for write in (lambda: reader.log(10**9, loss=0.0), lambda: reader.write_config({"lr": 1})):
            with pytest.raises(CourseError, match=f"process {writer.pid} .*--output_dir"):
                write()
    finally:
        writer.kill()
        writer.wait()
    reader.log(10**9, loss=0.0)  # its lock is stale now


def test_kill_9_loses_no_whole_row_and_leaves_no_half_checkpoint(tmp_path):
    last = 0
    for pause in (0.003, 0.011, 0.05):
        writer = start_writer(tmp_path)
        wait_for_steps(tmp_path, last + 10)
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        run = RunDir(tmp_path, resume=True)
        steps = steps_of(run)
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > last
        assert all(float(row["loss"]) == 1.0 / int(row["step"]) for row in run.read_metrics()[1])
        assert all(len(row["response"]) == 500 for row in run.read_samples())
        for _, path in run.checkpoints():
            assert sorted(part.stat().st_size for part in path.glob("part*")) == [20_000] * 4
        last = len(steps)
    saved, _ = run.latest_checkpoint()
    run.truncate_to(saved)
    assert steps_of(run) == list(range(1, saved + 1))
    assert not list(tmp_path.rglob(".*")), "drafts of the killed writers are swept away"


def test_one_process_may_open_a_run_twice(tmp_path):
    RunDir(tmp_path).log(1, loss=1.0)
    RunDir(tmp_path).log(2, loss=1.0)  # a notebook cell that is run again
    assert steps_of(RunDir(tmp_path)) == [1, 2]


def write_lock(path: Path, age: float = 0.0, **owner) -> None:
    lock = path / "run.lock"
    lock.write_text(json.dumps(owner))
    os.utime(lock, (time.time() - age, time.time() - age))


def test_a_reused_process_id_is_no_owner(tmp_path):
    write_lock(tmp_path, pid=os.getppid(), host=socket.gethostname(), token="x", process_started=12.0)
    RunDir(tmp_path).log(1, loss=1.0)


def test_a_lock_of_another_machine_holds_until_it_is_abandoned(tmp_path):
    write_lock(tmp_path, pid=1, host="colab-1", token="x")
    with pytest.raises(CourseError, match=r"process 1 on colab-1.*delete .*run\.lock"):
        RunDir(tmp_path).log(1, loss=1.0)
    write_lock(tmp_path, age=ABANDONED_SECONDS + 1, pid=1, host="colab-1", token="x")
    RunDir(tmp_path).log(1, loss=1.0)


def test_an_unreadable_old_lock_is_taken_over(tmp_path):
    write_lock(tmp_path, age=60)
    (tmp_path / "run.lock").write_text("{torn")
    os.utime(tmp_path / "run.lock", (time.time() - 60, time.time() - 60))
    RunDir(tmp_path).log(1, loss=1.0)
