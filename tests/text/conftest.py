"""Small tokenizers of the kinds that matter, trained on the spot: no network, no downloaded vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Hello there, how are you? I am fine, thank you. 42 cats and 7 dogs sat on the mat.",
    "user\nassistant\nsystem\n[INST] [/INST] <<SYS>> <</SYS>> model\nUSER: ASSISTANT:",
    "Write one sentence about the sea.\n\nThe sea is wide, blue and salty.\n  Yes.  No.",
] * 4

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN2 = (  # a system message of its own where none is given
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
) + CHATML
QWEN3 = (  # an empty thinking block in front of the last answer only
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (  # BOS in front of every exchange, white space around the answer, content trimmed
    "{% if messages[0]['role'] == 'system' %}"
    "{% set rest = messages[1:] %}{% set sys = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set sys = '' %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (sys + m['content'] if loop.first else m['content'])|trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content']|trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
    " + m['content']|trim + '<|eot_id|>' %}{{ (bos_token + text) if loop.first else text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content']|trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
ZEPHYR = (  # role marks are plain text; the answer follows a line break, with no space
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
VICUNA = (  # ends the generation prompt in a space, which a merge with the answer's first word would cross
    "{% for m in messages %}{{ m['role']|upper + ': ' + m['content'] }}"
    "{{ eos_token if m['role'] == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
PHI3 = (  # two control tokens behind the last answer: only the first ends the turn
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

# kind: (template, special tokens, sentencepiece-like, named tokens)
KINDS: dict[str, tuple[str, list[str], bool, dict[str, str]]] = {
    "qwen2": (
        QWEN2,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        False,
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    ),
    "qwen3": (
        QWEN3,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        False,
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    ),
    "smollm2": (  # BOS is the mark that opens every turn
        CHATML,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        False,
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
    ),
    "base eos": (  # the tokenizer's EOS is not what ends a turn
        CHATML,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        False,
        {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ),
    "llama2": (LLAMA2, ["<unk>", "<s>", "</s>"], True, {"bos_token": "<s>", "eos_token": "</s>"}),
    "llama3": (
        LLAMA3,
        [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
        ],
        False,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    ),
    "gemma": (
        GEMMA,
        ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        False,
        {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
    ),
    "zephyr": (
        ZEPHYR,
        ["<unk>", "<s>", "</s>"],
        True,
        {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"},
    ),
    "vicuna": (VICUNA, ["<unk>", "<s>", "</s>"], False, {"bos_token": "<s>", "eos_token": "</s>"}),
    "phi3": (
        PHI3,
        ["<|endoftext|>", "<|end|>"],
        False,
        {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    ),
}


@cache
def _backend(specials: tuple[str, ...], sentencepiece: bool, adds_bos: str | None) -> str:
    """JSON of a BPE tokenizer: byte level, or with SentencePiece's prefixed "▁" and byte fallback."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if sentencepiece else []
    tokenizer = Tokenizer(
        models.BPE(byte_fallback=sentencepiece, unk_token="<unk>" if sentencepiece else None)
    )
    if sentencepiece:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        # For training only: merges never cross into the next word, as in SentencePiece itself.
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        alphabet, limit = [], 430
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, limit = pre_tokenizers.ByteLevel.alphabet(), 420
    trainer = trainers.BpeTrainer(
        vocab_size=limit + len(specials),
        special_tokens=[*specials, *byte_tokens],
        initial_alphabet=alphabet,
        show_progress=False,
        max_token_length=12,
    )
    lines = [line for text in CORPUS for line in text.split("\n")]  # so that a line break stays a byte
    tokenizer.train_from_iterator(lines if sentencepiece else CORPUS, trainer)
    if adds_bos:  # as Llama's does: whoever tokenizes a rendered chat with it gets two
        bos_id = tokenizer.token_to_id(adds_bos)
        tokenizer.post_processor = TemplateProcessing(f"{adds_bos} $A", special_tokens=[(adds_bos, bos_id)])
    state = json.loads(tokenizer.to_str())
    if sentencepiece:  # there, bytes are ordinary pieces, not control tokens
        state["pre_tokenizer"] = None
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in specials]
    return json.dumps(state)


def build_tokenizer(kind: str, **changes: Any) -> PreTrainedTokenizerFast:
    """A fresh tokenizer of `kind`; `changes` override its named tokens or chat template."""
    template, specials, sentencepiece, named = KINDS[kind]
    backend = Tokenizer.from_str(_backend(tuple(specials), sentencepiece, named.get("bos_token")))
    if kind == "qwen3":
        backend.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    chat_template = changes.pop("chat_template", template)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **{**named, **changes})
    tokenizer.chat_template = chat_template
    return tokenizer


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """The factory, for tests that need a variant."""
    return build_tokenizer


@pytest.fixture(scope="session", params=sorted(KINDS))
def kind(request) -> str:
    """Every kind of template in turn."""
    return request.param
