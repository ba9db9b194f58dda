"""Where a model keeps its parts: base model, decoder and LM head, bare or inside PEFT.

The course computes log-probabilities from the decoder's last hidden state and the LM head's matrix, not from
the model's own logits. That is only right if logits = head(decoder(x)) and nothing else, so everything
here is refused rather than guessed, and `head_of` compares both once per model.
"""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from helpers.errors import CourseError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Configuration fields that put something between the head and the logits. Each with its neutral values.
LOGIT_FIELDS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier_scale",
    "mup_output_alpha",
)
# Architectures whose attention is all that mixes positions and whose positions come from position_ids,
# each held equal to the padded layout by a test.
PACKED_MODEL_TYPES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"})
PACKED_ATTENTION = frozenset({"sdpa", "eager"})

_verified: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Head(NamedTuple):
    """An LM head: logits = hidden @ weightᵀ + bias."""

    weight: torch.Tensor  # (V, H)
    bias: torch.Tensor | None  # (V,)


def base_model_of(model: Any) -> PreTrainedModel:
    """Return the transformers model under a PEFT wrapper, or `model` itself.

    Raises CourseError for prompt tuning, prefix tuning and the like: their extra inputs would be skipped.
    """
    if not hasattr(model, "peft_config"):
        return model
    if not hasattr(model, "get_base_model"):  # adapters injected in place: the model is the base
        return model
    if any(getattr(c, "is_prompt_learning", False) for c in model.peft_config.values()):
        raise CourseError("prompt-learning adapters are not supported; use LoRA (LoraSettings)")
    return model.get_base_model()


def decoder_of(model: nn.Module) -> PreTrainedModel:
    """Return the module that maps input ids to last hidden states (after the final norm).

    Raises CourseError where there is none, or where it takes no position_ids or no attention_mask.
    """
    base = base_model_of(model)
    name = type(base).__name__
    decoder = base.get_decoder() if hasattr(base, "get_decoder") else None
    has_head = getattr(base, "get_output_embeddings", lambda: None)() is not None
    if decoder is None or (has_head and decoder is base):
        raise CourseError(f"{name}: no decoder found; use a decoder-only model such as Qwen2 or Llama")
    if getattr(base.config, "is_encoder_decoder", False):
        raise CourseError(f"{name} is an encoder-decoder; use a decoder-only model such as Qwen2 or Llama")
    missing = {"position_ids", "attention_mask"} - set(inspect.signature(decoder.forward).parameters)
    if missing:
        lacks = " and no ".join(sorted(missing))
        raise CourseError(f"{name}: its decoder takes no {lacks}; use Qwen2 or Llama")
    return decoder


def head_of(model: nn.Module) -> Head:
    """Return the LM head of a causal model; its tensors are the model's own, so gradients reach them.

    Raises CourseError for heads that one matrix and a bias do not describe: an adapter on the head
    (LoRA on lm_head, modules_to_save), a quantised or offloaded head, scaled or soft-capped logits. Whatever
    else a model may do to its logits is found by comparing them, once per model.
    """
    base = base_model_of(model)
    name = type(base).__name__
    head = getattr(base, "get_output_embeddings", lambda: None)()
    if head is None:
        raise CourseError(f"{name} has no LM head; load it with AutoModelForCausalLM")
    _refuse_scaled_logits(base)
    _refuse_unusual_head(head, name)
    if base not in _verified and _compare_with_logits(base, head):
        _verified.add(base)
    return Head(head.weight, head.bias)


def _refuse_scaled_logits(base: PreTrainedModel) -> None:
    config = base.config.get_text_config() if hasattr(base.config, "get_text_config") else base.config
    for field in LOGIT_FIELDS:
        value = getattr(config, field, None)
        if value is not None and value != 1:
            raise CourseError(
                f"{type(base).__name__} changes its logits after the LM head ({field}={value}); "
                "the fused log-probabilities do not follow that, so choose another model"
            )


