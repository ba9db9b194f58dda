"""What goes wrong in the functions of lesson 14."""

from typing import Any

import torch

from solutions.mistakes.base import mistake

# bitsandbytes' levels once more: mistakes import no answer.
LEVELS = torch.tensor(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)
MIDPOINTS = (LEVELS[:-1] + LEVELS[1:]) / 2


def quantise(name, hint):
    """A mistake of nf4_quantize."""
    return mistake("nf4_quantize", name, hint)


def dequantise(name, hint):
    """A mistake of nf4_dequantize."""
    return mistake("nf4_dequantize", name, hint)


def coded(scaled, bounds=MIDPOINTS, right=False):
    """Codes of scaled weights."""
    return torch.bucketize(scaled.clamp(-1, 1), bounds, right=right).to(torch.uint8)


def inverse(absmax):
    """1 / absmax, as bitsandbytes has it."""
    return 1 / absmax.clamp(min=1e-38)


@quantise(
    "nf4_divides",
    "weight / absmax and weight * (1 / absmax) round differently now and then. bitsandbytes multiplies, and"
    " codes are to be equal to its own.",
)
def divides(block):
    absmax = block.float().abs().max()
    return coded(block.float() / absmax.clamp(min=1e-38)), absmax


@quantise("nf4_ties_up", "A weight on a midpoint takes the upper level here. It takes the lower one.")
def ties_up(block):
    absmax = block.float().abs().max()
    return coded(block.float() * inverse(absmax), right=True), absmax


@quantise("nf4_even_levels", "The levels are evenly spaced, as in int4. NF4's stand closer around 0.")
def even_levels(block):
    absmax = block.float().abs().max()
    return ((block.float() * inverse(absmax) + 1) * 7.5).round().clamp(0, 15).to(torch.uint8), absmax


@quantise("nf4_level_below", "Each weight goes to the level below it. It goes to the nearest one.")
def level_below(block):
    absmax = block.float().abs().max()
    codes = torch.bucketize((block.float() * inverse(absmax)).clamp(-1, 1), LEVELS, right=True) - 1
    return codes.to(torch.uint8), absmax


@quantise("nf4_max_with_sign", "The scale is the largest weight. It is the largest absolute weight.")
def max_with_sign(block):
    absmax = block.float().max()
    return coded(block.float() * inverse(absmax)), absmax


@quantise("nf4_not_scaled", "The weights are not divided by their absmax: the levels reach from -1 to 1.")
def not_scaled(block):
    return coded(block.float()), block.float().abs().max()


@quantise("nf4_std_as_scale", "The scale is the deviation. With the largest absolute weight nothing is cut.")
def std_as_scale(block):
    scale = block.float().square().mean().sqrt()
    return coded(block.float() * inverse(scale)), scale


@quantise("nf4_zero_block", "A block of zeros has no scale, and 0/0 is NaN: its codes are 7, the level of 0.")
def zero_block(block):
    absmax = block.float().abs().max()
    return coded(block.float() * (1 / absmax)), absmax


@quantise("nf4_inverse_scale", "The codes are right. The scale is 1/absmax: give back absmax.")
def inverse_scale(block):
    absmax = block.float().abs().max()
    return coded(block.float() * inverse(absmax)), inverse(absmax)


@quantise("nf4_levels_for_codes", "These are the levels. The codes, their places in the table, are asked.")
def levels_for_codes(block):
    absmax = block.float().abs().max()
    return LEVELS[coded(block.float() * inverse(absmax)).long()], absmax


@dequantise(
    "nf4_codes_as_mask",
    "PyTorch reads a uint8 index as a mask: it picks entries or raises. Make the codes .long() first.",
)
def codes_as_mask(codes, absmax):
    return LEVELS[codes.bool() if codes.dtype == torch.uint8 else codes.long()] * absmax


@dequantise("nf4_scale_forgotten", "absmax does not enter: a level is a weight divided by it.")
def scale_forgotten(codes, absmax):
    return LEVELS[codes.long()]


@dequantise("nf4_scale_divides", "absmax divides. Quantising divided by it, so multiply.")
def scale_divides(codes, absmax):
    return LEVELS[codes.long()] / absmax


@dequantise("nf4_even_levels", "The levels are evenly spaced, as in int4. NF4's stand in a table.")
def even_levels_back(codes, absmax):
    return (codes.float() / 7.5 - 1) * absmax


@dequantise("nf4_codes_as_weights", "The codes themselves are scaled. Look up their levels in the table.")
def codes_as_weights(codes, absmax):
    return codes.float() * absmax


@dequantise("nf4_code_off_by_one", "Codes are taken as if they began at 1: code 0 is the first level.")
def code_off_by_one(codes, absmax):
    return LEVELS[codes.long() - 1] * absmax


# ---------------------------------------------------------------- qlora_memory_gib
def memory(name, hint):
    """A mistake of qlora_memory_gib, which changes its settings, or its parts in bytes."""

    def enter(change):
        def qlora_memory_gib(linear, other, adapter, tokens, hidden, inter, layers, vocab, **settings):
            sizes = (linear, other, adapter, tokens, hidden, inter, layers, vocab)
            return change(sizes, settings)

        mistake("qlora_memory_gib", name, hint)(qlora_memory_gib)
        return change

    return enter


