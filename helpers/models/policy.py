"""Log-probabilities of responses under a policy or a reference, from the decoder's hidden states.

One path for all roles: old, new and reference log-probabilities come from `response_logprobs`, so that the
ratio of a policy to itself is 1 and not 1 ± rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.models.adapters import reference
from helpers.models.anatomy import decoder_of, head_of, sliding_window, supports_packed, why_not_packed
from helpers.models.fused import fused_logprobs
from helpers.models.reference_cache import ReferenceFile, reference_fingerprint
from helpers.text.groups import Group, TokenBatch, make_batch

__all__ = [
    "TokenScores",
    "hidden_states",
    "layout_for",
    "predicting_hidden",
    "reference_logprobs",
    "response_hidden",
    "response_logprobs",
    "supports_packed",
]


@dataclass(frozen=True)
class TokenScores:
    """Per token of N responses, the longest of R tokens; zeros outside the mask."""

    logprobs: torch.Tensor  # (N, R) float32, log p(token | prompt, earlier response tokens)
    mask: torch.Tensor  # (N, R) bool
    entropy: torch.Tensor | None = None  # (N, R) float32, of the distribution each token was drawn from


def hidden_states(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return (rows * width, H): the decoder's last hidden states, after the final norm, before the LM head.

    Works for a transformers model, with or without LM head, and for the same inside PEFT (with whatever
    adapters are active). Runs in the model's own precision whatever autocast context the caller is in, as a
    trainer's step and a rollout would otherwise differ. Gradients flow if grad mode is on.

    Raises CourseError for a packed batch that the model cannot take; see `layout_for`.
    """
    decoder = decoder_of(model)
    embedding = cast(torch.Tensor, decoder.get_input_embeddings().weight)
    batch = batch.to(embedding.device)
    with _precision(embedding):
        output = decoder(
            input_ids=batch.input_ids,
            attention_mask=_attention_mask(model, batch, embedding.dtype),
            position_ids=batch.position_ids,
            use_cache=False,
        )
    states = output[0]
    return states.reshape(-1, states.shape[-1])


def _precision(embedding: torch.Tensor) -> AbstractContextManager:
    """Half-precision bases compute in their own dtype, so that float32 adapters on a GPU do not slow them."""
    if embedding.dtype not in (torch.float16, torch.bfloat16):
        return nullcontext()
    device = embedding.device.type
    return torch.autocast(device, dtype=embedding.dtype, enabled=device == "cuda")


