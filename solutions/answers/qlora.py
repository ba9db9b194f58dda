"""Lesson 14: four bits a weight, and what a training run costs in memory."""

import torch

NF4_LEVELS = torch.tensor(  # quantiles of a normal distribution, scaled to [-1, 1]; code 7 is exactly 0
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    dtype=torch.float32,
)


def nf4_quantize(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise one block of weights to NF4 (Dettmers et al. 2023, arXiv 2305.14314, section 3).

    Args:
        block: (n,) finite weights that share one scale, at least one; bitsandbytes takes 64 at a time.

    Returns:
        codes: (n,) uint8 from 0 to 15, not packed: the place in NF4_LEVELS of the level nearest to
            weight / absmax. A weight on the float32 midpoint of two levels takes the lower one.
        absmax: () float32, the largest absolute weight. Where it is 0, all codes are 7.

    Codes equal those of bitsandbytes, which computes in float32 and multiplies by 1 / absmax: dividing by
    absmax rounds another way now and then. There absmax counts as 1e-38 at least.
    """
    levels = NF4_LEVELS.to(block.device)
    midpoints = (levels[:-1] + levels[1:]) / 2
    weights = block.float()
    absmax = weights.abs().max()
    scaled = weights * (1 / absmax.clamp(min=1e-38))
    return torch.bucketize(scaled, midpoints).to(torch.uint8), absmax


def nf4_dequantize(codes: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
    """Weights of a block from its codes and scale.

    Args:
        codes: (n,) integers from 0 to 15, of any dtype; PyTorch reads a uint8 index as a mask.
        absmax: () float32.

    Returns:
        (n,) float32: level times absmax.
    """
    return NF4_LEVELS.to(codes.device)[codes.long()] * absmax


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
    """Memory of a training run of LoRA adapters on a frozen model of Llama's kind, before it is started.

    Args:
        linear_parameters: frozen weights of the decoder's linear layers, which 4 bits are for.
        other_parameters: the other frozen weights: embeddings, norms, an untied LM head.
        adapter_parameters: trained weights, kept in float32 as their gradients are.
        tokens: positions of one micro-batch, padding included.
        hidden, intermediate, layers, vocab: sizes from the model's configuration.
        quantised: the linear layers are NF4: 4 bits a weight and, for every 64, an absmax of 4 bytes.
        double_quantised: that absmax is one byte instead, and every 256 of them share 4 bytes.
        compute_bytes: of a weight that is not quantised, and of an activation: 2 in half precision, else 4.
        optimizer_bytes: of optimiser state for each trained weight: 8 in AdamW, 2 in 8-bit AdamW.
        checkpointing: keep only the input of each layer (hidden values a token), and the inside of the one
            layer that is computed again.
        lora_dropout: adapters drop inputs out.
        logits_at_once: logits that exist at a time; None: all, tokens * vocab. The course's own losses
            work in blocks of about 16 million.

    Returns:
        GiB (2**30 bytes) by part:
            weights: frozen, with the constants of the quantisation;
            unpacked: the one matrix of hidden * intermediate that is being multiplied, if quantised;
            adapters, gradients, optimizer: 4, 4 and optimizer_bytes for each trained weight;
            activations: 8 * hidden + 4 * intermediate values a token in each layer, and
                9 * hidden + intermediate more with dropout (its results and its masks);
            logits: 8 bytes each, for the value and its gradient in float32;
            total: their sum.
    """
    constants = 1 / 64 + 4 / (64 * 256) if double_quantised else 4 / 64
    linear_bytes = 1 / 2 + constants if quantised else compute_bytes
    inside = 8 * hidden + 4 * intermediate + lora_dropout * (9 * hidden + intermediate)
    kept = layers * hidden + inside if checkpointing else layers * inside
    in_bytes = {
        "weights": linear_parameters * linear_bytes + other_parameters * compute_bytes,
        "unpacked": hidden * intermediate * compute_bytes if quantised else 0,
        "adapters": 4 * adapter_parameters,
        "gradients": 4 * adapter_parameters,
        "optimizer": optimizer_bytes * adapter_parameters,
        "activations": tokens * kept * compute_bytes,
        "logits": 8 * (tokens * vocab if logits_at_once is None else logits_at_once),
    }
    parts = {name: size / 2**30 for name, size in in_bytes.items()}
    return {**parts, "total": sum(parts.values())}
