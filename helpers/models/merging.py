"""A trained adapter as a model of its own: merged in full precision, measured, saved for other tools.

    W + (alpha / r) B A        (Hu et al. 2021, arXiv 2106.09685)

The sum is exact up to rounding where W is in full precision. In 4 bits it is not: W + BA is rounded to the 16
levels again, and most of what the adapter says is smaller than half the distance between two of them.

Deviation from what was trained, if that was QLoRA: the adapter learned on the *rounded* base and meets the
unrounded one here. How much that changes is measured too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.files import atomic_path, read_json, write_json
from helpers.models import loading
from helpers.models.adapters import CONFIG_FILE, reference
from helpers.models.policy import response_logprobs
from helpers.models.sampling import Sampling, generate
from helpers.text.chat import ChatEncoder
from helpers.text.groups import Group, make_batch

PROBES = (
    "What is the capital of France?",
    "Write two sentences about a river.",
    "How do I boil an egg?",
    "Is it wise to answer a letter in anger?",
)
PROBE_TOKENS = 32  # of each answer
REPORT = "export.json"
CONVERTER = "convert_hf_to_gguf.py"  # of llama.cpp, which is not on PyPI


@dataclass(frozen=True)
class Drift:
    """Difference of log-probabilities, in nats, over the tokens of some answers."""

    largest: float
    mean: float
    tokens: int

    @classmethod
    def between(cls, first: torch.Tensor, second: torch.Tensor) -> Drift:
        """Of two tensors of log-probabilities, (tokens,) each."""
        gap = (first.double() - second.double()).abs()
        return cls(gap.max().item(), gap.mean().item(), gap.numel())

    def __str__(self) -> str:
        return f"largest {self.largest:.2e}, mean {self.mean:.2e} nats over {self.tokens} tokens"


@dataclass(frozen=True)
class Export:
    """Where the model lies, and what changed on the way."""

    path: Path
    dtype: str
    merged: Drift  # from base + adapter to the merged model
    trained: Drift | None = None  # from the 4-bit base + adapter to the merged model
    reloaded: Drift | None = None  # from the merged model to the files, read again by transformers


def answered(model: Any, encoder: ChatEncoder, prompts: Sequence[str] = PROBES) -> list[Group]:
    """Prompts with the model's own greedy answers: the tokens on which a difference matters."""
    ids = [encoder.encode_prompt([{"role": "user", "content": text}]) for text in prompts]
    answers = generate(model, encoder, ids, Sampling(max_new_tokens=PROBE_TOKENS, greedy=True))
    pairs = zip(ids, answers, strict=True)
    return [Group(prompt, [done[0].ids], f"probe {n}") for n, (prompt, done) in enumerate(pairs)]


@torch.no_grad()
def logprobs_of(model: Any, groups: Sequence[Group], pad_id: int) -> torch.Tensor:
    """(tokens,) log-probabilities of the answers, on the CPU."""
    model.eval()
    scores = response_logprobs(model, make_batch(groups, pad_id, "padded"))
    return scores.logprobs[scores.mask].float().cpu()


def export_adapter(
    adapter: str | Path,
    target: str | Path,
    *,
    model_name: str | None = None,
    trained_in: str | None = None,
    dtype: str | None = None,
    check: bool = False,
) -> Export:
    """Merge an adapter into its base in full precision and save the whole model as safetensors.

    Args:
        adapter: directory of an adapter, or of a run that holds one.
        target: new directory; transformers, vLLM and llama.cpp's converter read it.
        model_name: the base; default: the one that the adapter names.
        trained_in: "nf4" or "none", what the base was loaded in for training; default: the run's config.json
            says it. With "nf4" the 4-bit base under the adapter is compared with the result, too.
        dtype: of base and result; default: that of the base's files.
        check: read the result again and compare.

    Raises CourseError for an adapter that is none, a base in 4 bits, and a target that exists.
    """
    place, goal = find_adapter(adapter), Path(target)
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise CourseError(f"--output_dir {goal} exists already: name a new directory")
    name = model_name or str(read_json(place / CONFIG_FILE).get("base_model_name_or_path") or "")
    refuse_4bit(name, place)
    kind = dtype or stored_dtype(name)
    encoder = ChatEncoder(loading.load_tokenizer(name))
    model = loading.load_adapter(
        loading.load_base(name, quantization="none", dtype=kind), place, "merged", trainable=False
    )
    with reference(model, "merged"):
        groups = answered(model, encoder)
        before = logprobs_of(model, groups, encoder.pad_id)
    merged = loading.merge_adapter(model, "merged").model
    after = logprobs_of(merged, groups, encoder.pad_id)
    save_model(merged, encoder, goal)
    loading.free(model, merged)
    export = Export(
        goal,
        kind,
        Drift.between(before, after),
        four_bit_drift(name, place, groups, encoder, after)
        if (trained_in or trained_quantization(place)) == "nf4"
        else None,
        reload_drift(goal, kind, groups, encoder, after) if check else None,
    )
    write_json(goal / REPORT, {**asdict(export), "path": goal.name, "base": name, "adapter": str(adapter)})
    return export


