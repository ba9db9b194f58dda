"""What this machine is, and the precision that follows from it.

Every decision takes a `Hardware`, so a test can ask what a T4 would do without owning one.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1024**3
FIRST_BF16_CAPABILITY = (8, 0)  # Ampere: the first NVIDIA generation with bf16 arithmetic


@dataclass(frozen=True)
class Hardware:
    """The one device that a run uses. `memory_gib` is the GPU's memory, or the machine's without a GPU."""

    device: str  # "cpu", "cuda" or "mps"
    name: str
    capability: tuple[int, int] | None = None  # CUDA compute capability
    memory_gib: float = 0.0
    cpu_count: int = 1
    native_bf16_cpu: bool = False
    gpu_count: int = 0

    def __str__(self) -> str:
        if self.device == "cuda" and self.capability:
            major, minor = self.capability
            extra = f", the first of {self.gpu_count} GPUs" if self.gpu_count > 1 else ""
            return f"{self.name} (compute capability {major}.{minor}, {self.memory_gib:.1f} GiB{extra})"
        return f"{self.name} ({self.cpu_count} CPU cores, {self.memory_gib:.1f} GiB)"


def probe() -> Hardware:
    """Look at this machine. An NVIDIA GPU is preferred, then Apple's, then the CPU."""
    cores, bf16 = usable_cores(), cpu_has_bf16()
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        capability = (card.major, card.minor)
        gpus = torch.cuda.device_count()
        return Hardware("cuda", card.name, capability, card.total_memory / GIB, cores, bf16, gpus)
    if torch.backends.mps.is_available():
        return Hardware("mps", "Apple GPU", None, system_memory_gib(), cores, bf16, 1)
    name = platform.processor() or platform.machine() or "CPU"
    return Hardware("cpu", f"CPU {name}", None, system_memory_gib(), cores, bf16, 0)


def usable_cores() -> int:
    """Cores this process may use, which in a container are often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def system_memory_gib() -> float:
    """The machine's memory, or the container's limit where that is smaller; 0 where neither is known."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0.0
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return total / GIB


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself. Reported only: on a CPU the course computes in fp32."""
    try:
        words = Path("/proc/cpuinfo").read_text(errors="replace").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(words)


def compute_dtype(hardware: Hardware) -> tuple[torch.dtype, str]:
    """Return the dtype of 4-bit matrix products and why, by device and compute capability alone.

    `torch.cuda.is_bf16_supported()` is no guide: it is true on a T4, which emulates bf16, slowly.
    """
    if hardware.device == "cpu":
        return torch.float32, "fp32: on a CPU half precision saves little and trains many times slower"
    if hardware.device == "mps":
        return torch.float32, "fp32: half-precision training is not tested on Apple GPUs"
    if hardware.capability is None:
        raise ValueError("a CUDA device has a compute capability")
    version = ".".join(map(str, hardware.capability))
    if hardware.capability < FIRST_BF16_CAPABILITY:
        return torch.float16, f"fp16: compute capability {version} is below 8.0, which has no bf16 arithmetic"
    return torch.bfloat16, f"bf16: compute capability {version} is 8.0 or above"


def precision(quantization: str, hardware: Hardware) -> tuple[torch.dtype, str]:
    """Return the dtype to load a base in, and why: `compute_dtype` for "nf4", fp32 for "none".

    Unquantised models of this course are small. In fp32 they need no loss scaling and cannot overflow.
    """
    if quantization == "nf4":
        return compute_dtype(hardware)
    return torch.float32, "fp32: the model is not quantised and small enough"
