"""Optional Weights & Biases: off unless asked for, never interactive, and no run fails because of it."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any

from helpers.errors import CourseError
from helpers.models.processes import is_main
from helpers.training.run_dir import RunDir


class Tracker:
    """Writes metrics and sample tables to W&B, or does nothing."""

    COLUMNS = ("prompt", "reference_response", "response", "reward")

    def __init__(self, wandb: Any | None, run: Any | None) -> None:
        self.wandb, self.run = wandb, run

    @classmethod
    def open(cls, config: Any, directory: RunDir) -> Tracker:
        """Open a W&B run if `config.report_to` asks for one.

        Without a key the run is kept offline instead of asking for one.
        """
        if config.report_to != "wandb" or not is_main():
            return cls(None, None)
        try:
            import wandb
        except ImportError:
            raise CourseError("--report_to wandb needs the package: pip install wandb") from None
        has_key = bool(os.environ.get("WANDB_API_KEY"))
        mode = os.environ.get("WANDB_MODE") or ("online" if has_key else "offline")
        name = directory.path.name
        run = wandb.init(
            project="alignment-course", name=name, dir=str(directory.path), mode=mode, resume="allow"
        )
        directory.follow(lambda step, metrics: run.log(metrics, step=step))
        return cls(wandb, run)

    def log_samples(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Log the rows as `samples/generation_table` and as a Markdown panel."""
        if self.run is None or not rows:
            return
        columns = [name for name in self.COLUMNS if name in rows[0]]
        table = self.wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
        panel = self.wandb.Html(f"<pre>{html.escape(markdown(rows, columns))}</pre>")
        self.run.log({"samples/generation_table": table, "samples/panel": panel}, step=step)


def markdown(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Samples as Markdown sections."""
    parts = []
    for row in rows:
        lines = [f"**{name}**: {row[name]}" for name in columns]
        parts.append("\n\n".join(lines))
    return "\n\n---\n\n".join(parts)
