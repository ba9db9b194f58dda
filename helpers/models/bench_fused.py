"""Time and extra peak memory of fused log-probabilities against full logits, forward and backward.

Each measurement runs in a process of its own, as a process's high-water mark never falls. `bench_fused()`
starts them and returns the ratios; `python -m helpers.models.bench_fused fused --positions 512` is one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from helpers.errors import CourseError
from helpers.models.fused import fused_logprobs

ROOT = Path(__file__).resolve().parents[2]


def bench_fused(
    positions: int = 2048,
    hidden: int = 1536,
    vocabulary: int = 151_936,
    *,
    rounds: int = 2,
    threads: int | None = None,
    device: str = "cpu",
) -> dict[str, object]:
    """Measure both paths `rounds` times in turn and return the least time and memory of each, and ratios.

    Returns keys `fused_seconds`, `full_seconds`, `time_ratio`, `fused_mib`, `full_mib` (peak memory above
    that of inputs and weights), `memory_ratio`, `mean_difference` of the log-probabilities, and the
    sizes. The project's bounds are a memory ratio of 0.1 and a time ratio of 1.2 at the default sizes.

    Raises CourseError if a measuring process fails, with its last words.
    """
    sizes = {"positions": positions, "hidden": hidden, "vocabulary": vocabulary}
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    flags += ["--device", device, *(["--threads", str(threads)] if threads else [])]
    runs: dict[str, list[dict[str, float]]] = {"fused": [], "full": []}
    for _ in range(rounds):
        for way, results in runs.items():
            results.append(_run(way, flags))
    least = {
        way: {key: min(run[key] for run in results) for key in results[0]} for way, results in runs.items()
    }
    fused, full = least["fused"], least["full"]
    return {
        "benchmark": "fused_logprobs",
        **sizes,
        "device": device,
        **{f"{way}_{key}": round(least[way][key], 3) for way in runs for key in ("seconds", "mib")},
        "time_ratio": round(fused["seconds"] / full["seconds"], 3),
        "memory_ratio": round(fused["mib"] / full["mib"], 4),
        "mean_difference": abs(fused["mean"] - full["mean"]),
    }


def _run(way: str, flags: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "helpers.models.bench_fused", way, *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise CourseError(f"the measurement of {way} log-probabilities failed: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def full_logprobs(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probabilities from all logits at once, in the usual call that holds the fewest copies."""
    return -torch.nn.functional.cross_entropy(hidden @ weight.t(), labels, reduction="none")


def _fused(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return fused_logprobs(hidden, weight, labels)[0]


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "full": full_logprobs,
    "fused": _fused,
}


def measure(way: str, positions: int, hidden: int, vocabulary: int, device: str = "cpu") -> dict[str, float]:
    """Run forward and backward once; return seconds, MiB above the inputs, and the mean log-probability."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(vocabulary, hidden, generator=generator).mul_(0.02).to(device)
    states = torch.randn(positions, hidden, generator=generator).to(device).requires_grad_()
    labels = torch.randint(vocabulary, (positions,), generator=generator).to(device)
    # Libraries and thread pools are set up outside the measurement.
    WAYS[way](states[:2].detach().requires_grad_(), weight[:512], labels[:2] % 512).sum().backward()
    before = _reset_peak(device)
    start = time.perf_counter()
    logprobs = WAYS[way](states, weight, labels)
    logprobs.sum().backward()
    mean = logprobs.detach().mean().item()  # waits for a GPU
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mib": (_peak(device) - before) / 2**20, "mean": mean}


def _reset_peak(device: str) -> int:
    """Return bytes in use now, and forget earlier peaks where the system can."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak(device)
    return _status("VmRSS")


def _peak(device: str) -> int:
    """Return the peak in bytes since the last reset: of the GPU, or of this process's resident memory."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The largest resident memory this process has had.

    From /proc where there is one: `ru_maxrss` starts at the parent's peak, which exec does not reset.
    """
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise CourseError(f"/proc/self/status has no {field}; memory cannot be measured here")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    sizes = (given.positions, given.hidden, given.vocabulary)
    print(json.dumps(measure(given.way, *sizes, given.device)))


if __name__ == "__main__":
    _main()
