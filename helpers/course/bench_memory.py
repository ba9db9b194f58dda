"""Peak memory of real training steps in a fresh process, against what `qlora_memory_gib` foretells.

    python -m helpers.course.bench_memory measured --model_name data/tiny/model --rows 16 --width 256

The peak is the process's resident memory above what it had after its imports and a first step on a toy model
(libraries, thread pools). glibc is told to give large blocks back at once, so that the peak is that of the
tensors and not of what was freed; and rows are short, for the packed layout's mask, of width² in every row,
is no part of the arithmetic.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from helpers.course.answers import load_answers
from helpers.course.bench_dpo import run_apart
from helpers.errors import CourseError
from helpers.models.hardware import GIB
from helpers.models.smol import HUB_ID

WITHIN = 0.15  # of the measured peak
LOGITS_AT_ONCE = 8 * 2**20  # a block is 16 Mi logits, and they have no gradient beside them
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class Setup:
    """A training step: which model in which precision, how many tokens, what is saved."""

    model_name: str = "data/tiny/model"
    quantization: str = "none"
    rows: int = 16
    width: int = 256
    checkpointing: int = 0
    dropout: float = 0.0
    r: int = 16

    def flags(self) -> list[str]:
        """The same as command-line flags."""
        return [word for name, value in vars(self).items() for word in (f"--{name}", str(value))]


SETUPS = {
    "tiny, fp32": Setup(rows=64, width=128),
    "tiny, NF4": Setup(quantization="nf4", rows=64, width=128),
    "tiny, fp32, checkpointing": Setup(rows=128, width=128, checkpointing=1),
    "smol, NF4": Setup(HUB_ID, "nf4", rows=2, width=256, r=32),
    "smol, NF4, dropout": Setup(HUB_ID, "nf4", rows=2, width=256, r=32, dropout=0.05),
    "smol, NF4, checkpointing": Setup(HUB_ID, "nf4", rows=8, width=256, checkpointing=1, r=32),
}


def bench_memory(answers: str) -> dict[str, Any]:
    """Predicted and measured GiB of every setup. Those whose model is not here are named and left out."""
    functions = load_answers(answers, fallback=answers)
    rows, skipped = {}, {}
    for name, setup in SETUPS.items():
        try:
            rows[name] = compare(setup, functions)
        except CourseError as problem:
            skipped[name] = str(problem).splitlines()[0]
    passed = all(abs(row["ratio"] - 1) <= WITHIN for row in rows.values())
    return {
        "benchmark": "memory",
        **rows,
        **({"skipped": skipped} if skipped else {}),
        "bounds": {"within": WITHIN},
        "passed": passed and bool(rows),
    }


def compare(setup: Setup, answers: Any) -> dict[str, float]:
    """Predicted and measured GiB, and the first over the second."""
    measured = measured_apart(setup)
    foretold = predicted(setup, measured["sizes"], answers)["total"]
    return {
        "predicted_gib": round(foretold, 3),
        "measured_gib": round(measured["peak_gib"], 3),
        "ratio": round(foretold / measured["peak_gib"], 3),
        "seconds_per_step": measured["seconds"],
    }


def predicted(setup: Setup, sizes: dict[str, int], answers: Any) -> dict[str, float]:
    """The parts by the answer `qlora_memory_gib`, for a step on this machine's CPU in float32."""
    tokens = setup.rows * setup.width
    return answers.qlora_memory_gib(
        tokens=tokens,
        **sizes,
        quantised=setup.quantization == "nf4",
        compute_bytes=4,
        checkpointing=bool(setup.checkpointing),
        lora_dropout=setup.dropout > 0,
        logits_at_once=min(tokens * sizes["vocab"] // 2, LOGITS_AT_ONCE),
    )


def measured_apart(setup: Setup) -> dict[str, Any]:
    """What a process of its own measured."""
    printed = run_apart(
        "helpers.course.bench_memory", "memory", ["measured", *setup.flags()], variables=MALLOC
    )
    return json.loads(printed.splitlines()[-1])


# ---------------------------------------------------------------------- in the process of its own
def measure(setup: Setup) -> dict[str, Any]:
    """Train two steps; return the peak in GiB, the seconds of the last step and the model's sizes."""
    from helpers.models.bench_fused import _reset_peak, peak_resident_bytes
    from helpers.models.loading import free, release_memory
    from helpers.models.memory import sizes_of

    model = open_model(Setup(quantization=setup.quantization, r=2))
    train(model, Setup(rows=1, width=16), steps=1)
    free(model)
    before = _reset_peak("cpu")
    model = open_model(setup)
    sizes = sizes_of(model)
    release_memory()
    _reset_peak("cpu")
    seconds = train(model, setup, steps=2)
    return {
        "peak_gib": (peak_resident_bytes() - before) / GIB,
        "seconds": round(seconds, 2),
        "sizes": sizes,
    }


def open_model(setup: Setup) -> Any:
    """Base and trainable adapter, as a run has them.

    What loading left in the mapped file of weights is copied out of it: with one embedding, all pages of the
    file that were ever read would count as the process's own.
    """
    from helpers.models.loading import LoraSettings, add_adapter, load_base

    base = load_base(
        setup.model_name, quantization=setup.quantization, gradient_checkpointing=bool(setup.checkpointing)
    )
    for weight in base.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.clone()
    return add_adapter(base, "policy", LoraSettings(setup.r, 2 * setup.r, setup.dropout))


def train(model: Any, setup: Setup, steps: int) -> float:
    """AdamW steps on random tokens by the course's own loss path; return the seconds of the last one."""
    import time

    import torch

    from helpers.models.policy import response_logprobs
    from helpers.text.groups import Group, make_batch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model.train()
    seconds = 0.0
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(3, 1000, (setup.rows, setup.width), generator=draw).tolist()
        batch = make_batch([Group(row[:1], [row[1:]]) for row in ids], 0, "packed")
        started = time.perf_counter()
        (-response_logprobs(model, batch).logprobs.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - started
    return seconds


def main() -> None:
    """Measure one setup, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["measured"])
    for name, value in vars(Setup()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    words = vars(parser.parse_args())
    words.pop("way")
    print(json.dumps(measure(Setup(**words))))


if __name__ == "__main__":
    main()
