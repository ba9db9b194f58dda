"""A watch on a run while it goes on: signs of reward hacking are shown once, kept, and may end the run.

    signs.json    a list of {"kind", "step", "message", "numbers"}, there as soon as there is a sign
    best/         the weights with the best verdict of the held-out judge, where there is one

The watch learns of a run only by the rows it logs, as a reader of the directory does; so after an
interruption it reads them again and knows what it knew.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.files import read_json, write_json
from helpers.text.datasets import Example
from helpers.training.configs import OnlineConfig
from helpers.training.fit import write_final
from helpers.training.run_dir import BEST, SIGNS, RunDir
from helpers.training.run_rows import plain
from helpers.training.signs import DECISIVE, Sign, recent_kl, signs_of

# Takes the examples that a run answers at every evaluation, and gives a judge of such answers, one verdict
# from 0 to 1 each, or None where nobody can judge them. Nothing may be trained against that judge.
HeldOut = Callable[[Sequence[Example]], Callable[[Sequence[str]], Sequence[float]] | None]


class Watch:
    """Follows a run's rows.

    `stopped` is None, or says why the run should end.
    """

    def __init__(self, run: RunDir, config: OnlineConfig, *, judged: bool) -> None:
        if config.stop_on_hacking and not (judged and config.eval_steps and config.eval_samples > 1):
            raise CourseError(
                "--stop_on_hacking needs a judge of held-out answers now and then: --eval_samples 2 or more,"
                " --eval_steps 1 or more, and prompts with gold facts or a --held_out_judge;"
                " --stop_kl needs no judge"
            )
        self.run, self.config = run, config
        self.stopped: str | None = None
        self.signs: list[Sign] = []
        self.best, self.best_step = -math.inf, 0
        self.rows: list[Mapping[str, Any]] = []
        self.samples: list[Mapping[str, Any]] = []
        run.follow(self.see)

    def begin(self, step: int) -> None:
        """Read again what the run has logged up to `step`; forget signs and weights of a later one."""
        self.rows = [*self.run.read_metrics()[1]]
        self.samples = [*self.run.read_samples()]
        self.signs = signs_of(self.rows, self.samples)
        self.keep()
        mark = self.run.path / BEST / "best.json"
        known = read_json(mark) if mark.is_file() else {}
        if known.get("step", math.inf) <= step:
            self.best, self.best_step = known["gold"], known["step"]
        self.stopped = self.reason(step)

    def see(self, step: int, row: Mapping[str, Any]) -> None:
        """Take in a logged row."""
        self.rows.append({"step": step, **row})
        known = {sign.kind for sign in self.signs}
        fresh = [sign for sign in signs_of(self.rows, self.samples, since=step) if sign.kind not in known]
        for sign in fresh:
            tqdm.write(
                f"{self.run.path.name}, step {sign.step}: {sign.kind}: {sign.message}", file=sys.stderr
            )
        if fresh:
            self.signs += fresh
            self.keep()
        self.stopped = self.stopped or self.reason(step)

    def keep(self) -> None:
        """Write signs.json, or remove that of an earlier attempt."""
        if self.signs:
            write_json(self.run.path / SIGNS, [plain(asdict(sign)) for sign in self.signs])
        else:
            (self.run.path / SIGNS).unlink(missing_ok=True)

    def reason(self, step: int) -> str | None:
        """Why the run should end here, if it should."""
        limit, kls = self.config.stop_kl, [kl for _, kl in recent_kl(self.rows)]
        if limit is not None and kls and kls[-1] > limit:
            return f"--stop_kl {limit:g}: the KL is {kls[-1]:.3g} nats a token at step {step}"
        if self.config.stop_on_hacking:
            for sign in self.signs:
                if sign.kind == DECISIVE:
                    return f"--stop_on_hacking: at step {sign.step} {sign.message}"
        return None

    def keep_best(self, gold: float, step: int, save: Callable[[Path], None]) -> None:
        """Write best/ if the judge never thought better of the policy."""
        if not gold > self.best:
            return
        self.best, self.best_step = gold, step

        def write(draft: Path) -> None:
            save(draft)
            write_json(draft / "best.json", {"step": step, "gold": gold})

        write_final(self.run.path / BEST, write)

    @property
    def wants_best(self) -> bool:
        """Whether the run is to end with the weights in best/ instead of those of the last step."""
        return bool(self.stopped and self.config.stop_on_hacking and self.best > -math.inf)

    def ending(self) -> dict[str, Any]:
        """What the closing metrics say of an early end."""
        kept = {"kept_step": self.best_step} if self.wants_best else {}
        return {"stopped": self.stopped, **kept} if self.stopped else {}


def say(words: str) -> None:
    """A line on standard error, above any progress bar."""
    tqdm.write(words, file=sys.stderr)
