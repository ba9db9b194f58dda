"""The Modal app without an account: its definition, how words reach a command, and its functions run here."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import modal
import modal.cli.run
import pytest
from click.testing import CliRunner
from modal.cli.entry_point import entrypoint_cli
from modal.volume import FileEntry, FileEntryType

from helpers.apps import modal_app, modal_volume
from helpers.apps.cli import SUMMARY
from helpers.errors import CourseError

MODULE = "helpers.apps.modal_app"


# ---------------------------------------------------------------------- definition
def test_every_command_is_an_entry_point_or_says_why_not() -> None:
    there = {
        name for name in SUMMARY if isinstance(getattr(modal_app, name, None), modal.app.LocalEntrypoint)
    }
    assert there == set(SUMMARY) - set(modal_app.NOT_THERE)
    assert {"course", "train", "evaluate", "submit", "grade"} <= there
    assert set(modal_app.NOT_THERE) <= set(SUMMARY)


def test_machines_volume_and_time() -> None:
    assert (modal_app.on_gpu._spec_.gpus, modal_app.on_cpu._spec_.gpus) == ("T4", None)
    for function in (modal_app.on_gpu, modal_app.on_cpu):
        assert {k: repr(v) for k, v in function._spec_.volumes.items()} == {"/vol": repr(modal_app.volume)}
    assert modal_app.RESOURCES["timeout"] == 6 * 3600
    assert str(modal_volume.volume_root()) == "/vol"


def test_the_image_holds_the_tested_set_and_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built from pyproject.toml under constraints.txt, with helpers, answers and data beside it."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: calls.append((name, args, kwargs)) or self

    monkeypatch.setattr(modal_app.modal, "Image", Recorder())
    modal_app.image()
    steps = {name: (args, kwargs) for name, args, kwargs in calls}
    project, options = steps["pip_install_from_pyproject"]
    assert Path(project[0]).is_file() and options["extra_options"] == "-c /build/constraints.txt"
    assert Path(steps["add_local_file"][0][0]).is_file()
    added = [args for name, args, _ in calls if name == "add_local_dir"]
    assert (added[0][1], added[-1][1]) == ("/course/helpers", "/course/data")
    assert all(Path(source).is_dir() for source, _ in added)
    assert steps["env"][0][0]["PYTHONPATH"] == "/course"


def test_only_keys_that_are_there_become_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in modal_app.SECRETS:
        monkeypatch.delenv(name, raising=False)
    assert modal_app.secrets() == []
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert len(modal_app.secrets()) == 1
    assert "hf_secret" not in repr(modal_app.secrets())


def test_without_modal_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal", None)
    spec = importlib.util.spec_from_file_location("modal_app_again", modal_app.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.raises(CourseError, match=r"pip install 'alignment-course\[cloud\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---------------------------------------------------------------------- words
@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """(command, plan) of what `modal run` starts; no machine is asked for."""
    found: list[tuple[str, Any]] = []
    monkeypatch.setattr(modal.cli.run, "run_app", lambda *_, **__: nullcontext())
    monkeypatch.setattr(modal_app.Plan, "start", lambda self, command: found.append((command, self)) or 0)
    return found


def modal_run(*words: str) -> Any:
    return CliRunner().invoke(entrypoint_cli, ["run", "-m", *words])


AWKWARD = ["--algo", "dpo", "--beta=0.3", "--dataset-name", "my data", "--answers", "it's \"my\" $HOME; rm *",
           "--resume", "-1e-5", "--text=a=b c", "naïve → ✓", "--no_execute", "-m", ""]  # fmt: skip


@pytest.mark.parametrize("command", sorted(set(SUMMARY) - set(modal_app.NOT_THERE)))
def test_words_pass_through_unchanged(started: list[tuple[str, Any]], command: str) -> None:
    done = modal_run(f"{MODULE}::{command}", *AWKWARD)
    assert done.exit_code == 0, done.output
    [(name, plan)] = started
    assert (name, plan.words, plan.options) == (command, AWKWARD, {})
    assert plan.function is (modal_app.on_cpu if command in modal_app.WITHOUT_GPU else modal_app.on_gpu)


def test_modals_own_flags_are_taken_out() -> None:
    plan = modal_app.plan(
        "train", ["--algo", "grpo", "--modal_gpu", "A100-80GB:2", "--x=1", "--modal-hours=2"]
    )
    assert (plan.words, plan.options) == (
        ["--algo", "grpo", "--x=1"],
        {"timeout": 7200, "gpu": "A100-80GB:2"},
    )
    assert plan.function is modal_app.on_gpu
    assert modal_app.plan("train", ["--modal-gpu=none"]).function is modal_app.on_cpu
    assert modal_app.plan("grade", ["--modal_gpu", "L4"]).function is modal_app.on_gpu


@pytest.mark.parametrize(
    "words", [["--modal_gpu", "T 4"], ["--modal_gpu=H100:x"], ["--modal_hours", "25"], ["--modal_hours=soon"],
              ["--modal_gpu"]],
)  # fmt: skip
def test_odd_values_are_named(words: list[str]) -> None:
    with pytest.raises(CourseError, match="--modal_"):
        modal_app.plan("train", words)


def test_a_failed_command_ends_with_its_status(
    started: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modal_app.Plan, "start", lambda self, command: 2)
    assert modal_run(f"{MODULE}::train", "--algo", "dpo").exit_code == 2


# ---------------------------------------------------------------------- the functions, here
@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in the place of the volume."""
    monkeypatch.setenv("COURSE_VOLUME", str(tmp_path / "vol"))
    return tmp_path / "vol"


