"""The command line on Modal's machines (https://modal.com); docs/cloud.md has the commands.

    modal run -m helpers.apps.modal_app::train --algo dpo --beta 0.3 --output_dir runs/my_dpo
    modal run -m helpers.apps.modal_app::train --algo grpo --modal_gpu A100
    modal run -m helpers.apps.modal_app::upload_data --path my_pairs
    modal run -m helpers.apps.modal_app::download_run --run my_dpo

Every command of `python -m helpers` that makes sense there is an entry point, and takes the same words: they
reach the command as they are, one by one, never through a shell. Two flags are taken out for Modal itself:
--modal_gpu TYPE (T4, A10G, L4, A100, H100, …; none: a machine without) and --modal_hours N. COURSE_GPU and
COURSE_HOURS in the environment set them for good.

Importing this needs no account and no network; running it needs `modal setup` once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.apps.cli import SUMMARY, main
from helpers.apps.flags import take_flag
from helpers.apps.modal_volume import download, upload, working_on_volume
from helpers.errors import CourseError

try:
    import modal
except ImportError:
    raise CourseError("Modal is not installed: pip install 'alignment-course[cloud]'") from None

ROOT = Path(__file__).resolve().parents[2]
NAME = "alignment-course"
DEFAULT_GPU, DEFAULT_HOURS = "T4", 6.0
MOST_HOURS = 24.0  # Modal's own limit for one call
NOT_THERE = {
    "demo": "it is a page of this machine; demo --export_space makes a hosted one",
    "check": "it takes a second here",
    "build": "it writes the lessons into this checkout",
    "release": "it packs this checkout",
}
WITHOUT_GPU = ("grade", "doctor", "report", "data", "hacking")  # read files, or ask a judge
SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY")
SHIPPED = ("helpers", "solutions", "data")  # the student kit has no solutions
CODE = "/course"  # where the checkout lies there
IGNORED = ("**/__pycache__", "**/*.ipynb", "**/.*")


def image() -> modal.Image:
    """The tested set of packages, and this checkout beside it."""
    built = (
        modal.Image.debian_slim(python_version="3.11")
        .add_local_file(ROOT / "constraints.txt", "/build/constraints.txt", copy=True)
        .pip_install_from_pyproject(
            str(ROOT / "pyproject.toml"), ["lessons"], extra_options="-c /build/constraints.txt"
        )
        .env({"PYTHONPATH": CODE, "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"})
    )
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            built = built.add_local_dir(ROOT / name, f"{CODE}/{name}", ignore=list(IGNORED))
    return built


def secrets() -> list[modal.Secret]:
    """The keys that this shell knows; none is asked for."""
    known = [name for name in SECRETS if os.environ.get(name)]
    return [modal.Secret.from_local_environ(known)] if known else []


def hours_from(text: str) -> float:
    """Hours of one call, or CourseError."""
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= MOST_HOURS:
        raise CourseError(f"--modal_hours (COURSE_HOURS) is above 0 and at most {MOST_HOURS:g}, not {text}")
    return hours


def gpu_from(text: str) -> str | None:
    """The GPU as Modal writes it, such as A100-80GB or H100:2; None for none. CourseError for an odd one."""
    kind, _, number = text.strip().partition(":")
    if kind.lower() == "none" and not number:
        return None
    if (
        not kind
        or not all(char.isalnum() or char in "-+!" for char in kind)
        or (number and not number.isdigit())
    ):
        raise CourseError(
            f"--modal_gpu (COURSE_GPU) is a GPU type such as T4, A100 or H100, or none; not {text!r}"
        )
    return text.strip()


app = modal.App(NAME)
volume = modal.Volume.from_name(NAME, create_if_missing=True)
RESOURCES: dict[str, Any] = {
    "image": image(),
    "volumes": {"/vol": volume},
    "secrets": secrets(),
    "timeout": round(3600 * hours_from(os.environ.get("COURSE_HOURS") or str(DEFAULT_HOURS))),
    "include_source": False,  # it is in the image, with its data
}


def run_command(command: str, words: list[str]) -> int:
    """Run one command on the volume, keep what it wrote, and return its exit status."""
    try:
        with working_on_volume():
            return main([command, *words])
    finally:
        if not modal.is_local():
            volume.commit()


@app.function(gpu=gpu_from(os.environ.get("COURSE_GPU") or DEFAULT_GPU), **RESOURCES)
def on_gpu(command: str, words: list[str]) -> int:
    """A command on a machine with a GPU."""
    return run_command(command, words)


@app.function(**RESOURCES)
def on_cpu(command: str, words: list[str]) -> int:
    """A command on a machine without."""
    return run_command(command, words)


@dataclass(frozen=True)
class Plan:
    """Where a command is to run, and the words that it gets."""

    function: modal.Function
    words: list[str]
    options: dict[str, Any]  # what this call changes

    def start(self, command: str) -> int:
        """Run it there, and wait."""
        if self.options and not hasattr(self.function, "with_options"):
            raise CourseError(
                "this modal sets GPU and hours by COURSE_GPU and COURSE_HOURS only; for the flags:"
                " pip install -U modal"
            )
        function = self.function.with_options(**self.options) if self.options else self.function
        return function.remote(command, self.words)


def plan(command: str, words: Sequence[str]) -> Plan:
    """Read Modal's own flags; all other words stay as they are and in their order."""
    gpu, rest = take_modal_flag(list(words), "gpu")
    hours, rest = take_modal_flag(rest, "hours")
    options: dict[str, Any] = {"timeout": round(3600 * hours_from(hours))} if hours else {}
    if gpu is None:
        return Plan(on_cpu if command in WITHOUT_GPU else on_gpu, rest, options)
    wanted = gpu_from(gpu)
    if wanted is None:
        return Plan(on_cpu, rest, options)
    return Plan(on_gpu, rest, {**options, "gpu": wanted})


def take_modal_flag(words: list[str], name: str) -> tuple[str | None, list[str]]:
    """Take --modal_gpu or --modal-gpu out of the words."""
    value, rest = take_flag(words, f"--modal_{name}")
    other, rest = take_flag(rest, f"--modal-{name}")
    return value or other, rest


def entrypoint(command: str) -> Callable[..., Any]:
    """The entry point of one command: `modal run -m helpers.apps.modal_app::COMMAND WORDS…`."""

    def start(*words: str) -> None:
        status = plan(command, words).start(command)
        if status:
            raise SystemExit(status)

    start.__name__ = start.__qualname__ = command
    start.__doc__ = f"On Modal, {SUMMARY[command]}. python -m helpers {command} --help lists the flags."
    return app.local_entrypoint(name=command)(start)


for _command in SUMMARY:
    if _command not in NOT_THERE:
        globals()[_command] = entrypoint(_command)


@app.local_entrypoint()
def upload_data(path: str, name: str = "", force: bool = False) -> None:
    """Put a data set, or a file of answers, on the volume; it is called data/NAME there."""
    place = upload(volume, path, name or None, force=force)
    print(f"{path} is {place} there: --dataset_name {place}, or --answers {place}")


@app.local_entrypoint()
def download_run(run: str, output_dir: str = "runs", everything: bool = False) -> None:
    """Fetch a run: config, curves, samples and result; with --everything checkpoints too."""
    print(download(volume, run, output_dir, everything=everything))
