"""Other ways to write response_mask and token_logprobs."""

import torch
import torch.nn.functional as F


def response_mask_by_rows(prompt_lengths, attention_mask):
    mask = torch.zeros(attention_mask.shape, dtype=torch.bool)
    for i in range(len(prompt_lengths)):
        mask[i, int(prompt_lengths[i]) :] = attention_mask[i, int(prompt_lengths[i]) :] == 1
    return mask


def response_mask_by_counting(prompt_lengths, attention_mask):
    seen = torch.cumsum(torch.ones_like(attention_mask), dim=1)
    return (seen > prompt_lengths.unsqueeze(1)) & (attention_mask != 0)


def response_mask_by_subtraction(prompt_lengths, attention_mask):
    prompt = torch.arange(attention_mask.size(1)).expand_as(attention_mask) < prompt_lengths.view(-1, 1)
    return torch.logical_and(attention_mask.bool(), torch.logical_not(prompt))


def response_mask_by_where(prompt_lengths, attention_mask):
    places = torch.arange(attention_mask.size(1)).repeat(len(prompt_lengths), 1)
    return torch.where(places < prompt_lengths[:, None], 0, attention_mask).bool()


def response_mask_by_lengths(prompt_lengths, attention_mask):
    ends, places = attention_mask.sum(dim=1), torch.arange(attention_mask.size(1))
    return (places.ge(prompt_lengths[:, None])).mul(places.lt(ends[:, None]))


def token_logprobs_by_log_softmax(logits, input_ids):
    logprobs = F.log_softmax(logits[:, :-1].float(), dim=-1)
    return torch.gather(logprobs, 2, input_ids[:, 1:].unsqueeze(2)).squeeze(2)


def token_logprobs_by_cross_entropy(logits, input_ids):
    batch, width, vocabulary = logits.shape
    flat = logits[:, :-1].reshape(-1, vocabulary).float()
    return -F.cross_entropy(flat, input_ids[:, 1:].reshape(-1), reduction="none").view(batch, width - 1)


def token_logprobs_by_one_hot(logits, input_ids):
    chosen = F.one_hot(input_ids[:, 1:], logits.shape[-1]).double()
    return torch.einsum("btv,btv->bt", logits[:, :-1].double().log_softmax(-1), chosen).float()


def token_logprobs_by_rows(logits, input_ids):
    rows = []
    for row, ids in zip(logits, input_ids, strict=True):
        scores = row.float() - row.float().logsumexp(dim=-1, keepdim=True)
        rows.append(scores[torch.arange(len(ids) - 1), ids[1:]])
    return torch.stack(rows)


def token_logprobs_by_largest(logits, input_ids):
    shifted = logits.float() - logits.float().amax(dim=-1, keepdim=True)
    logprobs = shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
    return logprobs[:, :-1].take_along_dim(input_ids[:, 1:, None], dim=-1)[:, :, 0]