def find_adapter(adapter: str | Path) -> Path:
    """The adapter's own directory, given that or the run it belongs to."""
    given = Path(adapter)
    for place in (given, given / "adapter", given / "final" / "adapter"):
        if (place / CONFIG_FILE).is_file():
            return place
    raise CourseError(f"--adapter {given} holds no adapter: give a run, or its final/adapter")


def trained_quantization(place: Path) -> str:
    """What the run around an adapter loaded its base in; "none" where no run is found."""
    for parent in list(place.resolve().parents)[:3]:
        if (parent / "config.json").is_file():
            return str(read_json(parent / "config.json").get("quantization", "none"))
    return "none"


def refuse_4bit(name: str, adapter: Path) -> None:
    """Raise CourseError if the base's files are quantised: rounding W + BA again gives another model."""
    if not name:
        raise CourseError(f"{adapter / CONFIG_FILE} names no base: give it with --model_name")
    config = model_config(name)
    if getattr(config, "quantization_config", None):
        raise CourseError(
            f"{name} is stored quantised, and an adapter is merged into full precision only: rounding the sum"
            " to 4 bits again would lose most of the adapter. Give --model_name the model it was made from"
            " (such as Qwen/Qwen2.5-7B-Instruct for unsloth/Qwen2.5-7B-Instruct-bnb-4bit)"
        )


def model_config(name: str) -> Any:
    """A model's configuration, read as `load_base` would."""
    from transformers import AutoConfig

    return loading._from_pretrained(AutoConfig, loading.resolve_model(name), name)


def stored_dtype(name: str) -> str:
    """The dtype of a model's files, such as "bfloat16"; float32 where it is not said."""
    found = getattr(model_config(name), "dtype", None) or torch.float32
    return str(found).removeprefix("torch.")


def save_model(model: Any, encoder: ChatEncoder, target: Path) -> None:
    """Write weights, configuration and tokenizer to `target`, whole or not at all."""
    if target.is_dir():
        target.rmdir()  # an empty one
    with atomic_path(target) as draft:
        model.save_pretrained(draft)
        encoder.tokenizer.save_pretrained(draft)
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes for the owner alone; a server often runs as somebody else


def four_bit_drift(
    name: str, place: Path, groups: Sequence[Group], encoder: ChatEncoder, after: torch.Tensor
) -> Drift:
    """From the adapter on the NF4 base that it was trained on to the merged model."""
    model = loading.load_adapter(loading.load_base(name, quantization="nf4"), place, "trained")
    with reference(model, "trained"):
        before = logprobs_of(model, groups, encoder.pad_id)
    loading.free(model)
    return Drift.between(before, after)


def reload_drift(
    target: Path, dtype: str, groups: Sequence[Group], encoder: ChatEncoder, after: torch.Tensor
) -> Drift:
    """From the merged model to what `from_pretrained` makes of its files."""
    model = loading.load_base(str(target), quantization="none", dtype=dtype)
    again = logprobs_of(model, groups, encoder.pad_id)
    loading.free(model)
    return Drift.between(after, again)


def gguf_command(model: Path, llama_cpp: str | Path | None, outtype: str = "q8_0") -> list[str]:
    """The call of llama.cpp's converter that makes one GGUF file of an exported directory."""
    script = Path(llama_cpp or "llama.cpp") / CONVERTER
    outfile = model.parent / f"{model.name}-{outtype}.gguf"
    python = sys.executable if llama_cpp else "python"
    return [python, str(script), str(model), "--outfile", str(outfile), "--outtype", outtype]


def convert_to_gguf(model: Path, llama_cpp: str | Path, outtype: str = "q8_0") -> Path:
    """Run llama.cpp's own converter on an exported directory; return the GGUF file.

    Raises CourseError where the converter is missing or fails, with its last words.
    """
    command = gguf_command(model, llama_cpp, outtype)
    if not Path(command[1]).is_file():
        raise CourseError(
            f"--llama_cpp {llama_cpp} holds no {CONVERTER}:"
            " git clone https://github.com/ggml-org/llama.cpp, and give its directory"
        )
    done = subprocess.run(command, capture_output=True, text=True)
    target = Path(command[4])
    if done.returncode or not target.is_file():
        raise CourseError(f"llama.cpp's converter failed: {(done.stderr or done.stdout).strip()[-600:]}")
    return target