def _refuse_unusual_head(head: nn.Module, name: str) -> None:
    kind = type(head)
    if type(head) is not nn.Linear:
        raise CourseError(
            f"the LM head of {name} is a {kind.__module__}.{kind.__name__}, not a plain linear layer: it is "
            "adapted, quantised or wrapped. Leave it out: no 'lm_head' in target_modules, modules_to_save or "
            "trainable_token_indices, and llm_int8_skip_modules=['lm_head'] when quantising"
        )
    if not head.weight.is_floating_point() or head.weight.is_meta:
        state = "offloaded" if head.weight.is_meta else f"stored as {head.weight.dtype}"
        raise CourseError(
            f"the LM head of {name} is {state}; keep it in memory as float32, bfloat16 or float16"
        )


@torch.no_grad()
def _compare_with_logits(base: PreTrainedModel, head: nn.Linear) -> bool:
    """Run two tokens through the model; its logits must be the head's output for the decoder's last state.

    Returns False if that cannot be told yet, as the numbers are not finite or the forward pass is unsloth's
    (which for the architectures it knows returns no logits while training).
    """
    if type(base).forward.__module__.startswith("unsloth"):
        return False
    seen: dict[str, torch.Tensor] = {}
    hooks = [
        decoder_of(base).register_forward_hook(lambda _m, _i, output: seen.update(states=output[0])),
        head.register_forward_hook(lambda _m, given, output: seen.update(given=given[0], output=output)),
    ]
    try:
        # Dropout may draw; a resumed run must not see that this check took place.
        with torch.random.fork_rng():
            tokens = torch.tensor([[0, 1]], device=head.weight.device)
            logits = base(input_ids=tokens, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    if not torch.isfinite(logits).all():
        return False
    if not _is_head_of_states(logits, head, **seen):
        raise CourseError(
            f"{type(base).__name__}: its logits are not its LM head times its last hidden state; the fused "
            "log-probabilities would be wrong, so choose another model"
        )
    return True


def _is_head_of_states(
    logits: torch.Tensor,
    head: nn.Linear,
    states: torch.Tensor,
    given: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
) -> bool:
    """Whether states → head → logits, the tensors that passed by, were changed on the way."""
    if given is None or output is None:
        return False
    same = torch.equal(states.to(given.dtype), given) and torch.equal(output.float(), logits.float())
    bias = None if head.bias is None else head.bias.float()
    with torch.autocast(given.device.type, enabled=False):
        product = nn.functional.linear(given.float(), head.weight.float(), bias)
    # Loose, as the head may run in half precision; a hook on the head would change more than that.
    error = (output.float() - product).abs().max()
    return same and bool(error <= 0.02 * product.abs().max().clamp(min=1e-3))


def supports_packed(model: nn.Module, longest: int | None = None) -> bool:
    """Whether `model` computes the packed layout (4-D mask, positions that restart) correctly.

    True for known architectures with sdpa or eager attention and transformers' own forward pass. `longest`
    is the longest prompt + response in tokens: a 4-D mask replaces a sliding window, so sequences longer than
    the window need the padded layout. Without `longest` the window counts as too short.
    """
    return why_not_packed(model, longest) is None


def why_not_packed(model: nn.Module, longest: int | None = None) -> str | None:
    """Return why `model` needs the padded layout, or None if it takes the packed one."""
    decoder = decoder_of(model)
    config = decoder.config
    attention = getattr(config, "_attn_implementation", None)
    if config.model_type not in PACKED_MODEL_TYPES:
        return f"packing is not tested with model type {config.model_type!r}"
    if not type(decoder).forward.__module__.startswith("transformers."):
        return f"{type(decoder).forward.__module__} replaces the forward pass"
    if attention not in PACKED_ATTENTION:
        return f"attention {attention!r} takes no 4-D mask; load with attn_implementation='sdpa'"
    window = sliding_window(config)
    if window is not None and (longest is None or longest > window):
        return f"the model attends to {window} tokens back, and a packed mask would not keep to that"
    return None


def sliding_window(config: Any) -> int | None:
    """Return the attention window in tokens where some layer really uses one, else None."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not window or (kinds is not None and "sliding_attention" not in kinds):
        return None
    return None if getattr(config, "use_sliding_window", True) is False else int(window)
