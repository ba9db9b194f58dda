"""`transformers.Trainer` on groups: the optimiser batch is the unit, micro-batches are only about memory.

Deviations from the plain Trainer, each on purpose:
- one dataloader item is a whole optimiser batch (micro-batch × accumulation groups); `training_step` cuts it
  into micro-batches whose losses are weighted by their share of the whole batch. So 4×1 equals 1×4 by
  construction, partial last batches included;
- within the optimiser batch groups are sorted by length before they are cut (length buckets);
- several processes see the same optimiser batch; each takes every n-th of its micro-batches, and the
  gradients are added up once a step. So they train as one process does with as large a batch, though their
  micro-batches may differ in number, and no wrapper of the model is needed;
- checkpoints are written by `RunDir`: whole or not at all, and named step_000100;
- a step whose gradient is not finite is skipped and counted; the optimiser never sees it.
"""

from __future__ import annotations

import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from helpers.models import processes
from helpers.text.groups import Group
from helpers.training.configs import EpochSettings
from helpers.training.run_dir import RunDir


@dataclass(frozen=True)
class TrainingItem:
    """One group and, for preference training, its summed reference log-probs; (k,) or empty."""

    group: Group
    reference: tuple[float, ...] = ()
    margin: float | None = None
    weight: float | None = None  # of the pair in its batch's mean; None: all alike

    def __len__(self) -> int:
        """Tokens of the packed row."""
        return len(self.group.prompt_ids) + sum(map(len, self.group.responses))


