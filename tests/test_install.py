"""The installer behind the Makefile: what it finds in the tree decides whether .venv is kept or made anew."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def installer(tmp_path, monkeypatch):
    """tools/install.py over a checkout of its own, with pip replaced by a list of its commands."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools/install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path / "checkout"
    root.mkdir()
    for name in module.INPUTS:
        (root / name).write_text("one")
    monkeypatch.chdir(root)
    monkeypatch.setattr(module, "ROOT", str(root))
    module.commands = []

    def run(command):
        if command[1:3] == ["-m", "venv"]:
            subprocess.run([*command, "--without-pip"], check=True)
        else:
            module.commands.append(command)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "install_weights", lambda venv: None)
    return module


def make(installer, *flags: str) -> list[str]:
    """Run the installer; return what it asked pip for, last words only."""
    installer.commands.clear()
    arguments = ["install.py", *flags]
    original, sys.argv = sys.argv, arguments
    try:
        installer.main()
    finally:
        sys.argv = original
    return [command[-1] for command in installer.commands]


def venv_of(installer) -> Path:
    return Path(installer.ROOT) / ".venv"


def test_installs_torch_first_and_is_idle_the_second_time(installer):
    assert make(installer) == ["torch", "."]
    assert make(installer) == []


def test_every_install_is_pinned(installer):
    make(installer, "--extra", "dev")
    assert [command[command.index("-c") + 1] for command in installer.commands] == ["constraints.txt"] * 2


def test_an_extra_is_added_and_then_kept(installer):
    make(installer)
    assert make(installer, "--extra", "dev") == ["torch", ".[dev]"]
    assert make(installer) == []
    assert make(installer, "--extra", "notebook") == ["torch", ".[dev,notebook]"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed_into_the_same_environment(installer, name):
    make(installer, "--extra", "dev")
    (venv_of(installer) / "mine").touch()
    Path(name).write_text("two")
    assert make(installer) == ["torch", ".[dev]"]
    assert (venv_of(installer) / "mine").exists()


def test_a_touched_file_of_equal_content_changes_nothing(installer):
    make(installer)
    os.utime("pyproject.toml", (1, 1))
    assert make(installer) == []


def half_made(venv: Path) -> None:
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text("home = nowhere")


def a_file(venv: Path) -> None:
    venv.write_text("not a folder")


def a_dangling_link(venv: Path) -> None:
    venv.symlink_to("nowhere")


@pytest.mark.parametrize("wreck", [half_made, a_file, a_dangling_link])
def test_whatever_stands_in_the_way_is_replaced(installer, wreck):
    wreck(venv_of(installer))
    assert make(installer) == ["torch", "."]
    assert make(installer) == []


def test_an_interrupted_install_starts_over(installer, monkeypatch):
    make(installer)
    (venv_of(installer) / "half-written package").touch()

    def killed(command):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(installer, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            make(installer, "--extra", "dev")
    assert make(installer) == ["torch", "."]
    assert not (venv_of(installer) / "half-written package").exists()


def test_a_moved_checkout_gets_a_new_environment(installer, monkeypatch):
    make(installer)
    moved = Path(installer.ROOT).with_name("moved")
    shutil.move(installer.ROOT, moved)
    monkeypatch.chdir(moved)
    monkeypatch.setattr(installer, "ROOT", str(moved))
    assert make(installer) == ["torch", "."]
    assert make(installer) == []


def test_a_copied_checkout_gets_a_new_environment_and_leaves_the_first(installer, monkeypatch):
    make(installer)
    copy = Path(installer.ROOT).with_name("copy")
    shutil.copytree(installer.ROOT, copy, symlinks=True)
    first = venv_of(installer)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(installer, "ROOT", str(copy))
    assert make(installer) == ["torch", "."]
    assert installer.read_stamp(str(first)) is not None


def test_a_python_that_is_gone_is_noticed(installer):
    make(installer)
    for link in (venv_of(installer) / "bin").glob("python*"):
        link.unlink()
    assert make(installer) == ["torch", "."]


def test_another_python_counts_only_if_asked_for(installer):
    make(installer)
    stamp = venv_of(installer) / "course-install.json"
    other = json.loads(stamp.read_text())
    real = other["python"]
    other["python"] = "3.12.0 /elsewhere"
    stamp.write_text(json.dumps(other))
    identity = installer.identity
    installer.identity = lambda python: real if python == sys.executable else "3.12.0 /elsewhere"
    assert make(installer) == []
    installer.identity = identity
    assert make(installer, "--exact") == ["torch", "."]


def test_a_second_make_waits_for_the_first(installer, tmp_path, capsys):
    place = tmp_path / "lock"
    place.touch()
    first = installer.wait_for_lock(str(place))
    threading.Timer(0.3, os.close, [first]).start()
    second = installer.wait_for_lock(str(place))
    assert "waiting for another make" in capsys.readouterr().out
    os.close(second)


def test_a_pip_that_outlives_its_make_keeps_the_lock(installer, tmp_path):
    place = tmp_path / "lock"
    place.touch()
    lock = installer.wait_for_lock(str(place))
    pip = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    os.close(lock)
    with open(place) as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pip.communicate(b"\n")
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_a_python_out_of_range_gets_a_sentence(installer, capsys, version):
    with pytest.raises(SystemExit) as stop:
        installer.check_python(version, "/usr/bin/python")
    assert stop.value.code == 2
    message = capsys.readouterr().err
    asked = ".".join(map(str, version))
    assert message.startswith(f"error: the course needs Python 3.11 to 3.13; /usr/bin/python is {asked}.")
    assert "make run PYTHON=" in message
