"""Candidate answers: every author answers every prompt, batch by batch, each batch with a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from helpers.dataset_build.settings import Author, BuildSettings, temperatures
from helpers.dataset_build.stages import FOLDER, Row, Stage, batched, digest_of, stage
from helpers.files import fingerprint
from helpers.models import loading
from helpers.models.profiles import Profile
from helpers.models.sampling import Sampling, generate
from helpers.text.chat import ChatEncoder


def write_candidates(
    settings: BuildSettings, profile: Profile, author: Author, prompts: Stage, output: Path
) -> Stage:
    """One author's answers: rows of row_id and `answers`, each with author, text, complete, temperature."""
    longest = settings.max_new_tokens or profile.max_new_tokens
    inputs = {
        "prompts": prompts.key,
        "base": digest_of(loading.resolve_model(author.model_name)),
        "adapter": digest_of(author.adapter) if author.adapter else None,
        "precision": [profile.quantization, profile.dtype],
        "temperatures": temperatures(settings),
        "sampling": [settings.top_p, longest, settings.batch_size, settings.seed],
        "author": author.name,
    }
    path = output / FOLDER / f"candidates_{author.name}.jsonl"

    def work(key: str) -> tuple[list[Row], Row]:
        writer = _Writer(settings, profile, author, longest)
        rows = batched(
            path, key, prompts.rows, settings.batch_size, writer.answer, f"answers of {author.name}"
        )
        writer.close()
        truncated = sum(not answer["complete"] for row in rows for answer in row["answers"])
        total = sum(len(row["answers"]) for row in rows)
        return rows, {
            "author": author.name,
            "answers": total,
            "truncated": truncated,
            "models": _names(inputs),
        }

    return stage(path, inputs, work)


def _names(inputs: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of an author's weights: one digest each."""
    return {
        part: fingerprint(inputs[part]) if inputs[part] is not None else None for part in ("base", "adapter")
    }


class _Writer:
    """An author's model, loaded when the first batch needs it."""

    def __init__(self, settings: BuildSettings, profile: Profile, author: Author, longest: int) -> None:
        self.settings, self.profile, self.author, self.longest = settings, profile, author, longest
        self._model: Any = None
        self._encoder: ChatEncoder | None = None

    def _load(self) -> tuple[Any, ChatEncoder]:
        if self._encoder is None:
            self._model = loading.load_base(self.author.model_name, self.profile)
            if self.author.adapter:
                self._model = loading.load_adapter(self._model, self.author.adapter, "author")
            self._encoder = ChatEncoder(loading.load_tokenizer(self.author.model_name))
        return self._model, self._encoder

    def answer(self, batch: Sequence[Row]) -> list[Row]:
        """All answers to the prompts of a batch, in the order of the temperatures."""
        model, encoder = self._load()
        prompts = [encoder.encode_prompt(row["prompt_messages"]) for row in batch]
        wanted = temperatures(self.settings)
        answers: list[list[Row]] = [[] for _ in batch]
        for temperature in dict.fromkeys(wanted):
            seed = int(fingerprint(self.settings.seed, self.author.name, temperature, batch[0]["row_id"]), 16)
            with self._role(model):
                drawn = generate(
                    model,
                    encoder,
                    prompts,
                    self._sampling(temperature),
                    k=wanted.count(temperature),
                    batch_size=len(batch) * wanted.count(temperature),
                    seed=seed % 2**31,
                )
            for row, completions in zip(answers, drawn, strict=True):
                row += [self._entry(c.text, c.complete, temperature) for c in completions]
        return [{"row_id": row["row_id"], "answers": a} for row, a in zip(batch, answers, strict=True)]

    def _entry(self, text: str, complete: bool, temperature: float) -> Row:
        return {
            "author": self.author.name,
            "text": text.strip(),
            "complete": complete,
            "temperature": temperature,
        }

    def _sampling(self, temperature: float) -> Sampling:
        if temperature == 0:
            return Sampling(max_new_tokens=self.longest, greedy=True)
        return Sampling(max_new_tokens=self.longest, temperature=temperature, top_p=self.settings.top_p)

    def _role(self, model: Any) -> AbstractContextManager[Any]:
        return loading.reference(model, "author") if self.author.adapter else nullcontext()

    def close(self) -> None:
        """Give the memory back before the next author, or the judge, is loaded."""
        self._model = self._encoder = None
        loading.release_memory()
