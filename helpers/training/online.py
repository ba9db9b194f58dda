"""Online reinforcement learning: sample groups, score them, update the policy.

An algorithm is advantages + loss (see `algorithms`), made of the learner's functions. The rest is here once.
Deviations from the papers, each on purpose: groups stay together in a minibatch (siblings share the prompt's
computation); the optimiser window is cut once a step; a step whose loss or gradient is not finite is skipped
and counted; dropout is off, so that old and new log-probs agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import get_scheduler

from helpers.errors import CourseError
from helpers.files import read_json, write_json
from helpers.guard import guarded
from helpers.models.hardware import compute_dtype
from helpers.models.policy import response_logprobs
from helpers.models.processes import refuse_several
from helpers.models.reward_model import RewardModel
from helpers.models.sampling import Completion
from helpers.text.groups import Group
from helpers.training.algorithms import ALGORITHMS, Algorithm
from helpers.training.configs import OnlineConfig
from helpers.training.fit import explained_interrupt, write_final
from helpers.training.memory_check import explained_memory, rehearse_online, wanted
from helpers.training.mitigations import penalised, penalties_used
from helpers.training.rollouts import (
    MicroBatch,
    Rollout,
    Scorer,
    abstain,
    lay_out,
    measure,
    passes,
    prompt_indices,
    sample_groups,
)
from helpers.training.run_dir import BEST
from helpers.training.samples import SampleLogger
from helpers.training.setup import (
    Policy,
    RunResult,
    Workspace,
    add_policy,
    disable_dropout,
    encode_prompts,
    finished_result,
    fit_layout,
    load_groups,
    open_workspace,
)
from helpers.training.updates import RatioWatch, build_optimizer, recomputing
from helpers.training.watch import HeldOut, Watch, say


class OnlineTrainer:
    """The loop: rollout, update, log, evaluate, save.

    Args:
        scorer: rewards of responses, such as a `RewardModel` on the same base.
        policy: the trainable adapter on its base, and which frozen adapter is the reference.
    """

    def __init__(
        self,
        space: Workspace,
        answers: Any,
        policy: Policy,
        scorer: Scorer,
        prompts: Sequence[list[int]],
        samples: SampleLogger,
    ) -> None:
        self.space, self.answers, self.policy, self.scorer = space, answers, policy, scorer
        self.model = model = policy.model
        self.prompts, self.samples = list(prompts), samples
        self.config: OnlineConfig = space.config
        self.watch = Watch(space.run, space.config, judged=samples.judge is not None)
        self.step, self.skipped = 0, 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = self.make_optimizer()
        self.scheduler = get_scheduler(
            self.config.lr_scheduler_type,
            self.optimizer,
            num_warmup_steps=math.ceil(self.config.warmup_ratio * self.updates_in_all()),
            num_training_steps=self.updates_in_all(),
        )
        precision = compute_dtype(space.hardware)[0]
        device = next(model.parameters()).device
        self.autocast = torch.autocast(device.type, dtype=precision, enabled=device.type == "cuda")
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)

    @property
    def algorithm(self) -> Algorithm:
        """Advantages and loss."""
        return ALGORITHMS[self.config.algo]

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Over everything that is trained."""
        return build_optimizer(self.space, self.model)

    def updates_in_all(self) -> int:
        """Optimiser steps of the whole run."""
        c = self.config
        micros = math.ceil(c.per_device_train_batch_size / (c.minibatch_size // c.group_size))
        return c.max_steps * c.num_epochs * math.ceil(micros / c.gradient_accumulation_steps)

    # ------------------------------------------------------------------ one step
    def train(self, stop_at_step: int | None = None) -> None:
        """Run to `max_steps`, or stop after `stop_at_step` as an interruption would."""
        total, name = self.config.max_steps, Path(self.config.output_dir).name
        with tqdm(total=total, initial=self.step, desc=name, unit="step", leave=False) as bar:
            if self.step == 0:
                self.evaluate()
            while self.step < total and not self.watch.stopped:
                row = self.one_step()
                bar.update()
                bar.set_postfix({k: f"{row[k]:.3g}" for k in ("reward", "kl", "tokens", "tokens_per_second")})
                self.after_step(row)
                if self.step == stop_at_step:
                    return
                if self.watch.stopped:
                    say(f"{name}: {self.watch.stopped}")
                    return

    def one_step(self) -> dict[str, float]:
        """Sample, score and update once; return the metrics of the step."""
        started = time.perf_counter()
        rollout = self.rollout()
        sampled = time.perf_counter()
        with recomputing(self.model):
            row = {**rollout.metrics, **self.update(rollout)}
        seconds = time.perf_counter() - started
        tokens = sum(len(answer.ids) for group in rollout.completions for answer in group)
        self.step += 1
        row["skipped_steps"] = self.skipped
        row["tokens_per_second"] = round(tokens / seconds, 1)
        row["rollout_share"] = round((sampled - started) / seconds, 3)
        return row

    def sample(self) -> tuple[list[Group], list[list[Completion]], torch.Tensor]:
        """The step's responses, and their (N,) rewards, finite or not."""
        c = self.config
        picked = prompt_indices(self.step, c.per_device_train_batch_size, len(self.prompts), c.seed)
        self.model.eval()
        groups, completions = sample_groups(
            self.model, self.space.encoder, [self.prompts[i] for i in picked], c, self.step
        )
        scores = self.scorer.score_groups(groups)
        raw = torch.tensor([score for group in scores for score in group], dtype=torch.float32)
        return groups, completions, raw

    def penalise(
        self, raw: torch.Tensor, completions: list[list[Completion]]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """(N,) finite rewards less the penalties, and their columns; without penalties, the rewards."""
        less, columns = penalised(raw, completions, self.answers, self.config)
        return abstain(less, self.config.group_size)[0], columns

    def rollout(self) -> Rollout:
        """Groups of responses with rewards, advantages, old and reference log-probs."""
        c = self.config
        groups, completions, raw = self.sample()
        rewards, abstained = abstain(raw, c.group_size)
        trained_on, penalties = self.penalise(raw, completions)
        advantages = self.algorithm.advantages(self.answers, trained_on, c.group_size)
        advantages = advantages.masked_fill(abstained, 0.0)
        rollout = Rollout(groups, completions, rewards, advantages)
        with self.autocast:
            lay_out(self.model, rollout, c, self.space.pad_id, self.policy.reference, self.step)
        rollout.metrics = {**measure(rollout, abstained, c.group_size, self.answers), **penalties}
        return rollout

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One optimiser step for every window of every epoch."""
        watch = RatioWatch(self.config, by_response=self.algorithm.by_response)
        losses: list[float] = []
        norms: list[float] = []
        for window in passes(rollout, self.config, self.step):
            if any(map(len, window)):
                losses.append(self.backward(window, watch))
                norms.append(self.optimizer_step(losses[-1]))
            else:  # every response was cut off, and those are not to be learned from
                self.skipped += 1
                self.optimizer.step()  # moves nothing without gradients; the schedule wants to see it first
                self.scheduler.step()
        return {
            "loss": sum(losses) / max(len(losses), 1),
            "grad_norm": sum(norms) / max(len(norms), 1),
            "learning_rate": self.scheduler.get_last_lr()[0],
            **watch.metrics(),
        }

    def backward(self, window: Sequence[MicroBatch], watch: RatioWatch) -> float:
        """Back-propagate the mean loss over the window's responses that are learned from; return it."""
        responses = sum(map(len, window))
        total = 0.0
        for micro in filter(len, window):
            with self.autocast:
                scores = response_logprobs(self.model, micro.batch, temperature=self.config.temperature)
                loss = self.algorithm.loss(self.answers, scores.logprobs, micro, self.config)
            share = loss * (len(micro) / responses)
            self.scaler.scale(share).backward()
            total += share.item()
            watch.see(scores.logprobs.detach(), micro)
        return total

    def optimizer_step(self, loss: float) -> float:
        """Clip and step, unless loss or gradient is not finite; return the gradient norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        norm = self.clip_gradients()
        if math.isfinite(loss) and math.isfinite(norm):
            self.scaler.step(self.optimizer)
        else:
            self.skipped += 1
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def clip_gradients(self) -> float:
        """Clip; return the norm before, which is not finite if any gradient is not."""
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm))

    # ------------------------------------------------------------------ around the steps
    def after_step(self, row: dict[str, float]) -> None:
        """Log, evaluate and save where it is time."""
        c, run = self.config, self.space.run
        last = self.step == c.max_steps
        if self.step % c.logging_steps == 0 or last:
            run.log(self.step, **row)
        if last or (c.eval_steps and self.step % c.eval_steps == 0):
            self.evaluate()
        if c.save_steps and self.step % c.save_steps == 0:
            self.save()

    def evaluate(self) -> dict[str, float]:
        """Greedy answers to held-out prompts: their reward, length, truncated share, and the judge's view."""
        rows = self.samples.write(self.model, self.step)
        if not rows:
            return {}
        self.watch.samples += [{"step": self.step, **row} for row in rows]
        count = len(rows)
        metrics = {
            "eval_reward": sum(row["reward"] for row in rows) / count,
            "eval_tokens": sum(row["tokens"] for row in rows) / count,
            "eval_truncated": sum(not row["complete"] for row in rows) / count,
        }
        if self.samples.judge:
            metrics["gold"] = sum(row["gold"] for row in rows) / count
            self.watch.keep_best(metrics["gold"], self.step, self.policy.save)
        self.space.run.log(self.step, **metrics)
        self.last_evaluation = metrics
        return metrics

    def save(self) -> None:
        """Write checkpoints/step_000025: adapter, optimiser, scheduler, scaler and counters."""
        with self.space.run.save_checkpoint(self.step) as draft:
            self.write(draft)
        self.space.run.prune(self.config.save_total_limit)

    def write(self, draft: Path) -> None:
        """Everything that `restore` reads."""
        self.policy.save(draft)
        torch.save(self.optimizer.state_dict(), draft / "optimizer.pt")
        torch.save(self.scheduler.state_dict(), draft / "scheduler.pt")
        torch.save(self.scaler.state_dict(), draft / "scaler.pt")
        write_json(draft / "state.json", {"step": self.step, "skipped": self.skipped})

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint."""
        state = read_json(checkpoint / "state.json")
        self.policy.restore(checkpoint)
        for part, name in (
            (self.optimizer, "optimizer"),
            (self.scheduler, "scheduler"),
            (self.scaler, "scaler"),
        ):
            part.load_state_dict(torch.load(checkpoint / f"{name}.pt", weights_only=True))
        self.step, self.skipped = state["step"], state["skipped"]


def attach_reward_model(space: Workspace, model: Any, answers: Any) -> RewardModel:
    """Load the reward model as a further adapter and head on the policy's base."""
    if not space.config.reward_model:
        raise CourseError(
            "online training needs --reward_model DIR: the final/ directory of a reward-model run"
        )
    return RewardModel.load(
        space.config.reward_model,
        model,
        answers.last_token_index,
        pad_id=space.pad_id,
        layout=space.config.layout,
    )


def train_online(
    config: OnlineConfig,
    answers: Any,
    *,
    scorer: Scorer | None = None,
    stop_at_step: int | None = None,
    held_out: HeldOut | None = None,
) -> RunResult:
    """Train a policy adapter online; the result is `final/adapter`.

    Args:
        answers: namespace with the algorithm's answers (`group_advantages`, `grpo_loss`), `approx_kl` and
            `last_token_index`.
        scorer: rewards in place of the reward model of `config.reward_model`.
        held_out: gives the judge of every evaluation's answers, beside the reward (column `gold`).
    """
    if config.algo not in ALGORITHMS:
        raise CourseError(f"--algo {config.algo} is not one of {', '.join(ALGORITHMS)}")
    uses = ALGORITHMS[config.algo].uses
    return start_online(
        config, answers, uses, OnlineTrainer, scorer=scorer, stop_at_step=stop_at_step, held_out=held_out
    )


def start_online(
    config: OnlineConfig,
    answers: Any,
    uses: Sequence[str],
    make: Callable[..., OnlineTrainer],
    *,
    scorer: Scorer | None,
    stop_at_step: int | None,
    held_out: HeldOut | None = None,
) -> RunResult:
    """Open the run, load the roles, and train with the trainer that `make` returns.

    Args:
        uses: names of the answers that shape the weights.
        make: called with what `OnlineTrainer` is.
    """
    refuse_several(f"online training (--algo {config.algo})")
    answers = guarded(answers)
    uses = (*uses, *penalties_used(config))
    space = open_workspace(config, config.algo, answers.fingerprints(*uses))
    if done := finished_result(space.run):
        return done
    examples, _ = load_groups(space, "prompts")
    eval_examples, _ = load_groups(space, "prompts", evaluation=True)
    policy = add_policy(space, dropout=0.0)
    disable_dropout(policy.model)
    fit_layout(space, policy.model, [])
    scorer = scorer or attach_reward_model(space, policy.model, answers)

    def score(prompts: list[list[int]], responses: list[list[int]]) -> list[float]:
        pairs = [Group(p, [r]) for p, r in zip(prompts, responses, strict=True)]
        return [group[0] for group in scorer.score_groups(pairs)]

    samples = SampleLogger(space, eval_examples, score, model=policy.model)
    if held_out is not None:
        samples.judge = held_out(samples.examples)
    trainer = make(space, answers, policy, scorer, encode_prompts(space, examples), samples)
    return run_online(trainer, stop_at_step)


def run_online(trainer: OnlineTrainer, stop_at_step: int | None) -> RunResult:
    """Continue from the last whole checkpoint, train, and write `final/`."""
    run = trainer.space.run
    checkpoint = run.latest_checkpoint()
    run.truncate_to(checkpoint[0] if checkpoint else 0)
    if checkpoint:
        trainer.restore(checkpoint[1])
    trainer.watch.begin(trainer.step)
    if wanted(trainer.config):
        rehearse_online(trainer)
    started = time.perf_counter()
    with explained_interrupt(run.path), explained_memory(trainer.config, f"{run.path} keeps its checkpoints"):
        trainer.train(stop_at_step)
    if trainer.step < trainer.config.max_steps and not trainer.watch.stopped:
        run.close()
        return RunResult(run.path, run.final_path, {})
    if trainer.watch.wants_best:
        trainer.policy.restore(run.path / BEST)
    metrics = {
        **getattr(trainer, "last_evaluation", {}),
        **trainer.watch.ending(),
        "steps": trainer.step,
        "skipped_steps": trainer.skipped,
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_final(run.final_path, trainer.policy.save)
    run.mark_finished(metrics)
    return RunResult(run.path, run.final_path, metrics)
