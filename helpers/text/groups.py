"""The one batch type of the course: a prompt and its k responses, packed or padded.

SFT has k = 1, a preference pair k = 2, a GRPO group k = G. `Group` holds token ids; `TokenBatch` is what
a model sees, in one of two layouts that must give equal log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Group:
    """A prompt and its responses as token ids.

    `prompt_ids` holds at least one token (BOS and generation prompt included). Every response holds at
    least one token and ends with the end-of-turn token exactly if it is complete. `row_id` says which
    data row it came from.
    """

    prompt_ids: list[int]
    responses: list[list[int]]
    row_id: str = ""


@dataclass(frozen=True)
class TokenBatch:
    """Groups laid out for one forward pass. N responses in all, the longest of R tokens.

    Rows and width are the layout's own (packed: one row a group; padded: one row a response).
    """

    layout: str  # "packed" or "padded"
    input_ids: torch.Tensor  # (rows, width) long
    position_ids: torch.Tensor  # (rows, width) long, restarting after the prompt for every response
    attention_mask: torch.Tensor  # packed: (rows, 1, width, width) bool; padded: (rows, width) long
    predict_index: torch.Tensor  # (N, R) long: flat index into rows * width of the state predicting the token
    token_index: torch.Tensor  # (N, R) long: flat index of the response token itself
    labels: torch.Tensor  # (N, R) long: response token ids, 0 outside the mask
    mask: torch.Tensor  # (N, R) bool: true on response tokens, left-aligned
    group_index: torch.Tensor  # (N,) long: which group a response belongs to
