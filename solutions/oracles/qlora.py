"""Oracles of lesson 14: NF4 weight by weight, and memory part by part."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from solutions.oracles.base import Given, in_bfloat16, noise, oracle, row

# The NF4 codebook of bitsandbytes; as decimals of float32 numbers.
TABLE = """-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
-0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634
0.33791524171829224 0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0"""
LEVELS = [np.float32(word) for word in TABLE.split()]
MIDPOINTS = [(low + high) / np.float32(2) for low, high in pairwise(LEVELS)]


# ---------------------------------------------------------------- nf4_quantize
def on_midpoints(scale: float) -> torch.Tensor:
    """A block whose weights, divided by its absmax, lie on the midpoints (a power of 2 keeps them exact)."""
    return torch.tensor([1.0, *map(float, MIDPOINTS)], dtype=torch.float32) * scale


def beside_midpoints() -> torch.Tensor:
    """One float32 number above each midpoint, and below it."""
    points = torch.tensor([float(x) for x in MIDPOINTS])
    up, down = (torch.nextafter(points, torch.full_like(points, side)) for side in (2.0, -2.0))
    return torch.cat([row(-1.0), up, down])


def unevenly_rounded() -> torch.Tensor:
    """Weights for which weight / absmax and weight * (1 / absmax) fall on two sides of a midpoint."""
    for seed in range(1000):
        absmax = np.float32(1.5 + seed / 512)
        weights = [midpoint * absmax for midpoint in MIDPOINTS]
        if sum(code(w * (np.float32(1) / absmax)) != code(w / absmax) for w in weights) >= 2:
            return torch.tensor([float(absmax), *map(float, weights)], dtype=torch.float32)
    raise AssertionError("no such block")


def code(scaled: np.float32) -> int:
    """Midpoints that lie below."""
    return sum(bool(midpoint < scaled) for midpoint in MIDPOINTS)


def quantize_cases() -> list[Given]:
    """Weights of every size; midpoints and their neighbours; blocks without a scale."""
    return [
        Given("one weight", {"block": row(0.7)}),
        Given("one negative weight", {"block": row(-0.7)}),
        Given("a few weights", {"block": row(0.5, -1.0, 0.25, 0.0, 0.1)}),
        Given("a block of 64", {"block": noise(0, 64)}),
        Given("a block of 32", {"block": noise(1, 32, scale=0.05)}),
        Given("weights of one sign", {"block": noise(2, 16).abs() + 1}),
        Given("the largest is negative", {"block": row(-2.0, 1.0, 0.5, -0.5)}),
        Given("weights on midpoints", {"block": on_midpoints(0.25)}),
        Given("weights beside midpoints", {"block": beside_midpoints()}),
        Given("weights where dividing rounds another way", {"block": unevenly_rounded()}),
        Given("zeros alone", {"block": torch.zeros(8)}),
        Given("zeros among others", {"block": row(0.0, 3.0, 0.0, -0.5)}),
        Given("tiny weights", {"block": noise(3, 16) * 1e-30}),
        Given("weights below the smallest scale", {"block": row(1e-39, -1e-39, 5e-40)}),
        Given("huge weights", {"block": noise(4, 16) * 1e30}),
        Given("one outlier", {"block": torch.cat([noise(5, 15, scale=0.02), row(30.0)])}),
        Given("inputs that are not contiguous", {"block": noise(6, 16)}, layout="sliced"),
        Given("inputs in bfloat16", in_bfloat16({"block": noise(7, 16)})),
    ]


@oracle(
    cases=quantize_cases,
    inputs={"block": {"kind": "normal", "shape": "L", "scale": 0.3}},
    properties=(
        ("repeatable", {}),
        ("matters", {"name": "block"}),
        ("codes_keep_under_scale", {"name": "block"}),
        ("codes_go_with_weights", {"name": "block"}),
        ("largest_is_extreme", {"name": "block", "codes": [0, 15]}),
        ("between", {"low": 0.0, "high": 15.0}),
    ),
)
def nf4_quantize(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each weight times the reciprocal of the largest, in float32; then how many midpoints lie below it."""
    weights = [np.float32(weight) for weight in block.tolist()]
    absmax = max(abs(weight) for weight in weights)
    inverse = np.float32(1) / max(absmax, np.float32(1e-38))
    codes = [code(weight * inverse) for weight in weights]
    return torch.tensor(codes, dtype=torch.uint8), torch.tensor(float(absmax), dtype=torch.float64)


