"""The one batch type of the course: a prompt and its k responses, packed or padded.

SFT has k = 1, a preference pair k = 2, a GRPO group k = G. `Group` holds token ids; `TokenBatch` is what
a model sees, in one of two layouts that must give equal log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from helpers.errors import CourseError


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

    def to(self, device: torch.device | str) -> TokenBatch:
        """Return the batch with every tensor on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)
        }
        return replace(self, **moved)

    def mask_in_rows(self) -> torch.Tensor:
        """Return (rows, width) bool: true on response tokens, aligned with `input_ids`."""
        marked = torch.zeros_like(self.input_ids, dtype=torch.bool)
        marked.view(-1)[self.token_index[self.mask]] = True
        return marked


def make_batch(groups: Sequence[Group], pad_id: int, layout: str) -> TokenBatch:
    """Lay `groups` out as `layout`, "packed" or "padded"."""
    if layout == "packed":
        return pack_groups(groups, pad_id)
    if layout == "padded":
        return pad_groups(groups, pad_id)
    raise CourseError(f"layout must be 'packed' or 'padded', not {layout!r}")


def pack_groups(groups: Sequence[Group], pad_id: int) -> TokenBatch:
    """One row `[prompt | r1 | … | rk]` a group: the prompt is computed once for its k responses.

    Position ids restart after the prompt for every response. The 4-D mask lets a response see the prompt
    and itself only. Rows are right-padded, and a padding position attends to itself: a row of the mask
    that allows nothing makes softmax divide zero by zero, and the NaN spreads through the gradients.
    The boolean mask is for "sdpa" attention. "eager" *adds* its mask, so there True would mean +1.
    """
    check_groups(groups)
    width = max(len(g.prompt_ids) + sum(map(len, g.responses)) for g in groups)
    input_ids = torch.full((len(groups), width), pad_id, dtype=torch.long)
    position_ids = torch.zeros_like(input_ids)
    segments = torch.full_like(input_ids, -1)  # 0 the prompt, 1…k the responses, -1 padding
    prompt_ends, starts = [], []
    for row, group in enumerate(groups):
        prompt_length, start = len(group.prompt_ids), 0
        for segment, ids in enumerate([group.prompt_ids, *group.responses]):
            stop = start + len(ids)
            input_ids[row, start:stop] = torch.tensor(ids)
            first_position = prompt_length if segment else 0
            position_ids[row, start:stop] = torch.arange(first_position, first_position + len(ids))
            segments[row, start:stop] = segment
            if segment:
                prompt_ends.append(row * width + prompt_length - 1)
                starts.append(row * width + start)
            start = stop
    mask = _packed_mask(segments)
    indices = _response_indices(groups, prompt_ends, starts)
    return TokenBatch("packed", input_ids, position_ids, mask, *indices)


def pad_groups(groups: Sequence[Group], pad_id: int, side: str = "right") -> TokenBatch:
    """One row `[prompt | response]` a response, padded on `side`: the oracle of the packed layout.

    Position ids count attended positions only, so left padding does not shift a text's positions.
    """
    check_groups(groups)
    if side not in ("right", "left"):
        raise CourseError(f"padding side must be 'right' or 'left', not {side!r}")
    rows = [(group.prompt_ids, response) for group in groups for response in group.responses]
    width = max(len(prompt) + len(response) for prompt, response in rows)
    input_ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    starts = []
    for row, (prompt, response) in enumerate(rows):
        length = len(prompt) + len(response)
        offset = width - length if side == "left" else 0
        input_ids[row, offset : offset + length] = torch.tensor(prompt + response)
        attention_mask[row, offset : offset + length] = 1
        starts.append(row * width + offset + len(prompt))
    position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0) * attention_mask
    prompt_ends = [start - 1 for start in starts]
    indices = _response_indices(groups, prompt_ends, starts)
    return TokenBatch("padded", input_ids, position_ids, attention_mask, *indices)


def check_groups(groups: Sequence[Group]) -> None:
    """Raise CourseError, naming the row, for a group that no model could score."""
    if not groups:
        raise CourseError("a batch needs at least one group; none was given")
    for number, group in enumerate(groups):
        name = f"row {group.row_id!r}" if group.row_id else f"group {number} of the batch"
        if not group.prompt_ids:
            raise CourseError(f"{name} has an empty prompt: nothing would predict the first response token")
        if not group.responses:
            raise CourseError(f"{name} has no response: sample some, or load sft or preference data")
        for index, response in enumerate(group.responses):
            if not response:
                raise CourseError(f"{name} has an empty response (number {index}): drop it while loading")


def _packed_mask(segments: torch.Tensor) -> torch.Tensor:
    """(rows, width) segment numbers → (rows, 1, width, width) bool, true where a query may see a key."""
    width = segments.shape[1]
    query, key = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    visible = causal & ((key == 0) | (key == query)) & (query >= 0)
    return (visible | torch.eye(width, dtype=torch.bool)).unsqueeze(1)


def _response_indices(
    groups: Sequence[Group], prompt_ends: list[int], starts: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Index tensors (predict_index, token_index, labels, mask, group_index) of the N responses.

    `prompt_ends` and `starts` are flat positions of the last prompt token and of the first response
    token. The mask comes from lengths, never from token ids: padding may be the end-of-turn token.
    """
    responses = [response for group in groups for response in group.responses]
    lengths = torch.tensor([len(response) for response in responses])
    offsets = torch.arange(int(lengths.max()))
    mask = offsets < lengths[:, None]
    token_index = torch.where(mask, torch.tensor(starts)[:, None] + offsets, 0)
    # The first response token is predicted at the end of the prompt, which in a packed row is not beside it.
    predict_index = torch.where(mask & (offsets > 0), token_index - 1, 0)
    predict_index[:, 0] = torch.tensor(prompt_ends)
    labels = torch.zeros_like(token_index)
    labels[mask] = torch.tensor([token for response in responses for token in response])
    group_index = torch.repeat_interleave(
        torch.arange(len(groups)), torch.tensor([len(group.responses) for group in groups])
    )
    return predict_index, token_index, labels, mask, group_index
