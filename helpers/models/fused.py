"""Log-probability and entropy per token from hidden states, without ever holding all the logits.

Full logits for 2,048 positions of a 151,936-token vocabulary take 1.2 GB in float32, and training holds
several copies of them. Here the LM head is applied to a block of the vocabulary at a time, with the running
maximum and rescaled sums of online softmax (Milakov & Gimelshein 2018, arXiv 1805.02867).

*Frozen head* (LoRA, QLoRA): the gradient with respect to a hidden state h needs no second pass. With
p = softmax(Wh/T),

    d log p(y) / dh = (W[y] - Wᵀp) / T        d H / dh = -Wᵀ[p ∘ (log p + H)] / T

Wᵀp is summed beside the normaliser in the forward pass, so one vector of the size of h is kept per token (a
second one for the entropy) and only scaled in the backward pass: two matrix products, as with full logits.

*Trainable head* (full fine-tuning, tied embeddings): the logits are recomputed block by block in the backward
pass, which then yields the gradients of weight, bias and hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from helpers.errors import CourseError
from helpers.models.anatomy import Head, head_of

__all__ = ["Head", "fused_logprobs", "head_of"]

BLOCK_BYTES = 64 * 2**20  # of float32 logits alive at once (twice that with an entropy)
ROWS_AT_ONCE = 4096  # more positions than this are taken in turn, so that a block stays wide
SUMS_HALVES_IN_FLOAT32 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)
SMALLEST_EXPONENT = -1e4  # exp() of it is 0, and 0 * it is still 0, where 0 * -inf would be NaN


def fused_logprobs(
    hidden: torch.Tensor,
    head_weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    temperature: float = 1.0,
    bias: torch.Tensor | None = None,
    chunk_size: int | None = None,
    with_entropy: bool = False,
    entropy_grad: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log p(label) and, on request, the entropy of p at every position, in nats.

    p = softmax((head_weight @ hidden + bias) / temperature), so both results are those of the distribution
    that is sampled from at that temperature.

    Args:
        hidden: (M, H) states that predict the labels. M may be 0.
        head_weight: (V, H), float32, float16 or bfloat16. If it requires a gradient it gets one.
        labels: (M,) long, in [0, V). Take out ignored positions first; there is no -100.
        temperature: of sampling, above 0.
        bias: (V,) or None.
        chunk_size: vocabulary entries a block. None: 64 MB of float32 logits.
        with_entropy: also return the entropy.
        entropy_grad: False if the entropy is only looked at, which saves a third matrix product.

    Returns:
        logprobs (M,) and entropy (M,) or None: float32, with float32 sums whatever the dtype of the head;
        float64 if `hidden` is float64 (for gradient checks). Values are the same bit for bit with and without
        gradients. Gradients come back in the dtype of their tensor, and can be taken once.

    Raises:
        CourseError: on shapes, labels or a temperature that make no sense.
    """
    _check(hidden, head_weight, labels, temperature, bias, chunk_size)
    learning = torch.is_grad_enabled()
    head_learns = learning and (head_weight.requires_grad or (bias is not None and bias.requires_grad))
    shape = (float(temperature), chunk_size, with_entropy)
    # Autocast would turn the float32 sums below into half precision.
    with torch.autocast(hidden.device.type, enabled=False):
        if head_learns:
            logprobs, entropy = _TrainableHead.apply(hidden, head_weight, bias, labels, *shape)
        elif learning and hidden.requires_grad:
            logprobs, entropy = _FrozenHead.apply(hidden, head_weight, bias, labels, *shape, entropy_grad)
        else:
            sums = _Sums(hidden, head_weight, bias, labels, *shape)
            logprobs, entropy = sums.logprobs(), sums.entropy()
    if entropy is not None and not entropy_grad:
        entropy = entropy.detach()
    return logprobs, entropy


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float,
    bias: torch.Tensor | None,
    chunk_size: int | None,
) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise CourseError(f"temperature is {temperature}; log-probabilities need a number above 0")
    if chunk_size is not None and chunk_size < 1:
        raise CourseError(f"chunk_size is {chunk_size}; give at least 1 vocabulary entry a block")
    if not weight.is_floating_point():
        raise CourseError(f"the LM head is stored as {weight.dtype}; load it in float32, bfloat16 or float16")
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise CourseError(f"hidden {tuple(hidden.shape)} and head {tuple(weight.shape)}: want (M, H), (V, H)")
    if labels.shape != hidden.shape[:1] or (bias is not None and bias.shape != weight.shape[:1]):
        raise CourseError(f"labels {tuple(labels.shape)}: want one for each of {hidden.shape[0]} positions")
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= weight.shape[0]):
        raise CourseError(f"a label lies outside 0..{weight.shape[0] - 1}; take out ignored positions first")