def _attention_mask(model: nn.Module, batch: TokenBatch, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask in the form the model's attention takes.

    transformers hands a 4-D mask to the attention as it is. sdpa reads bool as "may attend"; eager *adds* the
    mask to the scores, where True would add 1 to the allowed ones and hide nothing.
    """
    if batch.layout != "packed":
        return batch.attention_mask
    config = decoder_of(model).config
    longest = int(batch.position_ids.max()) + 1 if sliding_window(config) is not None else None
    reason = why_not_packed(model, longest)
    if reason is not None:
        raise CourseError(f"{type(model).__name__} needs layout 'padded': {reason}")
    if config._attn_implementation == "sdpa":
        return batch.attention_mask
    floor = torch.finfo(dtype).min
    return torch.zeros_like(batch.attention_mask, dtype=dtype).masked_fill_(~batch.attention_mask, floor)


def response_logprobs(
    model: nn.Module,
    batch: TokenBatch,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_grad: bool = True,
) -> TokenScores:
    """Return log-probabilities, and entropies on request, of the response tokens of a batch.

    Args:
        model: a causal language model, bare or in PEFT, in the mode (train, eval) that is wanted.
        batch: packed or padded; moved to the model's device.
        temperature: of sampling; every log-probability that is compared has to have the same.
        with_entropy: also return the entropy at each response token.
        entropy_grad: False if the entropy is only logged, which is cheaper.

    Raises CourseError for heads and architectures that `head_of` or `decoder_of` refuse.
    """
    head = head_of(model)
    states = hidden_states(model, batch)
    mask = batch.mask.to(states.device)
    at_response = batch.predict_index.to(states.device)[mask]
    logprobs, entropy = fused_logprobs(
        states.index_select(0, at_response).to(head.weight.device),
        head.weight,
        batch.labels.to(head.weight.device)[mask],
        temperature=temperature,
        bias=head.bias,
        with_entropy=with_entropy,
        entropy_grad=entropy_grad,
    )
    return TokenScores(_spread(logprobs, mask), mask, None if entropy is None else _spread(entropy, mask))


def _spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(number of true entries,) → the mask's shape, zeros elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def response_hidden(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return (N, R, H): states AT the response tokens, zeros outside the mask, for reward and value heads.

    The state at a token has seen it; the state that predicts it is one token earlier.
    """
    states = hidden_states(model, batch)
    mask = batch.mask.to(states.device)
    return states[batch.token_index.to(states.device)].masked_fill(~mask[..., None], 0.0)


def predicting_hidden(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return (N, R, H): the states that predict the response tokens, zeros outside the mask.

    They are where the log-probabilities are read, and where a value belongs: it must not know the token.
    """
    states = hidden_states(model, batch)
    mask = batch.mask.to(states.device)
    return states[batch.predict_index.to(states.device)].masked_fill(~mask[..., None], 0.0)


def layout_for(model: nn.Module, groups: Sequence[Group] = (), wanted: str = "packed") -> str:
    """Return `wanted`, or "padded" with a warning that says why where the model cannot take "packed"."""
    if wanted != "packed":
        return wanted
    longest = max((_longest(group) for group in groups), default=None)
    reason = why_not_packed(model, longest)
    if reason is None:
        return wanted
    warnings.warn(f"layout 'padded' instead of 'packed': {reason}", stacklevel=2)
    return "padded"


def _longest(group: Group) -> int:
    return len(group.prompt_ids) + max(map(len, group.responses))


def reference_logprobs(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    pad_id: int,
    layout: str = "packed",
    adapter: str | None = None,
    temperature: float = 1.0,
    batch_tokens: int = 4096,
    cache_dir: str | Path | None = None,
    key: Any = (),
    progress: bool = True,
) -> list[list[torch.Tensor]]:
    """Return the reference's log-probabilities of a fixed data set: [group][response] → (length,) float32.

    The reference is the base with its adapter off, or a named frozen adapter. It is computed once, without
    dropout and gradients, and kept in `cache_dir` under a fingerprint of the token ids, the weights and
    config of the model (adapter and quantisation included), temperature, layout and `key`. Any change gives a
    new file; a damaged file is reported with a warning and computed again.

    Args:
        model: bare or in PEFT; its mode and active adapter are as before afterwards.
        groups: prompts with their responses, in the order of the result.
        pad_id: any valid token id.
        layout: "packed" or "padded"; see `layout_for`.
        adapter: name of a frozen adapter, None for the base.
        batch_tokens: tokens a forward pass, padding included; a group that is longer goes alone.
        cache_dir: None keeps nothing.
        key: whatever else decides the numbers, as JSON values: `ChatEncoder.fingerprint`, budgets.
        progress: show a bar on stderr.

    Raises CourseError if a log-probability is not finite (as float16 can give); nothing is cached then.
    """
    groups = list(groups)
    file = None
    if cache_dir is not None:
        name = reference_fingerprint(model, groups, adapter, temperature, layout, key)
        file = ReferenceFile(Path(cache_dir) / f"reference-{name}.safetensors", name)
        cached = file.read(groups)
        if cached is not None:
            return cached
    with _as_reference(model, adapter):
        batches = _batches(groups, layout, batch_tokens)
        result = _compute(model, groups, batches, pad_id, layout, temperature, progress)
    _refuse_non_finite(groups, result)
    if file is not None:
        file.write(result)
    return result


def _compute(
    model: nn.Module,
    groups: list[Group],
    batches: list[list[int]],
    pad_id: int,
    layout: str,
    temperature: float,
    progress: bool,
) -> list[list[torch.Tensor]]:
    result: list[list[torch.Tensor]] = [[] for _ in groups]
    bar = tqdm(
        total=len(groups), desc="reference log-probs", unit="prompt", leave=False, disable=not progress
    )
    with bar:
        for numbers in batches:
            batch = make_batch([groups[number] for number in numbers], pad_id, layout)
            scores = response_logprobs(model, batch, temperature=temperature)
            rows = zip(batch.group_index.tolist(), scores.logprobs.cpu(), batch.mask, strict=True)
            for group, logprobs, mask in rows:
                result[numbers[group]].append(logprobs[mask])
            bar.update(len(numbers))
    return result


def _batches(groups: list[Group], layout: str, batch_tokens: int) -> list[list[int]]:
    """Indices of groups, longest first and of like length, at most `batch_tokens` with padding a batch."""

    def rows_and_width(group: Group) -> tuple[int, int]:
        if layout == "packed":
            return 1, len(group.prompt_ids) + sum(map(len, group.responses))
        return len(group.responses), _longest(group)

    batches: list[list[int]] = []
    rows = width = 0
    for number in sorted(range(len(groups)), key=lambda n: -rows_and_width(groups[n])[1]):
        more, own_width = rows_and_width(groups[number])
        if not batches or (rows + more) * width > batch_tokens:
            batches.append([])
            rows, width = 0, own_width
        batches[-1].append(number)
        rows += more
    return batches


def _refuse_non_finite(groups: list[Group], result: list[list[torch.Tensor]]) -> None:
    for number, (group, responses) in enumerate(zip(groups, result, strict=True)):
        if not all(bool(torch.isfinite(logprobs).all()) for logprobs in responses):
            row = group.row_id or f"number {number}"
            raise CourseError(
                f"row {row}: a reference log-probability is not finite; use float32 or bfloat16"
            )


@contextmanager
def _as_reference(model: nn.Module, adapter: str | None) -> Iterator[None]:
    """Evaluation mode, no gradients, adapter off or the named one on; all as before afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), reference(model, adapter):
            yield
    finally:
        for module in training:
            module.training = True
