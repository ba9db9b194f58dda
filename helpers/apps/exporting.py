"""`export`: an adapter merged into its base in full precision, for transformers, vLLM and llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.apps.flags import parse, text
from helpers.errors import CourseError

FORMATS = ("safetensors", "gguf")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ExportConfig:
    """Merge an adapter into its base in full precision, measure what that changed, and save the model.

    transformers, vLLM and llama.cpp's converter read the directory. It is never merged into 4 bits.
    """

    adapter: str = text("the adapter, or the run that it belongs to", "")
    output_dir: str = text("new directory that receives the model", "")
    format: str = text("safetensors; or gguf, which llama.cpp's converter makes of them", "safetensors")
    llama_cpp: str | None = text("gguf: a checkout of llama.cpp; without it the command is printed")
    outtype: str = text("gguf: type of the weights, such as f16, bf16, q8_0", "q8_0")
    model_name: str | None = text("the base in full precision; default: the one that the adapter names")
    trained_in: str | None = text("nf4 or none: what it was trained on; default: as the run says")
    dtype: str | None = text("float32, bfloat16 or float16; default: that of the base's files")
    check: bool = text("read the saved model again, and compare", False)


def export(words: list[str]) -> int:
    """export --adapter DIR --output_dir DIR."""
    from helpers.models import merging

    config = parse(ExportConfig, words, "export")
    check_config(config)
    found = merging.export_adapter(
        config.adapter,
        config.output_dir,
        model_name=config.model_name,
        trained_in=config.trained_in,
        dtype=config.dtype,
        check=config.check,
    )
    print(f"{found.path}: the merged model in {found.dtype}")
    print(f"log-probabilities of the adapter's own answers, adapter on base against merged: {found.merged}")
    if found.trained:
        print(f"adapter on the NF4 base that it was trained on, against merged: {found.trained}")
    if found.reloaded:
        print(f"merged, against the files read again: {found.reloaded}")
    if config.format == "gguf":
        print(to_gguf(found.path, config))
    return 0


def check_config(config: ExportConfig) -> None:
    """Raise CourseError for what cannot work, before a model is loaded."""
    for name in ("adapter", "output_dir"):
        if not getattr(config, name):
            raise CourseError(
                "export needs --adapter and --output_dir: python -m helpers export"
                " --adapter runs/my_dpo --output_dir exported/my_dpo"
            )
    choices = {"format": FORMATS, "dtype": (None, *DTYPES), "trained_in": (None, "nf4", "none")}
    for name, known in choices.items():
        value = getattr(config, name)
        if value in known:
            continue
        advice = ""
        if name in ("dtype", "format") and any(word in str(value) for word in ("4", "8", "nf", "int")):
            advice = ": an adapter is merged into full precision only; quantise the merged model afterwards"
        raise CourseError(f"--{name} {value} is none of {', '.join(filter(None, known))}{advice}")


def to_gguf(model: Path, config: ExportConfig) -> str:
    """What was made, or the command that makes it."""
    from helpers.models import merging

    if config.llama_cpp:
        return f"{merging.convert_to_gguf(model, config.llama_cpp, config.outtype)}: for llama.cpp and ollama"
    command = " ".join(merging.gguf_command(model, None, config.outtype))
    return (
        "GGUF is written by llama.cpp's own converter, which no Python package carries:\n"
        f"  git clone https://github.com/ggml-org/llama.cpp\n  {command}"
    )