def in_bytes(sizes, settings, **changed):
    """The right parts in bytes, with some replaced."""
    linear, other, adapter, tokens, hidden, inter, layers, vocab = sizes
    given: dict[str, Any] = {
        "quantised": True,
        "double_quantised": True,
        "compute_bytes": 2,
        "optimizer_bytes": 8,
    }
    given |= {"checkpointing": True, "lora_dropout": False, "logits_at_once": None, **settings}
    width, logits = given["compute_bytes"], given["logits_at_once"]
    constants = 1 / 64 + 4 / 64 / 256 if given["double_quantised"] else 1 / 16
    inside = 8 * hidden + 4 * inter + given["lora_dropout"] * (9 * hidden + inter)
    kept = layers * hidden + inside if given["checkpointing"] else layers * inside
    return {
        "weights": linear * (0.5 + constants if given["quantised"] else width) + other * width,
        "unpacked": hidden * inter * width * given["quantised"],
        "adapters": 4 * adapter,
        "gradients": 4 * adapter,
        "optimizer": given["optimizer_bytes"] * adapter,
        "activations": tokens * kept * width,
        "logits": 8 * (tokens * vocab if logits is None else logits),
        **changed,
    }


def gib(parts, unit=2**30):
    """Parts and their sum in GiB."""
    parts = {name: size / unit for name, size in parts.items()}
    return {**parts, "total": sum(parts.values())}


@memory("memory_decimal_units", "These are GB of 10**9 bytes. A GiB is 2**30 bytes, 7 % more.")
def decimal_units(sizes, settings):
    return gib(in_bytes(sizes, settings), 1e9)


@memory("memory_bits_as_bytes", "4 bits are half a byte, not 4 bytes.")
def bits_as_bytes(sizes, settings):
    extra = 3.5 * sizes[0] if settings.get("quantised", True) else 0
    return gib(in_bytes(sizes, settings, weights=in_bytes(sizes, settings)["weights"] + extra))


@memory("memory_no_constants", "The scales are forgotten: every 64 weights have an absmax of their own.")
def no_constants(sizes, settings):
    if not settings.get("quantised", True):
        return gib(in_bytes(sizes, settings))
    other = sizes[1] * settings.get("compute_bytes", 2)
    return gib(in_bytes(sizes, settings, weights=sizes[0] / 2 + other))


@memory("memory_double_quantised_ignored", "double_quantised has no effect on the scales.")
def double_quantised_ignored(sizes, settings):
    return gib(in_bytes(sizes, {**settings, "double_quantised": False}))


@memory("memory_all_quantised", "Embeddings and norms are counted in 4 bits. Only linear layers are.")
def all_quantised(sizes, settings):
    if not settings.get("quantised", True):
        return gib(in_bytes(sizes, settings))
    return gib(in_bytes((sizes[0] + sizes[1], 0, *sizes[2:]), settings))


@memory("memory_frozen_trained", "Frozen weights get gradients and optimiser state. Only adapters do.")
def frozen_trained(sizes, settings):
    every = sum(sizes[:3])
    rate = settings.get("optimizer_bytes", 8)
    return gib(in_bytes(sizes, settings, gradients=4 * every, optimizer=rate * every))


@memory("memory_gradients_forgotten", "Gradients of the adapters are missing: 4 bytes a trained weight.")
def gradients_forgotten(sizes, settings):
    return gib(in_bytes(sizes, settings, gradients=0))


@memory("memory_one_moment", "AdamW holds two numbers a weight. optimizer_bytes says what a weight costs.")
def one_moment(sizes, settings):
    return gib(in_bytes(sizes, settings, optimizer=4 * sizes[2]))


@memory("memory_checkpointing_ignored", "checkpointing has no effect: it keeps only each layer's input.")
def checkpointing_ignored(sizes, settings):
    return gib(in_bytes(sizes, {**settings, "checkpointing": False}))


@memory(
    "memory_one_layer", "One layer's activations are counted. Without checkpointing all layers' are kept."
)
def one_layer(sizes, settings):
    return gib(in_bytes((*sizes[:6], min(sizes[6], 1), sizes[7]), settings))


@memory("memory_logits_forgotten", "The logits are missing: tokens times vocab is often the largest part.")
def logits_forgotten(sizes, settings):
    return gib(in_bytes(sizes, settings, logits=0))


@memory("memory_logits_once", "Logits are counted once. Their gradient is as large as they are.")
def logits_once(sizes, settings):
    return gib(in_bytes(sizes, settings, logits=in_bytes(sizes, settings)["logits"] / 2))


@memory("memory_total_without", "total leaves the frozen weights out. It is the sum of all parts.")
def total_without(sizes, settings):
    parts = gib(in_bytes(sizes, settings))
    return {**parts, "total": parts["total"] - parts["weights"]}