class Objective(Protocol):
    """What a run optimises, as a mean over some unit (tokens, pairs)."""

    def weight(self, items: Sequence[TrainingItem]) -> float:
        """Number of units in `items`."""

    def loss(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean loss over the units of `items`, and metrics as means over the same units."""

    def evaluate(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        """Metrics on held-out data."""


@runtime_checkable
class CoupledObjective(Objective, Protocol):
    """One whose loss of a batch need not be the mean over its units, such as a loss that sorts them."""

    def prepare(self, model: torch.nn.Module, micro_batches: Sequence[Sequence[TrainingItem]]) -> None:
        """See the whole optimiser batch before the losses of its micro-batches are asked for."""


class Items(Dataset):
    """A list as a data set."""

    def __init__(self, items: Sequence[TrainingItem]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> TrainingItem:
        return self.items[index]


class GroupTrainer(Trainer):
    """A Trainer whose batches are lists of `TrainingItem` and whose loss is an `Objective`.

    Args:
        save: writes the trained weights into a directory; `load` reads them back on resume.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        items: Sequence[TrainingItem],
        objective: Objective,
        config: EpochSettings,
        run: RunDir,
        *,
        save: Callable[[Path], None],
        load: Callable[[Path], None],
        precision: torch.dtype = torch.float32,
        optim: str = "adamw_torch",
        stop_at_step: int | None = None,
    ) -> None:
        self.objective: Objective = objective
        self.config, self.run = config, run
        self._save_weights, self._load_weights = save, load
        self._sums: dict[str, float] = defaultdict(float)
        self._units, self._tokens, self._tick = 0.0, 0, time.perf_counter()
        self.skipped_steps = 0
        super().__init__(
            model=model,
            args=training_arguments(config, run, precision, optim),
            train_dataset=Items(items),
            eval_dataset=Items(()),  # the objective holds its own; the Trainer only wants to see one
            data_collator=list,  # type: ignore[arg-type]  # a batch is a list of items, not a dict
        )
        if processes.count() > 1:
            self._prepare_for_several()
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.add_callback(ProgressBar())
        if stop_at_step is not None:
            self.add_callback(StopAt(stop_at_step))

    # ------------------------------------------------------------------ several processes
    def _prepare_for_several(self) -> None:
        """Equal weights everywhere, dropout of each process's own, and no wrapper around the model.

        `evaluation_mode` is how the Trainer itself keeps Accelerate from wrapping a model in DDP.
        """
        processes.copy_from_main([p.data for p in self.model.parameters() if p.requires_grad])
        self.accelerator.prepare_model = functools.partial(
            self.accelerator.prepare_model, evaluation_mode=True
        )
        if not processes.is_main():
            torch.manual_seed(self.config.seed + processes.rank())

    def get_train_dataloader(self) -> DataLoader:
        """One item is a whole optimiser batch, the same in every process."""
        loader = super().get_train_dataloader()
        if processes.count() > 1:
            # Accelerate has split it between the processes, and fills up the last batch with repeated rows.
            sampler: Any = loader.batch_sampler
            sampler.num_processes, sampler.process_index, sampler.even_batches = 1, 0, False
        return loader

    def _add_up_gradients(self, loss: torch.Tensor) -> torch.Tensor:
        """Sum gradients and loss over the processes; one without a micro-batch counts as zeros."""
        if processes.count() == 1:
            return loss
        learned = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in learned:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        processes.sum_tensors([p.grad for p in learned])
        processes.sum_tensors([loss])
        return loss

    # ------------------------------------------------------------------ one step
    def training_step(  # type: ignore[override]  # same reason
        self, model: torch.nn.Module, inputs: list[TrainingItem], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Back-propagate the mean loss of the whole optimiser batch, micro-batch by micro-batch."""
        model.train()
        whole = self.objective.weight(inputs)
        total = torch.zeros((), device=self.args.device)
        micro_batches = self.micro_batches(inputs)
        if isinstance(self.objective, CoupledObjective):
            with self.compute_loss_context_manager():
                self.objective.prepare(model, micro_batches)
        for micro in processes.mine(micro_batches):
            share = self.objective.weight(micro) / max(whole, 1)
            with self.compute_loss_context_manager():
                loss, metrics = self.objective.loss(model, micro)
            self.accelerator.backward(loss * share)
            total += loss.detach().float() * share
            for name, value in metrics.items():
                self._sums[name] += value * share * whole
        self._units += whole
        self._tokens += sum(len(item) for item in inputs)
        return self._add_up_gradients(total)

    def micro_batches(self, items: Sequence[TrainingItem]) -> list[list[TrainingItem]]:
        """Cut an optimiser batch into micro-batches of similar length, within both limits of the config.

        An item that alone exceeds the token limit goes alone.
        """
        size = self.config.per_device_train_batch_size or len(items)
        tokens = self.config.micro_batch_tokens or math.inf
        batches: list[list[TrainingItem]] = []
        for item in sorted(items, key=len):  # rising, so the newest item is the width of its batch
            last = batches[-1] if batches else None
            if last is None or len(last) == size or (len(last) + 1) * len(item) > tokens:
                batches.append(last := [])
            last.append(item)
        return batches

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        norm = super()._clip_grad_norm(model)
        if not math.isfinite(float(norm)):
            self.skipped_steps += 1
            model.zero_grad(set_to_none=True)  # AdamW leaves parameters without gradient alone
        return norm

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: batches are groups, not tensors."""
        return 0

    # ------------------------------------------------------------------ logging and evaluation
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means since the last log and append a row to metrics.csv."""
        if "train_runtime" in logs:  # the Trainer's closing summary goes to finished.json instead
            return
        if "loss" in logs and self._units:
            now = time.perf_counter()
            sums = processes.add_up(self._sums)
            logs.update({name: value / self._units for name, value in sums.items()})
            logs["tokens_per_second"] = round(self._tokens / max(now - self._tick, 1e-9), 1)
            logs["skipped_steps"] = self.skipped_steps
            self._sums.clear()
            self._units, self._tokens, self._tick = 0.0, 0, now
        super().log(logs, start_time)
        self.run.log(self.state.global_step, **{k: v for k, v in logs.items() if k != "total_flos"})

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Evaluate the objective on its held-out data, in one process; names start with eval_."""
        pause = time.perf_counter()
        self.model.eval()
        found = processes.once(lambda: self.objective.evaluate(self.model, self.state.global_step))
        metrics = {f"eval_{k}": v for k, v in found.items()}
        self.model.train()
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._tick += time.perf_counter() - pause  # tokens/s are of training
        return metrics

    # ------------------------------------------------------------------ checkpoints
    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with processes.draft_for_all(lambda: self.run.save_checkpoint(self.state.global_step)) as draft:
            if processes.is_main():
                self._save_weights(draft)
                self.state.save_to_json(str(draft / "trainer_state.json"))
            self._save_optimizer_and_scheduler(str(draft))  # these two: in one process, says the Trainer
            self._save_scaler(str(draft))
            self._save_rng_state(str(draft))  # one file a process
        self.run.prune(self.config.save_total_limit)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._load_weights(Path(resume_from_checkpoint))


def optimiser_batch(config: EpochSettings) -> int:
    """Groups an optimiser step, over all processes."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps * processes.count()


def training_arguments(
    config: EpochSettings, run: RunDir, precision: torch.dtype, optim: str
) -> TrainingArguments:
    """Translate a config into the Trainer's arguments. One Trainer batch is a whole optimiser batch."""
    on_gpu = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(run.path),
        per_device_train_batch_size=optimiser_batch(config),
        gradient_accumulation_steps=1,
        num_train_epochs=config.num_train_epochs,
        max_steps=config.max_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_ratio if config.warmup_ratio < 1 else 0,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim=optim,
        logging_steps=config.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy=SaveStrategy.STEPS if config.save_steps else SaveStrategy.NO,
        save_steps=config.save_steps or 500,
        eval_strategy="steps" if config.eval_steps else "no",
        eval_steps=config.eval_steps or None,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        seed=config.seed,
        data_seed=config.seed,
        bf16=on_gpu and precision == torch.bfloat16,
        fp16=on_gpu and precision == torch.float16,
        use_cpu=not on_gpu,
        disable_tqdm=True,
        report_to="none",
    )


class ProgressBar(TrainerCallback):
    """One bar a run, with the latest numbers beside it."""

    SHOWN = ("loss", "accuracy", "margin", "eval_perplexity", "eval_pair_accuracy", "tokens_per_second")

    def __init__(self) -> None:
        self.bar: Any = None
        self.latest: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the bar where the run starts or resumes."""
        name = Path(args.output_dir).name
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=name,
            unit="step",
            leave=False,
            disable=not processes.is_main(),
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move the bar, and see to it that the last step is logged."""
        self.bar.update(state.global_step - self.bar.n)
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        """Show the newest numbers."""
        if self.bar is not None:
            self.latest |= {k: f"{v:.4g}" for k, v in (logs or {}).items() if k in self.SHOWN}
            self.bar.set_postfix(self.latest, refresh=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the bar."""
        self.bar.close()


class StopAt(TrainerCallback):
    """Stop after a step as an interruption would: the schedule stays that of the whole run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask the Trainer to stop."""
        if state.global_step >= self.step:
            control.should_training_stop = True
        return control
