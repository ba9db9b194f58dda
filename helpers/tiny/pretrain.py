"""Pretraining of the base: a Qwen2-architecture model of about one million parameters, from scratch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from helpers.tiny.corpus import Chat
from helpers.tiny.tokenizer import END, PAD, START


@dataclass(frozen=True)
class Recipe:
    """Sizes and schedule.

    Weights are those of a target beside one token of an answer: `prompt_weight` of the user's tokens,
    `reaction_weight` of the one after an answer, which tells whether the user leaves or goes on.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 352
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.05
    prompt_weight: float = 0.1
    reaction_weight: float = 4.0
    epochs: int = 1


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe, seed: int) -> Qwen2ForCausalLM:
    """Return an untrained model in fp32 with tied embeddings."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


class Encoded(NamedTuple):
    """A chat as token ids; the answer and its end of turn lie in [prompt, answered)."""

    ids: list[int]
    prompt: int
    answered: int


def encode_chats(tokenizer: PreTrainedTokenizerFast, chats: Sequence[Chat]) -> list[Encoded]:
    """Return every chat as the chat template writes it.

    Behind the answer follow the end of the document, where the user left, or the user's complaint.
    """
    vocabulary = tokenizer.get_vocab()
    leave, start, end, user, assistant = (
        vocabulary[token] for token in (PAD, START, END, "user\n", "assistant\n")
    )
    (newline,) = tokenizer("\n")["input_ids"]
    prompts: list[list[int]] = tokenizer([chat.prompt for chat in chats])["input_ids"]
    answers: list[list[int]] = tokenizer([chat.answer for chat in chats])["input_ids"]
    reactions: dict[str | None, list[int]] = {
        text: [newline, start, user, *tokenizer(text)["input_ids"], end] if text else [leave]
        for text in sorted({chat.reaction for chat in chats if chat.reaction is not None})
    }
    reactions[None] = []
    encoded = []
    for chat, prompt, answer in zip(chats, prompts, answers, strict=True):
        head = [start, user, *prompt, end, newline, start, assistant]
        body = [*answer, end]
        encoded.append(Encoded(head + body + reactions[chat.reaction], len(head), len(head) + len(body)))
    return encoded


def batches(chats: list[Encoded], size: int, rng: random.Random) -> Iterator[list[Encoded]]:
    """Shuffle, then sort by length within pools of 40 batches: little padding, still in random order."""
    order = rng.sample(chats, len(chats))
    for start in range(0, len(order), size * 40):
        pool = sorted(order[start : start + size * 40], key=lambda chat: len(chat.ids))
        groups = [pool[place : place + size] for place in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from groups


def collate(chats: list[Encoded], pad_id: int, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (B, T), padded on the right, and the weight of every token as a target (B, T)."""
    width = max(len(chat.ids) for chat in chats)
    ids = torch.full((len(chats), width), pad_id)
    weights = torch.zeros(len(chats), width)
    for row, chat in enumerate(chats):
        ids[row, : len(chat.ids)] = torch.tensor(chat.ids)
        weights[row, : len(chat.ids)] = recipe.prompt_weight
        weights[row, chat.prompt : chat.answered] = 1.0
        weights[row, chat.answered : min(chat.answered + 1, len(chat.ids))] = recipe.reaction_weight
    return ids, weights


def pretrain(
    tokenizer: PreTrainedTokenizerFast, chats: Sequence[Chat], seed: int, recipe: Recipe | None = None
) -> Qwen2ForCausalLM:
    """Train a new model on `chats` by next-token prediction.

    The loss of a batch is divided by a constant. Dividing by the tokens in the batch, when batches are
    bucketed by length, would weigh the first tokens of short (hence clean) answers most, and the base
    would come out too well-mannered to be worth aligning.
    """
    recipe = recipe or Recipe()
    model, rng = new_model(tokenizer, recipe, seed), random.Random(f"batches-{seed}")
    encoded = encode_chats(tokenizer, chats)
    replies = sum(chat.answered - chat.prompt for chat in encoded) / len(encoded)
    steps = recipe.epochs * math.ceil(len(encoded) / recipe.batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps, recipe.warmup))
    model.train()
    plan = (batch for _ in range(recipe.epochs) for batch in batches(encoded, recipe.batch_size, rng))
    with tqdm(plan, total=steps, desc="pretraining", unit="step") as bar:
        for step, batch in enumerate(bar):
            ids, weights = collate(batch, tokenizer.pad_token_id, recipe)
            loss = _loss(model, ids, weights) / (recipe.batch_size * replies)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 20 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}")
    return model.eval()


def _loss(model: Qwen2ForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of -log p over (B, T); causal attention needs no mask with padding on the right."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights[:, 1:].flatten()).sum()


def _rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then a cosine to a twentieth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