class _Blocks:
    """Scaled logits of some positions, a block of the vocabulary at a time, in one reused buffer.

    Products with a half-precision head are summed in float32: on CUDA by the matrix product itself, on other
    devices by converting a block of the head.
    """

    def __init__(self, weight, bias, rows: int, dtype: torch.dtype, temperature: float, width: int):
        self.weight, self.bias, self.temperature = weight, bias, temperature
        self.dtype, self.width = dtype, width
        self.converts = weight.dtype != dtype and not (weight.is_cuda and dtype == torch.float32)
        self.logits = torch.empty(rows * width, dtype=dtype, device=weight.device)
        size = width * weight.shape[1] if self.converts else 0
        self.converted = torch.empty(size, dtype=dtype, device=weight.device)

    def spans(self) -> Iterator[tuple[int, int]]:
        vocabulary = self.weight.shape[0]
        for start in range(0, vocabulary, self.width):
            yield start, min(start + self.width, vocabulary)

    def head(self, start: int, stop: int) -> torch.Tensor:
        """Return rows of the head, (stop-start, H), in the dtype it is multiplied in."""
        block = self.weight[start:stop]
        if not self.converts:
            return block
        return self.converted[: block.numel()].view(block.shape).copy_(block)

    def scaled(self, hidden: torch.Tensor, block: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return (rows, stop-start) of (hidden @ blockᵀ + bias) / temperature, overwriting the buffer."""
        shape = (hidden.shape[0], stop - start)
        logits = self.logits[: shape[0] * shape[1]].view(shape)
        multiply(hidden, block.t(), out=logits)
        if self.bias is not None:
            logits += self.bias[start:stop]
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


def multiply(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, add: bool = False) -> torch.Tensor:
    """out = a @ b, or out += a @ b, summed in the dtype of `out` even where b is in half precision."""
    if b.dtype == out.dtype:
        a = a.to(out.dtype)
        return out.addmm_(a, b) if add else torch.mm(a, b, out=out)
    # CUDA only, see _Blocks.converts. Before torch 2.8 the product is rounded to half precision.
    a = a.to(b.dtype)
    product = torch.mm(a, b, out_dtype=out.dtype) if SUMS_HALVES_IN_FLOAT32 else torch.mm(a, b)
    return out.add_(product) if add else out.copy_(product)


def _width(rows: int, vocabulary: int, chunk_size: int | None) -> int:
    """Vocabulary entries a block, so that a block of float32 logits for `rows` positions keeps the budget."""
    return min(vocabulary, chunk_size or max(1, BLOCK_BYTES // (4 * max(rows, 1))))


def _accumulator(hidden: torch.Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


class _Sums:
    """One pass over the vocabulary for all positions: normaliser, entropy and, if asked, their gradients.

    Per position, with z the scaled logits and m their maximum: sum e^(z-m), sum e^(z-m)(z-m), and both again
    with the rows of the head as values. When a block raises m, what was summed before is rescaled.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        temperature: float,
        chunk_size: int | None,
        with_entropy: bool,
        gradient: bool = False,
        entropy_gradient: bool = False,
    ):
        self.hidden, self.weight, self.labels = hidden, weight, labels
        self.temperature, self.with_entropy = temperature, with_entropy
        positions, dtype = hidden.shape[0], _accumulator(hidden)
        self.top = hidden.new_full((positions,), torch.finfo(dtype).min, dtype=dtype)
        self.chosen = torch.zeros_like(self.top)  # scaled logit of the label
        self.total = torch.zeros_like(self.top)
        self.moment = torch.zeros_like(self.top) if with_entropy else None
        mean = hidden.new_zeros(hidden.shape, dtype=dtype) if gradient else None
        self.mean_row = mean  # becomes sum of e^(z-m) * row of the head
        self.moment_row = torch.zeros_like(mean) if mean is not None and entropy_gradient else None
        rows = min(positions, ROWS_AT_ONCE)
        width = _width(rows, weight.shape[0], chunk_size)
        blocks = _Blocks(weight, bias, rows, dtype, temperature, width)
        self.spare = torch.empty_like(blocks.logits) if with_entropy else None
        for begin in range(0, positions, ROWS_AT_ONCE):
            self._sweep(blocks, slice(begin, min(begin + ROWS_AT_ONCE, positions)))
        self.spare = None

    def _sweep(self, blocks: _Blocks, rows: slice) -> None:
        hidden = self.hidden[rows].to(blocks.weight.dtype if not blocks.converts else blocks.dtype)
        for start, stop in blocks.spans():
            block = blocks.head(start, stop)
            logits = blocks.scaled(hidden, block, start, stop)
            self._pick_labels(logits, rows, start, stop)
            self._raise_top(torch.maximum(self.top[rows], logits.amax(1)), rows)
            self._add(logits.sub_(self.top[rows, None]), block, rows)

    def _pick_labels(self, logits: torch.Tensor, rows: slice, start: int, stop: int) -> None:
        offset = self.labels[rows] - start
        here = (offset >= 0) & (offset < stop - start)
        value = logits.gather(1, offset.clamp(0, stop - start - 1)[:, None])[:, 0]
        self.chosen[rows] = torch.where(here, value, self.chosen[rows])

    def _raise_top(self, top: torch.Tensor, rows: slice) -> None:
        """Take `top` as the new maximum: e^(z-m) shrinks by e^δ and (z-m) by δ, where δ = old - new <= 0."""
        delta = (self.top[rows] - top).clamp_(min=SMALLEST_EXPONENT)
        shrink = delta.exp()
        self.top[rows] = top
        if self.moment is not None:
            self.moment[rows] += delta * self.total[rows]
            self.moment[rows] *= shrink
        if self.moment_row is not None and self.mean_row is not None:
            self.moment_row[rows].addcmul_(self.mean_row[rows], delta[:, None]).mul_(shrink[:, None])
        if self.mean_row is not None:
            self.mean_row[rows].mul_(shrink[:, None])
        self.total[rows] *= shrink

    def _add(self, shifted: torch.Tensor, block: torch.Tensor, rows: slice) -> None:
        """Add one block, given its z - m. Overwrites it."""
        if self.moment is None or self.spare is None:
            exponentials = shifted.exp_()
        else:
            shifted.clamp_(min=SMALLEST_EXPONENT)
            exponentials = torch.exp(shifted, out=self.spare[: shifted.numel()].view(shifted.shape))
            shifted.mul_(exponentials)
            self.moment[rows] += shifted.sum(1)
            if self.moment_row is not None:
                multiply(shifted, block, out=self.moment_row[rows], add=True)
        self.total[rows] += exponentials.sum(1)
        if self.mean_row is not None:
            multiply(exponentials, block, out=self.mean_row[rows], add=True)

    def logsumexp(self) -> torch.Tensor:
        return self.top + self.total.log()

    def logprobs(self) -> torch.Tensor:
        return self.chosen - self.top - self.total.log()

    def entropy(self) -> torch.Tensor | None:
        return None if self.moment is None else self.total.log() - self.moment / self.total

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return d log p / dh and d H / dh, each (M, H) in the dtype of the hidden states. Call last."""
        assert self.mean_row is not None
        mean, entropy = self.mean_row.div_(self.total[:, None]), None
        if self.moment_row is not None and self.moment is not None:
            # With E the mean under p: -E[(z - m) w] + E[z - m] E[w]
            expected = (self.moment / self.total)[:, None]
            entropy = self.moment_row.div_(-self.total[:, None]).addcmul_(mean, expected)
            entropy = entropy.div_(self.temperature).to(self.hidden.dtype)
        logprob = mean.neg_().add_(self.weight[self.labels]).div_(self.temperature)
        return logprob.to(self.hidden.dtype), entropy


class _FrozenHead(torch.autograd.Function):
    """The head gets no gradient; that of the hidden states is finished in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden, weight, bias, labels, temperature, chunk_size, with_entropy, entropy_grad
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = (temperature, chunk_size, with_entropy)
        sums = _Sums(hidden, weight, bias, labels, *shape, True, with_entropy and entropy_grad)
        logprobs, entropy = sums.logprobs(), sums.entropy()
        ctx.save_for_backward(*sums.gradients())
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs, grad_entropy):
        result = None
        for upstream, vectors in zip((grad_logprobs, grad_entropy), ctx.saved_tensors, strict=True):
            if upstream is None or vectors is None:
                continue
            part = (upstream[:, None] * vectors).to(vectors.dtype)
            result = part if result is None else result.add_(part)
        return result, *[None] * 7