# ---------------------------------------------------------------- nf4_dequantize
def coded(codes: list[int], absmax: float, dtype: torch.dtype = torch.uint8) -> dict[str, Any]:
    """The arguments of `nf4_dequantize`."""
    return {"codes": torch.tensor(codes, dtype=dtype), "absmax": torch.tensor(absmax)}


@oracle(
    cases=lambda: [
        Given("the largest level", coded([15], 2.0)),
        Given("the middle", coded([7, 7], 3.0)),
        Given("every level", coded(list(range(16)), 1.0)),
        Given("every level, scaled", coded(list(range(16)), 0.37)),
        Given("a few weights", coded([0, 3, 9, 12, 7], 0.02)),
        Given("codes in int64", coded([1, 14, 8, 2], 1.5, torch.int64)),
        Given("codes in int32", coded([4, 11, 0], 1e-4, torch.int32)),
        Given("a block of zeros", coded([7, 7, 7], 0.0)),
        Given("a huge scale", coded([5, 10, 13, 0], 1e30)),
        Given("zeros and ones as codes", coded([0, 1, 1, 0, 1], 0.5)),
        Given("inputs that are not contiguous", coded([2, 6, 13, 15], 0.8), layout="sliced"),
    ],
    inputs={"codes": {"kind": "codes", "shape": "L"}, "absmax": {"kind": "normal", "shape": "", "mean": 3.0}},
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["codes"], "result": "rows"}),
        ("rows_alone", {"rows": ["codes"]}),
        ("matters", {"name": "codes"}),
        ("matters", {"name": "absmax"}),
    ),
)
def nf4_dequantize(codes: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
    """Look each code up."""
    return torch.tensor([float(LEVELS[int(c)]) * float(absmax) for c in codes], dtype=torch.float64)


# ---------------------------------------------------------------- qlora_memory_gib
SIZES = ("linear_parameters", "other_parameters", "adapter_parameters", "tokens")
SHAPES = ("hidden", "intermediate", "layers", "vocab")
QWEN_7B = (6_525_288_448, 1_090_332_160, 80_740_352, 4096, 3584, 18944, 28, 152_064)
QWEN_1B = (1_310_195_712, 233_518_592, 36_929_536, 2048, 1536, 8960, 28, 151_936)
SMOLLM2 = (106_168_320, 28_346_688, 9_768_960, 1024, 576, 1536, 30, 49_152)
BLOCK = 16_777_216


def budget(sizes: tuple[int, ...], **rest: Any) -> dict[str, Any]:
    """The arguments of `qlora_memory_gib`."""
    return {**dict(zip((*SIZES, *SHAPES), sizes, strict=True)), **rest}


@oracle(
    cases=lambda: [
        Given("7B with every saving", budget(QWEN_7B, optimizer_bytes=2, logits_at_once=BLOCK)),
        Given("7B as the defaults have it", budget(QWEN_7B)),
        Given("7B without checkpointing", budget(QWEN_7B, checkpointing=False)),
        Given("7B with constants in float32", budget(QWEN_7B, double_quantised=False)),
        Given("7B in half precision", budget(QWEN_7B, quantised=False)),
        Given("1.5B with dropout", budget(QWEN_1B, lora_dropout=True)),
        Given("1.5B with dropout, all kept", budget(QWEN_1B, lora_dropout=True, checkpointing=False)),
        Given("135M in float32", budget(SMOLLM2, quantised=False, compute_bytes=4, checkpointing=False)),
        Given("135M in 4 bits, on a CPU", budget(SMOLLM2, compute_bytes=4, double_quantised=False)),
        Given("a billion weights and nothing else", budget((2**30, 0, 0, 0, 0, 0, 0, 0))),
        Given("adapters alone", budget((0, 0, 2**28, 0, 0, 0, 0, 0), optimizer_bytes=2)),
        Given("one token", budget((0, 0, 0, 1, 2**20, 2**21, 4, 2**18), checkpointing=False)),
    ],
    inputs={
        "linear_parameters": {"kind": "choice", "of": [10**8, 13 * 10**8, 65 * 10**8]},
        "other_parameters": {"kind": "choice", "of": [2 * 10**7, 23 * 10**7, 10**9]},
        "adapter_parameters": {"kind": "choice", "of": [10**7, 4 * 10**7, 8 * 10**7]},
        "tokens": {"kind": "choice", "of": [512, 2048, 4096]},
        "hidden": {"kind": "choice", "of": [576, 1536, 3584]},
        "intermediate": {"kind": "choice", "of": [1536, 8960, 18944]},
        "layers": {"kind": "choice", "of": [24, 28, 30]},
        "vocab": {"kind": "choice", "of": [49_152, 151_936]},
        "quantised": {"kind": "choice", "of": [True, False], "absent": 0.4},
        "double_quantised": {"kind": "choice", "of": [True, False], "absent": 0.4},
        "compute_bytes": {"kind": "choice", "of": [2, 4], "absent": 0.4},
        "optimizer_bytes": {"kind": "choice", "of": [2, 8], "absent": 0.4},
        "checkpointing": {"kind": "choice", "of": [True, False], "absent": 0.4},
        "lora_dropout": {"kind": "choice", "of": [True, False], "absent": 0.4},
        "logits_at_once": {"kind": "choice", "of": [10**7, 3 * 10**7], "absent": 0.5},
    },
    optional=(
        *("quantised", "double_quantised", "compute_bytes", "optimizer_bytes", "checkpointing"),
        *("lora_dropout", "logits_at_once"),
    ),
    properties=(
        ("repeatable", {}),
        *(("depends_on_number", {"name": name, "values": [64, 128]}) for name in (*SIZES, *SHAPES)),
        ("depends_on_number", {"name": "compute_bytes", "values": [2, 4]}),
        ("depends_on_number", {"name": "optimizer_bytes", "values": [2, 8]}),
        ("depends_on_number", {"name": "checkpointing", "values": [True, False]}),
        ("depends_on_number", {"name": "double_quantised", "values": [True, False]}),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def qlora_memory_gib(
    linear_parameters: int,
    other_parameters: int,
    adapter_parameters: int,
    tokens: int,
    hidden: int,
    intermediate: int,
    layers: int,
    vocab: int,
    quantised: bool = True,
    double_quantised: bool = True,
    compute_bytes: int = 2,
    optimizer_bytes: float = 8,
    checkpointing: bool = True,
    lora_dropout: bool = False,
    logits_at_once: int | None = None,
) -> dict[str, float]:
    """In bits, as quantisation is spoken of: 4.127 a weight (section 3), 4.5 with constants in float32."""
    bits = 8.0 * compute_bytes
    if quantised:
        bits = 4 + (8 / 64 + 32 / 64 / 256 if double_quantised else 32 / 64)
    values = 0  # that one token leaves behind
    for layer in range(layers):
        values += hidden if checkpointing else 8 * hidden + 4 * intermediate
        if lora_dropout and not checkpointing:
            values += 9 * hidden + intermediate
        if checkpointing and layer == layers - 1:
            values += 8 * hidden + 4 * intermediate
            values += 9 * hidden + intermediate if lora_dropout else 0
    numbers = logits_at_once if logits_at_once is not None else tokens * vocab
    in_bits = {
        "weights": linear_parameters * bits + other_parameters * 8 * compute_bytes,
        "unpacked": 8 * compute_bytes * hidden * intermediate * int(quantised),
        "adapters": 32 * adapter_parameters,
        "gradients": 32 * adapter_parameters,
        "optimizer": 8 * optimizer_bytes * adapter_parameters,
        "activations": 8 * compute_bytes * tokens * values,
        "logits": 2 * 32 * numbers,
    }
    in_bits["total"] = sum(in_bits.values())
    return {part: size / 8 / 1024**3 for part, size in in_bits.items()}
