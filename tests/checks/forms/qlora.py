"""Other ways to write the functions of lesson 14."""

import numpy as np
import torch

from solutions.answers.qlora import NF4_LEVELS

MIDDLE = (NF4_LEVELS[:-1] + NF4_LEVELS[1:]) / 2


def scaled(block):
    absmax = block.float().abs().amax()
    return block.float() * torch.reciprocal(absmax.clamp(min=1e-38)), absmax


def nf4_quantize_by_counting(block):
    values, absmax = scaled(block)
    return (values[:, None] > MIDDLE).sum(dim=1).to(torch.uint8), absmax


def nf4_quantize_by_searching(block):
    values, absmax = scaled(block)
    return torch.searchsorted(MIDDLE, values.contiguous()).byte(), absmax


def nf4_quantize_by_norm(block):
    absmax = torch.linalg.vector_norm(block.float(), float("inf"))
    values = block.float() * (1.0 / max(absmax, torch.tensor(1e-38)))
    return torch.bucketize(values, MIDDLE, out_int32=True).type(torch.uint8), absmax


def nf4_quantize_by_levels(block):
    values, absmax = scaled(block)
    codes = torch.zeros(len(block), dtype=torch.uint8)
    for level, bound in enumerate(MIDDLE, start=1):
        codes[values > bound] = level
    return codes, absmax


def nf4_quantize_by_numpy(block):
    weights = block.float().numpy()
    absmax = np.abs(weights).max()
    values = weights * (np.float32(1) / np.maximum(absmax, np.float32(1e-38)))
    codes = np.searchsorted(MIDDLE.numpy(), values, side="left").astype(np.uint8)
    return torch.from_numpy(codes), torch.tensor(absmax)


def nf4_dequantize_by_index(codes, absmax):
    return absmax * NF4_LEVELS[codes.to(torch.int64)]


def nf4_dequantize_by_gather(codes, absmax):
    return torch.gather(NF4_LEVELS * absmax, 0, codes.long())


def nf4_dequantize_by_selection(codes, absmax):
    return NF4_LEVELS.index_select(0, codes.int()).mul(absmax)


def nf4_dequantize_by_one_hot(codes, absmax):
    return torch.nn.functional.one_hot(codes.long(), 16).float() @ NF4_LEVELS * absmax


def nf4_dequantize_by_list(codes, absmax):
    return torch.stack([NF4_LEVELS[int(code)] for code in codes]) * absmax


def parts(weights, unpacked, trained, optimizer, activations, logits):
    sizes = [weights, unpacked, 4 * trained, 4 * trained, optimizer * trained, activations, logits]
    sizes = [*sizes, sum(sizes)]
    names = "weights unpacked adapters gradients optimizer activations logits total".split()
    return dict(zip(names, (size / 2**30 for size in sizes), strict=True))


def qlora_memory_gib_by_bits(
    linear,
    other,
    trained,
    tokens,
    hidden,
    intermediate,
    layers,
    vocab,
    quantised=True,
    double_quantised=True,
    compute_bytes=2,
    optimizer_bytes=8,
    checkpointing=True,
    lora_dropout=False,
    logits_at_once=None,
):
    bits = 4.126953125 if double_quantised else 4.5
    frozen = linear * (bits / 8 if quantised else compute_bytes) + other * compute_bytes
    layer = (17 * hidden + 5 * intermediate) if lora_dropout else 8 * hidden + 4 * intermediate
    values = layer + hidden * layers if checkpointing else layer * layers
    unpacked = hidden * intermediate * compute_bytes if quantised else 0
    numbers = tokens * vocab if logits_at_once is None else logits_at_once
    return parts(frozen, unpacked, trained, optimizer_bytes, tokens * values * compute_bytes, numbers * 2 * 4)


def qlora_memory_gib_by_names(
    linear_parameters,
    other_parameters,
    adapter_parameters,
    tokens,
    hidden,
    intermediate,
    layers,
    vocab,
    **given,
):
    sizes = (linear_parameters, other_parameters, adapter_parameters, tokens)
    return qlora_memory_gib_by_bits(*sizes, hidden, intermediate, layers, vocab, **given)


def qlora_memory_gib_by_position(*sizes, **given):
    return dict(reversed(qlora_memory_gib_by_bits(*sizes, **given).items()))


def qlora_memory_gib_in_float64(*sizes, **given):
    return {name: np.float64(x) for name, x in qlora_memory_gib_by_bits(*sizes, **given).items()}


def qlora_memory_gib_by_blocks(linear, *sizes, quantised=True, double_quantised=True, **given):
    result = qlora_memory_gib_by_bits(0, *sizes, quantised=quantised, **given)
    blocks = linear / 64
    bytes_of_block = 32 + (1 + 4 / 256 if double_quantised else 4)
    frozen = blocks * bytes_of_block if quantised else linear * given.get("compute_bytes", 2)
    for name in ("weights", "total"):
        result[name] += frozen / 2**30
    return result