class _TrainableHead(torch.autograd.Function):
    """Logits are recomputed block by block in the backward pass, for the gradients of head and hidden."""

    @staticmethod
    def forward(
        ctx: Any, hidden, weight, bias, labels, temperature, chunk_size, with_entropy
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        sums = _Sums(hidden, weight, bias, labels, temperature, chunk_size, with_entropy)
        entropy = sums.entropy()
        ctx.save_for_backward(hidden, weight, bias, labels, sums.logsumexp(), entropy)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        ctx.set_materialize_grads(False)
        return sums.logprobs(), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs, grad_entropy):
        hidden, weight, bias, *_ = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if grad_logprobs is None and grad_entropy is None:
            return (*[None] * 7,)
        with torch.autocast(hidden.device.type, enabled=False):
            grads = _head_gradients(ctx, grad_logprobs, grad_entropy, needed)
        tensors = (hidden, weight, bias)
        cast = [None if g is None else g.to(t.dtype) for g, t in zip(grads, tensors, strict=True)]
        return *cast, None, None, None, None


def _head_gradients(
    ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None, needed: tuple[bool, ...]
) -> list[torch.Tensor | None]:
    """Gradients of hidden (M, H), weight (V, H) and bias (V,), None where not needed."""
    hidden, weight, bias, labels, logsumexp, entropy = ctx.saved_tensors
    dtype, rows = _accumulator(hidden), min(hidden.shape[0], ROWS_AT_ONCE)
    width = _width(rows, weight.shape[0], ctx.chunk_size)
    blocks = _Blocks(weight, bias, rows, dtype, ctx.temperature, width)
    grads = [
        torch.zeros_like(tensor, dtype=dtype) if tensor is not None and need else None
        for tensor, need in zip((hidden, weight, bias), needed, strict=True)
    ]
    zeros = torch.zeros_like(logsumexp)
    upstream = (
        zeros if grad_logprobs is None else grad_logprobs.div(ctx.temperature),
        None if grad_entropy is None else grad_entropy.div(ctx.temperature),
    )
    states = hidden.to(dtype if blocks.converts else weight.dtype)
    for start, stop in blocks.spans():
        block = blocks.head(start, stop)
        for begin in range(0, hidden.shape[0], ROWS_AT_ONCE):
            part = slice(begin, begin + ROWS_AT_ONCE)
            logits = blocks.scaled(states[part], block, start, stop)
            saved = (labels[part] - start, logsumexp[part], None if entropy is None else entropy[part])
            given = (upstream[0][part], None if upstream[1] is None else upstream[1][part])
            slope = _logit_gradient(logits, *saved, *given)
            _add_products(grads, slope, states[part], block, part, slice(start, stop))
    return grads