def test_training_writes_to_the_volume(mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, hub = Path.cwd(), os.environ.get("HF_HOME")
    words = ["--algo", "dpo", "--profile=tiny", "--max_steps", "2", "--train-limit", "8", "--eval_limit", "4"]
    words += ["--eval_samples", "1", "--output_dir", "runs/my dpo"]
    assert modal_app.on_gpu.local("train", words) == 0
    run = mounted / "runs" / "my dpo"
    assert json.loads((run / "finished.json").read_text())["steps"] == 2
    assert (run / "final" / "adapter" / "adapter_config.json").is_file()
    assert (mounted / "hf_cache").is_dir() and (mounted / "data").is_dir()
    assert (Path.cwd(), os.environ.get("HF_HOME")) == (before, hub)
    assert modal_app.on_cpu.local("doctor", ["runs/my dpo"]) == 0
    assert "DPO" in capsys.readouterr().out


def test_a_mistake_is_a_line_and_a_status(mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert modal_app.on_cpu.local("train", ["--algo", "dop"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_stopped_container_leaves_no_lock_of_its_own(mounted: Path) -> None:
    mine, other = mounted / "runs" / "mine", mounted / "runs" / "other"
    for place, pid in ((mine, os.getpid()), (other, os.getpid() + 1)):
        place.mkdir(parents=True)
        (place / "run.lock").write_text(json.dumps({"pid": pid, "host": socket.gethostname()}))
    with pytest.raises(KeyboardInterrupt), modal_volume.working_on_volume():
        raise KeyboardInterrupt
    assert not (mine / "run.lock").exists() and (other / "run.lock").exists()


# ---------------------------------------------------------------------- upload and download
class FakeVolume:
    """What of `modal.Volume` is used here, on a directory."""

    name = "alignment-course"

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def batch_upload(self, force: bool = False) -> Iterator[FakeVolume]:
        self.force = force
        yield self

    def put_file(self, source: Path, place: str) -> None:
        target = self.root / place.lstrip("/")
        if target.exists() and not self.force:
            raise FileExistsError(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(source).read_bytes())

    def put_directory(self, source: Path, place: str) -> None:
        for file in filter(Path.is_file, Path(source).rglob("*")):
            self.put_file(file, f"{place}/{file.relative_to(source)}")

    def listdir(self, path: str, recursive: bool = False) -> list[FileEntry]:
        place = self.root / path.lstrip("/")
        if not place.exists():
            raise modal.exception.NotFoundError("No such file or directory")
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        return [self.entry(str(p.relative_to(self.root)), p.is_file()) for p in found]

    def entry(self, path: str, is_file: bool) -> FileEntry:
        kind = FileEntryType.FILE if is_file else FileEntryType.DIRECTORY
        return FileEntry(path=path, type=kind, mtime=0, size=0)

    def read_file(self, path: str) -> Iterator[bytes]:
        yield (self.root / path.lstrip("/")).read_bytes()


@pytest.fixture
def volume(tmp_path: Path) -> FakeVolume:
    return FakeVolume(tmp_path / "there")


def test_data_and_answers_go_up(volume: FakeVolume, tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "train_prefs.jsonl").write_text("{}\n")
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert modal_volume.upload(volume, source) == "data/pairs"
    assert (volume.root / "data" / "pairs" / "deep" / "train_prefs.jsonl").read_text() == "{}\n"
    assert modal_volume.upload(volume, tmp_path / "mine.py", "answers.py") == "data/answers.py"
    with pytest.raises(CourseError, match="does not exist"):
        modal_volume.upload(volume, tmp_path / "nothing")
    with pytest.raises(CourseError, match="no name"):
        modal_volume.upload(volume, source, "../up")


def test_a_run_comes_down_without_its_checkpoints(volume: FakeVolume, tmp_path: Path) -> None:
    run = volume.root / "runs" / "dpo"
    for name in ("config.json", "final/adapter/adapter_config.json", "checkpoints/step_000002/x", "run.lock"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    place = modal_volume.download(volume, "dpo", tmp_path / "here")
    files = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}
    assert files == {"config.json", "final/adapter/adapter_config.json"}
    whole = modal_volume.download(volume, "runs/dpo", tmp_path / "all", everything=True)
    assert (whole / "checkpoints" / "step_000002" / "x").read_text() == "checkpoints/step_000002/x"
    with pytest.raises(CourseError, match="exists already"):
        modal_volume.download(volume, "dpo", tmp_path / "here")
    with pytest.raises(CourseError, match="modal volume ls alignment-course runs"):
        modal_volume.download(volume, "ppo", tmp_path / "here")


def test_a_listing_that_leads_out_is_refused(volume: FakeVolume, tmp_path: Path) -> None:
    volume.listdir = lambda *_, **__: [volume.entry("runs/dpo/../../etc/passwd", True)]  # type: ignore[method-assign]
    with pytest.raises(CourseError, match="leads out"):
        modal_volume.download(volume, "dpo", tmp_path)
    assert list(tmp_path.iterdir()) == []
