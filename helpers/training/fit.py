"""The common end of the three offline trainers: fit, resume, save the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from helpers.files import atomic_path
from helpers.models import processes
from helpers.models.hardware import compute_dtype
from helpers.training.memory_check import explained_memory, rehearse, wanted
from helpers.training.setup import RunResult, Workspace
from helpers.training.trainer import GroupTrainer, Objective, TrainingItem


def fit(
    space: Workspace,
    model: torch.nn.Module,
    items: Sequence[TrainingItem],
    objective: Objective,
    *,
    save: Callable[[Path], None],
    load: Callable[[Path], None],
    stop_at_step: int | None = None,
) -> RunResult:
    """Train from the last whole checkpoint, if there is one, and write `final/`.

    A run stopped early (`stop_at_step`) is left unfinished, as after a crash.
    """
    run, config = space.run, space.config
    checkpoint = processes.once(run.latest_checkpoint)
    run.truncate_to(checkpoint[0] if checkpoint else 0)
    trainer = GroupTrainer(
        model,
        items,
        objective,
        config,
        run,
        save=save,
        load=load,
        precision=compute_dtype(space.hardware)[0],
        optim=space.profile.optim,
        stop_at_step=stop_at_step,
    )
    if wanted(config):
        rehearse(trainer, items)
    started = time.perf_counter()
    kept = f"{run.path} keeps everything up to its last checkpoint"
    with explained_interrupt(run.path), explained_memory(config, kept):
        trainer.train(resume_from_checkpoint=str(checkpoint[1]) if checkpoint else None)
    if stop_at_step is not None and trainer.state.global_step < trainer.state.max_steps:
        run.close()
        return RunResult(run.path, run.final_path, {})
    metrics = closing_metrics(trainer, time.perf_counter() - started)
    if processes.is_main():
        write_final(run.final_path, save)
    run.mark_finished(metrics)
    processes.wait()
    return RunResult(run.path, run.final_path, metrics)


def closing_metrics(trainer: GroupTrainer, seconds: float) -> dict[str, Any]:
    """Evaluate once more unless the last step just did, and gather the numbers of finished.json."""
    logged = trainer.state.log_history
    step = trainer.state.global_step
    last = [row for row in logged if row["step"] == step and any(k.startswith("eval_") for k in row)]
    final = last[-1] if last else trainer.evaluate()
    losses = [row["loss"] for row in logged if "loss" in row]
    numbers = {k: v for k, v in final.items() if k.startswith("eval_")}
    return {
        **numbers,
        "steps": step,
        "loss": losses[-1] if losses else None,
        "skipped_steps": trainer.skipped_steps,
        "seconds": round(seconds, 1),
    }


def write_final(path: Path, save: Callable[[Path], None]) -> None:
    """Write the result directory as a whole or not at all."""
    with atomic_path(path) as draft:
        draft.mkdir()
        save(draft)


class explained_interrupt:
    """Say on Ctrl-C how to go on, and close the progress bar of a run that ends early."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            close_bars()
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {self.path} keeps everything up to its last checkpoint: "
                "run the same command again to go on"
            ) from None


def close_bars() -> None:
    """End the lines of unfinished progress bars, so that a message begins on a line of its own."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()