def _logit_gradient(logits, offset, logsumexp, entropy, grad_logprobs, grad_entropy) -> torch.Tensor:
    """Turn scaled logits (rows, block) into the loss's gradient by unscaled logits, in place.

    d log p(y) / dz_j = [j = y] - p_j and d H / dz_j = -p_j (log p_j + H).
    """
    logits.sub_(logsumexp[:, None])
    if grad_entropy is None:
        slope = logits.exp_().mul_(-grad_logprobs[:, None])
    else:
        probabilities = logits.exp()
        slope = logits.clamp_(min=SMALLEST_EXPONENT).add_(entropy[:, None])
        slope.mul_(grad_entropy[:, None]).add_(grad_logprobs[:, None]).mul_(probabilities).neg_()
    here = (offset >= 0) & (offset < logits.shape[1])
    column = offset.clamp(0, logits.shape[1] - 1)[:, None]
    return slope.scatter_add_(1, column, (grad_logprobs * here)[:, None])


def _add_products(grads, slope, hidden, block, rows: slice, columns: slice) -> None:
    """Add one block's share to the gradients of hidden, weight and bias."""
    for_hidden, for_weight, for_bias = grads
    if for_hidden is not None:
        multiply(slope, block, out=for_hidden[rows], add=True)
    if for_weight is not None:
        multiply(slope.t(), hidden, out=for_weight[columns], add=True)
    if for_bias is not None:
        for_bias[columns] += slope.sum(0)
